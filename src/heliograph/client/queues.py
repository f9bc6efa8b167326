"""Queues of a hub by pulling: the same names and meaning as a station's own, awaited or for threads.

The leases are the connection's. When it is lost they are free for others at once: what was received before is lost to
this worker, and saying anything about it raises LeaseLost.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterable
from datetime import timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar

import msgspec

from heliograph.arguments import check_many
from heliograph.client.line import Line
from heliograph.client.pages import plainly
from heliograph.client.worker import as_it_is
from heliograph.delivery.queues import decisions
from heliograph.delivery.queues.decisions import QueueSettings
from heliograph.errors import HeliographError, LeaseLost, NotFound, StationClosed
from heliograph.federation import errands
from heliograph.federation.asking import WAIT_S
from heliograph.federation.errands import Joined, Leased, Nothing, Pull, Receive, Received, Settle
from heliograph.federation.questions import Lost
from heliograph.limits import QUEUE_RECEIVE_MAX
from heliograph.message import Message, PayloadDecoder

if TYPE_CHECKING:
    from heliograph.client.asker import Asker
    from heliograph.client.worker import Workers

Span = float | timedelta
_T = TypeVar("_T")


class AsyncClientJob:
    """A message of a queue, leased to this worker until it is acknowledged, given back, or its time runs out."""

    __slots__ = ("_queue", "deliveries", "line", "message", "number")

    def __init__(self, queue: AsyncClientQueue, line: Line, leased: Leased, message: Message) -> None:
        self._queue = queue
        self.line = line
        self.number = leased.job
        self.message = message
        self.deliveries = leased.deliveries
        """How often it was handed out, this time included."""

    async def ack(self) -> None:
        """It is done, and is never handed out again."""
        await self._queue.ack([self])

    async def nack(self, delay: Span = 0, error: BaseException | None = None) -> None:
        """It is not done: hand it out again, after a while.

        After the last delivery, or with a ``Reject`` as the error, it becomes a dead letter.
        """
        await self._queue.settle([self], "nack", decisions.seconds(delay, "delay"), error)

    async def extend(self, seconds: Span | None = None) -> None:
        """Keep it for so long from now on; by default for the queue's ``visibility_s``."""
        await self._queue.extend([self], seconds)

    def __repr__(self) -> str:
        message = self.message
        return f"<Job {message.channel}/{message.partition}/{message.offset}, delivery {self.deliveries}>"


