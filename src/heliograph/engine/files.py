"""The default engine: logs, positions and leases are files of one directory, shared by any number of processes."""

from __future__ import annotations

import _thread
import contextlib
import functools
import logging
import os
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from heliograph.clock import SYSTEM_CLOCK, Clock
from heliograph.config import Config
from heliograph.disk import SYSTEM_DISK, Disk, TracelessDisk, explaining
from heliograph.engine.arrivals import ChannelNews
from heliograph.engine.background import Committers, LockKeeper, Syncer
from heliograph.engine.batches import Cursor
from heliograph.engine.counts import PartitionCounts
from heliograph.engine.fitting import fit
from heliograph.engine.groups import Bells, Membership
from heliograph.engine.onelife import OneLife
from heliograph.engine.partitions import OpenPartition, OpenPartitions, sync_all
from heliograph.engine.port import Bounds, Kind, Position
from heliograph.engine.positions import Positions
from heliograph.engine.producers import Producers
from heliograph.engine.relayed import Relayed
from heliograph.engine.schemas import Schemas
from heliograph.engine.steps import Steps, moves
from heliograph.engine.watch import Watcher
from heliograph.engine.wildcards import Wildcards
from heliograph.errors import (
    AlreadyExists,
    Busy,
    ConfigError,
    Forked,
    HeliographError,
    NotFound,
    OutcomeUnknown,
    ReadOnly,
    StationClosed,
    StorageError,
)
from heliograph.filters import Sieve
from heliograph.limits import ROOM_IDLE_S, WAIT_SLICE_S
from heliograph.log import channel as channels
from heliograph.log import recovery, room, seek
from heliograph.log.audit import Audit
from heliograph.log.channel import ChannelFile, ChannelSettings, Identity
from heliograph.log.commit import GroupCommit
from heliograph.log.cursor import LogCursor
from heliograph.log.directory import DataDirectory
from heliograph.log.head import DELETED, Fields, Limit
from heliograph.log.held import ChannelGone, Evicted
from heliograph.log.locks import FileLock
from heliograph.log.news import held_lock
from heliograph.log.partition import Partition
from heliograph.log.tickets import Ticket
from heliograph.message import Gap, PayloadDecoder
from heliograph.names import DEAD_LETTER, REPLY_TO, check_name, is_mailbox

if TYPE_CHECKING:
    from heliograph.engine.sifting import SiftingCursor

logger = logging.getLogger("heliograph.engine")
_T = TypeVar("_T")
_TRIES = 8
_FINISH_S = 5.0
"""How long a station that is closed waits for what other threads are publishing."""

_engines: weakref.WeakSet[FilesEngine] = weakref.WeakSet()


class _Channel:
    """What partitions of one channel ask of it (partition.Owner)."""

    def __init__(self, engine: FilesEngine, name: str) -> None:
        self._engine = engine
        self._name = name

    @explaining("cannot read the channel's description")
    def identity(self) -> Identity:
        self._engine.layout += 1
        file = self._engine.describe(self._name)
        settings = self._engine.settings(file)
        origin = f"{self._engine.name}.{file.incarnation}".encode()
        self._engine.saw_life(self._name, file.incarnation)
        return Identity(origin, settings.segment_bytes or 0, int((settings.segment_age_s or 0) * 1e6))

    def lost(self, partition: int, report: recovery.Recovered) -> None:
        self._engine.new_incarnation(self._name, f"partition {partition} is shorter than it was: {report.fields.next}")


