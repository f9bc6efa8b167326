"""Delivery to plain handlers: order, progress, interruptions."""

from __future__ import annotations

import threading
import time

import pytest

from heliograph.delivery import Flusher
from heliograph.engine.port import Position
from heliograph.errors import DiskFull, NotFound, StationClosed, StorageError, SubscriptionBusy
from heliograph.message import Gap, Message
from tests.delivery.harness import Gate, MiniStation, eventually


def test_every_message_is_delivered_once_and_in_order(station: MiniStation) -> None:
    seen: list[int] = []
    station.engine.pull_messages = 7
    station.publish(*range(50))
    subscription = station.subscribe(lambda message: seen.append(message.data), name="worker")
    eventually(lambda: len(seen) == 50)
    station.publish(*range(50, 100))
    eventually(lambda: len(seen) == 100)
    assert seen == list(range(100))
    eventually(lambda: subscription.position == 100)
    assert subscription.stats().delivered == 100


def test_starts_at_the_given_offset(station: MiniStation) -> None:
    seen: list[int] = []
    station.publish(*range(10))
    station.subscribe(lambda message: seen.append(message.data), start_offset=7)
    eventually(lambda: len(seen) == 3)
    assert seen == [7, 8, 9]


def test_a_durable_subscription_resumes_where_it_stopped(station: MiniStation) -> None:
    seen: list[int] = []
    station.publish(*range(10))
    station.subscribe(lambda message: seen.append(message.data), name="worker")
    eventually(lambda: len(seen) == 10)
    station.subscriptions[0].close()
    assert station.saved() == 10
    station.publish(*range(10, 20))
    station.subscribe(lambda message: seen.append(message.data), name="worker", start_offset=0)
    eventually(lambda: len(seen) == 20)
    assert seen == list(range(20))


def test_where_a_new_name_starts_survives_a_kill_before_its_first_message(station: MiniStation) -> None:
    station.publish(*range(5))
    station.subscribe(print, name="worker", start_offset=5, paused=True)
    assert station.saved() == 5, "otherwise 'new' would mean something later after a crash"


def test_the_saved_position_names_the_last_message_done(station: MiniStation) -> None:
    station.engine.pull_messages = 3
    station.publish(*range(7))
    with station.subscribe(lambda message: None, name="worker") as subscription:
        eventually(lambda: subscription.position == 7)
    last = station.engine.entries[6]
    assert isinstance(last, Message)
    assert station.engine.positions["worker"].id == last.id


def test_a_position_after_a_redacted_line_names_nobody(station: MiniStation) -> None:
    station.publish(1)
    station.engine.entries.append(None)
    with station.subscribe(lambda message: None, name="worker") as subscription:
        eventually(lambda: subscription.position == 2)
    assert station.engine.positions["worker"] == Position("k3f9q2", 2, "", station.engine.saves[-1].time_us)


def test_progress_inside_a_slow_batch_is_saved(station: MiniStation) -> None:
    gate = Gate()
    station.publish(*range(10))
    station.subscribe(lambda message: gate() if message.data == 4 else None, name="worker")
    assert gate.entered.wait(30)
    eventually(lambda: station.saved() == 4, "0 to 3 are done, 4 is at hand")
    first_four = station.engine.entries[3]
    assert isinstance(first_four, Message)
    assert station.engine.positions["worker"].id == first_four.id
    time.sleep(0.05)
    assert station.saved() == 4, "a message at hand is not done"
    gate.opened.set()


def test_nothing_is_saved_while_nothing_moves(station: MiniStation) -> None:
    station.publish(*range(10))
    station.subscribe(lambda message: None, name="worker")
    eventually(lambda: station.saved() == 10)
    saves = len(station.engine.saves)
    time.sleep(0.05)  # ten times the flush interval
    assert len(station.engine.saves) == saves
    assert not station.flusher._items


def test_flush_of_zero_saves_after_every_batch(station: MiniStation) -> None:
    station.flusher = Flusher(0)
    station.engine.pull_messages = 2
    station.publish(*range(10))
    station.subscribe(lambda message: None, name="worker")
    eventually(lambda: station.saved() == 10)
    saved = {position.offset for position in station.engine.saves}
    assert {0, 2, 4, 6, 8, 10} <= saved


def test_a_full_disk_does_not_stop_delivery_and_the_position_follows_later(station: MiniStation) -> None:
    seen: list[int] = []
    subscription = station.subscribe(lambda message: seen.append(message.data), name="worker")
    station.engine.save_error = DiskFull("no space left on device")
    station.publish(*range(10))
    eventually(lambda: subscription.stats().position_errors >= 3)
    assert len(seen) == 10
    assert station.saved() == 0
    assert "no space left" in subscription.stats().last_error
    station.engine.save_error = None
    eventually(lambda: station.saved() == 10)


