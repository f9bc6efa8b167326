"""Starting a subscription: names all that it depends on."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from heliograph.clock import SYSTEM_CLOCK, Clock
from heliograph.delivery.assembly import check_arguments
from heliograph.delivery.beginning import establish
from heliograph.delivery.invoke import is_async
from heliograph.delivery.part import Plan
from heliograph.delivery.parts import Parts
from heliograph.delivery.retry import Retry
from heliograph.delivery.subscription import Subscription
from heliograph.delivery.turns import Turns
from heliograph.errors import ConfigError, NotFound, StationClosed

if TYPE_CHECKING:
    import asyncio

    from heliograph.delivery.lookout import Lookout
    from heliograph.delivery.ports import (
        Engine,
        Handler,
        Lease,
        OnGap,
        OverflowPolicy,
        PublishDeadLetter,
        RecentDeadLetters,
    )
    from heliograph.delivery.positions import Flusher
    from heliograph.filters import Sieve

Start = Callable[[int], int]
"""Where to begin in a partition."""


class Everything:
    """The holder of a subscription that is not shared: all partitions, and those that are added later."""

    worker = None

    def __init__(
        self, engine: Engine, channel: str, name: str | None, start: Start, clock: Clock, lookout: Lookout
    ) -> None:
        self._engine = engine
        self._channel = channel
        self._name = name
        self._start = start
        self._clock = clock
        self._lookout = lookout
        self._parts: Parts | None = None
        self._known = 0
        self._lease: Lease | None = None
        if name is not None:
            self._lease = engine.subscription_lease(channel, name)

    def prepare(self) -> None:
        """Write down where it begins."""
        count = self._engine.partition_count(self._channel)
        if self._name is not None:
            self._engine.claim_kind(self._channel, self._name, "plain")
            establish(self._engine, self._channel, self._name, self._start, count, self._clock)

    def begin(self, parts: Parts) -> None:
        """All there are; and look again from time to time."""
        self._parts = parts
        self._known = self._engine.partition_count(self._channel)
        starts = {number: self._start(number) if self._name is None else 0 for number in range(self._known)}
        for number, start in starts.items():
            parts.begin(number, start)
        self._lookout.add(self._look)

    def _look(self) -> None:
        try:
            count = self._engine.partition_count(self._channel)
        except (NotFound, StationClosed):  # its parts notice, and say so
            return
        parts = self._parts
        if parts is None or count <= self._known:
            return
        if self._name is not None:
            establish(self._engine, self._channel, self._name, self._start, count, self._clock)
        for number in range(self._known, count):
            parts.begin(number, 0)
            self._known = number + 1

    def left(self, number: int) -> None:
        """None leaves before the end."""

    def stop(self) -> None:
        """Look no more."""
        self._lookout.discard(self._look)
        self._parts = None

    def release(self, *, forget: bool) -> None:
        """Free the name."""
        lease, self._lease = self._lease, None
        if lease is not None:
            try:
                if forget and self._name is not None:
                    self._engine.forget_position(self._channel, self._name)
            finally:
                lease.release()

    def forget_later(self) -> None:
        """Closed already: take the name once more, if nobody else has."""
        if self._name is not None:
            self._lease = self._engine.subscription_lease(self._channel, self._name)
            self.release(forget=True)


def start_subscription(
    *,
    engine: Engine,
    channel: str,
    handler: Handler,
    start: Start,
    flusher: Flusher,
    lookout: Lookout,
    publish_dead_letter: PublishDeadLetter,
    recent_dead_letters: RecentDeadLetters,
    name: str | None = None,
    group: bool = False,
    batch: bool = False,
    concurrency: int = 1,
    retry: Retry | None = None,
    timeout_s: float | None = None,
    buffer: int = 10_000,
    overflow: OverflowPolicy = "block",
    on_gap: OnGap | None = None,
    paused: bool = False,
    sieve: Sieve | None = None,
    turns: Turns | None = None,
    event_loop: asyncio.AbstractEventLoop | None = None,
    on_closed: Callable[[Subscription], None] | None = None,
    clock: Clock = SYSTEM_CLOCK,
) -> Subscription:
    """Subscribe the handler and start delivering.

    * ``start``: where to begin in each partition if the name has no position yet. A durable subscription saves it
      before this returns, so that a start at "new" still means the same after a crash.
    * ``flusher``, ``lookout``: save positions and look for new partitions; one of each per station.
    * ``publish_dead_letter(channel, payload, key)``: returns when the letter is durable; ``channel`` is the
      channel of the dead letters and ``payload`` holds a ``msgspec.Raw``. It must accept every letter,
      whatever ``messages.max_bytes``.
    * ``recent_dead_letters(channel, since_us)``: identities of the letters appended since then.
    * ``group``: share the partitions with the other workers of this name.
    * ``sieve``: which messages are delivered; the position moves past the others.
    * ``turns``: shared with other subscriptions whose handlers are not to be called at once.
    * ``event_loop``: where an async handler runs; None gives it a loop in a thread of its own.
    * ``on_closed``: told once, when the subscription has ended.

    Raises SubscriptionBusy if the name has a live subscriber, and ConfigError for arguments that cannot work.
    """
    check_arguments(
        name=name,
        handler=handler,
        on_gap=on_gap,
        concurrency=concurrency,
        timeout_s=timeout_s,
        buffer=buffer,
        overflow=overflow,
    )
    own_loop = None
    holder: Everything | Member
    if group:
        if name is None:
            raise ConfigError("a group needs a name: its workers find each other by it")
        from heliograph.delivery.member import Member

        holder = Member(engine, channel, name, start, clock)
    else:
        holder = Everything(engine, channel, name, start, clock, lookout)
    try:
        holder.prepare()
        if is_async(handler) and event_loop is None:
            from heliograph.delivery.tasks import LoopThread

            own_loop = LoopThread(f"heliograph-{channel}-{name or 'ephemeral'}-asyncio")
        plan = Plan(
            engine=engine,
            channel=channel,
            name=name,
            worker=holder.worker,
            handler=handler,
            flusher=flusher,
            publish_dead_letter=publish_dead_letter,
            recent_dead_letters=recent_dead_letters,
            batch=batch,
            lanes=concurrency if group else -(-concurrency // engine.partition_count(channel)),
            retry=retry or Retry(),
            timeout_s=timeout_s or None,
            buffer=buffer,
            overflow=overflow,
            on_gap=on_gap,
            event_loop=event_loop if own_loop is None else own_loop.loop,
            clock=clock,
            turns=turns or Turns(concurrency),
            sieve=sieve,
            birth=engine.birth(channel),
        )
    except BaseException:
        holder.release(forget=False)
        raise
    parts = Parts(plan, holder, paused=paused, own_loop=own_loop)
    subscription = Subscription(parts, on_closed)
    try:
        holder.begin(parts)
    except BaseException:
        subscription.close()
        raise
    return subscription
