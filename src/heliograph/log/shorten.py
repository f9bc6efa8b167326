"""Sealed segments read under the eye of their index, and written anew without some of their lines.

What goes leaves an empty line. A compressed segment is compressed again. See swap.py for how the new file and its
index come into their place.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from heliograph.disk import Disk
from heliograph.limits import INDEX_STRIDE_BYTES
from heliograph.log import compress, index, indexing, segments, swap
from heliograph.log.index import Entry
from heliograph.log.indexing import Place, extend
from heliograph.log.retention import Sealed

Doomed = Callable[[Entry, bytes], set[int]]
"""Given an index entry and its lines: the offsets that go."""


class Unsound(Exception):
    """The segment's bytes are not those that its index vouches for."""


class SealedSegment:
    """One sealed segment and the index entries that vouch for it."""

    def __init__(self, place: Place, sealed: Sealed, disk: Disk) -> None:
        directory, self.base = place.directory, sealed.base
        plain, stored = (segments.path_of(directory, self.base, suffix) for suffix in segments.FORMS)
        self.compressed = stored.exists()
        if self.compressed and plain.exists():  # a crash came between compressing and removing
            if not compress.same_lines(directory, self.base, disk):
                raise Unsound
            disk.unlink(plain)
            disk.sync_directory(directory)
        self._reader = segments.open_segment(directory, self.base, disk)
        self.size = self._reader.size()
        with contextlib.suppress(FileNotFoundError):
            path = segments.path_of(directory, self.base, segments.INDEX)
            self.entries = index.chain(disk.read_file(path), self.base)
            if self.entries and self._sound(sealed):
                return
        self.entries = indexing.build_index(self._reader, place, disk)
        if not self._sound(sealed):
            self.close()
            raise Unsound

    def _sound(self, sealed: Sealed) -> bool:
        last = self.entries[-1] if self.entries else None
        return last is not None and (last.end, last.next) == (self.size, sealed.next)

    @property
    def blank(self) -> bool:
        """Whether every line is empty."""
        return self.size == sum([entry.lines for entry in self.entries])

    def stretches(self) -> Iterator[tuple[Entry, bytes]]:
        """Each index entry with its bytes, which are what it says."""
        crc = 0
        for entry in self.entries:
            data = self._reader.read(entry.position, entry.length)
            crc = extend(crc, data)
            if crc != entry.crc or len(data) != entry.length or data.count(b"\n") != entry.lines:
                raise Unsound
            yield entry, data

    def close(self) -> None:
        self._reader.close()


def shorten(segment: SealedSegment, doomed: Doomed, directory: Path, disk: Disk) -> int:
    """Write a segment anew without the lines that are doomed; how many bytes its file is smaller."""
    base = segment.base
    suffix = segments.COMPRESSED if segment.compressed else segments.PLAIN
    before = segments.stored_bytes(directory, base, disk)
    plain = f"{segments.path_of(directory, base)}.tmp-{os.getpid()}"
    ready = f"{segments.path_of(directory, base, suffix)}.tmp-{os.getpid()}"
    frames: compress.Frames = []
    try:
        entries = _write_lines(segment, doomed, plain, disk)
        if segment.compressed:
            with contextlib.closing(segments.PlainSegment(directory, base, disk, Path(plain))) as reader:
                frames = compress.write_frames(reader, entries, ready, disk)
            disk.unlink(plain)
        swap.replace(directory, base, suffix, ready, entries, compress.encode_frames(frames), disk)
    except Exception:
        for half in {plain, ready}:
            with contextlib.suppress(OSError):
                disk.unlink(half)
        raise
    return before - segments.stored_bytes(directory, base, disk)


def _write_lines(segment: SealedSegment, doomed: Doomed, path: str, disk: Disk) -> list[Entry]:
    entries = _Entries()
    fd = disk.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        for entry, data in segment.stretches():
            left = _without(data, entry.first, doomed(entry, data))
            disk.write_all(fd, left)
            entries.add(entry, left)
        disk.fdatasync(fd)
    finally:
        disk.close(fd)
    return entries.done()


def _without(data: bytes, first: int, doomed: set[int]) -> bytes:
    """The lines with an empty one for each that goes, and for each that was blank."""
    lines = enumerate(data.split(b"\n"), first)
    return b"\n".join([b"" if offset in doomed or not line.strip(b" ") else line for offset, line in lines])


class _Entries:
    """Index entries of a shortened segment: neighbours are put together until they have the usual size."""

    def __init__(self) -> None:
        self._done: list[Entry] = []
        self._open: Entry | None = None
        self._crc = 0

    def add(self, old: Entry, data: bytes) -> None:
        """What is left of the lines of an old entry. Its times stay: they bound those that are left."""
        self._crc = extend(self._crc, data)
        into = self._open
        if into is None:
            position = self._done[-1].end if self._done else 0
            self._open = old._replace(position=position, length=len(data), crc=self._crc)
        else:
            times = [us for us in (into.min_us, old.min_us) if us]
            self._open = into._replace(
                append_us=old.append_us, min_us=min(times, default=0), max_us=max(into.max_us, old.max_us),
                peak_us=old.peak_us, lines=into.lines + old.lines, length=into.length + len(data), crc=self._crc,
            )  # fmt: skip
        assert self._open is not None
        if self._open.length >= INDEX_STRIDE_BYTES:
            self._done.append(self._open)
            self._open = None

    def done(self) -> list[Entry]:
        if self._open is not None:
            self._done.append(self._open)
            self._open = None
        return self._done
