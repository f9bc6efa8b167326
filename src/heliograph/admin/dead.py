"""What to do with dead letters: replay, purge, export.

A replay publishes first and removes after, in groups. Before a group is published its letters and the end of
the channel are written down (``DATA/dead/CHANNEL.replay.json``), and each copy carries the id of its letter::

    write the journal ─▶ publish the group ─▶ sync ─▶ remove the letters ─▶ next group ─▶ … ─▶ remove the journal

A copy is for the subscription that failed (``redrivefor``): all others pass over it. One whose letter names none (the
subscription had no name), or that is replayed to all, is for everybody.

Whoever comes after an interruption looks behind the written end for copies of the letters in the journal: those
found were published and are only removed, the others are letters as before. Nothing is lost, nothing is doubled.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple

import msgspec

from heliograph.addressee import NAME as REDRIVEFOR
from heliograph.admin import Progress
from heliograph.admin.envelopes import Body, Fields, body_of, read_fields
from heliograph.admin.letters import (
    DeadGroup,
    DeadLetter,
    each,
    find,
    letters,
    original_channel,
    summary,
)
from heliograph.admin.purge import GROUP, PurgeReport, alone, drop_empty_segments, purge
from heliograph.admin.where import Where
from heliograph.engine.knowledge import identities_of
from heliograph.engine.origins import station_of
from heliograph.errors import InvalidMessage, NotFound
from heliograph.federation import again
from heliograph.federation.originals import Originals
from heliograph.log.partition import Partition
from heliograph.message import Message, new_id
from heliograph.names import DEAD_LETTER
from heliograph.seen import SeenSet
from heliograph.station import Station

_CLUE: Final = b'"replayletter":"'
_encode = msgspec.json.Encoder().encode


class Skipped(msgspec.Struct, frozen=True, kw_only=True):
    """A letter that was not replayed, and why."""

    offset: int
    id: str
    reason: str


class ReplayReport(msgspec.Struct, kw_only=True):
    """What a replay did, or would do. ``resumed``: published by an interrupted run, only removed now."""

    channel: str
    matched: int = 0
    replayed: int = 0
    resumed: int = 0
    removed: int = 0
    redriven: dict[str, int] = {}
    """How many of those replayed are for one subscription only, by its name; the others are for everybody."""
    skipped: list[Skipped] = []
    dry_run: bool = False


class _Entry(msgspec.Struct, frozen=True):
    offset: int
    id: str


class _Journal(msgspec.Struct, frozen=True):
    """A group on its way: its letters, and where each partition of the channel ended before it was published."""

    letters: list[_Entry]
    starts: list[int] = []
    start: int = 0  # of the one partition, as version 0.1 wrote it


class _Refused:
    """What a peer refused and is to be sent once more, and the letters that say so."""

    def __init__(self, known: bool) -> None:
        self.known = known  # whether it was ever sent something
        self.messages = SeenSet()
        self.letters: list[int] = []


class _Copy(NamedTuple):
    """A letter and the body of its copy."""

    letter: DeadLetter
    body: Body


def replay(
    station: Station,
    channel: str,
    *,
    where: Where | None = None,
    offsets: Collection[int] | None = None,
    to_all: bool = False,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> ReplayReport:
    """Publish the originals of dead letters again, then remove the letters. Safe to interrupt at any point.

    Each goes to the subscription (group, queue) that gave it up and to no other; ``to_all`` publishes for everybody. A
    letter whose subscription does not exist any more stays, and the report says so.
    The copy has a new id and time; data, type, source, key, headers and correlation are the original's. Its headers
    ``replayof`` (id of the first message), ``replaycount`` and ``replayletter`` make loops show.
    """
    name = original_channel(channel)
    if dry_run:
        return _Replay(station, name, to_all=to_all, dry_run=True).run(where, offsets, progress)
    station.engine.check_writable()
    with alone(station, name):
        report = _Replay(station, name, to_all=to_all, dry_run=False).run(where, offsets, progress)
    if report.removed:
        station.engine.audit.write(
            "dead-letters-replayed", channel=name, replayed=report.replayed, resumed=report.resumed,
            skipped=len(report.skipped), where=where.text if where else "", redriven=report.redriven,
        )  # fmt: skip
    return report


class _Replay:
    """One run over the letters of one channel."""

    def __init__(self, station: Station, channel: str, *, to_all: bool, dry_run: bool) -> None:
        self._station = station
        self._to_all = to_all
        self._known: dict[str, bool] = {}
        self._engine = station.engine
        self._channel = channel
        self._dead = channel + DEAD_LETTER
        self._journal = station.path / "dead" / f"{channel}.replay.json"
        self.report = ReplayReport(channel=channel, dry_run=dry_run)
        self._peers: dict[str, _Refused] = {}
        self._originals = Originals(station.engine, channel)

    def run(self, where: Where | None, offsets: Collection[int] | None, progress: Progress | None) -> ReplayReport:
        with self._originals:
            return self._run(where, offsets, progress)

    def _run(self, where: Where | None, offsets: Collection[int] | None, progress: Progress | None) -> ReplayReport:
        report = self.report
        done = self._resume()
        wanted = None if offsets is None else frozenset(offsets)
        group: list[_Copy] = []
        first, total = self._span()
        for letter, message in each(self._station, self._channel, where):
            if (wanted is None or letter.offset in wanted) and letter.id not in done:
                report.matched += 1
                copy = None if self._resend(letter, message) else self._copy(letter, message)
                if copy is not None:
                    group.append(copy)
                if len(group) >= GROUP:
                    self._carry_out(group)
                    group = []
            if progress is not None:
                progress(min(letter.offset + 1 - first, total), total)
        self._carry_out(group)
        if not report.dry_run:
            self._send_again()
            _forget(self._journal, self._station)
            drop_empty_segments(self._station, self._dead)
        return report

    def _resend(self, letter: DeadLetter, message: Message) -> bool:
        """What the other end of a link refused is sent there once more, as it is, if it is still in the log."""
        if letter.peer is None or letter.original is None:
            return False
        line = bytes(_original(message))
        identity = next(iter(identities_of(line)), None)
        if identity is None or self._original_line(letter) != line:
            return False
        if letter.peer not in self._peers:
            self._peers[letter.peer] = _Refused(again.possible(self._station, letter.peer, self._channel))
        refused = self._peers[letter.peer]
        if refused.known:
            refused.messages.add(*identity[:3], identity[2] + 1)
            refused.letters.append(letter.offset)
            self.report.replayed += 1
        return refused.known

    def _original_line(self, letter: DeadLetter) -> bytes | None:
        with contextlib.suppress(NotFound):  # the channel was deleted
            return self._originals.line(letter.partition, letter.original_offset)
        return None

    def _send_again(self) -> None:
        """Ask for all at once: what is refused again meanwhile would be asked for again with the next."""
        for peer, refused in self._peers.items():
            if not refused.letters:
                continue
            if again.ask(self._station, peer, self._channel, refused.messages):
                self._engine.redact(self._dead, 0, refused.letters)
                self.report.removed += len(refused.letters)
            else:  # it was forgotten meanwhile
                self.report.replayed -= len(refused.letters)

    def _span(self) -> tuple[int, int]:
        with contextlib.suppress(NotFound):
            bounds = self._engine.bounds(self._dead)
            return bounds.first, bounds.next - bounds.first
        return 0, 0

    def _copy(self, letter: DeadLetter, message: Message) -> _Copy | None:
        """The original as a new message; None (and a word in the report) if it cannot be one."""
        try:
            if not letter.replayable:
                raise InvalidMessage("its original cannot be decoded; 'helio dead show' has its bytes")
            fields = _original_fields(message)
            fields["id"] = _raw(new_id())
            fields["replayof"] = fields.get("replayof", _raw(letter.original_id))
            fields["replaycount"] = _raw(letter.replays + 1)
            fields["replayletter"] = _raw(letter.id)
            fields.pop("time", None)
            fields.pop("expires", None)  # who replays wants it delivered
            fields.pop(REDRIVEFOR, None)
            if letter.subscription and not self._to_all:
                self._check_peer(letter)
                self._check(letter.subscription, station_of(message.origin))
                fields[REDRIVEFOR] = _raw(letter.subscription)
            return _Copy(letter, body_of(fields, self._channel, self._engine.clock.time_ns() // 1000))
        except InvalidMessage as error:
            self.report.skipped.append(Skipped(offset=letter.offset, id=letter.id, reason=str(error)))
            return None

    def _check_peer(self, letter: DeadLetter) -> None:
        """What a link could not send once more is for nobody here: no subscription has failed with it."""
        peer = letter.peer
        if peer is not None:
            known = peer not in self._peers or self._peers[peer].known
            why = "is not in the log any more" if known else "is not sent to it any more: no such link is known"
            raise InvalidMessage(f"what {peer} refused {why}; --to-all publishes it as a new message, for everybody")

    def _check(self, subscription: str, station: str | None) -> None:
        """Nobody would get what is for a subscription that is not there, and its letter would be gone."""
        if station not in (None, self._engine.name):  # one of that name here never failed with it
            raise InvalidMessage(
                f"it was the subscription '{subscription}' of station '{station}' that failed: replay it there, or to "
                "all (--to-all)"
            )
        known = self._known.get(subscription)
        if known is None:
            known = self._known[subscription] = self._engine.positions.begun(self._channel, subscription)
        if not known:
            raise InvalidMessage(
                f"its subscription '{subscription}' of '{self._channel}' does not exist any more; subscribe under "
                "that name again, or replay to all (--to-all)"
            )

    def _carry_out(self, group: list[_Copy]) -> None:
        report = self.report
        self._known.clear()  # somebody may forget one meanwhile
        if not group:
            return
        if not report.dry_run:
            self._write_journal([copy.letter for copy in group])
            self._station.publisher.republish(
                self._channel, [copy.body.data for copy in group], [copy.body.moment for copy in group]
            )
            self._engine.sync()
            self._engine.redact(self._dead, 0, [copy.letter.offset for copy in group])
            report.removed += len(group)
        report.replayed += len(group)
        for copy in group:
            if copy.body.message.redrivefor:
                report.redriven[copy.letter.subscription] = report.redriven.get(copy.letter.subscription, 0) + 1

    # -- the journal --------------------------------------------------------------------------------------------

    def _write_journal(self, group: list[DeadLetter]) -> None:
        starts: list[int] = []
        with contextlib.suppress(NotFound):  # deleted since: publishing makes it anew
            numbers = range(self._engine.describe(self._channel).partitions)
            starts = [self._engine.limit(self._channel, number, synced=False).next for number in numbers]
        journal = _Journal([_Entry(letter.offset, letter.id) for letter in group], starts)
        self._engine.disk.replace_file(self._journal, _encode(journal))

    def _resume(self) -> set[str]:
        """Finish what an interrupted run began; ids of letters whose copies it had published."""
        try:
            journal = msgspec.json.decode(self._engine.disk.read_file(self._journal), type=_Journal)
        except (FileNotFoundError, msgspec.MsgspecError, UnicodeDecodeError):
            return set()
        with contextlib.suppress(NotFound):  # a killed run may have published without a word in the head
            for number in range(self._engine.describe(self._channel).partitions):
                self._engine.write(self._channel, number, Partition.settle)
        published = self._published(journal)
        offsets = [entry.offset for entry in journal.letters if entry.id in published]
        there = {letter.offset for letter, _ in each(self._station, self._channel, None) if letter.id in published}
        offsets = [offset for offset in offsets if offset in there]
        self.report.resumed = len(offsets)
        if offsets and not self.report.dry_run:
            self._engine.redact(self._dead, 0, offsets)
            self.report.removed += len(offsets)
        return published

    def _published(self, journal: _Journal) -> set[str]:
        """Which letters of an interrupted group have a copy in the channel already."""
        wanted = {entry.id for entry in journal.letters}
        found: set[str] = set()
        starts = journal.starts or [journal.start]
        with contextlib.suppress(NotFound):
            for number in range(self._engine.describe(self._channel).partitions):
                start = starts[number] if number < len(starts) else 0  # it has grown since
                for message in self._station.read(self._channel, start=start, partition=number):
                    if _CLUE in message.raw:
                        letter = message.headers.get("replayletter")
                        if letter in wanted:
                            found.add(letter)
        return found


def _raw(value: object) -> msgspec.Raw:
    return msgspec.Raw(_encode(value))


def _original_fields(message: Message) -> Fields:
    """The original's attributes, each as the bytes in the letter: nothing is rounded or reordered."""
    return read_fields(bytes(_original(message)))


def _original(message: Message) -> msgspec.Raw:
    return read_fields(bytes(read_fields(message.raw)["data"]))["original"]


def _forget(journal: Path, station: Station) -> None:
    """Remove the journal, and halves of it that killed processes left."""
    for name in station.engine.disk.listdir(journal.parent):
        if name == journal.name or name.startswith(f"{journal.name}.tmp-"):
            with contextlib.suppress(FileNotFoundError):
                station.engine.disk.unlink(journal.parent / name)


def export(
    station: Station,
    channel: str | None,
    out: BinaryIO,
    *,
    where: Where | None = None,
    progress: Progress | None = None,
) -> int:
    """Write letters as the stored lines that they are; how many."""
    count = 0
    for _, message in each(station, channel, where):
        out.write(message.raw + b"\n")
        count += 1
        if progress is not None:
            progress(count, 0)
    return count


__all__ = [
    "DeadGroup",
    "DeadLetter",
    "PurgeReport",
    "ReplayReport",
    "Skipped",
    "export",
    "find",
    "letters",
    "purge",
    "replay",
    "summary",
]
