"""``subscribe(…, queue=True)``: a handler called with messages of a queue, each leased while it runs."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from heliograph.delivery.assembly import check_arguments
from heliograph.delivery.control import Control, delivering
from heliograph.delivery.deadletter import describe
from heliograph.delivery.invoke import is_async
from heliograph.delivery.queues.crews import make_crew
from heliograph.delivery.queues.keeper import Keeper
from heliograph.delivery.queues.tray import Tray
from heliograph.delivery.statistics import SubscriptionStats
from heliograph.delivery.subscription import CLOSE_TIMEOUT_S, State, Subscription
from heliograph.errors import ConfigError, HeliographError

if TYPE_CHECKING:
    from heliograph.delivery.ports import Handler, OnGap
    from heliograph.delivery.queues.desk import Desk
    from heliograph.delivery.retry import Retry

_NUDGE_S = 0.25
logger = logging.getLogger("heliograph.delivery")


def check_queue_arguments(
    *, name: str | None, handler: Handler, on_gap: OnGap | None, concurrency: int, timeout_s: float | None,
    batch: bool, overflow: str,
) -> None:  # fmt: skip
    """Refuse what a queue cannot do while the caller is still there to hear it."""
    if name is None:
        raise ConfigError("queue=True needs a name: workers find each other by it")
    if batch or overflow != "block":
        raise ConfigError("queue=True hands messages out one by one: leave out batch and overflow")
    if on_gap is not None and is_async(on_gap):
        raise ConfigError("on_gap of a queue is called from a thread: use a plain function")
    check_arguments(
        name=name, handler=handler, on_gap=on_gap, concurrency=concurrency, timeout_s=timeout_s, buffer=1,
        overflow="block",
    )  # fmt: skip


class QueueSubscription(Subscription):
    """One worker of a queue, whose handler is called. Positions are those of the queue."""

    def __init__(
        self,
        desk: Desk,
        handler: Handler,
        *,
        concurrency: int,
        retry: Retry,
        timeout_s: float | None,
        paused: bool,
        event_loop: Any,
        forget: Callable[[], None],
        on_closed: Callable[[Subscription], None],
    ) -> None:
        self._desk = desk
        self._clock = clock = desk.parts.engine.clock
        self._control = Control(paused=paused)
        self._forget_queue = forget
        self._told_closed = on_closed
        self._forget = False
        self._finished = False
        self._finishing = threading.Lock()
        self._floors: dict[int, int] = {}
        self._pid = os.getpid()
        name = f"heliograph-{desk.parts.channel}-{desk.parts.name}"
        tray = Tray(clock, desk.bell.ring)
        self._crew = make_crew(
            tray, self._control, handler, concurrency=concurrency, timeout_s=timeout_s or None, counters=desk.counters,
            clock=clock, event_loop=event_loop, name=name,
        )  # fmt: skip
        self._keeper = Keeper(desk, tray, self._crew, self._control, retry, clock, concurrency=concurrency)
        self._control.on_change(desk.bell.ring)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def name(self) -> str:
        """The queue's name."""
        return self._desk.parts.name

    @property
    def channel(self) -> str:
        """The channel it takes messages of."""
        return self._desk.parts.channel

    @property
    def partitions(self) -> list[int]:
        """A queue takes messages of all partitions."""
        return sorted(self.positions)

    @property
    def worker(self) -> str:
        """What this worker is known by."""
        return self._desk.worker

    @property
    def positions(self) -> dict[int, int]:
        """By partition: everything before this offset is done."""
        if not self._finished:
            try:
                self._floors = self._desk.ledger.floors()
            except HeliographError as error:
                logger.debug("the floors of %s cannot be read: %s", self._desk, describe(error))
        return self._floors

    @property
    def closed(self) -> bool:
        """Whether it has ended: what it held was given back."""
        return self._finished

    def _inside(self) -> bool:
        """Whether this is called by its own handler."""
        return delivering.get() is self._control

    @property
    def state(self) -> State:
        """What it is doing."""
        control = self._control
        if control.stopping:
            return "closed"
        if control.failure:
            return "failed"
        if control.paused:
            return "paused"
        return "retrying" if self._keeper.troubles or self._keeper.unwritten else "running"

    def pause(self) -> None:
        """Start no further message. Handlers at work finish theirs."""
        self._control.pause()

    def resume(self) -> None:
        """Go on after ``pause()``, or try again after a failure."""
        self._control.resume()

    def close(self, forget: bool = False, timeout_s: float = CLOSE_TIMEOUT_S) -> bool:
        """Stop after the messages at hand, and give back what was not started.

        ``forget=True`` removes the whole queue if nobody else works for it. A handler that does not return within
        ``timeout_s`` is left behind: somebody else gets its message at once, and the answer is False.
        """
        if os.getpid() != self._pid:
            return True
        self._forget = self._forget or forget
        self._control.stop()
        if self._inside():
            return self._finished
        ended = self._join(timeout_s)
        if not ended:
            logger.warning("%s: its handler did not return within %g s and is left behind", self._desk, timeout_s)
            self._keeper.abandoned = True
            self._crew.cancel()
            self._desk.bell.ring()
            self._thread.join(_NUDGE_S)
        self._finish()
        return ended

    def stats(self) -> SubscriptionStats:
        """Counts, lag and latency up to now."""
        counters, position, lag = self._desk.counters, self.position, 0
        try:
            now = self._desk.ledger.summary()
            lag = sum(now.tally) + sum(max(0, one.end - one.next) for one in now.frontiers.values())
        except HeliographError as error:
            logger.debug("%s cannot be counted: %s", self._desk, describe(error))
        floors = self._desk.parts.floors
        return SubscriptionStats(
            channel=self.channel, partition=None, name=self.name, state=self.state,
            delivered=counters.delivered, failed=counters.failed, retries=counters.retries, timeouts=counters.timeouts,
            dead_letters=counters.dead_letters, dropped=0, expired=counters.expired, filtered=0,
            passed_over=counters.passed_over, missing=counters.missing, position=position,
            saved_position=sum(floors.saved.values()) if floors.saved else None,
            position_errors=floors.errors, lag=lag, lag_s=None if lag else 0.0,
            latency=counters.latency.stats(), last_error=self._control.last_error,
        )  # fmt: skip

    def partition_stats(self) -> list[SubscriptionStats]:
        """The same: a queue counts over all partitions."""
        return [self.stats()]

    def _run(self) -> None:
        try:
            self._keeper.run()
        finally:
            self._control.stop()
            self._finish()

    def _join(self, timeout_s: float) -> bool:
        until = self._clock.monotonic() + timeout_s
        while self._thread.is_alive():
            left_s = until - self._clock.monotonic()
            if left_s <= 0:
                return False
            self._desk.bell.ring()
            self._thread.join(min(_NUDGE_S, left_s))
        return True

    def _finish(self) -> None:
        with self._finishing:
            if self._finished:
                return
            self._floors = self.positions
            self._desk.close()
            self._finished = True
            if self._forget:
                try:
                    self._forget_queue()
                except HeliographError as error:
                    logger.error("%s was not forgotten: %s", self._desk, describe(error))
        self._told_closed(self)

    def __repr__(self) -> str:
        return f"<QueueSubscription {self.name} of {self.channel}, worker {self.worker}, {self.state}>"
