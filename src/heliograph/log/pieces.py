"""A stretch of a log cut into pieces of about one size, where the index has an entry: for whoever shares the work.

Offsets are all that is told: whoever reads a piece finds its place by itself, so a wrong index costs time and nothing
else. What is left out because of its times needs an entry with the right checksum; what no entry covers (the end of
the active segment, or all of a segment whose index is broken) is never left out.
"""

from __future__ import annotations

import contextlib
import struct
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from heliograph.disk import Disk
from heliograph.log import index, segments
from heliograph.log.head import Limit

_WORDS: Final = index.SIZE // 8
_SLACK_US: Final = 5_000_000
"""Whoever encodes a message and whoever appends it may look at the clock one after the other."""


class Wish(NamedTuple):
    """What is to be cut: offsets, about how many bytes a piece has, and perhaps which event times are wanted."""

    first: int
    next: int
    bytes: int
    times_us: tuple[int, int] | None = None
    most: int | None = None  # no more pieces than these
    looks: int | None = None  # no more entries of the index than these, about


class Piece(NamedTuple):
    """Some offsets, and how many bytes they have on disk, about."""

    first: int
    next: int
    bytes: int


class Entries(NamedTuple):
    """The entries of one segment's index, column by column."""

    data: bytes
    firsts: tuple[int, ...]
    nexts: list[int]
    positions: tuple[int, ...]
    ends: list[int]
    append_us: tuple[int, ...]
    min_us: tuple[int, ...]
    max_us: tuple[int, ...]

    def genuine(self, at: int) -> bool:
        """Whether an entry has the checksum that it should have."""
        return index.decode(self.data, at * index.SIZE) is not None


def entries_of(folder: Path, base: int, disk: Disk) -> Entries:
    """The entries of an index that form a chain."""
    data = b""
    with contextlib.suppress(FileNotFoundError):
        data = disk.read_file(segments.path_of(folder, base, segments.INDEX))
    words = struct.unpack_from(f"<{len(data) // index.SIZE * _WORDS}Q", data)
    firsts, positions, sizes = words[::_WORDS], words[1::_WORDS], words[6::_WORDS]
    nexts = [first + (size & 0xFFFFFFFF) for first, size in zip(firsts, sizes, strict=True)]
    ends = [position + (size >> 32) for position, size in zip(positions, sizes, strict=True)]
    count = _chained(firsts, nexts, base)
    columns = (words[2::_WORDS], words[3::_WORDS], words[4::_WORDS])
    return Entries(
        data, firsts[:count], nexts[:count], positions[:count], ends[:count], *(column[:count] for column in columns)
    )


def _chained(firsts: tuple[int, ...], nexts: list[int], base: int) -> int:
    """How many entries begin where the one before them ends."""
    follows = base
    for at, (first, following) in enumerate(zip(firsts, nexts, strict=True)):
        if first != follows or following == first:
            return at
        follows = following
    return len(firsts)


class _Gathering:
    """Pieces as they grow."""

    def __init__(self, wish: Wish) -> None:
        self._size = max(1, wish.bytes)
        self._most = wish.most
        self._at = self._next = wish.first
        self._open = False
        self._bytes = 0  # since the last cut
        self._length = 0  # of the open piece
        self.found: list[Piece] = []

    @property
    def room(self) -> int:
        """How many bytes the next cut is away."""
        return self._size - self._bytes

    @property
    def full(self) -> bool:
        """Whether there are as many as may be."""
        return self._most is not None and len(self.found) >= self._most

    def add(self, first: int, following: int, length: int) -> None:
        """What follows; with a hole before it, it is another piece."""
        if self._open and first != self._next:
            self.close()
        if not self._open:
            self._at, self._length, self._open = first, 0, True
        self._next = following
        self._length += length
        self._bytes += length
        if self._bytes >= self._size:
            self.close()
            self._bytes = 0

    def close(self) -> None:
        """It is as large as it gets."""
        if self._open:
            self.found.append(Piece(self._at, self._next, self._length))
        self._open = False


def cut(folder: Path, limit: Limit, wish: Wish, disk: Disk) -> tuple[list[Piece], int]:
    """The pieces of a stretch in order, without what cannot be wanted, and up to which offset that was looked at.

    Whatever of the stretch is not in the log (any more) is in a piece as well: its reader is to be told.
    """
    pieces = _Gathering(wish)
    at = wish.first
    looked = 0
    bases = [base for base in segments.bases(folder, disk) if base < wish.next]
    if bases and at < min(bases[0], wish.next):
        pieces.add(at, min(bases[0], wish.next), 0)
        at = bases[0]
    for number, base in enumerate(bases):
        following = bases[number + 1] if number + 1 < len(bases) else max(limit.next, wish.next)
        if following <= at or at >= wish.next:
            continue
        entries = entries_of(folder, base, disk)
        for run in _runs(entries, at, wish):
            for piece in _cut_run(entries, run, pieces):
                pieces.add(max(at, piece.first), min(wish.next, piece.next), piece.bytes)
                if pieces.full:
                    return pieces.found, pieces.found[-1].next
        known = entries.nexts[-1] if entries.nexts else base
        if max(at, known) < min(following, wish.next):
            end = limit.end if base == limit.base else segments.stored_bytes(folder, base, disk)
            rest = max(0, end - (entries.ends[-1] if entries.ends else 0))
            pieces.add(max(at, known), min(following, wish.next), rest)
        at = min(following, wish.next)
        looked += len(entries.firsts)
        if pieces.full:
            return pieces.found, pieces.found[-1].next
        if wish.looks is not None and looked >= wish.looks:
            break
    else:
        if at < wish.next:
            pieces.add(at, wish.next, 0)
            at = wish.next
    pieces.close()
    return pieces.found, at


def _runs(entries: Entries, at: int, wish: Wish) -> Iterator[tuple[int, int]]:
    """Entries that are asked for, as stretches of them."""
    begin, end = bisect_right(entries.nexts, at), bisect_left(entries.firsts, wish.next)
    if wish.times_us is None:
        if begin < end:
            yield begin, end
        return
    low, high = wish.times_us[0], wish.times_us[1] + _SLACK_US
    for number in range(begin, end):
        unwanted = entries.max_us[number] < low or entries.min_us[number] > high
        if unwanted and entries.genuine(number):
            if begin < number:
                yield begin, number
            begin = number + 1
    if begin < end:
        yield begin, end


def _cut_run(entries: Entries, run: tuple[int, int], pieces: _Gathering) -> Iterator[Piece]:
    """A stretch of entries, cut where the piece that grows is large enough."""
    at, end = run
    while at < end:
        last = bisect_left(entries.ends, entries.positions[at] + pieces.room, at, end - 1)
        length = max(0, entries.ends[last] - entries.positions[at])
        yield Piece(entries.firsts[at], entries.nexts[last], length)
        at = last + 1
