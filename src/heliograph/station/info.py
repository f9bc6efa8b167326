"""What a station tells about its channels and subscriptions."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec

from heliograph.engine.port import Kind, MemberInfo
from heliograph.log.channel import ChannelSettings


class PartitionStats(msgspec.Struct, frozen=True, kw_only=True):
    """One partition of a channel."""

    partition: int
    first: int
    """Smallest offset that is left."""
    next: int
    """The offset the next message gets."""
    messages: int
    """Offsets between the two."""
    bytes: int
    """What its segments take on disk."""
    segments: int
    """Segment files."""
    unsynced_bytes: int
    """Written but not known to be on disk."""
    fenced: bool
    """A sync failed; publishing is refused until it is repaired."""


class ChannelInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A channel as it is now. ``settings`` are its own; None means the station's.

    ``first`` and ``next`` are offsets if it has one partition; with several they are sums, and ``parts`` has each.
    """

    name: str
    incarnation: str
    partitions: int
    first: int
    next: int
    messages: int
    bytes: int
    segments: int
    created: datetime
    settings: ChannelSettings
    fenced: bool
    parts: list[PartitionStats]


class SubscriptionInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Where a durable subscription stands in one partition, whether somebody is subscribed now or not."""

    channel: str
    name: str
    partition: int
    offset: int
    lag: int
    lag_s: float | None
    live: bool
    saved: datetime | None
    kind: Kind = "plain"


class WorkerInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One worker of a queue."""

    name: str
    """The number of its process, and something random."""
    live: bool
    """Whether it is there; what a dead one held is handed to others at once."""
    leases: int
    """How many messages it has."""


class LeaseInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A message of a queue that was handed out and is not acknowledged."""

    partition: int
    """Its partition."""
    offset: int
    """Its place."""
    deliveries: int
    """How often it was handed out."""
    state: str
    """"leased", "delayed" (given back, until its time comes) or "visible" (whoever asks next gets it)."""
    worker: str | None
    """Who has it."""
    left_s: float
    """Until the lease runs out, or the delay is over."""


class QueueInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A queue as it is now, whoever works for it."""

    channel: str
    """Its channel."""
    name: str
    """Its name."""
    depth: int
    """Messages that wait to be handed out, delayed ones included."""
    in_flight: int
    """Messages that are leased to workers."""
    delayed: int
    """Messages given back that wait for their time."""
    oldest_s: float | None
    """Age of the oldest message that is not acknowledged; None when there is none."""
    visibility_s: float
    """How long a lease lasts unless it is extended."""
    max_in_flight: int
    """Most messages that are leased at once."""
    max_deliveries: int
    """How often a message is handed out before it becomes a dead letter."""
    workers: list[WorkerInfo]
    """Who works for it, in all processes, and dead ones that still hold something."""
    leases: list[LeaseInfo]
    """What is on its way, the oldest first; only for one queue, and no more than a thousand."""


class TypeInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One version of the JSON Schema under which a type was published to a channel."""

    channel: str
    type: str
    version: int
    schema: dict[str, Any]
    created: datetime


class ProducerInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A producer that a channel remembers. ``last`` is the number of its last message as of its last checkpoint."""

    channel: str
    producer: str
    epoch: int
    last: int


class GroupPartition(msgspec.Struct, frozen=True, kw_only=True):
    """One partition of a group: who delivers it, and how far it has come. ``worker`` is None while nobody does."""

    partition: int
    worker: str | None
    offset: int
    lag: int
    lag_s: float | None


class GroupInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A group, whether somebody works for it now or not."""

    channel: str
    name: str
    members: list[MemberInfo]
    partitions: list[GroupPartition]
    lag: int


class SeekResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a seek did, or would do.

    Of several partitions, ``before``, ``after`` and ``lag`` are sums and ``partition`` is None; ``parts`` has each.
    """

    channel: str
    name: str
    partition: int | None
    before: int
    after: int
    lag: int
    applied: bool
    parts: list[SeekResult] = []


class Trimmed(msgspec.Struct, frozen=True, kw_only=True):
    """What retention deleted from one channel."""

    channel: str
    partition: int
    segments: int
    messages: int
    bytes: int
    first: int
    unread: dict[str, int]
    """Messages that each subscription loses unread."""
