"""Finding the true end of a log after a crash, and making what is derived again.

What is kept: every intact line, and damage in front of one (it was acknowledged once; readers skip it and say
so). What is cut from the end: half a line, zeros, garbage, room, an atomic batch that is not whole. None of these was
ever acknowledged. Garbage that held whole lines is set aside in ``quarantine/`` before it is cut.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

import google_crc32c

from heliograph.disk import Disk
from heliograph.log import index, lines, room, segments
from heliograph.log.head import Fields
from heliograph.log.index import Entry
from heliograph.log.indexing import IndexBuilder, Place, build_index, event_times, last_peak, verified_entries

extend = google_crc32c.extend


class Recovered(NamedTuple):
    """The head as it should be, and what was found."""

    fields: Fields
    cut_bytes: int
    missing: list[tuple[int, int]]  # damaged offsets inside the active segment


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
    if not segments.path_of(directory, base).exists():  # sealed and compressed, its successor never made
        return _after_sealed(place, disk, base, known[0], now_us, write=write)
    size = disk.stat(segments.path_of(directory, base)).st_size
    if trusted is not None and (trusted.base != base or trusted.written > size):
        trusted = None  # its writer died while rotating, or the file is not what it was
    entries = _entries_to_keep(directory, base, disk, trusted)
    peak_us, append_us = last_peak(directory, base, disk)
    builder = IndexBuilder(place, base, entries, peak_us, append_us)
    reader = segments.PlainSegment(directory, base, disk)
    try:
        tail = reader.read(builder.position, size - builder.position)
    finally:
        reader.close()
    start_position = builder.position
    home = place.home()
    sifted = _believe(tail, trusted, builder.position, home) if trusted else _sift(tail, builder.first, home)
    kept = sifted.kept
    if write and tail != kept:
        _set_aside(place, base, start_position, tail[len(kept) :] if sifted.whole else tail, disk)
        _replace_tail(directory, base, start_position, kept, disk, in_place=sifted.whole)
    created_us = trusted.created_us if trusted else _created_us(directory, base, disk)
    fields = _describe(builder, kept, known[0], created_us, trusted, peak_us)
    if sifted.next is not None:
        fields = fields._replace(next=sifted.next)
    if before is not None and trusted is None:
        fields = fields._replace(state=before.state)
    if write:
        if trusted is None:  # what was read may have come from the page cache: only now is it on disk
            sync(segments.path_of(directory, base), disk)
            disk.sync_directory(directory)  # the segment's name, too, if its writer died while rotating
        disk.replace_file(
            segments.path_of(directory, base, segments.INDEX),
            b"".join(index.encode(entry) for entry in builder.entries),
            sync_names=False,
        )
    return Recovered(fields, size - fields.written, sifted.missing)


def _entries_to_keep(directory: Path, base: int, disk: Disk, trusted: Fields | None) -> list[Entry]:
    if trusted is None:
        return verified_entries(directory, base, disk)
    try:
        data = disk.read_file(segments.path_of(directory, base, segments.INDEX))
    except FileNotFoundError:
        return verified_entries(directory, base, disk)
    return [entry for entry in index.chain(data, base) if entry.end <= trusted.written]


class _Sifted(NamedTuple):
    """What is kept of a tail."""

    kept: bytes
    missing: list[tuple[int, int]]
    whole: bool  # whether it is the tail's beginning, byte for byte
    next: int | None  # the offset after it, where that is known better than by counting


def _believe(tail: bytes, trusted: Fields, start: int, home: lines.Home) -> _Sifted:
    """Up to `written` the head is believed, and readers tell of damage. Behind it stands what a dead writer left."""
    known = trusted.written - start
    pieces: list[bytes] = []
    for piece in tail[known:].split(b"\n")[:-1]:
        if not lines.intact(piece):
            break
        pieces.append(piece)
    _drop_half_batch(pieces, trusted.next, home)
    kept = tail[:known] + b"".join([piece + b"\n" for piece in pieces])
    return _Sifted(kept, [], True, trusted.next + len(pieces))


def _sift(tail: bytes, first: int, home: lines.Home) -> _Sifted:
    """Nothing is believed but checksums."""
    pieces = tail.split(b"\n")
    pieces.pop()  # after the last newline: nothing, or half a line
    while pieces and not lines.intact(pieces[-1]):  # blank ones, too: only sealed segments have them
        pieces.pop()
    _drop_half_batch(pieces, first, home)
    blotted = _blot_half_batches(pieces, first, home)
    kept = b"".join([piece + b"\n" for piece in pieces])
    found = lines.sort_out(kept, first, home)
    if not found.whole:
        kept = _normalised(found, first, lines.LOST)
    return _Sifted(kept, [(low, high) for low, high, _ in found.missing], found.whole and not blotted, None)


def _batch_of(piece: bytes, home: lines.Home) -> tuple[int, int] | None:
    """The atomic batch of a line. A mark that came from elsewhere is about the log it was made in."""
    batch = lines.batch_of(piece)
    return batch if batch is not None and home.native(piece) is not None else None


def _members(pieces: list[bytes], home: lines.Home) -> dict[tuple[int, int], list[int]]:
    """Which of some lines belong to which atomic batch, by their numbers."""
    found: dict[tuple[int, int], list[int]] = {}
    for number, piece in enumerate(pieces):
        if (batch := _batch_of(piece, home)) is not None and lines.intact(piece):
            found.setdefault(batch, []).append(number)
    return found


def _wanted(batch: tuple[int, int], first: int) -> int:
    """How many lines of a batch have to be there: an index made from the lines may end inside it."""
    begin, count = batch
    return count - max(0, min(count, first - begin))


def _drop_half_batch(pieces: list[bytes], first: int, home: lines.Home) -> None:
    """Take away the atomic batch at the end unless all of it is there. It was never acknowledged."""
    while pieces and (batch := _batch_of(pieces[-1], home)) is not None:
        if len(_members(pieces, home)[batch]) >= _wanted(batch, first):
            return
        while pieces and (_batch_of(pieces[-1], home) == batch or not lines.intact(pieces[-1])):
            pieces.pop()


def _blot_half_batches(pieces: list[bytes], first: int, home: lines.Home) -> bool:
    """The same in front of the end: their places stay, and readers are told of them."""
    half = [members for batch, members in _members(pieces, home).items() if len(members) < _wanted(batch, first)]
    for number in [number for members in half for number in members]:
        pieces[number] = lines.LOST
    return bool(half)


def _normalised(found: lines.Sorted, first: int, instead: bytes = b"") -> bytes:
    """The intact lines with a blank (or another) line for each that is missing: line numbers are offsets again."""
    parts: list[bytes] = []
    offset = first
    for at, line in found.lines:
        parts.append((instead + b"\n") * (at - offset))
        parts.append(line + b"\n")
        offset = at + 1
    parts.append((instead + b"\n") * (found.next - offset))
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


def sync(path: Path, disk: Disk) -> None:
    """Make what is written to a file durable, whoever wrote it."""
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
    crc, following = builder.checked(left)
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
    segment = segments.open_segment(place.directory, base, disk)
    try:
        entries = verified_entries(place.directory, base, disk)
        if not entries or entries[-1].end != segment.size():
            entries = build_index(segment, place, disk)
    finally:
        segment.close()
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


def agrees(place: Place, disk: Disk, fields: Fields, known: tuple[int, int] | None) -> bool:
    """Whether a head says of the active segment's end what its bytes say. Looks at one index entry's worth of them.

    ``known``: the first offsets of the first segment and of the last.
    """
    directory = place.directory
    if known is None or known[1] != fields.base or not known[0] <= fields.first <= fields.next:
        return False
    if not fields.synced <= fields.written or not fields.synced_next <= fields.next:
        return False
    try:
        reader = segments.PlainSegment(directory, fields.base, disk)
    except FileNotFoundError:
        return False
    try:
        last = _entry(directory, fields.base, fields.index_count - 1, disk)
        end, following, crc = (last.end, last.next, last.crc) if last else (0, fields.base, 0)
        if (end, following) != (fields.open_position, fields.open_first) or not _ends_there(reader, fields.written):
            return False
        tail = reader.read(end, fields.written - end)
        low, high = event_times(tail) if tail else (0, 0)
        if high and not (fields.open_min_us <= low and high <= min(fields.open_max_us, fields.peak_us)):
            return False  # who died while it kept the lock had not said its times yet
        return extend(crc, tail) == fields.crc and following + tail.count(b"\n") == fields.next
    finally:
        reader.close()


def _ends_there(reader: segments.PlainSegment, written: int) -> bool:
    """Whether nothing but room comes behind what is written."""
    behind = reader.size() - written
    return behind == 0 or (behind > 0 and room.nothing_else(reader.read(written, behind)))


def _entry(directory: Path, base: int, number: int, disk: Disk) -> Entry | None:
    if number < 0:
        return None
    try:
        file = index.IndexFile(segments.path_of(directory, base, segments.INDEX), base, disk)
    except FileNotFoundError:
        return None
    try:
        return file.entry(number)
    finally:
        file.close()
