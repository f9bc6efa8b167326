"""Removing dead letters for good, one process at a time."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator
from typing import Final

import msgspec

from heliograph.admin import Progress
from heliograph.admin.letters import dead_channels, letters, original_channel
from heliograph.admin.where import Where
from heliograph.disk import Disk
from heliograph.errors import Busy
from heliograph.limits import COPY_BYTES
from heliograph.log import retention, segments
from heliograph.log.locks import FileLock
from heliograph.log.partition import Partition
from heliograph.names import DEAD_LETTER
from heliograph.station import Station

GROUP: Final = 256
"""Letters published and removed together: removing seals and indexes a segment, which must not happen per letter."""


class PurgeReport(msgspec.Struct, kw_only=True):
    """What was removed, or would be."""

    channel: str
    matched: int = 0
    removed: int = 0
    dry_run: bool = False


@contextlib.contextmanager
def alone(station: Station, channel: str) -> Iterator[None]:
    """Two that remove letters of one channel at once would not see each other's journal."""
    dead_channels(station, channel)  # a channel that is not there leaves no lock behind
    directory = station.path / "dead"
    if not directory.exists():
        directory.mkdir(exist_ok=True)
        station.engine.disk.sync_directory(station.path)  # a journal that a power cut takes back is none
    lock = FileLock(directory / f"{channel}.lock", station.engine.disk)
    try:
        if not lock.try_exclusive():
            raise Busy(f"the dead letters of '{channel}' are being replayed or purged by another process; wait for it")
        yield
    finally:
        lock.release()


def purge(
    station: Station,
    channel: str,
    *,
    where: Where | None = None,
    offsets: Collection[int] | None = None,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> PurgeReport:
    """Remove dead letters for good. Audited."""
    name = original_channel(channel)
    report = PurgeReport(channel=name, dry_run=dry_run)
    if not dry_run:
        station.engine.check_writable()
    with alone(station, name) if not dry_run else contextlib.nullcontext():
        wanted = None if offsets is None else frozenset(offsets)
        found = [letter.offset for letter in letters(station, name, where)]
        doomed = [offset for offset in found if wanted is None or offset in wanted]
        report.matched = len(doomed)
        for at in range(0, 0 if dry_run else len(doomed), GROUP):
            station.engine.redact(name + DEAD_LETTER, 0, doomed[at : at + GROUP])
            report.removed += len(doomed[at : at + GROUP])
            if progress is not None:
                progress(report.removed, report.matched)
        if report.removed:
            drop_empty_segments(station, name + DEAD_LETTER)
            station.engine.audit.write(
                "dead-letters-purged", channel=name, removed=report.removed, where=where.text if where else ""
            )
    return report


def drop_empty_segments(station: Station, dead: str) -> None:
    """Delete segments at the beginning that hold no letter any more, unless a subscription still has to pass them."""
    engine = station.engine
    if dead not in engine.channel_names() or engine.positions.names(dead):
        return
    with engine.without_upkeep():
        engine.write(dead, 0, lambda partition: _drop_empty_beginning(partition, engine.disk))
        engine.forget_batches(dead, 0)


def _drop_empty_beginning(partition: Partition, disk: Disk) -> None:
    directory = partition.place.directory
    empty: list[retention.Sealed] = []
    for sealed in retention.survey(directory, partition.fields().base, disk):
        reader = segments.open_segment(directory, sealed.base, disk)
        with contextlib.closing(reader):
            if any(reader.read(at, COPY_BYTES).strip(b" \n") for at in range(0, reader.size(), COPY_BYTES)):
                break
        empty.append(sealed)
    retention.delete(partition, empty, disk)
