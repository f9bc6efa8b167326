"""Finding the true end of a log after a crash, and making what is derived again.

What is kept: every intact line, and damage in front of one (it was acknowledged once; readers skip it and say
so). What is cut from the end: half a line, zeros, garbage, an atomic batch that is not whole. None of these was
ever acknowledged. Garbage that held whole lines is set aside in ``quarantine/`` before it is cut.
"""

from __future__ import annotations

import contextlib
import os
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

import google_crc32c
import msgspec

from heliograph.clock import to_us
from heliograph.disk import Disk
from heliograph.limits import COPY_BYTES, INDEX_STRIDE_BYTES
from heliograph.log import index, lines, segments
from heliograph.log.head import Fields
from heliograph.log.index import Entry

extend = google_crc32c.extend


class _Times(msgspec.Struct):
    time: datetime | None = None


_times_of_lines = msgspec.json.Decoder(_Times)


class Place(NamedTuple):
    """What recovery needs to know about the partition it works on."""

    directory: Path
    station: str
    number: int
    quarantine: Path


class Recovered(NamedTuple):
    """The head as it should be, and what was found."""

    fields: Fields
    cut_bytes: int
    missing: list[tuple[int, int]]  # damaged offsets inside the active segment


def event_times(data: bytes) -> tuple[int, int]:
    """Smallest and largest event time of some lines in µs; (0, 0) if none can be read."""
    moments: list[int] = []
    try:
        moments = [to_us(one.time) for one in _times_of_lines.decode_lines(data) if one.time]
    except (msgspec.MsgspecError, UnicodeDecodeError):
        for line in data.split(b"\n"):
            with contextlib.suppress(msgspec.MsgspecError, UnicodeDecodeError):
                if (time := _times_of_lines.decode(line).time) is not None:
                    moments.append(to_us(time))
    return (min(moments), max(moments)) if moments else (0, 0)


class IndexBuilder:
    """Cuts lines into index entries; used wherever an index is made from the lines alone."""

    def __init__(self, base: int, entries: list[Entry], peak_us: int, append_us: int) -> None:
        self.entries = entries
        last = entries[-1] if entries else None
        self.first = last.next if last else base
        self.position = last.end if last else 0
        self.crc = last.crc if last else 0
        self.peak_us = max(peak_us, last.peak_us if last else 0)
        self.append_us = max(append_us, last.append_us if last else 0)

    def add(self, data: bytes, count: int) -> None:
        """One entry for whole lines that follow what was added before."""
        low, high = event_times(data)
        self.crc = extend(self.crc, data)
        self.peak_us = max(self.peak_us, high)
        self.append_us = max(self.append_us, high)
        self.entries.append(
            Entry(self.first, self.position, self.append_us, low, high, self.peak_us, count, len(data), self.crc)
        )
        self.first += count
        self.position += len(data)

    def add_all(self, data: bytes) -> bytes:
        """Entries of the usual size; returns what is left over for the next one."""
        start = 0
        while len(data) - start >= INDEX_STRIDE_BYTES:
            stop = data.find(b"\n", start + INDEX_STRIDE_BYTES - 1) + 1
            if not stop:
                break
            piece = data[start:stop]
            self.add(piece, piece.count(b"\n"))
            start = stop
        return data[start:]


def last_peak(directory: Path, before: int, disk: Disk) -> tuple[int, int]:
    """Largest event time and last append time in the segments before ``before``, from the newest index."""
    for base in reversed([base for base in segments.bases(directory, disk) if base < before]):
        with contextlib.suppress(FileNotFoundError):
            entries = index.chain(disk.read_file(segments.path_of(directory, base, segments.INDEX)), base)
            if entries:
                return entries[-1].peak_us, entries[-1].append_us
    return 0, 0


