"""Subscriptions: a handler, a channel, and the promise that every message reaches it.

A subscription delivers some partitions of its channel, each by a :class:`Part`; a holder says which: all of them
(`Everything`), or those that a worker of a group holds the leases of.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal, Protocol, Self

from heliograph.delivery.deadletter import describe
from heliograph.delivery.part import Part, Plan, make_part
from heliograph.delivery.statistics import Counters, SubscriptionStats, add_up, together

if TYPE_CHECKING:
    from types import TracebackType

    from heliograph.delivery.tasks import LoopThread

CLOSE_TIMEOUT_S = 10.0
"""How long ``close`` waits for a handler to return, unless told otherwise."""

State = Literal["running", "paused", "retrying", "failed", "closed"]

logger = logging.getLogger("heliograph.delivery")


class Holder(Protocol):
    """Says which partitions a subscription delivers, and holds the right to."""

    def begin(self, subscription: Subscription) -> None:
        """Begin parts, now and whenever there are more."""

    def stop(self) -> None:
        """Begin and end no further part. Does not wait."""

    def release(self, *, forget: bool) -> None:
        """Everything has ended: let the next one have it, perhaps without what was saved."""

    def forget_later(self) -> None:
        """Forget what was saved after it was released."""


class Subscription:
    """A live subscription. Made by ``Station.subscribe``; also a context manager that closes it.

    ``state`` is one of

    * ``"running"``: messages are delivered as they come;
    * ``"paused"``: between ``pause()`` and ``resume()``;
    * ``"retrying"``: in some partition a handler failed, a dead letter could not be written or the log could not
      be read, and it is tried again;
    * ``"failed"``: in some partition trying again cannot help (see ``stats().last_error``). Nothing is lost: the
      position stays where it is. ``resume()`` tries again once the cause is gone;
    * ``"closed"``: no further message is started.
    """

    def __init__(
        self,
        plan: Plan,
        holder: Holder,
        *,
        paused: bool,
        own_loop: LoopThread | None,
        on_closed: Callable[[Subscription], None] | None,
    ) -> None:
        self._plan = plan
        self._holder = holder
        self._paused = paused
        self._own_loop = own_loop
        self._on_closed = on_closed
        self._parts: dict[int, Part] = {}
        self._leaving: set[Part] = set()
        self._alive: set[Part] = set()
        self._past = Counters()
        self._forget = False
        self._closing = False
        self._finished = False
        self._lock = threading.RLock()
        self._finishing = threading.Lock()
        self._pid = os.getpid()

    @property
    def name(self) -> str | None:
        """Its name; None for an ephemeral subscription."""
        return self._plan.name

    @property
    def channel(self) -> str:
        """The channel it reads."""
        return self._plan.channel

    @property
    def worker(self) -> str | None:
        """Which worker of a group this is; None if it is not a group."""
        return self._plan.worker

    @property
    def partitions(self) -> list[int]:
        """The partitions it delivers now."""
        return sorted(self._parts)

    @property
    def positions(self) -> dict[int, int]:
        """By partition: everything before this offset is done."""
        return {part.partition: part.position for part in self._now()}

    @property
    def position(self) -> int:
        """Everything before this offset is done; of several partitions the sum."""
        return sum(self.positions.values())

    @property
    def closed(self) -> bool:
        """Whether it has ended: its position is saved and its name is free."""
        return self._finished

    @property
    def state(self) -> State:
        """What it is doing."""
        if self._closing:
            return "closed"
        states = {part.state for part in self._now()}
        if "failed" in states:
            return "failed"
        if self._paused:
            return "paused"
        return "retrying" if "retrying" in states else "running"

    def pause(self) -> None:
        """Start no further message. Handlers at work finish theirs; a retry waits until ``resume()``."""
        with self._lock:
            self._paused = True
            for part in self._now():
                part.control.pause()

    def resume(self) -> None:
        """Go on after ``pause()``, or try again after a failure."""
        with self._lock:
            self._paused = False
            for part in self._now():
                part.control.resume()

    def close(self, forget: bool = False, timeout_s: float = CLOSE_TIMEOUT_S) -> bool:
        """Stop after the message at hand, save the position, and free the name.

        ``forget=True`` removes the position, so that the name starts anew.

        A handler that does not return within ``timeout_s`` is left behind: the position is saved and the
        name is free all the same, its message will be delivered again, and the answer is False. Called from
        inside its own handler it returns False at once, and the subscription ends when the handler returns.
        Closing twice does no harm.
        """
        if os.getpid() != self._pid:
            return True  # a forked child has neither the threads nor the lease
        late = self._finished
        self._forget = self._forget or forget
        parts = self._stop()
        if any(part.delivering_here for part in [*parts, *self._alive]):
            return self._finished
        until_s = self._plan.clock.monotonic() + timeout_s
        ended = [part.join(until_s) for part in parts]
        self._finish()
        if late and forget:
            self._holder.forget_later()
        return all(ended)

    def stats(self) -> SubscriptionStats:
        """Counts, lag and latency up to now, over all partitions it delivers."""
        parts = self._now()
        counted = add_up([self._past, *(part.counted() for part in parts)])
        return together(self.channel, self.name, self.state, counted, [part.stats() for part in parts])

    def partition_stats(self) -> list[SubscriptionStats]:
        """The same for each partition."""
        return [part.stats() for part in self._now()]

    # -- for its holder

    def begin_part(self, number: int, start_offset: int, allowed: Callable[[], bool] | None = None) -> None:
        """Deliver this partition from now on; not if it is closed already."""
        with self._lock:
            if self._closing or number in self._parts:
                return
            part = make_part(
                self._plan, number, start_offset, paused=self._paused, on_ended=self._part_ended, allowed=allowed
            )
            self._parts[number] = part
            self._alive.add(part)
            self._plan.turns.parties = len(self._parts)
            part.start()

    def end_part(self, number: int, until_s: float) -> bool:
        """Deliver this partition no longer; when this returns its position is saved, and is saved no more."""
        with self._lock:
            part = self._parts.get(number)
            if part is None:
                return True
            self._leaving.add(part)
        part.stop()
        ended = part.join(until_s)
        with self._lock:
            self._past = add_up([self._past, part.counted()])
            self._parts.pop(number, None)
            self._leaving.discard(part)
            self._plan.turns.parties = len(self._parts)
        return ended

    # -- ending

    def _now(self) -> list[Part]:
        return sorted(self._parts.values(), key=lambda part: part.partition)

    def _stop(self) -> list[Part]:
        with self._lock:
            self._closing = True
            parts = self._now()
        self._holder.stop()
        for part in parts:
            part.stop()
        return parts

    def _part_ended(self, part: Part) -> None:
        """Called by the part's own thread, last of all."""
        with self._lock:
            self._alive.discard(part)
            alone = not self._closing and part not in self._leaving and self._parts.get(part.partition) is part
        if alone:  # the station was closed
            self._stop()
        if self._closing and not self._alive:
            self._finish()
            self._end_loop()

    def _finish(self) -> None:
        """Everything is saved: release, once, by the last part's thread or by whoever no longer waits for it."""
        with self._finishing:
            if self._finished:
                return
            try:
                self._holder.release(forget=self._forget)
            except Exception as error:  # noqa: BLE001 - nobody is left to try again
                logger.error("%s was not closed in order: %s", self, describe(error))
            self._finished = True
        if not self._alive:
            self._end_loop()
        if self._on_closed is not None:
            self._on_closed(self)

    def _end_loop(self) -> None:
        with self._lock:
            own, self._own_loop = self._own_loop, None
        if own is not None:
            own.end()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Subscription {self.name or '(ephemeral)'} of {self.channel} {self.partitions}, {self.state}>"
