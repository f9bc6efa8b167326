"""The part of a partition that lets two busy processes append at once: one holds the lock, the other one hands in.

    who holds the lock                                 who waits for it
                                                       appends often, finds the lock held: asks to HAND_IN
    appends, and looks who asks: says that it serves
    (SERVED_BY in the head)
                                                       puts a message into the tray, looks for the answer
    appends its own line, then the other one's, says
    so in the head, answers
                                                       has an offset, and goes on with its next message

Whatever is out of the ordinary (nobody serves, nobody answers, another process hands in already, the message is too
large) ends at the append lock, under which everything is decided: see tray.py.
"""

from __future__ import annotations

import contextlib
import os
from typing import Final

import google_crc32c

from heliograph.errors import Busy, Fenced, HeliographError, OutcomeUnknown
from heliograph.limits import INDEX_STRIDE_BYTES, LOCK_OFTEN_S, TRAY_EMPTY_MAX, TRAY_TRIES
from heliograph.log import index, segments
from heliograph.log.head import (
    FIELDS_AT,
    LOCK_HOLDER,
    LOCK_WANTED,
    SEQUENCE,
    SERVED_BY,
    STORES_IN_ORDER,
    pack_moving,
)
from heliograph.log.held import NO_TIME, ChannelGone
from heliograph.log.lines import TAIL_BYTES_MAX
from heliograph.log.locks import HAND_IN, TURN, Served
from heliograph.log.roomy import RoomyLog
from heliograph.log.tray import BODY_BYTES_MAX, Taken, Tray

_extend = google_crc32c.extend
_value = google_crc32c.value
_OFTEN_US: Final = int(LOCK_OFTEN_S * 1e6)
_ONCE: Final = range(1)
_A_WHILE: Final = range(24)
"""How often to look into the tray: whoever had a message there last time is about to bring the next one. The two are
in step then, and half a microsecond is less than it would wait for the next look."""


class SharingLog(RoomyLog):
    """One partition's end, and the tray beside it."""

    __slots__ = ()

    def _often(self, now_us: int) -> bool:
        """Whether this process appends so often that it had better keep the lock. One more is appended."""
        before_us, self._own_us = self._own_us, now_us
        return 0 <= now_us - before_us < _OFTEN_US

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
        self._was_taken(offset)
        return offset

    def _was_taken(self, offset: int) -> None:
        """The lock's holder has appended a message of this process, which sees to it that it is synced."""
        self._hands_in = True
        self._owed = offset + 1
        self._wake_syncer()

    def _is_served(self) -> bool:
        """Whether the lock's holder takes what this process hands in. If not, this one may hold the lock by now."""
        words = self._words
        if self.closed or self._always or not STORES_IN_ORDER or words[LOCK_HOLDER] == self._lock.pid:
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
            tray.clear()  # before it is written: whoever is interrupted then must not leave it to be taken, too
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
                self._was_taken(offset)
                return offset
        return -1

    def _stands_at(self, place: Taken, body: bytes) -> bool:
        """Whether a message was appended there: whoever was about to do so died or failed; the log is repaired."""
        if place.segment == self.base:
            return place.position < self.written and self._disk.pread(self._fd, len(body), place.position) == body
        fd = self._disk.open(segments.path_of(self._directory, place.segment), os.O_RDONLY)
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
        try:
            self._answer_for_interrupted(tray)
        except OSError:
            return False
        self._serves = True
        self._served = self.next
        self._words[SERVED_BY] = self._words[LOCK_HOLDER]
        return True

    def _answer_for_interrupted(self, tray: Tray) -> None:
        """Whoever appended a message may have been interrupted before it answered: it is not to be appended twice."""
        before = tray.taken()
        if before is not None and self._stands_at(*before):
            tray.answer(before[0].offset)

    def _append_handed(self) -> None:
        """Append the message that was handed in, if there is one. If that fails, who handed it in finds out why."""
        tray = self._tray
        assert tray is not None
        at, offset = self.written, self.next
        looks = _A_WHILE if self._served == offset - 1 else _ONCE
        handed = tray.take(self.base, at, offset, self._rotate_at - at - TAIL_BYTES_MAX, looks)
        if handed is None:
            if offset - self._served > TRAY_EMPTY_MAX:
                self._serve_no_more()
            return
        body, crc, time_us = handed
        tail = b'%b%d"' % (self._origin, offset)
        try:
            self._append_line(b'%b%b,"crc":"%08x"}\n' % (body, tail, _extend(crc, tail)), time_us)
            self._served = offset + 1
            tray.answer(offset)
        except BaseException as error:
            self._disown()
            if not isinstance(error, (OSError, HeliographError)):
                raise

    def _append_line(self, data: bytes, time_us: int) -> None:
        """Append a finished line that fits into the segment, and say so in the head."""
        self._write_bytes(data)
        offset = self.next
        self.next = following = offset + 1
        self.written = written = self.written + len(data)
        self.crc = crc = _extend(self.crc, data)
        if not self.open_min_us <= time_us <= self._latest_us != NO_TIME:
            self._note_times(offset, time_us, time_us, time_us)
        if written - self.open_position < INDEX_STRIDE_BYTES:
            words = self._words
            words[SEQUENCE] = sequence = words[SEQUENCE] | 1
            pack_moving(self._head_map, FIELDS_AT, following, written, crc)
            words[SEQUENCE] = sequence + 1
        else:
            self._write_index_entry()
            self._store()

    def _write_index_entry(self) -> None:
        self._fold_times()
        entry = index.Entry(
            self.open_first, self.open_position, self.append_us, self.open_min_us, self.open_max_us, self.peak_us,
            self.next - self.open_first, self.written - self.open_position, self.crc,
        )  # fmt: skip
        try:
            self._disk.pwrite(self._index_fd, index.encode(entry), self.index_count * index.SIZE)
        except OSError:
            return  # a hint: the entry goes on growing and is tried again with the next append
        self.index_count += 1
        self.open_first, self.open_position = self.next, self.written

    def _note_times(self, offset: int, min_us: int, max_us: int, now_us: int) -> None:
        """Something with event times between these is appended at an offset."""
        self._fold_times()
        if self.open_first == offset:
            self.open_min_us, self.open_max_us = min_us, max_us
        else:
            if min_us < self.open_min_us:
                self.open_min_us = min_us
            if max_us > self.open_max_us:
                self.open_max_us = max_us
        if max_us > self.peak_us:
            self.peak_us = max_us
        if now_us > self.append_us:  # the clock may step back; the order of appends does not
            self.append_us = now_us
        if self.append_us == self.peak_us == self.open_max_us:  # from here on the latest one is enough to know
            self._latest_us = self.append_us
