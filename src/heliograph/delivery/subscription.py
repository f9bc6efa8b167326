"""Subscriptions: a handler, a channel, and the promise that every message reaches it.

A subscription delivers some partitions of its channel, each by a :class:`Part`; a holder says which: all of them
(``starting.Everything``), or those that a worker of a group holds the leases of (``member.Member``).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal, Self

from heliograph.arguments import check_seconds
from heliograph.delivery.statistics import SubscriptionStats, add_up, together

if TYPE_CHECKING:
    from types import TracebackType

    from heliograph.delivery.parts import Parts

CLOSE_TIMEOUT_S = 10.0
"""How long ``close`` waits for a handler to return, unless told otherwise."""

State = Literal["running", "paused", "retrying", "failed", "closed"]


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

    def __init__(self, parts: Parts, on_closed: Callable[[Subscription], None] | None) -> None:
        self._parts = parts
        self._plan = parts.plan
        self._pid = os.getpid()
        if on_closed is not None:
            parts.on_finished = lambda: on_closed(self)

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
        return [part.partition for part in self._parts.now()]

    @property
    def positions(self) -> dict[int, int]:
        """By partition: everything before this offset is done."""
        return {part.partition: part.position for part in self._parts.now()}

    @property
    def position(self) -> int:
        """Everything before this offset is done; of several partitions the sum."""
        return sum(self.positions.values())

    @property
    def closed(self) -> bool:
        """Whether it has ended: its position is saved and its name is free."""
        return self._parts.finished

    def _inside(self) -> bool:
        """Whether this is called by its own handler, which must not wait for its own end."""
        return any(part.delivering_here for part in [*self._parts.now(), *self._parts.alive])

    @property
    def state(self) -> State:
        """What it is doing."""
        if self._parts.stopped or self._parts.finished:
            return "closed"
        states = {part.state for part in self._parts.now()}
        if "failed" in states:
            return "failed"
        if self._parts.paused:
            return "paused"
        return "retrying" if "retrying" in states else "running"

    def pause(self) -> None:
        """Start no further message. Handlers at work finish theirs; a retry waits until ``resume()``."""
        self._parts.hold(paused=True)

    def resume(self) -> None:
        """Go on after ``pause()``, or try again after a failure."""
        self._parts.hold(paused=False)

    def close(self, forget: bool = False, timeout_s: float = CLOSE_TIMEOUT_S) -> bool:
        """Stop after the message at hand, save the position, and free the name.

        ``forget=True`` removes the position, so that the name starts anew.

        A handler that does not return within ``timeout_s`` is left behind: the position is saved and the
        name is free all the same, its message will be delivered again, and the answer is False. Called from
        inside its own handler it returns False at once, and the subscription ends when the handler returns.
        Closing twice does no harm.
        """
        timeout_s = check_seconds("timeout_s", timeout_s)
        if os.getpid() != self._pid:
            return True  # a forked child has neither the threads nor the lease
        parts = self._parts
        late = parts.finished
        parts.forget = parts.forget or forget
        now = parts.stop()
        if self._inside():
            for part in now:
                part.save()  # if its station is closed next, nothing can be saved when the handler returns
            return parts.finished
        until_s = self._plan.clock.monotonic() + timeout_s
        ended = [part.join(until_s) for part in now]
        parts.finish()
        if late and forget:
            parts.holder.forget_later()
        return all(ended)

    def stats(self) -> SubscriptionStats:
        """Counts, lag and latency up to now, over all partitions it delivers."""
        parts = self._parts.now()
        counted = add_up([self._parts.past, *(part.counted() for part in parts)])
        return together(self.channel, self.name, self.state, counted, [part.stats() for part in parts])

    def partition_stats(self) -> list[SubscriptionStats]:
        """The same for each partition."""
        return [part.stats() for part in self._parts.now()]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Subscription {self.name or '(ephemeral)'} of {self.channel} {self.partitions}, {self.state}>"
