"""One partition's log as its writers see it: append, rotate, sync, fence.

Every change of the log happens here, under the partition's mutex (threads) and its append lock (processes):

    enter   take the lock; read the head; if another process died while appending, repair first
    write   rotate if the segment is full, one write, move the head
    leave   free the lock (or keep it, see AppendLock); wake readers

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
from heliograph.log import index, recovery, segments
from heliograph.log.head import DELETED, FENCED, Fields, Head, TornHead
from heliograph.log.lines import stamp, stamp_batch
from heliograph.log.locks import AppendLock
from heliograph.log.news import News

_extend = google_crc32c.extend


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

    __slots__ = ("atomic", "bodies", "crcs", "first", "max_us", "min_us", "now_us")

    def __init__(self, bodies: Sequence[bytes], crcs: Sequence[int], now_us: int, *, atomic: bool = False) -> None:
        self.bodies = bodies
        self.crcs = crcs
        self.now_us = self.min_us = self.max_us = now_us  # event times differ only where the publisher set them
        self.atomic = atomic
        self.first = -1


class Partition:
    """The writing side of one partition in this process."""

    def __init__(
        self,
        place: recovery.Place,
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
        self.appends = 0
        self.last_error: str | None = None
        self._owner = owner
        self._disk = disk
        self._clock = clock
        self._always = always
        self._busy_timeout_s = busy_timeout_s
        self._on_kept = on_kept
        self._directory: Path = place.directory
        self.head = Head(self._directory / "head", disk)
        self.news = News(self._directory / "news", self.head, disk, clock)
        self._lock = AppendLock(self._directory / "lock", self.head, disk, clock, keep=not always)
        self._watched = False  # whether somebody will give a kept lock back
        self._fd = self._index_fd = -1
        self._identity_generation = -1
        self._identity = Identity(b"", 0, 0)
        self._set(Fields(base=-1))

    # -- the head, as this process last saw it ------------------------------------------------------------

    def _set(self, fields: Fields) -> None:
        (
            self.base, self.next, self.written, self.synced, self.synced_next, self.first, self.index_count,
            self.open_first, self.open_position, self.open_min_us, self.open_max_us, self.peak_us,
            self.append_us, self.created_us, self.generation, self.flags, self.crc, self.synced_crc,
        ) = fields  # fmt: skip

    def _store(self) -> None:
        self.head.store(
            self.base, self.next, self.written, self.synced, self.synced_next, self.first, self.index_count,
            self.open_first, self.open_position, self.open_min_us, self.open_max_us, self.peak_us,
            self.append_us, self.created_us, self.generation, self.flags, self.crc, self.synced_crc,
        )  # fmt: skip

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
        with self.mutex, self.locked():
            return self.head.load()

    # -- the lock -----------------------------------------------------------------------------------------

    def _enter(self) -> None:
        if self._lock.held:
            return
        if self.closed:
            raise Evicted(str(self._directory))
        self._lock.acquire(self._busy_timeout_s)
        try:
            self._refresh()
        except BaseException:
            self._lock.release()
            raise

    def _leave(self) -> None:
        self._lock.settle()
        if self._lock.held and not self._watched:
            self._watched = True
            self._on_kept(self)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the append lock with the head fresh; the caller holds the mutex. Always frees it."""
        self._enter()
        try:
            yield
        finally:
            self._lock.release()

    @contextlib.contextmanager
    def locked_anyhow(self) -> Iterator[None]:
        """Hold the append lock without looking at the log, fenced or not; the caller holds the mutex."""
        if self.closed:
            raise Evicted(str(self._directory))
        if not self._lock.held:
            self._lock.acquire(self._busy_timeout_s)
        try:
            yield
        finally:
            self._lock.release()

    def _refresh(self) -> None:
        """See what other processes did since we last held the lock; repair what a dead one left."""
        try:
            fields = self.head.load()
        except TornHead:
            fields = self._repair(None)
        if fields.base != self.base or self._fd < 0:
            self._open_segment(fields.base)
        self._set(fields)
        if fields.flags:
            self._check_flags()
        if self._disk.lseek(self._fd, 0, os.SEEK_END) != fields.written:
            fields = self._repair(fields)
        if fields.generation != self._identity_generation:
            self._identity = self._owner.identity()
            self._identity_generation = fields.generation

    def _check_flags(self) -> None:
        if self.flags & DELETED:
            raise ChannelGone(f"{self._directory} was deleted")
        if self.flags & FENCED:
            raise Fenced(
                f"{self._directory} is fenced: a sync failed, so what was written last may be lost. "
                "Check the disk, then run 'helio verify --repair'."
            )

    def _repair(self, trusted: Fields | None) -> Fields:
        """The last writer died between its write and its word in the head; find the end of the log."""
        now_us = self._clock.time_ns() // 1000
        report = recovery.recover(self.place, self._disk, trusted, now_us)
        if trusted is not None and report.fields.next < trusted.next:
            self._owner.lost(self.place.number, report)  # the file shrank: somebody may have seen what is gone
            fields = report.fields._replace(generation=trusted.generation + 1)
            self._identity_generation = -1
        else:
            fields = report.fields
        self._open_segment(fields.base)
        self._set(fields)
        self._store()
        return fields

    def _open_segment(self, base: int) -> None:
        self._close_files()
        flags = os.O_RDWR | os.O_APPEND
        self._fd = self._disk.open(segments.path_of(self._directory, base), flags)
        path = segments.path_of(self._directory, base, segments.INDEX)
        self._index_fd = self._disk.open(path, os.O_RDWR | os.O_CREAT)

    def _close_files(self) -> None:
        for fd in (self._fd, self._index_fd):
            if fd >= 0:
                self._disk.close(fd)
        self._fd = self._index_fd = -1

    # -- appending ----------------------------------------------------------------------------------------

    def append(self, groups: Sequence[Group]) -> Mark:
        """Append groups of bodies with one write; afterwards each knows its first offset."""
        with self.mutex:
            self._enter()
            try:
                self._append(groups)
                return Mark(self.base, self.written, self.next, self.crc)
            except OSError as error:
                raise explain(error, f"cannot append to {self._directory}") from error
            finally:
                self._leave()

    def _append(self, groups: Sequence[Group]) -> None:
        identity, number = self._identity, self.place.number
        following = self.next
        parts = []
        for group in groups:
            finish = stamp_batch if group.atomic else stamp
            parts.append(finish(group.bodies, group.crcs, identity.origin, number, following))
            group.first = following
            following += len(group.bodies)
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
        self.appends += 1
        if written - self.open_position >= INDEX_STRIDE_BYTES:
            self._write_index_entry()
        self._store()
        if not self._always:
            self.news.tell()

    def _put(self, data: bytes) -> None:
        """Write all or nothing. What cannot be undone is seen by the next appender: size and head differ."""
        try:
            done = self._disk.write(self._fd, data)
            if done != len(data):
                self._disk.write_all(self._fd, memoryview(data)[done:])
        except OSError:
            with contextlib.suppress(OSError):
                self._disk.ftruncate(self._fd, self.written)
            raise

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
                generation=self.generation,
                flags=self.flags,
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
            fd = self._disk.dup(self._fd)  # the same open file: an error of our writes is reported to it
        try:
            self._disk.fdatasync(fd)
        except OSError as error:
            with self.mutex:
                self._fence(error)
            raise OutcomeUnknown(
                f"syncing {self._directory} failed ({error}): what was just written may or may not survive. "
                "The log is fenced; check the disk, then run 'helio verify --repair'."
            ) from error
        finally:
            self._disk.close(fd)
        self._mark_synced(mark)

    def _mark_synced(self, mark: Mark) -> None:
        with self.mutex:
            self._enter()
            try:
                if self.base == mark.base and mark.written > self.synced:
                    self.synced, self.synced_next, self.synced_crc = mark.written, mark.next, mark.crc
                    self._store()
            finally:
                self._leave()
        self.news.tell()

    def _fence(self, error: OSError) -> None:
        """Close the log for every process. The caller holds the mutex."""
        self.last_error = f"sync failed: {error}"
        held = self._lock.held
        if not held:
            self._lock.acquire(self._busy_timeout_s)
        try:
            with contextlib.suppress(TornHead):
                self._set(self.head.load())
            self.flags |= FENCED
            self._store()
        finally:
            if not held:
                self._lock.release()

    # -- administration: each holds the mutex and the lock ---------------------------------------------------

    def change(self, change: Callable[[Partition], None]) -> None:
        """Run ``change`` under mutex and lock, then store the head. Skips the check for the fence."""
        with self.mutex, self.locked_anyhow():
            fields = self.head.load()
            if fields.base != self.base:
                self._close_files()  # another process rotated; the next append opens the right segment
            self._set(fields)
            change(self)
            self._store()

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

    def release_if_idle(self, appends: int) -> bool:
        """Give a kept lock back unless there was an append since ``appends``. True when it is free."""
        if not self.mutex.acquire(blocking=False):
            return False
        try:
            if self._lock.held and self.appends != appends:
                return False
            if self._lock.held:
                self._lock.release()
            self._watched = False
            return True
        finally:
            self.mutex.release()

    @property
    def dirty(self) -> bool:
        return self._fd >= 0 and self.written > self.synced

    def close_if_idle(self) -> bool:
        """Close if nobody is using it just now; whether it is closed."""
        if self.news.waited_for:
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
                    self._lock.release()
                self.abandon()

    def abandon(self) -> None:
        """Close without unlocking: what a forked child does with what it inherited."""
        self.closed = True
        self._close_files()
        self._lock.close()
        self.news.close()
        self.head.close()
