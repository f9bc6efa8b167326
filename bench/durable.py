"""Durable publish: what a disk that syncs every message allows, and what group commit makes of it.

The raw limit writes the same bytes to a growing file, one line at a time, with ``fdatasync`` after each.
"""

from __future__ import annotations

import asyncio
import os
import threading
from functools import partial
from itertools import cycle
from pathlib import Path
from time import perf_counter

import heliograph as hg
from bench.harness import Bench, Goal, Row, compare, rate_for
from bench.samples import CHANNEL, PAYLOADS, TYPE

CALLERS = 64
RAW = "write + fdatasync, one after the other"


def run(bench: Bench) -> list[Row]:
    """Measure one publisher, many threads, many tasks and batches beside serial syncs."""
    seconds = bench.either(0.5, 0.1)
    with bench.scratch("durable") as path, hg.open(path / "station", name="bench") as station:
        line = stored_line(station)
        contestants = {
            "raw": lambda: serial_syncs(path / "raw", line, seconds),
            "one": lambda: one_publisher(station, seconds),
            "threads": lambda: many_threads(station, seconds),
            "tasks": lambda: asyncio.run(many_tasks(path / "async", seconds)),
            "batches": lambda: batches(station, seconds),
        }
        rounds = bench.measure(contestants)
    row = partial(compare, "durable", rounds=rounds, raw_is=RAW)
    return [
        row("one publisher", name="one", goal=Goal(ratio_min=0.8)),
        row(f"{CALLERS} threads", name="threads", goal=Goal(ratio_min=4, ours_min=15_000)),
        row(f"{CALLERS} asyncio tasks", name="tasks", goal=Goal(ratio_min=10, ours_min=60_000)),
        row("publish_many of 100", name="batches", goal=Goal(ratio_min=45)),
    ]


def stored_line(station: hg.Station) -> bytes:
    """What one of the measured messages becomes on disk."""
    station.publish(CHANNEL, PAYLOADS[0], type=TYPE)
    return next(station.read(CHANNEL)).raw + b"\n"


def serial_syncs(path: Path, line: bytes, seconds: float) -> float:
    """The raw limit."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def step() -> None:
        os.write(fd, line)
        os.fdatasync(fd)

    try:
        return rate_for(seconds, step)
    finally:
        os.close(fd)


def one_publisher(station: hg.Station, seconds: float) -> float:
    """One thread, one message at a time."""
    payloads = cycle(PAYLOADS)
    return rate_for(seconds, lambda: station.publish(CHANNEL, next(payloads), type=TYPE))


def many_threads(station: hg.Station, seconds: float) -> float:
    """Many threads, each publishing one message after the other."""
    counts: list[int] = []
    start = threading.Barrier(CALLERS + 1)

    def work(payload: object) -> None:
        done = 0
        start.wait()
        until = perf_counter() + seconds
        while perf_counter() < until:
            station.publish(CHANNEL, payload, type=TYPE)
            done += 1
        counts.append(done)

    threads = [threading.Thread(target=work, args=(PAYLOADS[number],)) for number in range(CALLERS)]
    for thread in threads:
        thread.start()
    start.wait()
    started = perf_counter()
    for thread in threads:
        thread.join()
    return sum(counts) / (perf_counter() - started)


async def many_tasks(path: Path, seconds: float) -> float:
    """Many tasks of one event loop, each publishing one message after the other."""
    async with hg.open_async(path, name="bench") as station:
        await station.publish(CHANNEL, PAYLOADS[0], type=TYPE)
        started = perf_counter()
        until = started + seconds

        async def work(payload: object) -> int:
            done = 0
            while perf_counter() < until:
                await station.publish(CHANNEL, payload, type=TYPE)
                done += 1
            return done

        counts = await asyncio.gather(*[work(PAYLOADS[number]) for number in range(CALLERS)])
        return sum(counts) / (perf_counter() - started)


def batches(station: hg.Station, seconds: float) -> float:
    """One thread, a hundred messages at a time; the rate is that of messages."""
    return rate_for(seconds, lambda: station.publish_many(CHANNEL, PAYLOADS, type=TYPE), len(PAYLOADS))
