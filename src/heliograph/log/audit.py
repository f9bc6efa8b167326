"""Who connected, what was refused, what was administered, what was lost: ``audit/audit.jsonl``.

One JSON object a line. The file is rotated by size to ``audit.1.jsonl`` … ``audit.N.jsonl``. A record that
cannot be written is counted and logged, and never stops the data. A file that cannot be rotated grows, which is logged
once: its records are there.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any, Final

import msgspec

from heliograph.clock import Clock, from_us
from heliograph.disk import Disk
from heliograph.log.locks import FileLock

logger = logging.getLogger("heliograph.audit")

_WRITTEN_WITHIN_S: Final = 0.001
"""So long at most is a record half there while somebody writes it."""


class Audit:
    """The audit log of one data directory, shared by its processes."""

    def __init__(
        self, root: Path, disk: Disk, clock: Clock, *, max_bytes: int, max_files: int, enabled: bool = True
    ) -> None:
        self._directory = root / "audit"
        self._disk = disk
        self._clock = clock
        self._max_bytes = max_bytes
        self._max_files = max_files
        self._enabled = enabled
        self.failed = 0
        self._unrotated = False

    @property
    def path(self) -> Path:
        return self._directory / "audit.jsonl"

    def write(self, event: str, **facts: Any) -> None:
        """Add a record. Never raises."""
        time = from_us(self._clock.time_ns() // 1000).isoformat().replace("+00:00", "Z")
        record = {"time": time, "event": event, "pid": os.getpid(), **facts}
        logger.info("%s %s", event, facts)
        if not self._enabled:
            return
        try:
            self._append(_line(record))
        except OSError as error:
            self.failed += 1
            logger.warning("cannot write the audit log: %s", error)

    def _append(self, line: bytes) -> None:
        self._directory.mkdir(exist_ok=True)
        fd = self._disk.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
        try:
            half = self._ends_half(fd)
            if half:  # somebody may be writing it just now, and the kernel shows a file grow page by page
                self._clock.sleep(_WRITTEN_WITHIN_S)
                half = self._ends_half(fd)
            self._disk.write_all(fd, b"\n" + line if half else line)
            large = self._disk.lseek(fd, 0, os.SEEK_END) >= self._max_bytes
        finally:
            self._disk.close(fd)
        if large:
            self._try_to_rotate()

    def _try_to_rotate(self) -> None:
        try:
            self._rotate()
        except OSError as error:
            if not self._unrotated:
                logger.warning("the audit log is not rotated, and grows until it can be: %s", error)
            self._unrotated = True
        else:
            self._unrotated = False

    def _ends_half(self, fd: int) -> bool:
        """Whether the last record has no end: the disk had no room for it."""
        end = self._disk.lseek(fd, 0, os.SEEK_END)
        return end > 0 and self._disk.read_range(fd, 1, end - 1) != b"\n"

    def _rotate(self) -> None:
        lock = FileLock(self._directory / "lock", self._disk)
        try:
            if not lock.try_exclusive():
                return  # another process is at it
            if self._disk.stat(self.path).st_size < self._max_bytes:
                return  # another process was quicker
            for number in range(self._free() - 1, 0, -1):
                self._disk.rename(self._numbered(number), self._numbered(number + 1))
            self._disk.rename(self.path, self._numbered(1))
        finally:
            lock.release()

    def _free(self) -> int:
        """Which number is to be had; the oldest is written over only if all are taken.

        So a rotation that stops half-way, again and again, moves nothing twice, and costs no file that is there.
        """
        numbers = range(1, self._max_files)
        return next((number for number in numbers if not self._numbered(number).exists()), self._max_files)

    def _numbered(self, number: int) -> Path:
        return self._directory / f"audit.{number}.jsonl"


def _line(record: dict[str, Any]) -> bytes:
    try:
        return msgspec.json.encode(record) + b"\n"
    except (TypeError, ValueError):  # a fact that JSON cannot hold, such as a lone surrogate
        return msgspec.json.encode({name: ascii(value) for name, value in record.items()}) + b"\n"
