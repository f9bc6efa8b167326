"""Backups: taken while others publish, and only of what is new.

What counts is what was synced when a partition's turn came. Positions are copied first, so that none is ahead of its
log; sealed segments are recognised by name, length and checksum and not copied twice. A backup that is interrupted
leaves the one before it whole: nothing that its manifest names is changed before the next manifest is written.

A channel that cannot be read keeps nobody from backing up the others. It is reported as left out, and what an earlier
run copied of it stays.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import BinaryIO

import google_crc32c
import msgspec

from heliograph.admin import Progress, manifest
from heliograph.admin.copies import Copies, Source
from heliograph.admin.manifest import Manifest, Part
from heliograph.admin.queues import copy_state
from heliograph.admin.restore import RestoreReport, check, restore
from heliograph.clock import from_us
from heliograph.disk import SYSTEM_DISK, Disk, explain
from heliograph.engine import queuestore
from heliograph.errors import (
    AlreadyExists,
    Busy,
    ConfigError,
    Damaged,
    Fenced,
    HeliographError,
    NotFound,
    StorageError,
    UnsupportedFormat,
)
from heliograph.limits import COPY_BYTES
from heliograph.log import compactstate, index, inspection, redact, returned, segments, swap
from heliograph.log.head import Fields
from heliograph.log.held import ChannelGone, Evicted
from heliograph.log.index import Entry
from heliograph.log.indexing import Place
from heliograph.schedule.database import FILE
from heliograph.station import Station

_extend, _crc = google_crc32c.extend, google_crc32c.value
_ASIDE = ".copying-"
_GONE = (NotFound, ChannelGone, FileNotFoundError)
_UNREADABLE = (Damaged, UnsupportedFormat)


class BackupReport(msgspec.Struct, kw_only=True):
    """What a backup holds now, and how much of it was copied this time."""

    target: str
    taken: datetime
    files: int = 0
    bytes: int = 0
    copied_files: int = 0
    copied_bytes: int = 0
    removed_files: int = 0
    channels: int = 0
    messages: int = 0
    incremental: bool = False
    seconds: float = 0.0
    warnings: list[str] = []
    left_out: list[str] = []
    """Channels that could not be read; of each the backup holds what an earlier run copied, if anything."""


def backup(station: Station, target: Path | str, *, progress: Progress | None = None) -> BackupReport:
    """Copy a station into a directory, or bring the copy that is there up to date."""
    target = Path(target)
    started_s = time.monotonic()
    try:
        _check_target(station, target)
        target.mkdir(parents=True, exist_ok=True)
        held = manifest.lock(target, _target_disk(station), create=True)
        try:
            report = _Backup(station, target, progress).run()
        finally:
            if held is not None:
                held.release()
    except OSError as error:
        raise explain(error, f"cannot back up to {target}") from error
    report.seconds = time.monotonic() - started_s
    if not station.read_only:
        station.engine.audit.write(
            "backup", target=str(target.resolve()), messages=report.messages, copied_bytes=report.copied_bytes
        )
    return report


def _check_target(station: Station, target: Path) -> None:
    inner, outer = target.resolve(), station.path.resolve()
    if inner == outer or outer in inner.parents or inner in outer.parents:
        raise ConfigError(f"{target} and {station.path} lie within each other; back up to another place")
    if not target.exists():
        return
    known = {manifest.NAME, manifest.LOCK}
    if not target.is_dir() or (os.listdir(target) and not known & set(os.listdir(target))):
        raise AlreadyExists(f"{target} is there and is no backup; choose an empty directory")


def _target_disk(station: Station) -> Disk:
    """A station that is read-only has a disk that cannot write; the backup's directory is no part of it."""
    return SYSTEM_DISK if station.read_only else station.engine.disk


