"""Processes that append to one partition in turns: whoever was asked for the lock gives it back, and stands back."""

from __future__ import annotations

import fcntl
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median

import google_crc32c
import pytest

import heliograph as hg
from heliograph.clock import Clock
from heliograph.disk import Disk
from heliograph.engine import background
from heliograph.engine.background import LockKeeper
from heliograph.engine.watch import Watcher
from heliograph.limits import LOCK_EARLY_S, LOCK_KEEP_S, LOCK_SLEEP_S, LOCK_TURN_S, LOCK_YIELD_S
from heliograph.log.groups import Group
from heliograph.log.head import LOCK_WANTED, Fields, Head
from heliograph.log.locks import TURN, AppendLock
from heliograph.log.partition import Partition
from heliograph.station import open_station
from tests.proof.tools import Child


class Hands(Clock):
    """A clock that moves when somebody looks at it or sleeps; something may happen meanwhile."""

    def __init__(self) -> None:
        self.now = 1.0
        self.slept_s = 0.0
        self.gave_way = 0
        self.meanwhile: Callable[[], None] = lambda: None
        self.wall_us = 1_700_000_000_000_000

    def monotonic(self) -> float:  # type: ignore[override]
        self.now += 1e-6
        self.meanwhile()
        return self.now

    def sleep(self, seconds: float) -> None:  # type: ignore[override]
        self.now += seconds
        self.slept_s += seconds
        self.meanwhile()

    def give_way(self) -> None:
        self.gave_way += 1
        self.meanwhile()

    def time_ns(self) -> int:  # type: ignore[override]
        return self.wall_us * 1000


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


def ask(lock: AppendLock, wish: int = TURN) -> None:
    lock._head.words[LOCK_WANTED] = wish


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
            assert not other.acquire(1.0, TURN)
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


def test_whoever_waits_for_a_turn_to_end_gives_way_to_others_without_a_core(
    locks: tuple[AppendLock, AppendLock], clock: Hands
) -> None:
    one, other = locks
    one.acquire(1.0)

    def meanwhile() -> None:
        if clock.gave_way == 3 and one.held:
            one.release()

    clock.meanwhile = meanwhile
    other.acquire(1.0)
    assert other.held
    assert clock.gave_way == 3
    assert clock.slept_s == 0


# -- idle or slow, and asked for the lock --------------------------------------------------------------------


@pytest.fixture
def partition(tmp_path: Path, clock: Hands, monkeypatch: pytest.MonkeyPatch) -> Iterator[Partition]:
    """A partition that keeps its lock, for it was just published to twice. Nobody looks but the test."""
    monkeypatch.setattr(LockKeeper, "add", lambda _keeper, _partition: None)
    with open_station(tmp_path, name="host1", durability="interval", clock=clock) as station:
        station.publish_many("alerts", [1])
        found = station.engine.writer("alerts", 0)
        assert not found._lock.held, "it may have been the only one"
        station.publish("alerts", 1)
        assert found._lock.held
        yield found