class AsyncClientQueue:
    """One worker of a hub's queue, which pulls. Made by ``AsyncClient.queue``; a context manager that closes it."""

    def __init__(
        self, workers: Workers, asker: Asker, ask: Pull, decoder: Callable[[], PayloadDecoder | None],
        on_closed: Callable[[AsyncClientQueue], object],
    ) -> None:  # fmt: skip
        self.channel = ask.channel
        self.name = ask.name
        self.worker = ""
        """What this worker is known by; another one after the connection was lost."""
        self.settings = QueueSettings()
        """What all workers of the queue agree on."""
        self.closed = False
        self._workers = workers
        self._asker = asker
        self._ask = ask
        self._decoder = decoder
        self._on_closed = on_closed
        self._line: Line | None = None
        self._joining = asyncio.Lock()

    def _check_open(self) -> None:
        if self.closed:
            raise StationClosed(f"queue '{self.name}' of '{self.channel}' was closed")

    async def open(self) -> Line:
        """Be a worker on the connection that there is now."""
        self._check_open()
        until = asyncio.get_running_loop().time() + self._asker.timeout_s
        async with self._joining:
            while True:
                line = await self._workers.keeper.line(until)
                if line is self._line:
                    return line
                with contextlib.suppress(Lost):
                    joined = await self._join(line)
                    self._line, self.worker = line, joined.worker
                    self._ask = as_it_is(self._ask)
                    self.settings = QueueSettings(
                        visibility_s=joined.visibility_s, max_in_flight=joined.max_in_flight,
                        max_deliveries=joined.max_deliveries,
                    )  # fmt: skip
                    return line

    async def _join(self, line: Line) -> Joined:
        try:
            return (await line.ask(errands.PULL, self._ask, Joined))[0]
        except asyncio.CancelledError:  # the hub has this number, or will: by another one next time
            if line.working:
                leave = errands.Leave(number=self._ask.number)
                self._workers.beside(line.ask(errands.LEAVE, leave, Nothing))
            self._ask = msgspec.structs.replace(self._ask, number=self._workers.number())
            raise

    async def receive(self, max_messages: int = 1, wait_s: Span = 0) -> list[AsyncClientJob]:
        """Lease up to so many messages that nobody else has; wait for the first for up to ``wait_s``.

        Each has to be acknowledged or extended within the queue's ``visibility_s``. Cancelling it leases nothing.
        Unreachable if there is no connection, or each is lost before the hub has answered.
        """
        decisions.whole(max_messages, "max_messages", QUEUE_RECEIVE_MAX)
        loop = asyncio.get_running_loop()
        until, losses = loop.time() + decisions.seconds(wait_s, "wait_s"), 0
        while True:
            line, left_s = await self.open(), max(0.0, until - loop.time())
            ask = Receive(number=self._ask.number, count=max_messages, wait_s=min(left_s, WAIT_S))
            asking = asyncio.ensure_future(self._receive(line, ask))
            try:
                jobs = await asyncio.shield(asking)
            except Lost as lost:
                losses += 1
                self._asker.check_again(losses, lost, until + self._asker.timeout_s + WAIT_S)
                continue
            except asyncio.CancelledError:
                asking.add_done_callback(self._return)
                raise
            except NotFound:
                self._check_open()  # the hub knows that, too
                raise
            losses = 0
            if jobs or loop.time() >= until:
                return jobs

    async def _receive(self, line: Line, ask: Receive) -> list[AsyncClientJob]:
        received, lines = await line.ask(errands.RECEIVE, ask, Received, turn=self._asker.turn(errands.RECEIVE))
        decoder = self._decoder()
        return [
            AsyncClientJob(self, line, leased, plainly(one, leased.offset, leased.partition, decoder))
            for leased, one in zip(received.jobs, lines.split(b"\n"), strict=False)
        ]

    def _return(self, received: asyncio.Future[list[AsyncClientJob]]) -> None:
        """Nobody asked any more when these came: others shall have them."""
        if not received.cancelled() and received.exception() is None and received.result():
            giving = asyncio.ensure_future(self.give_back(received.result()))
            giving.add_done_callback(lambda done: done.cancelled() or done.exception())

    async def ack(self, jobs: Iterable[AsyncClientJob]) -> None:
        """Acknowledge many with one transaction. LeaseLost if some were lost; the others are done."""
        await self.settle(jobs, "ack")

    async def extend(self, jobs: Iterable[AsyncClientJob], seconds: Span | None = None) -> None:
        """Keep many for so long from now on, with one transaction."""
        length_s = None
        if seconds is not None:
            low, high = decisions.VISIBILITY_S_MIN, decisions.VISIBILITY_S_MAX
            length_s = decisions.seconds(seconds, "the extension", low, high)
        await self.settle(jobs, "extend", length_s)

    async def give_back(self, jobs: Iterable[AsyncClientJob]) -> None:
        """Let others have what was not even begun: it does not count as a delivery."""
        await self.settle(jobs, "back")

    async def settle(
        self, jobs: Iterable[AsyncClientJob], how: Any, delay_s: float | None = None,
        error: BaseException | None = None,
    ) -> None:  # fmt: skip
        """Say what becomes of some messages."""
        given = check_many("jobs", jobs, AsyncClientJob)
        self._check_open()
        line = self._line
        kept = [job.number for job in given if line is not None and job.line is line and line.working]
        if kept and line is not None:
            failure = None if error is None else errands.failure_of(error)
            ask = Settle(number=self._ask.number, jobs=kept, how=how, seconds=delay_s, error=failure)
            try:
                await line.ask(errands.SETTLE, ask, Nothing, turn=self._asker.turn(errands.SETTLE))
            except Lost:
                kept = []
        if len(kept) < len(given):
            raise LeaseLost(
                f"{len(given) - len(kept)} messages of queue '{self.name}' of '{self.channel}': the connection to the "
                "hub was lost since they were received, and somebody else has them, or they are done"
            )

    async def close(self) -> None:
        """Give back what is not acknowledged. Closing twice does no harm."""
        if self.closed:
            return
        self.closed = True
        self._on_closed(self)
        if self._line is not None and self._line.working:
            with contextlib.suppress(Lost, HeliographError):
                await self._line.ask(errands.LEAVE, errands.Leave(number=self._ask.number), Nothing)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<AsyncClientQueue {self.name} of {self.channel}, worker {self.worker}>"


