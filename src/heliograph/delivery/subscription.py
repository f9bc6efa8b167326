"""Subscriptions: a handler, a channel, and the promise that every message reaches it.

A station makes one with :func:`start_subscription`, which names all that it depends on; users see
:class:`Subscription`.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Literal, NamedTuple, Self

from heliograph.clock import SYSTEM_CLOCK, Clock, to_us
from heliograph.delivery.assembly import check_arguments, make_lanes
from heliograph.delivery.control import Control, delivering
from heliograph.delivery.deadletter import DeadLetters, describe, is_dead_letter_channel
from heliograph.delivery.lane import Terms
from heliograph.delivery.loop import Backlog, Loop
from heliograph.delivery.positions import Flusher, Positions
from heliograph.delivery.retry import Retry
from heliograph.delivery.statistics import SubscriptionStats, add_up
from heliograph.engine.port import Position

if TYPE_CHECKING:
    import asyncio
    from types import TracebackType

    from heliograph.delivery.gate import AsyncGate, Gate
    from heliograph.delivery.ports import (
        Engine,
        Handler,
        Lease,
        OnGap,
        OverflowPolicy,
        PublishDeadLetter,
        RecentDeadLetters,
    )
    from heliograph.filters import Sieve
    from heliograph.message import Gap

CLOSE_TIMEOUT_S = 10.0
"""How long ``close`` waits for a handler to return, unless told otherwise."""

_NUDGE_S_MAX = 0.25
"""Longest pause between two nudges of a loop that is asked to end: it may have missed one."""

State = Literal["running", "paused", "retrying", "failed", "closed"]

logger = logging.getLogger("heliograph.delivery")


class Subscription:
    """A live subscription. Made by ``Station.subscribe``; also a context manager that closes it.

    ``state`` is one of

    * ``"running"``: messages are delivered as they come;
    * ``"paused"``: between ``pause()`` and ``resume()``;
    * ``"retrying"``: a handler failed, a dead letter could not be written or the log could not be read, and
      it is tried again;
    * ``"failed"``: trying again cannot help (see ``stats().last_error``). Nothing is lost: the position
      stays where it is. ``resume()`` tries again once the cause is gone;
    * ``"closed"``: no further message is started.
    """

    def __init__(
        self,
        *,
        engine: Engine,
        terms: Terms,
        loop: Loop,
        lease: Lease | None,
        on_closed: Callable[[Subscription], None] | None,
    ) -> None:
        self._engine = engine
        self._terms = terms
        self._control = terms.control
        self._loop = loop
        self._lease = lease
        self._on_closed = on_closed
        self._forget = False
        self._finished = False
        self._finishing = threading.Lock()
        self._pid = os.getpid()
        thread_name = f"heliograph-{terms.channel}-{terms.name or 'ephemeral'}"
        self._thread = threading.Thread(target=self._run, name=thread_name, daemon=True)

    @property
    def name(self) -> str | None:
        """Its name; None for an ephemeral subscription."""
        return self._terms.name

    @property
    def channel(self) -> str:
        """The channel it reads."""
        return self._terms.channel

    @property
    def partition(self) -> int:
        """The partition it reads."""
        return self._terms.partition

    @property
    def position(self) -> int:
        """Everything before this offset is done."""
        return self._loop.lanes.committed()

    @property
    def closed(self) -> bool:
        """Whether it has ended: its position is saved and its name is free."""
        return self._finished

    def _inside(self) -> bool:
        """Whether this is called by its own handler, which must not wait for its own end."""
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
        return "retrying" if self._loop.retrying() else "running"

    def pause(self) -> None:
        """Start no further message. Handlers at work finish theirs; a retry waits until ``resume()``."""
        self._control.pause()

    def resume(self) -> None:
        """Go on after ``pause()``, or try again after a failure."""
        self._control.resume()

    def close(self, forget: bool = False, timeout_s: float = CLOSE_TIMEOUT_S) -> bool:
        """Stop after the message at hand, save the position, and free the name.

        ``forget=True`` removes the position, so that the name starts anew.

        A handler that does not return within ``timeout_s`` is left behind: the position is saved and the
        name is free all the same, its message will be delivered again, and the answer is False. Called from
        inside its own handler it returns False at once, and the subscription ends when the handler returns.
        Closing twice does no harm.
        """
        if os.getpid() != self._pid:
            return True  # a forked child has neither the thread nor the lease
        late = self._finished
        self._forget = self._forget or forget
        self._control.stop()
        if self._inside():
            self._nudge()
            return self._finished
        ended = self._join(timeout_s)
        if not ended:
            logger.warning("%s: its handler did not return within %g s and is left behind", self._terms, timeout_s)
            self._loop.lanes.cancel()
        self._finish()
        if late and forget:
            self._forget_later()
        return ended

    def stats(self) -> SubscriptionStats:
        """Counts, lag and latency up to now."""
        loop, terms, position = self._loop, self._terms, self.position
        lanes = loop.lanes.lanes
        counted = add_up([loop.clerk.counters, *(lane.counters for lane in lanes)])
        lag = max(0, self._end() - position)
        return SubscriptionStats(
            channel=terms.channel,
            partition=terms.partition,
            name=terms.name,
            state=self.state,
            delivered=sum(lane.delivered() for lane in lanes),
            failed=counted.failed,
            retries=counted.retries,
            timeouts=counted.timeouts,
            dead_letters=counted.dead_letters,
            dropped=counted.dropped,
            filtered=counted.filtered,
            missing=counted.missing,
            position=position,
            saved_position=None if loop.positions is None else loop.positions.saved,
            position_errors=0 if loop.positions is None else loop.positions.errors,
            lag=lag,
            lag_s=self._lag_s() if lag else 0.0,
            latency=counted.latency.stats(),
            last_error=self._control.last_error,
        )

    def _end(self) -> int:
        try:
            return self._engine.bounds(self.channel, self.partition).next
        except Exception as error:  # noqa: BLE001 - statistics are asked for when things go wrong, too
            logger.debug("the end of %s cannot be read: %s", self.channel, describe(error))
            return self._loop.lanes.reach()

    def _lag_s(self) -> float | None:
        runs = [lane.run for lane in self._loop.lanes.lanes]
        times_us = [to_us(run.undone().time) for run in runs if run is not None]
        return max(0.0, (self._terms.now_us() - min(times_us)) / 1e6) if times_us else None

    # -- ending

    def _start(self) -> None:
        self._thread.start()

    def _run(self) -> None:
        try:
            self._loop.run()
        finally:
            self._control.stop()
            self._finish()

    def _join(self, timeout_s: float) -> bool:
        """Wait for the loop to end, and wake it in case it waits for news."""
        until, nudge_s = self._terms.clock.monotonic() + timeout_s, 0.001
        while self._thread.is_alive():
            left_s = until - self._terms.clock.monotonic()
            if left_s <= 0:
                return False
            self._nudge()
            self._thread.join(min(nudge_s, left_s))
            nudge_s = min(2 * nudge_s, _NUDGE_S_MAX)
        return True

    def _nudge(self) -> None:
        with suppress(Exception):  # the engine may be closed, then nobody waits
            self._engine.wake(self.channel)

    def _finish(self) -> None:
        """Save, forget, release: once, by the loop's thread or by whoever no longer waits for it."""
        with self._finishing:
            if self._finished:
                return
            positions = self._loop.positions
            if positions is not None:
                positions.save()
                positions.seal()
            if self._lease is not None:
                try:
                    if self._forget and self.name is not None:
                        self._engine.forget_position(self.channel, self.name)
                    self._lease.release()
                except Exception as error:  # noqa: BLE001 - nobody is left to try again
                    logger.error("%s was not closed in order: %s", self._terms, describe(error))
            self._finished = True
        if self._on_closed is not None:
            self._on_closed(self)

    def _forget_later(self) -> None:
        """Closed already: take the name once more, if nobody else has."""
        if self.name is not None:
            lease = self._engine.subscription_lease(self.channel, self.name)
            try:
                self._engine.forget_position(self.channel, self.name)
            finally:
                lease.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Subscription {self.name or '(ephemeral)'} of {self.channel}/{self.partition}, {self.state}>"


