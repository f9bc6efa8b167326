"""What a station tells about its channels and subscriptions."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec

from heliograph.engine.port import Kind, MemberInfo
from heliograph.log.channel import ChannelSettings
from heliograph.station.stats import PartitionStats


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


class TypeInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One version of the JSON Schema under which a type was published to a channel."""

    channel: str
    type: str
    version: int
    schema: dict[str, Any]
    created: datetime


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
