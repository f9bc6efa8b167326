"""Repairing a log: what is derived is made again, what is damaged is set aside, and a fence is lifted.

A damaged line becomes a blank one, so that line numbers stay offsets; where possible the segment keeps its
length and with it every position in its index. A rewritten segment is written aside, synced and renamed.
Everything here happens under the partition's mutex and append lock, with upkeep kept away by the caller.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from heliograph.disk import Disk
from heliograph.log import compress, index, indexing, inspection, lines, lost, recovery, redact, room, segments
from heliograph.log.head import FENCED, ROOM, Fields, TornHead
from heliograph.log.held import Evicted
from heliograph.log.indexing import Place
from heliograph.log.inspection import Segment, Stretch
from heliograph.log.partition import Partition


class Unfenced(NamedTuple):
    """What lifting a fence did."""

    next: int  # where the log goes on
    lost: int  # lines behind `synced` that may or may not have been on disk
    set_aside: str | None


# -- damaged and derived files of one segment ------------------------------------------------------------------


def set_aside(place: Place, name: str, data: bytes, disk: Disk) -> Path:
    """Keep bytes that are taken out of the log; never over others of the same name."""
    place.quarantine.mkdir(parents=True, exist_ok=True)
    number, path = 1, place.quarantine / f"{name}.bad"
    while path.exists():
        if disk.read_file(path) == data:
            return path
        number += 1
        path = place.quarantine / f"{name}-{number}.bad"
    disk.replace_file(path, data)
    return path


def set_lists_aside(place: Place, disk: Disk) -> list[Path]:
    """Take away lists of lost lines that cannot be read: what they said is not known any more."""
    saved = []
    for path in lost.damaged(place.directory, disk):
        saved.append(set_aside(place, path.name, disk.read_file(path), disk))
        disk.unlink(path)
    disk.sync_directory(place.directory)
    return saved


def normalised(stretch: Stretch, limit: int) -> bytes:
    """The stretch with a blank line for each that is missing, as long as it was if that can be done."""
    if stretch.found is None and stretch.next <= limit:
        return stretch.data
    found = stretch.found or lines.sort_out(stretch.data, stretch.first, lines.Home("", -1))
    kept = [(offset, line) for offset, line in found.lines if offset < limit]
    data = recovery._normalised(found._replace(lines=kept, next=min(found.next, limit)), stretch.first)
    blank = 0 if data.startswith(b"\n") else data.find(b"\n\n") + 1
    room = len(stretch.data) - len(data)
    if room > 0 and data[blank : blank + 1] == b"\n":
        data = data[:blank] + b" " * room + data[blank:]
    return data


def rewrite(place: Place, state: Segment, disk: Disk) -> list[Path]:
    """Write a damaged sealed segment anew; returns what was set aside."""
    entries, _ = inspection.load_entries(place, state.base, disk)
    reader = inspection.open_reader(place, state.base, disk, entries)
    plain = segments.path_of(place.directory, state.base)
    temporary = f"{plain}.tmp-{os.getpid()}"
    aside: list[Path] = []
    gone: list[lost.Range] = []
    fd = disk.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        following = state.base
        spans = entries if state.index_numbers else None
        for stretch in inspection.stretches(reader, reader.size(), place, spans, state.following):
            aside += _save_damage(place, state, stretch, disk)
            gone += _gone(stretch, state.following)
            disk.write_all(fd, normalised(stretch, state.following))
            following = min(stretch.next, state.following)
        disk.write_all(fd, b"\n" * (state.following - following))
        disk.fdatasync(fd)
        lost.note(place.directory, state.base, [*gone, (following, state.following)], disk)
    except BaseException:
        with contextlib.suppress(OSError):
            disk.unlink(temporary)
        raise
    finally:
        disk.close(fd)
        reader.close()
    disk.rename(temporary, plain)
    disk.sync_directory(place.directory)
    return aside


def _gone(stretch: Stretch, limit: int) -> list[lost.Range]:
    """Which lines of a stretch are missing."""
    missing = stretch.found.missing if stretch.found is not None else ()
    return [(first, min(after, limit)) for first, after, _ in missing]


def _save_damage(place: Place, state: Segment, stretch: Stretch, disk: Disk) -> list[Path]:
    found = stretch.found
    saved = []
    for first, after, data in found.missing if found is not None else ():
        if data:
            saved.append(set_aside(place, f"{state.base:020d}-{first}-{after}", data, disk))
    if stretch.next > state.following:  # lines that the next segment has, too
        saved.append(set_aside(place, f"{state.base:020d}-from-{state.following}", stretch.data, disk))
    return saved


def repair_segment(place: Place, state: Segment, disk: Disk) -> list[Path]:
    """Make a sealed segment sound again, whatever was found; returns what was set aside."""
    aside: list[Path] = []
    again = bool(state.damage or state.names)
    if again:
        aside = rewrite(place, state, disk)
        for suffix in (segments.COMPRESSED, segments.FRAMES):
            with contextlib.suppress(FileNotFoundError):
                disk.unlink(segments.path_of(place.directory, state.base, suffix))
        disk.sync_directory(place.directory)
    elif state.frames:
        _write_frames(place, state.base, disk)
    if again or state.index:
        if not (state.index_numbers and state.index_times):
            with contextlib.suppress(FileNotFoundError):  # then it is built from the lines alone
                disk.unlink(segments.path_of(place.directory, state.base, segments.INDEX))
        entries = redact.reindex(place, state.base, disk)
        if again and state.compressed:
            compress.compress_segment(place.directory, state.base, entries, disk)
    return aside


def _write_frames(place: Place, base: int, disk: Disk) -> None:
    entries, _ = inspection.load_entries(place, base, disk)
    frames = compress.walk_frames(place.directory, base, disk, entries)
    disk.replace_file(
        segments.path_of(place.directory, base, segments.FRAMES),
        compress.encode_frames(frames),
        sync_names=False,
    )


# -- the head --------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def locked_blindly(partition: Partition) -> Iterator[None]:
    """Hold the append lock without looking at the log: its active segment may be gone. The mutex is held."""
    orphaned = False
    if not partition._lock.held:
        if partition.closed:
            raise Evicted(str(partition.place.directory))
        orphaned = partition._lock.acquire(partition._busy_timeout_s)
        with contextlib.suppress(TornHead):
            partition._set(partition.head.load())
    try:
        yield
    except BaseException:
        partition._lock.disown()
        raise
    if orphaned:  # whoever is next shall still look at the end of the log
        partition._store()
        partition._lock.disown()
    else:
        partition._release()


def current(partition: Partition) -> Fields:
    """What this process knows about the log's end. The caller holds mutex and lock: nobody knows better."""
    partition._store()
    return partition.head.load()


