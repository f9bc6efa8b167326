"""Subscriptions to all channels that a pattern matches, also to those that are made later.

One ordinary subscription per channel does the work; this is what starts them, ends them and looks like one. A
durable one has an ordinary position on each channel, under its name. Which channels were there when it began is
known by those: see ``engine/wildcards.py``.
"""

from __future__ import annotations

import functools
import logging
import os
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec

from heliograph.clock import to_us
from heliograph.delivery import Subscription, SubscriptionStats
from heliograph.delivery.assembly import check_arguments
from heliograph.delivery.invoke import is_async
from heliograph.delivery.statistics import combined
from heliograph.delivery.subscription import CLOSE_TIMEOUT_S, State
from heliograph.delivery.turns import Turns
from heliograph.engine.wildcards import Wildcard
from heliograph.errors import Busy, Damaged, HeliographError, NotFound, StationClosed
from heliograph.limits import WAIT_SLICE_S, WILDCARD_CHANNELS_MAX
from heliograph.patterns import Pattern
from heliograph.station.starts import Start, check_word

if TYPE_CHECKING:
    from heliograph.delivery.tasks import LoopThread
    from heliograph.engine.files import FilesEngine
    from heliograph.log.locks import FileLock

logger = logging.getLogger("heliograph.wildcards")


class _Heard:
    """One channel that is subscribed to, and since when there is such a channel."""

    __slots__ = ("created_us", "subscription")

    def __init__(self, subscription: Subscription, created_us: int) -> None:
        self.subscription = subscription
        self.created_us = created_us


