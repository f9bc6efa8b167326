"""How many messages a log really holds: offsets that redaction or compaction emptied do not count."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Collection
from pathlib import Path

from heliograph.disk import Disk
from heliograph.limits import COPY_BYTES
from heliograph.log import segments
from heliograph.log.head import Fields

_Mark = tuple[int, int, int, int]


class Census:
    """Counts sealed segments once and again when they were changed. The active one has no empty lines."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._lock = threading.Lock()
        self._counted: dict[Path, dict[int, tuple[_Mark, int]]] = {}

    def messages(self, directory: Path, fields: Fields) -> int:
        """Messages of a partition whose head says this."""
        with self._lock:
            before = self._counted.get(directory, {})
            self._counted[directory] = now = {
                base: found
                for base in segments.bases(directory, self._disk)
                if fields.first <= base < fields.base and (found := self._segment(directory, base, before)) is not None
            }
        return sum([count for _, count in now.values()]) + fields.next - fields.base

    def keep(self, channels: Collection[str]) -> None:
        """Forget what was counted of all others."""
        with self._lock:
            self._counted = {path: found for path, found in self._counted.items() if path.parent.name in channels}

    def _segment(self, directory: Path, base: int, before: dict[int, tuple[_Mark, int]]) -> tuple[_Mark, int] | None:
        for suffix in reversed(segments.FORMS):
            with contextlib.suppress(FileNotFoundError):
                mark = self._mark(directory, base, suffix)
                known = before.get(base)
                if known is not None and known[0] == mark:
                    return known
                with contextlib.closing(segments.open_segment(directory, base, self._disk)) as segment:
                    return mark, _lines(segment)
        return None  # deleted in this moment

    def _mark(self, directory: Path, base: int, suffix: str) -> _Mark:
        """What differs once a segment was changed: in place within a tick of the clock, its index still is another."""
        own = self._disk.stat(segments.path_of(directory, base, suffix))
        inode = 0
        with contextlib.suppress(FileNotFoundError):
            inode = self._disk.stat(segments.path_of(directory, base, segments.INDEX)).st_ino
        return own.st_ino, own.st_size, own.st_mtime_ns, inode


def _lines(segment: segments.SegmentReader) -> int:
    """Lines that are not blank."""
    count, rest = 0, b""
    for at in range(0, segment.size(), COPY_BYTES):
        *lines, rest = (rest + segment.read(at, COPY_BYTES)).split(b"\n")
        count += len([line for line in lines if line.strip(b" ")])
    return count
