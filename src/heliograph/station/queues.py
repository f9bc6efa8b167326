"""The queues of a station: opening them for workers, and looking at them from outside."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from heliograph.arguments import check_many
from heliograph.delivery.queues import (
    Desk,
    Floors,
    Ledger,
    Parts,
    Queue,
    QueueSettings,
    QueueSubscription,
    check_queue_arguments,
)
from heliograph.delivery.queues.decisions import depth
from heliograph.delivery.queues.ledger import Summary, summary
from heliograph.engine import kinds, queueworkers
from heliograph.engine.port import Bounds
from heliograph.engine.queuestore import FILE, Pending, QueueStore
from heliograph.errors import InvalidArgument, NotFound
from heliograph.names import check_name
from heliograph.station.info import LeaseInfo, QueueInfo, SubscriptionInfo, WorkerInfo
from heliograph.station.reader import LeavingOut, message_at
from heliograph.station.starts import Start, resolve

if TYPE_CHECKING:
    from heliograph.delivery.ports import Handler, OnGap, PublishDeadLetter, RecentDeadLetters
    from heliograph.delivery.positions import Flusher
    from heliograph.delivery.retry import Retry
    from heliograph.delivery.subscription import Subscription
    from heliograph.engine.files import FilesEngine

KIND = "queue"
LEASES_SHOWN = 1_000


class _Open:
    """The state of one queue, for all its workers in this process."""

    def __init__(self, engine: FilesEngine, channel: str, name: str) -> None:
        path = engine.positions.directory(channel, name) / FILE
        self.users = 0
        self.store = QueueStore(path, timeout_s=engine.config.publishing.busy_timeout_s)
        self.ledger = Ledger(engine, self.store, channel, engine.clock, boot=engine.directory.boot.hex())
        self.floors = Floors(engine, self.ledger, channel, name)


class Queues:
    """What one station has to do with queues. Safe to use from any thread."""

    def __init__(
        self,
        engine: FilesEngine,
        flusher: Flusher,
        publish_dead_letter: PublishDeadLetter,
        recent_dead_letters: RecentDeadLetters,
        default_retry: Retry,
        ensure_channel: Callable[[str], None],
    ) -> None:
        self._engine = engine
        self._flusher = flusher
        self._publish_dead_letter = publish_dead_letter
        self._recent_dead_letters = recent_dead_letters
        self._default_retry = default_retry
        self._ensure_channel = ensure_channel
        self._lock = threading.Lock()
        self._open: dict[tuple[str, str], _Open] = {}

    # -- working ----------------------------------------------------------------------------------------------

    def pull(
        self, channel: str, name: str, *, start: Start, wanted: dict[str, Any], on_gap: OnGap | None,
        closed: Callable[[Queue], None],
    ) -> Queue:  # fmt: skip
        """A worker that pulls; ``wanted`` are settings of the queue, None as they are."""
        return Queue(self._desk(channel, name, start, None, wanted, on_gap, self._publish_dead_letter), closed)

    def subscribe(
        self, channel: str, handler: Handler, *, name: str | None, start: Start, wanted: dict[str, Any], batch: bool,
        concurrency: int, retry: Retry | None, timeout_s: float | None, overflow: str, on_gap: OnGap | None,
        paused: bool, bury: PublishDeadLetter, event_loop: Any, forget: Callable[[str, str], None],
        on_closed: Callable[[Subscription], None],
    ) -> QueueSubscription:  # fmt: skip
        """A worker whose handler is called."""
        check_queue_arguments(
            name=name, handler=handler, on_gap=on_gap, concurrency=concurrency, timeout_s=timeout_s, batch=batch,
            overflow=overflow,
        )  # fmt: skip
        assert name is not None
        desk = self._desk(channel, name, start, retry, wanted, on_gap, bury)
        return QueueSubscription(
            desk, handler, concurrency=concurrency, retry=desk.parts.retry, paused=paused, event_loop=event_loop,
            timeout_s=self._engine.config.subscribers.timeout_s if timeout_s is None else timeout_s,
            forget=functools.partial(forget, channel, name), on_closed=on_closed,
        )  # fmt: skip

    def _desk(
        self, channel: str, name: str, start: Start, retry: Retry | None, wanted: dict[str, Any],
        on_gap: OnGap | None, bury: PublishDeadLetter,
    ) -> Desk:  # fmt: skip
        """Become a worker of a queue, which is made if it is new."""
        check_name(channel)
        check_name(name, "queue")
        engine = self._engine
        engine.check_writable()
        if retry is not None and wanted["max_deliveries"] is None:
            wanted = {**wanted, "max_deliveries": retry.max_retries + 1}
        retry = retry or self._default_retry
        QueueSettings().changed(**wanted)  # refused before anything is made
        self._ensure_channel(channel)
        shared = engine.positions.share(channel, name)
        try:
            shared.note("a queue's workers")
            directory = engine.positions.directory(channel, name)
            kinds.check(directory, KIND, engine.disk)
            self._settle_settings(channel, name, retry, wanted)
            opened = self._join(channel, name, lambda number: self._first(channel, name, number, start))
        except BaseException:
            shared.release()
            raise

        def release() -> None:
            self._leave(channel, name)
            shared.release()

        try:
            return Desk(
                Parts(
                    engine, channel, name, opened.ledger, opened.floors, self._flusher, retry,
                    bury, self._recent_dead_letters, lambda: self.settings(channel, name), release,
                ),
                on_gap,
            )  # fmt: skip
        except BaseException:
            release()
            raise

    def settings(self, channel: str, name: str) -> QueueSettings:
        """What all workers of a queue agree on."""
        stored = kinds.load(self._engine.positions.directory(channel, name), self._engine.disk)
        known = {field: stored[field] for field in QueueSettings.__struct_fields__ if field in stored}
        return QueueSettings().changed(**known)

    def _settle_settings(self, channel: str, name: str, retry: Retry, wanted: dict[str, Any]) -> None:
        directory, disk = self._engine.positions.directory(channel, name), self._engine.disk
        stored = kinds.load(directory, disk)
        new = stored["kind"] != KIND
        before = QueueSettings(max_deliveries=retry.max_retries + 1) if new else self.settings(channel, name)
        after = before.changed(**wanted)
        if new or after != before:
            content = {field: getattr(after, field) for field in QueueSettings.__struct_fields__}
            kinds.save(directory, {**stored, "kind": KIND, **content}, disk)
            self._engine.audit.write("queue-settings", channel=channel, queue=name, settings=content)

    def _first(self, channel: str, name: str, number: int, start: Start) -> int:
        """Where a queue without state begins: at its saved position, or where it was told to."""
        position = self._engine.load_position(channel, name, number)
        if position is not None:
            return self._engine.fit_position(channel, number, position)[0]
        return resolve(self._engine, channel, start, number)

    def _join(self, channel: str, name: str, first: Callable[[int], int]) -> _Open:
        with self._lock:
            opened = self._open.get((channel, name))
            if opened is None:
                opened = _Open(self._engine, channel, name)
                try:
                    opened.ledger.start(first)
                except BaseException:
                    opened.store.close()
                    raise
                opened.floors.save()
                self._open[channel, name] = opened
            opened.users += 1
            return opened

    def _leave(self, channel: str, name: str) -> None:
        with self._lock:
            opened = self._open[channel, name]
            opened.users -= 1
            if not opened.users:
                del self._open[channel, name]
                opened.floors.end()
                opened.store.close()

    # -- administering ------------------------------------------------------------------------------------------

    def check(self, channel: str, name: str) -> None:
        """Refuse what is not a queue."""
        check_name(channel)
        directory = self._engine.positions.directory(channel, check_name(name, "subscription"))
        self._engine.describe(channel)
        if kinds.load(directory, self._engine.disk)["kind"] != KIND or not (directory / FILE).exists():
            raise NotFound(
                f"channel '{channel}' has no queue '{name}'; subscribing with queue=True, or station.queue(), makes one"
            )

    def release(self, channel: str, name: str, worker: str | None, place: tuple[int, int] | None) -> int:
        """Take leases away from whoever has them."""
        self._engine.check_writable()
        self.check(channel, name)
        with self._state(channel, name) as state:
            released = state.ledger.release(worker, place)
        what = {"worker": worker, "partition": place[0] if place else None, "offset": place[1] if place else None}
        self._engine.audit.write("leases-released", channel=channel, queue=name, released=released, **what)
        self._engine.tell(channel, 0)
        return released

    def requeue(self, channel: str, name: str, places: Iterable[tuple[int, int]]) -> int:
        """Hand messages out again that are done, to this queue alone."""
        self._engine.check_writable()
        self.check(channel, name)
        wanted = _pairs(places)
        for partition, offset in wanted:
            if message_at(self._engine, channel, partition, offset) is None:
                raise NotFound(
                    f"there is no message at offset {offset} of partition {partition} of '{channel}' (any more)"
                )
        with self._state(channel, name) as state:
            count = state.ledger.requeue(wanted)
            state.floors.save_all()  # from now on retention keeps them
        self._engine.audit.write("requeued", channel=channel, queue=name, messages=count)
        self._engine.tell(channel, 0)
        return count

    def reset(self, channel: str, name: str, target: dict[int, int]) -> None:
        """Let a queue that nobody works for begin again at these offsets."""
        with self._state(channel, name) as state:
            state.ledger.reset(target)

    def is_queue(self, channel: str, name: str) -> bool:
        """Whether a subscription is a queue that has begun."""
        directory = self._engine.positions.directory(channel, name)
        return kinds.load(directory, self._engine.disk)["kind"] == KIND and (directory / FILE).exists()

    @contextlib.contextmanager
    def _state(self, channel: str, name: str) -> Iterator[_Open]:
        opened = self._open.get((channel, name))
        if opened is not None:
            yield opened
            return
        fresh = _Open(self._engine, channel, name)
        try:
            yield fresh
        finally:
            fresh.store.close()

    # -- looking ----------------------------------------------------------------------------------------------

    def infos(self, channel: str | None = None) -> list[QueueInfo]:
        """Every queue, of one channel or of all, without its leases."""
        self._engine.check_open()
        known = self._engine.positions.all()
        found: list[QueueInfo] = []
        for owner, name in known:
            with LeavingOut():
                if channel in (None, owner) and self.is_queue(owner, name):
                    found.append(self.info(owner, name, leases=0))
        return found

    def counted(self, found: list[SubscriptionInfo]) -> list[SubscriptionInfo]:
        """The same, with the lag of queues as their state has it: they do not go from one message to the next."""
        known: dict[tuple[str, str], Summary] = {}
        for channel, name in {(one.channel, one.name) for one in found if one.kind == KIND}:
            with LeavingOut():
                if self.is_queue(channel, name):
                    known[channel, name] = self._summary(channel, name, self._bounds(channel), 0)
        return [self._behind(one, known.get((one.channel, one.name))) for one in found]

    def _behind(self, one: SubscriptionInfo, queue: Summary | None) -> SubscriptionInfo:
        if queue is None or one.partition not in queue.frontiers:
            return one
        lag, floor = queue.lag(one.partition), queue.floors.get(one.partition, one.offset)
        age_s = None
        with LeavingOut():
            age_s = self._age_s(one.channel, one.partition, floor) if lag else 0.0
        return msgspec.structs.replace(one, lag=lag, lag_s=age_s)

    def info(self, channel: str, name: str, leases: int = LEASES_SHOWN) -> QueueInfo:
        """One queue as it is now."""
        self.check(channel, name)
        engine = self._engine
        bounds = self._bounds(channel)
        now = self._summary(channel, name, bounds, leases)
        directory = engine.positions.directory(channel, name)
        living = queueworkers.living(directory, engine.disk)
        settings = self.settings(channel, name)
        return QueueInfo(
            channel=channel, name=name, depth=depth(now.frontiers, now.tally.visible, now.tally.delayed),
            in_flight=now.tally.in_flight, delayed=now.tally.delayed, oldest_s=self._oldest_s(channel, now, bounds),
            visibility_s=settings.visibility_s, max_in_flight=settings.max_in_flight,
            max_deliveries=settings.max_deliveries,
            workers=[
                WorkerInfo(name=worker, live=worker in living, leases=now.workers.get(worker, 0))
                for worker in sorted({*living, *now.workers})
            ],
            leases=[self._lease(pending) for pending in now.pending],
        )  # fmt: skip

    def _bounds(self, channel: str) -> dict[int, Bounds]:
        partitions = self._engine.describe(channel).partitions
        return {number: self._engine.bounds(channel, number) for number in range(partitions)}

    def _summary(self, channel: str, name: str, bounds: dict[int, Bounds], leases: int) -> Summary:
        clock = self._engine.clock
        moments = clock.monotonic_ns() // 1000, clock.time_ns() // 1000
        with self._lock:
            opened = self._open.get((channel, name))
            if opened is not None:
                return summary(opened.store, bounds, *moments, leases)
        store = QueueStore(self._engine.positions.directory(channel, name) / FILE, timeout_s=1.0, read_only=True)
        try:
            return summary(store, bounds, *moments, leases)
        finally:
            store.close()

    def _lease(self, pending: Pending) -> LeaseInfo:
        clock = self._engine.clock
        now_us = (clock.time_ns() if pending.token is None else clock.monotonic_ns()) // 1000
        left_s = max(0.0, (pending.until_us - now_us) / 1e6)
        held = "leased" if pending.token is not None else "delayed"
        return LeaseInfo(
            partition=pending.partition, offset=pending.offset, deliveries=pending.deliveries,
            state=held if left_s else "visible", worker=pending.worker, left_s=left_s,
        )  # fmt: skip

    def _oldest_s(self, channel: str, now: Summary, bounds: dict[int, Bounds]) -> float | None:
        """The age of the oldest message that is not acknowledged; None if there is none."""
        ages: list[float] = []
        for number, floor in now.floors.items():
            bound = bounds.get(number)
            if bound is not None and floor < bound.next:
                age_s = self._age_s(channel, number, max(floor, bound.first))
                if age_s is not None:
                    ages.append(age_s)
        return max(ages, default=None)

    def _age_s(self, channel: str, partition: int, offset: int) -> float | None:
        message = message_at(self._engine, channel, partition, offset)
        return None if message is None else max(0.0, self._engine.clock.time_ns() / 1e9 - message.time.timestamp())


def _pairs(places: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Partitions and offsets, in order, each once."""
    found = check_many("places", places, tuple)
    if not all(len(place) == 2 and all(isinstance(number, int) for number in place) for place in found):
        raise InvalidArgument(f"places is {found!r}; use pairs of a partition and an offset, as in [(0, 41)]")
    return sorted(set(found))