def test_a_log_that_cannot_be_read_is_tried_again(station: MiniStation) -> None:
    seen: list[int] = []
    station.publish(*range(3))
    station.engine.pull_errors = [OSError(24, "too many open files"), StorageError("input/output error")]
    subscription = station.subscribe(lambda message: seen.append(message.data), name="worker")
    eventually(lambda: seen == [0, 1, 2])
    assert subscription.state == "running"
    assert "input/output error" in subscription.stats().last_error


def test_a_deleted_channel_fails_the_subscription(station: MiniStation) -> None:
    station.engine.pull_errors = [NotFound("there is no channel 'alerts'")]
    subscription = station.subscribe(print, name="worker")
    eventually(lambda: subscription.state == "failed")
    assert "no channel" in subscription.stats().last_error
    assert subscription.close()


def test_a_channel_that_was_deleted_and_made_again_is_another_one(station: MiniStation) -> None:
    seen: list[int] = []
    station.publish(*range(5))
    subscription = station.subscribe(lambda message: seen.append(message.data))
    eventually(lambda: len(seen) == 5)
    station.engine.entries.clear()
    station.publish(0)
    eventually(lambda: subscription.state == "failed")
    assert "made again" in subscription.stats().last_error


def test_waiting_for_an_offset_beyond_the_end_is_no_failure(station: MiniStation) -> None:
    seen: list[int] = []
    subscription = station.subscribe(lambda message: seen.append(message.data), start_offset=2)
    station.publish(*range(2))
    assert subscription.state == "running"
    station.publish(2)
    eventually(lambda: seen == [2])


def test_a_station_closed_underneath_ends_the_subscription(station: MiniStation) -> None:
    subscription = station.subscribe(print, name="worker")
    station.engine.closed = True
    station.engine.wake("alerts")
    eventually(lambda: subscription.closed)
    assert subscription.state == "closed"


def test_a_stuck_subscriber_affects_nobody_else(station: MiniStation) -> None:
    gate, seen = Gate(), []
    station.publish(*range(100))
    station.subscribe(lambda message: gate(), name="stuck")
    assert gate.entered.wait(30)
    station.subscribe(lambda message: seen.append(message.data), name="worker")
    eventually(lambda: len(seen) == 100)
    eventually(lambda: station.saved("worker") == 100)
    assert station.saved("stuck") == 0
    gate.opened.set()


# -- pause and close


def test_pause_takes_effect_after_the_current_message(station: MiniStation) -> None:
    gate, seen = Gate(), []

    def handle(message: Message) -> None:
        if message.data == 2:
            gate()
        seen.append(message.data)

    station.publish(*range(6))
    subscription = station.subscribe(handle, name="worker")
    assert gate.entered.wait(30)
    subscription.pause()
    assert subscription.state == "paused"
    gate.opened.set()
    eventually(lambda: station.saved() == 3, "what was done before the pause is saved")
    time.sleep(0.02)
    assert seen == [0, 1, 2]
    subscription.resume()
    eventually(lambda: seen == list(range(6)))
    assert subscription.state == "running"


def test_starts_paused_if_asked_to(station: MiniStation) -> None:
    seen: list[int] = []
    station.publish(1)
    subscription = station.subscribe(lambda message: seen.append(message.data), paused=True)
    time.sleep(0.02)
    assert not seen
    assert subscription.state == "paused"
    subscription.resume()
    eventually(lambda: seen == [1])


def test_close_finishes_the_current_message_and_starts_no_other(station: MiniStation) -> None:
    gate, seen = Gate(), []

    def handle(message: Message) -> None:
        gate()
        seen.append(message.data)

    station.publish(*range(5))
    subscription = station.subscribe(handle, name="worker")
    assert gate.entered.wait(30)
    closing = threading.Thread(target=subscription.close)
    closing.start()
    eventually(lambda: subscription.state == "closed")
    gate.opened.set()
    closing.join()
    assert seen == [0]
    assert station.saved() == 1


def test_close_from_inside_the_handler_does_not_deadlock(station: MiniStation) -> None:
    seen: list[int] = []

    def handle(message: Message) -> None:
        seen.append(message.data)
        if message.data == 1:
            assert subscription.close() is False

    station.publish(*range(5))
    subscription = station.subscribe(handle, name="worker", paused=True)
    subscription.resume()
    eventually(lambda: subscription.closed)
    assert seen == [0, 1]
    assert station.saved() == 2, "the message that closed it is done"


def test_close_from_inside_the_handler_saves_what_is_done_at_once(station: MiniStation) -> None:
    """If the station is closed next, nothing can be saved any more when the handler returns."""

    def handle(message: Message) -> None:
        if message.data == 3:
            subscription.close()
            station.engine.save_error = StationClosed("the station is closed")

    station.publish(*range(5))
    station.flusher = Flusher(60_000)
    subscription = station.subscribe(handle, name="worker", paused=True)
    subscription.resume()
    eventually(lambda: subscription.closed)
    assert station.saved() == 3


