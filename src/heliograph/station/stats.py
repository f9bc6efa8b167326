"""A station's numbers. Every field is described in docs/operations.md."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable

import msgspec

from heliograph.delivery.statistics import Histogram, LatencyStats, SubscriptionStats
from heliograph.station.info import PartitionStats, QueueInfo
from heliograph.station.links import LifetimeInfo


class ChannelStats(msgspec.Struct, frozen=True, kw_only=True):
    """One channel. Counts begin at zero when this process opened the station."""

    channel: str
    published: int
    """Messages published by this process."""
    published_bytes: int
    """Bytes of their bodies."""
    publish_rate: float
    """Messages a second published by this process, since the last look."""
    refused: int
    """Publishes that failed: too large, busy, disk full."""
    publish_latency: LatencyStats
    """From the call of publish to its return, in this process."""
    messages: int
    """Messages in the log, of all partitions."""
    bytes: int
    """Bytes on disk, of all partitions."""
    growth_rate: float
    """Messages a second appended by all processes, since the last look."""
    dead_letters: int
    """Messages waiting in its dead-letter channel."""
    partitions: list[PartitionStats]
    """Each partition."""


class StationStats(msgspec.Struct, frozen=True, kw_only=True):
    """A station at one moment."""

    name: str
    path: str
    uptime_s: float
    """Since this process opened it."""
    durability: str
    """The setting storage.durability."""
    open_partitions: int
    """Partitions whose files are open in this process."""
    pending_bytes: int
    """Bytes that wait for the disk in this process."""
    trimmed_messages: int
    """Messages deleted by retention in this process."""
    trimmed_unread: int
    """Of those, messages that some subscription had not read, counted once per subscription."""
    compacted_messages: int
    """Messages taken out by this process because a newer one has their key, or because they deleted it."""
    compacted_bytes: int
    """By how much that made its segments smaller."""
    scheduled: int
    """Messages that wait for their time; -1 if the schedule cannot be read."""
    scheduled_failed: int
    """Of those, messages that were due and could not be delivered yet; `helio schedule list` says why."""
    requests_waiting: int
    """Requests of this process that wait for their replies."""
    late_replies: int
    """Replies that came when nobody waited for them any more, or a second time."""
    audit_failures: int
    """Audit records that could not be written."""
    channels: list[ChannelStats]
    """Each channel."""
    subscriptions: list[SubscriptionStats]
    """Each partition of each live subscription of this process."""
    queues: list[QueueInfo]
    """Each queue, whoever works for it."""
    certificates: list[LifetimeInfo]
    """Certificate, CAs and revocation lists of the links, as whoever runs them has them; empty without links."""


class ChannelMeter:
    """Counts of one channel. Updated without a lock: a lost count in a race is no lost message."""

    __slots__ = ("_growth", "_published", "bytes", "latency", "published", "refused")

    def __init__(self) -> None:
        self.published = 0
        self.bytes = 0
        self.refused = 0
        self.latency = Histogram()
        self._published = Rate()
        self._growth = Rate()

    def publish_rate(self) -> float:
        """Messages a second published by this process."""
        return self._published.rate(self.published)

    def growth_rate(self, following: int) -> float:
        """Messages a second appended by all processes."""
        return self._growth.rate(following)


class Rate:
    """How fast a counter grows between two looks at least a second apart.

    >>> rate = Rate()
    >>> rate.rate(10, now_s=0.0), rate.rate(30, now_s=2.0)
    (0.0, 10.0)
    """

    __slots__ = ("_count", "_rate", "_since_s")

    def __init__(self) -> None:
        self._count = -1
        self._since_s = 0.0
        self._rate = 0.0

    def rate(self, count: int, now_s: float | None = None) -> float:
        """The rate, now that the counter stands at ``count``."""
        now_s = time.monotonic() if now_s is None else now_s
        if self._count < 0:
            self._count, self._since_s = count, now_s
        elif now_s - self._since_s >= 1.0:
            self._rate = (count - self._count) / (now_s - self._since_s)
            self._count, self._since_s = count, now_s
        return self._rate


class Meters:
    """The meters of all channels this process publishes to or looked at."""

    def __init__(self) -> None:
        self._meters: dict[str, ChannelMeter] = {}
        self._lock = threading.Lock()

    def of(self, channel: str) -> ChannelMeter:
        """The channel's meter."""
        found = self._meters.get(channel)
        if found is None:
            with self._lock:
                found = self._meters.setdefault(channel, ChannelMeter())
        return found

    def forget(self, channels: Iterable[str]) -> None:
        """Channels that were deleted."""
        for channel in channels:
            self._meters.pop(channel, None)
