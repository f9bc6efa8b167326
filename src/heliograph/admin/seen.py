"""Checking what is written down about arrivals: ``seen/CHANNEL.json`` against the log that it is about.

What it does not know is stored twice should it come again. What it knows and the log never held is worse: it is taken
for a duplicate when it comes, and lost.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Final, NamedTuple

from heliograph.engine.files import FilesEngine
from heliograph.engine.knowledge import Checkpoint, crc_of, identities
from heliograph.errors import HeliographError
from heliograph.log.channel import ChannelFile
from heliograph.log.cursor import Chunk, LogCursor
from heliograph.log.seek import line_at
from heliograph.seen import SeenSet

_LOOKS: Final = 4
_PAUSE_S: Final = 0.1


class Wrong(NamedTuple):
    """What is wrong, and whether what is written down is worth keeping all the same."""

    what: str
    keep: bool = False


def check_seen(engine: FilesEngine, channel: str, *, repair: bool) -> Iterator[tuple[str, str, bool]]:
    """Path, what is wrong, and whether it was repaired, if what is written down about arrivals is not right."""
    found = _settled(engine, channel)
    if found is None:
        return
    path = engine.relayed.checkpoints.path(channel)
    repaired = False
    if repair:
        aside = engine.root / "quarantine" / channel / f"seen.json-{engine.clock.time_ns() // 1000}.bad"
        engine.relayed.rebuild(channel, aside=None if found.keep else aside)
        engine.audit.write("seen-rebuilt", channel=channel, why=found.what)
        repaired = _settled(engine, channel) is None
    yield str(path.relative_to(engine.root)), found.what, repaired


def _settled(engine: FilesEngine, channel: str) -> Wrong | None:
    """What another process changes just now looks wrong for a moment: it is believed when it stays."""
    found: Wrong | None = None
    for look in range(_LOOKS):
        if look:
            time.sleep(_PAUSE_S)
        found = _look(engine, channel)
        if found is None:
            return None
    return found


def _look(engine: FilesEngine, channel: str) -> Wrong | None:
    try:
        written = engine.relayed.checkpoints.written(channel)
        if written is None:
            return None
        seen, never = SeenSet.from_json(written.seen), SeenSet.from_json(written.never)
    except ValueError as error:
        return Wrong(f"is damaged: {error}; repair reads the log, and cannot know what was deleted from that")
    except OSError as error:
        return Wrong(f"cannot be read: {error}")
    file = engine.describe(channel)
    if written.created != file.created:
        return Wrong("is of an earlier channel of that name")
    with contextlib.suppress(HeliographError):  # a log that cannot be read is reported as such
        return _misplaced(engine, channel, written, file) or _different(engine, channel, written, seen, never)
    return None


def _misplaced(engine: FilesEngine, channel: str, written: Checkpoint, file: ChannelFile) -> Wrong | None:
    """Whether it is about another log than the one that is there."""
    if len(written.covered) > file.partitions or len(written.anchors) != len(written.covered):
        return Wrong(f"speaks of {len(written.covered)} partitions, the channel has {file.partitions}")
    for number, covered in enumerate(written.covered):
        limit = engine.limit(channel, number, synced=False)
        if covered > limit.next:
            return Wrong(
                f"is ahead of the log: it covers {covered} lines of partition {number}, which has {limit.next}"
            )
        if covered > limit.first:
            line = line_at(engine.log(channel, number), covered - 1, engine.disk)
            if line is not None and line.strip(b" ") and crc_of(line) != written.anchors[number]:
                return Wrong(f"does not fit the log: offset {covered - 1} of partition {number} is another message")
    return None


def _different(engine: FilesEngine, channel: str, written: Checkpoint, seen: SeenSet, never: SeenSet) -> Wrong | None:
    """Whether it knows what the log holds, and, where nothing was ever removed, nothing else but what is no message."""
    held, whole = never.copy(), True
    for number, covered in enumerate(written.covered):
        first = engine.limit(channel, number).first
        whole &= first == 0
        with contextlib.closing(LogCursor(engine.log(channel, number), first, engine.disk)) as cursor:
            while cursor.offset < covered and (chunk := cursor.read()) is not None:
                count = 0
                for origin, partition, sequence, _ in identities(_until(chunk, covered)):
                    held.add(origin, partition, sequence, sequence + 1)
                    count += 1
                whole &= count == min(covered, chunk.next) - chunk.first
    missing = held.difference(seen)  # also of what is no message: it counts as seen
    if len(missing):
        return Wrong(f"does not know {missing.count:,} of the messages that the log holds", keep=True)
    own = engine.name + "."
    invented = SeenSet({key: more for key, more in seen.difference(held) if not key[0].startswith(own)})
    if whole and len(invented):
        return Wrong(f"claims {invented.count:,} messages that the log never held: they would not be stored")
    return None


def _until(chunk: Chunk, end: int) -> Chunk:
    """The lines of a chunk before an offset."""
    if chunk.next <= end:
        return chunk
    lines = chunk.numbered or list(enumerate(chunk.data.split(b"\n")[:-1], chunk.first))
    return chunk._replace(next=end, numbered=[(offset, line) for offset, line in lines if offset < end])
