"""Dead letters of a queue back to that queue, and to nobody else.

The originals are handed out again from where they are in the log; nothing is published. First they are visible again,
durably, then the letters are removed: an interruption in between leaves letters of messages that are handled again.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime

import msgspec

from heliograph.admin.letters import DeadLetter, each, original_channel
from heliograph.admin.purge import GROUP, alone
from heliograph.admin.where import Where
from heliograph.clock import from_us
from heliograph.engine.origins import station_of
from heliograph.message import Message
from heliograph.names import DEAD_LETTER
from heliograph.station import Station
from heliograph.station.reader import message_at


class RedriveReport(msgspec.Struct, kw_only=True):
    """What a redrive did, or would do. ``gone``: letters whose original is not in the log any more, or
    has expired; they stay.
    """

    channel: str
    queue: str
    matched: int = 0
    redriven: int = 0
    gone: list[int] = []
    dry_run: bool = False


def redrive(
    station: Station,
    channel: str,
    queue: str,
    *,
    where: Where | None = None,
    offsets: Collection[int] | None = None,
    dry_run: bool = False,
) -> RedriveReport:
    """Hand the originals of a queue's dead letters out again, then remove the letters."""
    name = original_channel(channel)
    station.queue_info(name, queue)  # an unknown queue is an error, not an empty report
    report = RedriveReport(channel=name, queue=queue, dry_run=dry_run)
    if dry_run:
        _group(station, report, where, offsets)
        return report
    station.engine.check_writable()
    with alone(station, name):
        found = _group(station, report, where, offsets)
        for at in range(0, len(found), GROUP):
            part = found[at : at + GROUP]
            station.requeue(name, queue, [(letter.partition, letter.original_offset) for letter in part])
            station.engine.redact(name + DEAD_LETTER, 0, [letter.offset for letter in part])
            report.redriven += len(part)
    return report


def _group(
    station: Station, report: RedriveReport, where: Where | None, offsets: Collection[int] | None
) -> list[DeadLetter]:
    """The letters of the queue whose originals are still where they were, and would be handed out."""
    found: list[DeadLetter] = []
    now = from_us(station.engine.clock.time_ns() // 1000)
    for letter, message in each(station, report.channel, where):
        if letter.subscription != report.queue or (offsets is not None and letter.offset not in offsets):
            continue
        if station_of(message.origin) not in (None, station.name):  # links brought it: a queue elsewhere gave it up
            continue
        report.matched += 1
        original = message_at(station.engine, report.channel, letter.partition, letter.original_offset)
        if original is not None and original.id == letter.original_id and not _expired(original, now):
            found.append(letter)
        else:
            report.gone.append(letter.offset)
    return found


def _expired(message: Message, now: datetime) -> bool:
    return message.expires is not None and message.expires <= now
