"""A client for threads: the same names and meaning as for asyncio, which runs in a thread of its own below."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from concurrent.futures import CancelledError, Future
from types import TracebackType
from typing import Any, Self, TypeVar

from heliograph.client.awaited import TIMEOUT_S, AsyncClient, Span, expired, next_page, open_client
from heliograph.client.pages import Merged, OnGap, Pages, Start
from heliograph.client.settings import TlsLike
from heliograph.errors import HeliographError, StationClosed
from heliograph.message import HeaderValue, Message, Receipt

logger = logging.getLogger("heliograph.client")
_T = TypeVar("_T")
_CLOSE_S = 5.0


class _Loop:
    """An event loop in a thread."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="heliograph-client", daemon=True)
        self._thread.start()
        self._waited: set[Future[Any]] = set()
        self._lock = threading.Lock()
        self._closed = False

    def start(self, work: Coroutine[Any, Any, _T]) -> Future[_T]:
        """Have something done there."""
        with self._lock:
            if self._closed:
                work.close()
                raise StationClosed("the client is closed")
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
            self._waited.add(future)
        future.add_done_callback(self._waited.discard)
        return future

    def run(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Have something done there, and wait for it."""
        future = self.start(work)
        try:
            return future.result()
        except CancelledError:
            raise StationClosed("the client is closed") from None
        except BaseException:
            future.cancel()  # Ctrl-C, for example
            raise

    def close(self) -> None:
        """End the thread; whoever waits is told that it is closed."""
        with self._lock:
            self._closed = True
        for future in list(self._waited):
            future.cancel()
        self._loop.call_soon_threadsafe(self._end)
        self._thread.join(_CLOSE_S)
        if not self._thread.is_alive():
            self._loop.close()

    def _end(self) -> None:
        async def settle() -> None:
            tasks = asyncio.all_tasks() - {asyncio.current_task()}
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._loop.stop()

        self._loop.create_task(settle())


class Client:
    """A connection to a hub that is made again when it is lost. Safe to use from any number of threads."""

    def __init__(self, loop: _Loop, inner: AsyncClient) -> None:
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

        After a cut it is sent again, and stored once. If no answer came within the timeout, OutcomeUnknown is raised;
        Unreachable, if it was never sent.
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
        self, channel: str, handler: Callable[[Message], Any], *, start: Start = "new", on_gap: OnGap | None = None
    ) -> ClientSubscription:
        """Call the handler for each new message, in a thread of its own, until it is closed.

        What is published after this returned is delivered: after a cut it goes on behind the last message it had.
        """
        pages = self._loop.run(self._inner.pages(channel, start, None, None, follow=True, on_gap=on_gap))
        found = ClientSubscription(self._loop, channel, pages, handler)
        self._subscriptions.add(found)
        return found

    def channels(self) -> list[str]:
        """The names of the hub's channels that this client may read."""
        return self._loop.run(self._inner.channels())

    def close(self) -> None:
        """End the subscriptions, and leave. Safe to call again."""
        if self._closed:
            return
        self._closed = True
        for subscription in list(self._subscriptions):
            subscription.close()
        try:
            self._loop.run(self._inner.close())
        finally:
            self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class ClientSubscription:
    """Calls a handler for each message, in order; one that fails is logged and counted, and the next one comes."""

    def __init__(
        self, loop: _Loop, channel: str, pages: Pages | Merged, handler: Callable[[Message], Any]
    ) -> None:  # fmt: skip
        self.channel = channel
        self.delivered = 0
        self.failed = 0
        self.error: HeliographError | None = None
        """Why it ended by itself: the hub does not allow it any more, for example."""
        self._loop = loop
        self._pages = pages
        self._handler = handler
        self._stop = threading.Event()
        self._fetching: Future[list[Message]] | None = None
        self._thread = threading.Thread(target=self._run, name=f"heliograph-client-{channel}", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                self._fetching = self._loop.start(next_page(self._pages, self.channel))
                if self._stop.is_set():
                    self._fetching.cancel()
                for message in self._fetching.result():
                    if self._stop.is_set():
                        return
                    self._deliver(message)
        except (StationClosed, CancelledError):
            return
        except HeliographError as error:
            self.error = error
            logger.error("the subscription of '%s' ended: %s", self.channel, error)

    def _deliver(self, message: Message) -> None:
        if expired(message):
            return
        try:
            self._handler(message)
            self.delivered += 1
        except Exception:
            self.failed += 1
            logger.exception("the handler of '%s' failed with offset %d", self.channel, message.offset)

    @property
    def live(self) -> bool:
        """Whether it goes on."""
        return self._thread.is_alive()

    def close(self) -> None:
        """End it, after the message that the handler has now."""
        self._stop.set()
        if self._fetching is not None:
            self._fetching.cancel()
        if self._thread is not threading.current_thread():
            self._thread.join(_CLOSE_S)


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
    loop = _Loop()
    try:
        inner = loop.run(open_client(url, tls, service, timeout))
    except BaseException:
        loop.close()
        raise
    return Client(loop, inner)
