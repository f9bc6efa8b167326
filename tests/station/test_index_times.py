"""However a message is published, the index of the log says the times that are in its envelopes."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

import heliograph as hg
from heliograph.admin.verify import verify
from heliograph.clock import Clock
from heliograph.limits import INDEX_STRIDE_BYTES
from tests.opening import Opener

CHANNEL = "orders"
LARGE = "x" * INDEX_STRIDE_BYTES  # each of these has an entry of the index for itself


class Ticking(Clock):
    """Whoever looks at it finds it later by a millisecond."""

    def __init__(self) -> None:
        self._looks = 0

    def time_ns(self) -> int:  # type: ignore[override]
        self._looks += 1
        return time.time_ns() + self._looks * 1_000_000


def _step(station: hg.Station) -> None:
    with station.atomic() as step:
        step.publish(CHANNEL, LARGE)


def _numbered(station: hg.Station, data: Any, **options: Any) -> None:
    with station.producer("p") as producer:
        producer.publish(CHANNEL, data, **options)


def _numbered_batch(station: hg.Station) -> None:
    with station.producer("p") as producer:
        producer.publish_many(CHANNEL, [LARGE, hg.Draft(data=LARGE)])


WAYS: dict[str, Callable[[hg.Station], Any]] = {
    "plain": lambda station: station.publish(CHANNEL, LARGE),
    "with a header": lambda station: station.publish(CHANNEL, LARGE, headers={"region": "eu"}),
    "with a lifetime": lambda station: station.publish(CHANNEL, LARGE, ttl=60),
    "batch": lambda station: station.publish_many(CHANNEL, [LARGE, LARGE]),
    "mixed batch": lambda station: station.publish_many(CHANNEL, [LARGE, hg.Draft(data=LARGE), b"bytes"]),
    "later": lambda station: station.publish(CHANNEL, LARGE, delay=0),
    "batch later": lambda station: station.publish_many(CHANNEL, [LARGE, LARGE], delay=0),
    "mixed batch later": lambda station: station.publish_many(CHANNEL, [LARGE, hg.Draft(data=LARGE)], delay=0),
    "step": _step,
    "numbered": lambda station: _numbered(station, LARGE),
    "numbered bytes": lambda station: _numbered(station, LARGE.encode()),
    "numbered with a header": lambda station: _numbered(station, LARGE, headers={"region": "eu"}),
    "numbered batch": _numbered_batch,
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("durability", ["always", "interval"])
def test_the_times_of_what_was_published(opened: Opener, durability: str, way: str) -> None:
    with opened(clock=Ticking(), durability=durability) as station:
        station.create_channel(CHANNEL)
        WAYS[way](station)
        until = time.monotonic() + 30
        while not (messages := list(station.read(CHANNEL))) and time.monotonic() < until:
            time.sleep(0.01)
        assert next(iter(station.read(CHANNEL, start=messages[0].time))).offset == 0
        report = verify(station)
        assert report.lines > 0
        assert report.ok, report
