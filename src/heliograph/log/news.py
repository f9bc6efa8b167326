"""How readers learn that a log grew, in this process and in others.

In this process: a lock per waiting thread, freed by whoever appended. Between processes: inotify does not fire
on shared memory nor on fdatasync, so a waiting reader says until when it waits in a word of the head, and
whoever appends writes one byte to the partition's ``news`` file, only then. Readers look again after arming,
and once a second whatever happens, so a lost wake-up costs a second and never a message.
"""

from __future__ import annotations

import _thread
import contextlib
import os
from pathlib import Path
from typing import Final

from heliograph.clock import Clock
from heliograph.disk import Disk
from heliograph.limits import NEWS_ARMED_S
from heliograph.log.head import NEWS_WANTED, Head


def ring(path: Path, disk: Disk) -> None:
    """Write the one byte that wakes whoever watches a file. Who is not woken looks for itself soon."""
    with contextlib.suppress(OSError):
        fd = disk.open(path, os.O_WRONLY | os.O_CREAT)
        try:
            disk.pwrite(fd, b"!", 0)
        finally:
            disk.close(fd)


_ARMED_NS: Final = int(NEWS_ARMED_S * 1e9)


class News:
    """The news of one partition."""

    __slots__ = ("_clock", "_disk", "_fd", "_head", "path", "waiting")

    def __init__(self, path: Path, head: Head | None, disk: Disk, clock: Clock) -> None:
        self.path = path
        self._head = head
        self._disk = disk
        self._clock = clock
        self._fd = -1
        self.waiting: list[_thread.LockType] = []

    def tell(self) -> None:
        """The log grew: wake who waits."""
        if self.waiting:
            self.wake()
        if self._head is None:
            return
        words = self._head.words
        if wanted := words[NEWS_WANTED]:
            # First lowered, then told: the other way round the mark of a reader that woke and waits again is lost.
            words[NEWS_WANTED] = 0
            if wanted > self._clock.monotonic_ns():
                self._write()

    def _write(self) -> None:
        # A wake-up that cannot be written costs its reader a second, nothing more.
        with contextlib.suppress(OSError):
            if self._fd < 0:
                self._fd = self._disk.open(self.path, os.O_WRONLY | os.O_CREAT)
            self._disk.pwrite(self._fd, b"!", 0)

    def wake(self) -> None:
        """Wake every waiting thread of this process."""
        waiting, self.waiting = self.waiting, []
        for lock in waiting:
            with contextlib.suppress(RuntimeError):  # freed by another thread in the same moment
                lock.release()

    def arm(self, lock: _thread.LockType | None = None) -> _thread.LockType:
        """Begin to wait, alone or with the lock of a wait for others. The caller looks once more before it does."""
        if lock is None:
            lock = _thread.allocate_lock()
            lock.acquire()
        self.waiting.append(lock)
        if self._head is not None:
            with contextlib.suppress(TypeError):  # a read-only mapping: looking again must do
                self._head.words[NEWS_WANTED] = self._clock.monotonic_ns() + _ARMED_NS
        return lock

    def disarm(self, lock: _thread.LockType) -> None:
        with contextlib.suppress(ValueError):
            self.waiting.remove(lock)

    def close(self) -> None:
        self.wake()
        if self._fd >= 0:
            self._disk.close(self._fd)
            self._fd = -1
