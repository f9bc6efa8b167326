"""The last message that a station published itself in a channel's present life, as far as it is still there."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from heliograph.engine.knowledge import End, Knowledge, identities
from heliograph.log.cursor import LogCursor

if TYPE_CHECKING:
    from heliograph.engine.files import FilesEngine


def last_own(engine: FilesEngine, channel: str, number: int, known: Knowledge) -> End | None:
    """Its sequence is known, and is its offset. The caller holds the arrivals lock.

    If it was removed, the last one before it; what was found is remembered, for there may be much to look through.
    """
    last = known.own_end(number)
    if not last:
        return None
    sought, end = known.last_own.get(number, (0, None))
    if sought != last:
        end = _search(engine, channel, number, known.origin, last)
        known.last_own[number] = (last, end)
    return end or known.ends.get((known.origin, number))


def _search(engine: FilesEngine, channel: str, number: int, own: str, end: int) -> End | None:
    """From the end back, in ever larger steps."""
    first, reach = engine.limit(channel, number).first, 64
    while end > first:
        start = max(first, end - reach)
        found: End | None = None
        with contextlib.closing(LogCursor(engine.log(channel, number), start, engine.disk)) as cursor:
            while cursor.offset < end and (chunk := cursor.read()) is not None:
                for origin, partition, sequence, id in identities(chunk):
                    if (origin, partition) == (own, number) and sequence < end:
                        found = End(sequence, id)
        if found is not None:
            return found
        end, reach = start, reach * 8
    return None
