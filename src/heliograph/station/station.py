"""A station: one participant with its own data directory, embedded in an application."""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import msgspec

from heliograph import config as configs
from heliograph.arguments import check_callable
from heliograph.clock import SYSTEM_CLOCK, Clock, from_us
from heliograph.config import Config
from heliograph.delivery import Flusher, Lookout, Retry, Subscription, start_subscription
from heliograph.delivery.deadletter import DEAD_LETTER_TYPE, DeadLetterIdentity
from heliograph.delivery.invoke import check_handler, is_async
from heliograph.delivery.ports import OnGap, OverflowPolicy, PublishDeadLetter
from heliograph.delivery.retry import check_retry
from heliograph.disk import SYSTEM_DISK, Disk, anchored, explaining
from heliograph.engine.files import FilesEngine
from heliograph.errors import ConfigError, InvalidArgument, NotFound, StationClosed, SubscriptionBusy
from heliograph.filters import Choice, sieve_of
from heliograph.keywords import quick_keywords
from heliograph.log.channel import ChannelSettings
from heliograph.message import Gap, HeaderValue, Message, Receipt
from heliograph.names import check_name, check_ownable
from heliograph.patterns import is_pattern
from heliograph.payloads import Payloads
from heliograph.station import links
from heliograph.station.answers import Answering, Answers, AsyncReplier, Replier
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
from heliograph.station.letters import recent_letters
from heliograph.station.links import LinkInfo
from heliograph.station.observer import Observer
from heliograph.station.publisher import Publisher
from heliograph.station.reader import find
from heliograph.station.requests import TIMEOUT_S, Duration, Requests
from heliograph.station.starts import Start, partitions_for, resolve
from heliograph.station.stats import Meters, StationStats
from heliograph.station.timetable import Timetable
from heliograph.station.types import Types
from heliograph.station.upkeep import Upkeep

if TYPE_CHECKING:
    from heliograph.delivery.queues import Queue
    from heliograph.schedule.cron import Missed
    from heliograph.schedule.recurring import Schedule
    from heliograph.schedule.times import Span
    from heliograph.schedule.waiting import Scheduled
    from heliograph.station.atomic import Step
    from heliograph.station.merging import AnyRange
    from heliograph.station.producer import Producer
    from heliograph.station.queues import Queues

Handler = Callable[[Any], Any]


def open_station(
    path: str | os.PathLike[str] | None = None,
    *,
    name: str | None = None,
    config: Config | Mapping[str, Any] | str | os.PathLike[str] | None = None,
    read_only: bool = False,
    disk: Disk = SYSTEM_DISK,
    clock: Clock = SYSTEM_CLOCK,
    **settings: Any,
) -> Station:
    """Open a data directory without its links: see ``heliograph.open``, which takes the same."""
    if path is not None:
        if not isinstance(path, str | os.PathLike):
            raise InvalidArgument(f"path is {path!r}; use the data directory, as text or a Path")
        settings["data_dir"] = os.fspath(path)
    if name is not None:
        settings["name"] = check_name(name, "station")
    loaded = config.with_settings(**settings) if isinstance(config, Config) else configs.load(config, **settings)
    return Station(loaded, read_only=read_only, disk=disk, clock=clock)


