"""The tray: where a process hands a message in to whoever holds the append lock, to be appended by that one.

Two busy processes at one partition would take turns at its lock, and one of them always waits. But two thirds of
publishing need no lock. So the one that would wait makes its message and puts it into the tray, and the one that has
the lock appends it after its own, while the other one is already at its next. The file is 64 KiB of shared memory,
written once with zeros::

    who hands in, and holds the flock of the file              who holds the append lock

    0    Q   asked: how many were handed in; written last
    8    Q   how many bytes the body has
    16   Q   its crc32c
    24   Q   its time (µs since the epoch)
                                                               64   Q   the segment (its first offset)
                                                               72   Q   and the byte of it where the one that is about
                                                                        to be appended will stand,
                                                               80   Q   at which offset
                                                               88   Q   taken: which one that is; written last
                                                               128  Q   answered: the number of the last one that is
                                                                        appended, and said to be in the head; after
                                                               136  Q   its offset
    192      the body

A message lies in the tray while ``asked`` and ``answered`` differ. Whoever holds the append lock may take it at any
moment, so there is no taking it back without that lock. Under it nobody else takes anything, and all is decided:

    answered    it is appended, at that offset
    taken       whoever took it died, or failed: the segment tells whether the body stands at that place
    neither     it is not appended, and never will be: ``answered`` is set to ``asked``

Only where stores become visible in the order in which they are made (x86): elsewhere a number could be seen before the
body that belongs to it.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
from pathlib import Path
from typing import Final, NamedTuple

from heliograph.clock import Clock
from heliograph.disk import Disk
from heliograph.limits import TRAY_SPIN_S, TRAY_WAIT_S
from heliograph.log.head import LOCK_HOLDER, SERVED_BY

SIZE: Final = 64 * 1024
BODY_AT: Final = 192
BODY_BYTES_MAX: Final = SIZE - BODY_AT
_ASKED: Final = 0
_REQUEST: Final = struct.Struct("@3Q")
_REQUEST_AT: Final = 8
_TAKING: Final = struct.Struct("@4Q")
_TAKING_AT: Final = 64
_TAKEN: Final = 88 // 8
_ANSWERED: Final = 128 // 8
_OFFSET: Final = 136 // 8
_LOOKS: Final = range(200)
"""As many looks for an answer take about as long as an append."""


class Taken(NamedTuple):
    """Where whoever took a message was about to append it."""

    segment: int
    position: int
    offset: int


class Tray:
    """One partition's tray, as this process has it mapped."""

    __slots__ = ("_disk", "_fd", "_looked_at", "_map", "_words", "ours")

    def __init__(self, path: Path, disk: Disk) -> None:
        self._disk = disk
        self._fd = disk.open(path, os.O_RDWR | os.O_CREAT)
        self.ours = False  # whether this process hands in here
        self._looked_at = -1
        try:
            self._lay_out()
            self._map = mmap.mmap(self._fd, SIZE)
        except BaseException:
            disk.close(self._fd)
            raise
        self._words = memoryview(self._map).cast("Q")

    def _lay_out(self) -> None:
        """Write zeros, unless that is done: a sparse page on a full disk would be SIGBUS."""
        if self._disk.fstat(self._fd).st_size >= SIZE:
            return
        self._disk.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)  # if another one is at it: next time
        try:
            size = self._disk.fstat(self._fd).st_size
            if size < SIZE:
                self._disk.pwrite_all(self._fd, bytes(SIZE - size), size)
        finally:
            self._disk.flock(self._fd, fcntl.LOCK_UN)

    # -- handing in -----------------------------------------------------------------------------------------

    def claim(self) -> bool:
        """Be the one process that hands in; False if another one is, or if a dead one's message lies here."""
        if not self.ours and self._lock():
            if self.occupied:  # a dead one's: whoever holds the append lock may be just taking it
                self._disk.flock(self._fd, fcntl.LOCK_UN)
            else:
                self.ours = True
        return self.ours and not self.occupied

    def _lock(self) -> bool:
        try:
            self._disk.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def give_up(self) -> None:
        """Let another process hand in. Only with the append lock, or while nothing lies here."""
        if self.ours:
            self.clear()
            self.ours = False
            self._disk.flock(self._fd, fcntl.LOCK_UN)

    @property
    def occupied(self) -> bool:
        """Whether a message lies here."""
        words = self._words
        return words[_ASKED] != words[_ANSWERED]

    def hand_in(self, body: bytes, crc: int, time_us: int, head: memoryview, clock: Clock) -> int:
        """Have a message appended; its offset, or -1 if nobody takes it, as far as can be seen without the lock."""
        words, mapped = self._words, self._map
        number = words[_ASKED] + 1
        mapped[BODY_AT : BODY_AT + len(body)] = body
        _REQUEST.pack_into(mapped, _REQUEST_AT, len(body), crc, time_us)
        words[_ASKED] = number
        for _ in _LOOKS:
            if words[_ANSWERED] == number:
                return words[_OFFSET]
        return self.wait(head, clock)

    def wait(self, head: memoryview, clock: Clock) -> int:
        """The same for one that was handed in: the holder may be laying room, or have no core just now."""
        words = self._words
        number = words[_ASKED]
        began = clock.monotonic()
        while True:
            for _ in _LOOKS:
                if words[_ANSWERED] == number:
                    return words[_OFFSET]
            waited_s = clock.monotonic() - began
            if waited_s > TRAY_WAIT_S or head[SERVED_BY] != head[LOCK_HOLDER] or not head[LOCK_HOLDER]:
                return -1
            if waited_s < TRAY_SPIN_S:
                clock.give_way()
            else:  # there may be more to do than cores: who only looks would keep one from the holder
                clock.sleep(TRAY_SPIN_S)

    def idle(self) -> bool:
        """Whether nothing was handed in since this was last asked."""
        before, self._looked_at = self._looked_at, self._words[_ASKED]
        return before == self._looked_at

    # -- with the append lock -------------------------------------------------------------------------------

    def take(
        self, segment: int, position: int, offset: int, bytes_max: int, looks: range
    ) -> tuple[bytes, int, int] | None:
        """The message that lies here, to be appended there, if it is not longer: its body, its crc and its time."""
        words, mapped = self._words, self._map
        answered = words[_ANSWERED]
        for _ in looks:
            number = words[_ASKED]
            if number != answered:
                break
        else:
            return None
        length, crc, time_us = _REQUEST.unpack_from(mapped, _REQUEST_AT)
        if length > bytes_max:
            return None
        _TAKING.pack_into(mapped, _TAKING_AT, segment, position, offset, number)
        return mapped[BODY_AT : BODY_AT + length], crc, time_us

    def discard_dead(self) -> None:
        """Take away what a process left here that has died since. What is not taken soon shall not be taken at all."""
        if not self.ours and self._lock():
            self.clear()
            self._disk.flock(self._fd, fcntl.LOCK_UN)

    def taken(self) -> tuple[Taken, bytes] | None:
        """The message that lies here, if it was taken and nobody has answered: where it may stand, and its body."""
        if not self.occupied or not isinstance(place := self.settle(), Taken):
            return None
        length = _REQUEST.unpack_from(self._map, _REQUEST_AT)[0]
        return place, self._map[BODY_AT : BODY_AT + length]

    def answer(self, offset: int) -> None:
        """Say that the one that was taken is appended: after the head does."""
        words = self._words
        words[_OFFSET] = offset
        words[_ANSWERED] = words[_TAKEN]

    def settle(self) -> Taken | int | None:
        """What became of the message that was handed in last: its offset, where it may stand, or nothing."""
        words = self._words
        segment, position, offset, taken = _TAKING.unpack_from(self._map, _TAKING_AT)
        if words[_ANSWERED] == words[_ASKED]:
            return words[_OFFSET]
        return Taken(segment, position, offset) if taken == words[_ASKED] else None

    def clear(self) -> None:
        """Nothing lies here any more."""
        self._words[_ANSWERED] = self._words[_ASKED]

    def close(self) -> None:
        """Let go of it. Closing a copy of the descriptor, as a forked child does, frees nothing."""
        self._words.release()
        self._map.close()
        self._disk.close(self._fd)
