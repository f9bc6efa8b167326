"""What a client for threads is made of: an event loop in a thread, and handlers that are called in others."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import queue
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future
from typing import Any, Final, TypeVar

from heliograph.arguments import check_seconds
from heliograph.client.pages import OnGap
from heliograph.client.subscription import CLOSE_S, Handler, Source, expired, is_for_another, next_page
from heliograph.client.worker import GRACE_S, Decoder, Going, Worker, Workers
from heliograph.delivery.invoke import refuse_awaitable
from heliograph.errors import HeliographError, StationClosed
from heliograph.federation.errands import Ran, Work, failure_of
from heliograph.message import Message

logger = logging.getLogger("heliograph.client")
_T = TypeVar("_T")
_JOIN_S: Final = 5.0


class Loop:
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
        self._thread.join(_JOIN_S)
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


class ClientSubscription(ABC):
    """Calls a handler for each message, in a thread. Made by ``Client.subscribe``.

    A plain one: in order; one that fails is logged and counted, and the next one comes. A worker of a group or queue:
    as the hub's own workers.
    """

    channel: str
    name: str | None
    """The name of the group, queue or durable subscription; None for a plain one."""

    @property
    @abstractmethod
    def delivered(self) -> int:
        """How many messages its handler has handled."""

    @property
    @abstractmethod
    def failed(self) -> int:
        """How often its handler has failed."""

    @property
    @abstractmethod
    def error(self) -> HeliographError | None:
        """Why it ended by itself: the hub does not allow it any more, for example."""

    @property
    @abstractmethod
    def live(self) -> bool:
        """Whether it goes on."""

    @abstractmethod
    def close(self, timeout_s: float = CLOSE_S) -> None:
        """End it, after the message that the handler has now; one that takes longer is left behind."""


class ReadingInThread(ClientSubscription):
    """A plain subscription."""

    delivered = 0
    failed = 0
    error = None

    def __init__(self, loop: Loop, channel: str, source: Source, handler: Handler) -> None:
        self.channel = channel
        self.name = None
        self._loop = loop
        self._source = source
        self._handler = handler
        self._stop = threading.Event()
        self._fetching: Future[list[Message]] | None = None
        self._thread = threading.Thread(target=self._run, name=f"heliograph-client-{channel}", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                self._fetching = self._loop.start(next_page(self._source, self.channel))
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
        if expired(message) or is_for_another(message):
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

    def close(self, timeout_s: float = CLOSE_S) -> None:
        """End it, after the message that the handler has now."""
        timeout_s = check_seconds("timeout_s", timeout_s)
        self._stop.set()
        if self._fetching is not None:
            self._fetching.cancel()
        if self._thread is not threading.current_thread():
            self._thread.join(timeout_s)


class Hands:
    """Threads that call handlers: as many as there may be calls at once, and no more."""

    def __init__(self, count: int, name: str) -> None:
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._threads = [threading.Thread(target=self._run, name=name, daemon=True) for _ in range(count)]
        for thread in self._threads:
            thread.start()

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            work()

    async def call(self, function: Callable[[], _T]) -> _T:
        """Have something done in one of them. The function does not raise."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[_T] = loop.create_future()

        def tell(result: _T) -> None:
            if not answer.done():
                answer.set_result(result)

        def work() -> None:
            result = function()
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(tell, result)

        self._work.put(work)
        return await answer

    def inside(self) -> bool:
        """Whether the caller is one of them."""
        return threading.current_thread() in self._threads

    def close(self) -> None:
        """Each ends after what it has at hand."""
        for _ in self._threads:
            self._work.put(None)


class ThreadWorker(Worker):
    """A worker whose handler is called in threads of its own."""

    def __init__(
        self, workers: Workers, ask: Work, decoder: Decoder, on_gap: OnGap | None, handler: Handler, hands: Hands
    ) -> None:
        super().__init__(workers, ask, decoder, on_gap)
        self._handler = handler
        self._hands = hands

    async def handle(self, messages: list[Message], going: Going) -> Ran:
        """Call the handler with each."""
        return await self._hands.call(lambda: self._handle(messages, going))

    def _handle(self, messages: list[Message], going: Going) -> Ran:
        for done, message in enumerate(messages):
            if not going(done):
                return Ran(done=done)
            if expired(message):
                continue
            try:
                refuse_awaitable(self._handler(message))
            except BaseException as error:  # noqa: BLE001 - the hub decides what becomes of it; the thread goes on
                self.failed += 1
                return Ran(done=done, error=failure_of(error))
            self.delivered += 1
        return Ran(done=len(messages))


class WorkingInThreads(ClientSubscription):
    """A worker, for threads."""

    def __init__(self, loop: Loop, inner: ThreadWorker, hands: Hands) -> None:
        self.channel = inner.channel
        self.name = inner.name
        self._loop = loop
        self._inner = inner
        self._hands = hands

    @property
    def worker(self) -> str:
        """What the hub knows it by."""
        return self._inner.worker

    @property
    def delivered(self) -> int:
        """How many messages its handler has handled."""
        return self._inner.delivered

    @property
    def failed(self) -> int:
        """How often its handler has failed."""
        return self._inner.failed

    @property
    def error(self) -> HeliographError | None:
        """Why it ended by itself."""
        return self._inner.error

    @property
    def live(self) -> bool:
        """Whether it goes on."""
        return self._inner.live

    def close(self, timeout_s: float = CLOSE_S) -> None:
        """Leave, after the messages at hand; a handler that does not return in time is left behind."""
        timeout_s = check_seconds("timeout_s", timeout_s)
        with contextlib.suppress(StationClosed):
            closing = self._loop.start(self._inner.close(timeout_s))
            if not self._hands.inside():
                with contextlib.suppress(CancelledError, TimeoutError):
                    closing.result(timeout_s + 2 * GRACE_S)
        self._hands.close()
