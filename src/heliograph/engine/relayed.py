"""Arrivals: lines of other stations, appended as they are and each only once.

A message's identity is its origin, channel and sequence there. A line that is here already is not appended again,
whichever way it came and however often: not after a restart, nor when its first copy was trimmed. Check, append and
mark happen under one lock per channel, ``seen/CHANNEL.lock``, which several processes may take turns at. Its file says
who appended last: a process that finds itself there knows that nobody else did, and need not look at the log::

    lock ──somebody else was here──▶ read what was appended since ──▶ check ──▶ append ──▶ mark ──▶ unlock ──▶ sync

Nothing counts as stored before it is synced, duplicates neither: the sync of their first copy may still fail. When it
does the log is fenced, and its repair begins a new life of the channel, in which everything is read anew.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar
from zlib import crc32

import msgspec

from heliograph import limits
from heliograph.disk import explaining
from heliograph.engine import foreign
from heliograph.engine.bounded import Renewals, check_origins, too_many_gaps
from heliograph.engine.foreign import Batch, Piece, Run
from heliograph.engine.knowledge import Checkpoints, End, Knowledge, Outdated
from heliograph.engine.known import KnownChannels
from heliograph.engine.lastown import last_own
from heliograph.engine.origins import station_of
from heliograph.errors import Busy, HeliographError, NotFound, StorageError
from heliograph.log import channel as channels
from heliograph.log import returned
from heliograph.log.cursor import LogCut
from heliograph.log.groups import Relay
from heliograph.log.held import ChannelGone
from heliograph.log.partition import Partition
from heliograph.names import check_name
from heliograph.seen import IntervalSet, Key, SeenSet

if TYPE_CHECKING:
    from heliograph.engine.files import FilesEngine

logger = logging.getLogger("heliograph.engine")
_TRIES: Final = 8
_T = TypeVar("_T")


class Arrival(msgspec.Struct, kw_only=True):
    """What became of lines that arrived."""

    appended: int = 0
    duplicates: int = 0
    refused: list[tuple[int, str]] = []  # which line, and why it cannot be stored
    channel: str = ""
    incarnation: str = ""
    ends: dict[int, tuple[int, int]] = {}  # partition -> the offset behind its last line, and the head's generation
    durable: bool = False  # on disk already: there is nothing to confirm


class _NewLife(HeliographError):
    """Said under the append lock: the channel lives anew."""


class Relayed:
    """Arrivals in one data directory."""

    def __init__(self, engine: FilesEngine) -> None:
        self._engine = engine
        self._channels = KnownChannels(engine)
        self.renewals = Renewals(engine.clock)

    @property
    def patience_s(self) -> float | None:
        """How long whoever asks waits while a long log is read; then Busy. None: until it is."""
        return self._channels.patience_s

    @patience_s.setter
    def patience_s(self, seconds: float | None) -> None:
        self._channels.patience_s = seconds

    # -- lines come in ------------------------------------------------------------------------------------------

    def arrive(
        self, channel: str, lines: Sequence[bytes] | bytes, check: Callable[[Batch], None] | None = None
    ) -> Arrival:
        """Append lines of other stations that are not there yet, in order; durable when it returns.

        ``lines`` are stored lines without their newlines, or, which is quicker, one piece in which each has its own.
        Those that cannot be stored are named in ``refused``, with the reason; the others are stored all the same.
        ``check``: as for ``append``.
        """
        piece = foreign.split(lines) if isinstance(lines, bytes) else foreign.piece_of(lines)
        for _ in range(_TRIES):
            arrival = self.append(channel, [piece], check)
            with contextlib.suppress(Outdated):
                self.confirm(arrival)
                return arrival
        raise Busy(f"channel '{channel}' begins a new life all the time; try again")

    def append(
        self,
        channel: str,
        pieces: Sequence[Piece],
        check: Callable[[Batch], None] | None = None,
        life: str | None = None,
        *,
        durable: bool = False,
    ) -> Arrival:
        """The first half of ``arrive``: written, and not to be acknowledged before ``confirm``.

        For whoever syncs once for several of them, or appends some while others are synced. ``check`` sees what can be
        stored, and raises if it must not be: before anything is written. ``life``: the incarnation in which what comes
        before these lines was appended; Outdated if another one began, for then that may have to be appended again.
        ``durable``: synced, too, in fewer steps than ``confirm`` takes, and while others wait who append here.
        """
        self._engine.check_writable()
        check_name(channel)
        batch, refused = foreign.read_all(channel, pieces, self._engine.config.messages.max_bytes)
        if batch is None:
            return Arrival(channel=channel, refused=refused)
        if check is not None:
            check(batch)
        for attempt in range(_TRIES):
            if attempt or channel not in self._channels:
                self._engine.ensure(channel)
            try:
                with self._channels.known(channel, appending=True) as known:
                    if life is None or life == known.incarnation:
                        return self._append(channel, known, batch, refused, durable)
                raise Outdated
            except (Outdated, _NewLife, LogCut, ChannelGone, NotFound):
                self._channels.forget(channel)
                if life is not None:
                    raise Outdated from None
        raise Busy(f"channel '{channel}' begins a new life all the time; try again")

    def confirm(self, arrival: Arrival, begins: Callable[[], None] = lambda: None) -> None:
        """The second half: returns when the lines, and the first copies of duplicates, are on disk.

        ``begins`` is called when there is little left to do but to wait for the disk. Raises Outdated if the channel
        lives anew meanwhile: then nothing is certain, and the lines are to be appended again.
        """
        if arrival.durable:
            begins()
            return
        engine, channel = self._engine, arrival.channel
        try:
            doubt = arrival.duplicates > 0
            if not arrival.ends:
                begins()
            for number, (end, generation) in arrival.ends.items():
                doubt |= engine.write(channel, number, partial(_synced, end=end, begins=begins)) != generation
            if arrival.duplicates:
                for number in range(engine.partition_count(channel)):
                    engine.write(channel, number, _sync_all)
            if doubt and engine.incarnation(channel) != arrival.incarnation:
                raise Outdated
        except (StorageError, Outdated):
            self._channels.forget(channel)
            raise
        except NotFound:
            self._channels.forget(channel)
            raise Outdated from None

    def _append(
        self, channel: str, known: Knowledge, batch: Batch, refused: list[tuple[int, str]], durable: bool
    ) -> Arrival:
        known.grow(self._engine.partition_count(channel))
        fresh = self._fresh(channel, known, batch)
        count = sum([wanted.count for _, wanted in fresh])
        arrival = Arrival(
            appended=count, duplicates=batch.total - count, refused=refused, channel=channel,
            incarnation=known.incarnation,
        )  # fmt: skip
        if not count:
            return arrival
        most = self._engine.config.hub.origins_max
        check_origins(channel, known, [(run.origin, run.partition) for run, _ in fresh], most)
        firsts: dict[int, int] = {}
        for number, part in self._spread(known, batch, fresh, count).items():
            self._note_returned(channel, number, known, fresh)
            group = Relay(part.data, part.total, part.min_us, part.max_us, self._engine.clock.time_ns() // 1000)
            generation = self._put(channel, number, known, group, durable)
            firsts[number] = group.first
            arrival.ends[number] = (group.first + group.count, generation)
            known.unsaved_bytes += len(part.data)
        for number, first in firsts.items():
            known.pass_over(number, first)
            known.covered[number] = arrival.ends[number][0]
        new = [(run, *interval) for run, wanted in fresh for interval in wanted]
        ids = batch.ids([run.at + following - 1 - run.first for run, _, following in new])
        for (run, first, following), last in zip(new, ids, strict=True):
            known.add(run.origin, run.partition, first, following, last)
        if known.unsaved_bytes > limits.SEEN_SAVE_BYTES:
            self._channels.save(channel, known)
        arrival.durable = durable and not arrival.duplicates  # else their first copies may not be
        return arrival

    def _put(self, channel: str, number: int, known: Knowledge, group: Relay, durable: bool) -> int:
        """Append to a partition in the life that the channel is known to have; the generation of its head then."""
        generations: list[int] = []

        def append(partition: Partition) -> None:
            def guard() -> _NewLife | None:
                generations.append(partition.state >> 8)
                return None if self._engine.life(channel) == known.incarnation else _NewLife(channel)

            group.guard = guard
            if not durable:
                partition.append((group,))
            elif partition.commit((group,)):
                self._channels.rest(channel, limits.ARRIVAL_REST_S)

        self._engine.write(channel, number, append)
        if group.refused is not None:
            raise group.refused
        return generations[-1]

    # -- what is new -----------------------------------------------------------------------------------------------

    def _fresh(self, channel: str, known: Knowledge, batch: Batch) -> list[tuple[Run, IntervalSet]]:
        """Which sequences of each run are not here yet."""
        fresh: list[tuple[Run, IntervalSet]] = []
        before = SeenSet() if len(batch.runs) > 1 else None  # the same line twice in one batch
        for run in batch.runs:
            if station_of(run.origin) == self._engine.name and self._is_own(channel, known, run):
                continue
            wanted = known.seen.gaps(run.origin, run.partition, run.first, run.next)
            if before is not None:
                wanted = wanted.difference(before.of(run.origin, run.partition))
                before.of(run.origin, run.partition).update(wanted)
            if wanted:
                fresh.append((run, wanted))
        return fresh

    def _is_own(self, channel: str, known: Knowledge, run: Run) -> bool:
        """Whether lines that name this station are of its present life: then they were published here and are here.

        Sequences beyond the end were given by another copy of this directory: from now on ours get another origin.
        """
        engine = self._engine
        if engine.incarnation(channel) != known.incarnation:
            raise Outdated
        if run.origin != known.origin:
            return False
        there = run.partition < len(known.covered)
        if there and run.next <= engine.limit(channel, run.partition, synced=False).next:
            return True
        self.renewals.take("", channel)  # whoever it was: what is relayed has come over others
        why = f"{run.origin} {run.partition}/{run.next - 1} arrived, which is beyond the end"
        engine.alter(channel, lambda file: msgspec.structs.replace(file, incarnation=channels.new_incarnation()))
        engine.audit.write(
            "incarnation", channel=channel, before=known.incarnation, after=engine.incarnation(channel), why=why
        )
        raise Outdated

    def _note_returned(self, channel: str, number: int, known: Knowledge, fresh: list[tuple[Run, IntervalSet]]) -> None:
        """Lines of an earlier life of ours come back: they must not be taken for what they were when they were made."""
        own = self._engine.name + "."
        for origin in {run.origin for run, _ in fresh if station_of(run.origin) == self._engine.name}:
            directory = self._engine.directory.place(channel, number, self._engine.name).directory
            if origin.removeprefix(own) not in returned.load(directory):
                self._engine.barrier(channel, number)
                with explaining(f"cannot take back lines of {known.origin}"):
                    returned.note(directory, origin.removeprefix(own), self._engine.disk)

    def _spread(
        self, known: Knowledge, batch: Batch, fresh: list[tuple[Run, IntervalSet]], count: int
    ) -> dict[int, Batch]:
        """The new lines by partition: by key; those without by their origin and its partition."""
        partitions = len(known.covered)
        if partitions == 1:
            return {0: batch if count == batch.total else batch.part(list(foreign.numbers(fresh)))}
        places: dict[int, list[int]] = {}
        envelopes = batch.decoded()
        for run, wanted in fresh:
            keyless = crc32(f"{run.origin}/{run.partition}".encode()) % partitions
            for at in foreign.numbers([(run, wanted)]):
                key = envelopes[at].partitionkey
                place = keyless if key is None else crc32(key.encode()) % partitions
                places.setdefault(place, []).append(at)
        if len(places) == 1 and count == batch.total:
            return dict.fromkeys(places, batch)
        return {place: batch.part(numbers) for place, numbers in sorted(places.items())}

    # -- what is known ---------------------------------------------------------------------------------------------

    def seen(self, channel: str) -> SeenSet:
        """What this log holds or held, own lines included; all of it is on disk.

        Sequences of our own that other lines have the place of are in, too: nobody will ever have them.
        """
        return self._told(channel, lambda known: known.seen.copy())

    def gaps(self, channel: str) -> SeenSet:
        """What will never come, as far as somebody said so with ``gap``, and has not come all the same."""
        return self._told(channel, lambda known: known.gaps.difference(known.seen))

    def never(self, channel: str) -> SeenSet:
        """Of what is seen: what is no message, as others said with ``gap(…, never=True)``."""
        return self._told(channel, lambda known: known.never.copy())

    def ends(self, channel: str) -> dict[Key, End]:
        """Of each origin and its partition the highest sequence that was ever here, and the id of its message."""

        def told(known: Knowledge) -> dict[Key, End]:
            ends = dict(known.ends)
            for number in range(len(known.covered)):
                end = last_own(self._engine, channel, number, known)
                if end is not None:
                    ends[known.origin, number] = end
            return ends

        return self._told(channel, told)

    def gap(
        self, channel: str, origin: str, partition: int, first: int, following: int, *, never: bool = False
    ) -> None:
        """Sequences that a sender does not have any more, or does not send. They may still come another way.

        ``never``: their origin itself says that it gave them to no message; they are as good as seen.
        """
        self.note_gaps(channel, SeenSet({(origin, partition): IntervalSet([(first, following)])}), never=never)

    def note_gaps(self, channel: str, gaps: SeenSet, *, never: bool = False) -> None:
        """The same for many of them. TooManyOrigins if they name more lives than the channel is to remember."""
        with self._channels.known(channel) as known:
            check_origins(channel, known, gaps.keys(), self._engine.config.hub.origins_max)
            if not never and too_many_gaps(self._engine, channel, known, gaps):
                return
            for told in (known.seen, known.never) if never else (known.gaps,):
                told.update(gaps)
            known.saved = []  # to be written down, when convenient: what is forgotten is told again

    def cover(self, channel: str, ends: dict[int, int] | None = None) -> None:
        """Lines are about to be removed, those before ``ends`` or any: what they were must not be forgotten."""
        if not self._channels.lock_path(channel).exists():
            return  # nothing ever arrived

        def written(known: Knowledge) -> None:
            saved = known.saved
            if ends is None or any(len(saved) <= number or saved[number] < end for number, end in ends.items()):
                with explaining(f"cannot write down what channel '{channel}' has seen"):
                    self.checkpoints.save(channel, known)

        self._told(channel, written)

    @property
    def checkpoints(self) -> Checkpoints:
        """What is written down."""
        return self._channels.checkpoints

    def rebuild(self, channel: str, *, aside: Path | None) -> None:
        """Write down anew what the log holds; with what was written down before, unless that is put ``aside``."""
        with explaining(f"cannot write down what channel '{channel}' has seen"):
            self._channels.rebuild(channel, aside=aside)

    def forget_channel(self, channel: str) -> None:
        """The channel is deleted. Its lock stays: somebody may be waiting for it."""
        self._channels.forget(channel)
        with contextlib.suppress(FileNotFoundError):
            self._engine.disk.unlink(self.checkpoints.path(channel))

    def close(self) -> None:
        """Spare the next process reading what this one has read."""
        self._channels.close()

    def _told(self, channel: str, told: Callable[[Knowledge], _T]) -> _T:
        engine = self._engine
        for _ in range(_TRIES):
            try:
                with self._channels.known(channel) as known:
                    if not engine.read_only:
                        for number in range(len(known.covered)):
                            known.pass_over(number, engine.write(channel, number, _sync_all))
                    answer = told(known)
                    if engine.incarnation(channel) == known.incarnation:
                        return answer
            except (Outdated, LogCut, ChannelGone):
                pass
            self._channels.forget(channel)
        raise Busy(f"channel '{channel}' begins a new life all the time; try again")


def _synced(partition: Partition, end: int, begins: Callable[[], None]) -> int:
    """Sync up to an offset; the generation of the head thereafter."""
    partition.sync_through(end, begins)
    return partition.fields().generation


def _sync_all(partition: Partition) -> int:
    """Sync everything that is written; up to which offset that is."""
    end = partition.limit(synced=False).next
    partition.sync_through(end)
    return end
