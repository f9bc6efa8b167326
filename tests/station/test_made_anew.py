"""A channel that is deleted and made again is another one: who read the first does not go on in the middle of it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

import heliograph as hg
from heliograph.station import Station
from tests.opening import Opener
from tests.proof.tools import eventually

CHANNEL = "events"
BEFORE = 10


class Handler:
    """Remembers what it got; holds as long as it is told to."""

    def __init__(self) -> None:
        self.got: list[Any] = []
        self.entered = threading.Event()
        self.go_on = threading.Event()
        self.go_on.set()

    def __call__(self, message: hg.Message) -> None:
        self.entered.set()
        assert self.go_on.wait(10)
        self.got.append(message.data)


def _make_anew(station: Station, count: int) -> None:
    station.delete_channel(CHANNEL)
    station.create_channel(CHANNEL)
    station.publish_many(CHANNEL, [f"anew {number}" for number in range(count)])


def _idle(station: Station, other: Station, handler: Handler) -> hg.Subscription:
    """At the end, without having got anything."""
    subscription = other.subscribe(CHANNEL, handler)
    _make_anew(station, BEFORE - 1)
    return subscription


def _paused(station: Station, other: Station, handler: Handler) -> hg.Subscription:
    subscription = other.subscribe(CHANNEL, handler, paused=True)
    _make_anew(station, 2 * BEFORE)
    subscription.resume()
    return subscription


def _busy(station: Station, other: Station, handler: Handler) -> hg.Subscription:
    handler.go_on.clear()
    subscription = other.subscribe(CHANNEL, handler)
    station.publish(CHANNEL, BEFORE)
    assert handler.entered.wait(10)
    _make_anew(station, 2 * BEFORE)
    handler.go_on.set()
    return subscription


def _resumed(station: Station, other: Station, handler: Handler) -> hg.Subscription:
    """After it has said that there is no such channel."""
    subscription = other.subscribe(CHANNEL, handler)
    station.delete_channel(CHANNEL)
    eventually(lambda: subscription.state == "failed")
    station.publish_many(CHANNEL, [f"anew {number}" for number in range(2 * BEFORE)])
    subscription.resume()
    return subscription


@pytest.mark.parametrize("history", [_idle, _paused, _busy, _resumed])
def test_a_subscription_fails_and_passes_over_nothing(
    opened: Opener, history: Callable[[Station, Station, Handler], hg.Subscription]
) -> None:
    station, handler = opened(durability="os"), Handler()
    station.publish_many(CHANNEL, list(range(BEFORE)))
    subscription = history(station, opened(durability="os"), handler)
    eventually(lambda: subscription.state == "failed")
    if "there is no channel" in subscription.stats().last_error:  # it looked before there was another one
        subscription.resume()
    eventually(lambda: "was deleted and made again" in subscription.stats().last_error)
    assert subscription.state == "failed"
    assert [data for data in handler.got if data != BEFORE] == [], "of another channel"


def test_a_failed_subscription_delivers_no_further_partition(opened: Opener) -> None:
    station, handler = opened(), Handler()
    station.publish(CHANNEL, "before")
    subscription = station.subscribe(CHANNEL, handler)
    station.delete_channel(CHANNEL)
    eventually(lambda: subscription.state == "failed")
    station.create_channel(CHANNEL, partitions=2)
    for number in range(4):
        station.publish(CHANNEL, number, key=str(number))
    eventually(lambda: len(subscription.partitions) == 2)
    eventually(lambda: [part.state for part in subscription.partition_stats()] == ["failed", "failed"])
    assert handler.got == []


@pytest.mark.parametrize("pattern", [CHANNEL, "*"])
def test_who_follows_is_told_or_gets_the_new_one_from_its_beginning(opened: Opener, pattern: str) -> None:
    station = opened(durability="os")
    station.publish_many(CHANNEL, list(range(BEFORE)))
    following = opened(durability="os").read(pattern, start="new", follow=True)
    station.publish(CHANNEL, BEFORE)
    assert next(following).data == BEFORE
    _make_anew(station, 2 * BEFORE)
    if pattern == CHANNEL:
        with pytest.raises(hg.NotFound, match="was deleted and made again"):
            next(following)
    else:
        assert next(following).data == "anew 0"