class WildcardSubscription(Subscription):
    """A live subscription to every channel that a pattern matches. Made by ``Station.subscribe``.

    It has all that a :class:`Subscription` has; counts and positions are sums over its channels, and
    ``channels`` has each by itself. Channels made later are heard from their first message on; a channel that
    is deleted is dropped, and the rest goes on.
    """

    def __init__(
        self,
        *,
        engine: FilesEngine,
        pattern: Pattern,
        name: str | None,
        start: Start,
        begin: Callable[..., Subscription],
        concurrency: int,
        is_async: bool,
        event_loop: Any,
        paused: bool,
        on_closed: Callable[[Subscription], None],
    ) -> None:
        # Not the constructor of the class above: that one has parts of its own, this one has those of others.
        self._engine: FilesEngine = engine
        self._pattern = pattern
        self._called = name
        self._start_word = start
        self._begin = begin
        self._paused = paused
        self._on_closed = on_closed
        self._pid = os.getpid()
        self._heard: dict[str, _Heard] = {}
        self._past: tuple[SubscriptionStats, ...] = ()
        self._counting = threading.Lock()
        self._troubles: dict[str, str] = {}
        self._news = threading.Event()
        self._ending = threading.Event()
        self._forget = False
        self._finished = False
        self._finishing = threading.Lock()
        self._own_loop: LoopThread | None = None
        self._options: dict[str, Any] = {"event_loop": event_loop}
        self._wildcard_lease: FileLock | None = None
        self._thread = threading.Thread(target=self._watch, name=f"heliograph-{pattern.text}", daemon=True)
        if is_async and event_loop is None:  # one for all channels: what a handler keeps belongs to one loop
            from heliograph.delivery.tasks import LoopThread

            self._own_loop = LoopThread(f"heliograph-{pattern.text}-asyncio")
            self._options["event_loop"] = self._own_loop.loop
        self._options["turns"] = turns = Turns(concurrency)
        turns.join()  # others may come at any time: who is alone must not go on for long unasked

    # -- beginning

    def open(self) -> None:
        """Subscribe to what is there, then watch for more. Whatever goes wrong leaves nothing behind."""
        try:
            known = None
            if self._called is not None:
                self._wildcard_lease = self._engine.wildcards.lease(self._called)
                known = self._engine.wildcards.load(self._called)
            again = known is not None and known.pattern == self._pattern.text
            self._engine.channel_news.listen(self._news.set)
            for channel in self._matching():
                try:
                    self._hear(channel, "first" if again else self._start_word)
                except NotFound:  # deleted in this moment
                    continue
                except Damaged as error:  # the others are heard; it is, too, once it is repaired
                    self._trouble(channel, error)
            if self._called is not None and not again:
                now_us = self._engine.clock.time_ns() // 1000
                self._engine.wildcards.save(self._called, Wildcard(self._pattern.text, now_us))
            self._thread.start()
        except BaseException:
            self._conclude(CLOSE_TIMEOUT_S)
            raise

    def _matching(self) -> list[str]:
        return [name for name in self._engine.channel_names() if self._pattern.matches(name)]

    def _hear(self, channel: str, start: Start) -> None:
        if len(self._heard) >= WILDCARD_CHANNELS_MAX:
            raise Busy(
                f"'{self._pattern.text}' matches more than {WILDCARD_CHANNELS_MAX} channels, too many for one "
                f"subscription; '{channel}' is not heard. Use narrower patterns, or fewer channels with keys."
            )
        created_us = self._created_us(channel)
        subscription = self._begin(channel, start, paused=self._paused, **self._options)
        self._heard[channel] = _Heard(subscription, created_us)
        if self._paused:
            subscription.pause()  # asked for while it began

    def _created_us(self, channel: str) -> int:
        """When the channel was made: another moment means another channel of the same name."""
        return to_us(self._engine.describe(channel).created)

    # -- channels come and go

    def _watch(self) -> None:
        while not self._ending.is_set():
            woken = self._news.wait(WAIT_SLICE_S)
            self._news.clear()
            if self._ending.is_set():
                return
            try:
                self._look(thoroughly=woken)
            except StationClosed:
                self._ending.set()
            except Exception as error:  # noqa: BLE001 - the disk may recover, the subscription must be there then
                self._trouble("", error)

    def _look(self, *, thoroughly: bool) -> None:
        there = set(self._matching())
        for channel, heard in list(self._heard.items()):
            if channel not in there or (self._suspicious(heard, thoroughly) and self._replaced(channel, heard)):
                self._drop(channel, heard)
        self._troubles = {name: why for name, why in self._troubles.items() if name in there}
        for channel in sorted(there - self._heard.keys()):
            if self._ending.is_set():
                return
            try:
                self._hear(channel, "first")
                self._troubles.pop(channel, None)
            except NotFound:
                continue  # deleted in this moment
            except HeliographError as error:
                self._trouble(channel, error)

    def _suspicious(self, heard: _Heard, thoroughly: bool) -> bool:
        return thoroughly or heard.subscription.closed or heard.subscription.state == "failed"

    def _replaced(self, channel: str, heard: _Heard) -> bool:
        """Whether the channel is gone, or another one of its name is there."""
        try:
            return self._created_us(channel) != heard.created_us
        except NotFound:
            return True

    def _drop(self, channel: str, heard: _Heard) -> None:
        """The channel was deleted, and its positions with it; nothing of ours is to bring them back."""
        heard.subscription.close(forget=True)
        stats = msgspec.structs.replace(heard.subscription.stats(), lag=0, lag_s=0.0, saved_position=None)
        with self._counting:
            del self._heard[channel]
            self._past = (self._sum([*self._past, stats]),)
        logger.info("'%s' hears '%s' no more: it was deleted", self._pattern.text, channel)

    def _trouble(self, channel: str, error: Exception) -> None:
        if self._troubles.get(channel) != str(error):
            logger.error("wildcard subscription '%s': %s; trying again", self._pattern.text, error)
        self._troubles[channel] = str(error)

    # -- what a subscription shows

    @property
    def channels(self) -> Mapping[str, Subscription]:
        """The subscription of each channel that is heard now."""
        return {channel: heard.subscription for channel, heard in list(self._heard.items())}

    @property
    def name(self) -> str | None:
        """Its name; None for an ephemeral subscription."""
        return self._called

    @property
    def channel(self) -> str:
        """The pattern."""
        return self._pattern.text

    @property
    def worker(self) -> None:
        """It is not a group."""

    @property
    def partitions(self) -> list[int]:
        """None in particular: each of its ``channels`` has its own."""
        return []

    @property
    def positions(self) -> dict[int, int]:
        """None in particular: each of its ``channels`` has its own."""
        return {}

    @property
    def position(self) -> int:
        """The sum of the positions of its channels."""
        return sum([one.position for one in self.channels.values()])

    @property
    def closed(self) -> bool:
        """Whether it has ended: its positions are saved and its name is free."""
        return self._finished

    def _inside(self) -> bool:
        """Whether this is called by its own handler, which must not wait for its own end."""
        return any(one._inside() for one in self.channels.values())

    @property
    def state(self) -> State:
        """What it is doing; "failed" if any of its channels is."""
        if self._ending.is_set():
            return "closed"
        heard = list(self._heard.items())
        states = {channel: one.subscription.state for channel, one in heard}
        if any(states[channel] == "failed" and not self._replaced(channel, one) for channel, one in heard):
            return "failed"
        if self._paused:
            return "paused"
        return "retrying" if self._troubles or "retrying" in states.values() else "running"

    def stats(self) -> SubscriptionStats:
        """Counts, lag and latency up to now, of all channels together."""
        with self._counting:
            past, present = self._past, self.channels
        return self._sum([*past, *[one.stats() for one in present.values()]], self.state, self.position)

    def partition_stats(self) -> list[SubscriptionStats]:
        """The same for each partition of each channel."""
        return [stats for one in self.channels.values() for stats in one.partition_stats()]

    def _sum(self, parts: list[SubscriptionStats], state: str = "closed", position: int = 0) -> SubscriptionStats:
        trouble = next(iter(self._troubles.values()), "")
        return combined(parts, channel=self.channel, name=self.name, state=state, position=position, last_error=trouble)

    def __repr__(self) -> str:
        return f"<WildcardSubscription {self.name or '(ephemeral)'} of {self.channel}, {self.state}>"

    # -- what it is told

    def pause(self) -> None:
        """Start no further message of any channel."""
        self._paused = True
        for one in self.channels.values():
            one.pause()

    def resume(self) -> None:
        """Go on after ``pause()``, or try again after a failure."""
        self._paused = False
        for one in self.channels.values():
            one.resume()
        self._news.set()

    def close(self, forget: bool = False, timeout_s: float = CLOSE_TIMEOUT_S) -> bool:
        """As :meth:`Subscription.close`, for all channels; ``forget=True`` removes the pattern and every position."""
        if os.getpid() != self._pid:
            return True  # a forked child has neither the threads nor the lease
        self._forget = self._forget or forget
        self._ending.set()
        self.pause()  # all at once; each then has only its current message to finish
        if self._inside():
            threading.Thread(target=self._conclude, args=(timeout_s,), name="heliograph-closing", daemon=True).start()
            return False
        return self._conclude(timeout_s)

    def _conclude(self, timeout_s: float) -> bool:
        """Once; whoever comes later waits for it."""
        self._ending.set()
        with self._finishing:
            if self._finished:
                self._forget_later()
                return True
            self._news.set()
            if self._thread.is_alive() and self._thread is not threading.current_thread():
                self._thread.join(timeout_s)
            ended = [one.close(forget=self._forget, timeout_s=timeout_s) for one in self.channels.values()]
            self._engine.channel_news.unlisten(self._news.set)
            if self._own_loop is not None:
                self._own_loop.end()
            try:
                if self._forget and self._wildcard_lease is not None and self._called is not None:
                    self._engine.wildcards.forget(self._called)
            finally:
                if self._wildcard_lease is not None:
                    self._wildcard_lease.release()
                self._finished = True
        if self._on_closed is not None:
            self._on_closed(self)
        return all(ended)

    def _forget_later(self) -> None:
        """Closed already: take the name once more, if nobody else has."""
        if self._forget and self._called is not None and self._engine.wildcards.load(self._called) is not None:
            forget_pattern(self._engine, self._pattern.text, self._called)


