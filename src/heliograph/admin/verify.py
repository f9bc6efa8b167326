"""Checking every checksum of a station, and repairing what can be repaired.

Lines that do not match their checksum are lost: repair sets their bytes aside and leaves blank lines, so that
offsets stay. What is derived (index, frames, head) is made again without loss. A fenced log is sealed at what
was synced and goes on behind it, in a new incarnation. After a repair everything is looked at once more.
"""

from __future__ import annotations

import contextlib
import time
from datetime import datetime
from typing import Literal, NamedTuple

import msgspec

from heliograph.admin import Progress
from heliograph.admin.mend import Mender
from heliograph.admin.positions import check_positions
from heliograph.admin.queues import check_queues
from heliograph.admin.seen import check_seen
from heliograph.admin.types import check_types
from heliograph.disk import explain
from heliograph.errors import Damaged, NotFound
from heliograph.log import inspection, lost, segments
from heliograph.log.head import FENCED
from heliograph.log.indexing import Place
from heliograph.log.inspection import Segment
from heliograph.log.redact import INTENT
from heliograph.station import Station

Kind = Literal[
    "index",
    "frames",
    "head",
    "names",
    "batch",
    "channel",
    "position",
    "queue",
    "seen",
    "type",
    "fence",
    "redaction",
    "leftover",
    "lost",
]
LOOKS = 4
"""What another process is changing just now looks wrong for a moment: trouble is believed when it stays."""

PAUSE_S = 0.1
REDACTION_AGE_S = 10.0
LEFTOVER_AGE_S = 60.0


class Trouble(msgspec.Struct, frozen=True, kw_only=True):
    """Something that is wrong and costs no message by itself. ``derived``: it is made again without loss."""

    kind: Kind
    path: str
    what: str
    derived: bool = True
    repaired: bool = False


class Damage(msgspec.Struct, frozen=True, kw_only=True):
    """Offsets ``first`` to ``next - 1`` are lost. After a repair: where the ``bytes`` in their place are now."""

    first: int
    next: int
    segment: int
    bytes: int
    reason: str
    quarantined: list[str] = []
    repaired: bool = False


class PartitionReport(msgspec.Struct, kw_only=True):
    """What was found in one partition."""

    channel: str
    partition: int
    ok: bool = True
    first: int = 0
    next: int = 0
    segments: int = 0
    lines: int = 0
    blank: int = 0
    bytes: int = 0
    fenced: bool = False
    damaged: list[Damage] = []
    troubles: list[Trouble] = []


class ChannelReport(msgspec.Struct, kw_only=True):
    """What was found in one channel: in its partitions, its description and its subscriptions."""

    name: str
    ok: bool = True
    partitions: list[PartitionReport] = []
    troubles: list[Trouble] = []


class VerifyReport(msgspec.Struct, kw_only=True):
    """What was found. ``ok``: nothing is wrong, or nothing is left wrong after the repair."""

    station: str
    path: str
    ok: bool = True
    repaired: bool = False
    lines: int = 0
    bytes: int = 0
    damaged: int = 0
    seconds: float = 0.0
    channels: list[ChannelReport] = []

    @property
    def troubles(self) -> list[Trouble]:
        """The troubles of all channels."""
        found = [one for channel in self.channels for one in channel.troubles]
        return found + [one for channel in self.channels for part in channel.partitions for one in part.troubles]


