"""Subscriptions without a name: no position, and what they may drop."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any

import pytest

from heliograph.delivery.loop import BACKLOG_LOOK_S
from heliograph.errors import ConfigError
from heliograph.message import Message
from tests.delivery.harness import PATIENCE_S, Gate, MiniStation, eventually


def held_at_first(seen: list[int], gate: Gate, batch: bool = False) -> Any:
    def handle(given: Message | list[Message]) -> None:
        messages = given if isinstance(given, list) else [given]
        if not gate.entered.is_set():
            gate()
        seen.extend(message.data for message in messages)

    return handle


def test_nothing_is_saved_and_no_name_is_taken(station: MiniStation) -> None:
    seen: list[int] = []
    station.publish(1)
    for _ in range(2):
        station.subscribe(lambda message: seen.append(message.data))
    eventually(lambda: len(seen) == 2)
    assert not station.engine.leases
    for subscription in station.subscriptions:
        subscription.close(forget=True)
        assert subscription.stats().saved_position is None
    assert not station.engine.saves


def test_block_never_drops(station: MiniStation) -> None:
    gate, seen = Gate(), []
    station.engine.pull_messages = 10
    subscription = station.subscribe(held_at_first(seen, gate), buffer=5, overflow="block")
    station.publish(0)
    assert gate.entered.wait(PATIENCE_S)
    station.publish(*range(1, 500))
    gate.opened.set()
    eventually(lambda: len(seen) == 500)
    assert subscription.stats().dropped == 0


@pytest.mark.parametrize("options", [{}, {"batch": True}, {"concurrency": 2}])
def test_drop_oldest_keeps_the_newest(station: MiniStation, options: dict[str, Any]) -> None:
    gate, seen = Gate(), []
    station.engine.pull_messages = 50
    station.publish(0)
    subscription = station.subscribe(held_at_first(seen, gate), buffer=20, overflow="drop_oldest", **options)
    assert gate.entered.wait(PATIENCE_S)
    station.publish(*range(1, 1000))
    gate.opened.set()
    eventually(lambda: subscription.position == 1000)
    assert 0 in seen, "what was at hand is finished"
    assert set(range(980, 1000)) <= set(seen)
    stats = subscription.stats()
    assert stats.delivered + stats.dropped == 1000
    assert stats.delivered == len(seen)
    assert stats.dropped > 0


def test_drop_oldest_looks_again_inside_a_batch(station: MiniStation) -> None:
    gate, seen = Gate(), []
    station.engine.pull_messages = 1000
    station.publish(*range(100))
    subscription = station.subscribe(held_at_first(seen, gate), buffer=100, overflow="drop_oldest")
    assert gate.entered.wait(PATIENCE_S)
    station.publish(*range(100, 1000))  # the batch at hand, 0 to 99, is old now
    time.sleep(2 * BACKLOG_LOOK_S)
    gate.opened.set()
    eventually(lambda: subscription.position == 1000)
    assert 99 not in seen
    assert seen[-100:] == list(range(900, 1000))


def test_drop_newest_keeps_the_oldest(station: MiniStation) -> None:
    gate, seen = Gate(), []
    station.engine.pull_messages = 50
    station.publish(0)
    subscription = station.subscribe(held_at_first(seen, gate), buffer=20, overflow="drop_newest")
    assert gate.entered.wait(PATIENCE_S)
    station.publish(*range(1, 1000))
    gate.opened.set()
    eventually(lambda: subscription.position == 1000)
    assert seen == list(range(21))
    assert subscription.stats().dropped == 979
    station.publish(1000, 1001)
    eventually(lambda: seen[-2:] == [1000, 1001])


def test_drop_newest_cuts_a_batch_with_problems_in_it(station: MiniStation) -> None:
    gate, seen, gaps = Gate(), [], []
    station.publish(0)
    subscription = station.subscribe(
        held_at_first(seen, gate), buffer=4, overflow="drop_newest", on_gap=lambda gap: gaps.append(gap.first)
    )
    assert gate.entered.wait(PATIENCE_S)
    station.publish(1)
    station.engine.add("missing")
    station.publish(3, 4, 5)
    station.engine.add("missing")
    gate.opened.set()
    eventually(lambda: subscription.position == 7)
    assert seen == [0, 1, 3, 4]
    assert gaps == [2]
    assert subscription.stats().dropped == 2


def test_a_warning_is_logged_once_when_more_than_a_hundredth_is_dropped(
    station: MiniStation, caplog: pytest.LogCaptureFixture
) -> None:
    gate, seen = Gate(), []
    station.engine.pull_messages = 5
    station.publish(0)
    with caplog.at_level(logging.WARNING, "heliograph.delivery"):
        subscription = station.subscribe(held_at_first(seen, gate), buffer=5, overflow="drop_newest")
        assert gate.entered.wait(PATIENCE_S)
        station.publish(*range(1, 1000))
        gate.opened.set()
        eventually(lambda: subscription.position == 1000)
        for value in range(1000, 1050):
            station.publish(value)
        eventually(lambda: subscription.position == 1050)
        subscription.close()
    warnings = [record.message for record in caplog.records if "were dropped" in record.message]
    assert len(warnings) == 1


def test_few_drops_are_no_reason_for_a_warning(station: MiniStation, caplog: pytest.LogCaptureFixture) -> None:
    gate, seen = Gate(), []
    with caplog.at_level(logging.WARNING, "heliograph.delivery"):
        station.publish(*range(2000))

        def handle(message: Message) -> None:
            if message.data == 1999:
                gate()
            seen.append(message.data)

        subscription = station.subscribe(handle, buffer=2000, overflow="drop_newest")
        assert gate.entered.wait(PATIENCE_S)
        station.publish(*range(2000, 4010))
        gate.opened.set()
        eventually(lambda: subscription.position == 4010)
    assert 0 < subscription.stats().dropped <= 20
    assert not [record for record in caplog.records if "were dropped" in record.message]


def test_drops_of_an_async_handler(station: MiniStation) -> None:
    gate, seen = Gate(), []

    async def handle(message: Message) -> None:
        if not gate.entered.is_set():
            await asyncio.to_thread(gate)
        seen.append(message.data)

    station.engine.pull_messages = 10
    station.publish(0)
    subscription = station.subscribe(handle, buffer=20, overflow="drop_oldest")
    assert gate.entered.wait(PATIENCE_S)
    station.publish(*range(1, 500))
    gate.opened.set()
    eventually(lambda: subscription.position == 500)
    stats = subscription.stats()
    assert stats.dropped > 0
    assert stats.delivered + stats.dropped == 500
    assert set(range(480, 500)) <= set(seen)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"name": "worker", "overflow": "drop_oldest"}, "promises every one"),
        ({"overflow": "drop_all"}, "drop_newest"),
        ({"buffer": 0}, "at least one"),
        ({"concurrency": 0}, "concurrency"),
        ({"concurrency": 100_000}, "concurrency"),
        ({"timeout_s": -1}, "timeout_s"),
    ],
)
def test_arguments_that_cannot_work_are_refused(station: MiniStation, options: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        station.subscribe(print, **options)
    assert not station.engine.leases
