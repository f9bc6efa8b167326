"""The thread that moves what is due. Every process has one, and one at a time works: whoever holds the lease.

It sleeps until the next message is due, but never longer than a second, so that a clock that was stepped and a
wake-up that was lost cost no more than that. What counts is the wall clock: stepped forward, messages come
early by as much; stepped back, they wait until the clock has caught up. Nothing comes twice.
"""

from __future__ import annotations

import logging
import os
import threading
from typing import Final

from heliograph.delivery.deadletter import describe
from heliograph.engine.files import FilesEngine
from heliograph.errors import HeliographError, StationClosed
from heliograph.limits import SCHEDULE_LOOK_S
from heliograph.log.locks import FileLock
from heliograph.log.news import ring
from heliograph.schedule.database import Database
from heliograph.schedule.mover import EVER_US, Append, Mover
from heliograph.schedule.recurring import Recurring
from heliograph.schedule.waiting import Waiting

logger = logging.getLogger("heliograph.schedule")
NEWS: Final = "news"
LOCK: Final = "lock"


class Dispatcher:
    """Moves what is due to its channel, in a thread of its own, if no other process does."""

    def __init__(self, engine: FilesEngine, database: Database, append: Append) -> None:
        self._engine = engine
        self._directory = database.directory
        self._waiting = Waiting(database)
        self._recurring = Recurring(database)
        self._mover = Mover(engine, self._waiting, append)
        self._lease: FileLock | None = None
        self._leading = False
        self._until_us = EVER_US  # when it looks next, by the wall clock
        self._bell = threading.Event()
        self._stop = threading.Event()
        self._troubles = 0
        self._thread = threading.Thread(target=self._run, name="heliograph-schedule", daemon=True)
        self._thread.start()

    def tell(self, due_us: int) -> None:
        """Something was scheduled: whoever dispatches shall not sleep longer than that."""
        if self._leading:
            if due_us < self._until_us or self._until_us < self._engine.clock.time_ns() // 1000:  # it was stepped
                self._bell.set()
            return
        ring(self._directory / NEWS, self._engine.disk)

    def close(self) -> None:
        """Stop after the messages at hand."""
        self._stop.set()
        self._bell.set()
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                wait_s = self._try_turn()
                if wait_s > 0 and not self._stop.is_set():
                    self._bell.wait(wait_s)
                    self._bell.clear()
        finally:
            self._leading = False
            if self._lease is not None:
                self._lease.release()

    def _try_turn(self) -> float:
        """Do what is due; how long to wait then."""
        try:
            if not self._lead():
                return SCHEDULE_LOOK_S
            wait_s = self.turn()
        except StationClosed:
            self._stop.set()
        except Exception as error:  # whatever it is, those that wait must not wait for ever
            self._troubles += 1
            if self._troubles & (self._troubles - 1) == 0:  # the 1st, 2nd, 4th, 8th … time in a row
                expected = isinstance(error, HeliographError | OSError)
                text = "the schedule cannot be dispatched, trying again: %s"
                logger.error(text, describe(error), exc_info=None if expected else error)
        else:
            self._troubles = 0
            return wait_s
        return SCHEDULE_LOOK_S

    def _lead(self) -> bool:
        if not self._leading:
            if self._lease is None:
                self._lease = FileLock(self._directory / LOCK, self._engine.disk)
            if self._lease.try_exclusive():
                self._lease.note(f"process {os.getpid()}")
                self._engine.watch(self._directory / NEWS, self._bell.set)
                # Whoever led before died or left: the time it noted may be that of another clock.
                self._mover.take_over(self._engine.clock.time_ns() // 1000)
                self._leading = True
        return self._leading

    def turn(self) -> float:
        """Look once: move a bounded number of messages. How many seconds nothing is to be done."""
        clock = self._engine.clock
        now_us = clock.time_ns() // 1000
        self._until_us = EVER_US  # whatever is scheduled from here on, and may not be seen below, rings
        self._mover.resume(now_us)
        self._recurring.fire(now_us)
        if self._mover.move(now_us):
            return 0.0
        longest_us = now_us + int(SCHEDULE_LOOK_S * 1e6)
        known = [self._waiting.next_us(), self._recurring.next_us(), longest_us]
        self._until_us = min(us for us in known if us is not None)
        wait_s = (self._until_us - clock.time_ns() // 1000) / 1e6
        return min(max(0.0, wait_s), SCHEDULE_LOOK_S)  # the clock may have been stepped in between