def test_close_of_a_paused_or_waiting_subscription_is_prompt(station: MiniStation) -> None:
    waiting = station.subscribe(print, name="waiting")
    paused = station.subscribe(print, name="paused", paused=True)
    assert waiting.close()
    assert paused.close()


def test_close_twice_does_no_harm(station: MiniStation) -> None:
    subscription = station.subscribe(print, name="worker")
    assert subscription.close()
    assert subscription.close()
    subscription.pause()
    subscription.resume()
    assert subscription.state == "closed"


def test_a_handler_that_does_not_return_is_left_behind_and_its_message_comes_again(
    station: MiniStation,
) -> None:
    gate, seen = Gate(), []
    station.publish(*range(3))
    stuck = station.subscribe(lambda message: gate() if message.data == 1 else None, name="worker")
    assert gate.entered.wait(30)
    assert stuck.close(timeout_s=0.05) is False
    assert station.saved() == 1
    station.subscribe(lambda message: seen.append(message.data), name="worker")
    eventually(lambda: seen == [1, 2])
    eventually(lambda: station.saved() == 3)
    gate.opened.set()
    eventually(lambda: not stuck._parts.alive)
    time.sleep(0.03)  # several flush intervals
    assert station.saved() == 3, "the one left behind saves nothing any more"


def test_the_name_is_taken_until_close_and_free_at_once_after_it(station: MiniStation) -> None:
    subscription = station.subscribe(print, name="worker")
    with pytest.raises(SubscriptionBusy):
        station.subscribe(print, name="worker")
    subscription.close()
    station.subscribe(print, name="worker")


def test_forget_removes_the_position(station: MiniStation) -> None:
    subscription = station.subscribe(print, name="worker")
    subscription.close(forget=True)
    assert "worker" not in station.engine.positions
    station.subscribe(print, name="worker").close()
    again = station.subscribe(print, name="worker")
    again.close()
    assert "worker" in station.engine.positions
    again.close(forget=True)
    assert "worker" not in station.engine.positions, "also when it was closed before"
    assert not station.engine.leases


def test_on_closed_is_told_once(station: MiniStation) -> None:
    told: list[object] = []
    subscription = station.subscribe(print, name="worker", on_closed=told.append)
    subscription.close()
    subscription.close()
    assert told == [subscription]


def test_a_subscription_that_cannot_start_leaves_its_name_free(station: MiniStation) -> None:
    station.engine.save_error = DiskFull("no space left on device")
    with pytest.raises(DiskFull):
        station.subscribe(print, name="worker")
    assert not station.engine.leases


# -- missing ranges


def test_a_missing_range_is_counted_told_and_passed(station: MiniStation) -> None:
    story: list[object] = []
    station.publish("a")
    station.engine.add("missing", "damaged")
    station.publish("b")
    subscription = station.subscribe(lambda message: story.append(message.data), name="worker", on_gap=story.append)
    eventually(lambda: len(story) == 3)
    assert story == ["a", Gap("alerts", 0, 1, 2, "damaged"), "b"], "told at its place"
    assert subscription.stats().missing == 1
    eventually(lambda: station.saved() == 3)
    assert not station.letters.written


def test_a_position_that_was_trimmed_away_is_told_as_a_gap(station: MiniStation) -> None:
    story: list[object] = []
    station.publish(*range(10))
    station.engine.positions["worker"] = Position("k3f9q2", 2, "", 1)
    station.engine.first = 6
    subscription = station.subscribe(lambda message: story.append(message.data), name="worker", on_gap=story.append)
    eventually(lambda: len(story) == 5)
    assert story == [Gap("alerts", 0, 2, 6, "trimmed"), 6, 7, 8, 9]
    assert subscription.stats().missing == 4


def test_a_failing_on_gap_stops_nothing(station: MiniStation) -> None:
    seen: list[str] = []

    def on_gap(gap: Gap) -> None:
        raise ValueError("boom")

    station.engine.add("missing")
    station.publish("b")
    subscription = station.subscribe(lambda message: seen.append(message.data), on_gap=on_gap)
    eventually(lambda: seen == ["b"])
    assert subscription.stats().missing == 1


# -- statistics


def test_stats_tell_lag_and_latency(station: MiniStation) -> None:
    gate = Gate()
    station.publish(*range(10))
    subscription = station.subscribe(lambda message: gate() if message.data == 3 else None, name="worker")
    assert gate.entered.wait(30)
    stats = subscription.stats()
    assert (stats.delivered, stats.position, stats.lag) == (3, 3, 7)
    assert stats.lag_s is not None
    assert stats.lag_s >= 0
    gate.opened.set()
    eventually(lambda: subscription.stats().lag == 0)
    eventually(lambda: subscription.stats().latency.count == 1)
    stats = subscription.stats()
    assert stats.delivered == 10
    assert stats.lag_s == 0
    eventually(lambda: subscription.stats().saved_position == 10)
    station.engine.closed = True
    assert subscription.stats().lag == 0
