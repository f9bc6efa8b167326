"""Failing handlers: retries, dead letters, and what a crash or a full disk does to them."""

from __future__ import annotations

import asyncio
import base64
import threading
import time

import msgspec
import pytest

from heliograph.delivery import Retry
from heliograph.delivery.deadletter import (
    LOOK_BACK_US,
    TRACEBACK_CHARS_MAX,
    DeadLetterIdentity,
    describe,
    identity_of,
)
from heliograph.engine.port import Position
from heliograph.errors import DiskFull, NotFound, OutcomeUnknown, Reject, RetryLater, StationClosed
from heliograph.message import Message
from tests.delivery.harness import Gate, MiniStation, eventually

SLOW = Retry(max_retries=5, base_s=600, max_s=600)


class Flaky:
    """Fails with some messages, a given number of times."""

    def __init__(self, failures: dict[int, int], error: type[BaseException] = ValueError) -> None:
        self.left = dict(failures)
        self.error = error
        self.seen: list[int] = []
        self.calls: list[int] = []

    def __call__(self, message: Message) -> None:
        self.calls.append(message.data)
        if self.left.get(message.data, 0) > 0:
            self.left[message.data] -= 1
            raise self.error(f"boom {message.data}")
        self.seen.append(message.data)


def test_a_failing_message_is_tried_again_before_the_next_one(station: MiniStation) -> None:
    handler = Flaky({2: 2})
    station.publish(*range(5))
    subscription = station.subscribe(handler, name="worker")
    eventually(lambda: handler.seen == [0, 1, 2, 3, 4])
    assert handler.calls == [0, 1, 2, 2, 2, 3, 4]
    stats = subscription.stats()
    assert (stats.failed, stats.retries, stats.dead_letters) == (2, 2, 0)
    assert stats.last_error == "ValueError: boom 2"
    eventually(lambda: subscription.stats().delivered == 5)


def test_after_the_retries_the_message_goes_to_the_dead_letters(station: MiniStation) -> None:
    handler = Flaky({1: 99})
    for value in range(3):
        station.publish(value, key=f"key {value}")
    subscription = station.subscribe(handler, name="worker")
    eventually(lambda: handler.seen == [0, 2])
    (letter,) = station.letters.written
    original = station.engine.entries[1]
    assert isinstance(original, Message)
    assert letter["original"] == msgspec.json.decode(original.raw)
    assert letter["reason"] == "handler"
    assert letter["error"] == "ValueError: boom 1"
    assert letter["error_type"] == "builtins.ValueError"
    assert "raise self.error" in letter["traceback"]
    assert letter["attempts"] == 3
    assert identity_of(letter) == DeadLetterIdentity("worker", "k3f9q2", 0, 1)
    assert letter["channel"] == "alerts"
    assert letter["failed_at"].endswith("Z")
    assert station.letters.channels == ["alerts.dead-letter"]
    assert station.letters.keys == ["key 1"]
    stats = subscription.stats()
    assert (stats.failed, stats.retries, stats.dead_letters) == (3, 2, 1)
    eventually(lambda: subscription.stats().delivered == 2)


def test_the_position_is_saved_right_after_a_dead_letter(station: MiniStation) -> None:
    station.flusher = type(station.flusher)(3_600_000)
    handler = Flaky({1: 99})
    station.publish(*range(5))
    station.subscribe(handler, name="worker")
    eventually(lambda: handler.seen == [0, 2, 3, 4])
    assert station.saved() == 2


def test_close_during_backoff_keeps_the_failing_message(station: MiniStation) -> None:
    handler = Flaky({1: 1})
    station.publish(*range(3))
    subscription = station.subscribe(handler, name="worker", retry=SLOW)
    eventually(lambda: subscription.state == "retrying")
    assert subscription.close(), "a back-off of ten minutes does not delay it"
    assert station.saved() == 1
    station.subscribe(handler, name="worker")
    eventually(lambda: handler.seen == [0, 1, 2])
    assert not station.letters.written


