"""Who numbers messages, and how far each has come in which channel.

    producers/epochs/importer                  8 bytes, mapped by every process that is this producer: the valid epoch
    producers/channels/orders/importer.json    {"incarnation":"k3f9q2","seq":17,"at":[0,40],"covered":[41,38]}
    producers/channels/orders/importer.lock    held while the latter is changed

The log itself says which numbers are stored: every line carries ``producer`` and ``producerseq`` (epoch/number).
The JSON file is a checkpoint that spares reading all of it: ``seq`` is the largest number below the ``covered``
offsets, one per partition, and ``at`` the partition and offset of its message. It is written after those are synced,
distrusted when it is ahead of the log or that message is not there any more, and renewed before lines that it does
not cover are removed.

Whoever opens a producer begins a new epoch: it is written to the mapped word. Before it uses a channel it takes every
partition's append lock once. Appends of the epoch before ask for that word under the same lock, so each of them
either was finished by then, and is found in the log, or is refused.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from heliograph.disk import Disk, explain, make_below
from heliograph.errors import Busy, NotFound, ProducerFenced
from heliograph.log import channel as channels
from heliograph.log.cursor import LogCursor
from heliograph.log.locks import FileLock
from heliograph.names import check_name, is_name

if TYPE_CHECKING:
    from heliograph.engine.files import FilesEngine
    from heliograph.engine.port import Bounds

_EPOCH_BYTES: Final = 8
_LOCK_S: Final = 10.0


class ProducerState(msgspec.Struct, frozen=True, kw_only=True):
    """How far a producer has come in a channel."""

    incarnation: str = ""
    seq: int = 0
    at: list[int] = []
    covered: list[int] = []


class Last(NamedTuple):
    """The largest number of a producer, and where its message is."""

    seq: int = 0
    partition: int = 0
    offset: int = -1


class _Numbered(msgspec.Struct):
    producer: str = ""
    producerseq: str = ""
    origin: str = ""


_decode_state = msgspec.json.Decoder(ProducerState).decode
_decode_line = msgspec.json.Decoder(_Numbered).decode


class Epoch:
    """A producer's time, which ends when somebody begins a newer one."""

    def __init__(self, producer: str, number: int, page: mmap.mmap) -> None:
        self.producer = producer
        self.number = number
        self._page = page
        self._valid = memoryview(page).cast("Q")

    def guard(self) -> ProducerFenced | None:
        """Asked under the append lock: why this producer must not append any more, if so."""
        valid = self._valid[0]
        if valid == self.number:
            return None
        return ProducerFenced(
            f"producer '{self.producer}' was opened again elsewhere (epoch {valid}, this is {self.number}). "
            "That one goes on; nothing was published here."
        )

    def check(self) -> None:
        refusal = self.guard()
        if refusal is not None:
            raise refusal

    def close(self) -> None:
        self._valid.release()
        self._page.close()


