"""One partition's log as its writers see it: append, rotate, sync, fence.

Every change of the log happens here, under the partition's mutex (threads) and its append lock (processes):

    enter   take the lock; read the head; if another process died while appending, repair first
    write   rotate if the segment is full, one write
    leave   move the head; free the lock (or keep it, see AppendLock); wake readers

Syncing happens outside both, so that others append meanwhile: `synced` then moves under the lock to what was
written before the sync began. A failed sync fences the log in the head, for every process.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

import google_crc32c

from heliograph.clock import Clock
from heliograph.disk import Disk, explain
from heliograph.errors import Fenced, HeliographError, OutcomeUnknown
from heliograph.limits import INDEX_STRIDE_BYTES
from heliograph.log import index, indexing, recovery, segments
from heliograph.log.head import DELETED, FENCED, LOCK_WANTED, NEWS_WANTED, SEQUENCE, Fields, Head, TornHead
from heliograph.log.lines import Form, origin_place, stamp, stamp_batch
from heliograph.log.locks import AppendLock
from heliograph.log.news import News

_extend = google_crc32c.extend
_value = google_crc32c.value


class ChannelGone(HeliographError):
    """The channel was deleted while this partition was open. Whoever catches it opens the channel again."""


class Evicted(HeliographError):
    """The partition was closed to make room for others. Whoever catches it opens it again."""


class Identity(NamedTuple):
    """What the channel tells its partitions; read again whenever the head's generation moves."""

    origin: bytes  # station.incarnation
    segment_bytes: int
    segment_age_us: int


class Owner(Protocol):
    """What a partition asks of its channel."""

    def identity(self) -> Identity: ...
    def lost(self, partition: int, report: recovery.Recovered) -> None: ...


class Limit(NamedTuple):
    """How far readers may go, with what is needed to check it."""

    first: int  # smallest offset that is left
    next: int  # the offset after the last that may be read
    base: int  # the active segment,
    end: int  # how many of its bytes,
    crc: int  # and their checksum
    append_us: int


class Mark(NamedTuple):
    """What a sync that begins now will cover."""

    base: int
    written: int
    next: int
    crc: int


class Group:
    """Bodies that get consecutive offsets; an atomic one survives a crash whole or not at all."""

    __slots__ = ("atomic", "bodies", "count", "crcs", "first", "max_us", "min_us", "now_us")

    def __init__(self, bodies: Sequence[bytes], crcs: Sequence[int], now_us: int, *, atomic: bool = False) -> None:
        self.bodies = bodies
        self.crcs = crcs
        self.count = len(bodies)
        self.now_us = self.min_us = self.max_us = now_us  # event times differ only where the publisher set them
        self.atomic = atomic
        self.first = -1

    def lines(self, place: bytes, first: int) -> bytes:
        """What is written: under the lock, where the place of the first is known."""
        finish = stamp_batch if self.atomic else stamp
        return finish(self.bodies, self.crcs, place, first)


