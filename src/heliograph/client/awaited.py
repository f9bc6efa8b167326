"""A client for asyncio: publishes to a hub and reads from it, without a data directory."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import AsyncIterator, Callable, Generator, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Any, Self

from heliograph.client.asker import Asker
from heliograph.client.drafting import Drafting
from heliograph.client.keeper import Keeper, address_of
from heliograph.client.pages import Merged, OnGap, Pages, Start, open_pages
from heliograph.client.settings import TlsLike, tls_files
from heliograph.errors import HeliographError, StationClosed
from heliograph.federation.asking import CHANNELS, Channels
from heliograph.message import Draft, HeaderValue, Message, Receipt
from heliograph.names import check_name
from heliograph.payloads import Payloads

logger = logging.getLogger("heliograph.client")
TIMEOUT_S = 30.0
Span = float | timedelta


class AsyncClient:
    """A connection to a hub that is made again when it is lost. Use it in one event loop; made by ``connect_async``."""

    def __init__(self, keeper: Keeper, asker: Asker, name: str, service: str) -> None:
        self._keeper = keeper
        self._asker = asker
        self.name = name
        """Who this client is, by its certificate."""
        self._payloads = Payloads()
        self._drafting = Drafting(name, service, self._payloads)
        self._subscriptions: set[AsyncClientSubscription] = set()

    @property
    def hub(self) -> str:
        """The hub's name, by its certificate."""
        return self._keeper.hub

    @property
    def connected(self) -> bool:
        """Whether there is a connection now; it is made again by itself."""
        return self._keeper.connected

    def register(self, type_name: str, cls: Any) -> None:
        """Say which class the payloads of a type are; as ``Station.register``, for this client."""
        self._payloads.register(type_name, cls)

    async def publish(
        self, channel: str, data: Any = None, *, type: str | None = None, key: str | None = None,
        headers: Mapping[str, HeaderValue] | None = None, correlation_id: str | None = None,
        subject: str | None = None, id: str | None = None, ttl: Span | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 - the same meaning as in the synchronous client
    ) -> Receipt:  # fmt: skip
        """Publish one message. When this returns, it is on the hub's disk.

        After a cut it is sent again, and stored once. If no answer came within the timeout, OutcomeUnknown is raised;
        Unreachable, if it was never sent.
        """
        common = Draft(type=type, key=key, headers=headers, correlation_id=correlation_id, subject=subject, id=id)
        lines, ids = self._drafting.events(channel, [data], common, ttl)
        return (await self._asker.publish(channel, lines, ids, timeout))[0]

    async def publish_many(
        self, channel: str, payloads: Iterable[Any], *, type: str | None = None, key: str | None = None,
        headers: Mapping[str, HeaderValue] | None = None, correlation_id: str | None = None,
        ttl: Span | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 - as above
    ) -> list[Receipt]:  # fmt: skip
        """Publish a batch, all of it or nothing. It must fit one frame: the hub's messages.max_bytes at least."""
        common = Draft(type=type, key=key, headers=headers, correlation_id=correlation_id)
        lines, ids = self._drafting.events(channel, payloads, common, ttl)
        return await self._asker.publish(channel, lines, ids, timeout) if lines else []

    async def read(
        self, channel: str, *, start: Start = "first", end: Start | None = None, partition: int | None = None,
        follow: bool = False, on_gap: OnGap | None = None,
    ) -> AsyncIterator[Message]:  # fmt: skip
        """Iterate over the messages of a channel, as ``Station.read``: up to what is there now, or ``follow``."""
        pages = await self.pages(channel, start, end, partition, follow=follow, on_gap=on_gap)
        while not pages.done:
            for message in await pages.next():
                yield message

    async def pages(
        self, channel: str, start: Start, end: Start | None, partition: int | None, *, follow: bool,
        on_gap: OnGap | None,
    ) -> Pages | Merged:  # fmt: skip
        """What ``read`` iterates over, a page at a time."""
        return await open_pages(
            self._asker.ask, check_name(channel), start, end, partition, self._decoder, on_gap, follow=follow
        )

    def _decoder(self) -> Any:
        return self._payloads.decoder if self._payloads.registered else None

    async def subscribe(
        self, channel: str, handler: Callable[[Message], Any], *, start: Start = "new", on_gap: OnGap | None = None
    ) -> AsyncClientSubscription:
        """Call the handler, a function or a coroutine function, for each new message until it is closed.

        What is published after this returned is delivered: after a cut it goes on behind the last message it had.
        """
        pages = await self.pages(channel, start, None, None, follow=True, on_gap=on_gap)
        found = AsyncClientSubscription(channel, pages, handler, self._subscriptions.discard)
        self._subscriptions.add(found)
        return found

    async def channels(self) -> list[str]:
        """The names of the hub's channels that this client may read."""
        found: Channels = (await self._asker.ask(CHANNELS, Channels(names=[]), Channels))[0]
        return found.names

    async def close(self) -> None:
        """End the subscriptions, and leave."""
        for subscription in list(self._subscriptions):
            await subscription.close()
        await self._keeper.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class AsyncClientSubscription:
    """Calls a handler for each message, in order; one that fails is logged and counted, and the next one comes."""

    def __init__(
        self, channel: str, pages: Pages | Merged, handler: Callable[[Message], Any],
        on_end: Callable[[AsyncClientSubscription], Any],
    ) -> None:  # fmt: skip
        self.channel = channel
        self.delivered = 0
        self.failed = 0
        self.error: HeliographError | None = None
        """Why it ended by itself: the hub does not allow it any more, for example."""
        self._pages = pages
        self._handler = handler
        self._on_end = on_end
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        try:
            while True:
                for message in await next_page(self._pages, self.channel):
                    await self._deliver(message)
        except StationClosed:
            pass
        except HeliographError as error:
            self.error = error
            logger.error("the subscription of '%s' ended: %s", self.channel, error)
        finally:
            self._on_end(self)

    async def _deliver(self, message: Message) -> None:
        if expired(message):
            return
        try:
            result = self._handler(message)
            if inspect.isawaitable(result):
                await result
            self.delivered += 1
        except Exception:
            self.failed += 1
            logger.exception("the handler of '%s' failed with offset %d", self.channel, message.offset)

    @property
    def live(self) -> bool:
        """Whether it goes on."""
        return not self._task.done()

    async def close(self) -> None:
        """End it. A handler in the middle of a message is cancelled."""
        if self._task is not asyncio.current_task():
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)