class Station:
    """One participant with its own data directory. Safe to use from any number of threads.

    Any number of processes may open the same directory at once.
    """

    def __init__(
        self,
        config: Config,
        *,
        read_only: bool = False,
        disk: Disk = SYSTEM_DISK,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.config = config
        self.path = anchored(config.storage.data_dir)
        self.read_only = read_only
        self.payloads = Payloads()
        self.engine = FilesEngine(self.path, config, read_only=read_only, disk=disk, clock=clock)
        self.name = self.engine.name
        self._meters = Meters()
        self.type_checks = Types(self.engine, self.payloads)
        self.publisher = Publisher(self.engine, self.payloads, self.type_checks, config, self._meters)
        self.engine.on_new_life = self.publisher.forget_channel
        self._publish = self.publisher.publish
        self._publish_plain = self.publisher.publish_plain
        self._publish_batch = self.publisher.publish_batch
        self._observer = Observer(self.engine)
        self.timetable = Timetable(self.engine, self.publisher)
        self._upkeep = Upkeep(self.engine, self.timetable.look)
        self.requests = Requests(self.engine, self._publish)
        self.answers = Answers(self.name, self._publish_reply, self._publish_dead_letter)
        self._flusher = Flusher(config.storage.position_flush_ms)
        self._lookout = Lookout()
        self._subscriptions: set[Subscription] = set()
        self._pulled: set[Queue] = set()
        self._queues_made: Queues | None = None
        self._closing = False
        self._lock = threading.Lock()
        self._ending = threading.RLock()  # a signal may come while it is held, and close once more
        self.on_close: list[Callable[[], None]] = []
        """Called first when the station is closed: for what runs on top of it."""
        self.live_links: Callable[[], list[LinkInfo]] | None = None
        """Given by whatever runs the links in this process."""
        self.known_links: Callable[[Station], list[LinkInfo]] | None = None
        """Given by whoever knows how far behind links are that are not up."""
        self._opened_s = clock.monotonic()
        self._always = config.storage.durability == "always"

    # -- publishing -------------------------------------------------------------------------------------------

    def register(self, type_name: str, cls: Any) -> None:
        """Say which class the payloads of a type are: a msgspec.Struct, dataclass, pydantic model or plain type.

        Publishing then checks payloads before anything is written, and subscribers receive objects of the class.
        """
        self.payloads.register(type_name, cls)
        self.engine.decode_payloads(self.payloads.decoder)
        self.publisher.forget_routes()

    @quick_keywords
    def publish(
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
        """Publish one message. When this returns, it is on disk (see the setting storage.durability).

        ``wait`` is how many seconds to wait when too much is waiting for the disk already; by default Busy is
        raised at once (setting publishing.when_full). With ``deliver_at`` (a time) or ``delay`` (seconds or a
        timedelta) it is appended then, and what is returned is a :class:`Scheduled`. After ``ttl`` it is not
        delivered any more; that counts from when it is due.
        """
        if deliver_at is not None or delay is not None or ttl is not None:
            return self.timetable.publish(
                channel, data, type, key, headers, correlation_id, subject, id, wait, deliver_at, delay, ttl
            )
        if headers is None and correlation_id is None and subject is None and id is None and wait is None:
            receipt = self._publish_plain(channel, data, type, key)
            if receipt is not None:
                return receipt
        return self._publish(channel, data, type, key, headers, correlation_id, subject, id, wait)

    def publish_many(
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
        """Publish a batch with one append: after a crash all of it is there, or nothing.

        Items are payloads, or :class:`Draft` where messages differ in more than their data. ``deliver_at``,
        ``delay`` and ``ttl`` are those of :meth:`publish`, for the whole batch.
        """
        if deliver_at is not None or delay is not None or ttl is not None:
            return self.timetable.publish_many(
                channel, payloads, type, key, headers, correlation_id, wait, deliver_at, delay, ttl
            )
        if headers is None and correlation_id is None and wait is None:
            receipts = self._publish_batch(channel, payloads, type, key)
            if receipts is not None:
                return receipts
        return self.publisher.publish_many(channel, payloads, type, key, headers, correlation_id, wait)

    @explaining("cannot open the producer")
    def producer(self, id: str) -> Producer:
        """A publisher that numbers its messages, so that publishing one again is recognised, whenever that is.

        Whoever opens a producer replaces the one of the same id that is still about: that one is refused from then on
        (ProducerFenced).
        """
        from heliograph.station.producer import Producer

        self.engine.check_writable()
        return Producer(self.engine, self.publisher, id)

    @explaining("cannot list the producers")
    def producers(self, channel: str | None = None) -> list[ProducerInfo]:
        """The producers that channels remember, of one channel or of all."""
        names = self.engine.channel_names() if channel is None else [check_name(channel)]
        known = self.engine.producers
        return [
            ProducerInfo(channel=name, producer=producer, epoch=known.epoch(producer), last=state.seq)
            for name in names
            for producer, state in known.states(name).items()
        ]

    @explaining("cannot forget the producer")
    def forget_producer(self, channel: str, id: str) -> None:
        """Make room for another producer: what this one publishes again is not recognised any more."""
        self.engine.check_writable()
        self.engine.producers.forget(channel, id)
        self.engine.audit.write("producer-forgotten", channel=channel, producer=id)

    def atomic(self) -> Step:
        """Publish to several channels, and commit what was consumed, together or not at all.

        >>> import heliograph as hg, tempfile
        >>> with hg.open(tempfile.mkdtemp(), name="host1") as station:
        ...     with station.atomic() as step:
        ...         _ = step.publish("orders", {"order": 7})
        ...         _ = step.publish("audit", "order 7 was placed")
        ...     [receipt.channel for receipt in step.receipts]
        ['orders', 'audit']
        """
        from heliograph.station.atomic import Step

        self.engine.check_writable()
        return Step(self.engine, self.publisher)

    # -- publishing later -------------------------------------------------------------------------------------

    @explaining("cannot read the schedule")
    def scheduled(self, channel: str | None = None) -> Iterator[Scheduled]:
        """Messages that wait for their time, those due first first."""
        return self.timetable.scheduled(channel)

    @explaining("cannot read the schedule")
    def scheduled_count(self) -> int:
        """How many messages wait for their time."""
        return self.timetable.count()

    @explaining("cannot cancel")
    def cancel(self, id: str) -> bool:
        """Forget a message that waits for its time. False if it is not there, any more or already on its way."""
        return self.timetable.cancel(id)

    @explaining("cannot schedule")
    def schedule(
        self,
        name: str,
        channel: str,
        data: Any = None,
        *,
        cron: str,
        timezone: str = "UTC",
        missed: Missed = "one",
        type: str | None = None,
        key: str | None = None,
        headers: Mapping[str, HeaderValue] | None = None,
        correlation_id: str | None = None,
        subject: str | None = None,
        ttl: Span | None = None,
    ) -> Schedule:
        """Publish a message again and again, at the times of a cron expression. Durable; the same name changes it.

        ``missed`` says what becomes of firings while no process had the station open: "one" message for all of
        them, "all" of them, or "skip". To call this at every start of an application is fine.

        >>> import heliograph as hg, tempfile
        >>> with hg.open(tempfile.mkdtemp(), name="host1") as station:
        ...     schedule = station.schedule("report", "reports", {"kind": "daily"}, cron="0 6 * * MON-FRI")
        ...     schedule.next.hour, [one.name for one in station.schedules()], station.unschedule("report")
        (6, ['report'], True)
        """
        return self.timetable.schedule(
            name, channel, data, cron, timezone, missed, type, key, headers, correlation_id, subject, ttl
        )

    @explaining("cannot read the schedule")
    def schedules(self) -> list[Schedule]:
        """Every recurring schedule."""
        return self.timetable.schedules()

    @explaining("cannot unschedule")
    def unschedule(self, name: str) -> bool:
        """Remove a recurring schedule. False if there is none of that name."""
        return self.timetable.unschedule(name)

    # -- subscribing ------------------------------------------------------------------------------------------

    @explaining("cannot subscribe")
    def subscribe(
        self,
        channel: str,
        handler: Handler,
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
        event_loop: Any = None,
        queue: bool = False,
        visibility_s: float | timedelta | None = None,
        max_in_flight: int | None = None,
        max_deliveries: int | None = None,
    ) -> Subscription:
        """Call ``handler`` with every message of a channel, at least once, in order within a partition.

        With a ``name`` the subscription is durable: it resumes where it stopped, and ``start`` only says where a
        new one begins. Without, it is ephemeral. A handler that raises is called again (``retry``), then the
        message goes to the channel's dead letters.

        With ``group=True`` any number of workers, in threads and processes, may subscribe under the name; each
        delivers some of the partitions, and the others take over those of a worker that leaves or dies.
        With ``queue=True`` it is one of any number of workers of a queue: each message goes to one of them, in any
        order, leased for ``visibility_s`` and for as long as the handler runs. The last three are the queue's
        settings, for all workers; see :meth:`queue`.

        The channel may be a pattern: ``sensors.*.temp`` (one word), ``sensors.>`` (one or more). Channels made
        later are heard from their first message on. ``where`` leaves out what nobody needs to decode:

        >>> import heliograph as hg, tempfile, time
        >>> heard = []
        >>> with hg.open(tempfile.mkdtemp(), name="host1") as station:
        ...     wanted = hg.Filter(type="com.example.*")
        ...     with station.subscribe("sensors.>", heard.append, where=wanted):
        ...         receipt = station.publish("sensors.kitchen", 21.5, type="com.example.temp.v1")
        ...         while not heard:
        ...             time.sleep(0.01)
        >>> heard[0].channel, heard[0].data
        ('sensors.kitchen', 21.5)
        """
        sieve, pattern = sieve_of(where), is_pattern(channel)
        check_retry(retry)
        if not pattern:
            check_name(channel)
        elif group or queue:
            raise ConfigError(f"'{channel}' is a pattern; the workers of a group or queue share one channel: name it")
        bury = _burying(handler) or self._publish_dead_letter
        wanted = {"visibility_s": visibility_s, "max_in_flight": max_in_flight, "max_deliveries": max_deliveries}
        if queue:
            if where is not None:
                raise ConfigError("a queue's messages go to all its workers alike: leave out where, or queue=True")
            return self._keep(self._queues.subscribe(
                channel, handler, name=name, start=start, wanted=wanted, batch=batch, concurrency=concurrency,
                retry=retry, timeout_s=timeout_s, overflow=overflow, on_gap=on_gap, paused=paused, bury=bury,
                event_loop=event_loop, forget=self.forget, on_closed=self._on_closed,
            ))  # fmt: skip
        if any(value is not None for value in wanted.values()):
            raise ConfigError("visibility_s, max_in_flight and max_deliveries are for queues: add queue=True")
        if name is not None:
            check_name(name, "subscription")
            self.engine.check_writable()
        begin = functools.partial(
            self._begin, handler=handler, name=name, group=group, batch=batch, concurrency=concurrency,
            retry=retry or self._default_retry(),
            timeout_s=self.config.subscribers.timeout_s or None if timeout_s is None else timeout_s,
            buffer=buffer or self.config.subscribers.buffer, overflow=overflow, on_gap=on_gap,
            sieve=sieve, publish_dead_letter=bury,
        )  # fmt: skip
        if pattern:
            from heliograph.station.wildcards import subscribe_pattern

            return self._keep(subscribe_pattern(
                self.engine, channel, begin, start=start, paused=paused, event_loop=event_loop,
                on_closed=self._on_closed,
            ))  # fmt: skip
        self.engine.ensure(channel)
        partitions_for(self.engine, channel, None, start)
        return begin(channel, start, paused=paused, event_loop=event_loop)

    def _begin(self, channel: str, start: Start, **options: Any) -> Subscription:
        """Subscribe to one channel, which is there."""
        return self._keep(start_subscription(
            engine=self.engine, channel=channel, start=lambda number: resolve(self.engine, channel, start, number),
            flusher=self._flusher, lookout=self._lookout, recent_dead_letters=self._recent_dead_letters,
            on_closed=self._on_closed, clock=self.engine.clock, **options,
        ))  # fmt: skip

    def _keep(self, subscription: Subscription) -> Subscription:
        with self._lock:
            late = self._closing
            if not late and not subscription.closed:
                self._subscriptions.add(subscription)
        if late:  # closed while it began, and nobody else will stop it
            subscription.close()
            raise StationClosed("the station is closed")
        return subscription

    # -- queues -------------------------------------------------------------------------------------------------

    @explaining("cannot open the queue")
    def queue(
        self,
        channel: str,
        name: str,
        *,
        start: Start = "new",
        visibility_s: float | timedelta | None = None,
        max_in_flight: int | None = None,
        max_deliveries: int | None = None,
        on_gap: OnGap | None = None,
    ) -> Queue:
        """Become a worker of a queue and pull its messages, each leased to one worker and acknowledged by itself.

        A new queue begins at ``start``. Its settings are kept with it and hold for all workers; None leaves them
        as they are.

        >>> import heliograph as hg, tempfile
        >>> with hg.open(tempfile.mkdtemp(), name="host1") as station, station.queue("images", "resize") as queue:
        ...     receipt = station.publish("images", {"file": "cat.png"})
        ...     for job in queue.receive(max_messages=10, wait_s=5):
        ...         print(job.message.data["file"], job.deliveries)
        ...         job.ack()
        cat.png 1
        """
        wanted = {"visibility_s": visibility_s, "max_in_flight": max_in_flight, "max_deliveries": max_deliveries}
        queue = self._queues.pull(channel, name, start=start, wanted=wanted, on_gap=on_gap, closed=self._pulled.discard)
        self._pulled.add(queue)
        return queue

    @property
    def _queues(self) -> Queues:
        """Made when the first queue is asked for: SQLite takes time to load."""
        if self._queues_made is None:
            from heliograph.station.queues import Queues

            with self._lock:
                if self._queues_made is None:
                    self._queues_made = Queues(
                        self.engine, self._flusher, self._publish_dead_letter, self._recent_dead_letters,
                        self._default_retry(), self.engine.ensure,
                    )  # fmt: skip
        return self._queues_made

    @explaining("cannot list the queues")
    def queues(self, channel: str | None = None) -> list[QueueInfo]:
        """Every queue, of one channel or of all."""
        return self._queues.infos(check_name(channel) if channel is not None else None)

    @explaining("cannot look at the queue")
    def queue_info(self, channel: str, name: str) -> QueueInfo:
        """One queue as it is now, with its leases."""
        return self._queues.info(channel, name)

    @explaining("cannot release")
    def release(
        self, channel: str, name: str, *, worker: str | None = None, partition: int = 0, offset: int | None = None
    ) -> int:
        """Take leases of a queue away: of one message, of a worker, or all. Somebody else gets them; how many."""
        return self._queues.release(channel, name, worker, None if offset is None else (partition, offset))

    @explaining("cannot requeue")
    def requeue(self, channel: str, name: str, places: Iterable[tuple[int, int]]) -> int:
        """Hand messages of a queue out again that are done: (partition, offset) of each; how many there were."""
        return self._queues.requeue(channel, name, places)

    def _default_retry(self) -> Retry:
        settings = self.config.subscribers
        return Retry(
            max_retries=settings.max_retries, base_s=settings.backoff_base_ms / 1000,
            max_s=settings.backoff_max_ms / 1000, jitter=settings.backoff_jitter,
        )  # fmt: skip

    def _publish_dead_letter(self, channel: str, payload: dict[str, Any], key: str | None) -> Receipt:
        receipt = self.publisher.publish_own(channel, DEAD_LETTER_TYPE, payload, key)
        if not self._always:
            self.engine.write(channel, 0, lambda partition: partition.sync_through(receipt.offset + 1))
        return receipt

    def _recent_dead_letters(self, channel: str, since_us: int) -> Iterator[DeadLetterIdentity]:
        return recent_letters(self, channel, since_us)

    def _on_closed(self, subscription: Subscription) -> None:
        with self._lock:
            self._subscriptions.discard(subscription)

    # -- reading ----------------------------------------------------------------------------------------------

    def read(
        self,
        channel: str,
        *,
        start: Start = "first",
        end: Start | None = None,
        partition: int | None = None,
        follow: bool = False,
        on_gap: Callable[[Gap], Any] | None = None,
        where: Choice | None = None,
    ) -> Iterator[Message]:
        """Messages from ``start`` to ``end`` (by default what is there now); ``follow=True`` waits for more.

        All partitions, merged by time (when following: as they come), or one ``partition`` in the order of its
        offsets. ``on_gap`` is told of offsets that cannot be read any more. The channel may be a pattern, as in
        ``subscribe``: then the messages of all channels come in the order of their times. ``where`` leaves out
        what does not fit a :class:`Filter`.
        """
        return iter(self.open_range(channel, start, end, follow, on_gap, partition, where))

    @explaining("cannot read")
    def open_range(
        self, channel: str, start: Start, end: Start | None, follow: bool, on_gap: Callable[[Gap], Any] | None,
        partition: int | None = None, where: Choice | None = None,
    ) -> AnyRange:  # fmt: skip
        """What read() iterates over, for callers that fetch a batch at a time."""
        from heliograph.station.merging import open_any

        check_callable("on_gap", on_gap)
        return open_any(
            self.engine, channel, start, end, partition, follow=follow, on_gap=on_gap, sieve=sieve_of(where)
        )

    @explaining("cannot look a message up")
    def get(self, id: str, channel: str | None = None) -> Message | None:
        """Look a message up by its id, in one channel or all. Its UUIDv7 says when, so little is searched."""
        return next(find(self.engine, id, None if channel is None else check_name(channel)), None)

    @explaining("cannot redact")
    def redact(self, id: str, *, channel: str | None = None, reason: str = "") -> Receipt:
        """Take a message out of the log for good; its line becomes blank, all offsets stay. Audited."""
        message = self.get(id, channel)
        if message is None:
            raise NotFound(f"there is no message with id {id!r}" + (f" in channel '{channel}'" if channel else ""))
        self.engine.producers.cover(message.channel)
        self.engine.redact(message.channel, message.partition, [message.offset])
        self.engine.audit.write(
            "redacted", channel=message.channel, partition=message.partition, offset=message.offset, id=id,
            reason=reason,
        )  # fmt: skip
        return Receipt(id, message.channel, message.partition, message.offset)

    # -- asking and answering ---------------------------------------------------------------------------------

    def request(
        self,
        channel: str,
        data: Any = None,
        *,
        timeout: Duration = TIMEOUT_S,
        type: str | None = None,
        key: str | None = None,
        headers: Mapping[str, HeaderValue] | None = None,
        correlation_id: str | None = None,
        subject: str | None = None,
    ) -> Message:
        """Publish a request and wait for its reply, from whatever process answers.

        ReplyTimeout if none came in time; ReplyFailed if the handler gave up. The request is an ordinary message:
        nobody may have answered it, but it is in the log.
        """
        return self.requests.ask(channel, data, timeout, type, key, headers, correlation_id, subject)

    def reply(
        self, channel: str, handler: Handler, *, name: str | None = None, event_loop: Any = None, **options: Any
    ) -> Subscription:
        """Answer the requests of a channel with what ``handler`` returns (a Draft, to say more than data).

        A subscription in every respect, with the options of :meth:`subscribe`. When the handler gave up, whoever
        asked gets ReplyFailed, and the request is in the dead letters.

        >>> import heliograph as hg, tempfile
        >>> with hg.open(tempfile.mkdtemp(), name="host1") as station:
        ...     replier = station.reply("prices", lambda request: request.data["amount"] * 3)
        ...     station.request("prices", {"amount": 14}, timeout=30).data
        42
        """
        if options.get("batch"):
            raise ConfigError("reply answers requests one by one; leave out batch")
        self.engine.check_writable()  # replies are published
        kind = AsyncReplier if is_async(handler) else Replier
        check_handler(handler)
        answering = kind(handler, self.answers)
        if not is_pattern(channel):
            check_ownable(channel)
        return self.subscribe(channel, answering, name=name, event_loop=event_loop, **options)

    def _publish_reply(self, channel: str, *arguments: Any) -> Receipt:
        try:
            return self._publish(channel, *arguments)
        finally:
            self._meters.forget([channel])  # there are as many of these as there were processes that asked

    # -- channels ---------------------------------------------------------------------------------------------

    @explaining("cannot list the channels")
    def channels(self, *, replies: bool = False) -> list[ChannelInfo]:
        """Every channel of the station; with ``replies=True`` also those that requests are answered in."""
        return self._observer.channels(replies)

    @explaining("cannot describe the channel")
    def channel(self, name: str) -> ChannelInfo:
        """One channel as it is now."""
        return self._observer.channel(name)

    @explaining("cannot create the channel")
    def create_channel(self, name: str, *, partitions: int | None = None, **settings: Any) -> ChannelInfo:
        """Make a channel, with settings of its own where given (see ChannelSettings).

        ``partitions`` is by default what the setting storage.partitions says.
        """
        own = _channel_settings(settings)
        self.engine.create(check_ownable(name), own, partitions=partitions, exist_ok=False)
        return self.channel(name)

    @explaining("cannot alter the channel")
    def alter_channel(self, name: str, *, partitions: int | None = None, **settings: Any) -> ChannelInfo:
        """Change a channel's settings; None goes back to the station's.

        ``partitions`` can grow, not shrink. What is published then spreads over all of them; what was published
        stays where it is, so that a key may from then on have messages in two partitions.
        """
        changed = _channel_settings(settings)
        self.engine.describe(name)
        self.engine.alter(
            name,
            lambda file: msgspec.structs.replace(
                file,
                partitions=file.partitions if partitions is None else partitions,
                settings=msgspec.structs.replace(file.settings, **{key: getattr(changed, key) for key in settings}),
            ),
        )
        return self.channel(name)

    @explaining("cannot delete the channel")
    def delete_channel(self, name: str) -> None:
        """Delete a channel with its data and its subscriptions' positions. Making it again starts empty.

        SubscriptionBusy while a subscriber is live; not for a wildcard's sake, which drops the channel and goes on.
        """
        check_name(name)
        self.engine.check_writable()
        wildcards = self.engine.wildcards
        dropping = {wildcard for wildcard in wildcards.hearing(name) if wildcards.live(wildcard)}
        live = sorted({info.name for info in self.subscriptions(name) if info.live} - dropping)
        if live:
            raise SubscriptionBusy(f"channel '{name}' has live subscribers: {', '.join(live)}. Close them first.")
        self.engine.delete(name)
        self._meters.forget([name])
        self.publisher.forget_channel(name)

    @explaining("cannot list the types")
    def types(self, channel: str | None = None) -> list[TypeInfo]:
        """The JSON Schema of every registered type that was published, each version, of one channel or all.

        >>> import heliograph as hg, tempfile
        >>> with hg.open(tempfile.mkdtemp(), name="host1") as station:
        ...     station.register("com.example.reading.v1", dict[str, float])
        ...     receipt = station.publish("readings", {"cpu": 0.93}, type="com.example.reading.v1")
        ...     [(info.channel, info.type, info.version) for info in station.types()]
        [('readings', 'com.example.reading.v1', 1)]
        """
        return self.type_checks.stored(channel)

    @explaining("cannot trim")
    def trim(self, channel: str | None = None) -> list[Trimmed]:
        """Apply retention, rotation by age, compaction and compression now instead of within seconds."""
        self.engine.check_writable()
        return self._upkeep.tidy(check_name(channel) if channel is not None else None)

    # -- subscriptions ----------------------------------------------------------------------------------------

    @explaining("cannot list the subscriptions")
    def subscriptions(self, channel: str | None = None) -> list[SubscriptionInfo]:
        """Every durable subscription, live or not: a line for each of its partitions."""
        found = self._observer.subscriptions(channel)
        return self._queues.counted(found) if any(one.kind == "queue" for one in found) else found

    @explaining("cannot list the groups")
    def groups(self, channel: str | None = None) -> list[GroupInfo]:
        """Every group: its live workers, which of them delivers which partition, and how far it lags."""
        return self._observer.groups(channel)

    @explaining("cannot seek")
    def seek(
        self, channel: str, name: str, to: Start, *, partition: int | None = None, dry_run: bool = False
    ) -> SeekResult:
        """Move a durable subscription to an offset, a time, ``first`` or ``new``. It must not be live.

        All of its partitions, or one; an offset means a place in one only. ``dry_run=True`` says what it would do.
        """
        from heliograph.station.seeking import seek

        return seek(
            self.engine, channel, name, to, partition=partition, dry_run=dry_run,
            then=lambda targets: self._queues.reset(channel, name, targets),
        )  # fmt: skip

    @explaining("cannot forget the subscription")
    def forget(self, channel: str, name: str) -> None:
        """Remove a durable subscription's position, or all of a wildcard's. It must not be live."""
        check_name(name, "subscription")
        self.engine.check_writable()
        if is_pattern(channel):
            from heliograph.station.wildcards import forget_pattern

            return forget_pattern(self.engine, channel, name)
        check_name(channel)
        if name not in self.engine.positions.names(channel):
            self.engine.describe(channel)  # perhaps it is the channel that is not there
            raise NotFound(f"channel '{channel}' has no subscription '{name}'")
        lease = self.engine.subscription_lease(channel, name)
        try:
            self.engine.forget_position(channel, name)
            self.engine.audit.write("subscription-forgotten", channel=channel, subscription=name)
        finally:
            lease.release()

    # -- numbers and life ---------------------------------------------------------------------------------------

    @explaining("cannot collect the numbers")
    def stats(self) -> StationStats:
        """Counts, rates, lag and latencies of everything, at this moment."""
        self.engine.check_open()
        with self._lock:
            live = list(self._subscriptions)
        scheduled, scheduled_failed = self.timetable.numbers()
        return StationStats(
            name=self.name, path=str(self.path), uptime_s=self.engine.clock.monotonic() - self._opened_s,
            durability=self.config.storage.durability, open_partitions=len(self.engine.open_partitions()),
            pending_bytes=self.engine.pending_bytes(), trimmed_messages=self._upkeep.trimmed_messages,
            trimmed_unread=self._upkeep.trimmed_unread, compacted_messages=self._upkeep.compacted_messages,
            compacted_bytes=self._upkeep.compacted_bytes, scheduled=scheduled,
            scheduled_failed=scheduled_failed, requests_waiting=self.requests.waiting,
            late_replies=self.requests.late, audit_failures=self.engine.audit.failed,
            channels=self._observer.channel_stats(self._meters),
            subscriptions=[
                stats for one in live if not is_pattern(one.channel) for stats in one.partition_stats()
            ],
            queues=self.queues(),
            certificates=links.certificates(self.path, self.engine.disk, from_us(self.engine.clock.time_ns() // 1000)),
        )  # fmt: skip

    @explaining("cannot look at the links")
    def links(self) -> list[LinkInfo]:
        """Every link to a hub, and every peer of this hub, as it is now; whichever process runs them.

        The state may be a second old. The lag of what is not up, or is parked, is counted in the log now.
        """
        self.engine.check_open()
        return links.load(self.path, self.engine.disk) if self.known_links is None else self.known_links(self)

    @explaining("cannot sync")
    def sync(self) -> None:
        """Make everything durable that this process has published (durability ``interval`` and ``os``)."""
        self.engine.sync()

    @property
    def closed(self) -> bool:
        """Whether it was closed, or belongs to the parent of this forked process."""
        return self.engine.closed

    @explaining("cannot close in order")
    def close(self) -> None:
        """Stop the subscriptions after their current message, sync, and let go of the directory."""
        if self.engine.closed:
            self.engine.close()  # another thread may still be at it
            return
        with self._ending:  # of several threads, too, none closes the engine under what is being ended
            while self.on_close:
                self.on_close.pop()()
        with self._lock:
            self._closing = True
            live = list(self._subscriptions)
        for subscription in live:
            subscription.pause()  # all at once; each then has only its current message to finish
        for subscription in sorted(live, key=lambda one: not is_pattern(one.channel)):
            subscription.close()  # those that would begin others first
        for queue in list(self._pulled):
            queue.close()
        self.requests.close()
        self._flusher.close()
        self._lookout.close()
        self._upkeep.close()
        self.timetable.close()
        self.engine.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _burying(handler: object) -> PublishDeadLetter | None:
    """How a handler's dead letters are written, if it has a say in it."""
    return handler.answers.bury if isinstance(handler, Answering) else None


def _channel_settings(settings: Mapping[str, Any]) -> ChannelSettings:
    """Check a channel's settings as the station's are checked; None means the station's."""
    unknown = [name for name in settings if name not in ChannelSettings.__struct_fields__]
    if unknown:
        allowed = ", ".join(ChannelSettings.__struct_fields__)
        raise ConfigError(f"a channel has no setting '{unknown[0]}'; it may have: {allowed}")
    given = {name: value for name, value in settings.items() if value is not None}
    storage = Config().with_settings(**given).storage
    return ChannelSettings(**{name: getattr(storage, name) for name in given})
