"""Several subscriptions of one handler: never more calls at once than agreed, and everybody's turn comes."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from heliograph.delivery.tasks import LoopThread
from heliograph.delivery.turns import Turns
from heliograph.message import Message
from tests.delivery.harness import PATIENCE_S, MiniStation, eventually


class Meter:
    """Counts how many are inside at once."""

    def __init__(self, pause_s: float = 0.0) -> None:
        self.inside = self.most = 0
        self.done: list[tuple[str, Any]] = []
        self._pause_s = pause_s
        self._lock = threading.Lock()

    def _enter(self) -> None:
        with self._lock:
            self.inside += 1
            self.most = max(self.most, self.inside)

    def _leave(self, message: Message) -> None:
        with self._lock:
            self.inside -= 1
            self.done.append((message.channel, message.data))

    def __call__(self, message: Message) -> None:
        self._enter()
        time.sleep(self._pause_s)
        self._leave(message)


class AsyncMeter(Meter):
    async def __call__(self, message: Message) -> None:  # type: ignore[override]
        self._enter()
        await asyncio.sleep(self._pause_s)
        self._leave(message)


@pytest.fixture
def stations() -> Iterator[list[MiniStation]]:
    made = [MiniStation(f"c{number}") for number in range(4)]
    yield made
    for one in made:
        one.close()


def shared(width: int = 1) -> Turns:
    """As a wildcard has them: others may come at any time."""
    turns = Turns(width)
    turns.join()
    return turns


def fill(stations: list[MiniStation], count: int) -> None:
    for one in stations:
        one.publish(*range(count))


def in_order(meter: Meter, stations: list[MiniStation], count: int) -> bool:
    return all(
        [data for channel, data in meter.done if channel == one.engine.channel] == list(range(count))
        for one in stations
    )


@pytest.mark.parametrize("width", [1, 2])
def test_no_more_calls_at_once_than_there_are_turns(stations: list[MiniStation], width: int) -> None:
    meter, turns = Meter(0.0005), shared(width)
    fill(stations, 50)
    for one in stations:
        one.subscribe(meter, turns=turns)
    eventually(lambda: len(meter.done) == 200)
    assert meter.most == width
    assert in_order(meter, stations, 50)


def test_with_a_timeout_waiting_for_a_turn_is_not_counted(stations: list[MiniStation]) -> None:
    meter, turns = Meter(0.05), shared()
    fill(stations, 8)
    subscriptions = [one.subscribe(meter, turns=turns, timeout_s=0.5) for one in stations]
    eventually(lambda: len(meter.done) == 32)
    assert meter.most == 1
    assert sum(one.stats().timeouts for one in subscriptions) == 0


def test_batches_take_turns_too(stations: list[MiniStation]) -> None:
    inside, most, seen = 0, 0, 0

    def handler(messages: list[Message]) -> None:
        nonlocal inside, most, seen
        inside += 1
        most = max(most, inside)
        time.sleep(0.002)
        inside -= 1
        seen += len(messages)

    turns = shared()
    fill(stations, 300)
    for one in stations:
        one.engine.pull_messages = 10
        one.subscribe(handler, turns=turns, batch=True)
    eventually(lambda: seen == 1200)
    assert most == 1


def test_a_long_backlog_does_not_keep_the_others_waiting(stations: list[MiniStation]) -> None:
    meter, turns = Meter(0.002), shared()
    busy, quiet = stations[:2]
    busy.publish(*range(1000))
    busy.subscribe(meter, turns=turns)
    eventually(lambda: len(meter.done) > 3)
    quiet.subscribe(meter, turns=turns)
    quiet.publish("at last")
    eventually(lambda: (quiet.engine.channel, "at last") in meter.done)
    assert len(meter.done) < 900


def test_a_channel_that_fails_and_waits_holds_up_no_other(stations: list[MiniStation]) -> None:
    heard: list[Any] = []

    def handler(message: Message) -> None:
        if message.channel == "c0":
            from heliograph.errors import RetryLater

            raise RetryLater(PATIENCE_S)
        heard.append(message.data)

    turns = shared()
    fill(stations[:2], 3)
    subscriptions = [one.subscribe(handler, turns=turns) for one in stations[:2]]
    eventually(lambda: heard == [0, 1, 2])
    assert subscriptions[0].state == "retrying"


def test_closing_one_that_waits_for_its_turn_does_not_wait(stations: list[MiniStation]) -> None:
    entered, go = threading.Event(), threading.Event()

    def handler(message: Message) -> None:
        entered.set()
        go.wait(PATIENCE_S)

    turns = shared()
    fill(stations[:2], 1)
    stations[0].subscribe(handler, turns=turns)
    assert entered.wait(PATIENCE_S)
    waiting = stations[1].subscribe(handler, turns=turns)
    eventually(lambda: turns.wanted)
    assert waiting.close(timeout_s=PATIENCE_S)
    assert waiting.position == 0
    go.set()
    eventually(lambda: not turns.wanted)


def test_coroutines_take_turns_too(stations: list[MiniStation]) -> None:
    loop, meter = LoopThread("test"), AsyncMeter(0.0005)
    try:
        turns = shared()
        fill(stations, 50)
        subscriptions = [one.subscribe(meter, turns=turns, event_loop=loop.loop) for one in stations]
        eventually(lambda: len(meter.done) == 200)
        for one in subscriptions:
            assert one.close()
    finally:
        loop.end()
    assert meter.most == 1
    assert in_order(meter, stations, 50)
