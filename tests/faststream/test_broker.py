"""What is declared with FastStream's decorators happens in a real directory."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any

import msgspec
import pytest
from faststream import BaseMiddleware, Context, Depends
from faststream import Path as FromPath
from faststream.exceptions import IncorrectState, SetupError
from pydantic import BaseModel

import heliograph as hg
from heliograph.faststream import (
    HeliographBroker,
    HeliographMessage,
    HeliographPublisher,
    HeliographResponse,
    HeliographRoute,
    HeliographRouter,
)
from heliograph.faststream.annotations import Station
from tests.faststream.stories import at, eventually, position, run


class Order(BaseModel):
    id: int
    amount: float = 1.0


class Invoice(BaseModel):
    order: int
    total: float


def test_what_a_handler_returns_is_published_and_both_are_plain_json_in_the_log(root: Path) -> None:
    broker, totals = at(root), []

    @broker.subscriber("orders", name="billing")
    @broker.publisher("invoices", type="com.example.invoice.v1", headers={"region": "eu"})
    async def bill(order: Order) -> Invoice:
        return Invoice(order=order.id, total=order.amount * 2)

    @broker.subscriber("invoices")
    async def add(order: int, total: float) -> None:
        totals.append((order, total))

    async def story() -> None:
        async with broker:
            await broker.start()
            receipt = await broker.publish(Order(id=7, amount=1.5), "orders", key="ada", headers={"shop": 3})
            assert (receipt.channel, receipt.offset) == ("orders", 0)
            await eventually(lambda: totals)

    run(story)
    assert totals == [(7, 3.0)]
    stored = json.loads((root / "channels/orders/0/00000000000000000000.jsonl").read_text())
    assert (stored["data"], stored["partitionkey"], stored["shop"]) == ({"id": 7, "amount": 1.5}, "ada", 3)
    with hg.open(root) as station:
        (invoice,) = station.read("invoices")
        assert (invoice.type, invoice.data) == ("com.example.invoice.v1", {"order": 7, "total": 3.0})
        assert invoice.headers == {"region": "eu"}
        assert invoice.correlationid == stored["correlationid"]


def test_a_durable_subscriber_goes_on_where_it_stopped(root: Path) -> None:
    seen: list[int] = []

    async def life(first: int) -> None:
        broker = at(root)

        @broker.subscriber("numbers", name="worker")
        def plain(number: int) -> None:  # FastStream calls it in a thread
            seen.append(number)

        async with broker:
            await broker.start()
            await broker.publish(first, "numbers")
            await eventually(lambda: first in seen)
            await broker.subscribers[0].stop()
            await broker.publish(first + 1, "numbers")

    async def story() -> None:
        await life(0)
        await life(10)

    run(story)
    assert seen == [0, 1, 10]


@pytest.mark.parametrize("options", [{"group": True}, {"queue": True}])
def test_workers_of_one_name_share_the_messages(root: Path, options: dict[str, Any]) -> None:
    seen: list[tuple[str, int]] = []

    def worker(name: str) -> HeliographBroker:
        broker = at(root)

        @broker.subscriber("tasks", name="work", start="first", max_workers=2, **options)
        async def handle(number: int) -> None:
            seen.append((name, number))
            await asyncio.sleep(0.001)

        return broker

    async def story() -> None:
        one, two = worker("one"), worker("two")
        async with one, two:
            await one.station.create_channel("tasks", partitions=4)
            await one.start()
            await two.start()
            for start in range(0, 200, 10):
                await one.publish_batch(*range(start, start + 10), channel="tasks")
            await eventually(lambda: len(seen) >= 200)

    run(story)
    assert sorted(number for _, number in seen) == list(range(200))
    assert {name for name, _ in seen} == {"one", "two"}


def test_arguments_are_injected(root: Path) -> None:
    broker, seen = at(root), []

    def shop(message: HeliographMessage) -> int:
        return int(message.headers["shop"])

    @broker.subscriber("logs.{level}.*", start="first")
    async def handle(
        text: str,
        message: HeliographMessage,
        station: Station,
        shop: Annotated[int, Depends(shop)],
        level: str = FromPath(),
        offset: int = Context("message.raw_message.offset"),
    ) -> None:
        seen.append((text, message.raw_message.channel, station.name, shop, level, offset))

    async def story() -> None:
        async with broker:
            await broker.publish("unheard", "logs.info")
            await broker.publish("hello", "logs.info.web", headers={"shop": 4})
            await broker.start()
            await eventually(lambda: seen)

    run(story)
    assert seen == [("hello", "logs.info.web", "host1", 4, "info", 0)]


@pytest.mark.parametrize("body", [{"a": [1, None]}, [1, 2], "text", "17", 3, 1.5, True, b"\x00\xff", None])
def test_a_body_arrives_as_it_was_sent(root: Path, body: Any) -> None:
    broker, seen = at(root), []

    @broker.subscriber("things", start="first")
    async def handle(body: Any, message: HeliographMessage) -> None:
        seen.append((await message.decode(), message.raw_message.data))

    async def story() -> None:
        async with broker:
            await broker.publish(body, "things")
            await broker.start()
            await eventually(lambda: seen)

    run(story)
    assert seen == [(body, body)]


def test_what_other_publishers_sent_with_a_registered_type_arrives_as_data(root: Path) -> None:
    class Alert(msgspec.Struct):
        level: int

    broker, seen = at(root), []

    @broker.subscriber("alerts", start="first")
    async def handle(alert: dict[str, int]) -> None:
        seen.append(alert["level"])

    async def story() -> None:
        async with broker:
            broker.station.register("com.example.alert.v1", Alert)
            await broker.station.publish("alerts", Alert(3))
            await broker.publish({"level": 4}, "alerts", type="com.example.alert.v1")
            with pytest.raises(hg.PayloadMismatch):
                await broker.publish({"level": "high"}, "alerts", type="com.example.alert.v1")
            await broker.start()
            await eventually(lambda: len(seen) == 2)

    run(story)
    assert seen == [3, 4]


def test_a_codec_of_ones_own_is_stored_as_bytes(root: Path) -> None:
    class Reversed:
        async def encode(self, msg: Any, serializer: Any = None) -> tuple[bytes, str | None]:
            return str(msg)[::-1].encode(), "text/reversed"

        async def decode(self, msg: Any) -> Any:
            return msg.body.decode()[::-1]

    broker, seen = at(root, codec=Reversed()), []

    @broker.subscriber("things", start="first")
    async def handle(body: str, message: HeliographMessage) -> None:
        seen.append((body, message.raw_message.data))

    async def story() -> None:
        async with broker:
            await broker.publish("abc", "things")
            await broker.start()
            await eventually(lambda: seen)

    run(story)
    assert seen == [("abc", b"cba")]


def test_batches_arrive_as_lists_and_lists_leave_as_batches(root: Path) -> None:
    broker, sizes = at(root), []

    @broker.subscriber("numbers", name="worker", start="first", batch=True)
    @broker.publisher("squares", batch=True)
    async def square(numbers: list[int]) -> list[int]:
        sizes.append(len(numbers))
        return [number * number for number in numbers]

    async def story() -> None:
        async with broker:
            receipts = await broker.publish_batch(*range(10), channel="numbers", key="one")
            assert [receipt.offset for receipt in receipts] == list(range(10))
            assert await broker.publish_batch(channel="numbers") == []
            await broker.start()
            await eventually(lambda: sum(sizes) == 10)
            await broker.stop()
            await broker.connect()
            found = [message async for message in broker.station.read("squares")]
            assert [message.data for message in found] == [number * number for number in range(10)]
            batches = {message.envelope.get("batch") for message in found}
            assert len(batches) == len(sizes)

    run(story)


def test_options_of_publishing_reach_the_station(root: Path) -> None:
    broker = at(root)
    declared = broker.publisher("later", ttl=60, headers={"shop": 1})

    @broker.subscriber("numbers", start="first")
    @declared
    async def handle(number: int) -> HeliographResponse:
        return HeliographResponse(number, key="one", delay=timedelta(hours=1), headers={"page": 2})

    async def story() -> None:
        async with broker:
            await broker.publish(1, "numbers", subject="first", ttl=timedelta(hours=1))
            await broker.start()
            waiting = None
            while waiting is None:
                waiting = await anext(broker.station.scheduled(), None)
            assert (waiting.channel, waiting.key) == ("later", "one")
            await declared.publish(2, channel="other", headers={"page": 3}, correlation_id="mine")
            (other,) = [one async for one in broker.station.read("other")]
            assert (other.headers, other.correlationid) == ({"shop": 1, "page": 3}, "mine")
            assert other.expires is not None
            (number,) = [one async for one in broker.station.read("numbers")]
            assert number.subject == "first"
            assert number.expires is not None

    run(story)


def test_consuming_publishing_and_committing_can_be_one_step(root: Path) -> None:
    broker, calls = at(root), []

    @broker.subscriber("numbers", name="bridge", start="first")
    async def bridge(number: int, message: HeliographMessage, station: Station) -> None:
        calls.append(number)
        async with station.atomic() as step:
            await step.publish("copies", number)
            await step.commit(message.raw_message, "bridge")

    async def story() -> None:
        async with broker:
            await broker.publish_batch(1, 2, channel="numbers")
            await broker.start()
            await eventually(lambda: len(calls) == 2)
        async with broker:
            assert [message.data async for message in broker.station.read("copies")] == [1, 2]
            assert await position(broker, "numbers", "bridge") == 2

    run(story)


def test_routers_bring_their_prefix_dependencies_and_middlewares(root: Path) -> None:
    seen: list[Any] = []

    class Noting(BaseMiddleware):
        async def on_receive(self) -> None:
            seen.append(type(self.msg).__name__)
            await super().on_receive()

    async def handle(number: int, level: str = FromPath()) -> int:
        seen.append((number, level))
        return number + 1

    def plus(number: int) -> None:
        seen.append(number)

    inner = HeliographRouter("inner.", [HeliographRoute(plus, "sums", start="first")])
    routes = [HeliographRoute(handle, "in.{level}", publishers=[HeliographPublisher("inner.sums")], start="first")]
    router = HeliographRouter("shop.", routes, routers=[inner], middlewares=[Noting])
    broker = at(root, routers=[router])

    async def story() -> None:
        async with broker:
            await broker.start()
            await broker.publish(1, "shop.in.web")
            await eventually(lambda: 2 in seen)
            assert {info.name for info in await broker.station.channels()} == {"shop.in.web", "shop.inner.sums"}

    run(story)
    assert seen == ["Message", (1, "web"), "Message", 2]
    with pytest.raises(SetupError, match="HeliographRouter"):
        broker.include_router(object())


def test_middlewares_see_what_is_consumed_and_published(root: Path) -> None:
    seen: list[str] = []

    class Loud(BaseMiddleware):
        async def consume_scope(self, call_next: Any, msg: Any) -> Any:
            msg.body = msg.body.upper()
            return await call_next(msg)

        async def publish_scope(self, call_next: Any, cmd: Any) -> Any:
            cmd.headers["loud"] = True
            return await call_next(cmd)

    broker = at(root, middlewares=[Loud])

    @broker.subscriber("texts", start="first")
    async def handle(text: str, message: HeliographMessage) -> None:
        seen.append(f"{text} {message.headers['loud']}")

    async def story() -> None:
        async with broker:
            await broker.start()
            await broker.publish("hello", "texts")
            await eventually(lambda: seen)

    run(story)
    assert seen == ["HELLO True"]


def test_a_filter_leaves_messages_out(root: Path) -> None:
    broker, seen = at(root), []

    @broker.subscriber("numbers", name="eu", start="first", where=hg.Filter(headers={"region": "eu"}))
    async def handle(number: int) -> None:
        seen.append(number)

    async def story() -> None:
        async with broker:
            for number, region in enumerate(["eu", "us", "eu"]):
                await broker.publish(number, "numbers", headers={"region": region})
            await broker.start()
            await eventually(lambda: len(seen) == 2)

    run(story)
    assert seen == [0, 2]


def test_a_broker_can_be_started_again_and_says_when_it_is_not(root: Path) -> None:
    broker, seen = at(root), []

    @broker.subscriber("numbers", name="worker")
    async def handle(number: int) -> None:
        seen.append(number)

    async def story() -> None:
        with pytest.raises(IncorrectState, match="not connected"):
            await broker.publish(0, "numbers")
        for number in range(2):
            assert not await broker.ping()
            await broker.start()
            assert await broker.ping()
            await broker.publish(number, "numbers")
            await eventually(lambda number=number: number in seen)
            station = broker.station
            await broker.stop()
            assert station.sync_station.closed

    run(story)
    assert seen == [0, 1]


def test_a_name_that_is_taken_and_a_setting_that_is_none_are_refused(root: Path) -> None:
    async def story() -> None:
        one, two = at(root), at(root)
        for broker in (one, two):
            broker.subscriber("numbers", name="worker")(lambda number: None)
        async with one, two:
            await one.start()
            with pytest.raises(hg.SubscriptionBusy):
                await two.start()
        with pytest.raises(hg.ConfigError, match="midlewares"):
            await at(root, midlewares=[]).start()

    run(story)