def test_close_during_the_last_attempt_keeps_the_failing_message(station: MiniStation) -> None:
    gate = Gate()

    def handle(message: Message) -> None:
        gate()
        raise ValueError("boom")

    station.publish(0)
    subscription = station.subscribe(handle, name="worker", retry=Retry(max_retries=0))
    assert gate.entered.wait(30)
    closing = threading.Thread(target=subscription.close)
    closing.start()
    eventually(lambda: subscription.state == "closed")
    gate.opened.set()
    closing.join()
    assert station.saved() == 0
    assert not station.letters.written, "its next subscriber may have better luck"


def test_pause_during_backoff_holds_the_failing_message(station: MiniStation) -> None:
    handler = Flaky({1: 1})
    station.publish(*range(3))
    subscription = station.subscribe(handler, name="worker", retry=SLOW)
    eventually(lambda: subscription.state == "retrying")
    subscription.pause()
    assert subscription.state == "paused"
    time.sleep(0.02)
    assert handler.calls == [0, 1]
    subscription.resume()
    eventually(lambda: handler.seen == [0, 1, 2])


def test_retry_later_waits_as_long_as_it_says_and_counts_as_an_attempt(station: MiniStation) -> None:
    calls: list[float] = []

    def handle(message: Message) -> None:
        calls.append(time.monotonic())
        raise RetryLater(0.05)

    station.publish(1)
    station.subscribe(handle, name="worker", retry=Retry(max_retries=2, base_s=0, max_s=0))
    eventually(lambda: station.letters.written)
    assert len(calls) == 3
    assert calls[1] - calls[0] >= 0.05
    assert station.letters.written[0]["attempts"] == 3


def test_retry_later_with_something_that_is_no_number_is_a_failure_like_others(station: MiniStation) -> None:
    def handle(message: Message) -> None:
        if message.data == 1:
            raise RetryLater(None)  # type: ignore[arg-type]
        seen.append(message.data)

    seen: list[int] = []
    station.publish(1, 2)
    subscription = station.subscribe(handle, name="worker", retry=Retry(max_retries=1, base_s=0, max_s=0))
    eventually(lambda: seen == [2])
    assert "NoneType" in station.letters.written[0]["error"]
    assert subscription.state == "running"


def test_reject_is_a_dead_letter_at_once_that_tells_of_the_cause(station: MiniStation) -> None:
    calls: list[int] = []

    def handle(message: Message) -> None:
        calls.append(message.offset)
        if message.offset == 0:
            raise Reject("no such customer")
        try:
            raise KeyError("customer")
        except KeyError as error:
            raise Reject("no such customer") from error

    station.publish(1, 2)
    station.subscribe(handle, name="worker", retry=Retry(max_retries=9, base_s=0, max_s=0))
    eventually(lambda: len(station.letters.written) == 2)
    assert calls == [0, 1]
    told = [(letter["error"], letter["error_type"], letter["attempts"]) for letter in station.letters.written]
    assert told == [
        ("Reject: no such customer", "heliograph.errors.Reject", 1),
        ("KeyError: 'customer'", "builtins.KeyError", 1),
    ]


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, GeneratorExit, StopIteration, asyncio.CancelledError])
def test_exits_raised_by_a_handler_are_failures_like_any_other(
    station: MiniStation, error: type[BaseException]
) -> None:
    handler = Flaky({0: 99}, error)
    station.publish(0, 1)
    station.subscribe(handler, name="worker")
    eventually(lambda: handler.seen == [1])
    assert station.letters.offsets() == [0]


def test_a_dead_letter_that_cannot_be_written_is_tried_until_it_can(station: MiniStation) -> None:
    station.letters.errors = [DiskFull("no space left on device")] * 3
    handler = Flaky({0: 99})
    station.publish(0, 1)
    subscription = station.subscribe(handler, name="worker")
    eventually(lambda: subscription.state == "retrying" and "no space" in subscription.stats().last_error)
    assert handler.seen == [], "nothing is skipped meanwhile"
    assert station.saved() == 0
    eventually(lambda: handler.seen == [1])
    assert handler.calls.count(0) == 3, "the write is tried again, not the handler"
    assert station.letters.offsets() == [0]


