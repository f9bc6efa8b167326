"""The part of a partition that lays room, fills it, and takes it away: see room.py."""

from __future__ import annotations

import contextlib
import logging
import sys
from mmap import ALLOCATIONGRANULARITY, mmap

from heliograph.errors import HeliographError
from heliograph.limits import ROOM_LINE_BYTES_MAX, WRITE_AT_ONCE_BYTES
from heliograph.log import room
from heliograph.log.head import DELETED, FENCED, LOCK_HOLDER, LOCK_WANTED, ROOM
from heliograph.log.held import HeldLog

logger = logging.getLogger("heliograph.engine")


class RoomyLog(HeldLog):
    """One partition's active segment, and the room behind its last line."""

    __slots__ = ()

    def _write_bytes(self, data: bytes) -> None:
        """Write behind what is written; if that is in room, in the way that is quickest there."""
        at, end = self.written, self.written + len(data)
        if end <= self._map_to or (at >= self._room_from and not self._always and self._map_room(len(data))):
            self._map[at - self._map_from : end - self._map_from] = data
            return
        if self._always and len(data) > 2 * WRITE_AT_ONCE_BYTES:
            self._write_much(data)
            return
        if (done := self._write_file(self._fd, data, at)) != len(data):
            self._disk.pwrite_all(self._fd, memoryview(data)[done:], at + done)
        if self._always and end <= self._words[ROOM]:
            self._disk.start_sync(self._fd, at, len(data))

    def _write_much(self, data: bytes) -> None:
        """Write some at a time, so that the disk begins with the first while the last are copied: both take as long."""
        at, left = self.written, memoryview(data)
        while left:
            some = left[:WRITE_AT_ONCE_BYTES]
            self._disk.pwrite_all(self._fd, some, at)
            self._disk.start_sync(self._fd, at, len(some))
            at, left = at + len(some), left[len(some) :]

    def _lay_room(self, appended: int) -> None:
        """Lay room behind what is written, if that is worth it. The lock is held."""
        size = room.wanted(self.written, appended, self._room_bytes, self._identity.segment_bytes)
        if not size:
            return
        try:
            done = self._disk.pwrite(self._fd, room.cloth(size), self.written)
        except OSError:  # a full disk, perhaps: who publishes needs no room, and hears of it soon enough
            self._room_from = sys.maxsize  # not again with each message: in the next segment
            with contextlib.suppress(OSError):
                self._disk.ftruncate(self._fd, self.written)
            return
        except BaseException:  # Ctrl-C: the lock must not stay held, and whoever is next finds the line
            self._disown()
            raise
        self._words[ROOM] = self.written + done

    def _map_room(self, length: int) -> bool:
        """Have room for so many bytes in memory, which is the file's; False if there is none and none is to be laid."""
        end = self.written + length
        if end > self._words[ROOM]:
            if length <= ROOM_LINE_BYTES_MAX:
                self._lay_room(length)
            if end > self._words[ROOM]:
                return False
        self._unmap()
        start = self.written & -ALLOCATIONGRANULARITY
        try:
            self._map = mmap(self._fd, self._words[ROOM] - start, offset=start)
        except (OSError, ValueError):  # no memory, no descriptor: then it is written
            return False
        self._map_from, self._map_to = start, self._words[ROOM]
        return True

    def _take_room(self) -> None:
        """Take away the room that is left. The lock is held."""
        self._unmap()
        size, self._words[ROOM] = self._words[ROOM], 0
        if size > self.written:
            self._disk.ftruncate(self._fd, self.written)

    def take_room(self, idle_s: float = 0.0) -> None:
        """Take away the room of a segment that nobody has appended to for so long; not if that makes anybody wait."""
        if self._idle_room(idle_s) and self.mutex.acquire(blocking=False):
            try:
                self._take_idle_room(idle_s)
            finally:
                self.mutex.release()

    def _take_idle_room(self, idle_s: float = 0.0) -> None:
        """The same for whoever holds the mutex."""
        if not self._idle_room(idle_s):
            return
        try:
            with self.locked_anyhow():
                if self._fd >= 0 and not self.state & (FENCED | DELETED):
                    self._take_room()
        except (HeliographError, OSError) as error:  # it does no harm
            logger.debug("the room in %s stays: %s", self._directory, error)

    def _idle_room(self, idle_s: float) -> bool:
        """Whether there is room that this process may have laid, and nobody is about to fill it."""
        words = self._words
        try:
            if self.closed or self._fd < 0 or self._syncing:
                return False
            if not words[ROOM] or words[LOCK_HOLDER] or words[LOCK_WANTED]:
                return False
            limit = self.head.limit(synced=False)
        except ValueError:  # closed in this moment
            return False
        if limit is None:  # somebody writes the head, or died doing so: who mends it cuts off the room
            return False
        idle_us = self._clock.time_ns() // 1000 - limit.append_us
        return limit.end < words[ROOM] and not 0 <= idle_us < idle_s * 1e6