_CHECKED: Final = ("name", "handler", "on_gap", "concurrency", "timeout_s", "buffer", "overflow")


def subscribe_pattern(
    engine: FilesEngine,
    text: str,
    begin: functools.partial[Subscription],
    *,
    start: Start,
    paused: bool,
    event_loop: Any,
    on_closed: Callable[[Subscription], None],
) -> WildcardSubscription:
    """Subscribe to every channel that matches, now and later. ``begin`` subscribes to one, with its keywords."""
    pattern = Pattern(text)
    check_word(start, engine.clock, several=True)
    agreed = begin.keywords
    check_arguments(**{argument: agreed[argument] for argument in _CHECKED})  # there may be no channel to refuse them
    subscription = WildcardSubscription(
        engine=engine, pattern=pattern, name=agreed["name"], start=start, begin=begin,
        concurrency=agreed["concurrency"], is_async=is_async(agreed["handler"]), event_loop=event_loop, paused=paused,
        on_closed=on_closed,
    )  # fmt: skip
    subscription.open()
    return subscription


def forget_pattern(engine: FilesEngine, text: str, name: str) -> None:
    """Remove a durable wildcard with its positions. It must not be live."""
    pattern = Pattern(text)
    known = engine.wildcards.load(name)
    if known is None or known.pattern != text:
        other = f"; its pattern is '{known.pattern}'" if known is not None else ""
        raise NotFound(f"there is no wildcard subscription '{name}' of '{text}'{other}")
    lease = engine.wildcards.lease(name)
    try:
        for channel, subscription in engine.positions.all():
            if subscription == name and pattern.matches(channel):
                _forget_position(engine, channel, name)
        engine.wildcards.forget(name)
        engine.audit.write("subscription-forgotten", channel=text, subscription=name)
    finally:
        lease.release()


def _forget_position(engine: FilesEngine, channel: str, name: str) -> None:
    lease = engine.subscription_lease(channel, name)
    try:
        engine.forget_position(channel, name)
    finally:
        lease.release()
