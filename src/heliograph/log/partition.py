"""One partition's log as its writers see it: append, rotate, sync, fence.

Every change of the log happens here, under the partition's mutex and its append lock (see held.py). Syncing
happens outside both, so that others append meanwhile: `synced` then moves under the lock to what was written
before the sync began. A failed sync fences the log in the head, for every process.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import google_crc32c

from heliograph.disk import explain
from heliograph.errors import Busy, Fenced, HeliographError, OutcomeUnknown
from heliograph.limits import INDEX_STRIDE_BYTES, LOCK_KEEP_S, LOCK_OFTEN_S
from heliograph.log import room, segments
from heliograph.log.groups import Group, Guard, Mark
from heliograph.log.head import (
    DELETED,
    FENCED,
    FIELDS_AT,
    LOCK_WANTED,
    NEWS_WANTED,
    ROOM,
    SEQUENCE,
    Fields,
    TornHead,
    pack_moving,
)
from heliograph.log.held import Evicted
from heliograph.log.lines import Form
from heliograph.log.locks import BRIEFLY, TURN
from heliograph.log.news import Fresh
from heliograph.log.sharing import SharingLog

_extend = google_crc32c.extend
_value = google_crc32c.value
_KEEP_US: Final = int(LOCK_KEEP_S * 1e6)
_OFTEN_US: Final = int(LOCK_OFTEN_S * 1e6)
_LOOK_MASK: Final = 15
"""Whoever publishes one by one, asked for the lock, looks after every 16th whether its turn is over."""


class Partition(SharingLog):
    """The writing side of one partition in this process."""

    __slots__ = ()

    # -- appending ----------------------------------------------------------------------------------------

    def append(self, groups: Sequence[Group]) -> None:
        """Append groups of bodies with one write; afterwards each knows its first offset."""
        with self.mutex:
            often = self._often(groups[-1].now_us)
            self._enter(TURN if often else BRIEFLY)
            self._append(groups)
            self._leave(often=often)
        if not self._always:  # else there is no news before the sync: whoever woke now would be in its way
            self.news.tell()

    def append_batch(self, batch: Group) -> int:
        """Append one group; its first offset."""
        self.append((batch,))
        if batch.refused is not None:
            raise batch.refused
        return batch.first

    def append_one(
        self, form: Form, id_bytes: bytes, microseconds: int, hole: bytes, now_us: int, guard: Guard | None = None
    ) -> int:
        """Append one message that needs no sync: as `append`, in as few steps as possible; its offset."""
        with self.mutex:  # acquire and release take half as long, but Ctrl-C may come between acquire and try
            at, quick_to = self.written, self._lock.quick_to
            if at >= quick_to:
                return self._append_one_looking(form, id_bytes, microseconds, hole, now_us, guard)
            offset = self.next
            place, line = form.fitted
            if place is not self._origin:
                line = form.line(self._origin)
            data = line % (id_bytes, microseconds, hole, offset)
            data = b'%b,"crc":"%08x"}\n' % (data, _value(data))
            written = at + len(data)
            if written > quick_to:
                return self._append_one_looking(form, id_bytes, microseconds, hole, now_us, guard)
            if guard is not None and (refusal := guard()) is not None:
                raise refusal
            try:
                start = self._map_from
                self._map[at - start : written - start] = data
                self.next = following = offset + 1
                self.written = written
                self.crc = crc = _extend(self.crc, data)
                if now_us >= self._latest_us:
                    self._latest_us = now_us
                else:
                    self._note_times(offset, now_us, now_us, now_us)
                words = self._words
                words[SEQUENCE] = sequence = words[SEQUENCE] | 1
                pack_moving(self._head_map, FIELDS_AT, following, written, crc)
                words[SEQUENCE] = sequence + 1
            except BaseException as error:
                self._give_up(error)
                raise
            if words[NEWS_WANTED] or not offset & _LOOK_MASK or self._serves:
                self._look_around(now_us)
            return offset

    def _append_one_looking(
        self, form: Form, id_bytes: bytes, microseconds: int, hole: bytes, now_us: int, guard: Guard | None
    ) -> int:
        """The same for whoever has to see first whether the lock is held, there is room, and an index entry is due.

        Afterwards it is known how far the next ones need not look.
        """
        self.used = True
        if self.written + len(hole) + form.room > self._rotate_at or not self._lock.held:
            return self._append_one_entering(form.body % (id_bytes, microseconds, hole), now_us, guard)
        if guard is not None and (refusal := guard()) is not None:
            raise refusal
        offset = self.next
        try:
            self._append_line(self._line(form, id_bytes, microseconds, hole), now_us)
        except BaseException as error:
            self._give_up(error)
            raise
        self._lock.quick_to = min(self._map_to, self._rotate_at, self.open_position + INDEX_STRIDE_BYTES - 1)
        self._look_around(now_us)
        return offset

    def _look_around(self, now_us: int) -> None:
        """One was appended: tell those who wait for it, in whichever process, and see whether others want to append."""
        words = self._words
        if self._serves:
            self._append_handed()
        if words[NEWS_WANTED]:
            self.news.tell()
        if words[LOCK_WANTED] and self._lock.held and not self._may_keep():  # it is not if another's line failed
            self._own_us = now_us
            self._release()

    def _line(self, form: Form, id_bytes: bytes, microseconds: int, hole: bytes) -> bytes:
        """A message as it stands in this log if it comes next."""
        data = form.line(self._origin) % (id_bytes, microseconds, hole, self.next)
        return b'%b,"crc":"%08x"}\n' % (data, _value(data))

    def _give_up(self, error: BaseException) -> None:
        """A write failed or was interrupted (Ctrl-C between it and the word of it): free the lock."""
        if not isinstance(error, OSError):
            self._disown()
            return
        try:
            self._undo_write()
        finally:
            self._release_in_doubt()
        raise explain(error, f"cannot append to {self._directory}") from error

    def _append_one_entering(self, body: bytes, now_us: int, guard: Guard | None) -> int:
        often = self._hands_in or self._often(now_us)
        if often and guard is None and not self._lock.held and (offset := self._hand_in(body, now_us)) >= 0:
            return offset
        group = Group((body,), (_value(body),), now_us)
        group.guard = guard
        self._enter(TURN if often else BRIEFLY)
        self._append((group,))
        self._leave(often=often)
        if group.refused is not None:
            raise group.refused
        self.news.tell()
        return group.first

    def commit_one(
        self, form: Form, id_bytes: bytes, microseconds: int, hole: bytes, now_us: int, guard: Guard | None = None
    ) -> int:
        """Append one message and make it durable: as `commit`, in as few steps as possible; its offset.

        After a sync the caches are cold, and every step costs several times what it costs in a busy loop.
        """
        with self.mutex:
            self._enter()
            if guard is not None and (refusal := guard()) is not None:
                self._leave(often=False)
                raise refusal
            offset, line = self.next, self._line(form, id_bytes, microseconds, hole)
            self._try(self._write, line, 1, now_us, now_us, now_us)
            if self.written > self._room_from and self.written > self._words[ROOM]:
                self._lay_room(len(hole))
            fd, base, written, crc = self._fd, self.base, self.written, self.crc
            self._syncing += 1
            if self._lock.wanted():
                self._release()
        try:
            self._disk.fdatasync(fd)
        except BaseException as error:
            self._sync_ended(error, base)
            raise
        with self.mutex:
            self._syncing -= 1
            if self._retired:
                self._close_retired()
            if self._lock.held and self.base == base and self.synced < written and self._linked():
                self.synced, self.synced_next, self.synced_crc = written, offset + 1, crc
                self._leave(often=False)
            else:
                self._mark_synced(Mark(base, written, offset + 1, crc))
            wanted = self._words[NEWS_WANTED]
        if wanted or self.news.waiting:
            herald = self.news.herald
            if herald is not None:
                herald.fresh = Fresh(offset, line, base)
            self.news.tell()
        return offset

    def commit(self, groups: Sequence[Group]) -> bool:
        """Append groups with one write and make them durable with one sync; whether a thread here waited for them.

        The lock is kept during the sync if nobody asked for it lately: that spares taking it again to say
        what is synced. Otherwise other processes append meanwhile.
        """
        with self.mutex:
            self._enter()
            before = self.written
            self._append(groups)
            if self.written > self._room_from and self.written > self._words[ROOM]:
                self._lay_room(self.written - before)
            mark = Mark(self.base, self.written, self.next, self.crc)
            fd = self._fd
            self._syncing += 1
            if self._lock.wanted():
                self._release()
        if len(groups) > 1:
            return self._sync(fd, mark)
        passing = mark.written - before if groups[0].passing else 0
        return self._sync(fd, mark, groups[0].meanwhile, passing=passing)

    def _append(self, groups: Sequence[Group]) -> None:
        self._try(self._write_groups, groups)

    def _try(self, write: Callable[..., None], *arguments: object) -> None:
        """Write; the lock is freed if that fails."""
        try:
            write(*arguments)
        except OSError as error:
            self._release_in_doubt()
            raise explain(error, f"cannot append to {self._directory}") from error
        except BaseException:  # Ctrl-C, or the log was fenced while rotating
            self._disown()
            raise

    def _write_groups(self, groups: Sequence[Group]) -> None:
        following = self.next
        parts = []
        for group in groups:
            if group.guard is not None and (refusal := group.guard()) is not None:
                group.refused = refusal
                continue
            parts.append(group.lines(self._origin, following))
            group.first = following
            following += group.count
        if not parts:
            return
        data = parts[0] if len(parts) == 1 else b"".join(parts)
        last = groups[-1]
        min_us, max_us = last.min_us, last.max_us
        if len(groups) > 1:
            min_us = min([group.min_us for group in groups])
            max_us = max([group.max_us for group in groups])
        self._write(data, following - self.next, min_us, max_us, last.now_us)

    def _write(self, data: bytes, count: int, min_us: int, max_us: int, now_us: int) -> None:
        written = self.written + len(data)
        if self.written and (
            written > self._identity.segment_bytes
            or (self._identity.segment_age_us and now_us - self.created_us > self._identity.segment_age_us)
        ):
            self._rotate(now_us)
            written = len(data)
        self._put(data)
        self._note_times(self.next, min_us, max_us, now_us)
        self.crc = _extend(self.crc, data)
        self.written = written
        self.next += count
        if written - self.open_position >= INDEX_STRIDE_BYTES:
            self._write_index_entry()

    def _put(self, data: bytes) -> None:
        """Write all or nothing."""
        try:
            self._write_bytes(data)
        except OSError:
            self._undo_write()
            raise

    def _undo_write(self) -> None:
        """Cut off what was written. What cannot be, the next appender finds: whole lines of it will be kept."""
        self._unmap()
        self._words[ROOM] = 0  # if it cannot be cut off, the file's length is one that nobody expects
        try:
            self._disk.ftruncate(self._fd, self.written)
        except OSError as error:
            raise OutcomeUnknown(
                f"writing to {self._directory} failed in the middle and could not be undone ({error}): what was just "
                "published may or may not be stored"
            ) from error

    def _rotate(self, now_us: int) -> None:
        """Seal the active segment and begin the next one; in this order, so that a crash loses nothing."""
        if self.open_first != self.next:
            self._write_index_entry()
        self._take_room()
        try:
            self._disk.fdatasync(self._fd)
        except OSError as error:
            self.sync_failed = True
            self._fence()
            raise Fenced(f"{self._directory} is fenced: syncing a full segment failed ({error})") from error
        base = self.next
        path = segments.path_of(self._directory, base)
        new_fd = self._disk.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        try:
            self._disk.sync_directory(self._directory)
            index_path = segments.path_of(self._directory, base, segments.INDEX)
            new_index_fd = self._disk.open(index_path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        except OSError:
            # The new segment is there. Going on in the old one would give its offsets twice: finish this first.
            self._half_rotated = True
            self._disk.close(new_fd)
            raise
        self._close_files()
        self._fd, self._index_fd = new_fd, new_index_fd
        self._room_from = room.begins(self._room_bytes)
        self._set(
            Fields(
                base=base,
                next=base,
                synced_next=base,
                first=self.first,
                open_first=base,
                peak_us=self.peak_us,
                append_us=self.append_us,
                created_us=now_us,
                state=self.state,
            )
        )
        self._store()

    # -- syncing ------------------------------------------------------------------------------------------

    def sync(self, mark: Mark | None = None) -> None:
        """Make everything this process appended durable, or raise OutcomeUnknown and fence the log."""
        with self.mutex:
            if mark is None:
                self._look_after_owed()
                mark = Mark(self.base, self.written, self.next, self.crc)
            if self._fd < 0:
                return
            if mark.base != self.base or self.synced >= mark.written:
                return  # rotation synced it, or somebody else did
            fd = self._fd
            self._syncing += 1
        self._sync(fd, mark)

    def _sync(self, fd: int, mark: Mark, meanwhile: Callable[[], None] | None = None, *, passing: int = 0) -> bool:
        try:
            if meanwhile is not None:  # the disk is at it already
                meanwhile()
            self._disk.fdatasync(fd)
            if passing > 0:  # so many bytes at the end; none of a segment that they began
                self._disk.uncache(fd, passing, mark.written - passing)
        except BaseException as error:
            self._sync_ended(error, mark.base)
            raise
        with self.mutex:
            self._syncing -= 1
            if self._retired:
                self._close_retired()
            self._mark_synced(mark)
        return self.news.tell()

    def _sync_ended(self, error: BaseException, base: int) -> None:
        """A sync failed: fence the log. Or it was interrupted (Ctrl-C): what is written stays written."""
        if not isinstance(error, OSError):
            with self.mutex:
                self._syncing -= 1
                if self._lock.held:
                    self._disown()
            return
        with self.mutex:
            self._syncing -= 1
            self.sync_failed = True
            try:
                self._fence(base)
            except HeliographError:
                self._fence_due = True
            if self._lock.held:  # who keeps the lock would not look for the fence
                self._release()
            self._close_retired()
        raise OutcomeUnknown(
            f"syncing {self._directory} failed ({error}): what was just written may or may not survive. "
            "The log is fenced; check the disk, then run 'helio verify --repair'."
        ) from error

    def _mark_synced(self, mark: Mark) -> None:
        kept = self._lock.held
        if kept and not self._linked():
            self._release()
        try:
            self._enter()
        except (Fenced, Busy) as error:  # fenced meanwhile: repair would cut what we just wrote
            raise OutcomeUnknown(f"what was just written may or may not survive: {error}") from error
        if self.base == mark.base and mark.written > self.synced:
            self.synced, self.synced_next, self.synced_crc = mark.written, mark.next, mark.crc
        if self._owed <= mark.next:
            self._owed = 0
        self._leave(often=kept)

    def _linked(self) -> bool:
        """Whether the active segment is a file of some directory. The lock is held, so that nobody may replace it.

        If not, somebody has deleted it by hand. Whoever takes the lock anew finds out what is left, and says so: what
        is written to it, and synced, is nowhere.
        """
        try:
            return self._disk.linked(self._fd)
        except OSError:
            return False
        except BaseException:  # Ctrl-C
            self._disown()
            raise

    def _fence(self, base: int | None = None) -> None:
        """Close the log for every process. The caller holds the mutex.

        Not if it has left the segment ``base`` meanwhile: then the failed bytes were synced by whoever rotated,
        or cut off by a repair.
        """
        held = self._lock.held
        if not held:
            self._acquire()
        if base is None or base == self.base:
            self.state |= FENCED
            self._store()
        if not held:
            self._release()

    # -- administration: each holds the mutex and the lock ---------------------------------------------------

    def change(self, change: Callable[[Partition], None]) -> None:
        """Run ``change`` under mutex and lock, though the log be fenced; the head is stored afterwards."""
        with self.mutex, self.locked_anyhow():
            change(self)

    def mark_deleted(self) -> None:
        """Tell every process. The caller holds mutex and lock."""
        self.state |= DELETED

    def seal(self) -> None:
        """Seal the active segment and begin the next. The caller holds mutex and lock."""
        self._rotate(self._clock.time_ns() // 1000)

    def rotate(self) -> bool:
        """Seal the active segment now, if it has anything in it."""
        with self.mutex, self.locked():
            if not self.written:
                return False
            self.seal()
            return True

    def settle(self) -> None:
        """Repair what a dead process left, which it may have written without a word in the head, and sync."""
        self.sync(self._mark())

    def sync_through(self, offset: int, begins: Callable[[], None] | None = None) -> None:
        """Make sure that everything before ``offset`` is on disk, whoever wrote it.

        ``begins`` is called when there is nothing left to do but to wait for the disk, if that is necessary at all.
        """
        known: int | None = offset
        synced = False
        with contextlib.suppress(TornHead):  # entering repairs it
            bounds = self.bounds(synced=True)
            synced = bounds.next >= offset
            if bounds.state & (FENCED | DELETED):  # entering says so, and nothing is synced any more
                known = None
        mark = None if synced else self._mark(known)
        if begins is not None:
            begins()
        if mark is not None:
            self.sync(mark)

    def _mark(self, offset: int | None = None) -> Mark:
        """What a sync covers that begins now. If this process knows of ``offset``, what it knows of will do."""
        with self.mutex:
            known = offset is not None and self._fd >= 0 and self.next >= offset
            kept = self._lock.held
            if not known:
                self._enter()
            mark = Mark(self.base, self.written, self.next, self.crc)
            if not known:
                self._leave(often=kept)
        return mark

    def release_if_idle(self, following: int) -> bool:
        """Give a kept lock back if nothing was appended lately, or its turn is over. True if nobody has to look again.

        ``following`` is the next offset as it was at the last look.
        """
        if not self.mutex.acquire(blocking=False):
            self._look_from_outside()
            return False
        try:
            self._fold_times()
            idle_us = self._clock.time_ns() // 1000 - self.append_us  # below 0 if the clock was put back
            busy = self.next != following and idle_us < _KEEP_US
            if self._lock.held and not (busy and self._may_keep() and self._linked()):
                self._release()
            # Though another process may have the lock: this one is in its turns, or hands in.
            self._watched = not self._tray_is_idle() or busy
            return not self._watched
        finally:
            self.mutex.release()

    def _look_from_outside(self) -> None:
        """A thread is appending, as one that does nothing else always is: it would not see that its segment is gone.

        So it is asked for the lock: whoever takes it anew sees it. Asked in vain, because the file was closed in this
        moment and its number is another one's, it loses a microsecond.
        """
        with contextlib.suppress(OSError, ValueError):  # closed in this moment
            if self._fd >= 0 and not self._disk.linked(self._fd):
                self._words[LOCK_WANTED] = BRIEFLY

    def release_if_asked(self) -> None:
        """Somebody rang for the lock: give it back, unless this process is just appending, and in its turn."""
        if not self.mutex.acquire(blocking=False):
            return  # whoever is at it looks itself, and is rung for again
        try:
            if self._words[LOCK_WANTED] and self._lock.held:
                self._fold_times()
                busy = 0 <= self._clock.time_ns() // 1000 - self.append_us < _OFTEN_US
                if not (busy and self._may_keep()):
                    self._release()
        except ValueError:  # closed in this moment
            pass
        finally:
            self.mutex.release()

    @property
    def lock_path(self) -> Path:
        """The file that is written to by whoever wants the lock and is not heard."""
        return self._lock.path

    @property
    def gone(self) -> bool:
        """Whether it was closed for room or its channel was deleted."""
        try:
            return self.closed or bool(self.fields().flags & DELETED) or not self.in_place()
        except (Evicted, ValueError):  # another thread closed it meanwhile: the head is unmapped
            return True

    @property
    def fenced(self) -> bool:
        """Whether this process knows that a sync failed."""
        return bool(self.state & FENCED)

    @property
    def dirty(self) -> bool:
        """Whether a sync would help: nothing does once the log is fenced, or is needed once it is deleted."""
        if self.state & (FENCED | DELETED):
            return False
        return self._owed > 0 or (self._fd >= 0 and self.written > self.synced)

    @property
    def astir(self) -> bool:
        """Whether something is to be synced, or may be before this process takes the append lock again."""
        return self.dirty or self._lock.held

    def close_if_idle(self) -> bool:
        """Close if nobody is using it just now; whether it is closed."""
        if self.news.waiting or self.sync_failed:
            return False
        try:
            self.sync()  # the descriptor that wrote stays open until its sync returned
        except HeliographError:
            return False
        if not self.mutex.acquire(blocking=False):
            return False
        try:
            if self._syncing or self.dirty:
                return False
            if self._lock.held:  # kept for the next append, which did not come
                self._release()
            self._take_idle_room()
            self.abandon()
            return True
        finally:
            self.mutex.release()

    def close(self) -> None:
        """Close all files. The caller has synced."""
        with self.mutex:
            if not self.closed:
                if self._lock.held:
                    self._release()
                self._take_idle_room()
                self.abandon()

    def finish(self) -> None:
        """Sync what was appended since the caller has synced, and close all files: nothing comes in between."""
        with self.mutex:
            if self.closed:
                return
            try:
                self._look_after_owed()
                if self.dirty and not self.sync_failed:
                    self._sync_last()
            finally:
                if self._lock.held:
                    self._release()
                self._take_idle_room()
                self.abandon()

    def _sync_last(self) -> None:
        try:
            self._disk.fdatasync(self._fd)
        except OSError as error:
            self.sync_failed = True
            self._fence()
            raise OutcomeUnknown(
                f"syncing {self._directory} failed ({error}): what was written last may or may not survive"
            ) from error
        self._mark_synced(Mark(self.base, self.written, self.next, self.crc))

    def abandon(self) -> None:
        """Close without unlocking: what a forked child does with what it inherited."""
        self.closed = True
        self._owed = 0  # whoever closes has synced
        self._close_files()
        if self._tray is not None:
            self._hands_in = False
            self._tray.close()
            self._tray = None
        self._lock.close()
        self.news.close()
        self.head.close()
