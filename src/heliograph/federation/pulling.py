"""Queues of a hub whose messages a client receives and settles by itself.

The hub is the worker: its leases are those of the connection, and are free for others when that ends.
"""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final

from heliograph.errors import AlreadyExists, Busy, LeaseLost, MessageTooLarge, NotAllowed, NotFound, StationClosed
from heliograph.federation import errands
from heliograph.federation.asking import WAIT_S
from heliograph.federation.crew import Places, check_room, close_aside
from heliograph.federation.errands import Joined, Leased, Pull, Receive, Received, Settle
from heliograph.limits import LINK_SUBSCRIPTIONS_MAX, WAIT_SLICE_S
from heliograph.names import check_name

if TYPE_CHECKING:
    from heliograph.delivery.queues import Job, Queue
    from heliograph.federation.conversation import Conversation

RECEIVED_MAX: Final = 1_000
"""Most messages of one answer."""
HELD_MAX: Final = 10_000
HELD_BYTES_MAX: Final = 64 << 20
"""What a client may have received from one queue and not settled."""
GRACE_S: Final = 60.0
"""A lease that ran out so long ago is forgotten here, too."""


class _Held:
    """A message that the client has, and when its lease ends for certain."""

    __slots__ = ("job", "size", "until_s")

    def __init__(self, job: Job, until_s: float) -> None:
        self.job = job
        self.size = len(job.message.raw)
        self.until_s = until_s


class _Bench:
    """One queue that the client is a worker of. Its methods run in threads, one ``receive`` at a time."""

    def __init__(self, queue: Queue) -> None:
        self.queue = queue
        self.thread = ThreadPoolExecutor(1, thread_name_prefix="heliograph-pulling")
        self.over = False
        self._held: dict[int, _Held] = {}
        self._last = 0

    def joined(self) -> Joined:
        settings = self.queue.settings
        return Joined(
            worker=self.queue.worker, visibility_s=settings.visibility_s, max_in_flight=settings.max_in_flight,
            max_deliveries=settings.max_deliveries,
        )  # fmt: skip

    def receive(self, ask: Receive, room: int) -> tuple[Received, bytes]:
        """Lease some messages, as many as fit an answer."""
        self._check_room()
        until = time.monotonic() + min(ask.wait_s, WAIT_S)
        while True:
            left = max(0.0, until - time.monotonic())
            jobs = self.queue.receive(min(max(1, ask.count), RECEIVED_MAX), min(left, WAIT_SLICE_S))
            if jobs or left <= 0 or self.over:
                return self._pack(jobs, room)

    def _check_room(self) -> None:
        now = time.monotonic()
        if len(self._held) >= HELD_MAX or sum(one.size for one in list(self._held.values())) >= HELD_BYTES_MAX:
            for number in [number for number, one in list(self._held.items()) if one.until_s < now]:
                self._held.pop(number, None)
            if len(self._held) >= HELD_MAX or sum(one.size for one in list(self._held.values())) >= HELD_BYTES_MAX:
                raise Busy(f"{len(self._held)} messages of '{self.queue.name}' were received and not settled; ack some")

    def _pack(self, jobs: list[Job], room: int) -> tuple[Received, bytes]:
        until_s = time.monotonic() + self.queue.settings.visibility_s + GRACE_S
        leased: list[Leased] = []
        lines: list[bytes] = []
        back: list[Job] = []
        for job in jobs:
            size = len(job.message.raw) + 1
            if size > room and not lines and not back:
                error = MessageTooLarge(f"it has {size} bytes, the client takes {room} at once")
                job.nack(error=error)  # somebody else may take it; else it becomes a dead letter
            elif size > room or back:
                back.append(job)
            else:
                room -= size
                self._last += 1
                self._held[self._last] = _Held(job, until_s)
                leased.append(Leased(self._last, job.message.partition, job.message.offset, job.deliveries))
                lines.append(job.message.raw + b"\n")
        if back:
            self.queue.give_back(back)
        return Received(jobs=leased), b"".join(lines)

    def settle(self, ask: Settle) -> None:
        """What the client says of some messages."""
        found = {number: self._held.get(number) for number in ask.jobs}
        jobs = [one.job for one in found.values() if one is not None]
        try:
            self._settle(ask, jobs)
        except LeaseLost:
            self._forget(ask)
            raise
        self._forget(ask)
        lost = [number for number, one in found.items() if one is None]
        if lost:
            raise LeaseLost(
                f"{len(lost)} messages of queue '{self.queue.name}' of '{self.queue.channel}' are not this worker's "
                "any more: their leases ran out, or they were settled before"
            )

    def _forget(self, ask: Settle) -> None:
        """They are settled, or lost; if something else went wrong they are still the client's, which may try again."""
        if ask.how != "extend":
            for number in ask.jobs:
                self._held.pop(number, None)

    def _settle(self, ask: Settle, jobs: list[Job]) -> None:
        if ask.how == "ack":
            self.queue.ack(jobs)
        elif ask.how == "back":
            self.queue.give_back(jobs)
        elif ask.how == "extend":
            self.queue.extend(jobs, ask.seconds)
            until_s = time.monotonic() + (ask.seconds or self.queue.settings.visibility_s) + GRACE_S
            for number in ask.jobs:
                if number in self._held:
                    self._held[number].until_s = until_s
        else:
            error = None if ask.error is None else errands.error_of(ask.error)
            for job in jobs:
                job.nack(ask.seconds or 0, error)

    def close(self) -> Future[None]:
        """Give everything back."""
        self.over = True
        self.thread.shutdown(wait=False)
        return close_aside(self.queue)


