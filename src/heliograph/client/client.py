"""A client for threads: the same names and meaning as for asyncio, which runs in a thread of its own below."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from types import TracebackType
from typing import Any, Self

from heliograph.client.answering import Handler, in_threads
from heliograph.client.awaited import TIMEOUT_S, AsyncClient, open_client
from heliograph.client.options import Options, Span
from heliograph.client.pages import Merged, OnGap, Pages, Start
from heliograph.client.queues import ClientQueue
from heliograph.client.settings import TlsLike
from heliograph.client.staging import Staging
from heliograph.client.threads import (
    ClientSubscription,
    Hands,
    Loop,
    ReadingInThread,
    ThreadWorker,
    WorkingInThreads,
)
from heliograph.delivery.invoke import check_handler
from heliograph.delivery.retry import Retry
from heliograph.message import HeaderValue, Message, Receipt
from heliograph.station.requests import TIMEOUT_S as REPLY_TIMEOUT_S
from heliograph.station.requests import Duration


class Client:
    """A connection to a hub that is made again when it is lost. Safe to use from any number of threads."""

    def __init__(self, loop: Loop, inner: AsyncClient) -> None:
        self._loop = loop
        self._inner = inner
        self._subscriptions: set[ClientSubscription] = set()
        self._closed = False

    @property
    def name(self) -> str:
        """Who this client is, by its certificate."""
        return self._inner.name

    @property
    def hub(self) -> str:
        """The hub's name, by its certificate."""
        return self._inner.hub

    @property
    def connected(self) -> bool:
        """Whether there is a connection now; it is made again by itself."""
        return self._inner.connected

    def register(self, type_name: str, cls: Any) -> None:
        """Say which class the payloads of a type are; as ``Station.register``, for this client."""
        self._inner.register(type_name, cls)

    def publish(
        self, channel: str, data: Any = None, *, type: str | None = None, key: str | None = None,
        headers: Mapping[str, HeaderValue] | None = None, correlation_id: str | None = None,
        subject: str | None = None, id: str | None = None, ttl: Span | None = None, timeout: float | None = None,
    ) -> Receipt:  # fmt: skip
        """Publish one message. When this returns, it is on the hub's disk.

        After a cut it is sent again, and stored once. If no answer came within the timeout, or before the client was
        closed, OutcomeUnknown is raised; Unreachable, or StationClosed, if it was never sent.
        """
        return self._loop.run(
            self._inner.publish(
                channel, data, type=type, key=key, headers=headers, correlation_id=correlation_id, subject=subject,
                id=id, ttl=ttl, timeout=timeout,
            )
        )  # fmt: skip

    def publish_many(
        self, channel: str, payloads: Iterable[Any], *, type: str | None = None, key: str | None = None,
        headers: Mapping[str, HeaderValue] | None = None, correlation_id: str | None = None,
        ttl: Span | None = None, timeout: float | None = None,
    ) -> list[Receipt]:  # fmt: skip
        """Publish a batch, all of it or nothing. It must fit one frame: the hub's messages.max_bytes at least."""
        return self._loop.run(
            self._inner.publish_many(
                channel, payloads, type=type, key=key, headers=headers, correlation_id=correlation_id, ttl=ttl,
                timeout=timeout,
            )
        )  # fmt: skip

    def read(
        self, channel: str, *, start: Start = "first", end: Start | None = None, partition: int | None = None,
        follow: bool = False, on_gap: OnGap | None = None,
    ) -> Iterator[Message]:  # fmt: skip
        """Iterate over the messages of a channel, as ``Station.read``: up to what is there now, or ``follow``."""
        pages = self._loop.run(self._inner.pages(channel, start, end, partition, follow=follow, on_gap=on_gap))
        return self._messages(pages)

    def _messages(self, pages: Pages | Merged) -> Iterator[Message]:
        while not pages.done:
            yield from self._loop.run(pages.next())

    def subscribe(
        self, channel: str, handler: Handler, *, name: str | None = None, group: bool = False, queue: bool = False,
        start: Start = "new", concurrency: int = 1, retry: Retry | None = None, on_gap: OnGap | None = None,
        visibility_s: Span | None = None, max_in_flight: int | None = None, max_deliveries: int | None = None,
    ) -> ClientSubscription:  # fmt: skip
        """Call the handler for each new message, in a thread of its own, until it is closed.

        Without a name: what is published after this returned is delivered; after a cut it goes on behind the last
        message it had. The channel may be a pattern. With a ``name`` the hub keeps the place, as for a durable
        subscription of its own; with ``group=True`` or ``queue=True`` this is one of any number of workers, at the hub
        and at other clients: see :meth:`Station.subscribe`.
        """
        options = Options(
            name=name, group=group, queue=queue, start=start, concurrency=concurrency, retry=retry,
            visibility_s=visibility_s, max_in_flight=max_in_flight, max_deliveries=max_deliveries,
        )  # fmt: skip
        return self._subscribe(channel, handler, options, on_gap, answers=False)

    def _subscribe(
        self, channel: str, handler: Handler, options: Options, on_gap: OnGap | None, *, answers: bool
    ) -> ClientSubscription:
        check_handler(handler)
        inner = self._inner
        ask = options.work(channel, inner.workers.number(), answers=answers)
        found: ClientSubscription
        if ask is None:
            source = self._loop.run(inner.follow(channel, options.start, on_gap))
            found = ReadingInThread(self._loop, channel, source, handler)
        else:
            hands = Hands(ask.concurrency, f"heliograph-client-{channel}")
            worker = ThreadWorker(inner.workers, ask, inner.decoder, on_gap, handler, hands)
            try:
                self._loop.run(worker.start(inner.timeout_s))
            except BaseException:
                hands.close()
                raise
            found = WorkingInThreads(self._loop, worker, hands)
        for one in list(self._subscriptions):
            if not one.live:
                self._subscriptions.discard(one)
        self._subscriptions.add(found)
        return found

    def request(
        self, channel: str, data: Any = None, *, timeout: Duration = REPLY_TIMEOUT_S, type: str | None = None,
        key: str | None = None, headers: Mapping[str, HeaderValue] | None = None, correlation_id: str | None = None,
        subject: str | None = None,
    ) -> Message:  # fmt: skip
        """Publish a request at the hub and wait for its reply, from whoever answers there; see ``Station.request``.

        ReplyTimeout if none came in time; ReplyFailed if the handler gave up. The right to publish is all it needs.
        """
        return self._loop.run(
            self._inner.request(
                channel, data, timeout=timeout, type=type, key=key, headers=headers, correlation_id=correlation_id,
                subject=subject,
            )
        )  # fmt: skip

    def reply(
        self, channel: str, handler: Handler, *, name: str | None = None, on_gap: OnGap | None = None, **options: Any
    ) -> ClientSubscription:
        """Answer the requests of a channel of the hub with what ``handler`` returns (a Draft, to say more than data).

        A subscription in every respect, with the options of :meth:`subscribe`; ``reply`` of the hub's rules allows it.
        """
        said = Options(name=name, **options)
        check_handler(handler)
        answering = in_threads(handler, self._inner.answers, self._loop, alone=name is None)
        return self._subscribe(channel, answering, said, on_gap, answers=True)

    def queue(
        self, channel: str, name: str, *, start: Start = "new", visibility_s: Span | None = None,
        max_in_flight: int | None = None, max_deliveries: int | None = None,
    ) -> ClientQueue:  # fmt: skip
        """Become a worker of a queue of the hub and pull its messages; see :meth:`Station.queue`."""
        inner = self._inner.queue(
            channel, name, start=start, visibility_s=visibility_s, max_in_flight=max_in_flight,
            max_deliveries=max_deliveries,
        )  # fmt: skip
        return ClientQueue(self._loop, self._loop.run(inner))

    def staging(self) -> Staging:
        """Lay messages aside at the hub until all of a batch are published, once: what Spark's sink is made of."""
        return Staging(self._loop, self._inner.staging())

    def channels(self) -> list[str]:
        """The names of the hub's channels that this client may read."""
        return self._loop.run(self._inner.channels())

    def close(self) -> None:
        """End the subscriptions, and leave. Safe to call again."""
        if self._closed:
            return
        self._closed = True
        try:
            for subscription in list(self._subscriptions):
                subscription.close()
            self._loop.run(self._inner.close())
        finally:
            self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def connect(url: str, *, tls: TlsLike | None = None, service: str = "", timeout: float = TIMEOUT_S) -> Client:
    """Connect to a hub without a data directory: publish there, and read what is there or comes.

    ``tls``: a mapping of ``cert``, ``key``, ``ca`` and perhaps ``crl``, or a configuration (or its file) that has them;
    by default what HELIOGRAPH_CONFIG and HELIOGRAPH_TLS_… say. The hub's rules for the certificate's name say what is
    allowed. ``timeout``: how many seconds to wait for a connection, here and in ``publish``. Close it, or use it as a
    context manager.

    >>> import heliograph as hg
    >>> hg.connect("http://hub:7740")
    Traceback (most recent call last):
    heliograph.errors.ConfigError: 'http://hub:7740' is not a hub's address: use wss://HOST:PORT
    """
    loop = Loop()
    try:
        inner = loop.run(open_client(url, tls, service, timeout))
    except BaseException:
        loop.close()
        raise
    return Client(loop, inner)
