"""The event loop of the links, which has a thread of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any


def on_loop_error(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Of a handshake that failed whoever accepts or dials is told, too, and says why in a line."""
    if context.get("message") != "SSL handshake failed":
        loop.default_exception_handler(context)


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop where it is installed."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop
