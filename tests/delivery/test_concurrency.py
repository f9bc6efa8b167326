"""Several lanes: order per key, the position, failures that stay in their lane."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections import defaultdict
from typing import Any

import pytest

from heliograph.delivery import Retry
from heliograph.delivery.lanes import SPAN_OFFSETS_MAX
from heliograph.message import Message
from tests.delivery.harness import PATIENCE_S, Gate, MiniStation, eventually

KEYS = [f"key-{n}" for n in range(20)]


def publish_keyed(station: MiniStation, count: int) -> dict[str | None, list[int]]:
    expected: dict[str | None, list[int]] = defaultdict(list)
    dice = random.Random(7)
    for value in range(count):
        key = dice.choice(KEYS)
        station.engine.publish(value, key)
        expected[key].append(value)
    return expected


@pytest.mark.parametrize("kind", ["threads", "tasks"])
def test_order_per_key_with_concurrency(station: MiniStation, kind: str) -> None:
    seen: dict[str | None, list[int]] = defaultdict(list)
    station.engine.pull_messages = 17

    def handle(message: Message) -> None:
        if message.data % 50 == 0:
            time.sleep(0.002)
        seen[message.key].append(message.data)

    async def handle_async(message: Message) -> None:
        await asyncio.sleep(0.002 if message.data % 50 == 0 else 0)
        seen[message.key].append(message.data)

    expected = publish_keyed(station, 1000)
    handler: Any = handle if kind == "threads" else handle_async
    subscription = station.subscribe(handler, name="worker", concurrency=4)
    eventually(lambda: subscription.position == 1000)
    assert seen == expected
    assert subscription.stats().delivered == 1000
    eventually(lambda: station.saved() == 1000)


def test_lanes_work_at_the_same_time(station: MiniStation) -> None:
    barrier = threading.Barrier(4)
    station.publish(*range(4))
    subscription = station.subscribe(lambda message: barrier.wait(PATIENCE_S), name="worker", concurrency=4)
    eventually(lambda: subscription.position == 4)


def test_async_lanes_work_at_the_same_time(station: MiniStation) -> None:
    together = asyncio.Event()
    waiting = 0

    async def handle(message: Message) -> None:
        nonlocal waiting
        waiting += 1
        if waiting == 4:
            together.set()
        await together.wait()

    station.publish(*range(4))
    subscription = station.subscribe(handle, name="worker", concurrency=4)
    eventually(lambda: subscription.position == 4)


@pytest.mark.parametrize("kind", ["threads", "tasks"])
def test_the_position_waits_for_the_slowest_lane(station: MiniStation, kind: str) -> None:
    done: set[int] = set()
    release = threading.Event()

    def handle(message: Message) -> None:
        if message.data == 2:
            assert release.wait(PATIENCE_S)
        done.add(message.data)

    async def handle_async(message: Message) -> None:
        if message.data == 2:
            assert await asyncio.to_thread(release.wait, PATIENCE_S)
        done.add(message.data)

    handler: Any = handle if kind == "threads" else handle_async
    for value in range(10):
        station.publish(value, key=None if value != 2 else "slow")
    subscription = station.subscribe(handler, name="worker", concurrency=3)
    eventually(lambda: {0, 1} <= done and len(done) >= 6)
    assert subscription.position <= 2
    time.sleep(0.03)
    assert station.saved() <= 2, "what is not done must come again after a crash"
    release.set()
    eventually(lambda: station.saved() == 10)
    assert done == set(range(10))


def test_a_failure_is_retried_in_its_lane_only(station: MiniStation) -> None:
    seen: list[int] = []

    def handle(message: Message) -> None:
        if message.key == "bad":
            raise ValueError("boom")
        seen.append(message.data)

    station.publish(0, key="bad")
    good = next(key for key in KEYS if hash(key) % 4 != hash("bad") % 4)
    station.publish(*range(1, 50), key=good)
    retry = Retry(max_retries=1, base_s=600, max_s=600)
    subscription = station.subscribe(handle, name="worker", concurrency=4, retry=retry)
    eventually(lambda: seen == list(range(1, 50)))
    eventually(lambda: subscription.state == "retrying")
    assert subscription.position == 0
    assert subscription.close()
    assert station.saved() == 0


@pytest.mark.parametrize("kind", ["threads", "tasks"])
def test_a_poisoned_message_in_a_lane_is_dead_lettered(station: MiniStation, kind: str) -> None:
    seen: set[int] = set()

    def handle(message: Message) -> None:
        if message.data == 37:
            raise ValueError("boom")
        seen.add(message.data)

    async def handle_async(message: Message) -> None:
        handle(message)

    publish_keyed(station, 100)
    handler: Any = handle if kind == "threads" else handle_async
    subscription = station.subscribe(handler, name="worker", concurrency=4)
    eventually(lambda: subscription.position == 100)
    assert seen == set(range(100)) - {37}
    assert station.letters.offsets() == [37]


@pytest.mark.parametrize("kind", ["threads", "tasks"])
def test_close_leaves_what_is_not_done_for_the_next_time(station: MiniStation, kind: str) -> None:
    done: list[int] = []
    lock = threading.Lock()

    def handle(message: Message) -> None:
        time.sleep(0.001)
        with lock:
            done.append(message.data)

    async def handle_async(message: Message) -> None:
        await asyncio.sleep(0.001)
        done.append(message.data)

    handler: Any = handle if kind == "threads" else handle_async
    publish_keyed(station, 300)
    first = station.subscribe(handler, name="worker", concurrency=4)
    eventually(lambda: len(done) > 50)
    assert first.close()
    saved, before = station.saved(), set(done)
    assert set(range(saved)) <= before, "the saved position has nothing undone before it"
    assert len(before) < 300
    second = station.subscribe(handler, name="worker", concurrency=4)
    eventually(lambda: second.position == 300)
    assert set(done) == set(range(300))


@pytest.mark.parametrize("kind", ["threads", "tasks"])
def test_close_from_inside_a_lane_does_not_deadlock(station: MiniStation, kind: str) -> None:
    def handle(message: Message) -> None:
        if message.data == 5:
            assert subscription.close() is False

    async def handle_async(message: Message) -> None:
        if message.data == 5:
            assert await asyncio.to_thread(subscription.close) is False

    handler: Any = handle if kind == "threads" else handle_async
    station.publish(*range(10))
    subscription = station.subscribe(handler, name="worker", concurrency=2, paused=True)
    subscription.resume()
    eventually(lambda: subscription.closed)


def test_pause_holds_all_lanes(station: MiniStation) -> None:
    seen: set[int] = set()
    gate = Gate()

    def handle(message: Message) -> None:
        gate()
        seen.add(message.data)

    station.publish(*range(20))
    subscription = station.subscribe(handle, name="worker", concurrency=2)
    assert gate.entered.wait(PATIENCE_S)
    subscription.pause()
    gate.opened.set()
    eventually(lambda: seen)
    time.sleep(0.02)
    assert len(seen) <= 2
    subscription.resume()
    eventually(lambda: len(seen) == 20)


def test_a_stuck_lane_lets_the_others_run_ahead_but_not_without_bound(station: MiniStation) -> None:
    gate = Gate()
    station.engine.pull_messages = 500
    count = 0
    stuck = "stuck"
    free = next(key for key in KEYS if hash(key) % 2 != hash(stuck) % 2)

    def handle(message: Message) -> None:
        nonlocal count
        if message.key == stuck:
            gate()
        else:
            count += 1

    station.publish(0, key=stuck)
    total = SPAN_OFFSETS_MAX + 5_000
    station.publish(*range(total), key=free)
    subscription = station.subscribe(handle, name="worker", concurrency=2)
    eventually(lambda: count >= SPAN_OFFSETS_MAX - 1)
    time.sleep(0.1)
    assert count <= SPAN_OFFSETS_MAX + 500
    gate.opened.set()
    eventually(lambda: subscription.position == total + 1)


def test_batches_in_lanes_keep_order_per_key(station: MiniStation) -> None:
    seen: dict[str | None, list[int]] = defaultdict(list)

    def handle(messages: list[Message]) -> None:
        for message in messages:
            seen[message.key].append(message.data)

    station.engine.pull_messages = 40
    expected = publish_keyed(station, 400)
    subscription = station.subscribe(handle, name="worker", concurrency=3, batch=True)
    eventually(lambda: subscription.position == 400)
    assert seen == expected


def test_problems_are_passed_by_lanes_too(station: MiniStation) -> None:
    station.publish(0, 1)
    station.engine.add("undecodable")
    station.publish(2)
    station.engine.add("missing")
    subscription = station.subscribe(lambda message: None, name="worker", concurrency=2)
    eventually(lambda: subscription.position == 5)
    assert station.letters.offsets() == [2]
    assert subscription.stats().missing == 1


@pytest.mark.parametrize("kind", ["threads", "tasks", "inline"])
def test_a_fault_of_our_own_holds_the_position_and_is_shown(
    station: MiniStation, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: object, *arguments: object) -> None:
        raise RuntimeError("a bug")

    async def handle_async(message: Message) -> None:
        pass

    monkeypatch.setattr("heliograph.delivery.lane.Lane.deliver", broken)
    station.publish(0)
    handler: Any = handle_async if kind == "tasks" else print
    subscription = station.subscribe(handler, name="worker", concurrency=1 if kind == "inline" else 2)
    eventually(lambda: subscription.state == "failed")
    assert "a bug" in subscription.stats().last_error
    subscription.resume()
    station.publish(1)
    eventually(lambda: subscription.state == "failed", "what is broken stays broken")
    assert subscription.close()
    assert station.saved() == 0