class FilesEngine:
    """Logs, positions and leases in one data directory."""

    def __init__(
        self,
        root: Path,
        config: Config,
        *,
        read_only: bool = False,
        disk: Disk = SYSTEM_DISK,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        if read_only:
            disk = TracelessDisk(disk)
        storage = config.storage
        self.root = root
        self.config = config
        self.read_only = read_only
        self.disk = disk
        self.clock = clock
        self.audit = Audit(
            root,
            disk,
            clock,
            max_bytes=config.audit.max_bytes,
            max_files=config.audit.max_files,
            enabled=not read_only,
        )
        self.directory = DataDirectory(
            root, config.name, disk, clock, self.audit, read_only=read_only,
            single_process=storage.single_process, timeout_s=config.publishing.busy_timeout_s,
        )  # fmt: skip
        self.name = self.directory.station.name
        self.positions = Positions(root, disk)
        self.producers = Producers(self, config.publishing.producers_max)
        self.steps = Steps(self)
        self.relayed = Relayed(self)
        self.layout = 0  # moves whenever a channel is opened or turns out to have been altered
        self.schemas = Schemas(root, disk, clock, config.publishing.busy_timeout_s)
        self.on_new_life: Callable[[str], None] = lambda _: None
        self._lives: dict[str, str] = {}
        self.wildcards = Wildcards(root, disk)
        self._payload_decoder: PayloadDecoder | None = None
        self._always = storage.durability == "always"
        lays_room = room.of_use(self.directory.file_system, always=self._always)
        self._room_bytes = storage.room_bytes if lays_room else 0
        self._closed = False
        self._closing = threading.RLock()  # a signal may come while it is held, and close once more
        self._forked = False
        self._watcher = Watcher()
        self._keeper = LockKeeper(self._watcher)
        self._bells = Bells(self._watcher)
        self.channel_news = ChannelNews(root, disk, self._watcher, read_only=read_only)
        self._open = OpenPartitions(self._open_files, self._watcher, storage.open_partitions_max)
        self._counts = PartitionCounts(self._open, lambda name: self.describe(name).partitions)
        self._committers = Committers()
        self._syncer: Syncer | None = None
        if storage.durability == "interval" and not read_only:
            self._syncer = Syncer(storage.sync_interval_ms / 1000, self.open_partitions)
        _engines.add(self)
        if not read_only:
            self._finish_steps()

    def _finish_steps(self) -> None:
        try:
            self.steps.recover()
        except HeliographError as error:  # a fenced log: opening must be possible all the same, to repair it
            logger.error("an atomic step of a dead process cannot be finished yet: %s", error)

    # -- channels -------------------------------------------------------------------------------------------

    def channel_names(self) -> list[str]:
        self.check_open()
        return channels.names(self.root, self.disk)

    def describe(self, name: str) -> ChannelFile:
        """channel.json, as it is now."""
        self.check_open()
        return channels.load(self.root, check_name(name), self.disk)

    def settings(self, file: ChannelFile) -> ChannelSettings:
        """A channel's settings with the station's where it has none of its own."""
        own, storage = file.settings, self.config.storage
        merged = {
            field: getattr(storage, field) if getattr(own, field) is None else getattr(own, field)
            for field in ChannelSettings.__struct_fields__
        }
        return ChannelSettings(**merged)

    def create(
        self,
        name: str,
        settings: ChannelSettings | None = None,
        *,
        partitions: int | None = None,
        exist_ok: bool = True,
    ) -> bool:
        """Make a channel, by default with as many partitions as the station's setting says; False if it was there."""
        self.check_writable()
        check_name(name)
        if name.startswith(REPLY_TO):
            settings, partitions = channels.REPLIES, 1
        if partitions is None:
            partitions = 1 if name.endswith(DEAD_LETTER) else self.config.storage.partitions
        self.directory.check_there()
        made = channels.create(
            self.root, name, settings or ChannelSettings(), self.disk, self.clock, self.directory.boot,
            partitions=partitions,
        )  # fmt: skip
        if not made and not exist_ok:
            raise AlreadyExists(f"channel '{name}' is there already; 'helio channels alter' changes its settings")
        if made:
            self.audit.write("channel-created", channel=name)
            self.channel_news.tell()
        return made

    def alter(self, name: str, change: Callable[[ChannelFile], ChannelFile]) -> ChannelFile:
        """Change channel.json; every process takes it over with its next append.

        Whoever alters or deletes a channel holds the lock of its partition 0 all the while, and takes those of the
        others, one at a time, inside it.
        """
        self.check_writable()
        found: list[ChannelFile] = []

        def apply(first: Partition) -> None:
            if first.state & DELETED:
                raise ChannelGone(f"channel '{name}' was deleted")
            with self._rewriting(name) as before:
                after = change(before)
                self._grow(before, after.partitions)
                channels.save(self.root, after, self.disk)
            found[:] = [after]
            first.next_generation()
            for number in range(1, before.partitions):
                self.write(name, number, lambda partition: partition.change(Partition.next_generation))

        self._change_all(name, apply)
        self._counts.forget(name)
        changed = found[0]
        self.audit.write(
            "channel-altered", channel=name, partitions=changed.partitions,
            settings=msgspec.to_builtins(changed.settings),
        )  # fmt: skip
        return changed

    def _change_all(self, name: str, change: Callable[[Partition], None]) -> None:
        """Change a channel under the lock of its partition 0, which stays open though others are opened inside."""
        for _ in range(_TRIES):
            with self._open.pinned(name, 0):
                entry = self._open.get(name, 0)
                try:
                    _writing_side(entry).change(change)
                    return
                except ChannelGone:
                    pass
            self._open.forget(name, 0, entry)
        raise Busy(f"channel '{name}' is being deleted and made again all the time; try again")

    @contextlib.contextmanager
    def _rewriting(self, name: str) -> Iterator[ChannelFile]:
        """Read channel.json to write it again; nobody else does meanwhile, whichever partition's lock they hold."""
        self.describe(name)
        lock = FileLock(channels.channel_path(self.root, name) / "channel.lock", self.disk)
        try:
            lock.exclusive(self.clock, self.config.publishing.busy_timeout_s)
            yield self.describe(name)
        finally:
            lock.release()

    def _grow(self, file: ChannelFile, partitions: int) -> None:
        if channels.check_partitions(partitions) < file.partitions:
            raise ConfigError(
                f"channel '{file.name}' has {file.partitions} partitions and cannot shrink to {partitions}: their "
                "messages would have no place. Export it and import it into a new channel instead."
            )
        if partitions > file.partitions:
            if file.name.endswith(DEAD_LETTER):
                raise ConfigError(f"'{file.name}' holds dead letters, which stay in one partition")
            channels.add_partitions(self.root, file, partitions, self.disk, self.clock, self.directory.boot)

    def partition_count(self, name: str) -> int:
        """How many partitions a channel has; cheap enough to be asked for every message."""
        return self._counts.count(name)

    def partition_count_or_new(self, name: str) -> int:
        """As `partition_count`; the channel is made if that is allowed."""
        try:
            return self._counts.count(name)
        except NotFound:
            return self._creating(name, lambda: self._counts.count(name))

    def check_partition(self, name: str, number: int) -> int:
        """The number, if the channel has such a partition."""
        count = self.describe(name).partitions
        if type(number) is not int or not 0 <= number < count:
            there = f"0 to {count - 1}" if count > 1 else "0 only"
            raise NotFound(f"channel '{name}' has no partition {number!r}: it has {there}")
        return number

    def barrier(self, name: str, number: int) -> None:
        """Wait for whoever appends now; what is written by then is synced."""
        self.write(name, number, Partition.settle)

    def new_incarnation(self, name: str, why: str) -> None:
        """Give a channel a new life. The caller holds the partition's lock or is alone, and moves the generation."""
        with self._rewriting(name) as file:
            fresh = msgspec.structs.replace(file, incarnation=channels.new_incarnation())
            channels.save(self.root, fresh, self.disk)
        self.audit.write("incarnation", channel=name, before=file.incarnation, after=fresh.incarnation, why=why)

    def saw_life(self, name: str, incarnation: str) -> None:
        """A partition was opened: if the channel was made anew since the last time, say so."""
        if self._lives.setdefault(name, incarnation) != incarnation:
            self._lives[name] = incarnation
            self.on_new_life(name)

    def life(self, name: str) -> str | None:
        """The incarnation that partitions of the channel were last seen to have; up to date under an append lock."""
        return self._lives.get(name)

    def ensure(self, name: str) -> None:
        """Make the channel if it is not there and that is allowed."""
        try:
            self.describe(name)
        except NotFound:
            if self.read_only or not self.makes(name):
                raise
            self.create(name)

    def makes(self, name: str) -> bool:
        """Whether a channel is made when it is needed. That of a process's replies is not: whoever asked has gone."""
        return name.startswith(REPLY_TO) or (self.config.storage.auto_create and not is_mailbox(name))

    def birth(self, name: str) -> datetime:
        """When the channel was made: another moment means another channel of the same name."""
        return self.describe(name).created

    def incarnation(self, name: str) -> str:
        return self.describe(name).incarnation

    def delete(self, name: str) -> None:
        """Delete a channel with its data and its subscriptions' positions."""
        self.check_writable()
        files = [self.describe(name)]
        graves: list[Path] = []

        def remove(first: Partition) -> None:
            files[:] = [self.describe(name)]  # it may have grown meanwhile
            for number in range(1, files[0].partitions):
                self.write(name, number, lambda partition: partition.change(Partition.mark_deleted))
            first.mark_deleted()
            graves.append(channels.move_to_trash(self.root, channels.channel_path(self.root, name), self.disk))

        self._change_all(name, remove)
        for number in range(files[0].partitions):
            self.drop_closed(name, number)
        self._counts.forget(name)
        self.positions.forget_channel(name)
        self.producers.forget_channel(name)
        self.relayed.forget_channel(name)
        for grave in graves:  # last: until then it tells that the rest has to go, too
            channels.empty(grave, self.disk)
        self.audit.write("channel-deleted", channel=name, incarnation=files[0].incarnation)
        self.channel_news.tell()

    # -- partitions -------------------------------------------------------------------------------------------

    def take_idle_room(self) -> None:
        """Now and then: cut off the room that was laid for publishers who went silent."""
        if self._room_bytes:
            for partition in self.open_partitions():
                partition.take_room(ROOM_IDLE_S)

    def open_partitions(self) -> list[Partition]:
        return [entry.log for entry in self._open.all() if isinstance(entry.log, Partition)]

    def _open_files(self, name: str, number: int) -> OpenPartition:
        self.check_open()
        self.directory.check_there()  # another station may have been made in its place
        place = self.directory.place(check_name(name), number, self.name)
        if not place.directory.is_dir():
            self._no_such_channel(name, number)
        if self.read_only:
            from heliograph.log.readonly import ReadOnlyLog

            return OpenPartition(ReadOnlyLog(place, self.directory.boot, self.disk, self.clock), None)
        if not self._always:
            self.directory.note_unsynced()
        publishing = self.config.publishing
        try:
            partition = Partition(
                place, _Channel(self, name), self.disk, self.clock, always=self._always,
                busy_timeout_s=publishing.busy_timeout_s, on_kept=self._keeper.add, room_bytes=self._room_bytes,
                syncer=self._syncer,
            )  # fmt: skip
        except FileNotFoundError as error:
            head = place.directory / "head"
            if str(error.filename) != str(head) or not place.directory.is_dir() or head.exists():
                self._no_such_channel(name, number)  # deleted in this moment, and perhaps made again
            raise
        commit = GroupCommit(
            partition, always=self._always, pending_bytes_max=publishing.pending_bytes_max,
            wait_s=publishing.busy_timeout_s if publishing.when_full == "wait" else 0.0,
            start_leader=self._committers.start_leader,
        )  # fmt: skip
        if name in self._lives:  # whoever asks for its life is not told of one that is over
            try:
                self.saw_life(name, self.describe(name).incarnation)
            except BaseException:
                partition.close()
                raise
        return OpenPartition(partition, commit)

    def _no_such_channel(self, name: str, number: int) -> None:
        self._counts.forget(name)  # it may have been made anew, with fewer
        if channels.channel_path(self.root, name).is_dir():
            raise NotFound(f"channel '{name}' has no partition {number}")
        raise channels.no_channel(self.root, name)

    def writer(self, name: str, number: int) -> Partition:
        """The writing side of a partition, as long as it stays open: see `write`."""
        self.check_writable()
        return _writing_side(self._open.get(name, number))

    def write(self, name: str, number: int, action: Callable[[Partition], _T]) -> _T:
        """Do something with the writing side of a partition, whatever closes it meanwhile."""
        self.check_writable()
        return self._open.use(name, number, lambda entry: action(_writing_side(entry)))

    # -- appending --------------------------------------------------------------------------------------------

    def append(self, name: str, number: int, ticket: Ticket, wait_s: float) -> int:
        """Append from this thread; the first offset once it is as durable as the station promises."""
        entry = self._open.known.get((name, number))
        if entry is not None:  # what follows without it is the way of the first message
            entry.log.used = True
            try:
                return self._append(entry, ticket, wait_s)
            except (ChannelGone, Evicted):
                pass
        return self._creating(
            name, lambda: self._open.use(name, number, lambda found: self._append(found, ticket, wait_s))
        )

    def is_open(self, name: str, number: int) -> bool:
        """Whether this process has a partition open."""
        return (name, number) in self._open.known

    def words_if_open(self, name: str, number: int) -> memoryview | None:
        """What all processes share of a partition's head, if this process has it open."""
        entry = self._open.known.get((name, number))
        head = None if entry is None else entry.log.head
        return None if head is None else head.words

    def appender(self, name: str, number: int) -> Partition | GroupCommit:
        """What appends single messages as durably as the station promises; the channel is made if that is allowed."""
        self.check_writable()
        entry = self._creating(name, lambda: self._open.get(name, number))
        return entry.commit if self._always and entry.commit is not None else _writing_side(entry)

    def drop_closed(self, name: str, number: int) -> None:
        """Forget a partition that turned out to be deleted (or closed) meanwhile."""
        entry = self._open.known.get((name, number))
        if entry is not None and entry.log.gone:
            self._open.forget(name, number, entry)

    def _append(self, entry: OpenPartition, ticket: Ticket, wait_s: float) -> int:
        if self._always:
            assert entry.commit is not None
            entry.commit.commit(ticket, wait_s)
        else:
            assert isinstance(entry.log, Partition)
            entry.log.append((ticket,))
            if ticket.refused is not None:
                raise ticket.refused
        return ticket.first

    def submit(self, name: str, number: int, ticket: Ticket) -> None:
        """Append from another thread; the ticket's callback is told."""

        def submit(entry: OpenPartition) -> None:
            assert entry.commit is not None
            entry.commit.submit(ticket)

        self._creating(name, lambda: self._open.use(name, number, submit))

    def submit_if_open(self, name: str, number: int, ticket: Ticket) -> bool:
        """As `submit`, but only if that touches no file and waits for nobody; whether it was done."""
        entry = self._open.known.get((name, number))
        if entry is None or entry.commit is None:
            return False
        entry.log.used = True
        try:
            entry.commit.submit(ticket)
        except (Busy, Evicted):
            return False
        return True

    def _creating(self, name: str, action: Callable[[], _T]) -> _T:
        for _ in range(_TRIES):
            try:
                return action()
            except NotFound:
                # Nobody can make a channel of dead letters beforehand, and without it a message would be
                # retried for ever.
                self.directory.check_there()
                if self.read_only or not (name.endswith(DEAD_LETTER) or self.makes(name)):
                    raise
                self.create(name)  # and again, if another process deletes it at once
        return action()

    # -- reading ----------------------------------------------------------------------------------------------

    def limit(self, name: str, number: int = 0, *, synced: bool | None = None) -> Limit:
        return self._open.use(name, number, lambda entry: entry.log.limit(synced=synced))

    def durable_limit(self, name: str, number: int) -> Limit:
        """How far a partition is on disk for sure; what was written with less durability is synced first."""
        self.settle(name, number)
        if not self.read_only:
            with contextlib.suppress(StorageError):  # a fenced log is read as far as it is synced
                self.make_durable(name, number, self.limit(name, number).next)

        def durable(entry: OpenPartition) -> Limit:
            if isinstance(entry.log, Partition):
                return entry.log.limit(synced=True)
            return entry.log.durable(unsynced=(self.root / "unsynced").exists())

        return self._open.use(name, number, durable)

    def bounds(self, name: str, number: int = 0) -> Bounds:
        """What readers may see."""
        limit = self.limit(name, number)
        return Bounds(limit.first, limit.next)

    def cursor(
        self, name: str, number: int, offset: int, sieve: Sieve | None = None, birth: datetime | None = None
    ) -> Cursor | SiftingCursor:
        """A reader of decoded batches, from an offset on; with a sieve only of what that lets through.

        It reads the channel that was made at ``birth``, by default the one that is there now, and none made later.
        """
        entry, place = self._open.get(name, number), self.directory.place(name, number, self.name)
        log = OneLife(self._open, name, place, birth or self.birth(name), self.birth)
        if sieve is not None:
            from heliograph.engine.sifting import SiftingCursor

            return SiftingCursor(log, offset, self.disk, self._payloads, sieve)
        return Cursor(log, offset, self.disk, entry.shared, self._payloads)

    def _payloads(self) -> PayloadDecoder | None:
        return self._payload_decoder

    def decode_payloads(self, decoder: PayloadDecoder) -> None:
        """A type was registered: from now on payloads are decoded so, for whoever reads."""
        self._payload_decoder = decoder
        for entry in self._open.all():
            entry.shared.clear()

    def log(self, name: str, number: int) -> seek.Log:
        """A partition for whoever reads its bytes."""
        return seek.Log(self.directory.place(name, number, self.name), lambda: self.limit(name, number))

    def wait(self, name: str, number: int, offset: int, timeout_s: float) -> None:
        """Return as soon as there is something at the offset, or somebody said so, or the time is over."""
        self._open.use(name, number, lambda entry: self._wait_for({entry: offset}, timeout_s, self._arm(entry)))

    def wait_any(
        self, name: str, offsets: Mapping[int, int], timeout_s: float, armed: _thread.LockType | None = None
    ) -> None:
        """As `wait`, for several partitions of a channel: offsets by partition.

        ``armed`` is a lock that the caller holds: whoever frees it ends the wait, too.
        """
        armed = armed or held_lock()
        entries: dict[OpenPartition, int] = {}

        def arm(entry: OpenPartition, offset: int) -> None:
            self._arm(entry, armed)
            entries[entry] = offset

        try:
            for number, offset in offsets.items():  # what is waited for is not closed for the room of the next
                self._open.use(name, number, functools.partial(arm, offset=offset))
            self._wait_for(entries, timeout_s, armed)
        except (ChannelGone, Evicted):  # the caller reads next, which opens them again or says what is wrong
            for number in offsets:
                self.drop_closed(name, number)
        finally:
            _disarm(entries, armed)

    def _arm(self, entry: OpenPartition, armed: _thread.LockType | None = None) -> _thread.LockType:
        """Begin to wait for news of a partition."""
        news = entry.log.news
        if not self.read_only:  # before arming: news that are written before anybody watches wake nobody
            self._watcher.watch(news.path, news.wake)
        return news.arm(armed)

    def _wait_for(self, entries: dict[OpenPartition, int], timeout_s: float, armed: _thread.LockType) -> None:
        try:
            if any(entry.log.limit().next > offset for entry, offset in entries.items()):
                return
            woken = armed.acquire(timeout=min(timeout_s, 0.1 if self.read_only else WAIT_SLICE_S))
        finally:
            _disarm(entries, armed)
        self.check_open()
        if not woken:
            for entry in entries:
                self._look_after(entry)

    def _look_after(self, entry: OpenPartition) -> None:
        """Nobody told us anything for a while."""
        if isinstance(entry.log, Partition) and entry.log.gone:
            raise ChannelGone(f"{entry.log.place.directory} was deleted")
        if self._always:
            self._settle(entry)  # its writer may never sync by itself

    def listen(self, name: str, number: int, bell: Any, *, settle: bool = False) -> int:
        """Have ``bell.release()`` called, from any thread and once, when the partition has news.

        If that is one line of this process, ``bell.fresh`` is it. Returns where the partition ends now. To be called
        again after each ring, and every second: other processes forget that somebody listens here, and the partition
        may be closed for room.
        """

        def listen(entry: OpenPartition) -> int:
            news = entry.log.news
            if isinstance(entry.log, Partition) and not entry.log.in_place():  # its head does not say so yet
                raise ChannelGone(f"{entry.log.place.directory} was deleted")  # and perhaps made again
            self._watcher.watch(news.path, news.wake)
            news.disarm(bell)
            news.arm(bell)
            news.herald = bell
            if settle:
                self._look_after(entry)
            return entry.log.limit().next

        return self._open.use(name, number, listen)

    def listen_on(self, name: str, number: int, bell: Any) -> int:
        """As `listen`, right after a ring, without touching a file; -1 if that has to be called instead."""
        entry = self._open.known.get((name, number))
        listens = entry is not None and entry.log.news.herald is bell
        if entry is None or not listens:
            return -1
        try:
            entry.log.news.disarm(bell)
            entry.log.news.arm(bell)
            return entry.log.limit().next
        except (ChannelGone, Evicted, ValueError):  # deleted, or closed in this moment
            return -1

    def unlisten(self, name: str, number: int, bell: Any) -> None:
        """Ring no more."""
        entry = self._open.known.get((name, number))
        if entry is not None:
            news = entry.log.news
            news.disarm(bell)
            if news.herald is bell:
                news.herald = None

    def tell(self, name: str, number: int) -> None:
        """Let whoever waits for news of the partition look again, in all processes."""
        self._open.use(name, number, lambda entry: entry.log.news.tell())

    def settle(self, name: str, number: int) -> None:
        """Sync what another process wrote with less durability, so that it can be read now."""
        if self._always and not self.read_only:
            self._open.use(name, number, self._settle)

    def _settle(self, entry: OpenPartition) -> None:
        if isinstance(entry.log, Partition):
            with contextlib.suppress(StorageError):  # a fenced log is read as far as it is synced
                entry.log.sync_through(entry.log.limit(synced=False).next)

    def watch(self, path: Path, callback: Callable[[], None]) -> None:
        """Call back, in a thread of the engine's, whenever somebody writes to the file."""
        self._watcher.watch(path, callback)

    def wake(self, name: str, number: int | None = None) -> None:
        """End every wait of this process on the channel, or on one of its partitions."""
        if number is None:
            entries = self._open.all(name)
        else:
            known = self._open.known.get((name, number))
            entries = [] if known is None else [known]
        for entry in entries:
            entry.log.news.wake()

    def offset_at(self, name: str, number: int, moment_us: int) -> int:
        """The first offset whose event time is not before the moment."""
        return seek.offset_at(self.log(name, number), moment_us, self.disk)

    def find_id(self, name: str, number: int, message_id: str, made_us: int | None) -> int | None:
        return seek.find_id(self.log(name, number), message_id, made_us, self.disk)

    def redact(self, name: str, number: int, offsets: list[int]) -> None:
        """Blank the lines at these offsets, for good."""
        from heliograph.log import redact

        self.check_writable()
        # Who finishes a dead process's step looks whether its lines are there, and would write them once more.
        self.steps.recover(concerns=lambda record: any(part.channel == name for part in record.parts))
        self.relayed.cover(name)
        with self.without_upkeep():  # compressing a segment meanwhile would bring its old bytes back
            self.write(name, number, lambda partition: redact.redact(partition, offsets, self.disk))
        self.forget_batches(name, number)

    @contextlib.contextmanager
    def without_upkeep(self) -> Iterator[None]:
        """Keep every process from compressing and deleting segments meanwhile."""
        lease = FileLock(self.root / "upkeep.lock", self.disk)
        try:
            lease.exclusive(self.clock, self.config.publishing.busy_timeout_s)
            yield
        finally:
            lease.release()

    def forget_batches(self, name: str, number: int) -> None:
        """Forget what was decoded: the log was changed under it."""
        self._open.get(name, number).shared.clear()

    # -- positions and leases -----------------------------------------------------------------------------------

    def load_position(self, name: str, subscription: str, number: int) -> Position | None:
        """Where to begin, for whoever takes a partition of a subscription over."""
        if not self.read_only:
            place = (name, subscription, number)  # a step that a dead subscriber began may have moved its position
            self.steps.recover(concerns=lambda record: moves(record, {place}))
        position = self.positions.load(check_name(name), check_name(subscription, "subscription"), number)
        self.steps.loaded(name, subscription, number, position)
        return position

    def save_position(self, name: str, subscription: str, number: int, position: Position) -> None:
        """Commit durably; never ahead of what is synced."""
        self.check_writable()
        self.directory.check_there()  # another station may have been made in its place
        with self.steps.saving(name, subscription, number):
            position = self.steps.not_before(name, subscription, number, position)
            self.make_durable(name, number, position.offset)
            self.positions.save(name, subscription, number, position)

    def make_durable(self, name: str, number: int, offset: int) -> None:
        """Make sure that what readers saw before the offset survives a power cut, unless every append does that."""
        if not self._always:
            with contextlib.suppress(NotFound):
                self.write(name, number, lambda partition: partition.sync_through(offset))

    def forget_position(self, name: str, subscription: str) -> None:
        self.check_writable()
        self.positions.forget(name, subscription)

    def claim_kind(self, name: str, subscription: str, kind: Kind) -> None:
        """Refuse a subscription that is there already and is of another kind. The caller holds its lease."""
        self.positions.claim_kind(name, subscription, kind)

    def join_group(self, name: str, subscription: str) -> Membership:
        """Become a worker of a group, or raise SubscriptionBusy."""
        self.check_writable()
        check_name(name)
        check_name(subscription, "subscription")
        worker = f"{self.name}.{os.getpid()}.{os.urandom(3).hex()}"
        return Membership(self.positions, self.disk, self.clock, self._bells, name, subscription, worker)

    def subscription_lease(self, name: str, subscription: str) -> FileLock:
        self.check_writable()
        return self.positions.lease(check_name(name), check_name(subscription, "subscription"))

    def fit_position(self, name: str, number: int, position: Position) -> tuple[int, Gap | None]:
        """Where to resume, and what cannot be delivered any more."""
        target, gap = fit(self.log(name, number), name, self.incarnation(name), position, self.disk)
        if gap is not None:
            self.audit.write(
                "position-moved", channel=name, partition=number, before=position.offset, after=target, why=gap.reason
            )
        return target, gap

    def head_fields(self, name: str, number: int) -> Fields:
        """Everything a partition's head says; not that of a channel that was deleted, and perhaps made again."""

        def fields(entry: OpenPartition) -> Fields:
            found, log = entry.log.fields(), entry.log
            if found.flags & DELETED and isinstance(log, Partition) and not log.in_place():
                raise ChannelGone(f"channel '{name}' was deleted")
            return found

        return self._open.use(name, number, fields)

    def last_append(self, name: str, number: int) -> tuple[int, int] | None:
        """A partition's last line and when (µs) it was appended, if that can be told just now."""

        def last(entry: OpenPartition) -> tuple[int, int] | None:
            return None if entry.log.head is None else entry.log.head.last_append()

        return self._open.use(name, number, last)

    def appended_by_us(self, name: str, number: int, offset: int) -> int | None:
        """When the line at an offset was appended, at the latest; None if there is nothing to be read any more."""
        last, log = self.last_append(name, number), self.log(name, number)
        end = log.limit().next
        with contextlib.closing(LogCursor(log, offset, self.disk)) as cursor:
            chunk = cursor.read()
        if chunk is None:
            return None
        if chunk.next < end or (last is not None and offset <= last[0]):  # the index knows it, or the head did
            return chunk.append_us or None
        return self.clock.time_ns() // 1000

    def pending_bytes(self) -> int:
        """Bytes that wait for the disk in this process."""
        return sum([entry.commit.pending_bytes for entry in self._open.all() if entry.commit is not None])

    @property
    def closed(self) -> bool:
        return self._closed or self._forked

    # -- life -------------------------------------------------------------------------------------------------

    def check_open(self) -> None:
        if self._forked:
            raise Forked("this station was opened before fork(); open it again in the child process")
        if self._closed:
            raise StationClosed("the station is closed")

    def check_writable(self) -> None:
        self.check_open()
        if self.read_only:
            raise ReadOnly(f"{self.root} was opened with read_only=True")

    def sync(self) -> None:
        """Make everything durable that this process wrote."""
        self.check_open()
        self._sync(self.open_partitions())

    def _sync(self, partitions: list[Partition]) -> None:
        if sync_all(one.sync for one in partitions if one.dirty):
            self.directory.check_there()

    def close(self) -> None:
        """Sync and let go of everything. Safe to call again, also while another thread is at it: it is waited for."""
        if self._forked:
            return
        with self._closing:
            if not self._closed:
                self._close()

    def _close(self) -> None:
        self._open.finish(_FINISH_S)
        self._committers.close()
        if not self.read_only:
            self.relayed.close()
        if self._syncer is not None:
            self._syncer.close()
        try:  # who published to a fenced log with durability `always` was told already
            partitions = self.open_partitions()
            self._sync([one for one in partitions if not (self._always and one.fenced)])
            if not self._always and any(one.sync_failed and one.fenced for one in partitions):
                raise OutcomeUnknown(
                    "a sync failed while the station was open: what was published without waiting for one may be lost. "
                    "Check the disk, then run 'helio verify --repair'."
                )
        finally:
            self._closed = True
            self._keeper.close()
            try:
                self._open.close()
            finally:
                self._watcher.close()
                self.directory.close()
                _engines.discard(self)

    def abandon(self) -> None:
        """In a forked child: close what was inherited, without unlocking what the parent holds. Once."""
        _engines.discard(self)  # its descriptors' numbers are somebody else's from now on, also in a child of the child
        if self._forked:
            return
        self._forked = True
        self._open.abandon()
        self._watcher.abandon()
        self.directory.abandon()


def _disarm(entries: Iterable[OpenPartition], armed: _thread.LockType) -> None:
    for entry in entries:
        entry.log.news.disarm(armed)


def _writing_side(entry: OpenPartition) -> Partition:
    assert isinstance(entry.log, Partition)
    return entry.log


def _after_fork_in_child() -> None:
    for engine in list(_engines):
        with contextlib.suppress(Exception):
            engine.abandon()


os.register_at_fork(after_in_child=_after_fork_in_child)
