"""Segment files: their names, their order, and reading them whether compressed or not.

00000000000000000000.jsonl          lines; the name is the offset of the first
00000000000000000000.index          see index.py
00000000000000000000.jsonl.zst      the same lines as independent zstd frames (a sealed segment)
00000000000000000000.frames         derived: where each frame begins, see compress.py
00000000000000000000.lost           lines that a repair made blank, see lost.py
00000000000000000000.index.next     only while the segment is being replaced by a shorter one, see swap.py
"""

from __future__ import annotations

import contextlib
import os
from bisect import bisect_right
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from heliograph.clock import SYSTEM_CLOCK
from heliograph.disk import Disk
from heliograph.limits import LISTING_MIN, LISTING_SETTLED_FINE_S, LISTING_SETTLED_S, LISTINGS_MAX, ROOM_LOOK_BYTES
from heliograph.log.room import FILL

PLAIN: Final = ".jsonl"
COMPRESSED: Final = ".jsonl.zst"
INDEX: Final = ".index"
NEXT_INDEX: Final = ".index.next"
FRAMES: Final = ".frames"
LOST: Final = ".lost"
FORMS: Final = (PLAIN, COMPRESSED)
"""What a segment's file may be; one of them, but for a moment."""
_SUFFIXES: Final = frozenset(FORMS)


def path_of(directory: Path, base: int, suffix: str = PLAIN) -> Path:
    return directory / f"{base:020d}{suffix}"


def bases(directory: Path, disk: Disk) -> list[int]:
    """First offsets of all segments, ascending."""
    return sorted({int(name[:20]) for name in disk.listdir(directory) if _is_segment(name)})


def _is_segment(name: str) -> bool:
    return name[20:] in _SUFFIXES and name[:20].isdecimal()


def first_and_last(names: Iterable[str]) -> tuple[int, int] | None:
    """The bases of the first and of the last segment among a partition's files; few of them have to be looked at.

    >>> first_and_last(["head", f"{7:020d}.index", f"{7:020d}.jsonl", f"{40:020d}.jsonl", f"{41:020d}.index"])
    (7, 40)
    """
    ordered = sorted(names)
    first = next(filter(_is_segment, ordered), None)
    last = next(filter(_is_segment, reversed(ordered)), None)
    return None if first is None or last is None else (int(first[:20]), int(last[:20]))


class _Listing(NamedTuple):
    mark: tuple[int, int]  # which directory, and when it last changed (ns)
    bases: list[int]


_listings: dict[Path, _Listing] = {}


def bases_known(directory: Path, disk: Disk) -> list[int]:
    """As `bases`, for those who only read: a long directory that did not change is not listed again.

    The time of change tells, unless it is so new that something may still change at the same time.
    """
    found = disk.stat(directory)
    mark = (found.st_ino, found.st_ctime_ns)
    listing = _listings.get(directory)
    if listing is not None and listing.mark == mark:
        return listing.bases
    listed = bases(directory, disk)
    if len(listed) >= LISTING_MIN and _settled(found.st_ctime_ns, SYSTEM_CLOCK.time_ns()):
        if len(_listings) >= LISTINGS_MAX:
            _listings.clear()
        _listings[directory] = _Listing(mark, listed)
    return listed


def _settled(changed_ns: int, now_ns: int) -> bool:
    """Whether what changes from now on has another time of change."""
    coarse = changed_ns % 1_000_000 == 0
    return now_ns - changed_ns > (LISTING_SETTLED_S if coarse else LISTING_SETTLED_FINE_S) * 1e9


def holding(directory: Path, offset: int, disk: Disk) -> int:
    """First offset of the segment that an offset belongs to; -1 if there is none before it."""
    known = bases_known(directory, disk)
    at = bisect_right(known, offset)
    return known[at - 1] if at else -1


class SegmentReader(Protocol):
    """Reads lines of one segment by their uncompressed byte positions."""

    base: int
    path: Path
    inode: int

    def size(self) -> int: ...
    def read(self, position: int, length: int) -> bytes: ...
    def close(self) -> None: ...


class PlainSegment:
    """A segment as it was written; ``path`` if it does not stand in its place yet."""

    __slots__ = ("_disk", "_fd", "base", "inode", "path")

    def __init__(self, directory: Path, base: int, disk: Disk, path: Path | None = None) -> None:
        self.base = base
        self.path = path or path_of(directory, base)
        self._disk = disk
        self._fd = disk.open(self.path, os.O_RDONLY)
        self.inode = disk.fstat(self._fd).st_ino

    def size(self) -> int:
        return self._disk.fstat(self._fd).st_size

    def read(self, position: int, length: int) -> bytes:
        return self._disk.read_range(self._fd, length, position)

    def close(self) -> None:
        if self._fd >= 0:
            self._disk.close(self._fd)
            self._fd = -1


def open_segment(directory: Path, base: int, disk: Disk) -> SegmentReader:
    """Open a segment for reading; a compressed one wins where both exist, if it is whole."""
    if not os.path.exists(path_of(directory, base, COMPRESSED)):
        return PlainSegment(directory, base, disk)
    from heliograph.log.compress import CompressedSegment  # zstd is loaded only where it is used

    compressed = CompressedSegment(directory, base, disk)
    with contextlib.suppress(FileNotFoundError):
        if disk.stat(path_of(directory, base)).st_size != compressed.size() or not compressed.whole():
            compressed.close()
            return PlainSegment(directory, base, disk)
    return compressed


def in_place(segment: SegmentReader, disk: Disk) -> bool:
    """Whether the file that is read is still the one of its name: it may be compressed, replaced or deleted."""
    try:
        return disk.stat(segment.path).st_ino == segment.inode
    except FileNotFoundError:
        return False


def stored_bytes(directory: Path, base: int, disk: Disk) -> int:
    """What a segment takes on disk."""
    for suffix in (COMPRESSED, PLAIN):
        with contextlib.suppress(FileNotFoundError):
            return disk.stat(path_of(directory, base, suffix)).st_size
    return 0


def stored_in(directory: Path, disk: Disk) -> int:
    """What all segments of a partition take on disk, without the room behind the last line."""
    known = bases(directory, disk)
    total = sum([stored_bytes(directory, base, disk) for base in known])
    return total - (room_behind(directory, known[-1], disk) if known else 0)


def room_behind(directory: Path, base: int, disk: Disk) -> int:
    """How much room is laid behind the last line of a segment."""
    try:
        fd = disk.open(path_of(directory, base), os.O_RDONLY)
    except FileNotFoundError:  # compressed
        return 0
    try:
        size = end = disk.fstat(fd).st_size
        while end:
            start = max(0, end - ROOM_LOOK_BYTES)
            left = len(disk.read_range(fd, end - start, start).rstrip(FILL))
            end = start + left
            if left:
                break
        return size - end
    finally:
        disk.close(fd)


def remove(directory: Path, base: int, disk: Disk) -> int:
    """Delete a segment: what holds messages first, so that a crash leaves no message without its place."""
    freed = stored_bytes(directory, base, disk)
    for suffix in (PLAIN, COMPRESSED, INDEX, NEXT_INDEX, FRAMES, LOST):
        with contextlib.suppress(FileNotFoundError):
            disk.unlink(path_of(directory, base, suffix))
    return freed
