"""How readers learn that a log grew, in this process and in others.

In this process: a lock per waiting thread, freed by whoever appended. Between processes: inotify does not fire
on shared memory nor on fdatasync, so a waiting reader says until when it waits in a word of the head, and
whoever appends writes one byte to the partition's ``news`` file, only then. Readers look again after arming,
and once a second whatever happens, so a lost wake-up costs a second and never a message.

Whoever appends has woken its own readers already; the byte would only wake its own watching thread, which then
stands in their way. So a reader says in a place of the head, too, whose it is (one of few, chosen by a number of its
own), and the byte is written if anybody else waits::

    arm    my place = (I, until)       or (several, until) if another one waits there
           news wanted = until
    tell   news wanted = 0             first: who arms from now on looks again and sees what is new
           any place of others, or of several, whose time has not passed?  ──yes──▶ clear it, write the byte
           is it not my own time that stood in news wanted?                ──yes──▶ write the byte
"""

from __future__ import annotations

import _thread
import contextlib
import itertools
import os
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from heliograph.clock import Clock
from heliograph.disk import Disk
from heliograph.limits import NEWS_ARMED_S
from heliograph.log.head import NEWS_PLACES, NEWS_PLACES_END, NEWS_WANTED, Head


def ring(path: Path, disk: Disk) -> None:
    """Write the one byte that wakes whoever watches a file. Who is not woken looks for itself soon."""
    with contextlib.suppress(OSError):
        fd = disk.open(path, os.O_WRONLY | os.O_CREAT)
        try:
            disk.pwrite(fd, b"!", 0)
        finally:
            disk.close(fd)


_ARMED_NS: Final = int(NEWS_ARMED_S * 1e9)
_SEVERAL: Final = 0
_numbers: Final = itertools.count(1)


def held_lock() -> _thread.LockType:
    """A lock for one wait: held, so that whoever frees it ends the wait."""
    lock = _thread.allocate_lock()
    lock.acquire()
    return lock


class Fresh(NamedTuple):
    """A line that this process has just made durable."""

    offset: int
    line: bytes
    base: int  # the segment that it stands in


class Herald(Protocol):
    """Whoever passes lines on, and would rather be given one than read it. It is rung next, if it waits."""

    fresh: Fresh | None


class News:
    """The news of one partition."""

    __slots__ = ("_clock", "_disk", "_fd", "_head", "_place", "_token", "_until", "herald", "path", "waiting")

    def __init__(self, path: Path, head: Head | None, disk: Disk, clock: Clock) -> None:
        self.path = path
        self._head = head
        self._disk = disk
        self._clock = clock
        self._fd = -1
        process, number = os.getpid(), next(_numbers)  # a process may have the directory open twice
        self._token = process << 32 | number
        self._place = NEWS_PLACES + (process + number) * 2 % (NEWS_PLACES_END - NEWS_PLACES)
        self._until = -1
        self.waiting: list[_thread.LockType] = []
        self.herald: Herald | None = None

    def tell(self) -> bool:
        """The log grew: wake who waits; whether somebody does in this process."""
        others = False
        if self._head is not None:
            words = self._head.words
            try:
                if wanted := words[NEWS_WANTED]:
                    # First lowered, then told: the other way round the mark of a reader that woke and waits again is
                    # lost.
                    words[NEWS_WANTED] = 0
                    now = self._clock.monotonic_ns()
                    others = wanted > now and (self._others_wait(words, now) or wanted != self._until)
            except ValueError:  # closed for room in this moment: who waits is not known, and what was done is done
                ring(self.path, self._disk)
        here = bool(self.waiting)
        if here:
            self.wake()  # last, if possible: whoever is woken wants the interpreter
        if others:
            self._write()
        return here

    def _others_wait(self, words: memoryview[int], now: int) -> bool:
        """Whether another process waits, or one that has the place of others, too; their marks are lowered."""
        found = False
        places = words[NEWS_PLACES:NEWS_PLACES_END].tolist()
        for at in range(0, len(places), 2):
            if places[at + 1] > now and places[at] != self._token:
                words[NEWS_PLACES + at + 1] = 0
                found = True
        return found

    def _write(self) -> None:
        # A wake-up that cannot be written costs its reader a second, nothing more.
        with contextlib.suppress(OSError):
            if self._fd < 0:
                self._fd = self._disk.open(self.path, os.O_WRONLY | os.O_CREAT)
            self._disk.pwrite(self._fd, b"!", 0)

    def wake(self) -> None:
        """Wake every waiting thread of this process."""
        waiting = self.waiting
        for _ in range(len(waiting)):
            try:  # in fewer steps than with `suppress`: whoever publishes waits for them
                waiting.pop(0).release()
            except (IndexError, RuntimeError):  # taken or freed by another thread in the same moment
                continue

    def arm(self, lock: _thread.LockType | None = None) -> _thread.LockType:
        """Begin to wait, alone or with the lock of a wait for others. The caller looks once more before it does."""
        if lock is None:
            lock = held_lock()
        self.waiting.append(lock)
        if self._head is not None:
            words, place, now = self._head.words, self._place, self._clock.monotonic_ns()
            until = now + _ARMED_NS
            try:
                words[place] = self._token if words[place] == self._token or words[place + 1] <= now else _SEVERAL
                words[place + 1] = self._until = until
                words[NEWS_WANTED] = until
            except TypeError:  # a read-only mapping: looking again must do
                pass
        return lock

    def disarm(self, lock: _thread.LockType) -> None:
        """Do not wait any more; whoever was woken does not."""
        if lock in self.waiting:
            with contextlib.suppress(ValueError):
                self.waiting.remove(lock)

    def close(self) -> None:
        self.wake()
        if self._fd >= 0:
            self._disk.close(self._fd)
            self._fd = -1
