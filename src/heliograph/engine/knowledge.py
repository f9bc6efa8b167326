"""What a channel's log holds, by origin: learnt from its lines, kept in a checkpoint that spares reading them all.

    seen/alerts.json    {"created":…,"incarnation":"k3f9q2","covered":[41],"anchors":["9a1c03f7"],
                         "seen":{"host2.x7y8z9":{"0":[[0,40]]}},"ends":{"host2.x7y8z9":{"0":[39,"01a1…"]}},"gaps":{},
                         "never":{},"crc":"5b7d9e20"}

``covered`` says, per partition, up to which offset its lines are accounted for, and ``anchors`` with which checksum
the line before that ends. The checkpoint is written after those lines are synced, and before any that it does not
cover is removed. It is discarded when it is ahead of the log, when the channel was made anew, or when in another life
of the channel the line at an anchor is another one: rather read everything than claim what is not there. So is one
whose own checksum does not fit: a single digit that changed could make messages pass for seen that never came.
"""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Callable, Iterable
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import google_crc32c
import msgspec

from heliograph.log.channel import ChannelFile
from heliograph.log.cursor import Chunk, LogCursor
from heliograph.log.lines import Home, intact
from heliograph.log.partition import Partition
from heliograph.log.seek import line_at
from heliograph.seen import Key, SeenSet

if TYPE_CHECKING:
    from heliograph.engine.files import FilesEngine

logger = logging.getLogger("heliograph.engine")


class Outdated(Exception):
    """The channel lives anew since it was looked at: what is known of it may not hold any more."""


class End(NamedTuple):
    """The highest sequence of an origin's partition that a log holds, and the id of its message."""

    sequence: int
    id: str


class Identity(msgspec.Struct, gc=False):
    """Who a line is."""

    id: str = ""
    origin: str = ""
    originseq: str = ""


class Checkpoint(msgspec.Struct, kw_only=True):
    """What is written down."""

    created: datetime
    incarnation: str
    covered: list[int]
    anchors: list[str]
    seen: dict[str, dict[str, list[list[int]]]] = {}
    ends: dict[str, dict[str, End]] = {}
    gaps: dict[str, dict[str, list[list[int]]]] = {}
    never: dict[str, dict[str, list[list[int]]]] = {}


_identities = msgspec.json.Decoder(Identity)
_decode = msgspec.json.Decoder(Checkpoint).decode
_UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
_PLAINLY = re.compile(
    rb'\{"specversion":"1\.0","id":"([^"\\]*)".*,"origin":"([^"\\]*)","originseq":"([^"\\]*)","crc":"[0-9a-f]{8}"\}'
)


class Knowledge:
    """What one process knows of one channel."""

    def __init__(self, file: ChannelFile, station: str) -> None:
        self.created = file.created
        self.incarnation = file.incarnation
        self.origin = f"{station}.{file.incarnation}"
        self.seen = SeenSet()
        self.gaps = SeenSet()
        self.never = SeenSet()  # of what is seen, what others said to be no message at all
        self.ends: dict[Key, End] = {}
        self.covered = [0] * file.partitions
        self.saved: list[int] = []  # what the checkpoint on disk is known to cover
        self.unsaved_bytes = 0
        self.last_own: dict[int, tuple[int, End | None]] = {}  # partition -> own end, and the last message before it
        self.forgone = False  # whether gaps were told that are not kept
        self.mark = (0, 0)  # which checkpoint was looked at last
        self._natives: dict[int, tuple[str, int]] = {}  # partition -> origin and end of its last own lines

    def learn(self, partition: int, home: Home, found: Iterable[tuple[str, int, int, str]]) -> None:
        """Lines of a partition, in order: origin, origin's partition, sequence, id."""
        station = home.station + "."
        origin, number, first, following, last = "", -1, -1, -1, ""
        for line in found:
            if line[2] == following and line[0] == origin and line[1] == number:
                following, last = following + 1, line[3]
                continue
            if number >= 0:
                self._learn_run(partition, home, station, origin, number, first, following, last)
            origin, number, first, last = line
            following = first + 1
        if number >= 0:
            self._learn_run(partition, home, station, origin, number, first, following, last)

    def _learn_run(
        self, partition: int, home: Home, station: str, origin: str, number: int, first: int, following: int, last: str
    ) -> None:
        if number == partition and origin.startswith(station) and origin[len(station) :] not in home.returned:
            first = self._reach_back(partition, origin, first, following)
        self.add(origin, number, first, following, last)

    def _reach_back(self, partition: int, origin: str, first: int, following: int) -> int:
        """Published here: sequences since the last such line belong to offsets that hold other lines, hence to none."""
        before, end = self._natives.get(partition, ("", 0))
        self._natives[partition] = (origin, following)
        return min(first, end) if before == origin else first

    def add(self, origin: str, number: int, first: int, following: int, last: str) -> None:
        """Lines that the log holds: consecutive ones of an origin's partition, and the id of the last."""
        self.seen.add(origin, number, first, following)
        end = self.ends.get((origin, number))
        if end is None or following > end.sequence + 1:
            self.ends[origin, number] = End(following - 1, last)

    def grow(self, partitions: int) -> None:
        """The channel has so many partitions by now."""
        self.covered += [0] * (partitions - len(self.covered))

    def pass_over(self, partition: int, end: int) -> None:
        """What was appended to a partition since it was looked at was published here, in this life."""
        if end > self.covered[partition]:
            first = self._reach_back(partition, self.origin, self.covered[partition], end)
            self.seen.add(self.origin, partition, first, end)
            self.covered[partition] = end

    def own_end(self, partition: int) -> int:
        """One more than the last sequence that was published here in this life; 0 if there is none."""
        return self.seen.end(self.origin, partition)

    def same_life(self, file: ChannelFile) -> bool:
        """Whether this is about the channel as it is described now."""
        return (self.incarnation, self.created) == (file.incarnation, file.created)

    def absorb(self, other: Knowledge) -> None:
        """What somebody else knows of the same life, too. How far this one has read stays as it is."""
        self.seen.update(other.seen)
        self.gaps.update(other.gaps)
        self.never.update(other.never)
        for key, end in other.ends.items():
            if key not in self.ends or end.sequence > self.ends[key].sequence:
                self.ends[key] = end
        self.mark = other.mark


