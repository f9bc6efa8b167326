"""The index of a segment: a hint that makes seeking and checking fast.

One entry of 64 bytes covers the lines appended since the entry before it, some 16 KiB of them::

    Q first      offset of its first line            Q position   where that line begins in the segment
    Q append_us  when its last line was appended     Q min_us     smallest event time in it
    Q max_us     largest event time in it            Q peak_us    largest event time in the log up to its end
    I lines      lines                               I length     bytes
    I crc        crc32c of the segment from byte 0 to the end of this entry
    I self       crc32c of the 60 bytes before

Entries form a chain: each begins where the one before it ends. `crc` names exactly what is covered, so any
range between two entries is checked with a single pass of the CPU's crc32 instruction. Nothing is true only
because an entry says so: on any mismatch the lines' own checksums decide and the index is made again.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

import google_crc32c

from heliograph.disk import Disk

ENTRY: Final = struct.Struct("<6Q4I")
_SEALED: Final = struct.Struct("<6Q3I")
SIZE: Final = ENTRY.size


class Entry(NamedTuple):
    """One index entry, as drawn above."""

    first: int
    position: int
    append_us: int
    min_us: int
    max_us: int
    peak_us: int
    lines: int
    length: int
    crc: int

    @property
    def end(self) -> int:
        return self.position + self.length

    @property
    def next(self) -> int:
        return self.first + self.lines


def encode(entry: Entry) -> bytes:
    packed = _SEALED.pack(*entry)
    own: int = google_crc32c.value(packed)
    return packed + own.to_bytes(4, "little")


def decode(data: bytes, at: int = 0) -> Entry | None:
    """The entry at a byte position, or None if its own checksum is wrong."""
    if len(data) < at + SIZE:
        return None
    *fields, own = ENTRY.unpack_from(data, at)
    if google_crc32c.value(data[at : at + SIZE - 4]) != own:
        return None
    return Entry._make(fields)


def chain(data: bytes, base: int) -> list[Entry]:
    """The intact entries from the start of an index file; stops at the first break of the chain."""
    entries: list[Entry] = []
    first, position = base, 0
    for at in range(0, len(data) - SIZE + 1, SIZE):
        entry = decode(data, at)
        if entry is None or entry.first != first or entry.position != position or not entry.lines:
            break
        entries.append(entry)
        first, position = entry.next, entry.end
    return entries


class IndexFile:
    """Random access to an index by binary search, without loading it: history costs no memory."""

    __slots__ = ("_disk", "_fd", "base", "count")

    def __init__(self, path: Path, base: int, disk: Disk) -> None:
        self._disk = disk
        self.base = base
        self._fd = disk.open(path, os.O_RDONLY)
        self.count = disk.fstat(self._fd).st_size // SIZE

    def refresh(self) -> None:
        """Look how long the file is now."""
        self.count = self._disk.fstat(self._fd).st_size // SIZE

    def _read(self, length: int, position: int) -> bytes:
        return self._disk.pread(self._fd, length, position)

    def entry(self, number: int) -> Entry | None:
        return decode(self._read(SIZE, number * SIZE))

    def entries(self, number: int, count: int) -> list[Entry]:
        """Up to ``count`` entries from a number on; stops at one that cannot be read."""
        data = self._read(count * SIZE, number * SIZE)
        found: list[Entry] = []
        for at in range(0, len(data) - SIZE + 1, SIZE):
            entry = decode(data, at)
            if entry is None:
                break
            found.append(entry)
        return found

    def last_where(self, fits: Callable[[Entry], bool]) -> int:
        """Number of the last entry for which a monotone condition holds, -1 if for none.

        An unreadable entry ends the search early: the caller scans from an earlier place, nothing is missed.
        """
        low, high = 0, self.count
        while low < high:
            middle = (low + high) // 2
            entry = self.entry(middle)
            if entry is not None and fits(entry):
                low = middle + 1
            else:
                high = middle
        return low - 1

    def close(self) -> None:
        self._disk.close(self._fd)


class MemoryIndex(IndexFile):
    """An index that could not be written: of a directory that is read only, or full."""

    __slots__ = ("_data",)

    def __init__(self, data: bytes, base: int) -> None:
        self._data = data
        self.base = base
        self.count = len(data) // SIZE

    def refresh(self) -> None:
        """It does not grow."""

    def _read(self, length: int, position: int) -> bytes:
        return self._data[position : position + length]

    def close(self) -> None:
        """Nothing is open."""
