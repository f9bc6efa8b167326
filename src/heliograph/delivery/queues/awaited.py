"""A queue for asyncio: the same names, awaited. What waits or touches the disk runs in a thread."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Iterable
from datetime import timedelta
from typing import TYPE_CHECKING, Self

from heliograph.arguments import check_many
from heliograph.delivery.attended import Waiters, made, surely
from heliograph.delivery.queues import decisions
from heliograph.errors import HeliographError
from heliograph.limits import WAIT_SLICE_S

if TYPE_CHECKING:
    from types import TracebackType

    from heliograph.delivery.queues.decisions import QueueSettings
    from heliograph.delivery.queues.queue import Job, Queue
    from heliograph.message import Message


class AsyncJob:
    """A message of a queue, leased to this worker; see :class:`Job`."""

    __slots__ = ("sync",)

    def __init__(self, job: Job) -> None:
        self.sync = job

    @property
    def message(self) -> Message:
        """The message."""
        return self.sync.message

    @property
    def deliveries(self) -> int:
        """How often it was handed out, this time included."""
        return self.sync.deliveries

    async def ack(self) -> None:
        """It is done, and is never handed out again."""
        await asyncio.to_thread(self.sync.ack)

    async def nack(self, delay: float | timedelta = 0, error: BaseException | None = None) -> None:
        """It is not done: hand it out again, after a while."""
        await asyncio.to_thread(self.sync.nack, delay, error)

    async def extend(self, seconds: float | timedelta | None = None) -> None:
        """Keep it for so long from now on."""
        await asyncio.to_thread(self.sync.extend, seconds)

    def __repr__(self) -> str:
        return repr(self.sync)


class AsyncQueue:
    """One worker of a queue, which pulls; see :class:`Queue`."""

    def __init__(self, queue: Queue, waiters: Waiters) -> None:
        self.sync = queue
        self._waiters = waiters

    @property
    def channel(self) -> str:
        """The channel it takes messages of."""
        return self.sync.channel

    @property
    def name(self) -> str:
        """The queue's name."""
        return self.sync.name

    @property
    def worker(self) -> str:
        """What this worker is known by."""
        return self.sync.worker

    @property
    def settings(self) -> QueueSettings:
        """What all workers of the queue agree on."""
        return self.sync.settings

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self.sync.closed

    async def receive(self, max_messages: int = 1, wait_s: float | timedelta = 0) -> list[AsyncJob]:
        """Lease up to so many messages; cancelling it while it waits leases nothing."""
        loop = asyncio.get_running_loop()
        until = loop.time() + decisions.seconds(wait_s, "wait_s")
        while True:
            slice_s = min(WAIT_SLICE_S, max(0.0, until - loop.time()))
            receive = functools.partial(self.sync.receive, max_messages, slice_s)
            jobs = await made(receive, self._return, self._waiters.threads() if slice_s else None)
            if jobs or loop.time() >= until:
                return [AsyncJob(job) for job in jobs]

    def _return(self, jobs: list[Job]) -> None:
        """Nobody asked any more when these came: others shall have them."""
        if not jobs:
            return
        try:
            self.sync.give_back(jobs)
        except HeliographError:
            return  # closed meanwhile, which gives everything back, too

    async def ack(self, jobs: Iterable[AsyncJob]) -> None:
        """Acknowledge many with one transaction."""
        await asyncio.to_thread(self.sync.ack, _sync(jobs))

    async def extend(self, jobs: Iterable[AsyncJob], seconds: float | timedelta | None = None) -> None:
        """Keep many for so long from now on, with one transaction."""
        await asyncio.to_thread(self.sync.extend, _sync(jobs), seconds)

    async def give_back(self, jobs: Iterable[AsyncJob]) -> None:
        """Let others have what was not even begun."""
        await asyncio.to_thread(self.sync.give_back, _sync(jobs))

    async def close(self) -> None:
        """Give back what is not acknowledged."""
        await surely(self.sync.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return repr(self.sync).replace("<Queue", "<AsyncQueue")


def _sync(jobs: Iterable[AsyncJob]) -> list[Job]:
    return [job.sync for job in check_many("jobs", jobs, AsyncJob)]
