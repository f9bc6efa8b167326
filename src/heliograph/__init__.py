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
    from heliograph.client import AsyncClient, Client, connect, connect_async
    from heliograph.delivery.queues import Job, Queue, QueueSettings
    from heliograph.delivery.queues.awaited import AsyncJob, AsyncQueue
    from heliograph.schedule.recurring import Schedule
    from heliograph.schedule.waiting import Scheduled
    from heliograph.station.atomic import Step
    from heliograph.station.producer import Producer
    from heliograph.station.wildcards import WildcardSubscription

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
    CertificateError,
    ConfigError,
    Damaged,
    DiskFull,
    Fenced,
    Forked,
    HeliographError,
    Incomplete,
    InvalidMessage,
    InvalidName,
    LeaseLost,
    MessageTooLarge,
    NotAllowed,
    NotFound,
    OutcomeUnknown,
    OutOfSequence,
    PayloadMismatch,
    ProducerFenced,
    ReadOnly,
    Reject,
    ReplyFailed,
    ReplyTimeout,
    RetryLater,
    SchemaConflict,
    StationClosed,
    StorageError,
    SubscriptionBusy,
    Unreachable,
    UnsupportedFormat,
    WrongStation,
)
from heliograph.filters import Filter
from heliograph.message import Draft, Gap, Message, Receipt
from heliograph.opening import open_linked as open
from heliograph.station import Station
from heliograph.station.info import (
    ChannelInfo,
    GroupInfo,
    GroupPartition,
    LeaseInfo,
    ProducerInfo,
    QueueInfo,
    SeekResult,
    SubscriptionInfo,
    Trimmed,
    TypeInfo,
    WorkerInfo,
)
from heliograph.station.links import LinkInfo, LinkSync
from heliograph.station.stats import StationStats

__version__ = "0.1.0"


_LATER = {  # asyncio alone doubles the time of an import, SQLite takes its own, and the others are not for everybody
    "AsyncClient": "heliograph.client",
    "AsyncJob": "heliograph.delivery.queues.awaited",
    "AsyncProducer": "heliograph.aio",
    "AsyncQueue": "heliograph.delivery.queues.awaited",
    "AsyncStation": "heliograph.aio",
    "AsyncStep": "heliograph.aio",
    "AsyncSubscription": "heliograph.aio",
    "Client": "heliograph.client",
    "Job": "heliograph.delivery.queues",
    "Producer": "heliograph.station.producer",
    "Queue": "heliograph.delivery.queues",
    "QueueSettings": "heliograph.delivery.queues",
    "Schedule": "heliograph.schedule.recurring",
    "Scheduled": "heliograph.schedule.waiting",
    "Step": "heliograph.station.atomic",
    "WildcardSubscription": "heliograph.station.wildcards",
    "connect": "heliograph.client",
    "connect_async": "heliograph.client",
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
    "AsyncClient",
    "AsyncJob",
    "AsyncProducer",
    "AsyncQueue",
    "AsyncStation",
    "AsyncStep",
    "AsyncSubscription",
    "Busy",
    "CertificateError",
    "ChannelInfo",
    "Client",
    "Config",
    "ConfigError",
    "Damaged",
    "DiskFull",
    "Draft",
    "Fenced",
    "Filter",
    "Forked",
    "Gap",
    "GroupInfo",
    "GroupPartition",
    "HeliographError",
    "Incomplete",
    "InvalidMessage",
    "InvalidName",
    "Job",
    "LeaseInfo",
    "LeaseLost",
    "LinkInfo",
    "LinkSync",
    "MemberInfo",
    "Message",
    "MessageTooLarge",
    "NotAllowed",
    "NotFound",
    "OutOfSequence",
    "OutcomeUnknown",
    "PayloadMismatch",
    "Producer",
    "ProducerFenced",
    "ProducerInfo",
    "Queue",
    "QueueInfo",
    "QueueSettings",
    "ReadOnly",
    "Receipt",
    "Reject",
    "ReplyFailed",
    "ReplyTimeout",
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
    "Unreachable",
    "UnsupportedFormat",
    "WildcardSubscription",
    "WorkerInfo",
    "WrongStation",
    "connect",
    "connect_async",
    "correlation",
    "open",
    "open_async",
    "service",
]