class _Beginning(NamedTuple):
    """Where a subscription starts."""

    offset: int
    gap: Gap | None = None
    saved: int | None = None
    since_us: int | None = None


def start_subscription(
    *,
    engine: Engine,
    channel: str,
    handler: Handler,
    start_offset: int,
    flusher: Flusher,
    publish_dead_letter: PublishDeadLetter,
    recent_dead_letters: RecentDeadLetters,
    name: str | None = None,
    partition: int = 0,
    batch: bool = False,
    concurrency: int = 1,
    retry: Retry | None = None,
    timeout_s: float | None = None,
    buffer: int = 10_000,
    overflow: OverflowPolicy = "block",
    on_gap: OnGap | None = None,
    paused: bool = False,
    sieve: Sieve | None = None,
    gate: Gate | AsyncGate | None = None,
    event_loop: asyncio.AbstractEventLoop | None = None,
    on_closed: Callable[[Subscription], None] | None = None,
    clock: Clock = SYSTEM_CLOCK,
) -> Subscription:
    """Subscribe the handler and start delivering.

    * ``start_offset``: where to begin if the name has no position yet. A durable subscription saves it before
      this returns, so that a start at "new" still means the same after a crash.
    * ``flusher``: saves positions; one per station.
    * ``publish_dead_letter(channel, payload, key)``: returns when the letter is durable; ``channel`` is the
      channel of the dead letters and ``payload`` holds a ``msgspec.Raw``. It must accept every letter,
      whatever ``messages.max_bytes``.
    * ``recent_dead_letters(channel, since_us)``: identities of the letters appended since then.
    * ``sieve``: which messages are delivered; the position moves past the others.
    * ``gate``: shared with other subscriptions whose handlers are not to be called at once.
    * ``event_loop``: where an async handler runs; None gives it a loop in a thread of its own.
    * ``on_closed``: told once, when the subscription has ended.

    Raises SubscriptionBusy if the name has a live subscriber, and ConfigError for arguments that cannot work.
    """
    check_arguments(
        name=name, handler=handler, on_gap=on_gap, concurrency=concurrency, timeout_s=timeout_s, buffer=buffer,
        overflow=overflow,
    )  # fmt: skip
    incarnation = engine.incarnation(channel)
    lease = None if name is None else engine.subscription_lease(channel, name)
    try:
        begin = _begin(engine, channel, name, partition, incarnation, start_offset, clock)
        control = Control(paused=paused)
        backlog = None
        if overflow != "block":
            backlog = Backlog(engine, channel, partition, buffer=buffer, policy=overflow, clock=clock)
        letters = DeadLetters(channel, publish=publish_dead_letter, recent=recent_dead_letters, since_us=begin.since_us)
        terms = Terms(
            channel=channel,
            partition=partition,
            name=name,
            incarnation=incarnation,
            batch=batch,
            retry=retry or Retry(),
            letters=None if is_dead_letter_channel(channel) else letters,
            oldest=backlog.oldest if backlog is not None and overflow == "drop_oldest" else None,
            save=lambda: positions is None or positions.save(),
            control=control,
            clock=clock,
        )
        lanes = make_lanes(
            terms,
            handler,
            begin.offset,
            concurrency=concurrency,
            timeout_s=timeout_s or None,
            event_loop=event_loop,
            gate=gate,
        )
        positions = None if name is None else Positions(engine, terms, lanes, name=name, saved=begin.saved)
        loop = Loop(
            engine,
            terms,
            lanes=lanes,
            backlog=backlog,
            positions=positions,
            flusher=flusher,
            on_gap=on_gap,
            gap=begin.gap,
            sieve=sieve,
        )
        subscription = Subscription(engine=engine, terms=terms, loop=loop, lease=lease, on_closed=on_closed)
        subscription._start()
    except BaseException:
        if lease is not None:
            lease.release()
        raise
    return subscription


def _begin(
    engine: Engine,
    channel: str,
    name: str | None,
    partition: int,
    incarnation: str,
    start_offset: int,
    clock: Clock,
) -> _Beginning:
    if name is None:
        return _Beginning(start_offset)
    stored = engine.load_position(channel, name, partition)
    if stored is None:
        now_us = clock.time_ns() // 1000
        engine.save_position(channel, name, partition, Position(incarnation, start_offset, "", now_us))
        return _Beginning(start_offset, saved=start_offset, since_us=now_us)
    offset, gap = engine.fit_position(channel, partition, stored)
    fits = offset == stored.offset and incarnation == stored.incarnation
    return _Beginning(offset, gap, saved=stored.offset if fits else None, since_us=stored.time_us)
