"""One partition of a subscription: its loop, its thread, its position."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from heliograph.clock import Clock, to_us
from heliograph.delivery.assembly import make_lanes
from heliograph.delivery.control import Control, delivering
from heliograph.delivery.deadletter import DeadLetters, describe, is_dead_letter_channel
from heliograph.delivery.lane import Life, Terms
from heliograph.delivery.loop import Backlog, Loop
from heliograph.delivery.positions import Flusher, Positions
from heliograph.delivery.statistics import Counters, SubscriptionStats, add_up

if TYPE_CHECKING:
    import asyncio

    from heliograph.delivery.ports import (
        Engine,
        Handler,
        OnGap,
        OverflowPolicy,
        PublishDeadLetter,
        RecentDeadLetters,
    )
    from heliograph.delivery.retry import Retry
    from heliograph.delivery.turns import Turns
    from heliograph.filters import Sieve
    from heliograph.message import Gap

_NUDGE_S_MAX = 0.25
"""Longest pause between two nudges of a loop that is asked to end: it may have missed one."""

logger = logging.getLogger("heliograph.delivery")


class Plan(NamedTuple):
    """What the parts of a subscription have in common."""

    engine: Engine
    channel: str
    name: str | None
    worker: str | None
    """Which of the workers of a group this is; None if it is not a group."""
    handler: Handler
    flusher: Flusher
    publish_dead_letter: PublishDeadLetter
    recent_dead_letters: RecentDeadLetters
    batch: bool
    lanes: int
    retry: Retry
    timeout_s: float | None
    buffer: int
    overflow: OverflowPolicy
    on_gap: OnGap | None
    event_loop: asyncio.AbstractEventLoop | None
    clock: Clock
    turns: Turns
    sieve: Sieve | None
    birth: Any
    """Of the channel, when it was subscribed to: one that is made anew under its name is another."""


class Part:
    """The delivery of one partition, in a thread of its own. There is no way back from its end."""

    def __init__(self, engine: Engine, terms: Terms, loop: Loop, on_ended: Callable[[Part], None]) -> None:
        self.control = terms.control
        self.finished = False
        """Whether its position is saved for the last time."""
        self._engine = engine
        self._terms = terms
        self._loop = loop
        self._on_ended = on_ended
        self._finishing = threading.Lock()
        thread_name = f"heliograph-{terms.channel}-{terms.name or 'ephemeral'}"
        self._thread = threading.Thread(target=self._run, name=thread_name, daemon=True)

    @property
    def partition(self) -> int:
        """The partition it reads."""
        return self._terms.partition

    @property
    def position(self) -> int:
        """Everything before this offset is done."""
        return self._loop.lanes.committed()

    @property
    def state(self) -> str:
        """What it is doing; see Subscription."""
        control = self.control
        if control.stopping:
            return "closed"
        if control.failure:
            return "failed"
        if control.paused:
            return "paused"
        return "retrying" if self._loop.retrying() else "running"

    @property
    def delivering_here(self) -> bool:
        """Whether the caller is its own handler."""
        return delivering.get() is self.control

    def start(self) -> None:
        """Begin to deliver."""
        self._thread.start()

    def stop(self) -> None:
        """End after the message at hand."""
        self.control.stop()
        self._nudge()

    def _nudge(self) -> None:
        """Wake it in case it waits for news."""
        with suppress(Exception):  # the engine may be closed, then nobody waits
            self._engine.wake(self._terms.channel, self.partition)

    def join(self, until_s: float) -> bool:
        """Wait for its end, save and seal its position. False: the handler did not return and is left behind."""
        nudge_s, ended = 0.001, True
        while self._thread.is_alive():
            left_s = until_s - self._terms.clock.monotonic()
            if left_s <= 0:
                ended = False
                logger.warning("%s: its handler did not return in time and is left behind", self._terms)
                self._loop.lanes.cancel()
                break
            self._thread.join(min(nudge_s, left_s))
            self._nudge()  # again: it may have begun to wait only now
            nudge_s = min(2 * nudge_s, _NUDGE_S_MAX)
        self.finish()
        return ended

    def save(self) -> None:
        """Save the position as it is now."""
        if self._loop.positions is not None:
            self._loop.positions.save()

    def finish(self) -> None:
        """Save the position for the last time: once, by its own thread or by whoever no longer waits for it."""
        with self._finishing:
            if not self.finished:
                positions = self._loop.positions
                if positions is not None:
                    positions.save()
                    positions.seal()
                self.finished = True

    def counted(self) -> Counters:
        """What its lanes have counted."""
        lanes = self._loop.lanes.lanes
        counted = add_up([self._loop.clerk.counters, *(lane.counters for lane in lanes)])
        counted.delivered = sum(lane.delivered() for lane in lanes)
        return counted

    def stats(self) -> SubscriptionStats:
        """Counts, lag and latency up to now."""
        loop, terms, position = self._loop, self._terms, self.position
        counted = self.counted()
        lag = max(0, self._end() - position)
        return SubscriptionStats(
            channel=terms.channel,
            partition=terms.partition,
            name=terms.name,
            state=self.state,
            delivered=counted.delivered,
            failed=counted.failed,
            retries=counted.retries,
            timeouts=counted.timeouts,
            dead_letters=counted.dead_letters,
            dropped=counted.dropped,
            expired=counted.expired,
            filtered=counted.filtered,
            passed_over=counted.passed_over,
            missing=counted.missing,
            position=position,
            saved_position=None if loop.positions is None else loop.positions.saved,
            position_errors=0 if loop.positions is None else loop.positions.errors,
            lag=lag,
            lag_s=self._lag_s() if lag else 0.0,
            latency=counted.latency.stats(),
            last_error=self.control.last_error,
        )

    def _end(self) -> int:
        try:
            return self._engine.bounds(self._terms.channel, self.partition).next
        except Exception as error:  # noqa: BLE001 - statistics are asked for when things go wrong, too
            logger.debug("the end of %s cannot be read: %s", self._terms.channel, describe(error))
            return self._loop.lanes.reach()

    def _lag_s(self) -> float | None:
        runs = [lane.run for lane in self._loop.lanes.lanes]
        times_us = [to_us(run.undone().time) for run in runs if run is not None]
        return max(0.0, (self._terms.now_us() - min(times_us)) / 1e6) if times_us else None

    def _run(self) -> None:
        try:
            self._loop.run()
        finally:
            self.control.stop()
            self.finish()
            self._on_ended(self)


class _Beginning(NamedTuple):
    """Where a part starts."""

    offset: int
    gap: Gap | None = None
    saved: int | None = None
    since_us: int | None = None


def make_part(
    plan: Plan,
    partition: int,
    start_offset: int,
    *,
    paused: bool,
    on_ended: Callable[[Part], None],
    allowed: Callable[[], bool] | None = None,
) -> Part:
    """The delivery of one partition; it is not started yet.

    A durable one resumes at its position; ``start_offset`` is for those without a name. ``allowed`` says whether
    positions may still be saved.
    """
    engine, channel, name, clock = plan.engine, plan.channel, plan.name, plan.clock
    incarnation = engine.incarnation(channel)
    begin = _begin(plan, partition, incarnation, start_offset)
    control = Control(paused=paused)
    backlog = None
    if plan.overflow != "block":
        backlog = Backlog(engine, channel, partition, buffer=plan.buffer, policy=plan.overflow, clock=clock)
    letters = DeadLetters(
        channel, publish=plan.publish_dead_letter, recent=plan.recent_dead_letters, since_us=begin.since_us
    )
    terms = Terms(
        channel=channel,
        partition=partition,
        name=name,
        worker=plan.worker,
        station=engine.name,
        life=Life(incarnation, plan.birth),
        batch=plan.batch,
        retry=plan.retry,
        letters=None if is_dead_letter_channel(channel) else letters,
        oldest=backlog.oldest if backlog is not None and plan.overflow == "drop_oldest" else None,
        save=lambda: positions is None or positions.save(),
        control=control,
        clock=clock,
    )
    lanes = make_lanes(
        terms,
        plan.handler,
        begin.offset,
        concurrency=plan.lanes,
        timeout_s=plan.timeout_s,
        event_loop=plan.event_loop,
        turns=plan.turns,
    )
    positions = None
    if name is not None:
        positions = Positions(engine, terms, lanes, name=name, saved=begin.saved, allowed=allowed)
    loop = Loop(
        engine,
        terms,
        lanes=lanes,
        backlog=backlog,
        positions=positions,
        flusher=plan.flusher,
        on_gap=plan.on_gap,
        gap=begin.gap,
        sieve=plan.sieve,
    )
    return Part(engine, terms, loop, on_ended)


def _begin(plan: Plan, partition: int, incarnation: str, start_offset: int) -> _Beginning:
    stored = None
    if plan.name is not None:
        stored = plan.engine.load_position(plan.channel, plan.name, partition)
    if stored is None:
        return _Beginning(start_offset)
    offset, gap = plan.engine.fit_position(plan.channel, partition, stored)
    fits = offset == stored.offset and incarnation == stored.incarnation
    return _Beginning(offset, gap, saved=stored.offset if fits else None, since_us=stored.time_us)
