"""The ordinary position of a queue: its floor, below which everything is acknowledged.

Retention, lag and listings read it as that of any subscription. It is saved now and then; the queue's own state is
the truth. Processes take turns, so that an older floor is never written over a newer one.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from typing import TYPE_CHECKING

from heliograph.delivery.deadletter import describe
from heliograph.delivery.queues.shelf import Shelf
from heliograph.engine.port import Position
from heliograph.errors import Busy, Damaged
from heliograph.log.locks import FileLock
from heliograph.message import Message

if TYPE_CHECKING:
    from heliograph.delivery.positions import Flusher
    from heliograph.delivery.queues.ledger import Ledger
    from heliograph.engine.files import FilesEngine

LOCK_S = 1.0
"""How long another process that saves is waited for, where it matters."""

logger = logging.getLogger("heliograph.delivery")


class Floors:
    """Saves the floors of one queue's partitions; one per process, kept by the station's flusher."""

    def __init__(self, engine: FilesEngine, ledger: Ledger, channel: str, name: str) -> None:
        self.listed = False
        self.errors = 0
        self.saved: dict[int, int] = {}
        self._engine = engine
        self._ledger = ledger
        self._channel = channel
        self._name = name
        self._moved = True
        self._ended = False
        self._mutex = threading.Lock()

    def move(self, flusher: Flusher) -> None:
        """Something was acknowledged."""
        self._moved = True
        flusher.touch(self)

    def settled(self) -> bool:
        """Whether there is nothing left to save."""
        return self._ended or not self._moved

    def end(self) -> None:
        """Nobody works here any more: save what is left, and nothing from then on."""
        self.save(LOCK_S)
        with self._mutex:
            self._ended = True

    def save_all(self) -> None:
        """Save whatever differs, or raise."""
        with self._mutex:
            self._save(LOCK_S)

    def save(self, wait_s: float = 0.0) -> bool:
        """Save what moved, unless another process is at it: then a little later. False: it could not be saved."""
        with self._mutex:
            if self.settled():
                return True
            self._moved = False
            try:
                self._save(wait_s)
            except Busy:
                self._moved = True
            except Exception as error:  # noqa: BLE001 - a full disk must not end the delivery
                self._moved = not self._engine.closed
                self.errors += 1
                logger.error("the floor of queue %s of %s is not saved: %s", self._name, self._channel, describe(error))
                return False
            return True

    def _save(self, wait_s: float) -> None:
        directory = self._engine.positions.directory(self._channel, self._name)
        lock = FileLock(directory / "floor.lock", self._engine.disk)
        try:
            lock.exclusive(self._engine.clock, wait_s)
            life = self._engine.incarnation(self._channel)
            for number, offset in self._ledger.floors().items():
                if self._stored(number) != (life, offset):
                    self._save_one(number, offset, life)
                self.saved[number] = offset
        finally:
            lock.release()

    def _stored(self, number: int) -> tuple[str, int] | None:
        with contextlib.suppress(Damaged):
            position = self._engine.load_position(self._channel, self._name, number)
            return None if position is None else (position.incarnation, position.offset)
        return None

    def _save_one(self, number: int, offset: int, life: str) -> None:
        shelf = Shelf(self._engine, self._channel)
        try:
            awaits = self._ledger.awaits(number, offset, life)
            position = Position(life, offset, _id_before(shelf, number, offset), self._ledger.wall_us(), awaits)
            self._engine.save_position(self._channel, self._name, number, position)
            following = self._ledger.reached()[0][number]
            anchor = _id_before(shelf, number, following)
            if anchor:
                self._ledger.anchor(number, following, anchor, life)
        finally:
            shelf.close()


def _id_before(shelf: Shelf, partition: int, offset: int) -> str:
    """The id of the message before an offset, to recognise the log by; empty if there is none."""
    found = shelf.find(partition, offset - 1, again=True) if offset else None
    return found.id if isinstance(found, Message) else ""