def verified_entries(directory: Path, base: int, disk: Disk) -> list[Entry]:
    """The entries of an index that agree with the segment's bytes, from its start."""
    try:
        entries = index.chain(disk.read_file(segments.path_of(directory, base, segments.INDEX)), base)
    except FileNotFoundError:
        return []
    reader = segments.open_segment(directory, base, disk)
    try:
        crc, good, size = 0, 0, reader.size()
        while good < len(entries):
            stop = good + 1  # take entries together: one read and one pass per mebibyte
            while stop < len(entries) and entries[stop].end - entries[good].position <= COPY_BYTES:
                stop += 1
            low, high = entries[good].position, entries[stop - 1].end
            if high > size or (crc := extend(crc, reader.read(low, high - low))) != entries[stop - 1].crc:
                return entries[:good] + _one_by_one(entries[good:stop], reader, entries[good - 1].crc if good else 0)
            good = stop
        return entries
    finally:
        reader.close()


def _one_by_one(entries: list[Entry], reader: segments.SegmentReader, crc: int) -> list[Entry]:
    good: list[Entry] = []
    for entry in entries:
        crc = extend(crc, reader.read(entry.position, entry.length))
        if crc != entry.crc:
            break
        good.append(entry)
    return good


def recover(place: Place, disk: Disk, trusted: Fields | None, now_us: int, *, write: bool = True) -> Recovered:
    """Find the end of a partition's log and describe it as head fields.

    With a trusted head only what lies behind ``written`` is looked at; without, the whole active segment.
    ``write=False`` leaves the directory without a trace.
    """
    directory = place.directory
    known = segments.bases(directory, disk)
    if not known:
        if write:
            disk.close(disk.open(segments.path_of(directory, 0), os.O_CREAT | os.O_WRONLY))
            disk.sync_directory(directory)
        return Recovered(Fields(created_us=now_us), 0, [])
    base = known[-1]
    before = trusted
    if trusted is not None and trusted.base != base:  # its writer died while rotating
        trusted = None
    if not segments.path_of(directory, base).exists():  # sealed and compressed, its successor never made
        return _after_sealed(place, disk, base, known[0], now_us, write=write)
    entries = _entries_to_keep(directory, base, disk, trusted)
    peak_us, append_us = last_peak(directory, base, disk)
    builder = IndexBuilder(base, entries, peak_us, append_us)
    reader = segments.PlainSegment(directory, base, disk)
    try:
        size = reader.size()
        tail = reader.read(builder.position, size - builder.position)
    finally:
        reader.close()
    kept, sorted_out = _keep_intact(tail, builder.first, place)
    missing = [(first, after) for first, after, _ in sorted_out.missing]
    start_position = builder.position
    if not sorted_out.whole:
        kept = _normalised(sorted_out, builder.first)
    cut = tail[len(kept) :] if sorted_out.whole else tail
    if write and tail != kept:
        _set_aside(place, base, start_position, cut, disk)
        _replace_tail(directory, base, start_position, kept, disk, in_place=sorted_out.whole)
    created_us = trusted.created_us if trusted else _created_us(directory, base, disk)
    fields = _describe(builder, kept, known[0], created_us, trusted, peak_us)
    if before is not None and trusted is None:
        fields = fields._replace(state=before.state)
    if write:
        if trusted is None:  # what was read may have come from the page cache: only now is it on disk
            _sync(segments.path_of(directory, base), disk)
            disk.sync_directory(directory)  # the segment's name, too, if its writer died while rotating
        disk.replace_file(
            segments.path_of(directory, base, segments.INDEX),
            b"".join(index.encode(entry) for entry in builder.entries),
            sync_names=False,
        )
    return Recovered(fields, size - fields.written, missing)


def _entries_to_keep(directory: Path, base: int, disk: Disk, trusted: Fields | None) -> list[Entry]:
    if trusted is None:
        return verified_entries(directory, base, disk)
    try:
        data = disk.read_file(segments.path_of(directory, base, segments.INDEX))
    except FileNotFoundError:
        return verified_entries(directory, base, disk)
    return [entry for entry in index.chain(data, base) if entry.end <= trusted.written]