# -- for threads ----------------------------------------------------------------------------------------------


class Runner(Protocol):
    """Runs coroutines in a thread's event loop."""

    def run(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Wait for it."""


class ClientJob:
    """A message of a queue, leased to this worker until it is acknowledged, given back, or its time runs out."""

    __slots__ = ("_runner", "inner")

    def __init__(self, runner: Runner, inner: AsyncClientJob) -> None:
        self._runner = runner
        self.inner = inner

    @property
    def message(self) -> Message:
        """The message."""
        return self.inner.message

    @property
    def deliveries(self) -> int:
        """How often it was handed out, this time included."""
        return self.inner.deliveries

    def ack(self) -> None:
        """It is done, and is never handed out again."""
        self._runner.run(self.inner.ack())

    def nack(self, delay: Span = 0, error: BaseException | None = None) -> None:
        """It is not done: hand it out again, after a while.

        After the last delivery, or with a ``Reject`` as the error, it becomes a dead letter.
        """
        self._runner.run(self.inner.nack(delay, error))

    def extend(self, seconds: Span | None = None) -> None:
        """Keep it for so long from now on; by default for the queue's ``visibility_s``."""
        self._runner.run(self.inner.extend(seconds))

    def __repr__(self) -> str:
        return repr(self.inner)


class ClientQueue:
    """One worker of a hub's queue, which pulls. Made by ``Client.queue``; also a context manager that closes it.

    Safe to use from several threads.
    """

    def __init__(self, runner: Runner, inner: AsyncClientQueue) -> None:
        self._runner = runner
        self._inner = inner

    @property
    def channel(self) -> str:
        """The channel it takes messages of."""
        return self._inner.channel

    @property
    def name(self) -> str:
        """The queue's name."""
        return self._inner.name

    @property
    def worker(self) -> str:
        """What this worker is known by; another one after the connection was lost."""
        return self._inner.worker

    @property
    def settings(self) -> QueueSettings:
        """What all workers of the queue agree on."""
        return self._inner.settings

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._inner.closed

    def receive(self, max_messages: int = 1, wait_s: Span = 0) -> list[ClientJob]:
        """Lease up to so many messages that nobody else has; wait for the first for up to ``wait_s``.

        Each has to be acknowledged or extended within the queue's ``visibility_s``.
        """
        return [ClientJob(self._runner, job) for job in self._runner.run(self._inner.receive(max_messages, wait_s))]

    def ack(self, jobs: Iterable[ClientJob]) -> None:
        """Acknowledge many with one transaction. LeaseLost if some were lost; the others are done."""
        self._runner.run(self._inner.ack(_inner(jobs)))

    def extend(self, jobs: Iterable[ClientJob], seconds: Span | None = None) -> None:
        """Keep many for so long from now on, with one transaction."""
        self._runner.run(self._inner.extend(_inner(jobs), seconds))

    def give_back(self, jobs: Iterable[ClientJob]) -> None:
        """Let others have what was not even begun: it does not count as a delivery."""
        self._runner.run(self._inner.give_back(_inner(jobs)))

    def close(self) -> None:
        """Give back what is not acknowledged. Closing twice does no harm."""
        with contextlib.suppress(StationClosed):
            self._runner.run(self._inner.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return repr(self._inner).replace("<AsyncClientQueue", "<ClientQueue")


def _inner(jobs: Iterable[ClientJob]) -> list[AsyncClientJob]:
    return [job.inner for job in check_many("jobs", jobs, ClientJob)]
