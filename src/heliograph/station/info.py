"""What a station tells about its channels and subscriptions."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec

from heliograph.log.channel import ChannelSettings


class ChannelInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A channel as it is now. ``settings`` are its own; None means the station's."""

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


class SubscriptionInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A durable subscription, whether somebody is subscribed now or not."""

    channel: str
    name: str
    partition: int
    offset: int
    lag: int
    lag_s: float | None
    live: bool
    saved: datetime | None


class TypeInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One version of the JSON Schema under which a type was published to a channel."""

    channel: str
    type: str
    version: int
    schema: dict[str, Any]
    created: datetime


class SeekResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a seek did, or would do."""

    channel: str
    name: str
    partition: int
    before: int
    after: int
    lag: int
    applied: bool


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
