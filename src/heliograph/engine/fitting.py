"""Where a subscription resumes when its position does not fit its log: clamp, and tell.

A position names the id of the last message done. If the log does not have that message there, the log is not the
one it was: restored from a backup, or cut by a power failure. Whatever was appended after the position was saved
is new to the subscription; the time of appending, which never goes back, says where that begins.

A position beyond the end is one of another log, unless it says that its subscription was asked to begin there, in this
life of the channel: then it goes on waiting.
"""

from __future__ import annotations

from heliograph.disk import Disk
from heliograph.engine.batches import Cursor, SharedBatches
from heliograph.engine.port import Position
from heliograph.log import compactstate, seek
from heliograph.message import Gap

TRIMMED = "deleted by retention before it was read"
FOREIGN = "the log is not the one this position was saved in"


def fit(log: seek.Log, channel: str, incarnation: str, position: Position, disk: Disk) -> tuple[int, Gap | None]:
    """The offset to resume at, and what will never be delivered (or not in its place)."""
    limit = log.limit()
    if position.offset < limit.first:
        target, why = limit.first, TRIMMED
        if compactstate.held_nothing(log.place.directory, position.offset, limit.first, disk):
            return target, None
    elif position.offset > limit.next and position.awaits and position.incarnation == incarnation:
        return position.offset, None
    elif position.offset > limit.next or not _recognised(log, limit.first, incarnation, position, disk):
        since = seek.appended_since(log, position.time_us, disk)
        target, why = max(limit.first, min(position.offset, limit.next, since)), FOREIGN
    else:
        return position.offset, None
    first, following = sorted((position.offset, target))
    return target, Gap(channel, log.place.number, first, following, why)


def _recognised(log: seek.Log, first: int, incarnation: str, position: Position, disk: Disk) -> bool:
    """Whether the message before the position is still the one that was handled."""
    if position.offset <= first:
        return True
    if not position.id:  # nothing was handled yet, or not a message: the channel's life must do
        return position.incarnation == incarnation
    cursor = Cursor(log, position.offset - 1, disk, SharedBatches(), lambda: None)
    try:
        batch = cursor.pull()
    finally:
        cursor.close()
    if batch is None or not batch.messages or batch.messages[0].offset != position.offset - 1:
        return position.incarnation == incarnation  # redacted or damaged: the channel's life must do
    return batch.messages[0].id == position.id