class _Connecting:
    """Awaitable and asynchronous context manager, so that both ``await`` and ``async with`` read naturally."""

    def __init__(self, url: str, tls: TlsLike | None, service: str, timeout: float) -> None:
        self._arguments = (url, tls, service, timeout)
        self._client: AsyncClient | None = None

    def __await__(self) -> Generator[Any, None, AsyncClient]:
        return open_client(*self._arguments).__await__()

    async def __aenter__(self) -> AsyncClient:
        self._client = await self
        return self._client

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._client is not None
        await self._client.close()


def connect_async(
    url: str, *, tls: TlsLike | None = None, service: str = "", timeout: float = TIMEOUT_S
) -> _Connecting:  # fmt: skip
    """Connect to a hub, for asyncio; see :func:`heliograph.connect`.

    ``async with hg.connect_async("wss://hub:7740", tls=…) as client: await client.publish("alerts", {…})``
    """
    return _Connecting(url, tls, service, timeout)


async def open_client(url: str, tls: TlsLike | None, service: str, timeout_s: float) -> AsyncClient:
    """A client that is connected."""
    address = address_of(url)
    files = await asyncio.to_thread(tls_files, tls)
    keeper = Keeper(address, files)
    try:
        await keeper.line(asyncio.get_running_loop().time() + timeout_s)
    except BaseException:
        await keeper.close()
        raise
    return AsyncClient(keeper, Asker(keeper, timeout_s), files.name, service)


def expired(message: Message) -> bool:
    """Whether it is not worth delivering any more."""
    return message.expires is not None and message.expires <= datetime.now(UTC)


async def next_page(pages: Pages | Merged, channel: str) -> list[Message]:
    """Some more messages, however long the hub is away."""
    while True:
        try:
            return await pages.next()
        except ConnectionError as error:
            logger.warning("'%s' waits for the hub: %s", channel, error)