def identities(chunk: Chunk) -> Iterable[tuple[str, int, int, str]]:
    """Origin, its partition, sequence and id of the messages of a chunk."""
    if chunk.numbered is None:
        with contextlib.suppress(*_UNREADABLE):
            return _named(_identities.decode_lines(chunk.data))
    lines = chunk.data.split(b"\n") if chunk.numbered is None else [line for _, line in chunk.numbered]
    return _named([one for line in lines for one in _identity(line)])


def identities_of(line: bytes) -> Iterable[tuple[str, int, int, str]]:
    """The same of one stored line; nothing if it is no message."""
    return _named(_identity(line))


def _identity(line: bytes) -> list[Identity]:
    try:
        return [_identities.decode(line)]
    except RecursionError:  # nested too deeply for this stack, though not for that of whoever stored it
        found = _PLAINLY.fullmatch(line)
        return [] if found is None else [Identity(*[text.decode("ascii", "replace") for text in found.groups()])]
    except _UNREADABLE:
        return []


def _named(found: Iterable[Identity]) -> Iterable[tuple[str, int, int, str]]:
    for one in found:
        partition, _, sequence = one.originseq.partition("/")
        if partition.isdecimal() and sequence.isdecimal() and one.originseq.isascii():
            yield one.origin, int(partition), int(sequence), one.id


