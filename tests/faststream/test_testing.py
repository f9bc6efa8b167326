"""The in-memory broker of tests behaves as the real one where it matters."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from faststream import Path as FromPath
from faststream import TestApp
from faststream.app import FastStream
from faststream.exceptions import SubscriberNotFound
from pydantic import BaseModel, ValidationError

import heliograph as hg
from heliograph.faststream import HeliographBroker, HeliographMessage, HeliographResponse, TestHeliographBroker
from tests.faststream.stories import at, run


class Order(BaseModel):
    id: int


def declared(root: Path) -> tuple[HeliographBroker, Any, Any]:
    broker = at(root)

    @broker.subscriber("orders", name="billing", group=True)
    @broker.publisher("invoices")
    async def bill(order: Order, message: HeliographMessage) -> HeliographResponse:
        return HeliographResponse({"order": order.id, "by": message.raw_message.key}, headers={"page": 1})

    @broker.subscriber("logs.{level}", where=hg.Filter(headers={"loud": True}))
    async def note(text: str, level: str = FromPath()) -> None:
        return

    return broker, bill, note


def test_handlers_are_called_at_once_and_no_directory_is_made(root: Path) -> None:
    broker, bill, note = declared(root)

    async def story() -> None:
        async with TestHeliographBroker(broker) as tested:
            receipt = await tested.publish(Order(id=3), "orders", key="ada")
            assert receipt.channel == "orders"
            bill.mock.assert_called_once_with({"id": 3})
            await tested.publishers[0].assert_called_once_with({"order": 3, "by": "ada"}, headers={"page": 1})
            await tested.publish("quiet", "logs.info")
            await tested.publish("hello", "logs.info", headers={"loud": True})
            await note.assert_called_once_with("hello", path={"level": "info"})
            assert await tested.ping()

    run(story)
    assert not root.exists()


@pytest.mark.parametrize("with_real", [False, True])
@pytest.mark.parametrize("later", [{"delay": 3600}, {"deliver_at": datetime.now(UTC) + timedelta(hours=1)}])
def test_what_is_for_later_says_when_it_is_due_and_is_handed_over_at_once_in_memory(
    root: Path, with_real: bool, later: dict[str, Any]
) -> None:
    broker, bill, _ = declared(root)

    async def story() -> None:
        async with TestHeliographBroker(broker, with_real=with_real) as tested:
            one = await tested.publish(Order(id=3), "orders", key="ada", **later)
            (other,) = await tested.publish_batch(Order(id=4), channel="orders", **later)
            for receipt, key in ((one, "ada"), (other, None)):
                assert isinstance(receipt, hg.Scheduled)
                assert (receipt.channel, receipt.offset, receipt.key) == ("orders", -1, key)
                assert timedelta(minutes=50) < receipt.due - datetime.now(UTC) <= timedelta(hours=1)
            assert bill.mock.call_count == (0 if with_real else 2)

    run(story)


def test_an_error_of_a_handler_is_raised(root: Path) -> None:
    broker, _, _ = declared(root)

    async def story() -> None:
        async with TestHeliographBroker(broker) as tested:
            with pytest.raises(ValidationError):
                await tested.publish({"id": "many"}, "orders")

    run(story)


def test_requests_are_answered(root: Path) -> None:
    broker, _, _ = declared(root)

    async def story() -> None:
        async with TestHeliographBroker(broker) as tested:
            reply = await tested.request({"id": 4}, "orders", key="bob", timeout=3)
            assert await reply.decode() == {"order": 4, "by": "bob"}
            assert reply.headers == {"page": 1}
            with pytest.raises(SubscriberNotFound):
                await tested.request({}, "nobody")

    run(story)


def test_of_a_group_one_worker_is_called_and_of_others_each(root: Path) -> None:
    broker, seen = at(root), []
    for name in [None, None, "work", "work", "other"]:

        @broker.subscriber("tasks", name=name, queue=name is not None)
        async def handle(body: bytes) -> None:
            seen.append(body)

    @broker.subscriber("tasks", batch=True)
    async def collect(bodies: list[bytes]) -> None:
        seen.append(bodies)

    async def story() -> None:
        async with TestHeliographBroker(broker) as tested:
            await tested.publish(b"\xff", "tasks")
            assert sorted(map(str, seen)) == sorted(map(str, [b"\xff"] * 4 + [[b"\xff"]]))
            seen.clear()
            assert len(await tested.publish_batch(b"\xfe", b"\xff", channel="tasks")) == 2
            assert [b"\xfe", b"\xff"] in seen

    run(story)


def test_with_a_real_directory_and_an_application(root: Path) -> None:
    broker, bill, _ = declared(root)

    async def story() -> None:
        async with TestHeliographBroker(broker, with_real=True) as tested, TestApp(FastStream(broker)):
            await tested.publish(Order(id=5), "orders", key="eve")
            await bill.wait_call(timeout=30)
            bill.mock.assert_called_once_with({"id": 5})
        with hg.open(root) as station:
            assert [message.data for message in station.read("invoices")] == [{"order": 5, "by": "eve"}]

    run(story)


REFUSED: list[dict[str, Any]] = [
    {"headers": {"X-Id": "1"}},
    {"headers": {"id": "1"}},
    {"headers": {"share": 1.5}},
    {"headers": {"nothing": None}},
    {"key": 5},
    {"type": "a\nb"},
    {"ttl": -1},
    {"delay": -1},
    {"channel": "no such/channel"},
    {"channel": ""},
]


@pytest.mark.parametrize("real", [False, True], ids=["memory", "directory"])
@pytest.mark.parametrize("said", REFUSED, ids=str)
def test_what_a_station_refuses_is_refused_in_a_test(root: Path, said: dict[str, Any], real: bool) -> None:
    async def story() -> None:
        async with TestHeliographBroker(at(root), with_real=real) as tested:
            with pytest.raises((hg.InvalidMessage, hg.InvalidName)):
                await tested.publish("text", **{"channel": "orders", **said})

    run(story)


@pytest.mark.parametrize("options", [{"batch": True}, {"no_reply": True}], ids=["batch", "no_reply"])
@pytest.mark.parametrize("real", [False, True], ids=["memory", "directory"])
def test_who_answers_nobody_answers_nobody_in_a_test(root: Path, options: dict[str, Any], real: bool) -> None:
    broker, seen = at(root), []

    @broker.subscriber("orders", start="first", **options)
    async def handle(body: Any) -> str:
        seen.append(body)
        return "unheard"

    async def story() -> None:
        async with TestHeliographBroker(broker, with_real=real) as tested:
            with pytest.raises(hg.ReplyTimeout):
                await tested.request("text", "orders", timeout=2)

    run(story)
    assert seen == [["text"] if "batch" in options else "text"]
