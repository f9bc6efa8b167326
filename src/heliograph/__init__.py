"""Heliograph: durable, federated publish/subscribe for Python.

>>> import heliograph as hg, tempfile
>>> with hg.open(tempfile.mkdtemp(), name="host1") as station:
...     receipt = station.publish("alerts", {"message": "system problem!"})
...     [message.data["message"] for message in station.read("alerts")]
['system problem!']
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from heliograph.aio import AsyncStation, AsyncSubscription, open_async
    from heliograph.schedule.recurring import Schedule
    from heliograph.schedule.waiting import Scheduled

if sys.platform == "win32":  # pragma: no cover
    raise ImportError(
        "Heliograph runs on Linux and macOS. Windows is not supported: it lacks the file locks and shared memory "
        "that keep several processes from losing each other's messages. WSL 2 works."
    )

from heliograph.config import Config
from heliograph.context import correlation, service
from heliograph.delivery import Retry, Subscription, SubscriptionStats
from heliograph.engine.port import MemberInfo
from heliograph.errors import (
    AlreadyExists,
    Busy,
    ConfigError,
    Damaged,
    DiskFull,
    Fenced,
    Forked,
    HeliographError,
    InvalidMessage,
    InvalidName,
    MessageTooLarge,
    NotFound,
    OutcomeUnknown,
    OutOfSequence,
    PayloadMismatch,
    ProducerFenced,
    ReadOnly,
    RetryLater,
    SchemaConflict,
    StationClosed,
    StorageError,
    SubscriptionBusy,
    UnsupportedFormat,
    WrongStation,
)
from heliograph.message import Draft, Gap, Message, Receipt
from heliograph.station import Station
from heliograph.station import open_station as open
from heliograph.station.atomic import Step
from heliograph.station.info import (
    ChannelInfo,
    GroupInfo,
    GroupPartition,
    SeekResult,
    SubscriptionInfo,
    Trimmed,
    TypeInfo,
)
from heliograph.station.producer import Producer
from heliograph.station.stats import StationStats

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """Load the asyncio side when it is first used: asyncio alone doubles the time of an import."""
    if name in ("AsyncProducer", "AsyncStation", "AsyncStep", "AsyncSubscription", "open_async"):
        from heliograph import aio

        return getattr(aio, name)
    if name == "Scheduled":
        from heliograph.schedule.waiting import Scheduled

        return Scheduled
    if name == "Schedule":
        from heliograph.schedule.recurring import Schedule

        return Schedule
    raise AttributeError(f"module 'heliograph' has no attribute {name!r}")


__all__ = [
    "AlreadyExists",
    "AsyncProducer",
    "AsyncStation",
    "AsyncStep",
    "AsyncSubscription",
    "Busy",
    "ChannelInfo",
    "Config",
    "ConfigError",
    "Damaged",
    "DiskFull",
    "Draft",
    "Fenced",
    "Forked",
    "Gap",
    "GroupInfo",
    "GroupPartition",
    "HeliographError",
    "InvalidMessage",
    "InvalidName",
    "MemberInfo",
    "Message",
    "MessageTooLarge",
    "NotFound",
    "OutOfSequence",
    "OutcomeUnknown",
    "PayloadMismatch",
    "Producer",
    "ProducerFenced",
    "ReadOnly",
    "Receipt",
    "Retry",
    "RetryLater",
    "Schedule",
    "Scheduled",
    "SchemaConflict",
    "SeekResult",
    "Station",
    "StationClosed",
    "StationStats",
    "Step",
    "StorageError",
    "Subscription",
    "SubscriptionBusy",
    "SubscriptionInfo",
    "SubscriptionStats",
    "Trimmed",
    "TypeInfo",
    "UnsupportedFormat",
    "WrongStation",
    "correlation",
    "open",
    "open_async",
    "service",
]
