"""Lines of another station that arrive in batches: beside writing the same bytes, each line's checksum computed."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import google_crc32c

import heliograph as hg
from bench.harness import Bench, Goal, Row, compare, rate_of
from bench.samples import CHANNEL
from heliograph.engine.foreign import split
from heliograph.station import Station

LINES = 1_000
RAW = "split, checksums, one write"
BODY = (
    b'{"specversion":"1.0","id":"01a1e17d-b223-71d5-8f2e-5230%08d","source":"other","type":"heliograph.data.v1",'
    b'"time":"2026-11-15T23:14:33.%06dZ","channel":"%b","data":{"m":"x"},"origin":"other.k3f9q2","originseq":"0/%d"'
)


def run(bench: Bench) -> list[Row]:
    """Synced each time, and only written."""
    return [
        measured(bench, "always", f"{LINES} lines arrive, durable", None),
        measured(bench, "interval", f"{LINES} lines arrive, written", Goal(ours_min=600_000)),
    ]


def bodies() -> Iterator[bytes]:
    """Batches of one origin's lines, some 250 bytes each, one after the other."""
    for first in count(0, LINES):
        made = [BODY % (seq, seq % 1_000_000, CHANNEL.encode(), seq) for seq in range(first, first + LINES)]
        yield b"".join([b'%b,"crc":"%08x"}\n' % (body, google_crc32c.value(body)) for body in made])


def measured(bench: Bench, durability: str, what: str, goal: Goal | None) -> Row:
    """One durability."""
    number = int(bench.either(60, 5))
    with bench.scratch("arrivals") as path, hg.open(path / "station", name="bench", durability=durability) as station:
        sent = bodies()
        synced = durability == "always"
        rounds = bench.measure(
            {
                "raw": lambda: raw(path / "raw", [next(sent) for _ in range(number)], synced=synced),
                "arrivals": lambda: arrive(station, [next(sent) for _ in range(number)], synced=synced),
            }
        )
    return compare("arrivals", what, rounds, "arrivals", raw_is=RAW + (" and sync" if synced else ""), goal=goal)


def raw(path: Path, batches: list[bytes], *, synced: bool) -> float:
    """The least that can be done."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    left = iter(batches)

    def step() -> None:
        body = next(left)
        for line in body.split(b"\n"):
            google_crc32c.value(line[:-18])
        os.write(fd, body)
        if synced:
            os.fdatasync(fd)

    try:
        return rate(step, len(batches))
    finally:
        os.close(fd)


def arrive(station: Station, batches: list[bytes], *, synced: bool) -> float:
    """As a hub does."""
    left, relayed = iter(batches), station.engine.relayed
    if synced:
        return rate(lambda: relayed.arrive(CHANNEL, next(left)), len(batches))
    return rate(lambda: relayed.append(CHANNEL, [split(next(left))]), len(batches))


def rate(step: Callable[[], object], times: int) -> float:
    """Lines a second."""
    return rate_of(times * LINES, lambda: [step() for _ in range(times)])
