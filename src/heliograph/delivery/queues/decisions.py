"""What to hand out, what a message has come to, how far a queue is: pure decisions.

A message of a queue::

    in the log ──claim──▶ leased ──ack──────────────▶ done
                          │  ▲ └──nack(delay)──▶ waiting ──▶ (claim)
                          │  └── extend
                          └── its time ran out, or its worker died ──▶ (claim), delivered once more

Leases are counted by the clock nobody can step; see ``engine/queuestore.py``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

import msgspec

from heliograph.delivery.retry import WAIT_S_MAX, GiveUp, Retry
from heliograph.errors import ConfigError
from heliograph.limits import QUEUE_AHEAD_MAX, QUEUE_AHEAD_S

VISIBILITY_S_MIN = 0.05
VISIBILITY_S_MAX = 7 * 86_400.0
IN_FLIGHT_MAX = 1_000_000
DELIVERIES_MAX = 1_000_000


class QueueSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What all workers of a queue agree on; kept beside its state."""

    visibility_s: float = 30.0
    """How long a message is leased to a worker unless it extends the lease."""
    max_in_flight: int = 1_000
    """Most messages that are leased at once, to all workers together."""
    max_deliveries: int = 6
    """A message that was handed out so often and is not done becomes a dead letter."""

    def changed(self, **wanted: Any) -> QueueSettings:
        """With what is not None, checked."""
        merged = msgspec.structs.replace(self, **{name: value for name, value in wanted.items() if value is not None})
        return QueueSettings(
            visibility_s=seconds(merged.visibility_s, "visibility_s", VISIBILITY_S_MIN, VISIBILITY_S_MAX),
            max_in_flight=whole(merged.max_in_flight, "max_in_flight", IN_FLIGHT_MAX),
            max_deliveries=whole(merged.max_deliveries, "max_deliveries", DELIVERIES_MAX),
        )


def seconds(value: Any, what: str, low: float = 0.0, high: float = WAIT_S_MAX) -> float:
    """A duration in seconds, if it makes sense.

    >>> seconds(timedelta(minutes=1), "delay")
    60.0
    """
    number = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(number, bool) or not isinstance(number, int | float) or not math.isfinite(number):
        raise ConfigError(f"{what} is {value!r}; use seconds, or a timedelta")
    if not low <= number <= high:
        raise ConfigError(f"{what} is {number:g} s; use {low:g} to {high:.0f} s")
    return float(number)


def whole(value: object, what: str, high: int) -> int:
    """A number of things, if it makes sense."""
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= high:
        raise ConfigError(f"{what} is {value!r}; use 1 to {high:,}")
    return value


class Frontier(NamedTuple):
    """The part of a partition that was never handed out: ``next <= offset < end``."""

    partition: int
    next: int
    end: int


def room(wanted: int, in_flight: int, max_in_flight: int) -> int:
    """How many messages may be leased now.

    >>> room(10, 995, 1000), room(10, 1000, 1000)
    (5, 0)
    """
    return max(0, min(wanted, max_in_flight - in_flight))


def share_out(count: int, frontiers: Sequence[Frontier], turn: int) -> list[Frontier]:
    """Which new offsets to hand out: evenly over the partitions, beginning with another one each turn.

    >>> share_out(5, [Frontier(0, 7, 9), Frontier(1, 0, 90)], turn=0)
    [Frontier(partition=0, next=7, end=9), Frontier(partition=1, next=0, end=3)]
    """
    waiting = [frontier for frontier in frontiers if frontier.end > frontier.next]
    at = turn % len(waiting) if waiting else 0
    ordered = sorted(waiting[at:] + waiting[:at], key=lambda frontier: frontier.end - frontier.next)
    shared: list[Frontier] = []
    for index, frontier in enumerate(ordered):  # the smallest first: what they leave goes to the others
        part = min(frontier.end - frontier.next, -(-count // (len(ordered) - index)))
        count -= part
        if part:
            shared.append(Frontier(frontier.partition, frontier.next, frontier.next + part))
    return shared


def floor(following: int, oldest_pending: int | None) -> int:
    """Everything before it is acknowledged.

    >>> floor(100, 42), floor(100, None)
    (42, 100)
    """
    return following if oldest_pending is None else min(following, oldest_pending)


def waits_s(next_due: tuple[int | None, int | None], mono_us: int, wall_us: int) -> float:
    """How long nothing becomes visible by itself: a lease that runs out, a delay that is over."""
    leased, delayed = next_due
    waits = [due - now for due, now in ((leased, mono_us), (delayed, wall_us)) if due is not None]
    return max(0.0, min(waits) / 1e6) if waits else math.inf


def exhausted(deliveries: int, settings: QueueSettings) -> bool:
    """Whether a message was handed out too often: this delivery would be one too many."""
    return deliveries > settings.max_deliveries


def after_failure(
    retry: Retry, settings: QueueSettings, deliveries: int, error: BaseException, random01: float
) -> float | None:
    """How long to wait after the handler raised; None: give up."""
    limited = msgspec.structs.replace(retry, max_retries=settings.max_deliveries - 1)
    decided = limited.decide(deliveries, error, random01)
    return None if isinstance(decided, GiveUp) else decided.delay_s


def ahead(handled: int, elapsed_s: float, concurrency: int, max_in_flight: int) -> int:
    """How many messages a worker should have at hand: what it handles in a moment, at least one for each lane.

    A slow worker takes nothing that a free one could do; a fast one is not held up by a commit for every message.

    >>> ahead(0, 1.0, 4, 1000), ahead(1_000, 1.0, 4, 1000), ahead(100_000, 1.0, 4, 1000)
    (4, 104, 512)
    """
    rate = handled / elapsed_s if elapsed_s > 0 else 0.0
    extra = int(min(rate * QUEUE_AHEAD_S, QUEUE_AHEAD_MAX))
    return min(max(concurrency, min(concurrency + extra, QUEUE_AHEAD_MAX)), max_in_flight)


def depth(frontiers: Mapping[int, Frontier], visible: int, delayed: int) -> int:
    """How many messages wait to be handed out, sooner or later."""
    return sum(max(0, frontier.end - frontier.next) for frontier in frontiers.values()) + visible + delayed
