"""Subscriptions of a client for asyncio; the plain one reads what comes, and nobody else knows how far it is."""

from __future__ import annotations

import asyncio
import inspect
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final, Protocol

from heliograph.errors import Busy, HeliographError, StationClosed, StorageError
from heliograph.message import Message

logger = logging.getLogger("heliograph.client")
Handler = Callable[[Message], Any]
PASSING: Final = (ConnectionError, Busy, StorageError)
"""What goes away by itself, or when somebody looks after the hub."""
AGAIN_S: Final = 0.5
"""How soon a hub is asked again that could not answer."""
CLOSE_S: Final = 10.0
"""How long a handler has time to return when its subscription is closed."""


class TooMany(Busy):
    """More channels than one subscription reads at once."""


class Source(Protocol):
    """Where messages come from."""

    async def next(self) -> list[Message]:
        """Some more; none if nothing came for a while."""


class AsyncClientSubscription(ABC):
    """Calls a handler for each message. Made by ``AsyncClient.subscribe``.

    A plain one: in order; one that fails is logged and counted, and the next one comes. A worker of a group or queue:
    as the hub's own workers.
    """

    def __init__(self, channel: str, name: str | None = None) -> None:
        self.channel = channel
        self.name = name
        """The name of the group, queue or durable subscription; None for a plain one."""
        self.delivered = 0
        self.failed = 0
        self.error: HeliographError | None = None
        """Why it ended by itself: the hub does not allow it any more, for example."""

    @property
    @abstractmethod
    def live(self) -> bool:
        """Whether it goes on."""

    @abstractmethod
    async def close(self, timeout_s: float = CLOSE_S) -> None:
        """End it. The handler of a plain subscription is cancelled; a worker has some time to finish its message."""


class Reading(AsyncClientSubscription):
    """A plain subscription."""

    def __init__(self, channel: str, source: Source, handler: Handler) -> None:
        super().__init__(channel)
        self._source = source
        self._handler = handler
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        try:
            while True:
                for message in await next_page(self._source, self.channel):
                    await self._deliver(message)
        except StationClosed:
            pass
        except HeliographError as error:
            self.error = error
            logger.error("the subscription of '%s' ended: %s", self.channel, error)

    async def _deliver(self, message: Message) -> None:
        if expired(message) or is_for_another(message):
            return
        try:
            result = self._handler(message)
            if inspect.isawaitable(result):
                await result
            self.delivered += 1
        except (Exception, asyncio.CancelledError) as error:
            if is_ours(error):
                raise
            self.failed += 1
            logger.exception("the handler of '%s' failed with offset %d", self.channel, message.offset)

    @property
    def live(self) -> bool:
        """Whether it goes on."""
        return not self._task.done()

    async def close(self, timeout_s: float = CLOSE_S) -> None:  # noqa: ARG002 - a plain one finishes nothing
        """End it. A handler in the middle of a message is cancelled."""
        if self._task is not asyncio.current_task():
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)


def is_ours(error: BaseException) -> bool:
    """Whether it is this task that is cancelled, and not something that a handler waited for: that is a failure."""
    task = asyncio.current_task()
    return isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling() > 0


def expired(message: Message) -> bool:
    """Whether it is not worth delivering any more."""
    return message.expires is not None and message.expires <= datetime.now(UTC)


def is_for_another(message: Message) -> bool:
    """Whether it was redriven for a subscription with a name, which a plain one is not."""
    return message.redrivefor is not None and not message.redrivefor.means(None)


async def next_page(source: Source, channel: str) -> list[Message]:
    """Some more messages, however long the hub is away, or its disk does not work."""
    said = ""
    while True:
        try:
            return await source.next()
        except TooMany:
            raise
        except PASSING as error:
            if str(error) != said:
                said = str(error)
                logger.warning("'%s' waits for the hub: %s", channel, error)
            if not isinstance(error, ConnectionError):  # which has taken its time already
                await asyncio.sleep(AGAIN_S)
