"""The same station for asyncio: the same names, awaited.

Publishing encodes in the event loop and commits in another thread; the futures of one commit are resolved with
one wake-up of the loop. Everything else runs the synchronous station in a thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
from collections.abc import AsyncIterator, Callable, Generator, Iterable, Mapping
from datetime import datetime, timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from heliograph.arguments import check_seconds
from heliograph.config import Config
from heliograph.delivery import Retry, Subscription, SubscriptionStats
from heliograph.delivery.attended import Waiters, attended, made, surely
from heliograph.delivery.ports import OnGap, OverflowPolicy
from heliograph.delivery.queues.awaited import AsyncQueue
from heliograph.errors import Busy, HeliographError, NotFound, StationClosed
from heliograph.filters import Choice
from heliograph.limits import BUSY_PAUSE_S, SCHEDULE_PAGE, WAIT_SLICE_S
from heliograph.log.held import ChannelGone, Evicted
from heliograph.log.tickets import Ticket
from heliograph.message import Gap, HeaderValue, Message, Receipt
from heliograph.opening import open_linked
from heliograph.payloads import batch_of
from heliograph.station import Station
from heliograph.station.atomic import Step
from heliograph.station.info import (
    ChannelInfo,
    GroupInfo,
    ProducerInfo,
    QueueInfo,
    SeekResult,
    SubscriptionInfo,
    Trimmed,
    TypeInfo,
)
from heliograph.station.links import LinkInfo
from heliograph.station.producer import Producer
from heliograph.station.requests import TIMEOUT_S, Duration, seconds
from heliograph.station.starts import Start
from heliograph.station.stats import StationStats

if TYPE_CHECKING:
    from heliograph.schedule.cron import Missed
    from heliograph.schedule.recurring import Schedule
    from heliograph.schedule.times import Span
    from heliograph.schedule.waiting import Scheduled

_T = TypeVar("_T")


class _Opening:
    """Awaitable and asynchronous context manager, so that both ``await`` and ``async with`` read naturally."""

    def __init__(self, arguments: dict[str, Any]) -> None:
        self._arguments = arguments
        self._station: AsyncStation | None = None

    def __await__(self) -> Generator[Any, None, AsyncStation]:
        return self._open().__await__()

    async def _open(self) -> AsyncStation:
        station = await made(lambda: open_linked(**self._arguments), lambda opened: opened.close())
        return AsyncStation(station, asyncio.get_running_loop())

    async def __aenter__(self) -> AsyncStation:
        self._station = await self._open()
        return self._station

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._station is not None
        await self._station.close()


def open_async(
    path: str | os.PathLike[str] | None = None,
    *,
    name: str | None = None,
    config: Config | Mapping[str, Any] | str | os.PathLike[str] | None = None,
    read_only: bool = False,
    federate: bool = True,
    **settings: Any,
) -> _Opening:
    """Open a data directory for asyncio; see :func:`heliograph.open`.

    >>> import asyncio, tempfile
    >>> async def main() -> list[int]:
    ...     async with open_async(tempfile.mkdtemp(), name="host1") as station:
    ...         await station.publish_many("numbers", [1, 2, 3])
    ...         return [message.data async for message in station.read("numbers")]
    >>> asyncio.run(main())
    [1, 2, 3]
    """
    given = {"path": path, "name": name, "config": config, "read_only": read_only, "federate": federate}
    return _Opening({**given, **settings})


class AsyncSubscription:
    """A subscription of an asynchronous station."""

    def __init__(self, subscription: Subscription) -> None:
        self.sync = subscription

    @property
    def name(self) -> str | None:
        """Its name; None if it is ephemeral."""
        return self.sync.name

    @property
    def channel(self) -> str:
        """The channel it reads."""
        return self.sync.channel

    @property
    def worker(self) -> str | None:
        """Which worker of a group this is; None if it is not a group."""
        return self.sync.worker

    @property
    def state(self) -> str:
        """ "running", "paused", "retrying", "failed" or "closed"."""
        return self.sync.state

    @property
    def partitions(self) -> list[int]:
        """The partitions it delivers now."""
        return self.sync.partitions

    @property
    def positions(self) -> dict[int, int]:
        """By partition: everything before this offset is done."""
        return self.sync.positions

    @property
    def position(self) -> int:
        """Everything before this offset is done; of several partitions the sum."""
        return self.sync.position

    def pause(self) -> None:
        """Stop after the current message, until resume()."""
        self.sync.pause()

    def resume(self) -> None:
        """Go on."""
        self.sync.resume()

    def stats(self) -> SubscriptionStats:
        """Its numbers."""
        return self.sync.stats()

    def partition_stats(self) -> list[SubscriptionStats]:
        """The same for each partition."""
        return self.sync.partition_stats()

    async def close(self, *, forget: bool = False, timeout_s: float = 10.0) -> bool:
        """Stop after the current message and save the position; ``forget=True`` removes it."""
        return await surely(lambda: self.sync.close(forget=forget, timeout_s=timeout_s))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class AsyncProducer:
    """A numbered publisher of an asynchronous station; see :class:`Producer`."""

    def __init__(self, producer: Producer) -> None:
        self.sync = producer

    @property
    def id(self) -> str:
        """Its id."""
        return self.sync.id

    async def last(self, channel: str) -> int:
        """The number of its last message that is stored in a channel; 0 if there is none."""
        return await asyncio.to_thread(self.sync.last, channel)

    async def publish(self, channel: str, data: Any = None, **options: Any) -> Receipt:
        """Publish one message under the next number; see :meth:`Producer.publish`."""
        return await asyncio.to_thread(lambda: self.sync.publish(channel, data, **options))

    async def publish_many(self, channel: str, payloads: Iterable[Any], **options: Any) -> list[Receipt]:
        """Publish a batch under the next numbers; see :meth:`Producer.publish_many`."""
        return await asyncio.to_thread(lambda: self.sync.publish_many(channel, payloads, **options))

    async def close(self) -> None:
        """Save how far it has come."""
        await surely(self.sync.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class AsyncStep:
    """What happens together at an asynchronous station; see :class:`Step`."""

    def __init__(self, step: Step) -> None:
        self.sync = step

    @property
    def receipts(self) -> list[Receipt]:
        """Where the messages are, once the block has ended."""
        return self.sync.receipts

    async def publish(self, channel: str, data: Any = None, **options: Any) -> str:
        """Publish a message when the block ends; its id."""
        return await asyncio.to_thread(lambda: self.sync.publish(channel, data, **options))

    async def commit(self, message: Message, subscription: str) -> None:
        """Say that a durable subscription is done with this message and all before it."""
        await asyncio.to_thread(self.sync.commit, message, subscription)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            await asyncio.to_thread(self.sync.carry_out)
        else:
            self.sync.abandon()


class AsyncStation:
    """A station whose methods are awaited. Belongs to the event loop it was opened in."""

    def __init__(self, station: Station, loop: asyncio.AbstractEventLoop) -> None:
        self.sync_station = station
        self._loop = loop
        self._publisher = station.publisher
        self._engine = station.engine
        self._must_look = station.type_checks.must_look
        self._waiters = Waiters()
        self._waiting: dict[Ticket, tuple[asyncio.Future[int], str]] = {}
        self._closing: asyncio.Task[None] | None = None
        publishing = station.config.publishing
        self._wait_s = publishing.busy_timeout_s if publishing.when_full == "wait" else 0.0

    @property
    def name(self) -> str:
        """The station's name."""
        return self.sync_station.name

    @property
    def path(self) -> Any:
        """Its data directory."""
        return self.sync_station.path

    @property
    def config(self) -> Config:
        """Its settings."""
        return self.sync_station.config

    def register(self, type_name: str, cls: Any) -> None:
        """Say which class the payloads of a type are."""
        self.sync_station.register(type_name, cls)

    async def publish(
        self,
        channel: str,
        data: Any = None,
        *,
        type: str | None = None,
        key: str | None = None,
        headers: Mapping[str, HeaderValue] | None = None,
        correlation_id: str | None = None,
        subject: str | None = None,
        id: str | None = None,
        wait: float | None = None,
        deliver_at: datetime | None = None,
        delay: Span | None = None,
        ttl: Span | None = None,
    ) -> Receipt:
        """Publish one message; see :meth:`Station.publish`."""
        if deliver_at is not None or delay is not None or ttl is not None:
            return await self._call(
                self.sync_station.publish, channel, data, type=type, key=key, headers=headers, subject=subject, id=id,
                correlation_id=correlation_id, wait=wait, deliver_at=deliver_at, delay=delay, ttl=ttl,
            )  # fmt: skip
        if headers is None and correlation_id is None and subject is None and id is None and wait is None:
            quick = self._publisher.prepare_plain(channel, data, type, key, self._resolved)
            if quick is not None:
                ticket, message_id, partition = quick
                return Receipt(message_id, channel, partition, await self._commit(channel, partition, ticket, wait))
        return await self._publish(channel, data, type, key, headers, correlation_id, subject, id, wait)

    async def _publish(
        self, channel: str, data: Any, type: str | None, key: str | None, headers: Mapping[str, HeaderValue] | None,
        correlation_id: str | None, subject: str | None, id: str | None, wait: float | None,
    ) -> Receipt:  # fmt: skip
        wait = None if wait is None else check_seconds("wait", wait)
        arguments = (channel, data, type, key, headers, correlation_id, subject, id, self._resolved)
        if self._must_look(channel, type, (data,)):  # at files, which is not done in the loop
            ticket, message_id = await self._call(self._publisher.prepare, *arguments)
        else:
            ticket, message_id = self._publisher.prepare(*arguments)
        partition = self._publisher.partitioner.among(await self._partitions(channel), channel, key)
        first = await self._commit(channel, partition, ticket, wait)
        if not self._engine.is_open(channel, 0):  # then the next one goes the short way
            await asyncio.to_thread(self._open_ahead, channel)
        return Receipt(message_id, channel, partition, first)

    def _open_ahead(self, channel: str) -> None:
        """For the next message. This one is stored, whatever happens here, and a channel that is gone stays so."""
        with contextlib.suppress(HeliographError, OSError):
            self._engine.writer(channel, 0)

    async def _partitions(self, channel: str) -> int:
        try:
            return self._engine.partition_count(channel)
        except NotFound:  # making a channel touches the disk: not in the loop
            return await asyncio.to_thread(self._engine.partition_count_or_new, channel)

    async def publish_many(
        self,
        channel: str,
        payloads: Iterable[Any],
        *,
        type: str | None = None,
        key: str | None = None,
        headers: Mapping[str, HeaderValue] | None = None,
        correlation_id: str | None = None,
        wait: float | None = None,
        deliver_at: datetime | None = None,
        delay: Span | None = None,
        ttl: Span | None = None,
    ) -> list[Receipt]:
        """Publish an atomic batch; see :meth:`Station.publish_many`."""
        if deliver_at is not None or delay is not None or ttl is not None:
            return await self._call(
                self.sync_station.publish_many, channel, payloads, type=type, key=key, headers=headers,
                correlation_id=correlation_id, wait=wait, deliver_at=deliver_at, delay=delay, ttl=ttl,
            )  # fmt: skip
        wait = None if wait is None else check_seconds("wait", wait)
        batch = batch_of(payloads)
        arguments = (channel, batch, type, key, headers, correlation_id, self._resolved)
        if self._must_look(channel, type, batch):
            ticket, ids = await self._call(self._publisher.prepare_many, *arguments)
        else:
            ticket, ids = self._publisher.prepare_many(*arguments)
        if not ids:
            return []
        places = self._publisher.partitioner.many_among(await self._partitions(channel), channel, batch, key)
        if len(places) > 1:
            return await asyncio.to_thread(self._publisher.append_over, channel, places, ticket, ids)
        partition = next(iter(places))
        first = await self._commit(channel, partition, ticket, wait)
        return [Receipt(message_id, channel, partition, first + at) for at, message_id in enumerate(ids)]

    def producer(self, id: str) -> AsyncProducer:
        """A publisher that numbers its messages; see :meth:`Station.producer`."""
        return AsyncProducer(self.sync_station.producer(id))

    async def producers(self, channel: str | None = None) -> list[ProducerInfo]:
        """The producers that channels remember."""
        return await self._call(self.sync_station.producers, channel)

    async def forget_producer(self, channel: str, id: str) -> None:
        """Make room for another producer."""
        await self._call(self.sync_station.forget_producer, channel, id)

    def atomic(self) -> AsyncStep:
        """Publish to several channels, and commit what was consumed, together; see :meth:`Station.atomic`."""
        return AsyncStep(self.sync_station.atomic())

    async def _commit(self, channel: str, partition: int, ticket: Ticket, wait: float | None) -> int:
        while True:
            future: asyncio.Future[int] = self._loop.create_future()
            self._waiting[ticket] = (future, channel)
            try:
                if not self._engine.submit_if_open(channel, partition, ticket):
                    deadline = self._loop.time() + (self._wait_s if wait is None else wait)
                    await self._submit(channel, partition, ticket, deadline)
            except BaseException:
                self._waiting.pop(ticket, None)
                raise
            try:
                return await future
            except (ChannelGone, Evicted):  # deleted, or closed for room, before it was appended: open it again
                await asyncio.to_thread(self._engine.drop_closed, channel, partition)

    async def _submit(self, channel: str, partition: int, ticket: Ticket, deadline: float) -> None:
        """Opening or making a channel touches the disk, and room may have to be waited for: not in the loop."""
        while True:
            try:
                await asyncio.to_thread(self._engine.submit, channel, partition, ticket)
                return
            except Busy:
                if self._loop.time() >= deadline:
                    raise
                await asyncio.sleep(BUSY_PAUSE_S)

    def _resolved(self, tickets: list[Ticket]) -> None:
        """Called by the committing thread, once per commit."""
        with contextlib.suppress(RuntimeError):  # the loop is closed, and nobody waits in it any more
            self._loop.call_soon_threadsafe(self._set_results, tickets)

    def _set_results(self, tickets: list[Ticket]) -> None:
        waiting, channel = self._waiting, ""
        for ticket in tickets:
            future, channel = waiting.pop(ticket, (None, channel))
            if future is None or future.done():
                continue  # cancelled: the message is stored all the same
            if ticket.error is None:
                future.set_result(ticket.first)
            else:
                future.set_exception(ticket.error)
        if channel and not isinstance(tickets[0].error, ChannelGone | Evicted):  # those are on their way again
            self._publisher.settled(channel, tickets)

    async def scheduled(self, channel: str | None = None) -> AsyncIterator[Scheduled]:
        """Messages that wait for their time, those due first first."""
        found = self.sync_station.scheduled(channel)
        while page := await self._call(lambda: list(itertools.islice(found, SCHEDULE_PAGE))):
            for one in page:
                yield one

    async def scheduled_count(self) -> int:
        """How many messages wait for their time."""
        return await self._call(self.sync_station.scheduled_count)

    async def cancel(self, id: str) -> bool:
        """Forget a message that waits for its time; see :meth:`Station.cancel`."""
        return await self._call(self.sync_station.cancel, id)

    async def schedule(
        self, name: str, channel: str, data: Any = None, *, cron: str, timezone: str = "UTC", missed: Missed = "one",
        type: str | None = None, key: str | None = None, headers: Mapping[str, HeaderValue] | None = None,
        correlation_id: str | None = None, subject: str | None = None, ttl: Span | None = None,
    ) -> Schedule:  # fmt: skip
        """Publish a message again and again; see :meth:`Station.schedule`."""
        return await self._call(
            self.sync_station.schedule, name, channel, data, cron=cron, timezone=timezone, missed=missed, type=type,
            key=key, headers=headers, correlation_id=correlation_id, subject=subject, ttl=ttl,
        )  # fmt: skip

    async def schedules(self) -> list[Schedule]:
        """Every recurring schedule."""
        return await self._call(self.sync_station.schedules)

    async def unschedule(self, name: str) -> bool:
        """Remove a recurring schedule."""
        return await self._call(self.sync_station.unschedule, name)

    async def subscribe(
        self,
        channel: str,
        handler: Callable[[Any], Any],
        *,
        name: str | None = None,
        group: bool = False,
        start: Start = "new",
        batch: bool = False,
        concurrency: int = 1,
        retry: Retry | None = None,
        timeout_s: float | None = None,
        buffer: int | None = None,
        overflow: OverflowPolicy = "block",
        on_gap: OnGap | None = None,
        paused: bool = False,
        where: Choice | None = None,
        queue: bool = False,
        visibility_s: float | timedelta | None = None,
        max_in_flight: int | None = None,
        max_deliveries: int | None = None,
    ) -> AsyncSubscription:
        """Subscribe; async handlers run in this event loop, plain ones in a thread. See :meth:`Station.subscribe`."""
        subscription = await made(
            lambda: self.sync_station.subscribe(
                channel,
                handler,
                name=name,
                group=group,
                start=start,
                batch=batch,
                concurrency=concurrency,
                retry=retry,
                timeout_s=timeout_s,
                buffer=buffer,
                overflow=overflow,
                on_gap=on_gap,
                paused=paused,
                where=where,
                event_loop=self._loop,
                queue=queue,
                visibility_s=visibility_s,
                max_in_flight=max_in_flight,
                max_deliveries=max_deliveries,
            ),
            lambda begun: begun.close(),
        )
        return AsyncSubscription(subscription)

    async def queue(
        self,
        channel: str,
        name: str,
        *,
        start: Start = "new",
        visibility_s: float | timedelta | None = None,
        max_in_flight: int | None = None,
        max_deliveries: int | None = None,
        on_gap: OnGap | None = None,
    ) -> AsyncQueue:
        """Become a worker of a queue and pull its messages; see :meth:`Station.queue`."""
        queue = await made(
            lambda: self.sync_station.queue(
                channel, name, start=start, visibility_s=visibility_s, max_in_flight=max_in_flight,
                max_deliveries=max_deliveries, on_gap=on_gap,
            ),
            lambda opened: opened.close(),
        )  # fmt: skip
        return AsyncQueue(queue, self._waiters)

    async def queues(self, channel: str | None = None) -> list[QueueInfo]:
        """Every queue, of one channel or of all."""
        return await self._call(self.sync_station.queues, channel)

    async def queue_info(self, channel: str, name: str) -> QueueInfo:
        """One queue as it is now, with its leases."""
        return await self._call(self.sync_station.queue_info, channel, name)

    async def release(
        self, channel: str, name: str, *, worker: str | None = None, partition: int = 0, offset: int | None = None
    ) -> int:
        """Take leases of a queue away."""
        return await self._call(
            self.sync_station.release, channel, name, worker=worker, partition=partition, offset=offset
        )

    async def requeue(self, channel: str, name: str, places: Iterable[tuple[int, int]]) -> int:
        """Hand messages of a queue out again that are done."""
        return await self._call(self.sync_station.requeue, channel, name, places)

    async def read(
        self,
        channel: str,
        *,
        start: Start = "first",
        end: Start | None = None,
        partition: int | None = None,
        follow: bool = False,
        on_gap: Callable[[Gap], Any] | None = None,
        where: Choice | None = None,
    ) -> AsyncIterator[Message]:
        """Iterate over messages; see :meth:`Station.read`."""
        pieces = await made(
            lambda: self.sync_station.open_range(channel, start, end, follow, on_gap, partition, where),
            lambda opened: opened.close(),
        )
        left = False
        try:
            while not pieces.done:
                try:
                    threads = self._waiters.threads() if follow else None
                    messages = await attended(lambda: pieces.next(WAIT_SLICE_S), pieces.close, threads)
                except asyncio.CancelledError:
                    left = True  # a thread may be at it still: it closes it
                    raise
                for message in messages:
                    yield message
        finally:
            if not left:
                await self._call(pieces.close)

    async def request(
        self,
        channel: str,
        data: Any = None,
        *,
        timeout: Duration = TIMEOUT_S,  # noqa: ASYNC109 - the same meaning as in the synchronous station
        type: str | None = None,
        key: str | None = None,
        headers: Mapping[str, HeaderValue] | None = None,
        correlation_id: str | None = None,
        subject: str | None = None,
    ) -> Message:
        """Publish a request and wait for its reply; see :meth:`Station.request`."""
        requests = self.sync_station.requests
        until = self._loop.time() + seconds(timeout)
        if requests.ready:
            request = requests.begin(channel, timeout)
        else:  # making the channel of replies touches the disk
            request = await self._call(requests.begin, channel, timeout)
        try:
            await self.publish(
                channel, data, type=type, key=key, headers=request.headers(headers), correlation_id=correlation_id,
                subject=subject, id=request.id,
            )  # fmt: skip
            async with asyncio.timeout_at(until):
                return await asyncio.wrap_future(request.future)
        except TimeoutError:
            raise request.timed_out() from None
        finally:
            requests.end(request)

    async def reply(
        self, channel: str, handler: Callable[[Any], Any], *, name: str | None = None, **options: Any
    ) -> AsyncSubscription:
        """Answer the requests of a channel; see :meth:`Station.reply`."""
        subscription = await made(
            lambda: self.sync_station.reply(channel, handler, name=name, event_loop=self._loop, **options),
            lambda begun: begun.close(),
        )
        return AsyncSubscription(subscription)

    async def _call(self, function: Callable[..., _T], *arguments: Any, **named: Any) -> _T:
        return await asyncio.to_thread(lambda: function(*arguments, **named))

    async def get(self, id: str, channel: str | None = None) -> Message | None:
        """Look a message up by its id."""
        return await self._call(self.sync_station.get, id, channel)

    async def redact(self, id: str, *, channel: str | None = None, reason: str = "") -> Receipt:
        """Take a message out of the log for good."""
        return await self._call(self.sync_station.redact, id, channel=channel, reason=reason)

    async def channels(self, *, replies: bool = False) -> list[ChannelInfo]:
        """Every channel of the station."""
        return await self._call(self.sync_station.channels, replies=replies)

    async def channel(self, name: str) -> ChannelInfo:
        """One channel as it is now."""
        return await self._call(self.sync_station.channel, name)

    async def create_channel(self, name: str, *, partitions: int | None = None, **settings: Any) -> ChannelInfo:
        """Make a channel."""
        return await self._call(self.sync_station.create_channel, name, partitions=partitions, **settings)

    async def alter_channel(self, name: str, *, partitions: int | None = None, **settings: Any) -> ChannelInfo:
        """Change a channel's settings, or let it grow."""
        return await self._call(self.sync_station.alter_channel, name, partitions=partitions, **settings)

    async def delete_channel(self, name: str) -> None:
        """Delete a channel with its data."""
        await self._call(self.sync_station.delete_channel, name)

    async def types(self, channel: str | None = None) -> list[TypeInfo]:
        """The JSON Schemas of the types that were published."""
        return await self._call(self.sync_station.types, channel)

    async def trim(self, channel: str | None = None) -> list[Trimmed]:
        """Apply retention, rotation by age, compaction and compression now."""
        return await self._call(self.sync_station.trim, channel)

    async def subscriptions(self, channel: str | None = None) -> list[SubscriptionInfo]:
        """Every durable subscription, live or not."""
        return await self._call(self.sync_station.subscriptions, channel)

    async def groups(self, channel: str | None = None) -> list[GroupInfo]:
        """Every group, with its workers and what each delivers."""
        return await self._call(self.sync_station.groups, channel)

    async def seek(
        self, channel: str, name: str, to: Start, *, partition: int | None = None, dry_run: bool = False
    ) -> SeekResult:
        """Move a durable subscription."""
        return await self._call(self.sync_station.seek, channel, name, to, partition=partition, dry_run=dry_run)

    async def forget(self, channel: str, name: str) -> None:
        """Remove a durable subscription's position."""
        await self._call(self.sync_station.forget, channel, name)

    async def stats(self) -> StationStats:
        """Counts, rates, lag and latencies."""
        return await self._call(self.sync_station.stats)

    async def links(self) -> list[LinkInfo]:
        """Every link to a hub, and every peer of this hub, as it is now."""
        return await self._call(self.sync_station.links)

    async def sync(self) -> None:
        """Make everything durable that this process has published."""
        await self._call(self.sync_station.sync)

    async def close(self) -> None:
        """Stop the subscriptions, sync, and let go of the directory.

        That goes on if whoever awaits it is cancelled; closing again then waits for the end of it.
        """
        loop, closing = asyncio.get_running_loop(), self._closing
        if closing is None or closing.done() or closing.get_loop() is not loop:  # the loop it was opened in may be over
            closing = self._closing = loop.create_task(self._close())
        await asyncio.shield(closing)

    async def _close(self) -> None:
        try:
            await surely(self.sync_station.close)
        finally:
            self._waiters.close()
            for future, _ in self._waiting.values():
                if not future.done():
                    future.set_exception(StationClosed("the station was closed before this message was stored"))
                    future.exception()  # seen: whoever published may hear the same from the thread that submits

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
