"""What a backup holds: ``manifest.json``, written last and atomically, so that half a backup is never taken for one.

    BACKUP/manifest.json                  one line of JSON that ends with the checksum of itself
    BACKUP/channels/alerts/0/….jsonl      copies under the names they have in the station, or with ~CHECKSUM
                                          added where the manifest before still needs the older copy

Of each stored file the first ``length`` bytes count: a segment that grew is appended to, and the manifest before
stays valid until the next one replaces it.
"""

from __future__ import annotations

from datetime import datetime
from pathlib import Path, PurePosixPath
from typing import Final

import google_crc32c
import msgspec

from heliograph.disk import Disk
from heliograph.errors import Busy, Damaged, NotFound, UnsupportedFormat
from heliograph.limits import COPY_BYTES
from heliograph.log import lines
from heliograph.log.locks import FileLock

FORMAT: Final = 1
NAME: Final = "manifest.json"
LOCK: Final = "backup.lock"
PARTS: Final = frozenset(
    [
        "station.json",
        "channels",
        "subscriptions",
        "patterns",
        "audit",
        "dead",
        "schedule",
        "producers",
        "atomic",
        "seen",
    ]
)
"""What a station's directory has that a backup holds; the rest is derived, or belongs to this machine."""

_extend = google_crc32c.extend


class File(msgspec.Struct, frozen=True, kw_only=True):
    """One file: its place in the station, its place in the backup, and what its bytes must add up to."""

    path: str
    stored: str
    length: int
    crc: int
    content: tuple[int, int] | None = None  # of a compressed segment: length and checksum of its lines


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """The messages of one partition that the backup holds."""

    channel: str
    partition: int
    first: int
    next: int


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """manifest.json."""

    format: int = FORMAT
    station: str
    taken: datetime
    version: str
    parts: list[Part]
    files: list[File]


def save(target: Path, manifest: Manifest, disk: Disk) -> None:
    """Replace the manifest; from now on this is the backup."""
    body = msgspec.json.encode(manifest)[:-1]
    disk.replace_file(target / NAME, b'%b,"crc":"%08x"}\n' % (body, google_crc32c.value(body)))


def load(source: Path, disk: Disk) -> Manifest:
    """The manifest of a whole backup; says whether there is none, or only an unfinished one."""
    try:
        data = disk.read_file(source / NAME).rstrip(b"\n")
    except (FileNotFoundError, NotADirectoryError):
        if (source / LOCK).exists():
            raise Damaged(f"the backup in {source} was never finished; run 'helio backup' again") from None
        raise NotFound(f"{source} holds no backup (there is no {NAME})") from None
    if not lines.intact(data):
        raise Damaged(f"{source / NAME} does not match its checksum; this backup cannot be trusted")
    try:
        if msgspec.json.decode(data, type=_Format).format > FORMAT:
            raise UnsupportedFormat(f"{source} was written by a newer Heliograph; upgrade this one")
        manifest = msgspec.json.decode(data, type=Manifest)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise Damaged(f"{source / NAME} cannot be read ({error})") from None
    for file in manifest.files:
        check_path(file.path)
        check_path(file.stored)
    return manifest


class _Format(msgspec.Struct):
    format: int


def check_path(path: str) -> None:
    """A manifest must not be able to name anything outside of the backup."""
    parts = PurePosixPath(path).parts
    if not parts or ".." in parts or "\0" in path or parts[0].split("~")[0] not in PARTS:
        raise Damaged(f"the manifest names {path!r}, which is no file of a station")


def wrong_with(source: Path, file: File, disk: Disk) -> str | None:
    """What is wrong with a stored file; None if its bytes are those that were copied."""
    try:
        fd = disk.open(source / file.stored, 0)
    except FileNotFoundError:
        return f"{file.stored} is missing"
    try:
        crc, at = 0, 0
        while at < file.length:
            data = disk.read_range(fd, min(COPY_BYTES, file.length - at), at)
            if not data:
                return f"{file.stored} has {at} of {file.length} bytes"
            crc, at = _extend(crc, data), at + len(data)
    finally:
        disk.close(fd)
    return None if crc == file.crc else f"{file.stored} does not match its checksum"


def lock(target: Path, disk: Disk, *, create: bool) -> FileLock | None:
    """Be the only one who works with a backup; None where it cannot be locked (a medium that is read-only)."""
    try:
        held = FileLock(target / LOCK, disk, create=create)
    except OSError:
        if create:
            raise
        return None
    if held.try_exclusive():
        return held
    held.release()
    raise Busy(f"another process works with the backup in {target}; wait for it")
