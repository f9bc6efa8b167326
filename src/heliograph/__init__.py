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
    from heliograph.aio import AsyncProducer, AsyncStation, AsyncStep, AsyncSubscription, open_async
    from heliograph.client import AsyncClient, Client, connect, connect_async
    from heliograph.config import Config
    from heliograph.delivery import Retry, Subscription, SubscriptionStats
    from heliograph.delivery.queues import Job, Queue, QueueSettings
    from heliograph.delivery.queues.awaited import AsyncJob, AsyncQueue
    from heliograph.engine.port import MemberInfo
    from heliograph.filters import Filter
    from heliograph.message import Draft, Gap, Message, Receipt
    from heliograph.opening import open_linked as open
    from heliograph.schedule.recurring import Schedule
    from heliograph.schedule.waiting import Scheduled
    from heliograph.station import Station
    from heliograph.station.atomic import Step
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
    from heliograph.station.producer import Producer
    from heliograph.station.stats import StationStats
    from heliograph.station.wildcards import WildcardSubscription

if sys.platform == "win32":  # pragma: no cover
    raise ImportError(
        "Heliograph runs on Linux and macOS. Windows is not supported: it lacks the file locks and shared memory "
        "that keep several processes from losing each other's messages. WSL 2 works."
    )

from heliograph.context import correlation, service
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
    InvalidArgument,
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

__version__ = "0.1.0"


_WHERE = {  # whoever imports this package pays for what is used of it: a module that catches Busy does not need a log
    "aio": "AsyncProducer AsyncStation AsyncStep AsyncSubscription open_async",
    "client": "AsyncClient Client connect connect_async",
    "config": "Config",
    "delivery": "Retry Subscription SubscriptionStats",
    "delivery.queues": "Job Queue QueueSettings",
    "delivery.queues.awaited": "AsyncJob AsyncQueue",
    "engine.port": "MemberInfo",
    "filters": "Filter",
    "message": "Draft Gap Message Receipt",
    "opening": "open",
    "schedule.recurring": "Schedule",
    "schedule.waiting": "Scheduled",
    "station": "Station",
    "station.atomic": "Step",
    "station.info": "ChannelInfo GroupInfo GroupPartition LeaseInfo ProducerInfo QueueInfo SeekResult SubscriptionInfo "
    "Trimmed TypeInfo WorkerInfo",
    "station.links": "LinkInfo LinkSync",
    "station.producer": "Producer",
    "station.stats": "StationStats",
    "station.wildcards": "WildcardSubscription",
}
_LATER = {name: f"heliograph.{module}" for module, names in _WHERE.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    """Load what is used, when it is first used."""
    if name not in _LATER:
        raise AttributeError(f"module 'heliograph' has no attribute {name!r}")
    from importlib import import_module

    found = getattr(import_module(_LATER[name]), "open_linked" if name == "open" else name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    """What completion offers."""
    return __all__


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
    "InvalidArgument",
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
