"""Messages out of a station and into another, as lines of JSON."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import BinaryIO, Final

import msgspec

from heliograph.admin import Progress
from heliograph.admin.envelopes import Body, body_of, channel_of, read_fields
from heliograph.admin.where import Where
from heliograph.errors import HeliographError, InvalidMessage, InvalidName, NotFound
from heliograph.log.cursor import Chunk, LogCursor
from heliograph.message import Gap, decode_line
from heliograph.names import check_publishable
from heliograph.station import Station
from heliograph.station.starts import Start, partitions_for, resolve

REJECTS_MAX: Final = 1000
"""Rejected lines that a report holds; the file of rejects gets all of them."""

BATCH_BYTES_MAX: Final = 4 * 1024 * 1024
SHOWN_CHARS_MAX: Final = 200


class ExportReport(msgspec.Struct, kw_only=True):
    """What was written. ``gaps`` are offsets that could not be read.

    ``first`` and ``next`` are sums where there are several partitions.
    """

    channel: str
    messages: int = 0
    bytes: int = 0
    first: int = 0
    next: int = 0
    gaps: list[Gap] = []


class Reject(msgspec.Struct, frozen=True, kw_only=True):
    """A line that was not imported, numbered from 1."""

    line: int
    reason: str
    text: str


class ImportReport(msgspec.Struct, kw_only=True):
    """What was imported, and which lines were not."""

    lines: int = 0
    imported: int = 0
    bytes: int = 0
    channels: dict[str, int] = {}
    rejected: int = 0
    rejects: list[Reject] = []
    dry_run: bool = False


# -- export ------------------------------------------------------------------------------------------------------


def export_messages(
    station: Station,
    channel: str,
    out: BinaryIO,
    *,
    start: Start = "first",
    end: Start | None = None,
    partition: int | None = None,
    where: Where | None = None,
    progress: Progress | None = None,
) -> ExportReport:
    """Write the stored lines of a channel as they are, from ``start`` to ``end`` (by default what is there now).

    Several partitions are written one after the other.
    """
    engine = station.engine
    report = ExportReport(channel=channel)
    spans: dict[int, tuple[int, int]] = {}
    for number in partitions_for(engine, channel, partition, start, end):
        engine.settle(channel, number)
        bounds = engine.bounds(channel, number)
        first = max(resolve(engine, channel, start, number), bounds.first)
        last = bounds.next if end is None else min(resolve(engine, channel, end, number), bounds.next)
        spans[number] = (first, max(first, last))
    report.first, report.next = sum(first for first, _ in spans.values()), sum(last for _, last in spans.values())
    done, total = 0, report.next - report.first
    for number, (first, last) in spans.items():
        for at in _export_partition(station, out, report, number, first, last, where):
            if progress is not None:
                progress(done + at - first, total)
        done += last - first
    return report


def _export_partition(
    station: Station, out: BinaryIO, report: ExportReport, number: int, first: int, last: int, where: Where | None
) -> Iterator[int]:
    """Write one partition's lines; says after every piece how far it has come."""
    engine, channel = station.engine, report.channel
    cursor = LogCursor(engine.log(channel, number), first, engine.disk)
    with contextlib.closing(cursor):
        while cursor.offset < last and (chunk := cursor.read()) is not None:
            report.gaps += [Gap(channel, number, gap.first, gap.next, gap.reason) for gap in chunk.missing]
            lines = [line for offset, line in _lines(chunk) if offset < last and _wanted(line, offset, number, where)]
            if lines:
                data = b"\n".join(lines) + b"\n"
                out.write(data)
                report.messages += len(lines)
                report.bytes += len(data)
            yield min(cursor.offset, last)


def _lines(chunk: Chunk) -> Iterator[tuple[int, bytes]]:
    if chunk.numbered is not None:
        return iter(chunk.numbered)
    return enumerate(chunk.data.split(b"\n")[:-1], chunk.first)


def _wanted(line: bytes, offset: int, partition: int, where: Where | None) -> bool:
    if not line.strip(b" "):
        return False
    if not where:
        return True
    with contextlib.suppress(msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return where(decode_line(line, offset, partition, None))
    return False  # not an envelope: no condition can hold for it


# -- import ------------------------------------------------------------------------------------------------------


def import_messages(
    station: Station,
    source: Iterable[bytes],
    *,
    channel: str | None = None,
    rejects: BinaryIO | None = None,
    batch: int = 1000,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> ImportReport:
    """Append CloudEvents JSON lines, ours or foreign; ids, times, headers and data stay as they are.

    A line that cannot be imported is reported with its number (and written to ``rejects``) and does not stop
    the rest. Importing the same lines twice stores them twice.
    """
    if not dry_run:
        station.engine.check_writable()
    if channel is not None:
        check_publishable(channel)
    importer = _Importer(station, channel, batch, dry_run=dry_run)
    report = importer.report
    for line in source:
        report.lines += 1
        text = line.strip(b" \t\r\n")
        if text:
            try:
                importer.add(text)
            except (InvalidMessage, InvalidName, NotFound) as error:
                _reject(report, text, str(error))
                if rejects is not None:
                    rejects.write(text + b"\n")
        if progress is not None:
            progress(report.lines, 0)
    importer.flush()
    if not dry_run:
        station.sync()
    return report


def _reject(report: ImportReport, text: bytes, reason: str) -> None:
    report.rejected += 1
    if len(report.rejects) < REJECTS_MAX:
        shown = text[: 4 * SHOWN_CHARS_MAX].decode("utf-8", "replace")[:SHOWN_CHARS_MAX]
        report.rejects.append(Reject(line=report.lines, reason=reason, text=shown))


class _Importer:
    """Collects bodies per channel and appends them in bounded batches, each channel in the order of its lines."""

    def __init__(self, station: Station, channel: str | None, batch: int, *, dry_run: bool) -> None:
        self.report = ImportReport(dry_run=dry_run)
        self._station = station
        self._channel = channel
        self._batch = max(1, batch)
        self._waiting: dict[str, list[Body]] = {}
        self._count = self._bytes = 0
        self._known: set[str] = set()

    def add(self, line: bytes) -> None:
        """Check one line and queue it."""
        station = self._station
        fields = read_fields(line)
        name = self._channel or channel_of(fields)
        now_us = station.engine.clock.time_ns() // 1000
        bytes_max = station.config.messages.max_bytes
        body = body_of(fields, name, now_us, bytes_max=bytes_max, payloads=station.payloads.decoder)
        self._check_channel(name)
        self._waiting.setdefault(name, []).append(body)
        self._count += 1
        self._bytes += len(body.data)
        if self._count >= self._batch or self._bytes >= BATCH_BYTES_MAX:
            self.flush()

    def _check_channel(self, name: str) -> None:
        """A channel that must not be made by publishing has to be there."""
        if name not in self._known:
            if not self._station.config.storage.auto_create:
                self._station.engine.describe(name)
            self._known.add(name)

    def flush(self) -> None:
        """Append what waits."""
        waiting, self._waiting, self._count, self._bytes = self._waiting, {}, 0, 0
        report = self.report
        for name, bodies in waiting.items():
            if not report.dry_run:
                try:
                    self._station.publisher.republish(
                        name, [body.data for body in bodies], [body.moment for body in bodies]
                    )
                except HeliographError as error:
                    error.add_note(
                        f"{report.imported} messages of {report.lines} lines were imported before, "
                        f"the last {sum(map(len, waiting.values()))} lines perhaps in part."
                    )
                    raise
            report.imported += len(bodies)
            report.bytes += sum([len(body.data) for body in bodies])
            report.channels[name] = report.channels.get(name, 0) + len(bodies)
