"""Plain handlers with a timeout."""

from __future__ import annotations

import threading
import time

import pytest

from heliograph.delivery import workers
from heliograph.message import Message
from tests.delivery.harness import PATIENCE_S, MiniStation, eventually


def test_a_handler_in_time_notices_nothing(station: MiniStation) -> None:
    seen: list[int] = []
    threads: set[int] = set()

    def handle(message: Message) -> None:
        threads.add(threading.get_ident())
        seen.append(message.data)

    station.engine.pull_messages = 10
    station.publish(*range(100))
    subscription = station.subscribe(handle, name="worker", timeout_s=600)
    eventually(lambda: subscription.position == 100)
    assert seen == list(range(100))
    assert len(threads) == 1
    assert subscription.stats().timeouts == 0


def test_many_messages_may_take_longer_together_than_one_may_alone(station: MiniStation) -> None:
    station.publish(*range(40))
    subscription = station.subscribe(lambda message: time.sleep(0.01), name="worker", timeout_s=0.2)
    eventually(lambda: subscription.position == 40)
    assert subscription.stats().delivered == 40


@pytest.mark.parametrize("batch", [False, True])
def test_a_handler_that_takes_too_long_fails_and_is_tried_again_in_a_new_thread(
    station: MiniStation, batch: bool
) -> None:
    release = threading.Event()
    attempts: list[int] = []
    seen: list[int] = []

    def handle(given: Message | list[Message]) -> None:
        values = [message.data for message in given] if isinstance(given, list) else [given.data]
        if 1 in values and not attempts:
            attempts.append(threading.get_ident())
            assert release.wait(PATIENCE_S)
            return
        seen.extend(values)

    station.publish(*range(3))
    subscription = station.subscribe(handle, name="worker", timeout_s=0.05, batch=batch)
    eventually(lambda: subscription.position == 3)
    assert seen == [0, 1, 2]
    stats = subscription.stats()
    assert (stats.timeouts, stats.failed, stats.retries, stats.dead_letters) == (1, 1, 1, 0)
    release.set()
    eventually(lambda: attempts[0] not in {thread.ident for thread in threading.enumerate()})
    assert seen == [0, 1, 2], "the one left behind started nothing else"


def test_one_that_never_returns_is_dead_lettered(station: MiniStation) -> None:
    release = threading.Event()
    station.publish(*range(2))
    subscription = station.subscribe(
        lambda message: release.wait(PATIENCE_S) if message.data == 0 else None, name="worker", timeout_s=0.02
    )
    eventually(lambda: subscription.position == 2)
    (letter,) = station.letters.written
    assert letter["error_type"] == "builtins.TimeoutError"
    assert letter["attempts"] == 3
    release.set()


def test_stuck_threads_are_bounded_then_the_subscription_fails_and_can_be_resumed(
    station: MiniStation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "ABANDONED_MAX", 4)
    release = threading.Event()
    seen: list[int] = []

    def handle(message: Message) -> None:
        assert release.wait(PATIENCE_S)
        seen.append(message.data)

    before = threading.active_count()
    station.publish(*range(5))
    subscription = station.subscribe(handle, name="worker", timeout_s=0.01)
    eventually(lambda: subscription.state == "failed")
    assert "hang" in subscription.stats().last_error
    assert threading.active_count() <= before + 4 + 3, "the stuck ones; loop, flusher and lookout"
    assert station.letters.offsets() == [0], "three calls for the first message, one for the second, then no more"
    assert station.saved() == 1
    release.set()
    eventually(lambda: threading.active_count() <= before + 3)
    subscription.resume()
    eventually(lambda: subscription.position == 5)
    assert set(seen) >= {1, 2, 3, 4}


def test_close_with_a_timeout_still_waits_for_the_message_at_hand(station: MiniStation) -> None:
    entered, release = threading.Event(), threading.Event()

    def handle(message: Message) -> None:
        entered.set()
        assert release.wait(PATIENCE_S)

    station.publish(*range(3))
    subscription = station.subscribe(handle, name="worker", timeout_s=600)
    assert entered.wait(PATIENCE_S)
    threading.Timer(0.02, release.set).start()
    assert subscription.close()
    assert station.saved() == 1


def test_close_from_inside_a_timed_handler_does_not_deadlock(station: MiniStation) -> None:
    def handle(message: Message) -> None:
        assert subscription.close() is False

    station.publish(*range(3))
    subscription = station.subscribe(handle, name="worker", timeout_s=600, paused=True)
    subscription.resume()
    eventually(lambda: subscription.closed)
    assert station.saved() == 1


def test_timeouts_work_in_lanes(station: MiniStation) -> None:
    release = threading.Event()
    station.publish(*range(20))
    subscription = station.subscribe(
        lambda message: release.wait(PATIENCE_S) if message.data == 7 else None,
        name="worker",
        timeout_s=0.02,
        concurrency=3,
    )
    eventually(lambda: subscription.position == 20)
    assert station.letters.offsets() == [7]
    release.set()