def rebuild_head(partition: Partition, now_us: int, renew: Callable[[str], None], disk: Disk) -> None:
    """Describe the active segment from its bytes. The caller holds mutex and lock."""
    try:
        before: Fields | None = partition.head.load()
    except TornHead:
        before = None
    fields = recovery.recover(partition.place, disk, None, now_us).fields
    generation = before.generation + 1 if before else now_us
    flags = before.flags if before else 0
    fields = fields._replace(state=(generation << 8) | flags, first=max(fields.first, before.first if before else 0))
    if before is None or fields.next < before.next:
        renew(f"partition {partition.place.number} ends at {fields.next}, its head said otherwise")
    _go_on(partition, fields)
    partition._open_segment(fields.base)


def _go_on(partition: Partition, fields: Fields) -> None:
    """Store a head that was made here; every process reads channel.json again and opens the segment it names."""
    partition._close_files()
    partition._words[ROOM] = 0
    partition._set(fields)
    partition._identity_generation = -1
    partition._store()


def unfence(partition: Partition, now_us: int, renew: Callable[[str], None], disk: Disk) -> Unfenced | None:
    """Seal a fenced log at what was synced and go on behind it; None if it is not fenced.

    What lies behind `synced` is not looked at: the page cache may show what the disk never got. It is set
    aside as it reads. The order is such that a crash in between leaves the log fenced, to be repaired again.
    """
    if not partition.fields().flags & FENCED:
        return None
    with partition.mutex, partition.locked_anyhow():
        fields = partition.head.load()
        if not fields.flags & FENCED:
            return None  # another process was quicker
        place = partition.place
        path = segments.path_of(place.directory, fields.base)
        saved = _cut_behind_synced(place, path, fields, disk)
        renew(f"partition {place.number} was fenced; it goes on at offset {fields.synced_next}")
        state = ((fields.generation + 1) << 8) | (fields.flags & ~FENCED)
        if fields.synced:
            _seal_index(place, fields, disk)
            _begin_segment(place, fields.synced_next, disk)
        fresh = Fields(
            base=fields.synced_next, next=fields.synced_next, synced_next=fields.synced_next, first=fields.first,
            open_first=fields.synced_next, peak_us=fields.peak_us, append_us=fields.append_us, created_us=now_us,
            state=state,
        )  # fmt: skip
        _go_on(partition, fresh)
        return Unfenced(fields.synced_next, max(0, fields.next - fields.synced_next), saved)


