"""The parts of one subscription: begun and ended as its holder says, and all at once at its end."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from heliograph.delivery.deadletter import describe
from heliograph.delivery.part import Part, Plan, make_part
from heliograph.delivery.statistics import Counters, add_up

if TYPE_CHECKING:
    from heliograph.delivery.tasks import LoopThread

logger = logging.getLogger("heliograph.delivery")


class Holder(Protocol):
    """Says which partitions a subscription delivers, and holds the right to."""

    def begin(self, parts: Parts) -> None:
        """Begin parts, now and whenever there are more."""

    def left(self, number: int) -> None:
        """A part that was to leave has ended, its position is saved and is saved no more."""

    def stop(self) -> None:
        """Begin and end no further part. Does not wait."""

    def release(self, *, forget: bool) -> None:
        """Everything has ended: let the next one have it, perhaps without what was saved."""

    def forget_later(self) -> None:
        """Forget what was saved after it was released."""


class Parts:
    """Which partitions are being delivered. Safe to use from any thread."""

    def __init__(self, plan: Plan, holder: Holder, *, paused: bool, own_loop: LoopThread | None) -> None:
        self.plan = plan
        self.holder = holder
        self.paused = paused
        self.closing = False
        self.stopped = False
        self.finished = False
        self.forget = False
        self.past = Counters()
        """What parts have counted that have left."""
        self.alive: set[Part] = set()
        """Those whose thread has not ended yet."""
        self.on_finished: Callable[[], None] | None = None
        self._own_loop = own_loop
        self._parts: dict[int, Part] = {}
        self._leaving: set[Part] = set()
        self._lock = threading.RLock()
        self._finishing = threading.Lock()

    def now(self) -> list[Part]:
        """Those that are being delivered, in the order of their partitions."""
        return sorted(self._parts.values(), key=lambda part: part.partition)

    def begin(self, number: int, start_offset: int, allowed: Callable[[], bool] | None = None) -> bool:
        """Deliver this partition from now on. False: not any more, the subscription is being closed."""
        with self._lock:
            if self.closing:
                return False
            if number not in self._parts:
                part = make_part(
                    self.plan, number, start_offset, paused=self.paused, on_ended=self._ended, allowed=allowed
                )
                self._parts[number] = part
                self.alive.add(part)
                self.plan.turns.join()
                part.start()
            return True

    def leave(self, number: int) -> None:
        """Deliver this partition no longer than the message at hand; the holder is told when it has ended."""
        with self._lock:
            part = self._parts.get(number)
            if part is None or part in self._leaving or self.closing:
                return
            self._leaving.add(part)
        part.stop()

    def hold(self, *, paused: bool) -> None:
        """Pause all, or go on, also those that come later."""
        with self._lock:
            self.paused = paused
            for part in self.now():
                part.control.pause() if paused else part.control.resume()

    def stop(self) -> list[Part]:
        """End all after the message at hand, and begin no more; does not wait."""
        with self._lock:
            self.closing = True
            parts = self.now()
        self.holder.stop()
        for part in parts:
            part.stop()
        self.stopped = True
        return parts

    def finish(self) -> None:
        """Everything is saved: release, once, by the last part's thread or by whoever no longer waits for it."""
        with self._finishing:
            if self.finished:
                return
            try:
                self.holder.release(forget=self.forget)
            except Exception as error:  # noqa: BLE001 - nobody is left to try again
                plan = self.plan
                logger.error("%s of %s was not closed in order: %s", plan.name, plan.channel, describe(error))
            self.finished = True
        if not self.alive:
            self._end_loop()
        if self.on_finished is not None:
            self.on_finished()

    def _ended(self, part: Part) -> None:
        """Called by the part's own thread, last of all."""
        with self._lock:
            self.alive.discard(part)
            self.plan.turns.leave()
            left = part in self._leaving and not self.closing
            if left:
                self._leaving.discard(part)
                del self._parts[part.partition]
                self.past = add_up([self.past, part.counted()])
        if left:
            self.holder.left(part.partition)
            return
        if not self.closing:  # the station was closed
            self.stop()
        if not self.alive:
            self.finish()
            self._end_loop()

    def _end_loop(self) -> None:
        with self._lock:
            own, self._own_loop = self._own_loop, None
        if own is not None:
            own.end()
