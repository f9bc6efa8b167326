"""Locks between processes: flock on files of their own that are never replaced.

The kernel frees a dead holder's lock at once, which is why no lease has to time out.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import weakref
from pathlib import Path
from typing import Final

from heliograph.clock import Clock
from heliograph.disk import Disk
from heliograph.errors import Busy
from heliograph.limits import (
    LOCK_EARLY_S,
    LOCK_RING_S,
    LOCK_SHARED_S,
    LOCK_SLEEP_S,
    LOCK_SPIN_S,
    LOCK_TURN_S,
    LOCK_YIELD_S,
)
from heliograph.log.head import LOCK_HOLDER, LOCK_WANTED, SERVED_BY, Head

_EXCLUSIVE: Final = fcntl.LOCK_EX | fcntl.LOCK_NB
_SHARED: Final = fcntl.LOCK_SH | fcntl.LOCK_NB
_UNLOCK: Final = fcntl.LOCK_UN
BRIEFLY: Final = 1
TURN: Final = 2
HAND_IN: Final = 3
"""What the word LOCK_WANTED says, if it is not a time."""


class FileLock:
    """A lock file held exclusively or shared for a longer time: leases, open.lock, recover.lock."""

    def __init__(self, path: Path, disk: Disk, *, create: bool = True) -> None:
        self.path = path
        self._disk = disk
        flags = os.O_RDWR | os.O_CREAT if create else os.O_RDONLY
        self._fd = disk.open(path, flags)
        _locks.add(self)

    def try_exclusive(self) -> bool:
        """Take or upgrade to the exclusive lock if nobody else holds it."""
        try:
            self._disk.flock(self._fd, _EXCLUSIVE)
        except BlockingIOError:
            return False
        return True

    def try_shared(self) -> bool:
        """Take the shared lock if nobody holds it alone."""
        try:
            self._disk.flock(self._fd, _SHARED)
        except BlockingIOError:
            return False
        return True

    def exclusive(self, clock: Clock, timeout_s: float) -> None:
        """Take the exclusive lock, or raise Busy if it was not had in time."""
        self.exclusive_unnoted(clock, timeout_s)
        self.note(f"process {os.getpid()}")

    def exclusive_unnoted(self, clock: Clock, timeout_s: float) -> None:
        """As `exclusive`, for a file whose content is not a note of its holder."""
        self._wait(_EXCLUSIVE, clock, timeout_s)

    def shared(self, clock: Clock, timeout_s: float) -> None:
        """Take the shared lock, or raise Busy if it was not had in time."""
        self._wait(_SHARED, clock, timeout_s)

    def _wait(self, kind: int, clock: Clock, timeout_s: float) -> None:
        deadline = clock.monotonic() + timeout_s
        while True:
            try:
                self._disk.flock(self._fd, kind)
                return
            except BlockingIOError:
                if clock.monotonic() > deadline:
                    holder = self.noted() or "another process"
                    raise Busy(
                        f"{self.path} has been locked for more than {timeout_s:g} s by {holder}. "
                        "Is it stopped or in a debugger?"
                    ) from None
            clock.sleep(0.002)

    def in_place(self) -> bool:
        """Whether its path still leads to the file that is locked, and not to nothing or to another."""
        try:
            return os.path.samestat(os.fstat(self._fd), os.stat(self.path))
        except FileNotFoundError:
            return False

    def note(self, text: str) -> None:
        """Leave a word for whoever finds the lock taken."""
        with contextlib.suppress(OSError):
            self._disk.ftruncate(self._fd, 0)
            self._disk.pwrite(self._fd, text.encode(), 0)

    def free(self) -> bool:
        """Whether nobody holds it exclusively. Two who look at once do not take each other for a holder."""
        try:
            self._disk.flock(self._fd, _SHARED)
        except BlockingIOError:
            return False
        self._disk.flock(self._fd, _UNLOCK)
        return True

    def write(self, data: bytes) -> None:
        """Make data the content of an empty lock file, durably."""
        self._disk.write_all(self._fd, data)
        self._disk.fdatasync(self._fd)

    def noted(self) -> str:
        return self._disk.pread(self._fd, 200, 0).decode("utf-8", "replace").strip()

    def unlock(self) -> None:
        """Unlock, and keep the file open for the next time."""
        self._disk.flock(self._fd, _UNLOCK)

    def release(self) -> None:
        """Unlock and close. Safe to call again."""
        fd, self._fd = self._fd, -1  # first: whoever is interrupted, or forks, must not close it twice
        if fd >= 0:
            self._disk.close(fd)  # closing the last descriptor unlocks


_locks: weakref.WeakSet[FileLock] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    """A child must not keep its dead parent's leases; closing its copies leaves the parent's locked."""
    for lock in list(_locks):
        lock.release()


os.register_at_fork(after_in_child=_after_fork_in_child)


class Served(Exception):
    """The lock is not had: its holder takes messages from the tray instead."""


class AppendLock:
    """The append lock of one partition. Its owner's threads are already excluded by the partition's mutex.

    Taking and freeing a flock costs more than a microsecond, as much as the write itself. Where no sync follows
    each append (durability `interval` and `os`), a process therefore keeps the lock while it goes on
    publishing, unless somebody asks for it:

        free ──acquire──▶ held ──append, nobody asked──▶ kept ──append──▶ held (nothing to reload)
          ▲                 │                              │
          └── its turn is over, or not keeping ──◀─────────┘ idle, or rung for

    Asking is a word in the head's shared memory. Whoever asks for one append gets the lock at once, and gives it back
    at once. Whoever appends often asks for a turn: handing over costs as much as some ten appends, so the holder
    finishes its own of LOCK_TURN_S first, and two busy processes do not stumble over each other. It says in that word
    when its turn ends, and the other one sleeps until shortly before. In either case it stands back then until the
    other one has come.

    A holder that does not publish just now does not see the word. Whoever got no answer rings: writes to the lock
    file, which the holder's process watches (see LockKeeper).
    """

    __slots__ = (
        "_clock", "_disk", "_fd", "_head", "_yields", "held", "keep", "path", "pid", "quick_to", "shared_until",
        "turn_until",
    )  # fmt: skip

    def __init__(self, path: Path, head: Head, disk: Disk, clock: Clock, *, keep: bool) -> None:
        self.path = path
        self._disk = disk
        self._clock = clock
        self._head = head
        self._fd = disk.open(path, os.O_RDWR | os.O_CREAT)
        self.pid = os.getpid()
        self._yields = False  # somebody wanted it when it was given back
        self.keep = keep  # whether it may stay held between appends
        self.held = False
        self.quick_to = (
            -1
        )  # while it is held: up to which byte of the segment one may append without looking at anything
        self.turn_until = 0.0  # kept and asked for: when to hand it over
        self.shared_until = 0.0  # not kept and asked for: free it before syncing until then

    def acquire(self, timeout_s: float, wish: int = BRIEFLY) -> bool:
        """Take the lock, for one append or a turn; or raise Busy naming the holder when it was not had in time.

        True if its last holder died holding it: the head may lack what that one knew. Whoever would rather hand in is
        told by Served that the holder takes it.
        """
        try:
            if self._yields:
                self._stand_back()
            try:
                self._disk.flock(self._fd, _EXCLUSIVE)
            except BlockingIOError:
                self._contend(timeout_s, wish)
        except BaseException:  # Ctrl-C may come when the lock is had and nobody knows it yet
            self._unlock()
            raise
        self.held = True
        self.turn_until = 0.0
        words = self._head.words
        words[LOCK_WANTED] = 0  # whoever else waits says so again at once
        orphaned = words[LOCK_HOLDER] != 0
        if orphaned:
            words[SERVED_BY] = 0
        words[LOCK_HOLDER] = self.pid
        return orphaned

    def _stand_back(self) -> None:
        """Let whoever asked have the lock first, unless it does not come for it: it may have died meanwhile."""
        self._yields = False
        clock, words = self._clock, self._head.words
        until = clock.monotonic() + LOCK_YIELD_S
        while words[LOCK_WANTED] and not words[LOCK_HOLDER] and (left_s := until - clock.monotonic()) > 0:
            if left_s > 0.9 * LOCK_YIELD_S:  # most of them are awake
                clock.give_way()
            else:
                clock.sleep(LOCK_YIELD_S / 10)

    def _contend(self, timeout_s: float, wish: int) -> None:
        clock, words = self._clock, self._head.words
        started = clock.monotonic()
        ring_at = started + LOCK_RING_S
        while True:
            if wish == HAND_IN and words[SERVED_BY] == words[LOCK_HOLDER] != 0:
                raise Served
            said = words[LOCK_WANTED]
            if not said or said > wish == BRIEFLY:  # not each time: it would take the cache line from the holder
                words[LOCK_WANTED] = said = wish
            try:
                self._disk.flock(self._fd, _EXCLUSIVE)
                return
            except BlockingIOError:
                now = clock.monotonic()
            if now - started > timeout_s:
                raise Busy(self._complaint(timeout_s)) from None
            left_s = said / 1e9 - now  # of the holder's turn, if it has said so: else far below 0
            if left_s > LOCK_EARLY_S:
                clock.sleep(min(left_s, LOCK_TURN_S) - LOCK_EARLY_S)
            elif left_s < -LOCK_SLEEP_S and now > ring_at:
                self.ring(wish)
                ring_at = now + LOCK_TURN_S
            elif now - started > LOCK_SPIN_S and left_s < -LOCK_SLEEP_S:
                clock.sleep(LOCK_SLEEP_S)
            else:  # there may be no core left for the holder, or for those whom the holder waits for
                clock.give_way()

    def ring(self, wish: int) -> None:
        """Wake the thread of the holder's process that looks after its locks."""
        if not self._head.words[LOCK_WANTED]:
            self._head.words[LOCK_WANTED] = wish
        with contextlib.suppress(OSError):  # it looks by itself, too, now and then
            self._disk.pwrite(self._fd, b"!", 0)

    def _complaint(self, timeout_s: float) -> str:
        holder = self._head.words[LOCK_HOLDER]
        return (
            f"{self.path.parent} has been locked for more than {timeout_s:g} s by process {holder}. "
            f"Nothing was published. Is that process stopped or in a debugger? (ps -p {holder})"
        )

    def may_keep(self) -> bool:
        """After an append: whether to keep the lock. When somebody asks for a turn, until the own one is over."""
        wanted = self._head.words[LOCK_WANTED]
        if not wanted:
            return self.keep
        now = self._clock.monotonic()
        if not self.keep:
            self.shared_until = now + LOCK_SHARED_S
            return False
        if wanted == BRIEFLY:
            return False
        if not self.turn_until:
            self.turn_until = now + LOCK_TURN_S
            self._head.words[LOCK_WANTED] = int(self.turn_until * 1e9)
        return now < self.turn_until

    def wanted(self) -> bool:
        """Whether another process asked for the lock, now or lately."""
        if self._head.words[LOCK_WANTED]:
            return True
        return self.shared_until > 0.0 and self._clock.monotonic() < self.shared_until

    def release(self) -> None:
        """Free the lock; the head says everything."""
        words = self._head.words
        words[LOCK_HOLDER] = 0
        self._yields = self.keep and words[LOCK_WANTED] != 0
        self._unlock()

    def disown(self) -> None:
        """Free the lock as a dying holder would: whoever is next looks at the end of the log."""
        self._unlock()

    def _unlock(self) -> None:
        self.held = False
        self.quick_to = -1
        try:
            self._disk.flock(self._fd, _UNLOCK)
        except BaseException:  # Ctrl-C: nobody else would free what is not held as far as anybody knows
            self._disk.flock(self._fd, _UNLOCK)
            raise

    def close(self) -> None:
        self.held = False
        self.quick_to = -1
        self._disk.close(self._fd)