def _keep_intact(tail: bytes, first: int, place: Place) -> tuple[bytes, lines.Sorted]:
    """The part of a tail that ends with an intact line and a whole batch."""
    pieces = tail.split(b"\n")
    pieces.pop()  # after the last newline: nothing, or half a line
    while pieces:
        while pieces and pieces[-1].strip(b" ") and not lines.intact(pieces[-1]):
            pieces.pop()
        kept = b"".join([piece + b"\n" for piece in pieces])
        found = lines.sort_out(kept, first, place.station, place.number)
        batch = lines.batch_of(pieces[-1]) if pieces and pieces[-1].strip(b" ") else None
        if batch is None or not found.lines or found.lines[-1][0] >= batch[0] + batch[1] - 1:
            return kept, found
        surplus = found.lines[-1][0] - batch[0] + 1
        del pieces[-min(surplus, len(pieces)) :]
    return b"", lines.Sorted([], [], first, True)


def _normalised(found: lines.Sorted, first: int) -> bytes:
    """The intact lines with an empty line for each that is missing, so that line numbers are offsets again."""
    parts: list[bytes] = []
    offset = first
    for at, line in found.lines:
        parts.append(b"\n" * (at - offset))
        parts.append(line + b"\n")
        offset = at + 1
    parts.append(b"\n" * (found.next - offset))
    return b"".join(parts)


def _set_aside(place: Place, base: int, position: int, cut: bytes, disk: Disk) -> None:
    if b"\n" not in cut:
        return  # half a line: it was never acknowledged and says nothing
    place.quarantine.mkdir(parents=True, exist_ok=True)
    disk.replace_file(place.quarantine / f"{base:020d}-{position}.bad", cut)


def _replace_tail(directory: Path, base: int, position: int, kept: bytes, disk: Disk, *, in_place: bool) -> None:
    path = segments.path_of(directory, base)
    if in_place:
        fd = disk.open(path, os.O_WRONLY)
        try:
            disk.ftruncate(fd, position + len(kept))
            disk.fdatasync(fd)
        finally:
            disk.close(fd)
        return
    fd = disk.open(path, os.O_RDONLY)
    try:
        before = disk.read_range(fd, position, 0)
    finally:
        disk.close(fd)
    disk.replace_file(path, before + kept)


def _sync(path: Path, disk: Disk) -> None:
    fd = disk.open(path, os.O_RDWR)
    try:
        disk.fdatasync(fd)
    finally:
        disk.close(fd)


def _created_us(directory: Path, base: int, disk: Disk) -> int:
    return disk.stat(segments.path_of(directory, base)).st_mtime_ns // 1000


def _describe(
    builder: IndexBuilder, kept: bytes, first: int, created_us: int, trusted: Fields | None, peak_us: int
) -> Fields:
    left = builder.add_all(kept)
    low, high = event_times(left) if left else (0, 0)
    base = builder.entries[0].first if builder.entries else builder.first
    written = builder.position + len(left)
    following = builder.first + left.count(b"\n")
    crc = extend(builder.crc, left)
    return Fields(
        base=base,
        next=following,
        written=written,
        synced=min(trusted.synced, written) if trusted else written,
        synced_next=min(trusted.synced_next, following) if trusted else following,
        first=first,
        index_count=len(builder.entries),
        open_first=builder.first,
        open_position=builder.position,
        open_min_us=low,
        open_max_us=high,
        peak_us=max(builder.peak_us, high, peak_us, trusted.peak_us if trusted else 0),
        append_us=max(builder.append_us, high, trusted.append_us if trusted else 0),
        created_us=created_us,
        state=trusted.state if trusted else 0,
        crc=crc,
        synced_crc=trusted.synced_crc if trusted and trusted.synced <= written else crc,
    )


def _after_sealed(place: Place, disk: Disk, base: int, first: int, now_us: int, *, write: bool) -> Recovered:
    """Begin a new segment behind a sealed, compressed one."""
    entries = verified_entries(place.directory, base, disk)
    following = entries[-1].next if entries else base
    if write:
        disk.close(disk.open(segments.path_of(place.directory, following), os.O_CREAT | os.O_WRONLY))
        disk.sync_directory(place.directory)
    peak_us, append_us = last_peak(place.directory, following, disk)
    fields = Fields(
        base=following, next=following, synced_next=following, first=first, open_first=following,
        peak_us=peak_us, append_us=append_us, created_us=now_us,
    )  # fmt: skip
    return Recovered(fields, 0, [])
