"""A queue as it should be, in a dictionary; an engine and a clock that do what they are told; a way to die."""

from __future__ import annotations

import sqlite3
from types import SimpleNamespace
from typing import Any, NamedTuple

from heliograph.engine.port import Bounds, Position
from heliograph.engine.queuestore import Key, Pending, QueueStore
from heliograph.message import Gap


class FakeClock:
    """Two clocks that move when somebody moves them, and nobody else."""

    def __init__(self) -> None:
        self.mono_us = 1_000_000
        self.wall_us = 1_700_000_000_000_000

    def monotonic_ns(self) -> int:
        return self.mono_us * 1000

    def time_ns(self) -> int:
        return self.wall_us * 1000

    def pass_by(self, seconds: float) -> None:
        self.mono_us += int(seconds * 1e6)
        self.wall_us += int(seconds * 1e6)


class FakeEngine:
    """Logs that are nothing but their ends."""

    def __init__(self, partitions: int) -> None:
        self.life = "a"
        self.ends = [0] * partitions
        self.synced = [0] * partitions

    def describe(self, _channel: str) -> Any:
        return SimpleNamespace(partitions=len(self.ends), incarnation=self.life)

    def bounds(self, _channel: str, partition: int = 0) -> Bounds:
        return Bounds(0, self.ends[partition])

    def make_durable(self, _channel: str, partition: int, offset: int) -> None:
        self.synced[partition] = max(self.synced[partition], min(offset, self.ends[partition]))

    def fit_position(self, channel: str, partition: int, position: Position) -> tuple[int, Gap | None]:
        end = self.ends[partition]
        if position.offset <= end:
            return position.offset, None
        return end, Gap(channel, partition, end, position.offset, "the log is not the one it was")


class Died(BaseException):
    """The process is gone in the middle of something: nothing that would run afterwards may run."""


class Mortal:
    """A connection whose process dies before or after one of the statements."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.real = connection
        self.left = 0
        self.late = False
        self.dead = False

    def doom(self, at: int, *, late: bool) -> None:
        self.left, self.late = at, late

    def _step(self, call: Any, *arguments: Any) -> Any:
        if self.dead:
            raise Died
        self.left -= 1
        if self.left:
            return call(*arguments)
        self.dead = True
        if self.late:
            call(*arguments)
        raise Died

    def execute(self, *arguments: Any) -> Any:
        return self._step(self.real.execute, *arguments)

    def executemany(self, *arguments: Any) -> Any:
        return self._step(self.real.executemany, *arguments)

    @property
    def in_transaction(self) -> bool:
        return self.real.in_transaction

    def close(self) -> None:
        self.real.close()


def mortal(store: QueueStore) -> Mortal:
    """Make a store's process mortal."""
    store._connection = connection = Mortal(store._connection)  # type: ignore[assignment]
    return connection


class Leased(NamedTuple):
    """Somebody has it."""

    token: int
    worker: str
    until_us: int
    deliveries: int


class Waiting(NamedTuple):
    """It was given back."""

    due_us: int
    deliveries: int


Place = tuple[int, int]


class Model:
    """What is on its way, and what is done. What is neither was never handed out."""

    def __init__(self) -> None:
        self.on_its_way: dict[Place, Leased | Waiting] = {}
        self.next: dict[int, int] = {}

    def in_flight(self, clock: FakeClock) -> int:
        return sum(isinstance(one, Leased) and one.until_us > clock.mono_us for one in self.on_its_way.values())

    def due(self, clock: FakeClock) -> set[Place]:
        return {place for place, one in self.on_its_way.items() if _due(one, clock)}

    def claimable(self, engine: FakeEngine, clock: FakeClock) -> set[Place]:
        fresh = {(p, o) for p, end in enumerate(engine.ends) for o in range(self.next.get(p, 0), end)}
        return self.due(clock) | fresh

    def holds(self, key: Key) -> bool:
        one = self.on_its_way.get((key.partition, key.offset))
        return isinstance(one, Leased) and one.token == key.token

    def floor(self, partition: int) -> int:
        pending = [offset for number, offset in self.on_its_way if number == partition]
        return min([self.next.get(partition, 0), *pending])

    def seen(self) -> set[tuple[Any, ...]]:
        """As the store would say it."""
        found: set[tuple[Any, ...]] = set()
        for (partition, offset), one in self.on_its_way.items():
            if isinstance(one, Leased):
                found.add((partition, offset, one.deliveries, one.token, one.worker, one.until_us))
            else:
                found.add((partition, offset, one.deliveries, None, None, one.due_us))
        return found


def _due(one: Leased | Waiting, clock: FakeClock) -> bool:
    return one.until_us <= clock.mono_us if isinstance(one, Leased) else one.due_us <= clock.wall_us


def stored(pending: list[Pending]) -> set[tuple[Any, ...]]:
    return {tuple(one)[:6] for one in pending}
