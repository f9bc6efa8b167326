"""The part of a partition that lets two busy processes append at once: one holds the lock, the other one hands in.

    who holds the lock                                 who waits for it
                                                       appends often, finds the lock held: asks to HAND_IN
    appends, and looks who asks: says that it serves
    (SERVED_BY in the head)
                                                       puts a message into the tray, looks for the answer
    appends two lines, says so in the head, answers
                                                       has an offset, and goes on with its next message

Whatever is out of the ordinary (nobody serves, nobody answers, another process hands in already, the message is too
large) ends at the append lock, under which everything is decided: see tray.py.
"""

from __future__ import annotations

import contextlib
import os
from typing import Final

import google_crc32c

from heliograph.errors import Busy, Fenced, OutcomeUnknown
from heliograph.limits import TRAY_EMPTY_MAX, TRAY_TRIES
from heliograph.log import segments
from heliograph.log.head import LOCK_HOLDER, LOCK_WANTED, SERVED_BY, STORES_IN_ORDER
from heliograph.log.held import NO_TIME, ChannelGone
from heliograph.log.lines import TAIL_BYTES_MAX
from heliograph.log.locks import HAND_IN, TURN, Served
from heliograph.log.roomy import RoomyLog
from heliograph.log.tray import BODY_BYTES_MAX, Taken, Tray

_extend = google_crc32c.extend
_value = google_crc32c.value
_ONCE: Final = range(1)
_A_WHILE: Final = range(24)
"""How often to look into the tray: whoever had a message there last time is about to bring the next one. The two are
in step then, and waiting half a microsecond for it costs less than appending it alone."""


