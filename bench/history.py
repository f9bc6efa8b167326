"""Cost does not grow with history: the same things done on a long log and on a short one, a thousandth of it.

Both logs are ordinary ones, made of messages of about 1,000 bytes with ``publish_many`` in hundreds. ``interval`` is
used throughout: a sync would take so long that it hid whatever else grows.
"""

from __future__ import annotations

import shutil
import sys
import threading
from functools import partial
from pathlib import Path
from random import Random
from statistics import median
from time import perf_counter
from typing import Any

import heliograph as hg
from bench.harness import Bench, Goal, Row, compare
from bench.samples import CHANNEL, TYPE

LONG_BYTES, LONG_BYTES_QUICK = 10_000_000_000, 200_000_000
TIMES = 1000
TIMES_QUICK = 100
ROOM_BYTES = 15_000_000_000
"""With less free disk than this the long log is made shorter: two thirds of what is free."""
READER = "reader"

GOAL = Goal(ratio_max=1.2)
PAYLOADS: list[dict[str, Any]] = [
    {"host": f"web-{number % 7}", "value": number / 7, "message": f"{number:03d} system problem! " * 31}
    for number in range(100)
]


def run(bench: Bench) -> list[Row]:
    """Measure opening, publishing, resuming and seeking on both."""
    long_bytes = size_of_long(bench)
    short_bytes = long_bytes // (TIMES_QUICK if bench.quick else TIMES)
    with bench.scratch("history") as path:
        logs = {"short": path / "short", "long": path / "long"}
        grow(logs["short"], short_bytes)
        grow(logs["long"], long_bytes)
        opened = bench.measure({name: partial(open_ms, at) for name, at in logs.items()})
        with (
            hg.open(logs["short"], durability="interval") as short,
            hg.open(logs["long"], durability="interval") as long,
        ):
            stations = {"short": short, "long": long}
            published = bench.measure({name: partial(publish_us, at) for name, at in stations.items()})
            resumed = bench.measure({name: partial(resume_ms, at) for name, at in stations.items()})
            sought = bench.measure({name: partial(seek_us, at) for name, at in stations.items()})
    beside = f"{size(long_bytes)} beside {size(short_bytes)}"
    return [
        compare("history", f"{what}, {beside}", rounds, "long", unit=unit, raw="short", goal=GOAL)
        for what, rounds, unit in (
            ("open and publish once", opened, "ms"),
            ("publish", published, "µs"),
            ("resume in the middle", resumed, "ms"),
        )
    ] + [compare("history", f"read at a time, {beside}", sought, "long", unit="µs", raw="short")]


def size(count: int) -> str:
    """Bytes as people say them.

    >>> size(10_000_000_000), size(2_000_000)
    ('10 GB', '2 MB')
    """
    return f"{count / 1e9:.3g} GB" if count >= 1e9 else f"{count / 1e6:.3g} MB"


def size_of_long(bench: Bench) -> int:
    """As long as the issue says, unless the disk is too full."""
    if bench.quick:
        return LONG_BYTES_QUICK
    free = shutil.disk_usage(bench.directory).free
    if free > ROOM_BYTES:
        return LONG_BYTES
    scaled = free * 2 // 3
    print(f"(only {size(free)} free: {size(scaled)} instead of 10 GB) ", end="", file=sys.stderr, flush=True)
    return scaled


def grow(path: Path, count_bytes: int) -> None:
    """Make a log of about so many bytes, with a durable subscription."""
    with hg.open(path, name="bench", durability="interval") as station:
        station.publish_many(CHANNEL, PAYLOADS, type=TYPE)
        per_batch = station.channel(CHANNEL).bytes
        for _ in range(count_bytes // per_batch):
            station.publish_many(CHANNEL, PAYLOADS, type=TYPE)
        station.subscribe(CHANNEL, lambda _: None, name=READER, start="new").close()


def open_ms(path: Path, times: int = 9) -> float:
    """From nothing to the first message published: opening a directory alone looks at no log yet."""
    found = []
    for _ in range(times):
        started = perf_counter()
        with hg.open(path, durability="interval") as station:
            station.publish(CHANNEL, PAYLOADS[0], type=TYPE)
            found.append(perf_counter() - started)
    return median(found) * 1e3


def publish_us(station: hg.Station, times: int = 3000) -> float:
    """One message at a time."""
    started = perf_counter()
    for _ in range(times):
        station.publish(CHANNEL, PAYLOADS[0], type=TYPE)
    return (perf_counter() - started) / times * 1e6


def resume_ms(station: hg.Station, times: int = 15) -> float:
    """From ``subscribe`` of a subscription that stopped in the middle of the log to its next message."""
    middle = station.channel(CHANNEL).next // 2
    found = []
    for _ in range(times):
        station.seek(CHANNEL, READER, middle)
        arrived, leave = threading.Event(), threading.Event()

        def handle(_: hg.Message, arrived: threading.Event = arrived, leave: threading.Event = leave) -> None:
            arrived.set()
            leave.wait()

        started = perf_counter()
        subscription = station.subscribe(CHANNEL, handle, name=READER)
        if not arrived.wait(60):
            raise TimeoutError("the subscription did not resume")
        found.append(perf_counter() - started)
        subscription.pause()
        leave.set()
        subscription.close()
    return median(found) * 1e3


def seek_us(station: hg.Station, times: int = 200) -> float:
    """From a moment somewhere in the log to the first message that is not older."""
    first = next(station.read(CHANNEL)).time
    last = next(station.read(CHANNEL, start=station.channel(CHANNEL).next - 1)).time
    random = Random(7)
    moments = [first + (last - first) * random.random() for _ in range(times)]
    started = perf_counter()
    for moment in moments:
        next(station.read(CHANNEL, start=moment))
    return (perf_counter() - started) / times * 1e6
