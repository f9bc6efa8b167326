"""Where keys and certificates are; writing them: whole or not at all, keys for their owner alone, nothing unasked."""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path
from typing import Final

from heliograph.disk import SYSTEM_DISK, Disk
from heliograph.errors import AlreadyExists

PRIVATE: Final = 0o600
PUBLIC: Final = 0o644


class CaFiles:
    """Where everything of a CA is, from where its certificate is."""

    def __init__(self, cert: Path) -> None:
        self.cert = cert
        self.key = cert.with_suffix(".key")
        self.crl = cert.with_suffix(".crl")
        self.history = cert.with_suffix(".history.jsonl")
        self.lock = cert.with_suffix(".lock")

    def all(self) -> set[Path]:
        """Each of them, whatever name it is called by."""
        return {one.resolve() for one in (self.cert, self.key, self.crl, self.history, self.lock)}


def place(path: Path, data: bytes, *, mode: int, replace: bool, disk: Disk = SYSTEM_DISK) -> None:
    """Write a file that appears when it is complete; unless ``replace``, never over another.

    Who could read the old one can read the new one: replaced by root, it keeps its owner.
    """
    temporary = f"{path}.tmp-{secrets.token_hex(6)}"
    try:
        fd = disk.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        try:
            if replace:
                _keep_owner(fd, path)
            disk.write_all(fd, data)
            disk.fdatasync(fd)
        finally:
            disk.close(fd)
        if replace:
            disk.rename(temporary, path)
        else:
            _link(temporary, path, disk)
    except OSError as error:
        if error.filename == temporary:  # which nobody knows of
            error.filename = str(path)
        raise
    finally:
        with contextlib.suppress(OSError):
            disk.unlink(temporary)
    try:
        disk.sync_directory(path.parent)
    except OSError:
        if not replace:
            path.unlink(missing_ok=True)  # it failed, so nothing of it stays
        raise


def _link(temporary: str, path: Path, disk: Disk) -> None:
    """Unlike a rename, a link fails where there is something already, however late it came."""
    try:
        disk.link(temporary, path)
    except FileExistsError:
        raise occupied(path) from None
    except PermissionError:  # a file system without links
        refuse_existing(path)
        disk.rename(temporary, path)


def _keep_owner(fd: int, path: Path) -> None:
    with contextlib.suppress(OSError):
        old = path.stat()
        os.fchown(fd, old.st_uid, old.st_gid)


def refuse_existing(*paths: Path) -> None:
    """AlreadyExists if one of them is there, be it a link to nothing."""
    for path in paths:
        if os.path.lexists(path):
            raise occupied(path)


def occupied(path: Path) -> AlreadyExists:
    """What to say when a file is there already."""
    return AlreadyExists(f"{path} is there already and was not touched; --force replaces it, --out names another place")


def exposed(path: str | Path) -> str | None:
    """What is wrong with a private key's permissions, if anything."""
    try:
        mode = os.stat(path).st_mode & 0o777
    except OSError:
        return None
    if mode & 0o077:
        return f"the key {path} can be read by others (mode {mode:o}): chmod 600 {path}"
    return None
