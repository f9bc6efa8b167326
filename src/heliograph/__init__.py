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
    from heliograph.delivery.queues import Job, Queue, QueueSettings
    from heliograph.delivery.queues.awaited import AsyncJob, AsyncQueue

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
    LeaseLost,
    MessageTooLarge,
    NotFound,
    OutcomeUnknown,
    PayloadMismatch,
    ReadOnly,
    RetryLater,
    StationClosed,
    StorageError,
    SubscriptionBusy,
    UnsupportedFormat,
    WrongStation,
)
from heliograph.message import Draft, Gap, Message, Receipt
from heliograph.station import Station
from heliograph.station import open_station as open
from heliograph.station.info import ChannelInfo, LeaseInfo, QueueInfo, SeekResult, SubscriptionInfo, Trimmed, WorkerInfo
from heliograph.station.stats import StationStats

__version__ = "0.1.0"


_LATER = {  # asyncio alone doubles the time of an import, and SQLite takes its own
    "AsyncJob": "heliograph.delivery.queues.awaited",
    "AsyncQueue": "heliograph.delivery.queues.awaited",
    "AsyncStation": "heliograph.aio",
    "AsyncSubscription": "heliograph.aio",
    "Job": "heliograph.delivery.queues",
    "Queue": "heliograph.delivery.queues",
    "QueueSettings": "heliograph.delivery.queues",
    "open_async": "heliograph.aio",
}


def __getattr__(name: str) -> Any:
    """Load what not everybody needs when it is first used."""
    if name in _LATER:
        from importlib import import_module

        return getattr(import_module(_LATER[name]), name)
    raise AttributeError(f"module 'heliograph' has no attribute {name!r}")


__all__ = [
    "AlreadyExists",
    "AsyncJob",
    "AsyncQueue",
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
    "Forked",
    "Gap",
    "HeliographError",
    "InvalidMessage",
    "InvalidName",
    "Job",
    "LeaseInfo",
    "LeaseLost",
    "Message",
    "MessageTooLarge",
    "NotFound",
    "OutcomeUnknown",
    "PayloadMismatch",
    "Queue",
    "QueueInfo",
    "QueueSettings",
    "ReadOnly",
    "Receipt",
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
    "WorkerInfo",
    "WrongStation",
    "correlation",
    "open",
    "open_async",
    "service",
]
