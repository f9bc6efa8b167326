"""The part of a partition that holds its lock and knows its end.

Whoever changes a log holds the partition's mutex (threads) and its append lock (processes):

    enter   take the lock; read the head if somebody else stored it; if its holder died, repair first
    leave   store the head; free the lock (or keep it, see AppendLock)
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from heliograph.clock import Clock
from heliograph.disk import Disk, explain
from heliograph.errors import Fenced, HeliographError
from heliograph.log import indexing, recovery, room, segments
from heliograph.log.channel import Identity
from heliograph.log.head import DELETED, FENCED, INODE, ROOM, SEQUENCE, SERVED_BY, Fields, Head, Limit, TornHead
from heliograph.log.lines import origin_place
from heliograph.log.locks import BRIEFLY, AppendLock
from heliograph.log.news import News
from heliograph.log.ports import Owner, Sleeper
from heliograph.log.tray import Tray

NO_TIME: Final = sys.maxsize


class ChannelGone(HeliographError):
    """The channel was deleted while this partition was open. Whoever catches it opens the channel again."""


class Evicted(HeliographError):
    """The partition was closed to make room for others. Whoever catches it opens it again."""


class HeldLog:
    """One partition's files, lock and head, as this process has them."""

    __slots__ = (  # not for memory: attributes of an object with this many are slow without
        "_always", "_busy_timeout_s", "_clock", "_directory", "_disk", "_fd", "_fence_due", "_half_rotated",
        "_hands_in", "_head_map", "_identity", "_identity_generation", "_index_fd", "_latest_us", "_lock",
        "_map", "_map_from", "_map_to", "_on_kept", "_origin", "_owed", "_own_us", "_owner", "_retired",
        "_room_bytes", "_room_from", "_rotate_at", "_seen", "_served", "_serves", "_syncer", "_syncing", "_tray",
        "_watched", "_words", "_write_file", "append_us", "base", "closed", "crc", "created_us", "first",
        "head", "index_count", "mutex", "news", "next", "open_first", "open_max_us", "open_min_us",
        "open_position", "peak_us", "place", "state", "sync_failed", "synced", "synced_crc", "synced_next",
        "used", "written",
    )  # fmt: skip

    def __init__(
        self,
        place: indexing.Place,
        owner: Owner,
        disk: Disk,
        clock: Clock,
        *,
        always: bool,
        busy_timeout_s: float,
        on_kept: Callable[[Any], None],
        room_bytes: int = 0,
        syncer: Sleeper | None = None,
    ) -> None:
        self.place = place
        self.mutex = threading.Lock()
        self.closed = False
        self.used = True  # lately: whoever makes room spares it once
        self.sync_failed = False  # here: what this process has acknowledged without a sync may be lost
        self._owner = owner
        self._disk = disk
        self._write_file = disk.pwrite
        self._clock = clock
        self._always = always
        self._busy_timeout_s = busy_timeout_s
        self._on_kept = on_kept
        self._syncer = syncer
        self._directory: Path = place.directory
        self.head = Head(self._directory / "head", disk)
        self.news = News(self._directory / "news", self.head, disk, clock)
        self._lock = AppendLock(self._directory / "lock", self.head, disk, clock, keep=not always)
        self._words = self.head.words
        self._head_map = self.head.map
        self._own_us = 0  # when this process last appended
        self._seen = -1  # the head's sequence when we last freed the lock
        self._watched = False  # whether somebody will give a kept lock, or the tray, back
        self._tray: Tray | None = None
        self._hands_in = False  # whether this process hands in, and the last one was taken
        self._serves = False  # whether this process takes what others hand in
        self._served = 0  # the offset behind the last one of those
        self._owed = 0  # the offset behind the last one that this process handed in and has not seen synced
        self._half_rotated = False
        self._fence_due = False  # a sync failed, and the lock was not had to say so
        self._fd = self._index_fd = -1
        self._syncing = 0
        self._retired: list[int] = []  # descriptors to close once the syncs that use them have returned
        self._identity_generation = -1
        self._identity = Identity(b"", 0, 0)
        self._origin = b""
        self._rotate_at = -1
        self._room_bytes = room_bytes
        self._room_from = room.begins(room_bytes)
        self._map: Any = None  # room as memory: it is filled without a call of the system
        self._map_from = self._map_to = -1  # between which bytes of the segment
        self._set(Fields(base=-1))

    # -- the head, as this process last saw it ------------------------------------------------------------

    def _set(self, fields: Fields) -> None:
        (
            self.next, self.written, self.crc, self.append_us, self.peak_us, self.open_first,
            self.open_position, self.open_min_us, self.open_max_us, self.index_count, self.base, self.synced,
            self.synced_next, self.synced_crc, self.first, self.created_us, self.state,
        ) = fields  # fmt: skip
        self._latest_us = NO_TIME

    def _fold_times(self) -> None:
        """Say in each field what is kept in one while every message is the latest in every way."""
        if self._latest_us != NO_TIME:
            self.append_us = self.peak_us = self.open_max_us = self._latest_us
            self._latest_us = NO_TIME

    def _store(self) -> None:
        self._fold_times()
        self.head.store(
            self.next, self.written, self.crc, self.append_us, self.peak_us, self.open_first,
            self.open_position, self.open_min_us, self.open_max_us, self.index_count, self.base, self.synced,
            self.synced_next, self.synced_crc, self.first, self.created_us, self.state,
        )  # fmt: skip

    def next_generation(self) -> None:
        """channel.json changed: every process reads it again before its next append."""
        self.state += 1 << 8

    def fields(self) -> Fields:
        """What the head says, without the lock."""
        try:
            return self.head.load()
        except TornHead:
            return self._mend_head()
        except ValueError:  # unmapped
            raise Evicted(str(self._directory)) from None

    def bounds(self, *, synced: bool) -> Limit:
        """How far it is written, or synced; though it be deleted."""
        try:
            found = self.head.limit(synced=synced)
        except ValueError:  # unmapped
            raise Evicted(str(self._directory)) from None
        return self.fields().limit(synced=synced) if found is None else found  # somebody writes it just now

    def limit(self, *, synced: bool | None = None) -> Limit:
        """How far readers may go: what is synced, or (durability `interval`, `os`) what is written."""
        found = self.bounds(synced=self._always if synced is None else synced)
        if found.state & DELETED:
            raise ChannelGone(f"{self._directory} was deleted")
        return found

    def _mend_head(self) -> Fields:
        with self.mutex, self.locked_anyhow():
            return self.head.load()

    # -- the lock -----------------------------------------------------------------------------------------

    def _enter(self, wish: int = BRIEFLY) -> None:
        """Take the lock (unless it was kept) and know the log's end; refuse if it is fenced or deleted."""
        if not self._lock.held:
            self._acquire(wish)
            try:
                if self.state & (DELETED | FENCED):
                    self._check_flags()
                self._look_at_channel()
            except BaseException:
                self._release_in_doubt()
                raise

    def _acquire(self, wish: int = BRIEFLY) -> None:
        """Take the lock and see what other processes did; repair what a dead one left."""
        if self.closed:
            raise Evicted(str(self._directory))
        orphaned = self._lock.acquire(self._busy_timeout_s, wish)
        try:
            self._wake_syncer()
            if (
                self._words[SEQUENCE] == self._seen
                and not (orphaned or self._fence_due)
                and self._fd >= 0
                and self._disk.lseek(self._fd, 0, os.SEEK_END) == max(self.written, self._words[ROOM])
                and self._disk.linked(self._fd)  # else somebody deleted it by hand
            ):
                return  # nobody stored anything since we freed the lock
            self._refresh(orphaned)
            if self._fence_due:
                self.state |= FENCED
                self._store()
                self._fence_due = False
        except BaseException as error:
            self._disown()
            if isinstance(error, OSError):
                raise explain(error, f"cannot append to {self._directory}") from error
            raise

    def _wake_syncer(self) -> None:
        """Something is about to be written, or was: it is to be synced later."""
        if self._syncer is not None and self._syncer.asleep:
            self._syncer.wake()

    def _leave(self, *, often: bool) -> None:
        """Say everything in the head; free the lock unless it may be kept, which is of use if it is needed often."""
        if (self._lock.keep and not often) or not self._may_keep():
            self._release()
            return
        if self._tray is not None:
            self._let_go_of_tray()
        self._store()
        if not self._watched:
            self._watched = True
            self._on_kept(self)

    def _may_keep(self) -> bool:
        return self._lock.may_keep()

    def _release(self) -> None:
        """Say everything in the head, then free the lock."""
        if self._tray is not None:
            self._serve_no_more()
            self._let_go_of_tray()
        self._store()
        self._seen = self._words[SEQUENCE]
        if self._half_rotated:
            self._half_rotated = False
            self._lock.disown()  # whoever is next, perhaps we, repairs
        else:
            self._lock.release()

    def _disown(self) -> None:
        """Free the lock as a dying process would, the head as it last was: whoever is next repairs."""
        self._serve_no_more()
        self._lock.disown()
        self._seen = -1

    def _serve_no_more(self) -> None:
        """Take nothing more that others hand in."""
        if self._serves:
            self._serves = False
            self._words[SERVED_BY] = 0

    def _let_go_of_tray(self) -> None:
        """With the lock: nothing is under way that this process handed in. Another one may, perhaps to this one."""
        self._hands_in = False
        if self._tray is not None:
            self._tray.give_up()

    def _release_in_doubt(self) -> None:
        """After an error: whoever is next, perhaps we, compares the file's size with the head."""
        self._release()
        self._seen = -1

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the append lock; the caller holds the mutex. Frees the lock in the end, the head stored."""
        self._enter()
        with self._releasing():
            yield

    @contextlib.contextmanager
    def _releasing(self) -> Iterator[None]:
        try:
            yield
        except Exception:
            self._release_in_doubt()
            raise
        except BaseException:  # Ctrl-C, anywhere
            self._disown()
            raise
        self._release()

    @contextlib.contextmanager
    def locked_anyhow(self) -> Iterator[None]:
        """As `locked`, though the log be fenced."""
        if not self._lock.held:
            self._acquire()
        with self._releasing():
            yield

    def in_place(self) -> bool:
        """Whether the files at our path are those we have open: the channel may be deleted, and made again."""
        try:
            return self._disk.stat(self.head.path).st_ino == self._words[INODE]
        except FileNotFoundError:
            return False

    def _unmap(self) -> None:
        """The room is gone, or may be: others may have taken it away."""
        self._lock.quick_to = -1
        if self._map is not None:
            self._map_from = self._map_to = -1
            self._map.close()
            self._map = None

    def _refresh(self, orphaned: bool) -> None:
        if self._words[ROOM] < self._map_to:
            self._unmap()
        try:
            fields = self.head.load()
        except TornHead:
            self._repair(None)
            return
        if fields.state & (DELETED | FENCED):  # not to be touched: nothing is verified through the page cache
            self._close_files()
            self._set(fields)
            return
        if fields.base != self.base or self._fd < 0 or self._index_fd < 0:
            self._open_segment(fields.base)
        self._set(fields)
        found = self._disk.fstat(self._fd)
        if not found.st_nlink:  # a repair wrote the segment anew, or it was deleted: what we have open is nobody's
            self._open_segment(fields.base)
            found = self._disk.fstat(self._fd)
        elif not self._disk.fstat(self._index_fd).st_nlink:  # or its index
            self._reopen_index(fields.base)
        if orphaned or found.st_size != max(fields.written, self._words[ROOM]):
            self._repair(fields)

    def _look_at_channel(self) -> None:
        """Read channel.json again if it changed."""
        generation = self.state >> 8
        if generation != self._identity_generation:
            self._identity = identity = self._owner.identity()
            self._origin = origin_place(identity.origin, self.place.number)
            # Segments that also rotate by age are looked at one append at a time.
            self._rotate_at = -1 if identity.segment_age_us else identity.segment_bytes
            self._identity_generation = generation

    def _check_flags(self) -> None:
        if self.state & DELETED:
            raise ChannelGone(f"{self._directory} was deleted")
        if self.state & FENCED:
            raise Fenced(
                f"{self._directory} is fenced: a sync failed, so what was written last may be lost. "
                "Check the disk, then run 'helio verify --repair'."
            )

    def _repair(self, trusted: Fields | None) -> None:
        """The last writer died between its write and its word in the head; find the end of the log."""
        if not self.in_place():  # whoever deleted the channel died before it could say so
            raise ChannelGone(f"{self._directory} was deleted")
        now_us = self._clock.time_ns() // 1000
        self._words[ROOM] = 0  # recovery cuts it off
        report = recovery.recover(self.place, self._disk, trusted, now_us)
        fields = report.fields
        if trusted is None:  # its flags and generation were not what its writer died of
            fields = fields._replace(state=self.head.state() + (1 << 8))
        elif fields.next < trusted.next:
            self._owner.lost(self.place.number, report)  # the file shrank: somebody may have seen what is gone
            fields = fields._replace(state=trusted.state + (1 << 8))
            self._identity_generation = -1
        self._open_segment(fields.base)
        self._set(fields)
        self._store()

    def _open_segment(self, base: int) -> None:
        self._close_files()
        if not self.in_place():
            raise ChannelGone(f"{self._directory} was deleted")
        self._fd = self._disk.open(segments.path_of(self._directory, base), os.O_RDWR)
        self._open_index(base)

    def _open_index(self, base: int) -> None:
        path = segments.path_of(self._directory, base, segments.INDEX)
        self._index_fd = self._disk.open(path, os.O_RDWR | os.O_CREAT)

    def _reopen_index(self, base: int) -> None:
        if not self.in_place():
            raise ChannelGone(f"{self._directory} was deleted")
        replaced = self._index_fd
        self._open_index(base)
        self._disk.close(replaced)

    def _close_files(self) -> None:
        self._unmap()
        # A number that is closed is somebody else's: after Ctrl-C, anywhere, rather one stays open than closed twice.
        closing = self._fd, self._index_fd
        self._fd = self._index_fd = -1
        self._retired.extend([fd for fd in closing if fd >= 0])
        self._close_retired()

    def _close_retired(self) -> None:
        """A descriptor that wrote stays open until its sync returned: to it the kernel reports a failure."""
        if not self._syncing:
            while self._retired:
                self._disk.close(self._retired.pop())
