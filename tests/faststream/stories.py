"""What the tests of the FastStream broker have in common: a broker on a real directory, and patience."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import heliograph as hg
from heliograph.faststream import HeliographBroker

PATIENCE_S = 60.0
QUICK = hg.Retry(max_retries=2, base_s=0.001, max_s=0.001)


def run(story: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(PATIENCE_S):
            await story()

    asyncio.run(bounded())


def at(root: Path, **arguments: Any) -> HeliographBroker:
    """A broker that does not print."""
    return HeliographBroker(root, name="host1", logger=None, durability="os", **arguments)


async def eventually(condition: Callable[[], object]) -> None:
    while not condition():  # noqa: ASYNC110 - it is about what the broker does, which knows no such event
        await asyncio.sleep(0.005)


async def letters(broker: HeliographBroker, channel: str) -> list[dict[str, Any]]:
    """The dead letters of a channel, when there is at least one."""
    while True:
        try:
            found = [message.data async for message in broker.station.read(f"{channel}.dead-letter")]
        except hg.NotFound:
            found = []
        if found:
            return found
        await asyncio.sleep(0.005)


async def position(broker: HeliographBroker, channel: str, name: str) -> int:
    """How far a durable subscription is."""
    return next(info.offset for info in await broker.station.subscriptions(channel) if info.name == name)