def publish(partition: Partition) -> None:
    body = b'{"id":"x","data":2'
    partition.append_batch(Group((body,), (google_crc32c.value(body),), partition._clock.time_ns() // 1000))


def test_who_goes_on_publishing_keeps_the_lock(partition: Partition) -> None:
    for _ in range(3):
        known = partition.next
        publish(partition)
        assert not partition.release_if_idle(known)
        assert partition._lock.held


def test_who_was_idle_for_long_enough_gives_the_lock_back_at_the_first_look(partition: Partition, clock: Hands) -> None:
    known = partition.next
    publish(partition)
    clock.wall_us += int(LOCK_KEEP_S * 1e6)
    assert partition.release_if_idle(known)
    assert not partition._lock.held


def test_a_clock_that_is_put_back_does_not_keep_the_lock_for_an_hour(partition: Partition, clock: Hands) -> None:
    known = partition.next
    publish(partition)
    clock.wall_us -= 3_600_000_000
    assert not partition.release_if_idle(known)
    assert partition.release_if_idle(partition.next)
    assert not partition._lock.held


def test_who_publishes_now_and_then_gives_the_lock_back_when_its_turn_is_over(
    partition: Partition, clock: Hands
) -> None:
    ask(partition._lock)
    known = partition.next
    publish(partition)
    assert not partition.release_if_idle(known)
    assert partition._lock.held, "its turn has just begun"
    clock.now += LOCK_TURN_S * 1.01
    assert not partition.release_if_idle(known), "it is looked at again: it goes on publishing"
    assert not partition._lock.held


def test_who_waits_for_its_turn_is_still_looked_at(partition: Partition) -> None:
    """Being looked at anew with each turn would wake a thread each time."""
    known = partition.next
    publish(partition)
    partition.change(lambda _: None)
    assert not partition._lock.held
    assert not partition.release_if_idle(known)
    assert partition.release_if_idle(partition.next)


def test_who_publishes_right_after_it_was_found_idle_is_looked_at_again(
    partition: Partition, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    keeper = LockKeeper(Watcher())
    partition._on_kept = keeper.add
    monkeypatch.setattr(keeper, "_started", True)  # no thread: the test looks
    look = Partition.release_if_idle

    def look_and_publish(self: Partition, following: int) -> bool:
        found = look(self, following)
        publish(self)
        return found

    keeper.add(partition)
    monkeypatch.setattr(Partition, "release_if_idle", look_and_publish)
    partition.change(lambda _: None)  # the lock is free: it is idle at the second look
    keeper._kept[partition] = partition.next
    keeper._look()
    monkeypatch.undo()
    assert partition._lock.held
    assert partition in keeper._kept, "nobody would ever give its lock back"


def test_whoever_publishes_one_by_one_gives_the_lock_back_when_its_turn_is_over(tmp_path: Path) -> None:
    with hg.open(tmp_path, name="host1", durability="interval") as station:
        station.publish("alerts", 1)
        lock = station.engine.writer("alerts", 0)._lock
        ask(lock)
        while lock.held:
            station.publish("alerts", 2)
        station.publish("alerts", 3)
        assert [message.data for message in station.read("alerts")][-1] == 3


# -- heard or not ------------------------------------------------------------------------------------------------


def test_who_waits_sleeps_until_shortly_before_the_turn_ends_that_the_holder_speaks_of(
    locks: tuple[AppendLock, AppendLock], clock: Hands
) -> None:
    one, other = locks
    one.acquire(1.0)
    ask(one)
    assert one.may_keep()
    ends = one._head.words[LOCK_WANTED] / 1e9
    assert clock.now < ends <= clock.now + LOCK_TURN_S

    def meanwhile() -> None:
        if clock.now >= ends and one.held:
            one.release()

    clock.meanwhile = meanwhile
    other.acquire(1.0, TURN)
    assert other.held
    assert LOCK_TURN_S - LOCK_EARLY_S - 1e-4 < clock.slept_s < LOCK_TURN_S, "it slept once, and not too long"
    assert clock.gave_way > 10, "and was awake when the turn ended"


def test_a_time_that_makes_no_sense_is_not_waited_for(locks: tuple[AppendLock, AppendLock], clock: Hands) -> None:
    one, other = locks
    one.acquire(1.0)
    one._head.words[LOCK_WANTED] = 2**63

    def meanwhile() -> None:
        if clock.slept_s and one.held:
            one.release()

    clock.meanwhile = meanwhile
    other.acquire(1.0, TURN)
    assert clock.slept_s < LOCK_TURN_S


def test_one_append_does_not_wait_for_a_turn_to_end(locks: tuple[AppendLock, AppendLock], clock: Hands) -> None:
    one, other = locks
    one.acquire(1.0)
    ask(one)
    assert one.may_keep(), "a third one has asked for a turn"

    def meanwhile() -> None:
        clock.meanwhile = lambda: None  # which it is asked for, too
        if not one.may_keep():
            one.release()
        else:
            clock.meanwhile = meanwhile

    clock.meanwhile = meanwhile
    began = clock.now
    other.acquire(1.0)
    clock.meanwhile = lambda: None
    assert clock.now - began < LOCK_TURN_S / 10
    assert clock.slept_s == 0
    one_waits = clock.now
    other.release()
    one.acquire(1.0, TURN)
    assert clock.now - one_waits < LOCK_YIELD_S, "and gives it back at once"


@pytest.mark.parametrize("giving_back", ["release", "disown"])
def test_an_interrupt_while_the_lock_is_given_back_does_not_keep_it_from_others(
    tmp_path: Path, clock: Hands, giving_back: str
) -> None:
    class Interrupts(Disk):
        def flock(self, fd: int, operation: int) -> None:
            if operation == fcntl.LOCK_UN and not interrupted:
                interrupted.append(operation)
                raise KeyboardInterrupt
            fcntl.flock(fd, operation)

    interrupted: list[int] = []
    Head.create(tmp_path / "head", Disk(), b"b" * 16, Fields())
    one = AppendLock(tmp_path / "lock", Head(tmp_path / "head", Disk()), Interrupts(), clock, keep=True)
    other = AppendLock(tmp_path / "lock", Head(tmp_path / "head", Disk()), Disk(), clock, keep=True)
    one.acquire(1.0)
    with pytest.raises(KeyboardInterrupt):
        getattr(one, giving_back)()
    assert interrupted and not one.held
    assert other.acquire(0.1) == (giving_back == "disown")
    one.close()
    other.close()


def test_who_publishes_now_and_then_leaves_the_lock_to_others(partition: Partition, clock: Hands) -> None:
    for pause_us, keeps in ((100, True), (1_000, False), (1_000, False), (100, True), (-3_600_000_000, False)):
        clock.wall_us += pause_us
        publish(partition)
        assert partition._lock.held == keeps, f"after {pause_us} us"


def test_who_syncs_what_others_published_does_not_keep_the_lock(partition: Partition) -> None:
    partition.sync()
    assert partition._lock.held, "it was kept before"
    partition.change(lambda _: None)
    publish(partition)
    partition.change(lambda _: None)
    assert not partition._lock.held
    partition.sync()
    assert not partition._lock.held
    assert partition.synced == partition.written > 0


@pytest.mark.parametrize(("idle_us", "keeps"), [(100, True), (1_000, False)])
def test_who_is_rung_for_goes_on_if_it_is_publishing(
    partition: Partition, clock: Hands, *, idle_us: int, keeps: bool
) -> None:
    ask(partition._lock)
    clock.wall_us += idle_us
    partition.release_if_asked()
    assert partition._lock.held == keeps
    clock.now += LOCK_TURN_S * 1.01
    partition.release_if_asked()
    assert not partition._lock.held, "its turn is over"


@pytest.mark.parametrize("durability", ["interval", "always"])
def test_one_message_now_and_then_and_a_process_that_publishes_all_the_time_get_on_with_each_other(
    tmp_path: Path, durability: str
) -> None:
    with hg.open(tmp_path, name="host1", durability=durability) as station, Child(BUSY, tmp_path) as busy:
        assert busy.line() == "busy"
        for number in range(60):
            time.sleep(0.005)
            station.publish("alerts", number)  # Busy if it were never let in
        busy.tell()
        published = int(busy.line())
        found = [message.data for message in station.read("alerts")]
    assert [one for one in found if isinstance(one, int)] == list(range(60))
    assert [one["busy"] for one in found if isinstance(one, dict)] == list(range(published))
    assert published > 60 * 50, "of which it hinders the other one in few"


BUSY = """
    import sys, threading, heliograph as hg
    with hg.open(sys.argv[1], durability="interval") as station:
        enough, count = [], 0
        threading.Thread(target=lambda: enough.append(sys.stdin.readline()), daemon=True).start()
        while not enough:
            station.publish("alerts", {"busy": count})
            count += 1
            if count == 1000:
                print("busy", flush=True)
        print(count, flush=True)
"""

RINGER = """
    import sys, time, heliograph as hg
    with hg.open(sys.argv[1], durability="interval") as station:
        for line in sys.stdin:
            began = time.monotonic()
            station.publish("alerts", line)
            print(time.monotonic() - began, flush=True)
"""


@pytest.mark.parametrize("hears", [True, False])
def test_an_idle_process_gives_its_lock_to_whoever_rings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, hears: bool
) -> None:
    """It keeps the lock for longer than anybody waits, unless it is looked at or hears the bell."""
    monkeypatch.setattr(background, "LOCK_LOOK_S", 0.3)
    monkeypatch.setattr(background, "LOCK_LOOK_DEAF_S", 0.3)
    if not hears:
        monkeypatch.setattr(Partition, "release_if_asked", lambda _: None)
    with hg.open(tmp_path, name="host1", durability="os") as station, Child(RINGER, tmp_path) as ringer:
        waits = []
        for turn in range(10):
            station.publish("alerts", turn)
            partition = station.engine.writer("alerts", 0)
            while not partition._lock.held:
                station.publish("alerts", turn)
            time.sleep(0.02)  # it is watched by now
            ringer.tell()
            waits.append(float(ringer.line()))
            assert not partition._lock.held
    assert (median(waits) < 0.1) == hears, "one that does not hear is looked at after 0.3 s"
