"""When lines were appended, while whoever appends them keeps the lock and has not said it in the head yet."""

from __future__ import annotations

from pathlib import Path

import pytest

from heliograph.admin.trace import trace
from heliograph.clock import Clock, to_us
from heliograph.engine.background import LockKeeper
from heliograph.federation import behind
from heliograph.federation.librarian import Librarian
from heliograph.federation.ranges import Lines
from heliograph.federation.rules import Rules
from heliograph.log.appends import append_times
from heliograph.log.head import Fields, Head
from heliograph.log.partition import Partition
from heliograph.station import Station
from tests.opening import Opener

CHANNEL = "orders"
BEGIN_US = 1_800_000_000_000_000
LATER_US = BEGIN_US + 7_000_000

pytestmark = pytest.mark.usefixtures("untraced")


class Set(Clock):
    """A wall clock that stands still until it is set."""

    now_us = BEGIN_US

    def time_ns(self) -> int:  # type: ignore[override]
        return self.now_us * 1000


def log(station: Station) -> Partition:
    return station.engine.writer(CHANNEL, 0)


@pytest.fixture
def clock() -> Set:
    return Set()


@pytest.fixture
def station(opened: Opener, clock: Set, monkeypatch: pytest.MonkeyPatch) -> Station:
    """Has appended three lines, and another one much later, and keeps the lock."""
    monkeypatch.setattr(LockKeeper, "add", lambda *_: None)  # who would give the lock back
    station = opened(durability="os", clock=clock)
    for number in range(3):
        station.publish(CHANNEL, number)
    clock.now_us = LATER_US
    station.publish(CHANNEL, 3)
    assert log(station)._lock.held
    assert log(station).fields().append_us < LATER_US  # else there is nothing to test
    return station


def told(station: Station) -> list[tuple[int, int]]:
    """What Spark is told that reads through a hub."""
    life = station.engine.incarnation(CHANNEL)
    ask = Lines(channel=CHANNEL, partition=0, incarnation=life, first=0, next=100, appends=True)
    return Librarian(station).lines(ask, Rules("host2", subscribe=["*"]), 1 << 20)[0].appends


def told_from_outside(opened: Opener) -> list[tuple[int, int]]:
    """What Spark is told that reads the directory."""
    reader = opened(read_only=True).engine
    folder = reader.log(CHANNEL, 0).place.directory
    return append_times(folder, reader.last_append(CHANNEL, 0), 0, 100, reader.disk)


def test_nobody_is_told_a_time_that_is_older_than_the_line(station: Station, opened: Opener) -> None:
    assert told_from_outside(opened) == told(station) == []
    log(station).release_if_idle(log(station).next)
    assert not log(station)._lock.held
    assert told_from_outside(opened) == told(station) == [(3, LATER_US)]


def test_whoever_frees_the_lock_meanwhile_makes_no_old_time_of_it(
    station: Station, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = Head.load

    def then_freed(head: Head) -> Fields:
        found = load(head)
        monkeypatch.setattr(Head, "load", load)
        log(station).release_if_idle(log(station).next)
        return found

    monkeypatch.setattr(Head, "load", then_freed)
    assert station.engine.last_append(CHANNEL, 0) is None
    assert station.engine.last_append(CHANNEL, 0) == (3, LATER_US)


def test_the_time_of_a_line_that_is_not_synced_yet_is_not_told_of_the_one_before(
    opened: Opener, clock: Set, root: Path
) -> None:
    station = opened(clock=clock)
    station.publish(CHANNEL, 0)
    clock.now_us = LATER_US
    with opened(durability="os", clock=clock) as other:
        other.publish(CHANNEL, 1)
        assert station.engine.limit(CHANNEL, 0).next == 1
        last = station.engine.last_append(CHANNEL, 0)
        assert append_times(root / "channels" / CHANNEL / "0", last, 0, 1, station.engine.disk) == []


def test_trace_says_no_time_before_the_message_was_made(station: Station, clock: Set) -> None:
    *_, last = station.read(CHANNEL)
    clock.now_us = LATER_US + 10
    [copy] = trace(station, last.id)
    assert copy.appended is not None
    assert LATER_US <= to_us(copy.appended) <= LATER_US + 10


def test_trace_knows_the_time_of_a_line_that_the_index_tells_though_the_lock_is_kept(
    station: Station, clock: Set
) -> None:
    first = next(iter(station.read(CHANNEL)))
    for _ in range(40):
        station.publish(CHANNEL, "x" * 10_000)
    clock.now_us = LATER_US + 10
    station.publish(CHANNEL, 5)
    [copy] = trace(station, first.id)
    assert copy.appended is not None
    assert to_us(copy.appended) == LATER_US


def test_what_waits_for_a_link_is_not_older_than_it_is(station: Station, clock: Set) -> None:
    """Its publisher's clock is ahead: so what counts is when it came here."""
    assert behind._appended_s(station, behind._Place(CHANNEL, 0, 3, 4)) == LATER_US / 1e6