class SharingLog(RoomyLog):
    """One partition's end, and the tray beside it."""

    __slots__ = ()

    # -- the one that waits ---------------------------------------------------------------------------------

    def _hand_in(self, body: bytes, now_us: int) -> int:
        """Have the lock's holder append a message; its offset, or -1: then it is for this process to append it."""
        if len(body) > BODY_BYTES_MAX or not (self._hands_in or self._is_served()):
            return -1
        self._hands_in = False  # whatever interrupts it
        tray = self._tray
        assert tray is not None
        offset = tray.hand_in(body, _value(body), now_us, self._words, self._clock)
        if offset < 0:
            return self._fetch_back(tray, body)
        self._hands_in = True
        self._owed = offset + 1
        return offset

    def _is_served(self) -> bool:
        """Whether the lock's holder takes what this process hands in. If not, this one may hold the lock by now."""
        words = self._words
        if self._always or not STORES_IN_ORDER or words[LOCK_HOLDER] == self._lock.pid:
            return False  # the last: another station of this process, whose threads would wait for each other
        if words[SERVED_BY] == words[LOCK_HOLDER] != 0:
            return self._claim_tray()
        try:
            self._enter(HAND_IN)
        except Served:
            return self._claim_tray()
        return False

    def _claim_tray(self) -> bool:
        tray = self._tray or self._open_tray()
        if tray is None or not tray.claim():
            return False
        if not self._watched:  # somebody has to see when there is nothing more to hand in
            self._watched = True
            self._on_kept(self)
        return True

    def _open_tray(self) -> Tray | None:
        with contextlib.suppress(OSError):  # a full disk, no descriptor left: then they take turns
            self._tray = Tray(self._directory / "tray", self._disk)
        return self._tray

    def _fetch_back(self, tray: Tray, body: bytes) -> int:
        """Nobody answers: take the lock, and see what became of a message; its offset, or -1 if it is not appended."""
        try:
            offset = self._ask_again(tray)
            if offset >= 0:
                return offset
            self._enter(TURN)
        except (Busy, Fenced) as error:
            raise OutcomeUnknown(
                f"another process was to append this message with its own, and may or may not have done so: {error}"
            ) from error
        try:
            found = tray.settle()
            if isinstance(found, Taken):
                found = found.offset if self._stands_at(found, body) else None
        except BaseException as error:  # Ctrl-C, or the disk: somebody else shall have the lock
            self._disown()
            if isinstance(error, OSError):
                raise OutcomeUnknown(
                    f"another process was to append this message, and cannot be checked: {error}"
                ) from error
            raise
        if found is None:
            return -1
        self._owed = found + 1
        self._leave(often=True)
        return found

    def _ask_again(self, tray: Tray) -> int:
        """The offset of a message that is taken after all; -1 if this process has the lock now, or has waited enough.

        Its holder may have given the lock to somebody for a moment, or have no core just now. Or it publishes no more,
        and has to be rung for.
        """
        for _ in range(TRAY_TRIES):
            try:
                self._enter(HAND_IN)
            except Served:
                self._lock.ring(HAND_IN)
            else:
                return -1
            offset = tray.wait(self._words, self._clock)
            if offset >= 0:
                self._hands_in = True
                self._owed = offset + 1
                return offset
        return -1

    def _stands_at(self, place: Taken, body: bytes) -> bool:
        """Whether a message was appended there: whoever was about to do so died or failed; the log is repaired."""
        if place.segment == self.base:
            return place.position < self.written and self._disk.pread(self._fd, len(body), place.position) == body
        try:
            fd = self._disk.open(segments.path_of(self._directory, place.segment), os.O_RDONLY)
        except FileNotFoundError:
            return False
        try:
            return self._disk.pread(fd, len(body), place.position) == body
        finally:
            self._disk.close(fd)

    def _tray_is_idle(self) -> bool:
        """Whether this process has handed nothing in lately: then another one may."""
        tray = self._tray
        if tray is None or not tray.ours:
            return True
        if not tray.idle():
            return False
        if not tray.occupied:
            self._let_go_of_tray()
        return True

    def _look_after_owed(self) -> None:
        """What another process appended for this one is for this one to sync, too, if nobody has: see how far it is."""
        if not self._owed:
            return
        synced = self.head.limit(synced=True)
        if synced is not None and synced.next >= self._owed:
            self._owed = 0
            return
        try:
            self._enter()
        except ChannelGone:  # nothing is left of it
            self._owed = 0
        except Fenced as error:
            self._owed = 0
            raise OutcomeUnknown(f"what was just written may or may not survive: {error}") from error
        else:
            if self.synced_next >= self._owed:
                self._owed = 0
            self._leave(often=False)

    # -- the one that holds the lock ------------------------------------------------------------------------

    def _may_keep(self) -> bool:
        """Whether to keep the lock though somebody may want it: for a turn, or to serve whoever asks to hand in."""
        words = self._words
        if words[LOCK_WANTED] == HAND_IN and self._serve():
            words[LOCK_WANTED] = 0
            return True
        return self._lock.may_keep()

    def _serve(self) -> bool:
        """Begin to take messages from the tray, if that can be."""
        if self._rotate_at < 0 or not self._lock.keep:  # each append is looked at alone; or is followed by a sync
            return False
        tray = self._tray or self._open_tray()
        if tray is None:
            return False
        tray.discard_dead()
        self._serves = True
        self._served = self.next
        self._words[SERVED_BY] = self._words[LOCK_HOLDER]
        return True

    def _with_another(self, line: bytes) -> tuple[bytes, int]:
        """An own line, and behind it that of a message from the tray, if there is one; and the offset that follows."""
        tray = self._tray
        assert tray is not None
        at, offset = self.written + len(line), self.next + 1
        looks = _A_WHILE if self._served == self.next else _ONCE
        room = self._rotate_at - at - TAIL_BYTES_MAX
        # The first of an index entry comes alone: what it says of times is what its entry begins with.
        handed = None if self.open_first == self.next else tray.take(self.base, at, offset, room, looks)
        if handed is None:
            if offset - self._served > TRAY_EMPTY_MAX:
                self._serve_no_more()
            return line, offset
        body, crc, time_us = handed
        if self._latest_us == NO_TIME or not self.open_min_us <= time_us <= self._latest_us:
            self._note_times(offset, time_us, time_us, time_us)
        self._served = offset + 1
        tail = b'%b%d"' % (self._origin, offset)
        return b'%b%b%b,"crc":"%08x"}\n' % (line, body, tail, _extend(crc, tail)), offset + 1

    def _answer(self) -> None:
        """Say that the message from the tray is appended, as the head does by now."""
        assert self._tray is not None
        self._tray.answer()