class Checkpoints:
    """The seen directory of one station."""

    def __init__(self, engine: FilesEngine) -> None:
        self._engine = engine
        self._disk = engine.disk
        self.root: Path = engine.root / "seen"

    def path(self, channel: str) -> Path:
        return self.root / f"{channel}.json"

    def load(self, channel: str, file: ChannelFile) -> Knowledge:
        """What the checkpoint says, if it is about the log that is there."""
        known = Knowledge(file, self._engine.name)
        known.mark = self._mark(channel)
        found = self._read(channel)
        if found is None or found.created != file.created or not self._fits(channel, found, file):
            return known
        try:
            seen, gaps, never = map(SeenSet.from_json, (found.seen, found.gaps, found.never))
            ends = {(origin, int(number)): end for origin, ends in found.ends.items() for number, end in ends.items()}
        except ValueError:
            return known
        known.seen, known.gaps, known.never, known.ends = seen, gaps, never, ends
        known.covered = [*found.covered, *[0] * (file.partitions - len(found.covered))]
        known.saved = list(known.covered)
        return known

    def _read(self, channel: str) -> Checkpoint | None:
        try:
            return self.written(channel)
        except ValueError:
            logger.error(
                "%s is damaged: what channel '%s' has seen is read from its log. What was deleted from that is not "
                "known any more, and is stored again should it come again",
                self.path(channel), channel,
            )  # fmt: skip
            return None

    def written(self, channel: str) -> Checkpoint | None:
        """The checkpoint as it is, None if there is none; ValueError if it is damaged."""
        try:
            data = self._disk.read_file(self.path(channel)).rstrip(b"\n")
        except FileNotFoundError:
            return None
        if not intact(data):
            raise ValueError("its checksum does not fit")
        try:
            return _decode(data)
        except _UNREADABLE as error:
            raise ValueError(str(error)) from None

    def _fits(self, channel: str, found: Checkpoint, file: ChannelFile) -> bool:
        if len(found.covered) > file.partitions or len(found.anchors) != len(found.covered):
            return False
        for number, covered in enumerate(found.covered):
            limit = self._engine.limit(channel, number, synced=False)
            if covered > limit.next:
                return False
            if found.incarnation != file.incarnation and covered > limit.first:
                line = line_at(self._engine.log(channel, number), covered - 1, self._disk)
                if line is None or (line.strip(b" ") and crc_of(line) != found.anchors[number]):
                    return False
        return True

    def unread(self, channel: str, known: Knowledge, file: ChannelFile) -> int:
        """How many lines there are to learn from."""
        covered = [*known.covered, *[0] * (file.partitions - len(known.covered))]
        limits = [self._engine.limit(channel, number, synced=False) for number in range(file.partitions)]
        return sum([max(0, limit.next - max(covered[at], limit.first)) for at, limit in enumerate(limits)])

    def catch_up(self, channel: str, known: Knowledge, progress: Callable[[int], None] = lambda _: None) -> None:
        """Learn what was appended since, by whomever; lines of a process that died in the middle of it, too.

        ``progress`` is told how many lines were read, again and again; what it raises ends the reading.
        """
        engine = self._engine
        file = engine.describe(channel)
        known.grow(file.partitions)
        for number in range(len(known.covered)):
            if not engine.read_only:
                engine.barrier(channel, number)
            limit = engine.limit(channel, number)
            start = max(known.covered[number], limit.first)
            if start < limit.next:
                self._scan(channel, number, known, start, limit.next, progress)
        if self._mark(channel) != known.mark:  # whoever deleted what we did not read wrote it down before
            known.absorb(self.load(channel, file))

    def _mark(self, channel: str) -> tuple[int, int]:
        """Which checkpoint is there: each is a file of its own."""
        with contextlib.suppress(FileNotFoundError):
            found = self._disk.stat(self.path(channel))
            return found.st_ino, found.st_mtime_ns
        return 0, 0

    def _scan(
        self, channel: str, number: int, known: Knowledge, start: int, end: int, progress: Callable[[int], None]
    ) -> None:
        log = self._engine.log(channel, number)
        home = log.place.home()
        with contextlib.closing(LogCursor(log, start, self._disk)) as cursor:
            while cursor.offset < end and (chunk := cursor.read()) is not None:
                known.learn(number, home, identities(chunk))
                known.unsaved_bytes += len(chunk.data)
                progress(chunk.next - chunk.first)
            known.covered[number] = cursor.offset

    def save(self, channel: str, known: Knowledge) -> None:
        """Write down what is known, after all of it is synced. The caller holds the arrivals lock."""
        engine, covered = self._engine, list(known.covered)
        for number, offset in enumerate(covered):
            engine.write(channel, number, partial(Partition.sync_through, offset=offset))
        anchors = [self._anchor(channel, number, offset) for number, offset in enumerate(covered)]
        if engine.incarnation(channel) != known.incarnation:
            raise Outdated
        before = self._read(channel)
        if before is not None and (before.created, before.incarnation) == (known.created, known.incarnation):
            with contextlib.suppress(ValueError):  # gaps that another process was told of
                known.gaps.update(SeenSet.from_json(before.gaps))
                known.seen.update(SeenSet.from_json(before.seen))
                known.never.update(SeenSet.from_json(before.never))
        ends: dict[str, dict[str, End]] = {}
        for (origin, number), end in sorted(known.ends.items()):
            ends.setdefault(origin, {})[str(number)] = end
        found = Checkpoint(
            created=known.created, incarnation=known.incarnation, covered=covered, anchors=anchors,
            seen=known.seen.to_json(), ends=ends, gaps=known.gaps.to_json(), never=known.never.to_json(),
        )  # fmt: skip
        body = msgspec.json.encode(found)[:-1]
        self._disk.replace_file(self.path(channel), b'%b,"crc":"%08x"}\n' % (body, google_crc32c.value(body)))
        known.saved, known.unsaved_bytes, known.mark = covered, 0, self._mark(channel)

    def _anchor(self, channel: str, number: int, covered: int) -> str:
        first = self._engine.limit(channel, number).first
        return (
            crc_of(line_at(self._engine.log(channel, number), covered - 1, self._disk) or b"")
            if covered > first
            else ""
        )


def crc_of(line: bytes) -> str:
    """The checksum that a line carries."""
    return line[-10:-2].decode("ascii", "replace")
