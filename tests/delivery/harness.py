"""An engine in memory, with faults on demand, and a station reduced to what delivery needs of one."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from heliograph.clock import SYSTEM_CLOCK, Clock
from heliograph.delivery import (
    DeadLetterIdentity,
    Flusher,
    Lookout,
    Retry,
    Subscription,
    identity_of,
    start_subscription,
)
from heliograph.engine.port import Batch, Bounds, Position, Problem
from heliograph.errors import StationClosed, SubscriptionBusy
from heliograph.message import Gap, Message, decode_line, new_id

QUICK = Retry(max_retries=2, base_s=0.001, max_s=0.002)
PATIENCE_S = 30.0


def eventually(condition: Callable[[], object], what: str = "") -> None:
    """Wait until it holds; how long that takes is nobody's business but the limit's."""
    until = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < until, what or "it never happened"
        time.sleep(0.002)


class SteppedClock(Clock):
    """A wall clock that tests can step."""

    def __init__(self) -> None:
        self.step_us = 0

    def time_ns(self) -> int:  # type: ignore[override]
        return time.time_ns() + self.step_us * 1000


class FakeLease:
    def __init__(self, engine: FakeEngine, name: str) -> None:
        self._engine, self._name = engine, name

    def release(self) -> None:
        self._engine.leases.discard(self._name)


class FakeCursor:
    def __init__(self, engine: FakeEngine, offset: int) -> None:
        self._engine, self.offset = engine, offset

    def pull(self) -> Batch | None:
        engine = self._engine
        if engine.pull_errors:
            raise engine.pull_errors.pop(0)
        engine.check_open()
        with engine.news:
            entries = engine.entries[self.offset : self.offset + engine.pull_messages]
        if not entries:
            return None
        first, following = self.offset, self.offset + len(entries)
        messages = [entry for entry in entries if isinstance(entry, Message)]
        problems = [entry for entry in entries if isinstance(entry, Problem)]
        self.offset = following
        return Batch(first, following, messages, problems, time.time_ns() // 1000, (0, 0, 0))

    def seek(self, offset: int) -> None:
        self.offset = offset

    def close(self) -> None:
        pass


class FakeEngine:
    """One channel, one partition. An entry is a message, a problem, or None for a redacted line."""

    name = "host1"

    def __init__(self, channel: str) -> None:
        self.channel = channel
        self.entries: list[Message | Problem | None] = []
        self.first = 0
        self.pull_messages = 1000
        self.news = threading.Condition()
        self.life = "k3f9q2"
        self.positions: dict[str, Position] = {}
        self.saves: list[Position] = []
        self.leases: set[str] = set()
        self.pull_errors: list[Exception] = []
        self.save_error: Exception | None = None
        self.closed = False

    def check_open(self) -> None:
        if self.closed:
            raise StationClosed("the station is closed")

    def publish(self, data: Any = None, key: str | None = None) -> Message:
        envelope = {
            "specversion": "1.0",
            "id": new_id(),
            "source": "test",
            "type": "t",
            "time": "2026-11-15T20:30:01.123456Z",
            "channel": self.channel,
            "data": data,
        }
        if key is not None:
            envelope["partitionkey"] = key
        with self.news:
            message = decode_line(msgspec.json.encode(envelope), len(self.entries), 0, None)
            self.entries.append(message)
            self.news.notify_all()
        return message

    def add(self, kind: str, reason: str = "broken", line: bytes = b"") -> int:
        with self.news:
            offset = len(self.entries)
            self.entries.append(Problem(offset, offset + 1, kind, reason, line))  # type: ignore[arg-type]
            self.news.notify_all()
        return offset

    def partition_count(self, channel: str, /) -> int:
        return 1

    def claim_kind(self, channel: str, subscription: str, kind: str, /) -> None:
        pass

    def bounds(self, channel: str, partition: int = 0, /) -> Bounds:
        return Bounds(self.first, len(self.entries))

    def birth(self, channel: str, /) -> object:
        return None

    def cursor(
        self, channel: str, partition: int, offset: int, sieve: object = None, birth: object = None, /
    ) -> FakeCursor:
        return FakeCursor(self, offset)

    def wait(self, channel: str, partition: int, offset: int, timeout_s: float, /) -> None:
        self.check_open()
        with self.news:
            if len(self.entries) <= offset:
                self.news.wait(min(timeout_s, 1.0))
        self.check_open()

    def wake(self, channel: str, partition: int = 0, /) -> None:
        with self.news:
            self.news.notify_all()

    def incarnation(self, channel: str, /) -> str:
        return self.life

    def load_position(self, channel: str, subscription: str, partition: int, /) -> Position | None:
        return self.positions.get(subscription)

    def save_position(self, channel: str, subscription: str, partition: int, position: Position, /) -> None:
        if self.save_error is not None:
            raise self.save_error
        self.positions[subscription] = position
        self.saves.append(position)

    def forget_position(self, channel: str, subscription: str, /) -> None:
        self.positions.pop(subscription, None)

    def fit_position(self, channel: str, partition: int, position: Position, /) -> tuple[int, Gap | None]:
        if position.offset < self.first:
            return self.first, Gap(channel, partition, position.offset, self.first, "trimmed")
        return position.offset, None

    def subscription_lease(self, channel: str, subscription: str, /) -> FakeLease:
        if subscription in self.leases:
            raise SubscriptionBusy(f"{subscription} is live already")
        self.leases.add(subscription)
        return FakeLease(self, subscription)


class Letters:
    """The channel of the dead letters."""

    def __init__(self) -> None:
        self.written: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        self.channels: list[str] = []
        self.errors: list[BaseException] = []
        """Raised one by one before letters are accepted."""
        self.asked_since: list[int] = []

    def publish(self, channel: str, payload: dict[str, Any], key: str | None) -> None:
        if self.errors:
            raise self.errors.pop(0)
        self.channels.append(channel)
        self.keys.append(key)
        self.written.append(msgspec.json.decode(msgspec.json.encode(payload)))

    def recent(self, channel: str, since_us: int) -> Iterator[DeadLetterIdentity]:
        self.asked_since.append(since_us)
        for data in self.written:
            identity = identity_of(data)
            assert identity is not None
            yield identity

    def offsets(self) -> list[int]:
        return [letter["offset"] for letter in self.written]


class MiniStation:
    """Engine, letters and flusher; closes what it has subscribed."""

    def __init__(self, channel: str = "alerts", flush_ms: int = 5) -> None:
        self.engine = FakeEngine(channel)
        self.letters = Letters()
        self.flusher = Flusher(flush_ms)
        self.lookout = Lookout()
        self.subscriptions: list[Subscription] = []

    def subscribe(self, handler: Callable[[Any], Any], **options: Any) -> Subscription:
        options = {"retry": QUICK, "clock": SYSTEM_CLOCK, **options}
        start_offset = options.pop("start_offset", 0)
        subscription = start_subscription(
            engine=self.engine,
            channel=self.engine.channel,
            handler=handler,
            start=lambda _: start_offset,
            flusher=self.flusher,
            lookout=self.lookout,
            publish_dead_letter=self.letters.publish,
            recent_dead_letters=self.letters.recent,
            **options,
        )
        self.subscriptions.append(subscription)
        return subscription

    def publish(self, *values: Any, key: str | None = None) -> None:
        for value in values:
            self.engine.publish(value, key)

    def saved(self, name: str = "worker") -> int:
        return self.engine.positions[name].offset

    def close(self) -> None:
        for subscription in self.subscriptions:
            subscription.close(timeout_s=PATIENCE_S)
        self.flusher.close()
        self.lookout.close()


class Gate:
    """Lets a test hold a handler where it is."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.opened = threading.Event()

    def __call__(self) -> None:
        self.entered.set()
        assert self.opened.wait(PATIENCE_S)
