"""Making a station from a backup, every byte checked on the way."""

from __future__ import annotations

import contextlib
import os
import time
from datetime import datetime
from pathlib import Path
from typing import Final

import google_crc32c
import msgspec

from heliograph.admin import Progress, manifest
from heliograph.admin.manifest import File, Manifest
from heliograph.disk import SYSTEM_DISK, Disk, explain
from heliograph.errors import AlreadyExists, Damaged
from heliograph.limits import COPY_BYTES
from heliograph.log.directory import StationFile
from heliograph.names import check_name

_UNFINISHED: Final = b"A restore into this directory was not finished. Remove it and restore again.\n"
_STATION: Final = "station.json"
_extend = google_crc32c.extend


class RestoreReport(msgspec.Struct, kw_only=True):
    """What was restored."""

    target: str
    name: str
    taken: datetime
    files: int = 0
    bytes: int = 0
    channels: int = 0
    seconds: float = 0.0


def check(source: Path | str, *, progress: Progress | None = None, disk: Disk = SYSTEM_DISK) -> list[str]:
    """What is wrong with a backup, file by file; nothing if it is whole."""
    source = Path(source)
    found = manifest.load(source, disk)
    wrong: list[str] = []
    total, done = sum(file.length for file in found.files), 0
    for file in found.files:
        complaint = manifest.wrong_with(source, file, disk)
        if complaint is not None:
            wrong.append(complaint)
        done += file.length
        if progress is not None:
            progress(done, total)
    return wrong


def restore(
    source: Path | str,
    target: Path | str,
    *,
    name: str | None = None,
    progress: Progress | None = None,
    disk: Disk = SYSTEM_DISK,
) -> RestoreReport:
    """Make a station from a backup, under another name if one is given. The target must be empty.

    Its channels get new incarnations when it is first opened: the station that was backed up may live on.
    """
    source, target = Path(source), Path(target)
    started_s = time.monotonic()
    if name is not None:
        check_name(name, "station")
    found = manifest.load(source, disk)
    if target.exists() and (not target.is_dir() or os.listdir(target)):
        raise AlreadyExists(f"{target} is not empty; restore into a new directory")
    was_there = target.exists()
    held = manifest.lock(source, disk, create=False)
    try:
        target.mkdir(parents=True, exist_ok=True)
        station = _copy(source, target, found, name, progress, disk)
    except BaseException as error:
        with contextlib.suppress(OSError):
            _undo(target, was_there, disk)
        if isinstance(error, OSError):
            raise explain(error, f"cannot restore to {target}") from error
        raise
    finally:
        if held is not None:
            held.release()
    return RestoreReport(
        target=str(target), name=station.name, taken=found.taken, files=len(found.files),
        bytes=sum(file.length for file in found.files), channels=len({part.channel for part in found.parts}),
        seconds=time.monotonic() - started_s,
    )  # fmt: skip


def _undo(target: Path, was_there: bool, disk: Disk) -> None:
    disk.remove_tree(target)
    if was_there:
        target.mkdir()


def _copy(
    source: Path, target: Path, found: Manifest, name: str | None, progress: Progress | None, disk: Disk
) -> StationFile:
    """Copy everything, the station's name last: without it nobody can open half a restore."""
    disk.replace_file(target / _STATION, _UNFINISHED)
    total, done = sum(file.length for file in found.files), 0
    directories = {target}
    station: StationFile | None = None
    for file in found.files:
        if file.path == _STATION:
            station = _read_station(source, file, disk)
            continue
        place = target / file.path
        place.parent.mkdir(parents=True, exist_ok=True)
        directories.update([place.parent, *[up for up in place.parent.parents if target in up.parents]])
        _copy_file(source, file, place, disk)
        done += file.length
        if progress is not None:
            progress(done, total)
    if station is None:
        raise Damaged(f"the backup in {source} holds no {_STATION}")
    for directory in sorted(directories, reverse=True):
        disk.sync_directory(directory)
    # An inode of zero fits no directory: whoever opens it knows that it was restored.
    station = msgspec.structs.replace(station, inode=0, name=name or station.name)
    disk.replace_file(target / _STATION, msgspec.json.format(msgspec.json.encode(station), indent=1) + b"\n")
    return station


def _read_station(source: Path, file: File, disk: Disk) -> StationFile:
    complaint = manifest.wrong_with(source, file, disk)
    if complaint is not None:
        raise Damaged(f"{source}: {complaint}")
    try:
        return msgspec.json.decode(disk.read_file(source / file.stored)[: file.length], type=StationFile)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise Damaged(f"{source / file.stored} cannot be read ({error})") from None


def _copy_file(source: Path, file: File, place: Path, disk: Disk) -> None:
    try:
        reading = disk.open(source / file.stored, os.O_RDONLY)
    except FileNotFoundError:
        raise Damaged(f"{source}: {file.stored} is missing") from None
    try:
        writing = disk.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        try:
            crc, at = 0, 0
            while at < file.length and (data := disk.read_range(reading, min(COPY_BYTES, file.length - at), at)):
                disk.write_all(writing, data)
                crc, at = _extend(crc, data), at + len(data)
            disk.fdatasync(writing)
        finally:
            disk.close(writing)
    finally:
        disk.close(reading)
    if at != file.length or crc != file.crc:
        raise Damaged(f"{source}: {file.stored} does not match its checksum; nothing was restored")
