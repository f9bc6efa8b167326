"""A station: one participant with its own data directory, embedded in an application."""

from __future__ import annotations

import contextlib
import functools
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec

from heliograph import config as configs
from heliograph.clock import SYSTEM_CLOCK, Clock, from_us
from heliograph.config import Config
from heliograph.delivery import Flusher, Retry, Subscription, start_subscription
from heliograph.delivery.deadletter import DEAD_LETTER_TYPE, DeadLetterIdentity, identity_of
from heliograph.delivery.invoke import check_handler, is_async
from heliograph.delivery.ports import OnGap, OverflowPolicy, PublishDeadLetter
from heliograph.disk import SYSTEM_DISK, Disk, explaining
from heliograph.engine.files import FilesEngine
from heliograph.engine.port import Position
from heliograph.errors import ConfigError, Damaged, NotFound, SubscriptionBusy
from heliograph.filters import Choice, Sieve, sieve_of
from heliograph.log.channel import ChannelSettings
from heliograph.message import Gap, HeaderValue, Message, Receipt, id_time_us
from heliograph.names import REPLY, check_name, check_ownable
from heliograph.patterns import Pattern, is_pattern
from heliograph.payloads import Payloads
from heliograph.station.info import ChannelInfo, SeekResult, SubscriptionInfo, Trimmed
from heliograph.station.merging import FollowedChannels, MergedRange
from heliograph.station.observer import Observer
from heliograph.station.publisher import Publisher
from heliograph.station.reader import MessageRange, message_at
from heliograph.station.requests import TIMEOUT_S, AsyncReplier, Duration, Replier, Requests
from heliograph.station.starts import Start, resolve
from heliograph.station.stats import Meters, StationStats
from heliograph.station.upkeep import Upkeep
from heliograph.station.wildcards import WildcardSubscription, check_start, forget_pattern, subscribe_pattern

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
    """Open a data directory, making it if it is new.

    ``config`` is a file (YAML or TOML), a mapping or a Config; keyword arguments win over it, for example
    ``durability="interval"``. Close the station, or use it as a context manager.

    >>> import heliograph as hg, tempfile
    >>> with hg.open(tempfile.mkdtemp(), name="host1") as station:
    ...     receipt = station.publish("alerts", {"message": "system problem!"}, key="cpu")
    ...     [message.data for message in station.read("alerts")]
    [{'message': 'system problem!'}]
    """
    if path is not None:
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
        self.path = Path(config.storage.data_dir)
        self.read_only = read_only
        self.payloads = Payloads()
        self.engine = FilesEngine(self.path, config, read_only=read_only, disk=disk, clock=clock)
        self.name = self.engine.name
        self._meters = Meters()
        self.publisher = Publisher(self.engine, self.payloads, config, self._meters)
        self._publish = self.publisher.publish
        self._publish_plain = self.publisher.publish_plain
        self._observer = Observer(self.engine)
        self._upkeep = Upkeep(self.engine)
        self.requests = Requests(self.engine, self._publish)
        self._flusher = Flusher(config.storage.position_flush_ms)
        self._subscriptions: set[Subscription] = set()
        self._lock = threading.Lock()
        self._opened_s = clock.monotonic()
        self._always = config.storage.durability == "always"

    # -- publishing -------------------------------------------------------------------------------------------

    def register(self, type_name: str, cls: Any) -> None:
        """Say which class the payloads of a type are: a msgspec.Struct, dataclass, pydantic model or plain type.

        Publishing then checks payloads before anything is written, and subscribers receive objects of the class.
        """
        self.payloads.register(type_name, cls)
        self.engine.payload_decoder = self.payloads.decoder
        self.publisher.forget_routes()

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
    ) -> Receipt:
        """Publish one message. When this returns, it is on disk (see the setting storage.durability).

        ``wait`` is how many seconds to wait when too much is waiting for the disk already; by default Busy is
        raised at once (setting publishing.when_full).
        """
        if key is None and headers is None and correlation_id is None and (subject or id or wait) is None:
            return self._publish_plain(channel, data, type)
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
    ) -> list[Receipt]:
        """Publish a batch with one append: after a crash all of it is there, or nothing.

        Items are payloads, or :class:`Draft` where messages differ in more than their data.
        """
        return self.publisher.publish_many(channel, payloads, type, key, headers, correlation_id, wait)

    # -- subscribing ------------------------------------------------------------------------------------------

    @explaining("cannot subscribe")
    def subscribe(
        self,
        channel: str,
        handler: Handler,
        *,
        name: str | None = None,
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
    ) -> Subscription:
        """Call ``handler`` with every message of a channel, at least once, in order.

        With a ``name`` the subscription is durable: it resumes where it stopped, and ``start`` only says where a
        new one begins. Without, it is ephemeral. A handler that raises is called again (``retry``), then the
        message goes to the channel's dead letters.

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
        if name is not None:
            check_name(name, "subscription")
            self.engine.check_writable()
        begin = functools.partial(
            self._begin, handler=handler, name=name, batch=batch, concurrency=concurrency,
            retry=retry or self._default_retry(),
            timeout_s=self.config.subscribers.timeout_s or None if timeout_s is None else timeout_s,
            buffer=buffer or self.config.subscribers.buffer, overflow=overflow, on_gap=on_gap,
            sieve=sieve_of(where), publish_dead_letter=_burying(handler) or self._publish_dead_letter,
        )  # fmt: skip
        if is_pattern(channel):
            return self._keep(
                subscribe_pattern(
                    self.engine, channel, begin, start=start, paused=paused, event_loop=event_loop,
                    on_closed=self._on_closed,
                )
            )  # fmt: skip
        self._ensure_channel(check_name(channel))
        return begin(channel, start, paused=paused, event_loop=event_loop)

    def _begin(self, channel: str, start: Start, **options: Any) -> Subscription:
        """Subscribe to one channel, which is there."""
        return self._keep(
            start_subscription(
                engine=self.engine, channel=channel, start_offset=resolve(self.engine, channel, start),
                flusher=self._flusher, recent_dead_letters=self._recent_dead_letters, on_closed=self._on_closed,
                clock=self.engine.clock, **options,
            )
        )  # fmt: skip

    def _keep(self, subscription: Subscription) -> Subscription:
        with self._lock:
            if not subscription.closed:
                self._subscriptions.add(subscription)
        return subscription

    def _ensure_channel(self, channel: str) -> None:
        try:
            self.engine.describe(channel)
        except NotFound:
            if self.read_only or not self.config.storage.auto_create or channel.startswith(REPLY):
                raise
            self.engine.create(channel)

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
        for message in self.read(channel, start=from_us(since_us)):
            identity = identity_of(message.data)
            if identity is not None:
                yield identity

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
        follow: bool = False,
        on_gap: Callable[[Gap], Any] | None = None,
        where: Choice | None = None,
    ) -> Iterator[Message]:
        """Messages from ``start`` to ``end`` (by default what is there now); ``follow=True`` waits for more.

        ``on_gap`` is told of offsets that cannot be read any more. The channel may be a pattern, as in
        ``subscribe``: then the messages of all channels come in the order of their times. ``where`` leaves out
        what does not fit a :class:`Filter`.
        """
        return iter(self.open_range(channel, start, end, follow, on_gap, where))

    @explaining("cannot read")
    def open_range(
        self, channel: str, start: Start, end: Start | None, follow: bool, on_gap: Callable[[Gap], Any] | None,
        where: Choice | None = None,
    ) -> MessageRange | MergedRange | FollowedChannels:  # fmt: skip
        """What read() iterates over, for callers that fetch a batch at a time."""
        sieve = sieve_of(where)
        if not is_pattern(channel):
            return self._open_range(channel, start, end, follow, on_gap, sieve)
        pattern = Pattern(channel)
        for limit in (start,) if end is None else (start, end):
            check_start(self.engine, limit)
        if follow and end is None:
            return FollowedChannels(
                self.engine, pattern, start, lambda name, at: self._open_range(name, at, None, True, on_gap, sieve)
            )
        ranges = []
        for name in filter(pattern.matches, self.engine.channel_names()):
            with contextlib.suppress(NotFound):  # deleted in this moment
                ranges.append(self._open_range(name, start, end, False, on_gap, sieve))
        return MergedRange(ranges)

    def _open_range(
        self, channel: str, start: Start, end: Start | None, follow: bool, on_gap: Callable[[Gap], Any] | None,
        sieve: Sieve | None,
    ) -> MessageRange:  # fmt: skip
        self.engine.describe(channel)
        self.engine.settle(channel, 0)
        first = resolve(self.engine, channel, start)
        if end is not None:
            last: int | None = resolve(self.engine, channel, end)
        else:
            last = None if follow else self.engine.bounds(channel).next
        return MessageRange(self.engine, channel, 0, first, last, on_gap, sieve)

    @explaining("cannot look a message up")
    def get(self, id: str, channel: str | None = None) -> Message | None:
        """Look a message up by its id, in one channel or all. Its UUIDv7 says when, so little is searched."""
        names = [check_name(channel)] if channel is not None else self.engine.channel_names()
        for name in names:
            self.engine.settle(name, 0)
        made_us = id_time_us(id)
        for moment_us in (made_us, None) if made_us is not None else (None,):  # around its time first, then everywhere
            for name in names:
                offset = self.engine.find_id(name, 0, id, moment_us)
                if offset is not None:
                    return message_at(self.engine, name, 0, offset)
        return None

    @explaining("cannot redact")
    def redact(self, id: str, *, channel: str | None = None, reason: str = "") -> Receipt:
        """Take a message out of the log for good; its line becomes blank, all offsets stay. Audited."""
        message = self.get(id, channel)
        if message is None:
            raise NotFound(f"there is no message with id {id!r}" + (f" in channel '{channel}'" if channel else ""))
        self.engine.redact(message.channel, 0, [message.offset])
        self.engine.audit.write("redacted", channel=message.channel, offset=message.offset, id=id, reason=reason)
        return Receipt(id, message.channel, 0, message.offset)

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
        kind = AsyncReplier if is_async(handler) else Replier
        check_handler(handler)
        answering = kind(handler, self._publish_reply, self._publish_dead_letter)
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
    def create_channel(self, name: str, **settings: Any) -> ChannelInfo:
        """Make a channel, with settings of its own where given (see ChannelSettings)."""
        self.engine.create(check_ownable(name), _channel_settings(settings), exist_ok=False)
        return self.channel(name)

    @explaining("cannot alter the channel")
    def alter_channel(self, name: str, **settings: Any) -> ChannelInfo:
        """Change a channel's settings; None goes back to the station's."""
        changed = _channel_settings(settings)
        self.engine.describe(name)
        self.engine.alter(
            name,
            lambda file: msgspec.structs.replace(
                file,
                settings=msgspec.structs.replace(file.settings, **{key: getattr(changed, key) for key in settings}),
            ),
        )
        return self.channel(name)

    @explaining("cannot delete the channel")
    def delete_channel(self, name: str) -> None:
        """Delete a channel with its data and its subscriptions' positions. Making it again starts empty."""
        check_name(name)
        self.engine.check_writable()
        wildcards = self.engine.wildcards
        dropping = {wildcard for wildcard in wildcards.hearing(name) if wildcards.live(wildcard)}
        live = [info.name for info in self.subscriptions(name) if info.live and info.name not in dropping]
        if live:
            raise SubscriptionBusy(f"channel '{name}' has live subscribers: {', '.join(live)}. Close them first.")
        self.engine.delete(name)
        self._meters.forget([name])

    @explaining("cannot trim")
    def trim(self, channel: str | None = None) -> list[Trimmed]:
        """Apply retention, rotation by age and compression now instead of within seconds."""
        self.engine.check_writable()
        return self._upkeep.tidy(check_name(channel) if channel is not None else None)

    # -- subscriptions ----------------------------------------------------------------------------------------

    @explaining("cannot list the subscriptions")
    def subscriptions(self, channel: str | None = None) -> list[SubscriptionInfo]:
        """Every durable subscription, live or not."""
        return self._observer.subscriptions(channel)

    @explaining("cannot seek")
    def seek(self, channel: str, name: str, to: Start, *, dry_run: bool = False) -> SeekResult:
        """Move a durable subscription to an offset, a time, ``first`` or ``new``. It must not be live."""
        check_name(channel)
        check_name(name, "subscription")
        self.engine.check_writable()
        self.engine.settle(channel, 0)
        bounds = self.engine.bounds(channel)
        target = min(max(resolve(self.engine, channel, to), bounds.first), bounds.next)
        if name not in self.engine.positions.names(channel):  # before the lease, which would make it
            raise NotFound(f"channel '{channel}' has no subscription '{name}'")
        lease = self.engine.subscription_lease(channel, name)
        before = None
        try:
            with contextlib.suppress(Damaged):  # seeking is how a damaged position is mended
                before = self.engine.load_position(channel, name, 0)
            if not dry_run:
                self._set_position(channel, name, target)
                self.engine.audit.write("seek", channel=channel, subscription=name, after=target)
        finally:
            lease.release()
        return SeekResult(
            channel=channel, name=name, partition=0, before=before.offset if before else 0, after=target,
            lag=bounds.next - target, applied=not dry_run,
        )  # fmt: skip

    def _set_position(self, channel: str, name: str, target: int) -> None:
        last = message_at(self.engine, channel, 0, target - 1) if target else None
        now_us = self.engine.clock.time_ns() // 1000
        position = Position(self.engine.incarnation(channel), target, last.id if last else "", now_us)
        self.engine.save_position(channel, name, 0, position)

    @explaining("cannot forget the subscription")
    def forget(self, channel: str, name: str) -> None:
        """Remove a durable subscription's position, or all of a wildcard's. It must not be live."""
        check_name(name, "subscription")
        self.engine.check_writable()
        if is_pattern(channel):
            return forget_pattern(self.engine, channel, name)
        check_name(channel)
        if name not in self.engine.positions.names(channel):
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
        return StationStats(
            name=self.name, path=str(self.path), uptime_s=self.engine.clock.monotonic() - self._opened_s,
            durability=self.config.storage.durability, open_partitions=len(self.engine.open_partitions()),
            pending_bytes=self.engine.pending_bytes(), trimmed_messages=self._upkeep.trimmed_messages,
            trimmed_unread=self._upkeep.trimmed_unread, requests_waiting=self.requests.waiting,
            late_replies=self.requests.late, audit_failures=self.engine.audit.failed,
            channels=self._observer.channel_stats(self._meters),
            subscriptions=[one.stats() for one in live if not isinstance(one, WildcardSubscription)],
        )  # fmt: skip

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
            return
        with self._lock:
            live = list(self._subscriptions)
        for subscription in live:
            subscription.pause()  # all at once; each then has only its current message to finish
        for subscription in sorted(live, key=lambda one: not isinstance(one, WildcardSubscription)):
            subscription.close()  # those that would begin others first
        self.requests.close()
        self._flusher.close()
        self._upkeep.close()
        self.engine.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _burying(handler: Handler) -> PublishDeadLetter | None:
    """How a handler's dead letters are written, if it has a say in it."""
    return handler.bury if isinstance(handler, Replier) else None


def _channel_settings(settings: Mapping[str, Any]) -> ChannelSettings:
    """Check a channel's settings as the station's are checked; None means the station's."""
    unknown = [name for name in settings if name not in ChannelSettings.__struct_fields__]
    if unknown:
        allowed = ", ".join(ChannelSettings.__struct_fields__)
        raise ConfigError(f"a channel has no setting '{unknown[0]}'; it may have: {allowed}")
    given = {name: value for name, value in settings.items() if value is not None}
    storage = Config().with_settings(**given).storage
    return ChannelSettings(**{name: getattr(storage, name) for name in given})