class Partition:
    """The writing side of one partition in this process."""

    __slots__ = (  # not for memory: attributes of an object with this many are slow without
        "_always",
        "_busy_timeout_s",
        "_clock",
        "_directory",
        "_disk",
        "_fd",
        "_half_rotated",
        "_identity",
        "_identity_generation",
        "_index_fd",
        "_lock",
        "_on_kept",
        "_origin",
        "_owner",
        "_retired",
        "_rotate_at",
        "_seen",
        "_store_moving",
        "_syncing",
        "_watched",
        "_words",
        "_write_file",
        "append_us",
        "base",
        "closed",
        "crc",
        "created_us",
        "first",
        "head",
        "index_count",
        "last_error",
        "mutex",
        "news",
        "next",
        "open_first",
        "open_max_us",
        "open_min_us",
        "open_position",
        "peak_us",
        "place",
        "state",
        "synced",
        "synced_crc",
        "synced_next",
        "used",
        "written",
    )

    def __init__(
        self,
        place: indexing.Place,
        owner: Owner,
        disk: Disk,
        clock: Clock,
        *,
        always: bool,
        busy_timeout_s: float,
        on_kept: Callable[[Partition], None],
    ) -> None:
        self.place = place
        self.mutex = threading.Lock()
        self.closed = False
        self.used = True  # lately: whoever makes room spares it once
        self.last_error: str | None = None
        self._owner = owner
        self._disk = disk
        self._write_file = disk.write
        self._clock = clock
        self._always = always
        self._busy_timeout_s = busy_timeout_s
        self._on_kept = on_kept
        self._directory: Path = place.directory
        self.head = Head(self._directory / "head", disk)
        self.news = News(self._directory / "news", self.head, disk, clock)
        self._lock = AppendLock(self._directory / "lock", self.head, disk, clock, keep=not always)
        self._words = self.head.words
        self._store_moving = self.head.store_moving
        self._seen = -1  # the head's sequence when we last freed the lock
        self._watched = False  # whether somebody will give a kept lock back
        self._half_rotated = False
        self._fd = self._index_fd = -1
        self._syncing = 0
        self._retired: list[int] = []  # descriptors to close once the syncs that use them have returned
        self._identity_generation = -1
        self._identity = Identity(b"", 0, 0)
        self._origin = b""
        self._rotate_at = -1
        self._set(Fields(base=-1))

    # -- the head, as this process last saw it ------------------------------------------------------------

    def _set(self, fields: Fields) -> None:
        (
            self.next, self.written, self.crc, self.append_us, self.peak_us, self.open_first,
            self.open_position, self.open_min_us, self.open_max_us, self.index_count, self.base, self.synced,
            self.synced_next, self.synced_crc, self.first, self.created_us, self.state,
        ) = fields  # fmt: skip

    def _store(self) -> None:
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

    def limit(self, *, synced: bool | None = None) -> Limit:
        """How far readers may go: what is synced, or (durability `interval`, `os`) what is written."""
        head = self.fields()
        if head.flags & DELETED:
            raise ChannelGone(f"{self._directory} was deleted")
        if self._always if synced is None else synced:
            return Limit(head.first, head.synced_next, head.base, head.synced, head.synced_crc, head.append_us)
        return Limit(head.first, head.next, head.base, head.written, head.crc, head.append_us)

    def _mend_head(self) -> Fields:
        with self.mutex, self.locked_anyhow():
            return self.head.load()

    # -- the lock -----------------------------------------------------------------------------------------

    def _enter(self) -> None:
        """Take the lock (unless it was kept) and know the log's end; refuse if it is fenced or deleted."""
        if not self._lock.held:
            self._acquire()
            try:
                if self.state & (DELETED | FENCED):
                    self._check_flags()
                self._look_at_channel()
            except BaseException:
                self._release_in_doubt()
                raise

    def _acquire(self) -> None:
        """Take the lock and see what other processes did; repair what a dead one left."""
        if self.closed:
            raise Evicted(str(self._directory))
        orphaned = self._lock.acquire(self._busy_timeout_s)
        if self._words[SEQUENCE] == self._seen and not orphaned and self._fd >= 0:
            return  # nobody stored anything since we freed the lock
        try:
            self._refresh(orphaned)
        except BaseException as error:
            self._lock.disown()
            if isinstance(error, OSError):
                raise explain(error, f"cannot append to {self._directory}") from error
            raise

    def _leave(self) -> None:
        """Say everything in the head; free the lock unless it may be kept."""
        if not self._lock.may_keep():
            self._release()
            return
        self._store()
        if not self._watched:
            self._watched = True
            self._on_kept(self)

    def _release(self) -> None:
        """Say everything in the head, then free the lock."""
        self._store()
        self._seen = self._words[SEQUENCE]
        if self._half_rotated:
            self._half_rotated = False
            self._lock.disown()  # whoever is next, perhaps we, repairs
        else:
            self._lock.release()

    def _release_in_doubt(self) -> None:
        """After an error: whoever is next, perhaps we, compares the file's size with the head."""
        self._release()
        self._seen = -1

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the append lock; the caller holds the mutex. Frees the lock in the end, the head stored."""
        self._enter()
        try:
            yield
        finally:
            self._release()

    @contextlib.contextmanager
    def locked_anyhow(self) -> Iterator[None]:
        """As `locked`, though the log be fenced."""
        if not self._lock.held:
            self._acquire()
        try:
            yield
        finally:
            self._release()

    def _refresh(self, orphaned: bool) -> None:
        try:
            fields = self.head.load()
        except TornHead:
            self._repair(None)
            return
        if fields.state & (DELETED | FENCED):  # not to be touched: nothing is verified through the page cache
            self._close_files()
            self._set(fields)
            return
        if fields.base != self.base or self._fd < 0:
            self._open_segment(fields.base)
        self._set(fields)
        if orphaned or self._disk.lseek(self._fd, 0, os.SEEK_END) != fields.written:
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
        now_us = self._clock.time_ns() // 1000
        report = recovery.recover(self.place, self._disk, trusted, now_us)
        if trusted is not None and report.fields.next < trusted.next:
            self._owner.lost(self.place.number, report)  # the file shrank: somebody may have seen what is gone
            fields = report.fields._replace(state=trusted.state + (1 << 8))
            self._identity_generation = -1
        else:
            fields = report.fields
        self._open_segment(fields.base)
        self._set(fields)
        self._store()

    def _open_segment(self, base: int) -> None:
        self._close_files()
        flags = os.O_RDWR | os.O_APPEND
        self._fd = self._disk.open(segments.path_of(self._directory, base), flags)
        path = segments.path_of(self._directory, base, segments.INDEX)
        self._index_fd = self._disk.open(path, os.O_RDWR | os.O_CREAT)

    def _close_files(self) -> None:
        for fd in (self._fd, self._index_fd):
            if fd >= 0:
                self._retired.append(fd)
        self._fd = self._index_fd = -1
        self._close_retired()

    def _close_retired(self) -> None:
        """A descriptor that wrote stays open until its sync returned: to it the kernel reports a failure."""
        if not self._syncing:
            for fd in self._retired:
                self._disk.close(fd)
            self._retired.clear()

    # -- appending ----------------------------------------------------------------------------------------

    def append(self, groups: Sequence[Group]) -> None:
        """Append groups of bodies with one write; afterwards each knows its first offset."""
        with self.mutex:
            self._enter()
            try:
                self._append(groups)
            except OSError as error:
                self._release_in_doubt()
                raise explain(error, f"cannot append to {self._directory}") from error
            except BaseException:
                self._release_in_doubt()
                raise
            self._leave()
        self.news.tell()

    def append_one(self, form: Form, id_bytes: bytes, microseconds: int, encoded: bytes, now_us: int) -> int:
        """Append one message that needs no sync: as `append`, in as few steps as possible. Returns the offset."""
        with self.mutex:
            position = self.written
            if position > self._rotate_at or not self._lock.held:
                return self._append_one_entering(form.body % (id_bytes, microseconds, encoded), now_us)
            offset = self.next
            line = form.line if form.origin is self._origin else form.suit(self._origin)
            data = line % (id_bytes, microseconds, encoded, offset)
            data = b'%b,"crc":"%08x"}\n' % (data, _value(data))
            size = len(data)
            try:
                if (done := self._write_file(self._fd, data)) != size:
                    self._disk.write_all(self._fd, memoryview(data)[done:])
            except OSError as error:
                self._undo_write()
                self._release_in_doubt()
                raise explain(error, f"cannot append to {self._directory}") from error
            self.next = following = offset + 1
            self.written = position = position + size
            self.crc = whole = _extend(self.crc, data)
            self.used = True
            if now_us > self.append_us:
                self.append_us = now_us
                if now_us > self.peak_us:
                    self.peak_us = now_us
            if self.open_first == offset:
                self.open_min_us = self.open_max_us = now_us
            elif now_us > self.open_max_us:
                self.open_max_us = now_us
            elif now_us < self.open_min_us:
                self.open_min_us = now_us
            if position - self.open_position >= INDEX_STRIDE_BYTES:
                self._write_index_entry()
                self._store()
            else:
                self._store_moving(following, position, whole)
            words = self._words
            if words[NEWS_WANTED] or self.news.waiting:
                self.news.tell()
            if words[LOCK_WANTED]:
                self._leave()
            return offset

    def _append_one_entering(self, body: bytes, now_us: int) -> int:
        group = Group((body,), (_value(body),), now_us)
        self._enter()
        try:
            self._append((group,))
        except OSError as error:
            self._release_in_doubt()
            raise explain(error, f"cannot append to {self._directory}") from error
        except BaseException:
            self._release_in_doubt()
            raise
        self._leave()
        self.news.tell()
        return group.first

    def commit(self, groups: Sequence[Group]) -> None:
        """Append groups with one write and make them durable with one sync.

        The lock is kept during the sync if nobody asked for it lately: that spares taking it again to say
        what is synced. Otherwise other processes append meanwhile.
        """
        with self.mutex:
            self._enter()
            try:
                self._append(groups)
            except OSError as error:
                self._release_in_doubt()
                raise explain(error, f"cannot append to {self._directory}") from error
            except BaseException:
                self._release_in_doubt()
                raise
            mark = Mark(self.base, self.written, self.next, self.crc)
            fd = self._fd
            self._syncing += 1
            if self._lock.wanted():
                self._release()
        self._sync(fd, mark)

    def _append(self, groups: Sequence[Group]) -> None:
        following = self.next
        parts = []
        for group in groups:
            parts.append(group.lines(self._origin, following))
            group.first = following
            following += group.count
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
        if self.open_first == self.next:
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
        self.crc = _extend(self.crc, data)
        self.written = written
        self.next += count
        if written - self.open_position >= INDEX_STRIDE_BYTES:
            self._write_index_entry()

    def _put(self, data: bytes) -> None:
        """Write all or nothing. What cannot be undone is seen by the next appender: size and head differ."""
        try:
            done = self._write_file(self._fd, data)
            if done != len(data):
                self._disk.write_all(self._fd, memoryview(data)[done:])
        except OSError:
            self._undo_write()
            raise

    def _undo_write(self) -> None:
        with contextlib.suppress(OSError):
            self._disk.ftruncate(self._fd, self.written)

    def _write_index_entry(self) -> None:
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

    def _rotate(self, now_us: int) -> None:
        """Seal the active segment and begin the next one; in this order, so that a crash loses nothing."""
        if self.open_first != self.next:
            self._write_index_entry()
        try:
            self._disk.fdatasync(self._fd)
        except OSError as error:
            self._fence(error)
            raise Fenced(f"{self._directory} is fenced: syncing a full segment failed ({error})") from error
        base = self.next
        path = segments.path_of(self._directory, base)
        new_fd = self._disk.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_TRUNC)
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
            if self._fd < 0:
                return
            if mark is None:
                mark = Mark(self.base, self.written, self.next, self.crc)
            if mark.base != self.base or self.synced >= mark.written:
                return  # rotation synced it, or somebody else did
            fd = self._fd
            self._syncing += 1
        self._sync(fd, mark)

    def _sync(self, fd: int, mark: Mark) -> None:
        try:
            self._disk.fdatasync(fd)
        except OSError as error:
            with self.mutex:
                self._syncing -= 1
                self._fence(error)
                if self._lock.held:  # who keeps the lock would not look for the fence
                    self._release()
                self._close_retired()
            raise OutcomeUnknown(
                f"syncing {self._directory} failed ({error}): what was just written may or may not survive. "
                "The log is fenced; check the disk, then run 'helio verify --repair'."
            ) from error
        except BaseException:
            with self.mutex:
                self._syncing -= 1
            raise
        with self.mutex:
            self._syncing -= 1
            if self._retired:
                self._close_retired()
            self._mark_synced(mark)
        self.news.tell()

    def _mark_synced(self, mark: Mark) -> None:
        try:
            self._enter()
        except Fenced as error:  # by another process, meanwhile: repair would cut what we just wrote
            raise OutcomeUnknown(str(error)) from error
        if self.base == mark.base and mark.written > self.synced:
            self.synced, self.synced_next, self.synced_crc = mark.written, mark.next, mark.crc
        self._leave()

    def _fence(self, error: OSError) -> None:
        """Close the log for every process. The caller holds the mutex."""
        self.last_error = f"sync failed: {error}"
        held = self._lock.held
        if not held:
            self._acquire()
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
        """Tell every process that has this partition open. The caller holds mutex and lock."""
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

    def sync_through(self, offset: int) -> None:
        """Make sure that everything before ``offset`` is on disk, whoever wrote it."""
        try:
            if self.head.load().synced_next >= offset:
                return
        except TornHead:
            pass  # entering repairs it
        with self.mutex:
            self._enter()
            mark = Mark(self.base, self.written, self.next, self.crc)
            self._leave()
        self.sync(mark)

    def release_if_idle(self, following: int) -> bool:
        """Give a kept lock back if the next offset still is ``following``. True when it is free."""
        if not self.mutex.acquire(blocking=False):
            return False
        try:
            if self._lock.held and self.next != following:
                return False
            if self._lock.held:
                self._release()
            self._watched = False
            return True
        finally:
            self.mutex.release()

    @property
    def gone(self) -> bool:
        """Whether it was closed for room or its channel was deleted."""
        return self.closed or bool(self.head.load().flags & DELETED)

    @property
    def fenced(self) -> bool:
        """Whether this process knows that a sync failed."""
        return bool(self.state & FENCED)

    @property
    def dirty(self) -> bool:
        """Whether a sync would help: nothing does once the log is fenced, or is needed once it is deleted."""
        return self._fd >= 0 and self.written > self.synced and not self.state & (FENCED | DELETED)

    def close_if_idle(self) -> bool:
        """Close if nobody is using it just now; whether it is closed."""
        if self.news.waiting:
            return False
        try:
            self.sync()  # the descriptor that wrote stays open until its sync returned
        except HeliographError:
            return False
        if not self.mutex.acquire(blocking=False):
            return False
        try:
            if self._lock.held or self.dirty:
                return False
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
                self.abandon()

    def abandon(self) -> None:
        """Close without unlocking: what a forked child does with what it inherited."""
        self.closed = True
        self._close_files()
        self._lock.close()
        self.news.close()
        self.head.close()
