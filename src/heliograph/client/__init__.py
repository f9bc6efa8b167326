"""Clients without a data directory: they publish to a hub, read from it, work for its groups and queues."""

from __future__ import annotations

try:
    from heliograph.client.awaited import AsyncClient, connect_async
    from heliograph.client.client import Client, connect
    from heliograph.client.queues import AsyncClientJob, AsyncClientQueue, ClientJob, ClientQueue
    from heliograph.client.subscription import AsyncClientSubscription
    from heliograph.client.threads import ClientSubscription
except ModuleNotFoundError as error:
    if (error.name or "").startswith("heliograph"):
        raise
    raise ImportError(f"clients need {error.name}, which is missing: pip install 'heliograph[hub]'") from None

__all__ = [
    "AsyncClient",
    "AsyncClientJob",
    "AsyncClientQueue",
    "AsyncClientSubscription",
    "Client",
    "ClientJob",
    "ClientQueue",
    "ClientSubscription",
    "connect",
    "connect_async",
]