def test_close_while_a_dead_letter_cannot_be_written_keeps_the_message(station: MiniStation) -> None:
    station.letters.errors = [DiskFull("no space left on device")] * 1000
    handler = Flaky({0: 3})
    station.publish(0, 1)
    subscription = station.subscribe(handler, name="worker")
    eventually(lambda: len(station.letters.errors) < 1000)
    assert subscription.close()
    assert station.saved() == 0
    station.subscribe(handler, name="worker")
    eventually(lambda: handler.seen == [0, 1])


def test_a_station_closed_while_burying_ends_the_subscription(station: MiniStation) -> None:
    station.letters.errors = [StationClosed("the station is closed")]
    station.publish(0)
    subscription = station.subscribe(Flaky({0: 99}), name="worker")
    eventually(lambda: subscription.closed)
    assert station.saved() == 0


def test_a_crash_between_dead_letter_and_commit_does_not_double_the_letter(station: MiniStation) -> None:
    handler = Flaky({1: 99, 3: 99})
    station.publish(*range(5))
    station.subscribe(handler, name="worker")
    eventually(lambda: station.letters.offsets() == [1, 3])
    station.subscriptions[0].close()
    station.engine.positions["worker"] = Position("k3f9q2", 1, "", 50 * LOOK_BACK_US)  # as before the crash
    station.publish(5)
    handler.left[5] = 99
    again = station.subscribe(handler, name="worker")
    eventually(lambda: station.letters.offsets() == [1, 3, 5])
    eventually(lambda: station.saved() == 6)
    assert station.letters.asked_since[-1] == 49 * LOOK_BACK_US, "from before the position was saved, in case"
    assert len(station.letters.asked_since) == 2, "once per life"
    assert again.stats().dead_letters == 3


@pytest.mark.parametrize(
    "identity",
    [
        ("other", "k3f9q2", 0, 1),
        ("worker", "other", 0, 1),
        ("worker", "k3f9q2", 7, 1),
        ("worker", "k3f9q2", 0, 2),
    ],
)
def test_only_a_letter_of_the_same_identity_is_the_same_letter(
    station: MiniStation, identity: tuple[str, str, int, int]
) -> None:
    station.letters.recent = lambda channel, since_us: iter([DeadLetterIdentity(*identity)])  # type: ignore[method-assign]
    station.publish(*range(2))
    station.subscribe(Flaky({1: 99}), name="worker")
    eventually(lambda: station.letters.offsets() == [1])


def test_no_channel_of_dead_letters_yet_means_no_letters(station: MiniStation) -> None:
    def recent(channel: str, since_us: int) -> list[DeadLetterIdentity]:
        raise NotFound(channel)

    station.letters.recent = recent  # type: ignore[assignment,method-assign]
    station.publish(0)
    station.subscribe(Flaky({0: 99}), name="worker")
    eventually(lambda: station.letters.offsets() == [0])


def test_a_letter_whose_outcome_is_unknown_is_looked_for_before_it_is_written_again(
    station: MiniStation,
) -> None:
    publish = station.letters.publish

    def written_but_not_synced(channel: str, payload: dict[str, object], key: str | None) -> None:
        publish(channel, payload, key)
        raise OutcomeUnknown("the sync failed")

    station.letters.publish = written_but_not_synced  # type: ignore[method-assign]
    handler = Flaky({0: 99})
    station.publish(0, 1)
    subscription = station.subscribe(handler, name="worker")
    eventually(lambda: handler.seen == [1])
    assert station.letters.offsets() == [0]
    assert subscription.stats().dead_letters == 1


# -- lines that are no messages


def test_an_undecodable_line_is_a_dead_letter_at_its_place(station: MiniStation) -> None:
    handler = Flaky({})
    station.publish(0)
    station.engine.add("undecodable", "not an envelope", b"\xff\x00 nonsense\n")
    station.publish(1)
    subscription = station.subscribe(handler, name="worker")
    eventually(lambda: handler.seen == [0, 1])
    (letter,) = station.letters.written
    assert letter["original"] is None
    assert base64.b64decode(letter["original_base64"]) == b"\xff\x00 nonsense"
    assert (letter["reason"], letter["error"], letter["offset"]) == ("undecodable", "not an envelope", 1)
    assert letter["attempts"] == 0
    assert subscription.stats().dead_letters == 1
    eventually(lambda: station.saved() == 3)


