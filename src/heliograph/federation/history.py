"""What a CA signed and revoked: ``CA.history.jsonl`` beside its certificate, one JSON object a line.

It is how a lost host's certificates are found by name, and from where a lost revocation list is made again.
"""

from __future__ import annotations

import os
from datetime import datetime
from pathlib import Path
from typing import Literal

import msgspec

from heliograph.disk import SYSTEM_DISK, Disk


class Entry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One thing that a CA did to one certificate."""

    time: datetime
    event: Literal["issued", "revoked"]
    ca: str
    """The CA's key, as the certificate's authority key identifier has it: a new CA of the same name is another."""
    serial: str
    name: str = ""
    names: list[str] = []
    not_after: datetime | None = None
    fingerprint: str = ""
    key: str = ""
    """The certificate's key, as its subject key identifier has it: a renewed certificate has the same."""
    reason: str = ""


class History:
    """The history of the CAs that had this name."""

    def __init__(self, path: Path, disk: Disk = SYSTEM_DISK) -> None:
        self.path = path
        self._disk = disk

    def add(self, *entries: Entry) -> None:
        """Durable when it returns. A line that a crash cut short is left as it is, on a line of its own."""
        new = not self.path.exists()
        fd = self._disk.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            end = self._disk.lseek(fd, 0, os.SEEK_END)
            torn = end > 0 and self._disk.pread(fd, 1, end - 1) != b"\n"
            lines = b"".join(msgspec.json.encode(entry) + b"\n" for entry in entries)
            self._disk.write_all(fd, b"\n" + lines if torn else lines)
            self._disk.fdatasync(fd)
        finally:
            self._disk.close(fd)
        if new:
            self._disk.sync_directory(self.path.parent)

    def entries(self, ca: str) -> list[Entry]:
        """Everything that the CA with this key did, oldest first; what cannot be read is passed over."""
        try:
            data = self._disk.read_file(self.path)
        except FileNotFoundError:
            return []
        found = []
        for line in data.splitlines():
            try:
                entry = msgspec.json.decode(line, type=Entry)
            except msgspec.DecodeError:
                continue
            if entry.ca == ca:
                found.append(entry)
        return found
