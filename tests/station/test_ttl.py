"""A time to live: from publish to the subscriber that does not get it."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

import pytest

import heliograph as hg
from heliograph.admin import dead
from heliograph.admin.redrive import redrive
from tests.delivery.harness import SteppedClock
from tests.opening import Opener
from tests.proof.tools import eventually

HOUR_US = 3_600_000_000


def test_an_expired_message_is_not_delivered_but_can_be_read(opened: Opener) -> None:
    clock = SteppedClock()
    station = opened(clock=clock)
    station.publish("alerts", 1, ttl=60)
    station.publish("alerts", 2)
    station.publish_many("alerts", [3, b"4", hg.Draft(data=5, headers={"a": "b"})], ttl=timedelta(minutes=1))
    station.publish("alerts", 6, ttl=7200)
    clock.step_us = HOUR_US
    seen: list[Any] = []
    subscription = station.subscribe("alerts", lambda message: seen.append(message.data), start="first")
    eventually(lambda: subscription.position == 6)
    assert seen == [2, 6]
    assert (subscription.stats().expired, subscription.stats().delivered) == (4, 2)
    found = list(station.read("alerts"))
    assert [message.data for message in found] == [1, 2, 3, b"4", 5, 6]
    assert found[0].expires is not None
    assert abs(found[0].expires - found[0].time - timedelta(seconds=60)) < timedelta(seconds=10)
    assert found[1].expires is None
    assert found[4].headers == {"a": "b"}


def test_lines_read_one_by_one_expire_too(opened: Opener) -> None:
    """A redacted line keeps a chunk from being decoded at once."""
    clock = SteppedClock()
    station = opened(clock=clock)
    receipts = [station.publish("alerts", number, ttl=60 if number % 2 else None) for number in range(6)]
    station.redact(receipts[2].id)
    clock.step_us = HOUR_US
    seen: list[int] = []
    subscription = station.subscribe("alerts", lambda message: seen.append(message.data), start="first")
    eventually(lambda: subscription.position == 6)
    assert seen == [0, 4]


def test_a_typed_payload_expires_too(opened: Opener) -> None:
    clock = SteppedClock()
    station = opened(clock=clock)
    station.register("com.example.n.v1", dict[str, int])
    station.publish("alerts", {"n": 1}, type="com.example.n.v1", ttl=60)
    station.publish("alerts", {"n": 2}, type="com.example.n.v1")
    clock.step_us = HOUR_US
    seen: list[Any] = []
    subscription = station.subscribe("alerts", lambda message: seen.append(message.data), start="first")
    eventually(lambda: subscription.position == 2)
    assert seen == [{"n": 2}]


def test_a_replayed_dead_letter_lives_again(opened: Opener) -> None:
    station = opened()
    station.publish("alerts", 1, ttl=0.2)

    def refuse(_: hg.Message) -> None:
        raise ValueError("no")

    with station.subscribe("alerts", refuse, start="first", retry=hg.Retry(max_retries=0), name="w") as subscription:
        eventually(lambda: subscription.stats().dead_letters == 1)
    time.sleep(0.3)
    dead.replay(station, "alerts")
    (_, copy) = station.read("alerts")
    assert copy.expires is None


@pytest.mark.parametrize("ttl", [0, -5, "1h", True])
def test_a_lifetime_that_is_none_is_refused(opened: Opener, ttl: Any) -> None:
    station = opened()
    with pytest.raises(hg.InvalidMessage, match="ttl"):
        station.publish("alerts", 1, ttl=ttl)
    assert not station.channels()


def test_the_letter_of_an_expired_message_stays_when_its_queue_is_redriven(opened: Opener) -> None:
    """Nobody would get the message, and its letter would be gone."""
    clock = SteppedClock()
    station = opened(clock=clock)
    queue = station.queue("alerts", "pile", max_deliveries=1)
    station.publish_many("alerts", [1, 2], ttl=60)
    station.publish("alerts", 3)
    for job in queue.receive(3, wait_s=30):
        job.nack(error=ValueError("not now"))
    clock.step_us = HOUR_US
    report = redrive(station, "alerts", "pile")
    assert (report.matched, report.redriven, report.gone) == (3, 1, [0, 1])
    assert [job.message.data for job in queue.receive(3, wait_s=30)] == [3]
    assert dead.replay(station, "alerts").redriven == {"pile": 2}
    assert [job.message.data for job in queue.receive(3, wait_s=30)] == [1, 2]
