"""The messages of all channels of a hub that a pattern means, also of those that are made later.

Each channel is asked for by itself, and asked again only when what it gave was taken: memory is bounded.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from heliograph.client.pages import Merged, Pages
from heliograph.client.subscription import PASSING, TooMany
from heliograph.errors import NotAllowed, NotFound
from heliograph.message import Message
from heliograph.patterns import Pattern

CHANNELS_MAX: Final = 64
"""Most channels of one pattern: each has a request at the hub that waits."""
LOOK_S: Final = 1.0
"""How often new channels are looked for."""

OpenPages = Callable[[str, bool], Awaitable[Pages | Merged]]
"""``(channel, later)``: the messages of a channel, which was made later than the subscription or not."""


class Many:
    """Some channels, as they come."""

    def __init__(self, pattern: str, channels: Callable[[str], Awaitable[list[str]]], open_pages: OpenPages) -> None:
        self._pattern = Pattern(pattern).text
        self._channels = channels
        self._open = open_pages
        self._pages: dict[str, Pages | Merged] = {}
        self._forbidden: dict[str, Pages | Merged] = {}  # they go on where they stood when they are allowed again
        self._fetching: dict[asyncio.Task[list[Message]], str] = {}
        self._look_at = 0.0
        self._loop = asyncio.get_running_loop()

    async def begin(self) -> None:
        """Open what there is now."""
        await self._look(later=False)

    async def _look(self, *, later: bool) -> None:
        names = await self._channels(self._pattern)
        if len(names) > CHANNELS_MAX:
            raise TooMany(
                f"'{self._pattern}' means {len(names)} channels; a client reads at most {CHANNELS_MAX} at once. "
                "Say it more narrowly, or use a station with a link"
            )
        for name in names:
            if name not in self._pages:
                before = self._forbidden.pop(name, None)
                self._pages[name] = before or await self._open(name, later)
        self._look_at = self._loop.time() + LOOK_S

    async def next(self) -> list[Message]:
        """Some more; none if nothing came for a while. PASSING: ask again; anything else is the end."""
        try:
            return await self._next()
        except BaseException as error:
            if isinstance(error, TooMany) or not isinstance(error, PASSING):
                self._end()
            raise

    async def _next(self) -> list[Message]:
        if self._loop.time() >= self._look_at:
            await self._look(later=True)
        asked = set(self._fetching.values())
        for name, pages in self._pages.items():
            if name not in asked:
                self._fetching[self._loop.create_task(pages.next())] = name
        if not self._fetching:
            await asyncio.sleep(LOOK_S)
            return []
        done, _ = await asyncio.wait(self._fetching, timeout=LOOK_S, return_when=asyncio.FIRST_COMPLETED)
        messages: list[Message] = []
        failed: Exception | None = None
        for task in done:
            name = self._fetching.pop(task)
            try:
                messages += task.result()
            except NotAllowed:  # any more; the others go on
                self._forbidden[name] = self._pages.pop(name)
            except NotFound:
                self._pages.pop(name, None)
            except Exception as error:  # noqa: BLE001 - raised below, when what came is taken
                failed = error
        if failed is not None and not messages:
            raise failed
        return messages

    def _end(self) -> None:
        """The subscription is closed: ask for nothing any more."""
        for task in self._fetching:
            task.cancel()
            task.add_done_callback(lambda one: one.cancelled() or one.exception())  # nobody else looks at it
        self._fetching.clear()