class Producers:
    """The producers directory of one station."""

    def __init__(self, engine: FilesEngine, count_max: int) -> None:
        self._engine = engine
        self._root = engine.root / "producers"
        self._disk = engine.disk
        self._count_max = count_max

    def begin(self, producer: str) -> Epoch:
        """Become the producer of that id: whoever was it before is refused from now on."""
        path = self._epoch_path(producer)
        with _explaining(producer):
            self._make(path.parent)
            lock = FileLock(path, self._disk)
            try:
                lock.exclusive_unnoted(self._engine.clock, _LOCK_S)
                number = self.epoch(producer) + 1
                return Epoch(producer, number, _write_epoch(path, number, self._disk))
            finally:
                lock.release()

    def epoch(self, producer: str) -> int:
        """The epoch that is valid now; 0 if nobody knows the producer."""
        with contextlib.suppress(FileNotFoundError):
            return int.from_bytes(self._disk.read_file(self._epoch_path(producer))[:_EPOCH_BYTES], sys.byteorder)
        return 0

    def last(self, channel: str, epoch: Epoch) -> ProducerState:
        """What is stored in a channel, which nobody else adds to from now on."""
        producer = epoch.producer
        path = self._path(channel, producer)
        with _explaining(producer), self._locked(path):
            before = self._load(path)
            if before is None:
                self._check_room(channel)
            self._engine.steps.await_producer(channel, producer)
            for number in range(self._engine.partition_count(channel)):
                self._engine.barrier(channel, number)
            epoch.check()
            state = self._renewed(channel, producer, before or ProducerState())
            self._save(channel, path, state)
        return state

    def renew(self, channel: str, producer: str) -> ProducerState:
        """Bring the checkpoint of a producer up to what the log holds now."""
        path = self._path(channel, producer)
        with _explaining(producer), self._locked(path):
            before = self._load(path)
            if before is None:
                raise NotFound(f"channel '{channel}' knows no producer '{producer}'")
            state = self._renewed(channel, producer, before)
            if state != before:
                self._save(channel, path, state)
            return state

    def note(self, channel: str, epoch: Epoch, last: Last) -> None:
        """A producer says itself how far it has come: nothing has to be read, as long as nobody else is it."""
        path = self._path(channel, epoch.producer)
        with _explaining(epoch.producer), self._locked(path):
            if self._load(path) is None:
                return  # forgotten meanwhile
            incarnation = self._engine.incarnation(channel)
            partitions = range(self._engine.partition_count(channel))
            covered = [self._engine.bounds(channel, number).next for number in partitions]
            if epoch.guard() is None:  # asked after that: what a successor adds lies behind
                at = [last.partition, last.offset]
                self._save(channel, path, ProducerState(incarnation=incarnation, seq=last.seq, at=at, covered=covered))

    def cover(self, channel: str) -> None:
        """Lines of the channel are about to be removed: what they number must not be forgotten."""
        for producer in self.names(channel):
            with contextlib.suppress(NotFound):
                self.renew(channel, producer)

    def states(self, channel: str) -> dict[str, ProducerState]:
        """Every producer of a channel as of its last checkpoint."""
        found = {producer: self._load(self._path(channel, producer)) for producer in self.names(channel)}
        return {producer: state for producer, state in found.items() if state is not None}

    def names(self, channel: str) -> list[str]:
        with contextlib.suppress(FileNotFoundError):
            names = self._disk.listdir(self._root / "channels" / check_name(channel))
            return sorted(filter(is_name, (name.removesuffix(".json") for name in names if name.endswith(".json"))))
        return []

    def forget(self, channel: str, producer: str) -> None:
        """Forget a producer: its numbers are not recognised any more, and its place is free."""
        path = self._path(channel, producer)
        with self._locked(path):
            if self._load(path) is None:
                raise NotFound(f"channel '{channel}' knows no producer '{producer}'")
            self._disk.unlink(path)
            self._disk.sync_directory(path.parent)

    def forget_channel(self, channel: str) -> None:
        """The channel is deleted."""
        directory = self._root / "channels" / channel
        if directory.exists():
            channels.empty(channels.move_to_trash(self._engine.root, directory, self._disk), self._disk)

    # -- files ------------------------------------------------------------------------------------------------

    def _path(self, channel: str, producer: str) -> Path:
        return self._root / "channels" / check_name(channel) / f"{check_name(producer, 'producer')}.json"

    def _epoch_path(self, producer: str) -> Path:
        return self._root / "epochs" / check_name(producer, "producer")

    def _make(self, directory: Path) -> None:
        """A directory whose name survives."""
        if not directory.exists():
            make_below(self._engine.root, directory)
            while directory != self._engine.root:
                directory = directory.parent
                self._disk.sync_directory(directory)

    @contextlib.contextmanager
    def _locked(self, path: Path) -> Iterator[None]:
        self._make(path.parent)
        lock = FileLock(path.with_suffix(".lock"), self._disk)
        try:
            lock.exclusive(self._engine.clock, _LOCK_S)
            yield
        finally:
            lock.release()

    def _check_room(self, channel: str) -> None:
        known = len(self.names(channel))
        if known >= self._count_max:
            raise Busy(
                f"channel '{channel}' remembers {known} producers, and publishing.producers_max is {self._count_max}. "
                "Forget those that will not come back ('helio producers forget'), or raise the limit."
            )

    def _load(self, path: Path) -> ProducerState | None:
        try:
            return _decode_state(self._disk.read_file(path))
        except FileNotFoundError:
            return None
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return ProducerState()  # a checkpoint only: the log is read from its beginning

    def _save(self, channel: str, path: Path, state: ProducerState) -> None:
        for number, following in enumerate(state.covered):  # else a power cut takes what the checkpoint counts
            self._engine.make_durable(channel, number, following)
        self._disk.replace_file(path, msgspec.json.encode(state) + b"\n")

    # -- what the log says ------------------------------------------------------------------------------------

    def _renewed(self, channel: str, producer: str, state: ProducerState) -> ProducerState:
        """The state that covers the log as it is now."""
        count = self._engine.partition_count(channel)
        incarnation = self._engine.incarnation(channel)
        bounds = [self._engine.bounds(channel, number) for number in range(count)]
        covered = [*state.covered, *[0] * count][:count]
        last = Last(state.seq, *state.at) if state.at else Last()
        ahead = any(done > bound.next for done, bound in zip(covered, bounds, strict=True))
        if ahead or (state.incarnation != incarnation and not self._still_there(channel, producer, last, bounds)):
            covered, last = [0] * count, Last()  # not the log that it was made for: read all of it
        for number, bound in enumerate(bounds):
            first = max(covered[number], bound.first)
            last = max(last, self._largest(channel, number, producer, first, bound.next))
        return ProducerState(
            incarnation=incarnation,
            seq=last.seq,
            at=[last.partition, last.offset] if last.seq else [],
            covered=[bound.next for bound in bounds],
        )

    def _still_there(self, channel: str, producer: str, last: Last, bounds: list[Bounds]) -> bool:
        """Whether a log that lives anew has the producer's last message, or removed it: as the oldest, or by itself."""
        if not last.seq or last.offset < bounds[last.partition].first or self._blank(channel, last):
            return True
        return self._largest(channel, last.partition, producer, last.offset, last.offset + 1) == last

    def _blank(self, channel: str, last: Last) -> bool:
        """Whether the message there was redacted, or taken out for a newer one of its key."""
        cursor = LogCursor(self._engine.log(channel, last.partition), last.offset, self._disk)
        with contextlib.closing(cursor):
            chunk = cursor.read()
        return chunk is not None and chunk.numbered is None and not chunk.data.partition(b"\n")[0].strip()

    def _largest(self, channel: str, number: int, producer: str, first: int, following: int) -> Last:
        """A producer's last message in a stretch of a partition."""
        pattern = b'"producer":' + msgspec.json.encode(producer)
        largest, station = Last(), self._engine.name
        cursor = LogCursor(self._engine.log(channel, number), first, self._disk)
        with contextlib.closing(cursor):
            while cursor.offset < following and (chunk := cursor.read()) is not None:
                if chunk.numbered is not None:
                    lines = chunk.numbered
                elif pattern in chunk.data:
                    lines = list(enumerate(chunk.data.split(b"\n"), chunk.first))
                else:
                    continue
                # In a partition its numbers grow with the offsets: the last line of a chunk that is its own will do.
                found = (
                    Last(_seq_in(line, producer, station), number, at) for at, line in reversed(lines) if at < following
                )
                largest = max(largest, next((one for one in found if one.seq), Last()))
        return largest


def _seq_in(line: bytes, producer: str, station: str) -> int:
    """The number of a line, if the producer is ours: another station's may have the same id."""
    if b'"producer":' not in line:
        return 0
    with contextlib.suppress(msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError):
        found = _decode_line(line)
        if found.producer == producer and found.origin.rpartition(".")[0] == station:
            return int(found.producerseq.partition("/")[2])
    return 0


def _write_epoch(path: Path, number: int, disk: Disk) -> mmap.mmap:
    """Write the epoch in place, for every process that has it mapped, and map it."""
    fd = disk.open(path, os.O_RDWR)
    try:
        disk.pwrite(fd, number.to_bytes(_EPOCH_BYTES, sys.byteorder), 0)
        disk.fdatasync(fd)  # an epoch that was valid once is never given again
        return mmap.mmap(fd, _EPOCH_BYTES, access=mmap.ACCESS_READ)
    finally:
        disk.close(fd)


@contextlib.contextmanager
def _explaining(producer: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise explain(error, f"cannot keep the numbers of producer '{producer}'") from error
