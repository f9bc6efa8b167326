"""Counting deliveries, cheaply: one object per lane, one writer each, added up when somebody asks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

_OCTAVES = 40
"""2**40 µs are twelve days; whatever is slower counts as that."""

_BUCKETS = (_OCTAVES - 1) * 4


def _bucket(us: int) -> int:
    """Four buckets per power of two: the position of the highest bit, and the two bits after it."""
    if us < 4:
        return max(us, 0)
    bits = us.bit_length()
    return min((bits - 2) * 4 + ((us >> (bits - 3)) & 3), _BUCKETS - 1)


def _bucket_le_us(index: int) -> int:
    """The largest value a bucket holds."""
    if index < 4:
        return index
    octave, quarter = divmod(index, 4)
    return ((5 + quarter) << (octave - 1)) - 1


class LatencyStats(msgspec.Struct, frozen=True):
    """A summary of a histogram. Percentiles are upper bounds of buckets, exact to a quarter."""

    count: int
    mean_ms: float
    p50_ms: float
    p90_ms: float
    p99_ms: float
    max_ms: float
    buckets: list[tuple[int, int]]
    """(largest µs of the bucket, samples in it), for the buckets that are not empty."""


class Histogram:
    """Microseconds in fixed buckets of a logarithmic scale.

    >>> histogram = Histogram()
    >>> for us in (90, 100, 110, 5000): histogram.add(us)
    >>> histogram.percentile_us(0.5), histogram.max_us
    (111, 5000)
    """

    __slots__ = ("counts", "max_us", "sum_us")

    def __init__(self) -> None:
        self.counts = [0] * _BUCKETS
        self.sum_us = 0
        self.max_us = 0

    def add(self, us: int) -> None:
        """Count one sample; a negative one (the clock stepped back) counts as zero."""
        us = max(us, 0)
        self.counts[_bucket(us)] += 1
        self.sum_us += us
        self.max_us = max(self.max_us, us)

    def merge(self, other: Histogram) -> None:
        """Add the other's samples to mine."""
        self.counts = [mine + theirs for mine, theirs in zip(self.counts, other.counts, strict=True)]
        self.sum_us += other.sum_us
        self.max_us = max(self.max_us, other.max_us)

    def percentile_us(self, share: float) -> int:
        """No more than this, for the given share of the samples; 0 when there are none."""
        wanted = share * sum(self.counts)
        seen = 0
        for index, count in enumerate(self.counts):
            seen += count
            if count and seen >= wanted:
                return min(_bucket_le_us(index), self.max_us)
        return 0

    def stats(self) -> LatencyStats:
        """The summary."""
        count = sum(self.counts)
        return LatencyStats(
            count=count,
            mean_ms=self.sum_us / count / 1000 if count else 0.0,
            p50_ms=self.percentile_us(0.50) / 1000,
            p90_ms=self.percentile_us(0.90) / 1000,
            p99_ms=self.percentile_us(0.99) / 1000,
            max_ms=self.max_us / 1000,
            buckets=[(_bucket_le_us(index), n) for index, n in enumerate(self.counts) if n],
        )


class Counters:
    """What one lane has counted. Only the lane writes."""

    __slots__ = (
        "dead_letters",
        "delivered",
        "dropped",
        "expired",
        "failed",
        "filtered",
        "latency",
        "missing",
        "passed_over",
        "retries",
        "timeouts",
    )

    def __init__(self) -> None:
        self.delivered = 0
        self.failed = 0
        self.retries = 0
        self.dead_letters = 0
        self.dropped = 0
        self.expired = 0
        self.filtered = 0
        self.missing = 0
        self.passed_over = 0
        self.timeouts = 0
        self.latency = Histogram()


def add_up(parts: Iterable[Counters]) -> Counters:
    """The sum of what several lanes have counted."""
    total = Counters()
    for part in parts:
        total.delivered += part.delivered
        total.failed += part.failed
        total.retries += part.retries
        total.dead_letters += part.dead_letters
        total.dropped += part.dropped
        total.expired += part.expired
        total.filtered += part.filtered
        total.missing += part.missing
        total.passed_over += part.passed_over
        total.timeouts += part.timeouts
        total.latency.merge(part.latency)
    return total


