"""Clients without a data directory: they publish to a hub and read from it, and leave no trace there."""

from __future__ import annotations

try:
    from heliograph.client.awaited import AsyncClient, AsyncClientSubscription, connect_async
    from heliograph.client.client import Client, ClientSubscription, connect
except ModuleNotFoundError as error:
    if (error.name or "").startswith("heliograph"):
        raise
    raise ImportError(f"clients need {error.name}, which is missing: pip install 'heliograph[hub]'") from None

__all__ = [
    "AsyncClient",
    "AsyncClientSubscription",
    "Client",
    "ClientSubscription",
    "connect",
    "connect_async",
]
