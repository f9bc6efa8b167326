"""Fetching, stopping and running out of time: what was not acknowledged is had again, what was is done."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import heliograph as hg
from heliograph.faststream import AckPolicy, HeliographMessage
from tests.faststream.stories import at, eventually, letters, position, run
from tests.faststream.test_acknowledging import fetched, kinds, tried

ONCE = hg.Retry(max_retries=0)


@kinds
def test_a_fetched_message_is_no_dead_letter_because_the_subscriber_stopped(root: Path, kind: dict[str, Any]) -> None:
    async def story() -> None:
        async with at(root) as broker:
            await broker.publish("task", "tasks")
        for _ in range(5):
            assert await fetched(root, 1, retry=ONCE, **kind) == ["task"]
        async with at(root) as broker:
            assert [info.name for info in await broker.station.channels()] == ["tasks"]

    run(story)


@pytest.mark.parametrize("whole", [True, False], ids=["broker", "subscriber"])
def test_iterating_ends_when_the_subscriber_stops(root: Path, whole: bool) -> None:
    broker = at(root)
    subscriber = broker.subscriber("tasks", name="work", start="first")
    seen: list[Any] = []

    async def iterate() -> None:
        async for message in subscriber:
            seen.append(message.raw_message.data)  # noqa: PERF401 - seen meanwhile

    async def story() -> None:
        async with broker:
            await broker.start()
            await broker.publish("task", "tasks")
            iterating = asyncio.create_task(iterate())
            await eventually(lambda: seen)
            await (broker.stop() if whole else subscriber.stop())
            await iterating

    run(story)
    assert seen == ["task"]


def test_what_could_not_be_parsed_is_not_acknowledged_by_taking_the_next(root: Path) -> None:
    async def parse(raw: Any, parsed: Any) -> Any:
        if raw.data == "bad" and not failed:
            failed.append(raw.offset)
            raise ValueError
        return await parsed(raw)

    broker, failed = at(root), list[int]()
    subscriber = broker.subscriber("tasks", name="work", start="first", parser=parse)

    async def story() -> None:
        async with broker:
            await broker.start()
            await broker.publish_batch("bad", "good", channel="tasks")
            with pytest.raises(ValueError):
                await subscriber.get_one(timeout=30)
            again = await subscriber.get_one(timeout=30)
            assert again is not None
            assert again.raw_message.offset == 0

    run(story)


def test_a_name_that_is_taken_is_said_each_time_one_fetches(root: Path) -> None:
    broker, other = at(root), at(root)
    first = broker.subscriber("tasks", name="work", start="first")
    second = other.subscriber("tasks", name="work", start="first")

    async def story() -> None:
        async with broker, other:
            await broker.start()
            await other.start()
            assert await first.get_one(timeout=0.01) is None
            for _ in range(2):
                with pytest.raises(hg.SubscriptionBusy):
                    await second.get_one(timeout=0.01)
            await first.stop()
            await broker.publish("task", "tasks")
            assert await second.get_one(timeout=30) is not None

    run(story)


@kinds
def test_what_was_acknowledged_is_done_even_if_the_time_runs_out_afterwards(root: Path, kind: dict[str, Any]) -> None:
    async def handle(message: HeliographMessage, call: int) -> None:
        await message.ack()
        await asyncio.sleep(600)

    assert tried(root, handle, kind, timeout_s=0.05) == (1, [])


@pytest.mark.parametrize(("policy", "dead"), [(AckPolicy.ACK, 0), (AckPolicy.REJECT_ON_ERROR, 1)])
@kinds
def test_running_out_of_time_is_an_error_to_the_policy(
    root: Path, kind: dict[str, Any], policy: AckPolicy, dead: int
) -> None:
    async def handle(message: HeliographMessage, call: int) -> None:
        await asyncio.sleep(600)

    calls, found = tried(root, handle, kind, timeout_s=0.05, ack_policy=policy)
    assert (calls, len(found)) == (1, dead)


def test_the_time_of_the_settings_counts_as_well(root: Path) -> None:
    broker, calls = at(root, config={"subscribers": {"timeout_s": 0.05}}), list[Any]()

    @broker.subscriber("tasks", name="work", start="first", ack_policy=AckPolicy.REJECT_ON_ERROR)
    async def handle(body: Any) -> None:
        calls.append(body)
        await asyncio.sleep(600)

    async def story() -> None:
        async with broker:
            await broker.start()
            await broker.publish("task", "tasks")
            (letter,) = await letters(broker, "tasks")
            assert "took longer than 0.05 s" in letter["traceback"]

    run(story)
    assert calls == ["task"]


def test_an_acknowledged_handler_does_not_hold_up_the_end_of_its_event_loop(root: Path) -> None:
    broker, begun = at(root, graceful_timeout=0.1), list[Any]()

    @broker.subscriber("tasks", name="work", start="first", timeout_s=600)
    async def handle(body: Any, message: HeliographMessage) -> None:
        await message.ack()
        begun.append(body)
        await asyncio.sleep(600)

    async def story() -> None:
        await broker.start()
        await broker.publish("task", "tasks")
        await eventually(lambda: begun)

    run(story)  # asyncio.run cancels what is left
    assert begun == ["task"]

    async def after() -> None:
        await broker.stop()
        async with at(root) as later:
            assert await position(later, "tasks", "work") in (0, 1)

    run(after)


@pytest.mark.parametrize("connected", [True, False])
def test_a_broker_that_cannot_start_delivers_nothing_and_can_be_started_later(root: Path, connected: bool) -> None:
    broker, other, seen = at(root), at(root), list[str]()

    @broker.subscriber("free", name="work", start="first")
    async def handle(body: str) -> None:
        seen.append(body)

    for one in (broker, other):
        one.subscriber("taken", name="work")(lambda body: None)

    async def story() -> None:
        async with other:
            await other.start()
            if connected:
                await broker.connect()
            with pytest.raises(hg.SubscriptionBusy):
                await broker.start()
            assert not any(info.live for info in await other.station.subscriptions("free"))
            assert await broker.ping() is connected
            await other.publish("task", "free")
            await other.stop()
            assert seen == []
            await broker.start()
            await eventually(lambda: seen)
            await broker.stop()

    run(story)
