"""Atomic steps: appends to several partitions, and positions, that happen together or not at all.

A step is one synced record, written aside and renamed into place. From then on it has happened; what is left is
carried out by whoever wrote it, or, if that one dies, by whoever next opens the directory, takes a subscription over
or does the upkeep::

    atomic/ID.json    {"id":ID,"parts":[{"channel":"a","partition":0,"start":41,"bodies":["{…",…]}],"positions":[…]}

    written ──every part appended, every position saved──▶ removed

The record is locked while somebody carries it out; the kernel frees a dead one's lock. Each line of a part carries
``"atomic":"ID/number of the part"``, so whoever goes on looks from ``start`` (the partition's end when the record was
written) whether the part is there already. A part is one atomic batch: it is there whole or not at all.

Steps that move the same position take turns, in all processes: a worker that was left behind may still be at a message
that another one has by now, and whoever is second finds it done.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import google_crc32c
import msgspec
import uuid_utils

from heliograph.disk import explain, explaining
from heliograph.engine.port import Position
from heliograph.engine.producers import Epoch
from heliograph.errors import Busy, HeliographError, NotFound, OutcomeUnknown, ProducerFenced, StationClosed
from heliograph.log.cursor import LogCursor
from heliograph.log.indexing import event_times
from heliograph.log.locks import FileLock
from heliograph.log.tickets import Ticket

if TYPE_CHECKING:
    from heliograph.engine.files import FilesEngine

logger = logging.getLogger("heliograph.engine")
APPEND_WAIT_S = 60.0
Place: TypeAlias = tuple[str, str, int]
"""Channel, subscription and partition: what has a position."""


class Part(msgspec.Struct, frozen=True):
    """What is appended to one partition."""

    channel: str
    partition: int
    start: int
    bodies: list[str]


class Moved(msgspec.Struct, frozen=True):
    """Where a subscription stands afterwards."""

    channel: str
    subscription: str
    partition: int
    position: Position

    @property
    def place(self) -> Place:
        """Whose position it is."""
        return self.channel, self.subscription, self.partition


class Numbers(msgspec.Struct, frozen=True):
    """Which producer numbered what is appended, in which epoch."""

    channel: str
    producer: str
    epoch: int


class Record(msgspec.Struct, frozen=True):
    """One step."""

    id: str
    parts: list[Part]
    positions: list[Moved]
    numbered: Numbers | None = None


_decode = msgspec.json.Decoder(Record).decode


def moves(record: Record, places: Collection[Place]) -> bool:
    """Whether a step moves one of these positions."""
    return any(one.place in places for one in record.positions)


def _by(record: Record, channel: str, producer: str) -> bool:
    """Whether a step is a batch of a producer."""
    numbered = record.numbered
    return numbered is not None and (numbered.channel, numbered.producer) == (channel, producer)


class Steps:
    """The atomic directory of one station."""

    def __init__(self, engine: FilesEngine) -> None:
        self._engine = engine
        self._root = engine.root / "atomic"
        self._disk = engine.disk
        self._floors: dict[Place, Position] = {}
        self._saving: dict[Place, threading.Lock] = {}

    # -- carrying out -----------------------------------------------------------------------------------------

    def carry_out(
        self,
        parts: Sequence[tuple[str, int, list[bytes]]],
        positions: Sequence[Moved] = (),
        epoch: Epoch | None = None,
    ) -> list[int]:
        """Append bodies to (channel, partition) each, and move positions; the first offset of every part.

        With an epoch the parts are a batch of its producer, all in one channel.
        """
        step_id = str(uuid_utils.uuid7())
        numbered = Numbers(parts[0][0], epoch.producer, epoch.number) if epoch is not None else None
        record = Record(step_id, [self._part(*part) for part in parts], list(positions), numbered)
        try:
            lock = self._write(record)
        except OSError as error:
            raise explain(error, "cannot write the record of an atomic step") from error
        try:
            refusal = epoch.guard() if epoch is not None else None
            if refusal is not None:  # whoever replaced this producer either saw the record, or is seen here
                self._withdraw(step_id)
                raise refusal
            for moved in positions:  # from here on it has happened
                self._floors[moved.place] = moved.position
            firsts = [self._append(record, number) for number in range(len(record.parts))]
            self._finish(record)
        except ProducerFenced:
            raise
        except (HeliographError, OSError) as error:
            raise OutcomeUnknown(
                f"the atomic step {step_id} is recorded and was begun, but not finished ({error}). It will be, by "
                "whoever opens the station next: do not repeat it."
            ) from error
        finally:
            lock.release()
        return firsts

    def _part(self, channel: str, partition: int, bodies: list[bytes]) -> Part:
        start = self._engine.limit(channel, partition, synced=False).next
        return Part(channel, partition, start, [body.decode() for body in bodies])

    def _path(self, step_id: str) -> Path:
        return self._root / f"{step_id}.json"

    def _write(self, record: Record) -> FileLock:
        """Make the record durable, locked before anybody can see it."""
        if not self._root.exists():
            self._root.mkdir(exist_ok=True)
            self._disk.sync_directory(self._root.parent)
        aside = self._root / f"{record.id}.tmp"
        lock = self._own(aside)
        try:
            lock.write(msgspec.json.encode(record) + b"\n")
            self._disk.rename(aside, self._path(record.id))
            self._disk.sync_directory(self._root)
        except BaseException:
            with contextlib.suppress(OSError):
                self._disk.unlink(aside)
            lock.release()
            raise
        return lock

    def _own(self, aside: Path) -> FileLock:
        """A file that is locked; whoever looks for what the dead left behind may be quicker, and remove it."""
        while True:
            lock = FileLock(aside, self._disk)
            if lock.try_exclusive() and lock.in_place():
                return lock
            lock.release()

    def _append(self, record: Record, number: int) -> int:
        part = record.parts[number]
        mark = b',"atomic":"%b/%d"' % (record.id.encode(), number)
        bodies = [body.encode() + mark for body in part.bodies]
        now_us = self._engine.clock.time_ns() // 1000
        ticket = Ticket(bodies, [google_crc32c.value(body) for body in bodies], now_us, atomic=True)
        # They may be much older: whoever goes on for a dead process does it when the directory is opened next.
        ticket.min_us, ticket.max_us = event_times(b"}\n".join(bodies) + b"}\n")
        first = self._engine.append(part.channel, part.partition, ticket, APPEND_WAIT_S)
        self._engine.make_durable(part.channel, part.partition, first + len(bodies))
        return first

    def _finish(self, record: Record) -> None:
        for moved in record.positions:
            self._move(moved)
        self._withdraw(record.id)

    def _withdraw(self, step_id: str) -> None:
        self._disk.unlink(self._path(step_id))
        self._disk.sync_directory(self._root)

    def _move(self, moved: Moved) -> None:
        engine = self._engine
        engine.make_durable(moved.channel, moved.partition, moved.position.offset)
        with self.saving(*moved.place):
            before = engine.positions.load(*moved.place)
            same_life = before is not None and before.incarnation == moved.position.incarnation
            if before is None or not same_life or before.offset < moved.position.offset:
                engine.positions.save(*moved.place, moved.position)

    def saving(self, channel: str, subscription: str, partition: int) -> threading.Lock:
        """To be held while a position is saved: one that takes long must not end after, and undo, that of a step."""
        return self._saving.setdefault((channel, subscription, partition), threading.Lock())

    # -- going on for a dead process ----------------------------------------------------------------------------

    def recover(
        self, meant: Callable[[Path], bool] = lambda _: True, concerns: Callable[[Record], bool] = lambda _: True
    ) -> int:
        """Finish what dead processes began, or what is ``meant`` of that; how many steps.

        Costs a look at a directory when there is none. One that cannot be finished (a fenced log) is no obstacle for
        the others, nor for whoever it does not concern.
        """
        done, failed = self._attempt(meant)
        for record, error in failed:
            if concerns(record):
                raise error
            logger.warning("the atomic step %s of a dead process cannot be finished yet: %s", record.id, error)
        return done

    def unfinished(self) -> dict[str, HeliographError]:
        """Finish what can be; the channels of what cannot, and why. Until it is, nothing may be deleted there."""
        _, failed = self._attempt(lambda _: True)
        return {part.channel: error for record, error in failed for part in record.parts}

    @explaining("cannot look for atomic steps of dead processes")
    def _attempt(self, meant: Callable[[Path], bool]) -> tuple[int, list[tuple[Record, HeliographError]]]:
        """Try to finish them all; how many were, and what stood in the way of the others."""
        done, failed = 0, []
        for path in filter(meant, self._records()):
            record = self._read(path)
            try:
                done += self._try(path)
            except HeliographError as error:
                if record is None or isinstance(error, StationClosed):
                    raise
                failed.append((record, error))
        return done, failed

    @explaining("cannot finish an atomic step")
    def _try(self, path: Path) -> bool:
        try:
            lock = FileLock(path, self._disk, create=False)
        except FileNotFoundError:
            return False  # finished meanwhile
        try:
            mine = lock.try_exclusive() and lock.in_place()
            if mine:
                self._go_on(path)
            return mine
        finally:
            lock.release()

    def _records(self) -> list[Path]:
        with contextlib.suppress(FileNotFoundError):
            names = sorted(self._disk.listdir(self._root))
            return [self._root / name for name in names if name.endswith((".json", ".tmp"))]
        return []

    def _go_on(self, path: Path) -> None:
        if path.suffix != ".json":  # never became a step
            self._disk.unlink(path)
            return
        try:
            record = _decode(self._disk.read_file(path))
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            self._set_aside(path, error)
            return
        if self._outdated(record):
            self._withdraw(record.id)
            return
        for number, part in enumerate(record.parts):
            try:
                if not self._appended(record, number):
                    self._append(record, number)
            except NotFound as error:  # its channel was deleted since: as if that had been done afterwards
                self._engine.audit.write("atomic-part-dropped", step=record.id, channel=part.channel, why=str(error))
        self._finish(record)
        self._engine.audit.write("atomic-step-finished", step=record.id)

    def _set_aside(self, path: Path, error: Exception) -> None:
        """A record that nobody can read will never be carried out: say so, and keep nobody from working."""
        aside = self._engine.root / "quarantine" / "atomic" / path.name
        aside.parent.mkdir(parents=True, exist_ok=True)
        self._disk.rename(path, aside)
        self._disk.sync_directory(self._root)
        logger.error(
            "%s is damaged (%s): what this atomic step left undone stays so. It is in %s now", path, error, aside
        )
        self._engine.audit.write("atomic-step-damaged", step=path.stem, why=str(error), quarantined=str(aside))

    def _outdated(self, record: Record) -> bool:
        """Whether its producer was replaced before it began: then its numbers are given to others by now."""
        numbered = record.numbered
        if numbered is None or self._engine.producers.epoch(numbered.producer) == numbered.epoch:
            return False
        return not any(self._appended(record, number) for number in range(len(record.parts)))

    def await_producer(self, channel: str, producer: str) -> None:
        """Whoever replaces a producer waits for the step that the other one, still alive, is taking."""
        clock, timeout_s = self._engine.clock, self._engine.config.publishing.busy_timeout_s
        until = clock.monotonic() + timeout_s
        self.recover(concerns=lambda record: _by(record, channel, producer))
        while any(self._is_by(path, channel, producer) for path in self._records()):
            if clock.monotonic() > until:
                raise Busy(f"producer '{producer}' has been in the middle of an atomic step for {timeout_s:g} s")
            clock.sleep(0.01)
            self.recover(concerns=lambda record: _by(record, channel, producer))

    def _is_by(self, path: Path, channel: str, producer: str) -> bool:
        record = self._read(path)
        return record is not None and _by(record, channel, producer)

    def _read(self, path: Path) -> Record | None:
        """A record; None if it is finished meanwhile, or no record yet."""
        with contextlib.suppress(FileNotFoundError, msgspec.MsgspecError, UnicodeDecodeError):
            return _decode(self._disk.read_file(path))
        return None

    def _appended(self, record: Record, number: int) -> bool:
        part = record.parts[number]
        pattern = b',"atomic":"%b/%d"' % (record.id.encode(), number)
        self._engine.barrier(part.channel, part.partition)
        log = self._engine.log(part.channel, part.partition)
        cursor, end = LogCursor(log, part.start, self._disk), log.limit().next
        with contextlib.closing(cursor):
            while cursor.offset < end and (chunk := cursor.read()) is not None:
                if pattern in chunk.data or any(pattern in line for _, line in chunk.numbered or ()):
                    return True
        return False

    # -- positions --------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def committing(self, positions: Sequence[Moved]) -> Iterator[None]:
        """To be held from asking whether these are done until they are: steps for the same message take turns."""
        places = {one.place for one in positions}
        with contextlib.ExitStack() as stack:
            for place in sorted(places):
                stack.callback(self._turn(place).release)
            if places:  # whoever had its turn before may have died in the middle of it
                self.recover(lambda path: self._moves(path, places))
            yield

    @explaining("cannot begin an atomic step")
    def _turn(self, place: Place) -> FileLock:
        channel, subscription, partition = place
        lock = FileLock(self._engine.positions.directory(channel, subscription) / f"{partition}.step", self._disk)
        try:
            lock.exclusive(self._engine.clock, APPEND_WAIT_S)
        except BaseException:
            lock.release()
            raise
        return lock

    def _moves(self, path: Path, places: Collection[Place]) -> bool:
        record = self._read(path)
        return record is not None and moves(record, places)

    def done(self, channel: str, subscription: str, partition: int, position: Position) -> bool:
        """Whether a subscription is at a position already, or beyond: a message that was done comes again."""
        saved = self._engine.positions.load(channel, subscription, partition)
        reached = self.not_before(channel, subscription, partition, saved) if saved is not None else None
        return reached is not None and reached.incarnation == position.incarnation and reached.offset >= position.offset

    def not_before(self, channel: str, subscription: str, partition: int, position: Position) -> Position:
        """A position to be saved, or where a step has moved it beyond that: its handler may not have returned yet."""
        floor = self._floors.get((channel, subscription, partition))
        if floor is None or floor.incarnation != position.incarnation or floor.offset <= position.offset:
            return position
        return floor

    def loaded(self, channel: str, subscription: str, partition: int, position: Position | None) -> None:
        """A position was read to begin there: if it was sought back since a step moved it, it may go back."""
        floor = self._floors.get((channel, subscription, partition))
        if floor is not None and (
            position is None or (position.offset < floor.offset and position.time_us > floor.time_us)
        ):
            del self._floors[channel, subscription, partition]

    def forget(self, channel: str, subscription: str, partition: int) -> None:
        """Somebody seeks: the position may go back."""
        self._floors.pop((channel, subscription, partition), None)
