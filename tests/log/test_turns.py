"""Processes that append to one partition in turns: whoever was asked for the lock gives it back, and stands back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import heliograph as hg
from heliograph.clock import Clock
from heliograph.disk import Disk
from heliograph.limits import LOCK_SLEEP_S, LOCK_TURN_S, LOCK_YIELD_S
from heliograph.log.head import LOCK_WANTED, Fields, Head
from heliograph.log.locks import AppendLock


class Hands(Clock):
    """A clock that moves when somebody looks at it or sleeps; something may happen meanwhile."""

    def __init__(self) -> None:
        self.now = 1.0
        self.slept_s = 0.0
        self.meanwhile: Callable[[], None] = lambda: None

    def monotonic(self) -> float:  # type: ignore[override]
        self.now += 1e-6
        self.meanwhile()
        return self.now

    def sleep(self, seconds: float) -> None:  # type: ignore[override]
        self.now += seconds
        self.slept_s += seconds
        self.meanwhile()


@pytest.fixture
def clock() -> Hands:
    return Hands()


@pytest.fixture
def locks(tmp_path: Path, clock: Hands) -> Iterator[tuple[AppendLock, AppendLock]]:
    Head.create(tmp_path / "head", Disk(), b"b" * 16, Fields())
    heads = [Head(tmp_path / "head", Disk()) for _ in range(2)]
    one, other = (AppendLock(tmp_path / "lock", head, Disk(), clock, keep=True) for head in heads)
    yield one, other
    one.close()
    other.close()


def ask(lock: AppendLock) -> None:
    lock._head.words[LOCK_WANTED] = 1


def end_turn(lock: AppendLock, clock: Hands) -> None:
    """Somebody asks; the holder goes on for its turn, and gives the lock back then."""
    ask(lock)
    assert lock.may_keep()
    clock.now += LOCK_TURN_S * 1.01
    assert not lock.may_keep()
    lock.release()


def test_whoever_was_asked_lets_the_other_have_the_lock_first(
    locks: tuple[AppendLock, AppendLock], clock: Hands
) -> None:
    one, other = locks
    one.acquire(1.0)
    end_turn(one, clock)
    order: list[str] = []
    woken = clock.now + LOCK_SLEEP_S  # when the other one, asleep between two tries, looks again

    def meanwhile() -> None:
        if clock.now >= woken and not order:
            order.append("other")
            assert not other.acquire(1.0)
        elif other.held and clock.now > woken + LOCK_TURN_S:
            other.release()

    clock.meanwhile = meanwhile
    one.acquire(1.0)
    assert order == ["other"]
    assert one.held and not other.held


def test_whoever_asked_and_died_is_not_waited_for_long_and_once_only(
    locks: tuple[AppendLock, AppendLock], clock: Hands
) -> None:
    one, _ = locks
    one.acquire(1.0)
    end_turn(one, clock)
    one.acquire(1.0)
    waited = clock.slept_s
    assert LOCK_YIELD_S * 0.9 < waited < LOCK_YIELD_S * 1.2
    one.release()
    one.acquire(1.0)
    assert clock.slept_s == waited


def test_nobody_stands_back_who_was_not_asked_or_whose_turn_was_taken(
    locks: tuple[AppendLock, AppendLock], clock: Hands
) -> None:
    one, other = locks
    one.acquire(1.0)
    one.release()
    one.acquire(1.0)
    end_turn(one, clock)
    other.acquire(1.0)  # at once
    other.release()
    one.acquire(1.0)
    assert clock.slept_s == 0


def test_whoever_publishes_one_by_one_gives_the_lock_back_when_its_turn_is_over(tmp_path: Path) -> None:
    with hg.open(tmp_path, name="host1", durability="interval") as station:
        station.publish("alerts", 1)
        lock = station.engine.writer("alerts", 0)._lock
        ask(lock)
        while lock.held:
            station.publish("alerts", 2)
        station.publish("alerts", 3)
        assert [message.data for message in station.read("alerts")][-1] == 3
