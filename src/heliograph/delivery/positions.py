"""Committed positions: how far a durable subscription got, on disk.

A position is saved by a thread on the side while messages are being handled, because a slow handler must
not keep what is done from being saved; by the subscription itself after a dead letter, after every batch if
``position_flush_ms=0``, and when it is closed. Saving too late means delivering again; saving too early
would mean losing, and never happens: only what is done counts.
"""

from __future__ import annotations

import logging
import threading
from bisect import bisect_left
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from heliograph.delivery.deadletter import describe
from heliograph.delivery.rounds import Rounds
from heliograph.engine.port import Position

if TYPE_CHECKING:
    from heliograph.delivery.lane import Terms
    from heliograph.delivery.lanes import Lanes
    from heliograph.delivery.ports import Engine
    from heliograph.engine.port import Batch

UNFLUSHED_MS = 20
"""How often progress inside a batch is saved when every batch is flushed anyway (``position_flush_ms=0``)."""

ENDS_KEPT = 64
"""Of how many batches that are done the ends are kept: more than are done while somebody looks how far it got."""

logger = logging.getLogger("heliograph.delivery")


class Positions:
    """Saves the position of one durable subscription."""

    def __init__(
        self,
        engine: Engine,
        terms: Terms,
        lanes: Lanes,
        *,
        name: str,
        saved: int | None,
        allowed: Callable[[], bool] | None = None,
    ) -> None:
        self.saved = saved
        self.errors = 0
        self.listed = False
        """Whether the flusher has it on its list."""
        self._engine = engine
        self._terms = terms
        self._lanes = lanes
        self._name = name
        self._allowed = allowed
        self._lock = threading.Lock()
        self._sealed = False
        self._batches: deque[Batch] = deque()
        self._ends: deque[tuple[int, str]] = deque(maxlen=ENDS_KEPT)
        self._expected = 0
        self._failures = 0

    def remember(self, batch: Batch) -> None:
        """The batch is about to be delivered, so the position will come to its end. Called by the loop."""
        self.let_go()
        self._batches.append(batch)
        self._expected = batch.next

    def let_go(self) -> None:
        """Keep only the ends of batches that are done: the next one then reuses their memory. Called by the loop."""
        batches, committed = self._batches, self._lanes.committed()
        while batches and batches[0].next <= committed:
            self._ends.append((batches[0].next, _last_id(batches[0])))  # first: somebody may be looking for it
            batches.popleft()

    def save(self) -> bool:
        """Save what is done, if it changed. False: it could not be saved, try again."""
        with self._lock:
            offset = self._lanes.committed()
            if self._sealed or offset == self.saved:
                return True
            if self._allowed is not None and not self._allowed():
                self._sealed = True
                logger.error("%s: its lease is somebody else's; offset %d is not saved", self._terms, offset)
                return True
            try:
                terms = self._terms
                position = Position(terms.incarnation, offset, self._id_before(offset), terms.now_us())
                self._engine.save_position(terms.channel, self._name, terms.partition, position)
            except Exception as error:  # noqa: BLE001 - a full disk must not end the delivery
                self._failed(error)
                return False
            self.saved = offset
            self._failures = 0
            return True

    def rewind(self, offset: int) -> None:
        """The log was cut there: what is known of later messages is about others. Called by the loop."""
        with self._lock:
            self._batches.clear()
            self._ends.clear()
            self._expected = offset
            self.saved = None

    def settled(self) -> bool:
        """Whether there is nothing left to save until the next batch."""
        return self._sealed or (self.saved is not None and self.saved >= self._expected)

    def seal(self) -> None:
        """Save nothing from now on: the name belongs to somebody else."""
        with self._lock:
            self._sealed = True

    def _id_before(self, offset: int) -> str:
        for batch in tuple(self._batches):
            if batch.first < offset <= batch.next:
                if offset == batch.next and batch.last_id:
                    return batch.last_id
                messages = batch.messages
                index = bisect_left(messages, offset - 1, key=lambda message: message.offset)
                if index < len(messages) and messages[index].offset == offset - 1:
                    return messages[index].id
        return dict(tuple(self._ends)).get(offset, "")

    def _failed(self, error: Exception) -> None:
        self.errors += 1
        self._failures += 1
        self._terms.control.last_error = text = describe(error)
        if self._failures & (self._failures - 1) == 0:  # the 1st, 2nd, 4th, 8th … time in a row
            logger.error(
                "%s: the position cannot be saved (attempt %d), trying again: %s",
                self._terms,
                self._failures,
                text,
            )


def _last_id(batch: Batch) -> str:
    """The id of the message before the batch's end, if that is known."""
    messages = batch.messages
    return messages[-1].id if messages and messages[-1].offset == batch.next - 1 else batch.last_id


class Saved(Protocol):
    """What a flusher saves."""

    listed: bool

    def save(self) -> bool:
        """Save what is done, if it changed. False: it could not be saved, try again."""

    def settled(self) -> bool:
        """Whether there is nothing left to save."""


class Flusher(Rounds[Saved]):
    """Saves the positions of a station's subscriptions every few milliseconds, as long as any of them moves.

    One per station. Subscriptions save by themselves when they are closed.
    """

    def __init__(self, interval_ms: int = 200) -> None:
        super().__init__("heliograph-positions", (interval_ms if interval_ms > 0 else UNFLUSHED_MS) / 1000)
        self.every_batch = interval_ms <= 0
        """Whether subscriptions save after every batch by themselves."""

    def touch(self, positions: Saved) -> None:
        """These are about to move."""
        if positions.listed:
            return
        with self._changed:
            positions.listed = True
            self._add(positions)

    def _round(self) -> None:
        with self._changed:
            moving, self._items = self._items, []
        for positions in moving:
            # Before the look at what is done: whatever begins to move later lists itself again.
            positions.listed = False
            positions.save()
            if not positions.settled():
                self.touch(positions)
