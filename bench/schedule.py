"""Messages that wait: storing them, opening a station with a million of them, and delivering them when due.

Beside them stand the same messages published at once, and a station in whose schedule next to nothing waits.
``interval`` is used, so that no sync of the log hides what the schedule costs; its own store syncs all the same.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter, sleep, time_ns

import heliograph as hg
from bench.harness import Bench, Goal, Row, compare, rate_of
from bench.samples import CHANNEL, TYPE
from heliograph.clock import Clock

WAITING, WAITING_QUICK = 1_000_000, 20_000
TOGETHER = 1_000
FAR_S = 365 * 86_400
PAYLOADS = [{"host": f"web-{number % 7}", "value": number / 7} for number in range(TOGETHER)]
HOUR_S = 3600
OPEN_GOAL = Goal(ratio_max=1.2)


class AheadClock(Clock):
    """A wall clock that can be set forward."""

    ahead_ns = 0

    def time_ns(self) -> int:  # type: ignore[override]
        return time_ns() + self.ahead_ns


def run(bench: Bench) -> list[Row]:
    """Measure storing, opening and delivering."""
    waiting = int(bench.either(WAITING, WAITING_QUICK))
    moved = int(bench.either(20_000, 3_000))
    with bench.scratch("schedule") as path:
        few, many = path / "few", path / "many"
        fill(few, TOGETHER)
        rate = rate_of(waiting, partial(fill, many, waiting))
        opened = bench.measure({"few": partial(open_ms, few), "many": partial(open_ms, many)})
        clock = AheadClock()
        with hg.open(path / "moving", name="bench", durability="interval", clock=clock) as station:
            rounds = bench.measure({
                "raw": partial(publish_rate, station, moved),
                "stored": partial(store_rate, station, moved),
                "moved": partial(move_rate, station, clock, moved),
            })  # fmt: skip
    at_once = "published at once"
    return [
        Row(subject="schedule", what=f"schedule {waiting:,} messages", unit="messages/s", ours=rate),
        compare("schedule", f"schedule, batches of {TOGETHER:,}", rounds, "stored", raw_is=at_once),
        compare("schedule", "deliver what is due", rounds, "moved", raw_is=at_once),
        compare(
            "schedule", f"open and schedule once, {waiting:,} waiting beside {TOGETHER:,}", opened, "many", unit="ms",
            raw="few", goal=OPEN_GOAL,
        ),
    ]  # fmt: skip


def fill(path: Path, number: int) -> None:
    """Let so many messages wait."""
    with hg.open(path, name="bench", durability="interval") as station:
        for _ in range(number // TOGETHER):
            station.publish_many(CHANNEL, PAYLOADS, type=TYPE, delay=FAR_S)


def open_ms(path: Path, times: int = 9) -> float:
    """From nothing to the first message scheduled."""
    found = []
    for _ in range(times):
        started = perf_counter()
        with hg.open(path, durability="interval") as station:
            station.publish(CHANNEL, PAYLOADS[0], type=TYPE, delay=FAR_S)
            found.append(perf_counter() - started)
    return median(found) * 1e3


def publish_rate(station: hg.Station, number: int) -> float:
    """At once."""
    return rate_of(number, lambda: publish(station, number, None))


def store_rate(station: hg.Station, number: int) -> float:
    """Only stored: they wait for a year."""
    return rate_of(number, lambda: publish(station, number, FAR_S))


def publish(station: hg.Station, number: int, delay: float | None) -> None:
    """In batches."""
    for _ in range(number // TOGETHER):
        station.publish_many(CHANNEL, PAYLOADS, type=TYPE, delay=delay)


def move_rate(station: hg.Station, clock: AheadClock, number: int) -> float:
    """From the moment at which all of them are due until they are in the log."""
    publish(station, number, HOUR_S)
    end = station.channel(CHANNEL).next + number
    clock.ahead_ns += (HOUR_S + 1) * 10**9
    started = perf_counter()
    station.publish(CHANNEL, PAYLOADS[0], type=TYPE, delay=0)  # which wakes the dispatcher at once
    while station.channel(CHANNEL).next < end:
        sleep(0.001)
    return number / (perf_counter() - started)