def test_a_payload_that_does_not_fit_is_a_dead_letter_with_its_key(station: MiniStation) -> None:
    line = b'{"id":"1","partitionkey":"cpu","data":{"n":"x"}}'
    station.engine.add("mismatch", "Expected `int`, got `str` - at `$.n`", line)
    station.subscribe(Flaky({}), name="worker")
    eventually(lambda: station.letters.written)
    (letter,) = station.letters.written
    assert letter["original"] == msgspec.json.decode(line)
    assert letter["reason"] == "mismatch"
    assert letter["error_type"] == "heliograph.errors.PayloadMismatch"
    assert station.letters.keys == ["cpu"]


def test_several_problems_keep_their_order_with_the_messages(station: MiniStation) -> None:
    story: list[object] = []
    publish = station.letters.publish
    station.letters.publish = lambda c, p, k: (story.append(p["offset"]), publish(c, p, k))  # type: ignore[method-assign,assignment,misc]
    station.engine.add("undecodable")
    station.publish("a", "b")
    station.engine.add("missing")
    station.engine.add("undecodable")
    station.publish("c")
    station.engine.add("undecodable")
    station.subscribe(
        lambda message: story.append(message.data), name="worker", on_gap=lambda gap: story.append(gap.first)
    )
    eventually(lambda: len(story) == 7)
    assert story == [0, "a", "b", 3, 4, "c", 6]


# -- dead letters of dead letters


def test_a_failing_handler_of_dead_letters_fails_the_subscription_and_loses_nothing() -> None:
    station = MiniStation("alerts.dead-letter")
    handler = Flaky({1: 4})
    station.publish(*range(3))
    subscription = station.subscribe(handler, name="worker")
    eventually(lambda: subscription.state == "failed")
    assert "no dead letters of their own" in subscription.stats().last_error
    assert not station.letters.written
    eventually(lambda: station.saved() == 1)
    subscription.resume()
    eventually(lambda: handler.seen == [0, 1, 2])
    assert subscription.state == "running"
    station.close()


def test_an_undecodable_dead_letter_is_told_as_a_gap() -> None:
    station = MiniStation("alerts.dead-letter")
    handler = Flaky({})
    gaps: list[object] = []
    station.engine.add("undecodable", "not an envelope", b"nonsense")
    station.publish(0)
    subscription = station.subscribe(handler, name="worker", on_gap=gaps.append)
    eventually(lambda: handler.seen == [0])
    assert len(gaps) == subscription.stats().missing == 1
    assert not station.letters.written
    station.close()


# -- what errors look like


def test_a_letter_is_bounded_and_encodable_whatever_the_error_is(station: MiniStation) -> None:
    class Nasty(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no text for you")

    def recurse(depth: int) -> None:
        if depth:
            recurse(depth - 1)
        raise ValueError("\ud800" + "x" * 1_000_000)

    def handle(message: Message) -> None:
        if message.data == 0:
            raise Nasty
        recurse(500)

    station.publish(0, 1)
    station.subscribe(handle, name="worker")
    eventually(lambda: len(station.letters.written) == 2)
    nasty, long = station.letters.written
    assert nasty["error"].startswith("Nasty")
    assert len(long["traceback"]) <= TRACEBACK_CHARS_MAX
    assert len(long["error"]) < 3_000


def test_an_error_without_text_is_its_name() -> None:
    assert describe(KeyError()) == "KeyError"


def test_data_that_is_no_letter_has_no_identity() -> None:
    assert identity_of(None) is None
    assert identity_of({"subscription": "a"}) is None
    assert identity_of({"subscription": "a", "incarnation": "b", "partition": 0, "offset": "7"}) is None


def test_ephemeral_subscriptions_bury_without_looking_back(station: MiniStation) -> None:
    handler = Flaky({0: 99})
    station.publish(0, 1)
    station.subscribe(handler)
    eventually(lambda: handler.seen == [1])
    assert station.letters.offsets() == [0]
    assert station.letters.asked_since == []


def test_threads_do_not_pile_up(station: MiniStation) -> None:
    before = threading.active_count()
    for _ in range(20):
        station.subscribe(print, name="worker").close()
    assert threading.active_count() <= before + 1, "the flusher's, at most"
