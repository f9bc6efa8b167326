"""One channel on its way to one peer, the side of the disk: where to begin, what to read, how far it has come.

Synchronous; one call at a time, in whichever thread. Nothing here knows of connections.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from heliograph.clock import from_us, to_us
from heliograph.engine.knowledge import identities
from heliograph.federation import again, peerfile, portions
from heliograph.federation.events import Resumed
from heliograph.federation.letters import Letters
from heliograph.federation.lives import Lives
from heliograph.federation.notes import Notes
from heliograph.federation.peerfile import Memory
from heliograph.federation.portions import Portion
from heliograph.federation.resume import Ends, plan
from heliograph.federation.sending import Read
from heliograph.federation.shelf import Shelf
from heliograph.log.cursor import Chunk, LogCursor
from heliograph.log.news import Fresh
from heliograph.seen import SeenSet

if TYPE_CHECKING:
    from heliograph.station import Station

AHEAD_LINES_MAX: Final = 100
AHEAD_BYTES: Final = 64 * 1024
"""So much at most is read ahead, and sent without asking a thread."""


class Beginning(NamedTuple):
    """Where a stream begins, what the other side will never get, or nobody, and where the partitions end now."""

    starts: dict[int, int]
    gaps: SeenSet
    never: SeenSet
    ends: dict[int, int]


class Renewed(Exception):
    """The channel lives anew: begin again with what is there now."""


class _Ahead:
    """A partition as it is read: a cursor, and what it read and was not sent yet."""

    __slots__ = ("cursor", "data", "offset")

    def __init__(self, cursor: LogCursor) -> None:
        self.cursor = cursor
        self.data = b""
        self.offset = cursor.offset


class Outlet:
    """A channel for a peer."""

    def __init__(self, station: Station, directory: Path, peer: str, channel: str) -> None:
        self._station = station
        self._engine = station.engine
        self._directory = directory
        self._peer = peer
        self.channel = channel
        self._lives = Lives(station, channel)
        self._parts: dict[int, _Ahead] = {}
        self._notes: Notes | None = None
        self._reading = threading.Lock()
        self._closed = False
        self._origin = ""
        self._life: str | None = None
        self._echo = b""
        self._verdicts: dict[bytes, bool] = {}
        self._relays: Callable[[str], bool] = lambda _: True
        self._letters: Letters | None = None
        self._failed: Exception | None = None  # while reading ahead
        self._syncs_always = station.config.storage.durability == "always"

    # -- beginning ------------------------------------------------------------------------------------------------

    def prepare(self, start: str) -> tuple[int, Ends]:
        """Partitions and ends, to open a stream. ``start`` counts if the peer never had anything of this channel."""
        engine = self._engine
        partitions = engine.describe(self.channel).partitions
        ends = self._lives.ends()
        memory = peerfile.load(self._directory, self.channel, engine.disk)
        if memory is None:
            memory = self._begin_at(start, partitions)
            peerfile.save(self._directory, self.channel, peerfile.encode(memory), engine.disk)
        self._take_asked(memory)
        self._notes = Notes(memory, self._directory, self.channel, engine.disk, engine.clock)
        return partitions, ends

    def _take_asked(self, memory: Memory) -> None:
        """Somebody replays what the peer refused."""
        disk = self._engine.disk
        for wanted in again.take(self._directory, self.channel, disk):
            if len(wanted):
                memory.spared = memory.spared.difference(wanted)
                memory.again.update(wanted)
                peerfile.save(self._directory, self.channel, peerfile.encode(memory), disk)

    def _begin_at(self, start: str, partitions: int) -> Memory:
        positions = dict.fromkeys(range(partitions), 0)
        spared = SeenSet()
        if start == "new" and self._is_younger():
            start = "first"
        if start != "first":
            seen = self._engine.relayed.seen(self.channel)
            later = SeenSet()
            for number in positions:
                positions[number] = self._offset_at(number, start)
                for chunk in self._chunks(number, positions[number]):
                    for origin, partition, sequence, _ in identities(chunk):
                        later.add(origin, partition, sequence, sequence + 1)
            spared = seen.difference(later)
        return Memory(
            incarnation=self._engine.incarnation(self.channel), positions=positions, spared=spared, time=self._now()
        )

    def _is_younger(self) -> bool:
        """Whether the channel was made after the peer was here for the first time: all of it is new then."""
        known = peerfile.first_here(self._directory, self._now(), self._engine.disk)
        return self._engine.describe(self.channel).created > known

    def _offset_at(self, number: int, start: str) -> int:
        if start == "new":
            return self._engine.limit(self.channel, number, synced=True).next
        return self._engine.offset_at(self.channel, number, to_us(datetime.fromisoformat(start)))

    def begin(self, resumed: Resumed, relays: Callable[[str], bool]) -> Beginning:
        """Where to begin, once the other side said what it has. Renewed if our own life has to end first."""
        notes, engine = self._remembered(), self._engine
        memory = notes.memory
        engine.limit(self.channel, 0)  # have it opened, so that its life is known
        self._life = engine.life(self.channel)
        if self._lives.doubted(self._peer, resumed.ends, memory.positions):
            raise Renewed
        incarnation = engine.incarnation(self.channel)
        count = engine.describe(self.channel).partitions
        limits = {number: engine.limit(self.channel, number) for number in range(count)}
        # a repaired or restored log may end earlier
        positions = {number: min(memory.positions.get(number, 0), limit.next) for number, limit in limits.items()}
        own, have = f"{engine.name}.{incarnation}", engine.relayed.seen(self.channel)
        covered = resumed.seen.union(memory.spared)
        never = self._never(own, have.difference(covered), positions)
        self._origin = own
        made = plan(
            own=own,
            have=have,
            covered=covered.union(never),
            positions=positions,
            firsts={number: limit.first for number, limit in limits.items()},
            locate=lambda wanted: self._locate(wanted, positions),
            passes=relays,
        )
        if engine.incarnation(self.channel) != incarnation:
            raise Renewed
        self._echo = resumed.origin.encode()
        self._relays, self._verdicts = relays, {}
        memory.incarnation = incarnation
        memory.again = memory.again.difference(resumed.seen)
        memory.positions = {number: min(start, limits[number].next) for number, start in made.starts.items()}
        notes.unsaved = True
        ends = {number: limit.next for number, limit in limits.items()}
        return Beginning(dict(memory.positions), made.gone.union(memory.spared), never, ends)

    def _never(self, own: str, lacking: SeenSet, positions: dict[int, int]) -> SeenSet:
        """Of what was acknowledged and is lacking all the same: sequences whose offsets hold lines of others."""
        before = {(own, number): lacking.of(own, number).between(0, end) for number, end in positions.items()}
        return Shelf(self._station, self.channel).never(SeenSet(before))

    def _locate(self, wanted: SeenSet, positions: dict[int, int]) -> tuple[dict[int, int], SeenSet]:
        """Where messages of other origins are; nearly always behind what was acknowledged, so there first."""
        places: dict[int, int] = {}
        left = wanted.copy()
        for number, position in positions.items():
            self._strike(number, position, None, left, places)
        if len(left):
            for number, position in positions.items():
                self._strike(number, 0, position, left, places)
        return places, left

    def _strike(self, number: int, start: int, stop: int | None, left: SeenSet, places: dict[int, int]) -> None:
        """Take what a stretch of the log holds off a set, and note where the first of it is."""
        for chunk in self._chunks(number, start):
            if not len(left) or (stop is not None and chunk.first >= stop):
                return
            for origin, partition, sequence, _ in identities(chunk):
                if left.has(origin, partition, sequence):
                    left.remove(origin, partition, sequence, sequence + 1)
                    places[number] = min(places.get(number, chunk.first), chunk.first)

    def _chunks(self, number: int, start: int) -> Iterator[Chunk]:
        """What a partition holds from an offset on, up to now."""
        with contextlib.closing(LogCursor(self._engine.log(self.channel, number), start, self._engine.disk)) as cursor:
            while (chunk := cursor.read()) is not None:
                yield chunk

    @property
    def outlived(self) -> bool:
        """Whether the channel was made anew since it began, as far as this process has noticed."""
        return self._engine.life(self.channel) != self._life

    # -- reading --------------------------------------------------------------------------------------------------

    def read(self, wanted: Read, body_bytes_max: int) -> Portion | None:
        """Lines for one batch; None if there is nothing at the offset yet."""
        with self._reading:
            portion = None if self._closed else self._read(wanted, body_bytes_max)
        if self.outlived:
            raise Renewed  # offsets mean other messages now
        return portion

    def read_ahead(self, partition: int, end: int) -> None:
        """Have what is new in memory, if it is little and the other side has all before it. Never fails, nor waits."""
        if not self._reading.acquire(blocking=False):
            return
        try:
            part = self._parts.get(partition)
            if part is None or part.data or not 0 < end - part.offset <= AHEAD_LINES_MAX or not self._syncs_always:
                return
            first = part.offset
            try:
                if self._fill(part, Read(0, self.channel, partition, first, AHEAD_BYTES, end)) is not None:
                    part.offset = first  # it is damaged: whoever reads it says so
                    part.cursor.seek(first)
            except Exception as error:  # noqa: BLE001 - of which the next who reads is told
                self._failed = error
        finally:
            self._reading.release()

    def take(self, partition: int, fresh: Fresh) -> None:
        """The same of one line, from whoever published it. Does not touch the disk."""
        if not self._reading.acquire(blocking=False):
            return
        try:
            part = self._parts.get(partition)
            if part is not None and part.offset == part.cursor.offset == fresh.offset:  # nothing waits to be sent
                part.cursor.pass_over(fresh.line, fresh.base)
                part.data = fresh.line
        finally:
            self._reading.release()

    def ready(self, wanted: Read) -> Portion | None:
        """What was read ahead for this; None if it was not. Does not touch the disk."""
        if not self._reading.acquire(blocking=False):
            return None
        try:
            part = self._parts.get(wanted.partition)
            if part is None or part.offset != wanted.offset or self._closed or self._failed or self.outlived:
                return None
            fits = 0 < len(part.data) <= min(wanted.bytes, AHEAD_BYTES)
            return self._cut(part, wanted, AHEAD_BYTES) if fits else None
        finally:
            self._reading.release()

    def _read(self, wanted: Read, body_bytes_max: int) -> Portion | None:
        if self._failed is not None:
            error, self._failed = self._failed, None
            raise error
        part = self._part(wanted.partition, wanted.offset)
        if not part.data:
            found = self._fill(part, wanted)
            if found is not None:
                return found
        return self._cut(part, wanted, body_bytes_max) if part.data else None

    def _cut(self, part: _Ahead, wanted: Read, body_bytes_max: int) -> Portion:
        """Lines for one batch, of those that are in memory."""
        first = part.offset
        size = len(part.data) if len(part.data) < 2 * wanted.bytes else wanted.bytes  # leave no crumbs
        end, lines = portions.cut(part.data, min(size, body_bytes_max))
        data, part.data = part.data[:end], part.data[end:]
        part.offset = first + len(lines)
        if end > body_bytes_max:
            return self._too_large(wanted.partition, first, data, body_bytes_max)
        return self._portion(wanted.partition, first, len(lines), portions.sift(data, lines, self._passes))

    def _part(self, partition: int, offset: int) -> _Ahead:
        part = self._parts.get(partition)
        if part is None:
            cursor = LogCursor(self._engine.log(self.channel, partition), offset, self._engine.disk)
            part = self._parts[partition] = _Ahead(cursor)
        if part.offset != offset:
            part.data, part.offset = b"", offset
            part.cursor.seek(offset)
        return part

    def _fill(self, part: _Ahead, wanted: Read) -> Portion | None:
        """Read on, a few chunks at once. What is damaged or gone is a portion of its own."""
        pieces: list[bytes] = []
        size = 0
        while size < wanted.bytes and (not pieces or part.cursor.offset < wanted.end):
            at = part.cursor.offset
            chunk = part.cursor.read()
            if chunk is None:
                break
            if chunk.numbered is not None or chunk.missing or not chunk.data:
                if pieces:
                    part.cursor.seek(at)
                    break
                part.offset = chunk.next
                self._engine.make_durable(self.channel, wanted.partition, chunk.next)
                return self._damaged(wanted.partition, chunk)
            pieces.append(chunk.data)
            size += len(chunk.data)
        part.data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        if pieces:
            self._engine.make_durable(self.channel, wanted.partition, part.cursor.offset)
        return None

    def _damaged(self, partition: int, chunk: Chunk) -> Portion:
        intact = dict(chunk.numbered or [])
        if not intact:
            return Portion(chunk.first, 0, b"", chunk.next, self._own(partition, chunk.first, chunk.next))
        lines = [intact.get(offset, b"") + b"\n" for offset in range(chunk.first, chunk.next)]
        return self._portion(partition, chunk.first, len(lines), portions.sift_lines(lines, self._passes))

    def _portion(self, partition: int, first: int, count: int, sifted: portions.Sifted) -> Portion:
        gaps = SeenSet() if sifted.empty else None
        if gaps is not None:
            for at in sifted.empty:  # compacted, redacted or damaged: it will never come from here
                gaps.update(self._own(partition, first + at, first + at + 1))
            self._remembered().spare(gaps)
        return Portion(first, count, b"" if sifted.nothing else sifted.body, first + count, gaps)

    def _own(self, partition: int, first: int, following: int) -> SeenSet:
        """What was published here at these offsets, in this life."""
        found = SeenSet()
        found.add(self._origin, partition, first, following)
        return found

    def _passes(self, origin: bytes) -> bool:
        """Not what may not be relayed, and not what the other side published itself."""
        verdict = self._verdicts.get(origin)
        if verdict is None:
            verdict = self._verdicts[origin] = origin != self._echo and self._relays(origin.decode("ascii", "replace"))
        return verdict

    def _too_large(self, partition: int, offset: int, line: bytes, most: int) -> Portion:
        if portions.sift(line, [line], self._passes).nothing:
            return Portion(offset, 1, b"", offset + 1)
        self.refused(partition, [(offset, f"it has {len(line)} bytes; the other end of the link takes {most} at once")])
        return Portion(offset, 1, b"", offset + 1)

    # -- how far it has come --------------------------------------------------------------------------------------

    def acked(self, partition: int, position: int) -> None:
        """Everything before the position is stored there, or refused and kept here. Written down by ``save``."""
        self._remembered().acked(partition, position)

    def refused(self, partition: int, refused: Sequence[tuple[int, str]]) -> None:
        """Keep what the other side refused as dead letters, which are durable, and remember not to send it again."""
        notes = self._remembered()
        if self._letters is None:
            self._letters = Letters(self._station, self._peer, self.channel, to_us(notes.memory.time))
        notes.refused(self._letters.write(partition, refused, notes.sent_again))

    def save(self) -> None:
        """Write down how far it has come, if that changed."""
        if self._notes is not None:
            self._notes.save()

    @property
    def unsaved(self) -> bool:
        """Whether there is something to be saved."""
        return self._notes is not None and self._notes.unsaved

    def close(self) -> None:
        """Let go of the files."""
        with self._reading:
            self._closed = True
            for part in self._parts.values():
                part.cursor.close()
            self._parts.clear()

    def _remembered(self) -> Notes:
        assert self._notes is not None, "prepare comes first"
        return self._notes

    def _now(self) -> datetime:
        return from_us(self._engine.clock.time_ns() // 1000)