def _cut_behind_synced(place: Place, path: Path, fields: Fields, disk: Disk) -> str | None:
    saved = None
    fd = disk.open(path, os.O_RDWR)
    try:
        size = disk.fstat(fd).st_size
        if size > fields.synced:
            with contextlib.suppress(OSError):  # a sick disk may not give it back; it was promised to nobody
                tail = disk.read_range(fd, size - fields.synced, fields.synced).rstrip(room.FILL)
                if tail:
                    saved = str(set_aside(place, f"{fields.base:020d}-unsynced-{fields.synced_next}", tail, disk))
        disk.ftruncate(fd, fields.synced)
        disk.fdatasync(fd)
    finally:
        disk.close(fd)
    return saved


def _seal_index(place: Place, fields: Fields, disk: Disk) -> None:
    """An index that ends at `synced`; its last entry takes its checksum from the head, not from the page cache."""
    path = segments.path_of(place.directory, fields.base, segments.INDEX)
    entries: list[index.Entry] = []
    with contextlib.suppress(FileNotFoundError):
        entries = [entry for entry in index.chain(disk.read_file(path), fields.base) if entry.end <= fields.synced]
    last = entries[-1] if entries else None
    position, first = (last.end, last.next) if last else (0, fields.base)
    if position < fields.synced:
        reader = segments.PlainSegment(place.directory, fields.base, disk)
        with contextlib.closing(reader):
            low, high = indexing.event_times(reader.read(position, fields.synced - position))
        count, length, peak_us = fields.synced_next - first, fields.synced - position, max(fields.peak_us, high)
        entries.append(
            index.Entry(first, position, fields.append_us, low, high, peak_us, count, length, fields.synced_crc)
        )
    disk.replace_file(path, b"".join(index.encode(entry) for entry in entries), sync_names=False)


def _begin_segment(place: Place, base: int, disk: Disk) -> None:
    for suffix in (segments.PLAIN, segments.INDEX):
        fd = disk.open(segments.path_of(place.directory, base, suffix), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        disk.close(fd)
    disk.sync_directory(place.directory)


def remove_strays(place: Place, active: int, disk: Disk) -> list[int]:
    """Remove empty segments behind the active one: rotations that died before the head knew. The lock is held."""
    strays = [base for base in segments.bases(place.directory, disk) if base > active]
    empty = [base for base in strays if not segments.stored_bytes(place.directory, base, disk)]
    for base in empty:
        segments.remove(place.directory, base, disk)
    disk.sync_directory(place.directory)
    return [base for base in strays if base not in empty]