class _Backup:
    """One run."""

    def __init__(self, station: Station, target: Path, progress: Progress | None) -> None:
        self._station = station
        self._engine = station.engine
        self._disk = station.engine.disk
        self._root = station.path
        self._progress = progress
        self._target = target
        self._copies = Copies(target, _target_disk(station), self._advance)
        self._parts: list[Part] = []
        self._done = self._total = 0
        self.report = BackupReport(target=str(target), taken=from_us(self._engine.clock.time_ns() // 1000))

    def run(self) -> BackupReport:
        from heliograph import __version__

        report, copies = self.report, self._copies
        report.incremental = copies.load_previous(self._station.name)
        names = self._engine.channel_names()
        self._total = sum(self._stored_bytes(name) for name in names)
        self._copy_small("station.json")
        self._copy_positions()
        self._copy_schedule()
        self._copy_steps_and_producers()
        for name in names:
            self._copy_or_leave_out(name)
        self._copy_rest()
        files = [copies.files[path] for path in sorted(copies.files)]
        described = Manifest(
            station=self._station.name, taken=report.taken, version=__version__, parts=self._parts, files=files
        )
        copies.commit(described)
        report.files, report.bytes = len(files), sum(file.length for file in files)
        report.channels = len({part.channel for part in self._parts})
        report.messages = sum(part.next - part.first for part in self._parts)
        report.copied_files, report.copied_bytes = copies.copied_files, copies.copied_bytes
        report.removed_files = copies.removed_files
        report.warnings += [
            f"{path} is damaged; it was copied as it is ('helio verify' says more)" for path in copies.damaged
        ]
        return report

    def _stored_bytes(self, name: str) -> int:
        total = 0
        with contextlib.suppress(*_GONE, *_UNREADABLE):
            for number in range(self._engine.describe(name).partitions):
                directory = self._engine.directory.place(name, number, self._station.name).directory
                total += segments.stored_in(directory, self._disk)
        return total

    def _advance(self, count: int) -> None:
        self._done += count
        if self._progress is not None:
            self._progress(min(self._done, self._total), self._total)

    def _copy_small(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):  # gone since it was listed
            self._copies.put(path, self._disk.read_file(self._root / path))

    # -- what is copied, in this order ----------------------------------------------------------------------------

    def _copy_positions(self) -> None:
        for channel, name in self._engine.positions.all():
            directory = f"subscriptions/{channel}/{name}"
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                for entry in self._disk.listdir(self._root / directory):
                    if entry.endswith(".json"):
                        self._copy_small(f"{directory}/{entry}")
                    elif entry == queuestore.FILE:
                        self._copy_queue(channel, name)
        for name in self._engine.wildcards.names():
            self._copy_small(f"patterns/{name}.json")

    def _copy_queue(self, channel: str, name: str) -> None:
        """Before the channels, like a position: what it says was handed out is in the log that is copied later."""
        place = f"subscriptions/{channel}/{name}/{queuestore.FILE}"
        with self._aside(queuestore.FILE) as path:
            try:
                copy_state(self._engine, channel, name, path)
            except (StorageError, Busy, NotFound) as error:
                if (self._root / place).exists():
                    self.report.warnings.append(
                        f"{place} is not in the backup, without it the queue goes on at its saved position: {error}"
                    )
                return
            with path.open("rb") as file:
                self._copies.copy(place, _file_of(file))

    def _copy_schedule(self) -> None:
        """Before the channels: what is delivered meanwhile is in both, and not in neither."""
        with self._aside(FILE) as path:
            if self._station.timetable.copy_to(path):
                with path.open("rb") as file:
                    self._copies.copy(f"schedule/{FILE}", _file_of(file))

    @contextlib.contextmanager
    def _aside(self, name: str) -> Iterator[Path]:
        """Where a database is copied to, before it is known whether the backup has it already."""
        for left in self._target.glob(f"{_ASIDE}*"):  # by a run that was killed
            shutil.rmtree(left)
        with tempfile.TemporaryDirectory(prefix=_ASIDE, dir=self._target) as directory:
            yield Path(directory, name)

    def _copy_steps_and_producers(self) -> None:
        """Before the channels: a step is then finished in the copy, and no checkpoint is ahead of its log."""
        for folder in ("atomic", "producers/epochs", "producers/channels"):
            for path in sorted((self._root / folder).rglob("*")):
                if path.is_file() and path.suffix in (".json", "") and not path.name.startswith("."):
                    self._copy_small(path.relative_to(self._root).as_posix())

    def _copy_or_leave_out(self, name: str) -> None:
        files, parts = dict(self._copies.files), list(self._parts)
        try:
            self._copy_channel(name)
        except _UNREADABLE as error:
            self._copies.files, self._parts = files, parts
            self._leave_out(name, error)

    def _leave_out(self, name: str, error: HeliographError) -> None:
        """All of it is kept as it was copied before: logs of today do not fit settings and seen-sets of then."""
        before = self._copies.keep(name)
        self._parts += before
        has = "it keeps the older copy" if before else "it has no older copy, either"
        self.report.left_out.append(name)
        self.report.warnings.append(f"channel '{name}' was not backed up; {has}: {error}")

    def _copy_channel(self, name: str) -> None:
        """Copy one channel; again if it was deleted and made anew meanwhile, not at all if it is gone."""
        for _ in range(3):
            files, parts = dict(self._copies.files), list(self._parts)
            try:
                before = self._engine.describe(name)
                self._copy_seen(name)
                for number in range(before.partitions):
                    self._finish_redaction(name, number)
                    with contextlib.nullcontext() if self._station.read_only else self._engine.without_upkeep():
                        self._settle_swaps(name, number)
                        self._copy_partition(name, number)
                self._copy_types(name)  # after the messages, so that none is missing for what is there
                self._copies.put(
                    f"channels/{name}/channel.json", self._disk.read_file(self._root / f"channels/{name}/channel.json")
                )
                after = self._engine.describe(name)
                if (after.incarnation, after.partitions) == (before.incarnation, before.partitions):
                    return
            except _GONE:
                if not (self._root / "channels" / name).exists():
                    self._copies.files, self._parts = files, parts
                    return
            self._copies.files, self._parts = files, parts
        raise NotFound(f"channel '{name}' changes all the time; try again")

    def _copy_seen(self, name: str) -> None:
        """Before the messages, so that it is not ahead of them; renewed, so that it knows what is trimmed meanwhile."""
        if not self._station.read_only:
            with contextlib.suppress(Fenced):
                self._engine.relayed.cover(name)
        self._copy_small(f"seen/{name}.json")

    def _copy_types(self, name: str) -> None:
        for folder in self._engine.schemas.folders(name):
            for number in self._engine.schemas.numbers(folder):
                self._copy_small((folder / f"{number}.json").relative_to(self._root).as_posix())

    def _finish_redaction(self, name: str, number: int) -> None:
        """What was to be forgotten, by a process that did not live to do it, must not be kept here."""
        directory = self._engine.directory.place(name, number, self._station.name).directory
        if not self._station.read_only and (directory / redact.INTENT).exists():
            with contextlib.suppress(Fenced):
                self._engine.redact(name, number, [])

    def _settle_swaps(self, name: str, number: int) -> None:
        """An index that did not come into its place would be copied as the one that it was to replace."""
        if not self._station.read_only:
            place = self._engine.directory.place(name, number, self._station.name)
            swap.settle(place.directory, self._disk)

    def _copy_partition(self, name: str, number: int) -> None:
        place = self._engine.directory.place(name, number, self._station.name)
        fields = self._synced_fields(name, number)
        known = [base for base in segments.bases(place.directory, self._disk) if base <= fields.base]
        for base, following in zip(known, [*known[1:], fields.synced_next + 1], strict=True):
            if following > fields.first:
                self._copy_segment(name, place, base, fields if base == fields.base else None)
        self._copy_small(f"channels/{name}/{number}/{compactstate.STATE}")
        self._copy_small(f"channels/{name}/{number}/{returned.FILE}")
        self._parts.append(Part(channel=name, partition=number, first=fields.first, next=fields.synced_next))

    def _synced_fields(self, name: str, number: int) -> Fields:
        """What the head says once everything that was published before is on disk."""
        while not self._station.read_only:
            try:
                written = self._engine.limit(name, number, synced=False).next
                self._engine.writer(name, number).sync_through(written)
                break
            except Evicted:
                continue
            except Fenced:
                self.report.warnings.append(f"channel '{name}' is fenced; only what was synced before is copied")
                break
        return self._engine.head_fields(name, number)

    def _copy_segment(self, name: str, place: Place, base: int, active: Fields | None) -> None:
        entries, _ = inspection.load_entries(place, base, self._disk)
        folder = f"channels/{name}/{place.number}"
        if segments.path_of(place.directory, base, segments.COMPRESSED).exists():
            self._copy_compressed(folder, place, base, entries)
        else:
            reader = segments.PlainSegment(place.directory, base, self._disk)
            with contextlib.closing(reader):
                length = active.synced if active is not None else reader.size()
                crc = active.synced_crc if active is not None else _sealed_crc(entries, reader, length)
                entries = [entry for entry in entries if entry.end <= length]
                path = f"{folder}/{base:020d}{segments.PLAIN}"
                self._copies.copy(path, Source(reader.read, length, crc, lambda at: _crc_at(entries, reader, at)))
        data = b"".join(index.encode(entry) for entry in entries)
        self._copies.put(f"{folder}/{base:020d}{segments.INDEX}", data)
        self._copy_small(f"{folder}/{base:020d}{segments.LOST}")

    def _copy_compressed(self, folder: str, place: Place, base: int, entries: list[Entry]) -> None:
        path = segments.path_of(place.directory, base, segments.COMPRESSED)
        fd = self._disk.open(path, os.O_RDONLY)
        try:
            length = self._disk.fstat(fd).st_size
            content = (entries[-1].end, entries[-1].crc) if entries else (0, 0)
            source = Source(lambda at, size: self._disk.read_range(fd, size, at), length, content=content)
            self._copies.copy(f"{folder}/{base:020d}{segments.COMPRESSED}", source)
        finally:
            self._disk.close(fd)
        self._copy_small(f"{folder}/{base:020d}{segments.FRAMES}")

    def _copy_rest(self) -> None:
        """Journals of replays, after the channels so that none is missing for what is there; and the audit log."""
        with contextlib.suppress(FileNotFoundError):
            for entry in self._disk.listdir(self._root / "dead"):
                if entry.endswith(".json"):
                    self._copy_small(f"dead/{entry}")
        with contextlib.suppress(FileNotFoundError):
            for entry in self._disk.listdir(self._root / "audit"):
                if entry.endswith(".jsonl"):
                    self._copies.copy(f"audit/{entry}", _lines_of(self._disk.read_file(self._root / "audit" / entry)))


def _file_of(file: BinaryIO) -> Source:
    fd, crc, length = file.fileno(), 0, 0
    while data := file.read(COPY_BYTES):
        crc, length = _extend(crc, data), length + len(data)
    return Source(lambda at, size: os.pread(fd, size, at), length, crc)


def _lines_of(data: bytes) -> Source:
    data = data[: data.rfind(b"\n") + 1]
    return Source(lambda at, size: data[at : at + size], len(data), _crc(data), lambda at: _crc(data[:at]))


def _sealed_crc(entries: list[Entry], reader: segments.PlainSegment, length: int) -> int:
    """The checksum of a sealed segment: from its index, or from its bytes if the index does not reach to the end."""
    if entries and entries[-1].end == length:
        return entries[-1].crc
    return _crc_at([], reader, length)


def _crc_at(entries: list[Entry], reader: segments.PlainSegment, position: int) -> int:
    """The checksum of a segment's beginning: the nearest index entry before, and the bytes from there."""
    at, crc = 0, 0
    for entry in entries:
        if entry.end > position:
            break
        at, crc = entry.end, entry.crc
    while at < position and (data := reader.read(at, min(COPY_BYTES, position - at))):
        at, crc = at + len(data), _extend(crc, data)
    return crc


__all__ = ["BackupReport", "RestoreReport", "backup", "check", "restore"]
