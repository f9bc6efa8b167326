"""Which task reads what: stretches of partitions, cut where the index has an entry, of about the same size.

A split is told in offsets, and whoever reads it finds their places by itself: the index is a hint for planning, too. An
entry that is left out because of its times must have the right checksum of its own; a stretch that no entry covers
(the end of the active segment, or all of a segment whose index is broken) is always read.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any, Final, NamedTuple

import google_crc32c
import numpy as np
from pyspark.sql.datasource import InputPartition

from heliograph.disk import Disk
from heliograph.log import segments
from heliograph.log.cursor import Missing
from heliograph.log.held import Limit
from heliograph.spark.directory import Directory
from heliograph.spark.filters import Between, Conditions

_ENTRY: Final = np.dtype(
    [
        *((name, "<u8") for name in ("first", "position", "append_us", "min_us", "max_us", "peak_us")),
        *((name, "<u4") for name in ("lines", "length", "crc", "own")),
    ]
)
_SLACK_US: Final = 5_000_000
"""Whoever encodes a message and whoever appends it may look at the clock one after the other."""
_Entries = np.ndarray[Any, Any]


class Stretch(NamedTuple):
    """Offsets from ``first`` to ``next - 1``."""

    first: int
    next: int


class Split(InputPartition):
    """What one task reads: stretches of one partition, in order."""

    def __init__(
        self,
        channel: str,
        partition: int,
        incarnation: str,
        stretches: tuple[Stretch, ...],
        told: Missing | None = None,
    ) -> None:
        super().__init__((channel, partition, incarnation, stretches))
        self.channel = channel
        self.partition = partition
        self.incarnation = incarnation
        self.stretches = stretches
        self.told = told  # what is known to be missing before anything is read


class Ask(NamedTuple):
    """A stretch of a partition that somebody wants."""

    channel: str
    partition: int
    incarnation: str
    stretch: Stretch


def plan(directory: Directory, ask: Ask, conditions: Conditions, split_bytes: int) -> list[Split]:
    """The splits for a stretch, without what cannot fulfil the conditions."""
    if not conditions.allow(ask.channel, ask.partition):
        return []
    first = max(ask.stretch.first, conditions.offset.low)
    following = min(ask.stretch.next, conditions.offset.high + 1)
    limit = directory.limit(ask.channel, ask.partition)
    splits: list[Split] = []
    stretches: list[Stretch] = []
    size = 0

    def finish() -> None:
        nonlocal size
        if stretches:
            splits.append(Split(ask.channel, ask.partition, ask.incarnation, tuple(stretches)))
        stretches.clear()
        size = 0

    for stretch, length in _pieces(directory, ask, Stretch(first, following), limit, conditions.time_us):
        if stretches and stretches[-1].next == stretch.first:
            stretches[-1] = Stretch(stretches[-1].first, stretch.next)
        else:
            stretches.append(stretch)
        size += length
        if size >= split_bytes:
            finish()
    finish()
    return splits


def size_of(directory: Directory, ask: Ask) -> list[tuple[Stretch, int]]:
    """The pieces that a stretch consists of, and how many bytes each has, about."""
    limit = directory.limit(ask.channel, ask.partition)
    return _pieces(directory, ask, ask.stretch, limit, Between())


def _pieces(directory: Directory, ask: Ask, asked: Stretch, limit: Limit, times: Between) -> list[tuple[Stretch, int]]:
    """What the index knows of a stretch: pieces of some KiB in order, with their bytes."""
    if asked.first >= asked.next:
        return []
    folder = directory.log(ask.channel, ask.partition).place.directory
    bases = [base for base in segments.bases(folder, directory.disk) if base < asked.next]
    found: list[tuple[Stretch, int]] = []
    at = asked.first
    if bases and at < bases[0]:  # what retention took is asked for as well: its reader is to be told
        found.append((Stretch(at, min(bases[0], asked.next)), 0))
        at = bases[0]
    for number, base in enumerate(bases):
        following = bases[number + 1] if number + 1 < len(bases) else max(limit.next, asked.next)
        if following <= asked.first:
            continue
        for stretch, length, wanted in _segment(folder, base, following, limit, times, directory.disk):
            low, high = max(at, stretch.first), min(asked.next, stretch.next)
            if high > low:
                if wanted:
                    found.append((Stretch(low, high), length))
                at = high
    if at < asked.next:
        found.append((Stretch(at, asked.next), 0))
    return found


def _segment(
    folder: Path, base: int, following: int, limit: Limit, times: Between, disk: Disk
) -> list[tuple[Stretch, int, bool]]:
    """The pieces of one segment, and whether their times can be wanted."""
    entries = entries_of(folder, base, disk)
    end = limit.end if base == limit.base else -1
    ends = (entries["first"] + entries["lines"]).tolist()
    latest, earliest = entries["max_us"].astype(np.int64), entries["min_us"].astype(np.int64)
    drop = (latest < times.low) | (earliest > times.high + _SLACK_US)
    firsts, lengths = entries["first"].tolist(), entries["length"].tolist()
    pieces = [
        (Stretch(firsts[at], ends[at]), lengths[at], not (drop[at] and _genuine(entries[at])))
        for at in range(len(ends))
    ]
    known = ends[-1] if ends else base
    if known < following:
        covered = int(entries["position"][-1]) + lengths[-1] if ends else 0
        rest = max(0, (end if end >= 0 else segments.stored_bytes(folder, base, disk)) - covered)
        pieces.append((Stretch(known, following), rest, True))
    return pieces


def entries_of(folder: Path, base: int, disk: Disk) -> _Entries:
    """The entries of an index that form a chain."""
    data = b""
    with contextlib.suppress(FileNotFoundError):
        data = disk.read_file(segments.path_of(folder, base, segments.INDEX))
    entries = np.frombuffer(data[: len(data) // _ENTRY.itemsize * _ENTRY.itemsize], _ENTRY)
    if not len(entries):
        return entries
    ends = entries["first"] + entries["lines"]
    chained = np.append(entries["first"][0] == base, entries["first"][1:] == ends[:-1]) & (entries["lines"] > 0)
    broken = np.flatnonzero(~chained)
    return entries[: broken[0]] if len(broken) else entries


def _genuine(entry: Any) -> bool:
    data = entry.tobytes()
    return bool(google_crc32c.value(data[:-4]) == int.from_bytes(data[-4:], "little"))
