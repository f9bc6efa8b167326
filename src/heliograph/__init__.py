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

if sys.platform == "win32":  # pragma: no cover
    raise ImportError(
        "Heliograph runs on Linux and macOS. Windows is not supported: it lacks the file locks and shared memory "
        "that keep several processes from losing each other's messages. WSL 2 works."
    )

from heliograph.config import Config
from heliograph.context import correlation, service
from heliograph.delivery import Retry, Subscription, SubscriptionStats
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
    PayloadMismatch,
    ReadOnly,
    ReplyFailed,
    ReplyTimeout,
    RetryLater,
    StationClosed,
    StorageError,
    SubscriptionBusy,
    UnsupportedFormat,
    WrongStation,
)
from heliograph.filters import Filter
from heliograph.message import Draft, Gap, Message, Receipt
from heliograph.station import Station
from heliograph.station import open_station as open
from heliograph.station.info import ChannelInfo, SeekResult, SubscriptionInfo, Trimmed
from heliograph.station.stats import StationStats
from heliograph.station.wildcards import WildcardSubscription

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """Load the asyncio side when it is first used: asyncio alone doubles the time of an import."""
    if name in ("AsyncStation", "AsyncSubscription", "open_async"):
        from heliograph import aio

        return getattr(aio, name)
    raise AttributeError(f"module 'heliograph' has no attribute {name!r}")


__all__ = [
    "AlreadyExists",
    "AsyncStation",
    "AsyncSubscription",
    "Busy",
    "ChannelInfo",
    "Config",
    "ConfigError",
    "Damaged",
    "DiskFull",
    "Draft",
    "Fenced",
    "Filter",
    "Forked",
    "Gap",
    "HeliographError",
    "InvalidMessage",
    "InvalidName",
    "Message",
    "MessageTooLarge",
    "NotFound",
    "OutcomeUnknown",
    "PayloadMismatch",
    "ReadOnly",
    "Receipt",
    "ReplyFailed",
    "ReplyTimeout",
    "Retry",
    "RetryLater",
    "SeekResult",
    "Station",
    "StationClosed",
    "StationStats",
    "StorageError",
    "Subscription",
    "SubscriptionBusy",
    "SubscriptionInfo",
    "SubscriptionStats",
    "Trimmed",
    "UnsupportedFormat",
    "WildcardSubscription",
    "WrongStation",
    "correlation",
    "open",
    "open_async",
    "service",
]