class _Meter:
    """Turns the bytes of many segments into one progress, which never goes back though some are looked at again."""

    def __init__(self, progress: Progress | None, total: int) -> None:
        self._progress = progress
        self._total = total
        self._done = 0
        self._shown = 0

    def within(self, done: int, size: int, stored: int) -> None:
        if self._progress is not None:
            self._shown = max(self._shown, min(self._total, self._done + stored * done // max(1, size)))
            self._progress(self._shown, self._total)

    def finish(self, stored: int) -> None:
        self._done += stored
        self.within(0, 1, 0)


class _Look(NamedTuple):
    """What one look at a partition found, and which segments are not as they should be."""

    report: PartitionReport
    unsound: list[int]


def verify(
    station: Station, channel: str | None = None, *, repair: bool = False, progress: Progress | None = None
) -> VerifyReport:
    """Check one channel or all of them; with ``repair=True`` make good what can be made good."""
    engine = station.engine
    if repair:
        engine.check_writable()
    names = engine.channel_names()
    if channel is not None:
        if channel not in names:
            raise NotFound(f"there is no channel '{channel}' in {station.path}")
        names = [channel]
    started_s = time.monotonic()
    meter = _Meter(progress, sum(_stored_bytes(station, name) for name in names))
    report = VerifyReport(station=station.name, path=str(station.path), repaired=repair)
    for name in names:
        found = _check(station, name, meter, repair=repair)
        if found is not None:
            report.channels.append(found)
    parts = [part for found in report.channels for part in found.partitions]
    report.ok = all(found.ok for found in report.channels)
    report.lines = sum(part.lines for part in parts)
    report.bytes = sum(part.bytes for part in parts)
    report.damaged = sum(one.next - one.first for part in parts for one in part.damaged)
    report.seconds = time.monotonic() - started_s
    return report


def _check(station: Station, name: str, meter: _Meter, *, repair: bool) -> ChannelReport | None:
    """Check one channel, again if it was deleted and made anew meanwhile; None if it is gone."""
    engine = station.engine
    for _ in range(LOOKS):
        born, report = _born(station, name), None
        try:
            with engine.without_upkeep() if repair else contextlib.nullcontext():
                report = _Channel(station, name, meter, repair=repair).check()
        except NotFound:
            if born is not None and _born(station, name) == born:
                raise  # the channel is there: it must not pass for checked
        except FileNotFoundError as error:
            if _born(station, name) == born:
                raise explain(error, f"cannot check channel '{name}'") from error
        now = _born(station, name)
        if now == born or (born is None and report is not None):  # a description that was damaged may be repaired now
            return report
    return None


def _born(station: Station, name: str) -> datetime | None:
    with contextlib.suppress(NotFound, Damaged):
        return station.engine.birth(name)
    return None


def _stored_bytes(station: Station, name: str) -> int:
    disk, total = station.engine.disk, 0
    for number in _partitions(station, name):
        directory = station.engine.directory.place(name, number, station.name).directory
        with contextlib.suppress(FileNotFoundError):
            total += segments.stored_in(directory, disk)
    return total


def _partitions(station: Station, name: str) -> list[int]:
    path = station.path / "channels" / name
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        return sorted(int(entry) for entry in station.engine.disk.listdir(path) if entry.isdigit())
    return []


class _Channel:
    """The check of one channel."""

    def __init__(self, station: Station, name: str, meter: _Meter, *, repair: bool) -> None:
        self._station = station
        self._engine = station.engine
        self._disk = station.engine.disk
        self._name = name
        self._meter = meter
        self._mender = Mender(station.engine, name) if repair else None

    def check(self) -> ChannelReport:
        report = ChannelReport(name=self._name)
        report.troubles += self._check_description()
        report.partitions += [self._check_partition(number) for number in _partitions(self._station, self._name)]
        report.troubles += [
            Trouble(kind="position", path=path, what=what, derived=False, repaired=repaired)
            for path, what, repaired in check_positions(self._engine, self._name, repair=self._mender is not None)
        ]
        report.troubles += [
            Trouble(kind="queue", path=path, what=what, derived=False, repaired=repaired)
            for path, what, repaired in check_queues(self._engine, self._name, repair=self._mender is not None)
        ]
        report.troubles += [
            Trouble(kind=kind, path=path, what=what, derived=kind == "leftover", repaired=repaired)
            for kind, path, what, repaired in check_types(self._engine, self._name, repair=self._mender is not None)
        ]
        report.troubles += [
            Trouble(kind="seen", path=path, what=what, repaired=repaired)
            for path, what, repaired in check_seen(self._engine, self._name, repair=self._mender is not None)
        ]
        report.ok = all(part.ok for part in report.partitions) and all(one.repaired for one in report.troubles)
        return report

    def _check_description(self) -> list[Trouble]:
        path = f"channels/{self._name}/channel.json"
        there = _partitions(self._station, self._name)
        try:
            file = self._engine.describe(self._name)
        except (Damaged, NotFound) as error:
            if not there:
                raise NotFound(str(error)) from error
            there_is = (self._station.path / path).exists()
            if self._mender is not None:
                self._mender.describe_again(there)
            what = "cannot be read; the channel's settings are lost" if there_is else "is missing"
            repaired = self._mender is not None
            return [Trouble(kind="channel", path=path, what=what, derived=False, repaired=repaired)]
        spare = [number for number in there if number >= file.partitions and self._empty(number)]
        if sorted({*there} - {*spare}) != list(range(file.partitions)):
            what = f"names {file.partitions} partitions, there are {there}"
            return [Trouble(kind="channel", path=path, what=what, derived=False)]
        return []

    def _empty(self, number: int) -> bool:
        """Whether nothing was ever stored there: it is being added, or was by a process that died."""
        return self._engine.head_fields(self._name, number).next == 0

    def _check_partition(self, number: int) -> PartitionReport:
        look = self._look(number)
        if self._mender is not None and not look.report.ok:
            aside = self._mender.mend(number, look.unsound)
            return _compared(look.report, self._look(number).report, aside)
        return look.report

    # -- one look at a partition --------------------------------------------------------------------------------

    def _look(self, number: int) -> _Look:
        place = self._engine.directory.place(self._name, number, self._station.name)
        fields = self._engine.head_fields(self._name, number)
        known = segments.bases(place.directory, self._disk)
        report = PartitionReport(channel=self._name, partition=number, segments=len(known))
        report.fenced = bool(fields.flags & FENCED)
        if report.fenced:
            what = f"a sync failed: what lies behind offset {fields.synced_next} may be lost"
            report.troubles.append(self._trouble("fence", place, "head", what, derived=False))
        if fields.base not in known:
            what = f"says the active segment is {fields.base}, which is not there"
            report.troubles.append(self._trouble("head", place, "head", what))
        states = [state for base in known if (state := self._settled(place, base)) is not None]
        for state in states:
            self._add(report, place, state)
        report.troubles += self._around(place)
        fields = self._engine.head_fields(self._name, number)  # retention may have moved on meanwhile
        begin = min((state.base for state in states), default=fields.next)
        if begin > fields.first:
            lost = Damage(first=fields.first, next=begin, segment=fields.first, bytes=0, reason="missing")
            report.damaged.insert(0, lost)
        report.first, report.next = fields.first, fields.next
        report.ok = not report.damaged and not report.troubles
        return _Look(report, [state.base for state in states if not state.sound])

    def _settled(self, place: Place, base: int) -> Segment | None:
        """Look at a segment until it is sound, or stays unsound; None if it is gone or behind the log's beginning."""
        stored = segments.stored_bytes(place.directory, base, self._disk)
        stored -= segments.room_behind(place.directory, base, self._disk)
        state: Segment | None = None
        for look in range(LOOKS):
            if look:
                time.sleep(PAUSE_S)
            fields = self._engine.head_fields(self._name, place.number)
            known = segments.bases(place.directory, self._disk)
            if base not in known:
                return None
            active = base == fields.base
            following = fields.next if active or base == known[-1] else known[known.index(base) + 1]
            if following <= fields.first and not active:
                return None
            if base > fields.base:  # nothing of what it holds is part of the log
                what = "lies behind the active segment: a rotation was not finished"
                state = Segment(base, base, names=[what])
                continue
            with contextlib.suppress(FileNotFoundError):  # compressed in this moment
                state = inspection.inspect(
                    place, base, following, self._disk, fields if active else None,
                    lambda done, size: self._meter.within(done, size, stored),
                )  # fmt: skip
                if state.sound:
                    break
        self._meter.finish(stored)
        return state

    def _trouble(self, kind: Kind, place: Place, file: str, what: str, *, derived: bool = True) -> Trouble:
        path = (place.directory / file).relative_to(self._station.path)
        return Trouble(kind=kind, path=str(path), what=what, derived=derived)

    def _add(self, report: PartitionReport, place: Place, state: Segment) -> None:
        report.lines += state.lines
        report.blank += state.blank
        report.bytes += state.size
        report.damaged += [
            Damage(first=one.first, next=one.next, segment=state.base, bytes=one.bytes, reason=one.reason)
            for one in state.damage
        ]
        name = f"{state.base:020d}"
        data = name + (segments.COMPRESSED if state.compressed else segments.PLAIN)
        report.troubles += [self._trouble("index", place, name + segments.INDEX, what) for what in state.index]
        report.troubles += [self._trouble("frames", place, name + segments.FRAMES, what) for what in state.frames]
        report.troubles += [self._trouble("names", place, data, what) for what in state.names]
        report.troubles += [self._trouble("head", place, "head", what) for what in state.head]
        report.troubles += [self._trouble("batch", place, data, what, derived=False) for what in state.batches]

    def _around(self, place: Place) -> list[Trouble]:
        """What is wrong beside the segments: a damaged list of lost lines, and what a crash left."""
        what = "cannot be read: nobody is told of lines that were damaged there and repaired"
        found = [
            self._trouble("lost", place, path.name, what, derived=False)
            for path in lost.damaged(place.directory, self._disk)
        ]
        for name in sorted(self._disk.listdir(place.directory)):
            with contextlib.suppress(FileNotFoundError):
                age_s = time.time() - self._disk.stat(place.directory / name).st_mtime
                if name == INTENT and age_s > REDACTION_AGE_S:
                    found.append(self._trouble("redaction", place, name, "was begun and not finished"))
                elif ".tmp-" in name and age_s > LEFTOVER_AGE_S:
                    found.append(self._trouble("leftover", place, name, "was left behind half written"))
        return found


def _compared(before: PartitionReport, after: PartitionReport, aside: dict[int, list[str]]) -> PartitionReport:
    """What was found before a repair, each marked whether it is gone now; and the numbers as they are now."""
    left = {(one.kind, one.path, one.what) for one in after.troubles}
    lost = {(one.first, one.next) for one in after.damaged}
    damaged = [
        msgspec.structs.replace(
            one,
            quarantined=[path for path in aside.get(one.segment, []) if f"-{one.first}-{one.next}" in path],
            repaired=(one.first, one.next) not in lost,
        )
        for one in before.damaged
    ]
    troubles = [
        msgspec.structs.replace(one, repaired=(one.kind, one.path, one.what) not in left) for one in before.troubles
    ]
    known = {(one.kind, one.path, one.what) for one in before.troubles}
    troubles += [one for one in after.troubles if (one.kind, one.path, one.what) not in known]
    damaged += [
        one for one in after.damaged if (one.first, one.next) not in {(d.first, d.next) for d in before.damaged}
    ]
    return msgspec.structs.replace(after, damaged=damaged, troubles=troubles)