class SubscriptionStats(msgspec.Struct, frozen=True, kw_only=True):
    """One subscription, at one moment. Counts begin at zero when it is started."""

    channel: str
    partition: int | None
    """None when these are the numbers of several partitions: counts, positions and lag are sums then."""
    name: str | None
    """None for an ephemeral subscription."""
    state: str
    """"running", "paused", "retrying", "failed" or "closed"."""
    delivered: int
    """Messages whose handler returned."""
    failed: int
    """Calls of the handler that raised or took too long."""
    retries: int
    """Calls repeated after a failure."""
    timeouts: int
    """Calls that took longer than ``timeout_s`` (also counted as failed)."""
    dead_letters: int
    """Messages and lines that went to the dead letters."""
    dropped: int
    """Messages skipped by ``drop_oldest`` or ``drop_newest``."""
    expired: int
    """Messages not delivered because their ``ttl`` was over."""
    filtered: int
    """Messages skipped because ``where`` did not want them."""
    passed_over: int
    """Messages skipped because they were redriven for another subscription."""
    missing: int
    """Offsets that can not be delivered: damaged, or trimmed before they were read."""
    position: int
    """Everything before this offset is done."""
    saved_position: int | None
    """The position on disk, which a restart resumes from; None for an ephemeral subscription."""
    position_errors: int
    """Attempts to save the position that failed; it is tried again."""
    lag: int
    """Messages that wait, including those at hand."""
    lag_s: float | None
    """Age of the oldest message at hand; 0 when nothing waits, None when none is at hand (paused)."""
    latency: LatencyStats
    """From append to handler, one sample per batch: of its last message."""
    last_error: str
    """What went wrong last, or an empty string."""


def together(
    channel: str, name: str | None, state: str, counted: Counters, parts: list[SubscriptionStats]
) -> SubscriptionStats:
    """The numbers of a subscription from those of its partitions; ``counted`` has also what former ones counted."""
    saved = [part.saved_position for part in parts if part.saved_position is not None]
    ages_s = [part.lag_s for part in parts if part.lag]
    known_s = [age_s for age_s in ages_s if age_s is not None]
    return SubscriptionStats(
        channel=channel,
        partition=parts[0].partition if len(parts) == 1 else None,
        name=name,
        state=state,
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
        position=sum(part.position for part in parts),
        saved_position=sum(saved) if saved else None,
        position_errors=sum(part.position_errors for part in parts),
        lag=sum(part.lag for part in parts),
        lag_s=max(known_s) if known_s else None if ages_s else 0.0,
        latency=counted.latency.stats(),
        last_error=next((part.last_error for part in parts if part.last_error), ""),
    )


def combined(
    parts: Sequence[SubscriptionStats],
    *,
    channel: str,
    name: str | None,
    state: str,
    position: int,
    last_error: str,
) -> SubscriptionStats:
    """Several subscriptions as one: sums, the largest age, and one histogram of all."""
    latency = Histogram()
    for part in parts:
        latency.merge(_histogram_of(part.latency))
    waiting_s = [part.lag_s for part in parts if part.lag]
    known_s = [age_s for age_s in waiting_s if age_s is not None]
    return SubscriptionStats(
        channel=channel, partition=None, name=name, state=state, position=position,
        saved_position=None if name is None else sum([part.saved_position or 0 for part in parts]),
        lag=sum([part.lag for part in parts]), lag_s=max(known_s) if known_s else None if waiting_s else 0.0,
        latency=latency.stats(), last_error=last_error or next((p.last_error for p in parts if p.last_error), ""),
        **{field: sum([getattr(part, field) for part in parts]) for field in _SUMS},
    )  # fmt: skip


_SUMS = (
    "delivered",
    "failed",
    "retries",
    "timeouts",
    "dead_letters",
    "dropped",
    "expired",
    "filtered",
    "passed_over",
    "missing",
    "position_errors",
)


def _histogram_of(summary: LatencyStats) -> Histogram:
    histogram = Histogram()
    for le_us, count in summary.buckets:
        histogram.counts[_bucket(le_us)] += count
    histogram.sum_us, histogram.max_us = round(summary.mean_ms * summary.count * 1000), round(summary.max_ms * 1000)
    return histogram
