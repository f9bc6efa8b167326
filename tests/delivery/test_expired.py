"""Messages whose time is over: passed over, counted, and never in the way of the others."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from heliograph.message import decode_line, new_id
from tests.delivery.harness import Gate, MiniStation, SteppedClock, eventually

HOUR = timedelta(hours=1)


@pytest.fixture
def mini() -> Iterator[MiniStation]:
    station = MiniStation()
    yield station
    station.close()


def publish(mini: MiniStation, *ages: tuple[Any, timedelta | None]) -> None:
    """Messages, each with how long it has left; published at once, so that they come in one batch."""
    engine, messages = mini.engine, []
    for data, left in ages:
        envelope = {
            "specversion": "1.0", "id": new_id(), "source": "test", "type": "t", "channel": engine.channel,
            "time": "2026-11-15T20:30:01.123456Z", "data": data,
        }  # fmt: skip
        if left is not None:
            envelope["expires"] = (datetime.now(UTC) + left).isoformat()
        messages.append(decode_line(msgspec.json.encode(envelope), len(engine.entries) + len(messages), 0, None))
    for message in messages:
        message.lines.expiring = True
    with engine.news:
        engine.entries.extend(messages)
        engine.news.notify_all()


MIXED: list[tuple[Any, timedelta | None]] = [(0, None), (1, -HOUR), (2, HOUR), (3, -HOUR), (4, None), (5, -HOUR)]


@pytest.mark.parametrize("options", [{}, {"concurrency": 3}, {"batch": True}, {"timeout_s": 30}, {"name": "worker"}])
@pytest.mark.parametrize("coroutine", [False, True])
def test_expired_messages_are_passed_over_and_counted(
    mini: MiniStation, options: dict[str, Any], coroutine: bool
) -> None:
    seen: list[int] = []

    def handle(got: Any) -> None:
        seen.extend(one.data for one in (got if isinstance(got, list) else [got]))

    async def handle_async(got: Any) -> None:
        await asyncio.sleep(0)
        handle(got)

    publish(mini, *MIXED)
    subscription = mini.subscribe(handle_async if coroutine else handle, **options)
    eventually(lambda: subscription.position == 6)
    assert sorted(seen) == [0, 2, 4]
    stats = subscription.stats()
    assert (stats.delivered, stats.expired, stats.dropped, stats.failed, stats.lag) == (3, 3, 0, 0, 0)
    if "name" in options:
        subscription.close()
        assert mini.saved() == 6


def test_nothing_but_expired_messages_moves_the_position_on(mini: MiniStation) -> None:
    publish(mini, (1, -HOUR), (2, -HOUR))
    subscription = mini.subscribe(lambda _: pytest.fail("delivered"), batch=True)
    eventually(lambda: subscription.position == 2)
    assert subscription.stats().expired == 2


def test_one_that_expires_while_others_are_handled_is_not_delivered(mini: MiniStation) -> None:
    clock, gate, seen = SteppedClock(), Gate(), []

    def handle(message: Any) -> None:
        seen.append(message.data)
        if message.data == 0:
            gate()

    publish(mini, (0, HOUR), (1, HOUR), (2, None))
    subscription = mini.subscribe(handle, clock=clock)
    assert gate.entered.wait(30)
    clock.step_us = 2 * 3_600_000_000
    gate.opened.set()
    eventually(lambda: subscription.position == 3)
    assert seen == [0, 2]
    assert subscription.stats().expired == 1


def test_one_that_expires_between_two_attempts_is_given_up_without_a_dead_letter(mini: MiniStation) -> None:
    clock, calls = SteppedClock(), []

    def handle(message: Any) -> None:
        calls.append(message.data)
        if message.data == 0:
            clock.step_us = 2 * 3_600_000_000
            raise ValueError("boom")

    publish(mini, (0, HOUR), (1, None))
    subscription = mini.subscribe(handle, clock=clock)
    eventually(lambda: subscription.position == 2)
    assert calls == [0, 1]
    assert (subscription.stats().expired, subscription.stats().delivered) == (1, 1)
    assert not mini.letters.written


def test_a_failure_after_expired_ones_is_retried_by_itself(mini: MiniStation) -> None:
    calls: list[int] = []

    def handle(message: Any) -> None:
        calls.append(message.data)
        if calls == [1]:
            raise ValueError("once")

    publish(mini, (0, -HOUR), (1, None), (2, -HOUR), (3, None))
    subscription = mini.subscribe(handle)
    eventually(lambda: subscription.position == 4)
    assert calls == [1, 1, 3]
    stats = subscription.stats()
    assert (stats.delivered, stats.expired, stats.failed, stats.retries) == (2, 2, 1, 1)


def test_messages_that_do_not_expire_are_not_looked_at(mini: MiniStation) -> None:
    mini.publish(*range(100))
    subscription = mini.subscribe(lambda _: None)
    eventually(lambda: subscription.position == 100)
    assert subscription._parts.now()[0]._loop.lanes.lanes[0]._now is None