class Pulling:
    """All queues of one connection."""

    def __init__(self, conversation: Conversation, places: Places) -> None:
        self._conversation = conversation
        self._places = places
        self._station = conversation.shared.station
        self._loop = asyncio.get_running_loop()
        self._benches: dict[int, _Bench | None] = {}

    async def join(self, ask: Pull) -> Joined:
        """One more queue."""
        check_name(ask.channel)
        check_name(ask.name, "queue")
        self._insist(ask.channel)
        if ask.number in self._benches:
            raise AlreadyExists(f"this connection has a queue {ask.number} already")
        if len(self._benches) >= LINK_SUBSCRIPTIONS_MAX:
            raise Busy(f"a client pulls from at most {LINK_SUBSCRIPTIONS_MAX} queues; connect once more for others")
        self._places.take()
        self._benches[ask.number] = None
        try:
            bench = await self._conversation.run(self._open, ask)
        except BaseException:
            self._drop(ask.number)
            raise
        if self._conversation.over.is_set() or ask.number not in self._benches:
            bench.close()
            raise NotFound(f"this connection has no queue {ask.number} any more")
        self._benches[ask.number] = bench
        return bench.joined()

    def _open(self, ask: Pull) -> _Bench:
        check_room(self._station.engine, ask.channel, ask.name)
        settings: dict[str, Any] = {
            "visibility_s": ask.visibility_s, "max_in_flight": ask.max_in_flight, "max_deliveries": ask.max_deliveries,
        }  # fmt: skip
        return _Bench(self._station.queue(ask.channel, ask.name, start=ask.start, **settings))

    def _insist(self, channel: str) -> None:
        why = self._conversation.storer.rules.subscribing(channel)
        if why:
            raise NotAllowed(why)

    def _bench(self, number: int) -> _Bench:
        bench = self._benches.get(number)
        if bench is None:
            raise NotFound(f"this connection has no queue {number}")
        return bench

    async def receive(self, ask: Receive) -> tuple[Received, bytes]:
        """Lease some messages, or wait for some."""
        bench = self._bench(ask.number)
        self._insist(bench.queue.channel)
        room = self._conversation.session.body_bytes_max - 64 * 1024
        try:
            answer = self._loop.run_in_executor(bench.thread, bench.receive, ask, room)
        except RuntimeError:  # it left in this moment
            raise NotFound(f"this connection has no queue {ask.number} any more") from None
        await self._settled(answer)
        try:
            return answer.result()
        except StationClosed:
            if not bench.over:
                raise
            raise NotFound(f"this connection has no queue {ask.number} any more") from None

    async def _settled(self, answer: asyncio.Future[Any]) -> None:
        """Wait for an answer. If the connection ends first nobody does: all that its worker has is free after that."""
        over = self._loop.create_task(self._conversation.over.wait())
        await asyncio.wait({answer, over}, return_when=asyncio.FIRST_COMPLETED)
        over.cancel()
        if not answer.done():
            answer.add_done_callback(lambda done: done.cancelled() or done.exception())
            raise StationClosed("the connection is over")

    async def settle(self, ask: Settle) -> None:
        """Acknowledge, give back, extend."""
        await self._conversation.run(self._bench(ask.number).settle, ask)

    async def leave(self, number: int) -> bool:
        """Be no worker of a queue any more; False if that number is none of ours."""
        bench = self._drop(number)
        if bench is not None:
            await asyncio.wrap_future(bench.close())
        return bench is not None

    def _drop(self, number: int) -> _Bench | None:
        if number not in self._benches:
            return None
        self._places.give_back()
        return self._benches.pop(number)

    def end(self) -> list[Future[None]]:
        """Give everything back: the connection is over."""
        return [bench.close() for number in list(self._benches) if (bench := self._drop(number)) is not None]
