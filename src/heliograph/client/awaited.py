"""A client for asyncio: publishes to a hub and reads from it, without a data directory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Generator, Iterable, Mapping
from types import TracebackType
from typing import Any, Self

from heliograph.arguments import check_seconds
from heliograph.client.answering import Answers, Handler, awaiting
from heliograph.client.asker import Asker
from heliograph.client.drafting import Drafting
from heliograph.client.keeper import Keeper, address_of
from heliograph.client.many import Many
from heliograph.client.options import Options, Span
from heliograph.client.pages import Merged, OnGap, Pages, Start, open_pages, plainly, unfailing
from heliograph.client.queues import AsyncClientQueue
from heliograph.client.settings import TlsLike, tls_files
from heliograph.client.staging import AsyncStaging
from heliograph.client.subscription import AsyncClientSubscription, Reading
from heliograph.client.worker import AwaitingWorker, Workers
from heliograph.delivery.invoke import check_handler
from heliograph.delivery.retry import Retry
from heliograph.errors import InvalidMessage, InvalidName
from heliograph.federation.asking import CHANNELS, Channels, Which
from heliograph.message import Draft, HeaderValue, Message, Receipt
from heliograph.names import check_name
from heliograph.patterns import is_pattern
from heliograph.payloads import Payloads
from heliograph.station.requests import ERROR_TYPE, Duration, failure, seconds
from heliograph.station.requests import TIMEOUT_S as REPLY_TIMEOUT_S

TIMEOUT_S = 30.0


class AsyncClient:
    """A connection to a hub that is made again when it is lost. Use it in one event loop; made by ``connect_async``."""

    def __init__(self, keeper: Keeper, asker: Asker, workers: Workers, name: str, service: str) -> None:
        self._keeper = keeper
        self._asker = asker
        self.workers = workers
        self.name = name
        """Who this client is, by its certificate."""
        self._payloads = Payloads()
        self._drafting = Drafting(name, service, self._payloads)
        self.answers = Answers(asker, self._drafting)
        self._subscriptions: set[AsyncClientSubscription] = set()
        self._queues: set[AsyncClientQueue] = set()

    @property
    def hub(self) -> str:
        """The hub's name, by its certificate."""
        return self._keeper.hub

    @property
    def timeout_s(self) -> float:
        """How long to wait for a connection."""
        return self._asker.timeout_s

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

        After a cut it is sent again, and stored once. If no answer came within the timeout, or before the client was
        closed, OutcomeUnknown is raised; Unreachable, or StationClosed, if it was never sent.
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
        if is_pattern(channel):
            raise InvalidName(
                f"'{channel}' is not a channel name but a pattern, and a hub is read one channel at a time: name one. "
                "Subscriptions take patterns ('helio sub'), and so does reading a station"
            )
        return await open_pages(
            self._asker.ask, check_name(channel), start, end, partition, self.decoder, on_gap, follow=follow
        )

    def decoder(self) -> Any:
        """How payloads of registered types are decoded; None if there are none."""
        return self._payloads.decoder if self._payloads.registered else None

    async def subscribe(
        self, channel: str, handler: Handler, *, name: str | None = None, group: bool = False, queue: bool = False,
        start: Start = "new", concurrency: int = 1, retry: Retry | None = None, on_gap: OnGap | None = None,
        visibility_s: Span | None = None, max_in_flight: int | None = None, max_deliveries: int | None = None,
    ) -> AsyncClientSubscription:  # fmt: skip
        """Call the handler, a function or a coroutine function, for each new message until it is closed.

        Without a name: what is published after this returned is delivered; after a cut it goes on behind the last
        message it had. The channel may be a pattern. With a ``name`` the hub keeps the place, as for a durable
        subscription of its own; with ``group=True`` or ``queue=True`` this is one of any number of workers, at the hub
        and at other clients: see :meth:`Station.subscribe`.
        """
        options = Options(
            name=name, group=group, queue=queue, start=start, concurrency=concurrency, retry=retry,
            visibility_s=visibility_s, max_in_flight=max_in_flight, max_deliveries=max_deliveries,
        )  # fmt: skip
        return await self._subscribe(channel, handler, options, on_gap, answers=False)

    async def _subscribe(
        self, channel: str, handler: Handler, options: Options, on_gap: OnGap | None, *, answers: bool
    ) -> AsyncClientSubscription:
        check_handler(handler)
        ask = options.work(channel, self.workers.number(), answers=answers)
        found: AsyncClientSubscription
        if ask is None:
            source = await self.follow(channel, options.start, on_gap)
            found = Reading(channel, source, handler)
        else:
            found = AwaitingWorker(self.workers, ask, self.decoder, on_gap, handler)
            await found.start(self.timeout_s)
        self._subscriptions = {*(one for one in self._subscriptions if one.live), found}
        return found

    async def follow(self, channel: str, start: Start, on_gap: OnGap | None) -> Pages | Merged | Many:
        """What a plain subscription reads, a page at a time."""
        on_gap = None if on_gap is None else unfailing(on_gap)
        if not is_pattern(channel):
            return await self.pages(channel, start, None, None, follow=True, on_gap=on_gap)

        async def open_one(name: str, later: bool) -> Pages | Merged:
            return await self.pages(name, "first" if later else start, None, None, follow=True, on_gap=on_gap)

        many = Many(channel, self._matching, open_one)
        await many.begin()
        return many

    async def request(
        self, channel: str, data: Any = None, *, timeout: Duration = REPLY_TIMEOUT_S,  # noqa: ASYNC109 - as below
        type: str | None = None, key: str | None = None, headers: Mapping[str, HeaderValue] | None = None,
        correlation_id: str | None = None, subject: str | None = None,
    ) -> Message:  # fmt: skip
        """Publish a request at the hub and wait for its reply, from whoever answers there; see ``Station.request``.

        ReplyTimeout if none came in time; ReplyFailed if the handler gave up. The right to publish is all it needs.
        """
        timeout_s = seconds(timeout)
        common = Draft(type=type, key=key, headers=headers, correlation_id=correlation_id, subject=subject)
        if headers and not {"replyto", "replyfor"}.isdisjoint(headers):
            raise InvalidMessage("the headers 'replyto' and 'replyfor' of a request are set by the hub")
        lines, ids = self._drafting.events(channel, [data], common, None)
        place, line = await self._asker.request(channel, lines[0], ids[0], timeout_s)
        reply = plainly(line, place.offset, place.partition, self.decoder())
        if reply.type == ERROR_TYPE:
            raise failure(reply)
        return reply

    async def reply(
        self, channel: str, handler: Handler, *, name: str | None = None, on_gap: OnGap | None = None, **options: Any
    ) -> AsyncClientSubscription:
        """Answer the requests of a channel of the hub with what ``handler`` returns (a Draft, to say more than data).

        A subscription in every respect, with the options of :meth:`subscribe`; ``reply`` of the hub's rules allows it.
        """
        said = Options(name=name, **options)
        answering = awaiting(handler, self.answers, alone=name is None)
        check_handler(handler)
        return await self._subscribe(channel, answering, said, on_gap, answers=True)

    async def queue(
        self, channel: str, name: str, *, start: Start = "new", visibility_s: Span | None = None,
        max_in_flight: int | None = None, max_deliveries: int | None = None,
    ) -> AsyncClientQueue:  # fmt: skip
        """Become a worker of a queue of the hub and pull its messages; see :meth:`Station.queue`."""
        options = Options(
            name=name, queue=True, start=start, visibility_s=visibility_s, max_in_flight=max_in_flight,
            max_deliveries=max_deliveries,
        )  # fmt: skip
        ask = options.pull(channel, self.workers.number())
        found = AsyncClientQueue(self.workers, self._asker, ask, self.decoder, self._queues.discard)
        await found.open()
        self._queues.add(found)
        return found

    def staging(self) -> AsyncStaging:
        """Lay messages aside at the hub until all of a batch are published, once: what Spark's sink is made of."""
        return AsyncStaging(self._asker)

    async def channels(self) -> list[str]:
        """The names of the hub's channels that this client may read."""
        return await self._matching("")

    async def _matching(self, pattern: str) -> list[str]:
        found: Channels = (await self._asker.ask(CHANNELS, Which(pattern=pattern), Channels))[0]
        return found.names

    async def close(self) -> None:
        """End the subscriptions, and leave."""
        try:
            for subscription in list(self._subscriptions):
                await subscription.close()
            for queue in list(self._queues):
                await queue.close()
        finally:  # also if that is cancelled
            await self._keeper.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


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
    address, timeout_s = address_of(url), check_seconds("timeout", timeout_s)
    files = await asyncio.to_thread(tls_files, tls)
    workers = Workers()
    keeper = workers.keeper = Keeper(address, files, workers.called)
    try:
        await keeper.line(asyncio.get_running_loop().time() + timeout_s)
    except BaseException:
        await keeper.close()
        raise
    return AsyncClient(keeper, Asker(keeper, timeout_s), workers, files.name, service)
