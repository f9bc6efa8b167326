"""Reading the messages of a queue by their place in the log. Holds the batches at hand, never the backlog."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from typing import TYPE_CHECKING

from heliograph.engine.port import Problem

if TYPE_CHECKING:
    from heliograph.delivery.ports import Cursor, Engine
    from heliograph.engine.port import Batch
    from heliograph.message import Message

_BATCHES = 4
"""Decoded batches that are kept while workers of other processes take messages in between."""


class Shelf:
    """One worker's view of a channel. Its cursors belong to one thread at a time.

    What is new is read by a cursor of its own, so that a message that is handed out again does not make it search
    for its place.
    """

    def __init__(self, engine: Engine, channel: str) -> None:
        self._engine = engine
        self._channel = channel
        self._cursors: dict[tuple[int, bool], Cursor] = {}
        self._batches: dict[int, deque[Batch]] = {}

    def find(self, partition: int, offset: int, *, again: bool) -> Message | Problem | None:
        """The message, or what is wrong with it; None if it was redacted."""
        batches = self._batches.setdefault(partition, deque(maxlen=_BATCHES))
        for batch in batches:
            if batch.first <= offset < batch.next:
                return _inside(batch, offset)
        fresh = self._read(partition, offset, again)
        if fresh is None:
            return Problem(offset, offset + 1, "missing", "the log ends before it", b"")
        batches.append(fresh)
        return _inside(fresh, offset)

    def _read(self, partition: int, offset: int, again: bool) -> Batch | None:
        cursor = self._cursors.get((partition, again))
        if cursor is None:
            cursor = self._cursors[partition, again] = self._engine.cursor(self._channel, partition, offset)
        elif cursor.offset != offset:
            cursor.seek(offset)
        return cursor.pull()

    def clear(self) -> None:
        """Nothing is at hand: keep nothing, so that what is redacted meanwhile is not delivered from memory."""
        self._batches.clear()

    def close(self) -> None:
        """Free its files."""
        self.clear()
        for cursor in self._cursors.values():
            cursor.close()
        self._cursors.clear()


def _inside(batch: Batch, offset: int) -> Message | Problem | None:
    if len(batch.messages) == batch.next - batch.first:  # nothing is missing in between
        return batch.messages[offset - batch.first]
    at = bisect_left(batch.messages, offset, key=lambda message: message.offset)
    if at < len(batch.messages) and batch.messages[at].offset == offset:
        return batch.messages[at]
    return next((problem for problem in batch.problems if problem.offset <= offset < problem.next), None)
