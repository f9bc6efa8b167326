"""What FastStream calls acknowledging, on a log and on a queue: nothing is lost, nothing done twice without need."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from faststream.exceptions import AckMessage, NackMessage, RejectMessage, SetupError, StopConsume

from heliograph.faststream import AckPolicy, HeliographBroker, HeliographMessage
from tests.faststream.stories import QUICK, at, eventually, letters, position, run

KINDS: list[dict[str, Any]] = [{}, {"group": True}, {"queue": True}]
kinds = pytest.mark.parametrize("kind", KINDS, ids=["plain", "group", "queue"])


async def ended(broker: HeliographBroker, kind: dict[str, Any], left: int = 0) -> None:
    """Wait until a message is done, and so many are left."""
    while True:
        if kind.get("queue"):
            (queue,) = await broker.station.queues()
            if queue.depth + queue.in_flight == left:
                return
        elif await position(broker, "tasks", "work") == 1:
            return
        await asyncio.sleep(0.005)


async def closed(broker: HeliographBroker) -> None:
    """Wait until the named subscription is not live any more."""
    while True:
        if not any(info.live for info in await broker.station.subscriptions("tasks")):
            return
        await asyncio.sleep(0.005)


def tried(root: Path, handler: Any, kind: dict[str, Any], **options: Any) -> tuple[int, list[dict[str, Any]]]:
    """Deliver one message to a handler until it is done: how often it was called, and the dead letters."""
    broker, calls = at(root), []

    @broker.subscriber("tasks", name="work", start="first", retry=QUICK, **{**kind, **options})
    async def handle(body: Any, message: HeliographMessage) -> None:
        calls.append(body)
        await handler(message, len(calls))

    found: list[dict[str, Any]] = []

    async def story() -> None:
        async with broker:
            await broker.publish("task", "tasks")
            await broker.start()
            await ended(broker, kind)
            if any(info.name == "tasks.dead-letter" for info in await broker.station.channels()):
                found.extend(await letters(broker, "tasks"))

    run(story)
    return len(calls), found


async def fail(message: HeliographMessage, call: int) -> None:
    raise ValueError(f"call {call}")


@kinds
def test_an_error_is_retried_and_then_a_dead_letter(root: Path, kind: dict[str, Any]) -> None:
    calls, (letter,) = tried(root, fail, kind)
    assert (calls, letter["error"], letter["attempts"]) == (3, "ValueError: call 3", 3)


@kinds
def test_reject_on_error_is_a_dead_letter_at_once(root: Path, kind: dict[str, Any]) -> None:
    calls, (letter,) = tried(root, fail, kind, ack_policy=AckPolicy.REJECT_ON_ERROR)
    assert (calls, letter["error"], letter["attempts"]) == (1, "ValueError: call 1", 1)


@kinds
def test_the_policy_ack_is_done_whatever_happens(root: Path, kind: dict[str, Any]) -> None:
    assert tried(root, fail, kind, ack_policy=AckPolicy.ACK) == (1, [])


@kinds
def test_a_handler_may_acknowledge_and_fail_afterwards(root: Path, kind: dict[str, Any]) -> None:
    async def handle(message: HeliographMessage, call: int) -> None:
        await message.ack()
        raise ValueError("too late")

    assert tried(root, handle, kind) == (1, [])


@kinds
@pytest.mark.parametrize("policy", [AckPolicy.MANUAL, AckPolicy.NACK_ON_ERROR])
def test_giving_back_delivers_again_after_the_delay(root: Path, kind: dict[str, Any], policy: AckPolicy) -> None:
    times: list[float] = []

    async def handle(message: HeliographMessage, call: int) -> None:
        times.append(asyncio.get_running_loop().time())
        if call == 1:
            await message.nack(delay=0.2)
        elif call == 2:
            await message.nack()
        else:
            await message.ack()

    assert tried(root, handle, kind, ack_policy=policy) == (3, [])
    assert times[1] - times[0] >= 0.2


@kinds
def test_giving_back_too_often_is_a_dead_letter(root: Path, kind: dict[str, Any]) -> None:
    async def handle(message: HeliographMessage, call: int) -> None:
        await message.nack()

    calls, (letter,) = tried(root, handle, kind)
    assert (calls, letter["attempts"], letter["error"]) == (3, 3, "NackMessage: Message was nacked")


@kinds
def test_rejecting_says_why(root: Path, kind: dict[str, Any]) -> None:
    async def handle(message: HeliographMessage, call: int) -> None:
        await message.reject("no such customer")

    calls, (letter,) = tried(root, handle, kind, ack_policy=AckPolicy.MANUAL)
    assert (calls, letter["error"]) == (1, "Reject: no such customer")


@kinds
def test_a_manual_handler_that_forgets_to_acknowledge_loses_nothing(root: Path, kind: dict[str, Any]) -> None:
    async def handle(message: HeliographMessage, call: int) -> None:
        return

    calls, (letter,) = tried(root, handle, kind, ack_policy=AckPolicy.MANUAL)
    assert calls == 3
    assert letter["error"].startswith("NotAcknowledged: the handler returned without ack()")


def test_exceptions_of_faststream_mean_what_they_say(root: Path) -> None:
    async def handle(message: HeliographMessage, call: int) -> None:
        if call == 1:
            raise NackMessage(delay=0.001)
        raise AckMessage

    assert tried(root, handle, {}) == (2, [])

    async def refuse(message: HeliographMessage, call: int) -> None:
        raise RejectMessage(reason="not mine")

    calls, (letter,) = tried(root / "other", refuse, {})
    assert (calls, letter["error"]) == (1, "Reject: not mine")


def test_a_body_that_does_not_fit_the_handler_is_a_dead_letter(root: Path) -> None:
    broker, seen = at(root), []

    @broker.subscriber("numbers", name="worker", start="first", retry=QUICK)
    async def handle(number: int) -> None:
        seen.append(number)

    async def story() -> None:
        async with broker:
            await broker.publish("many", "numbers")
            await broker.publish(2, "numbers")
            await broker.start()
            (letter,) = await letters(broker, "numbers")
            assert letter["error"].startswith("ValidationError")
            await eventually(lambda: seen)

    run(story)
    assert seen == [2]


def test_a_handler_that_takes_too_long_has_failed(root: Path) -> None:
    async def handle(message: HeliographMessage, call: int) -> None:
        if call == 1:
            await asyncio.sleep(600)

    assert tried(root, handle, {}, timeout_s=0.05) == (2, [])


def test_acknowledging_first_is_for_subscribers_without_a_name(root: Path) -> None:
    broker, seen = at(root), []
    with pytest.raises(SetupError, match="ACK_FIRST"):
        broker.subscriber("tasks", name="work", ack_policy=AckPolicy.ACK_FIRST)

    @broker.subscriber("tasks", start="first", ack_policy=AckPolicy.ACK_FIRST)
    async def handle(number: int) -> None:
        seen.append(number)
        raise ValueError

    async def story() -> None:
        async with broker:
            await broker.publish_batch(1, 2, channel="tasks")
            await broker.start()
            await eventually(lambda: 2 in seen)

    run(story)
    assert seen == [1, 2]


def test_a_publisher_that_fails_is_a_failure_of_the_message(root: Path) -> None:
    broker, calls = at(root), []

    @broker.subscriber("tasks", name="work", start="first", retry=QUICK)
    @broker.publisher("no such/name")
    async def handle(number: int) -> int:
        calls.append(number)
        return number

    async def story() -> None:
        async with broker:
            await broker.publish(1, "tasks")
            await broker.start()
            (letter,) = await letters(broker, "tasks")
            assert letter["error_type"] == "heliograph.errors.InvalidName"

    run(story)
    assert calls == [1, 1, 1]


@kinds
def test_stop_consume_stops_the_subscriber_and_nothing_else(root: Path, kind: dict[str, Any]) -> None:
    broker, seen, heard = at(root), [], []

    @broker.subscriber("tasks", name="work", start="first", ack_policy=AckPolicy.ACK, **kind)
    async def handle(number: int) -> None:
        seen.append(number)
        raise StopConsume

    @broker.subscriber("tasks", start="first")
    async def hear(number: int) -> None:
        heard.append(number)

    async def story() -> None:
        async with broker:
            await broker.publish_batch(0, 1, 2, channel="tasks")
            await broker.start()
            await ended(broker, kind, left=2)
            await eventually(lambda: len(heard) == 3)
            await closed(broker)
        assert seen == [0]
        await broker.start()
        await eventually(lambda: seen == [0, 1])
        await broker.stop()

    run(story)


def test_stopping_waits_for_the_handler_at_hand(root: Path) -> None:
    broker, seen = at(root), []

    @broker.subscriber("tasks", name="work", start="first")
    async def handle(number: int) -> None:
        seen.append(f"{number} begun")
        await asyncio.sleep(0.2)
        seen.append(f"{number} done")

    async def story() -> None:
        async with broker:
            await broker.publish_batch(0, 1, channel="tasks")
            await broker.start()
            await eventually(lambda: seen)
            await broker.stop()
            assert seen == ["0 begun", "0 done"]
            await broker.connect()
            assert await position(broker, "tasks", "work") == 1

    run(story)


# -- fetching -------------------------------------------------------------------------------------------------


async def fetched(root: Path, count: int, **options: Any) -> list[Any]:
    """A new life: take so many messages, then stop."""
    broker, found = at(root), []
    subscriber = broker.subscriber("tasks", name="work", start="first", **options)
    async with broker:
        await broker.start()
        for _ in range(count):
            message = await subscriber.get_one(timeout=30)
            assert message is not None
            found.append(await message.decode())
    return found


@kinds
def test_taking_the_next_message_acknowledges_the_last(root: Path, kind: dict[str, Any]) -> None:
    async def story() -> None:
        async with at(root) as broker:
            await broker.publish_batch(0, 1, 2, channel="tasks")
        assert await fetched(root, 2, **kind) == [0, 1]
        assert sorted(await fetched(root, 2, **kind)) == [1, 2]

    run(story)


def test_a_manual_message_is_had_again_until_it_is_acknowledged(root: Path) -> None:
    async def story() -> None:
        async with at(root) as broker:
            await broker.publish_batch(0, 1, channel="tasks")
        assert await fetched(root, 1, ack_policy=AckPolicy.MANUAL) == [0]
        broker = at(root)
        subscriber = broker.subscriber("tasks", name="work", ack_policy=AckPolicy.MANUAL, retry=QUICK)
        async with broker:
            await broker.start()
            first = await subscriber.get_one(timeout=30)
            assert first is not None
            assert await subscriber.get_one(timeout=0.05) is None
            await first.nack()
            again = await subscriber.get_one(timeout=30)
            assert again is not None
            assert again.raw_message.offset == 0
            await again.reject("of no use")
            async for message in subscriber:
                assert message.raw_message.offset == 1
                await message.ack()
                break
            assert [letter["offset"] for letter in await letters(broker, "tasks")] == [0]

    run(story)


def test_a_subscriber_with_a_handler_is_not_fetched_from(root: Path) -> None:
    broker = at(root)
    subscriber = broker.subscriber("tasks")
    subscriber(lambda body: None)

    async def story() -> None:
        async with broker:
            with pytest.raises(SetupError, match="handlers"):
                await subscriber.get_one()

    run(story)
