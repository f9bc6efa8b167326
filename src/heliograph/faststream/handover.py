"""Messages for whoever fetches them one by one: ``subscriber.get_one()`` and ``async for message in subscriber``.

The station's handler offers a message and waits until it is known what became of it.
"""

from __future__ import annotations

import asyncio
from typing import Any

from faststream.message import AckStatus

from heliograph.delivery.invoke import GivenBack
from heliograph.faststream.message import Delivery
from heliograph.message import Draft


class Handover:
    """Between a subscription and one who fetches. Taking the next message acknowledges the last, unless ``manual``."""

    def __init__(self, *, manual: bool) -> None:
        self._manual = manual
        self._offered: asyncio.Queue[tuple[Any, Delivery] | None] = asyncio.Queue()
        self._taken: Delivery | None = None
        self._open: set[Delivery] = set()
        self._closed = False

    async def offer(self, message: Any) -> Draft:
        """The station's handler."""
        delivery = Delivery()
        if not self._closed:
            self._open.add(delivery)
            try:
                self._offered.put_nowait((message, delivery))
                await delivery.decided.wait()
            finally:
                self._open.discard(delivery)
        if delivery.verdict is None:
            raise GivenBack("the subscriber was stopped before the message was acknowledged")
        return delivery.end(None, manual=True)

    async def take(self, timeout_s: float | None) -> tuple[Any, Delivery] | None:
        """The next message; None when there is none in time, or will not be any."""
        last, self._taken = self._taken, None
        if last is not None and not self._manual:
            last.decide(AckStatus.ACKED)
        try:
            async with asyncio.timeout(timeout_s):
                found = await self._offered.get()
        except TimeoutError:
            return None
        if self._closed or found is None:
            self._offered.put_nowait(None)  # for whoever else waits
            return None
        self._taken = found[1]
        return found

    def close(self) -> None:
        """What is not acknowledged is delivered again next time."""
        self._closed = True
        for delivery in self._open:
            delivery.decided.set()
        self._offered.put_nowait(None)
