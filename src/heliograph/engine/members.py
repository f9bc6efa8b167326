"""Who works for a group now: a locked file each, and beside it what he says about himself."""

from __future__ import annotations

import contextlib
from pathlib import Path

import msgspec

from heliograph.disk import Disk
from heliograph.engine.port import MemberInfo
from heliograph.log.locks import FileLock

_decode = msgspec.json.Decoder(MemberInfo).decode
LOCK = ".lock"


def live_members(directory: Path, disk: Disk) -> list[MemberInfo]:
    """The workers of a group that are alive now, in the order of their names."""
    found: list[MemberInfo] = []
    members = directory / "members"
    try:
        entries = sorted(entry for entry in disk.listdir(members) if entry.endswith(LOCK))
    except (FileNotFoundError, NotADirectoryError):
        return []
    for entry in entries:
        # Not if he leaves in this moment.
        with contextlib.suppress(FileNotFoundError, msgspec.MsgspecError, UnicodeDecodeError):
            if _held(members / entry, disk):
                found.append(_decode(disk.read_file(members / f"{entry.removesuffix(LOCK)}.json")))
    return found


def _held(path: Path, disk: Disk) -> bool:
    lock = FileLock(path, disk, create=False)
    try:
        return not lock.free()
    finally:
        lock.release()
