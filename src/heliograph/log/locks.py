"""Locks between processes: flock on files of their own that are never replaced.

The kernel frees a dead holder's lock at once, which is why no lease has to time out.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path
from typing import Final

from heliograph.clock import Clock
from heliograph.disk import Disk
from heliograph.errors import Busy
from heliograph.limits import LOCK_SHARED_S, LOCK_SLEEP_S, LOCK_SPINS
from heliograph.log.head import LOCK_HOLDER, LOCK_WANTED, Head

_EXCLUSIVE: Final = fcntl.LOCK_EX | fcntl.LOCK_NB
_SHARED: Final = fcntl.LOCK_SH
_UNLOCK: Final = fcntl.LOCK_UN


class FileLock:
    """A lock file held exclusively or shared for a longer time: leases, open.lock, recover.lock."""

    def __init__(self, path: Path, disk: Disk, *, create: bool = True) -> None:
        self.path = path
        self._disk = disk
        flags = os.O_RDWR | os.O_CREAT if create else os.O_RDONLY
        self._fd = disk.open(path, flags)

    def try_exclusive(self) -> bool:
        """Take or upgrade to the exclusive lock if nobody else holds it."""
        try:
            self._disk.flock(self._fd, _EXCLUSIVE)
        except BlockingIOError:
            return False
        return True

    def exclusive(self) -> None:
        self._disk.flock(self._fd, fcntl.LOCK_EX)

    def shared(self) -> None:
        self._disk.flock(self._fd, _SHARED)

    def note(self, text: str) -> None:
        """Leave a word for whoever finds the lock taken."""
        with contextlib.suppress(OSError):
            self._disk.ftruncate(self._fd, 0)
            self._disk.pwrite(self._fd, text.encode(), 0)

    def noted(self) -> str:
        return self._disk.pread(self._fd, 200, 0).decode("utf-8", "replace").strip()

    def release(self) -> None:
        """Unlock and close. Safe to call again."""
        if self._fd >= 0:
            self._disk.close(self._fd)  # closing the last descriptor unlocks
            self._fd = -1


class AppendLock:
    """The append lock of one partition. Its owner's threads are already excluded by the partition's mutex.

    Taking and freeing a flock costs more than a microsecond, as much as the write itself. Where no sync follows
    each append (durability `interval` and `os`), a process therefore keeps the lock while it goes on
    publishing, unless somebody asks for it:

        free ──acquire──▶ held ──append, nobody asked──▶ kept ──append──▶ held (nothing to reload)
          ▲                 │                              │
          └──── asked, or not keeping ─────────◀───────────┘ idle for LOCK_KEEP_S

    Asking is a word in the head's shared memory. After being asked, the lock goes back after each append for
    a while, so that two busy processes take turns.
    """

    __slots__ = ("_clock", "_disk", "_fd", "_head", "_path", "_pid", "give_back_until", "held", "keep")

    def __init__(self, path: Path, head: Head, disk: Disk, clock: Clock, *, keep: bool) -> None:
        self._path = path
        self._disk = disk
        self._clock = clock
        self._head = head
        self._fd = disk.open(path, os.O_RDWR | os.O_CREAT)
        self._pid = os.getpid()
        self.give_back_until = 0.0
        self.keep = keep  # whether it may stay held between appends
        self.held = False

    def acquire(self, timeout_s: float) -> bool:
        """Take the lock, or raise Busy naming the holder when it was not had in time.

        True if its last holder died holding it: the head may lack what that one knew.
        """
        try:
            self._disk.flock(self._fd, _EXCLUSIVE)
        except BlockingIOError:
            self._contend(timeout_s)
        self.held = True
        words = self._head.words
        orphaned = words[LOCK_HOLDER] != 0
        words[LOCK_HOLDER] = self._pid
        return orphaned

    def _contend(self, timeout_s: float) -> None:
        clock, words = self._clock, self._head.words
        deadline = clock.monotonic() + timeout_s
        spins = 0
        while True:
            words[LOCK_WANTED] = 1
            try:
                self._disk.flock(self._fd, _EXCLUSIVE)
                break
            except BlockingIOError:
                spins += 1
            if spins > LOCK_SPINS:
                if clock.monotonic() > deadline:
                    raise Busy(self._complaint(timeout_s)) from None
                clock.sleep(LOCK_SLEEP_S)
        words[LOCK_WANTED] = 0
        self.give_back_until = clock.monotonic() + LOCK_SHARED_S

    def _complaint(self, timeout_s: float) -> str:
        holder = self._head.words[LOCK_HOLDER]
        return (
            f"{self._path.parent} has been locked for more than {timeout_s:g} s by process {holder}. "
            f"Nothing was published. Is that process stopped or in a debugger? (ps -p {holder})"
        )

    def may_keep(self) -> bool:
        """After an append: whether to keep the lock. Not if somebody asked for it, now or lately."""
        if self._head.words[LOCK_WANTED]:
            self.give_back_until = self._clock.monotonic() + LOCK_SHARED_S
        elif self.give_back_until and self._clock.monotonic() > self.give_back_until:
            self.give_back_until = 0.0
        return self.keep and not self.give_back_until

    def release(self) -> None:
        """Free the lock; the head says everything."""
        self._head.words[LOCK_HOLDER] = 0
        self.disown()

    def disown(self) -> None:
        """Free the lock as a dying holder would: whoever is next looks at the end of the log."""
        self.held = False
        self._disk.flock(self._fd, _UNLOCK)

    def close(self) -> None:
        self.held = False
        self._disk.close(self._fd)
