"""Two busy processes at one partition: one appends what the other one hands in; nothing is lost or doubled by that."""

from __future__ import annotations

import contextlib
import errno
import random
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import google_crc32c
import pytest

import heliograph as hg
from heliograph.clock import Clock
from heliograph.disk import Disk
from heliograph.engine.background import LockKeeper
from heliograph.limits import TRAY_EMPTY_MAX, TRAY_TRIES, TRAY_WAIT_S
from heliograph.log import index
from heliograph.log.head import LOCK_WANTED, NEWS_WANTED, SERVED_BY, STORES_IN_ORDER
from heliograph.log.held import Evicted
from heliograph.log.locks import BRIEFLY, HAND_IN, AppendLock
from heliograph.log.news import News
from heliograph.log.partition import Partition
from heliograph.log.tray import BODY_BYTES_MAX, Tray
from heliograph.station import Station, open_station
from tests.faults import FaultyDisk
from tests.proof.tools import Child, checked_log, eventually

pytestmark = [
    pytest.mark.skipif(not STORES_IN_ORDER, reason="processes take turns where stores are not seen in order"),
    pytest.mark.usefixtures("untraced"),
]
CHANNEL = "alerts"


class Hands(Clock):
    """A clock that moves when somebody looks at it or sleeps; something may happen meanwhile."""

    def __init__(self) -> None:
        self.now = time.monotonic()
        self.wall_us = 1_700_000_000_000_000
        self.meanwhile: Callable[[], None] = lambda: None
        self._within = False

    def _move(self, seconds: float) -> float:
        self.now += seconds
        if not self._within:
            self._within = True
            try:
                self.meanwhile()
            finally:
                self._within = False
        return self.now

    def monotonic(self) -> float:  # type: ignore[override]
        return self._move(1e-6)

    def sleep(self, seconds: float) -> None:  # type: ignore[override]
        self._move(seconds)

    def give_way(self) -> None:  # type: ignore[override]
        self._move(1e-6)

    def time_ns(self) -> int:  # type: ignore[override]
        return self.wall_us * 1000


class Pair:
    """Two stations of one directory, as two processes have them. The first one holds the lock, and is busy."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> None:
        monkeypatch.setattr(LockKeeper, "add", lambda _keeper, _partition: None)  # nobody looks but the tests
        self.root = root
        self.clocks = Hands(), Hands()
        self.disks = FaultyDisk(), FaultyDisk()
        settings = {"name": "host1", "durability": "interval", "sync_interval_ms": 600_000, **settings}
        self.stations: list[Station] = [
            open_station(root, clock=clock, disk=disk, **settings)
            for clock, disk in zip(self.clocks, self.disks, strict=True)
        ]
        for station in self.stations[::-1]:
            station.publish(CHANNEL, "first")
        self.one, self.other = (station.engine.writer(CHANNEL, 0) for station in self.stations)
        self.other._lock.pid += 1
        self.count = 0
        self.others = 0
        self.told = 0
        for _ in range(2):
            self.work()
        assert self.one._lock.held
        self.other._own_us = self.clocks[1].wall_us  # it is busy, too
        self.clocks[0].meanwhile = lambda: release(self.other)
        self.clocks[1].meanwhile = self.work
        answer = Tray.answer

        def count(tray: Tray, offset: int) -> None:
            self.told += 1
            answer(tray, offset)

        monkeypatch.setattr(Tray, "answer", count)
        free = AppendLock.release

        def free_own(lock: AppendLock) -> None:
            assert lock.held, "the head is stored with the lock only"
            free(lock)

        monkeypatch.setattr(AppendLock, "release", free_own)
        hand_in = Tray.hand_in

        def look_first(tray: Tray, *arguments: Any) -> int:
            assert tray.ours and not tray.occupied, "somebody may be just taking it"
            return hand_in(tray, *arguments)

        monkeypatch.setattr(Tray, "hand_in", look_first)

    def work(self) -> None:
        """The first one publishes."""
        self.count += 1
        self.stations[0].publish(CHANNEL, f"one {self.count}")

    def hand(self, more: str = "") -> hg.Receipt:
        """The other one publishes."""
        self.others += 1
        return self.stations[1].publish(CHANNEL, f"other {self.others}{more}")

    def rest(self) -> None:
        """Nobody does anything any more."""
        self.clocks[1].meanwhile = lambda: None
        for partition in (self.one, self.other):
            release(partition)

    def close(self) -> None:
        self.rest()
        for station in self.stations:
            with contextlib.suppress(hg.OutcomeUnknown):  # of those that are fenced
                station.close()

    def check(self, *receipts: hg.Receipt) -> dict[int, Any]:
        """Everything is stored that should be: in order, once, where its receipt says."""
        self.rest()
        found = {offset: message["data"] for offset, message in checked_log(self.root, CHANNEL).items()}
        for whose in ("one", "other"):
            numbers = [int(data.split()[1]) for data in found.values() if data.startswith(f"{whose} ")]
            assert numbers == sorted(set(numbers)), f"{whose}'s are out of order or doubled"
        for receipt in receipts:
            assert found[receipt.offset].startswith("other ")
        assert [data for data in found.values() if data.startswith("other ")] == [
            found[receipt.offset] for receipt in receipts
        ]
        return found


def release(partition: Partition) -> None:
    """As it gives back a lock that it keeps, if it publishes nothing."""
    if partition.mutex.acquire(blocking=False):
        if partition._lock.held:
            partition._release()
        partition.mutex.release()


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pair]:
    found = Pair(tmp_path / "data", monkeypatch)
    yield found
    found.close()


def test_what_is_handed_in_is_appended_with_the_holders_own(pair: Pair) -> None:
    receipts = [pair.hand() for _ in range(50)]
    assert pair.told == 50, "and not in turns"
    assert pair.one._lock.held and not pair.other._lock.held
    found = pair.check(*receipts)
    assert len(found) == 50 + pair.count + 2


def test_whoever_serves_finds_what_it_appended_for_others_as_its_own(pair: Pair) -> None:
    receipts = [pair.hand() for _ in range(200)]  # several entries of the index
    looked_up = [pair.stations[0].get(receipt.id) for receipt in receipts[::37]]
    assert [message and message.offset for message in looked_up] == [receipt.offset for receipt in receipts[::37]]
    assert [message.offset for message in pair.stations[1].read(CHANNEL)] == list(range(pair.one.next))


@pytest.mark.parametrize("apart_us", [-3_000_000, -1, 1, 3_000_000])
def test_messages_of_both_are_found_by_their_time(pair: Pair, apart_us: int) -> None:
    receipts = []
    for _ in range(100):
        for clock, us in zip(pair.clocks, (0, apart_us), strict=True):
            clock.wall_us = pair.clocks[0].wall_us + 7 + us if us else clock.wall_us + 7
        pair.other._own_us = pair.clocks[1].wall_us
        receipts.append(pair.hand())
    assert pair.told == 100
    pair.check(*receipts)
    everything = list(pair.stations[0].read(CHANNEL))
    for message in everything[::23]:
        start = datetime.fromtimestamp(0, UTC) + (message.time - datetime.fromtimestamp(0, UTC))
        found = {one.offset for one in pair.stations[0].read(CHANNEL, start=start)}
        assert {one.offset for one in everything if one.time >= start} <= found


def test_who_waits_for_news_hears_of_what_was_handed_in(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    pair.hand()
    heard = []
    tell = News.tell
    monkeypatch.setattr(News, "tell", lambda news: heard.append(pair.one.next) or tell(news))
    pair.one._words[NEWS_WANTED] = 1
    receipt = pair.hand()
    assert receipt.offset + 1 in heard


@pytest.mark.parametrize("step_us", [100, -3_000_000])
def test_an_index_entry_knows_the_times_of_all_its_lines(pair: Pair, step_us: int) -> None:
    """The other one's clock is read before its message waits to be taken, and may be ahead of it, or step back."""
    pair.clocks[1].wall_us -= 50
    pair.other._own_us = pair.clocks[1].wall_us
    for _ in range(300):
        for clock, us in zip(pair.clocks, (100, step_us), strict=True):
            clock.wall_us += us
        pair.other._own_us = pair.clocks[1].wall_us
        pair.hand()
    pair.rest()
    folder = pair.root / "channels" / CHANNEL / "0"
    entries = index.chain((folder / f"{0:020d}.index").read_bytes(), 0)
    assert len(entries) > 4
    stored = checked_log(pair.root, CHANNEL)
    for entry in entries:
        times = [us_of(stored[offset]["time"]) for offset in range(entry.first, entry.first + entry.lines)]
        assert entry.min_us == min(times), "a filter would pass over it"
        assert entry.max_us == max(times)


def us_of(text: str) -> int:
    return round((datetime.fromisoformat(text) - datetime.fromtimestamp(0, UTC)) / timedelta(microseconds=1))


def die_taking(_: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    take = Tray.take

    def die(*arguments: Any) -> Any:
        if take(*arguments) is not None:
            raise KeyboardInterrupt
        return None

    monkeypatch.setattr(Tray, "take", die)


def die_writing(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    write = Partition._write_bytes

    def die(self: Partition, data: bytes) -> None:
        if self is pair.one and b'"data":"other ' in data:
            write(self, data[:-20])
            raise KeyboardInterrupt
        write(self, data)

    monkeypatch.setattr(Partition, "_write_bytes", die)


def die_written(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    write = Partition._write_bytes

    def die(self: Partition, data: bytes) -> None:
        write(self, data)
        if self is pair.one and b'"data":"other ' in data:
            raise KeyboardInterrupt

    monkeypatch.setattr(Partition, "_write_bytes", die)


def die_answering(_: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    def die(_tray: Tray, _offset: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Tray, "answer", die)


@pytest.mark.parametrize("fate", [die_taking, die_writing, die_written, die_answering])
def test_whoever_dies_with_anothers_message_loses_and_doubles_nothing(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, fate: Callable[[Pair, pytest.MonkeyPatch], None]
) -> None:
    """Being interrupted is as dying: the head stays as it was, and the lock is free."""
    receipts = [pair.hand() for _ in range(3)]
    died = []

    def work() -> None:
        if not died:
            try:
                pair.work()
            except KeyboardInterrupt:
                died.append(pair.count)
                pair.one._disown()  # what is left of it

    with monkeypatch.context() as patched:
        fate(pair, patched)
        pair.clocks[1].meanwhile = work
        receipts.append(pair.hand())
    assert died
    receipts += [pair.hand() for _ in range(3)]
    pair.check(*receipts)


@pytest.mark.parametrize("fate", [die_taking, die_writing, die_written, die_answering])
def test_whoever_is_interrupted_with_anothers_message_and_goes_on_does_not_append_it_again(
    pair: Pair, fate: Callable[[Pair, pytest.MonkeyPatch], None]
) -> None:
    receipts = [pair.hand() for _ in range(3)]
    interrupted = []

    def work() -> None:
        try:
            pair.work()
        except KeyboardInterrupt:
            interrupted.append(pair.count)
            patched.undo()

    with pytest.MonkeyPatch.context() as patched:
        fate(pair, patched)
        pair.clocks[1].meanwhile = work
        receipts.append(pair.hand())
    assert interrupted
    receipts += [pair.hand() for _ in range(3)]
    pair.check(*receipts)


def test_what_its_owner_appends_after_all_is_not_taken_from_the_tray_though_the_owner_is_interrupted(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair.hand()
    write = Partition._write_bytes

    def interrupted(self: Partition, data: bytes) -> None:
        write(self, data)
        if self is pair.other:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Partition, "_write_bytes", interrupted)
        pair.clocks[1].meanwhile = lambda: release(pair.one)  # who served goes away
        with pytest.raises(KeyboardInterrupt):
            pair.hand()
    for _ in range(20):  # and comes back, and serves
        pair.one._words[LOCK_WANTED] = HAND_IN
        pair.work()
    pair.rest()
    found = [message["data"] for message in checked_log(pair.root, CHANNEL).values()]
    assert found.count("other 2") == 1


def test_a_disk_that_cannot_tell_what_became_of_a_message_keeps_no_lock(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair.hand()

    def work() -> None:
        with contextlib.suppress(KeyboardInterrupt):
            pair.work()
        pair.one._disown()
        pair.clocks[1].meanwhile = lambda: None

    def unreadable(*_: object) -> bool:
        raise OSError(errno.EIO, "unreadable")

    with monkeypatch.context() as patched:
        die_written(pair, patched)
        patched.setattr(Partition, "_stands_at", unreadable)
        pair.clocks[1].meanwhile = work
        with pytest.raises(hg.OutcomeUnknown, match="unreadable"):
            pair.hand()
        assert not pair.other._lock.held
    pair.work()
    found = [message["data"] for message in checked_log(pair.root, CHANNEL).values()]
    assert found.count("other 2") == 1


def dies_once(pair: Pair, then: Callable[[], object] = lambda: None) -> Callable[[], None]:
    """The first one's work, until it dies; then a third process comes, which repairs, and begins a segment."""
    died = []

    def work() -> None:
        if died:
            return
        try:
            pair.work()
        except KeyboardInterrupt:
            died.append(pair.count)
            pair.one._disown()
            pair.one.rotate()
            then()

    return work


def test_a_third_process_that_comes_first_after_such_a_death_changes_nothing(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        die_written(pair, patched)
        pair.clocks[1].meanwhile = dies_once(pair)
        receipt = pair.hand()
    pair.check(receipt)


def test_a_segment_that_is_gone_by_then_tells_neither_that_it_was_appended_nor_that_it_was_not(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = (pair.root / "channels" / CHANNEL / "0" / f"{0:020d}.jsonl").unlink  # compressed, or too old
    with monkeypatch.context() as patched:
        die_written(pair, patched)
        pair.clocks[1].meanwhile = dies_once(pair, gone)
        with pytest.raises(hg.OutcomeUnknown):
            pair.hand()
    assert not pair.other._lock.held


def test_whoever_cannot_write_what_it_took_has_published_its_own_and_leaves_the_other_to_itself(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    receipts = [pair.hand()]
    write = Partition._write_bytes
    failed = []

    def fail(self: Partition, data: bytes) -> None:
        if self is pair.one and b'"data":"other ' in data:
            failed.append(pair.count)
            pair.one._words[LOCK_WANTED] = BRIEFLY
            raise OSError(errno.ENOSPC, "full")
        write(self, data)

    monkeypatch.setattr(Partition, "_write_bytes", fail)
    receipts += [pair.hand(), pair.hand()]
    assert failed
    found = pair.check(*receipts)
    assert len([data for data in found.values() if data.startswith("one ")]) == pair.count


def test_an_interrupted_message_is_stored_once_or_not_at_all_and_those_after_it_are(pair: Pair) -> None:
    receipts = [pair.hand()]

    def interrupt() -> None:
        raise KeyboardInterrupt

    pair.clocks[1].meanwhile = interrupt
    with pytest.raises(KeyboardInterrupt):
        pair.hand()
    pair.clocks[1].meanwhile = pair.work
    assert pair.other._tray is not None and pair.other._tray.occupied
    receipts.append(pair.hand())
    assert not pair.other._tray.occupied
    receipts.append(pair.hand())
    found = checked_log(pair.root, CHANNEL)
    assert [found[receipt.offset]["data"] for receipt in receipts] == ["other 1", "other 3", "other 4"]


def test_whoever_is_stopped_with_anothers_message_in_the_tray_is_waited_for_and_no_longer(pair: Pair) -> None:
    pair.hand()
    pair.clocks[1].meanwhile = lambda: None
    began = pair.clocks[1].now
    with pytest.raises(hg.OutcomeUnknown, match="may or may not"):
        pair.hand()
    waited_s = pair.clocks[1].now - began
    assert waited_s < pair.other._busy_timeout_s + 2 * TRAY_WAIT_S * TRAY_TRIES
    for _ in range(3):
        pair.work()  # it goes on, and takes it
    found = [message["data"] for message in checked_log(pair.root, CHANNEL).values()]
    assert found.count("other 2") == 1


def test_whoever_publishes_no_more_is_rung_for(pair: Pair) -> None:
    receipts = [pair.hand()]
    rung: list[bytes] = []

    def hear() -> None:
        if pair.disks[1].counts["pwrite"] > before:
            rung.append(b"!")
            pair.clocks[0].wall_us += 1_000_000  # since it has published
            pair.one.release_if_asked()

    before = pair.disks[1].counts["pwrite"]
    pair.clocks[1].meanwhile = hear
    began = pair.clocks[1].now
    receipts.append(pair.hand())
    assert rung and pair.other._lock.held
    assert pair.clocks[1].now - began < 3 * TRAY_WAIT_S
    pair.check(*receipts)


def test_whoever_wants_the_lock_for_one_append_gets_it_from_whoever_serves(pair: Pair) -> None:
    receipts = [pair.hand()]
    assert pair.one._serves
    pair.one._words[LOCK_WANTED] = BRIEFLY
    pair.work()
    assert not pair.one._lock.held and not pair.one._serves
    assert not pair.one._words[SERVED_BY]
    receipts += [pair.hand() for _ in range(3)]
    pair.check(*receipts)


def test_a_message_that_does_not_fit_into_the_tray_is_published_all_the_same(pair: Pair) -> None:
    receipts = [pair.hand()]
    large = pair.stations[1].publish(CHANNEL, "x" * BODY_BYTES_MAX)
    assert checked_log(pair.root, CHANNEL)[large.offset]["data"] == "x" * BODY_BYTES_MAX
    receipts.append(pair.hand())
    assert receipts[0].offset < large.offset < receipts[1].offset


def test_who_publishes_while_the_partition_is_closed_is_told_so(pair: Pair) -> None:
    body, now_us = b'{"specversion":"1.0","id":"late"', pair.clocks[1].wall_us
    pair.hand()
    pair.other.close()
    with pytest.raises(Evicted):
        pair.other._append_one_entering(body, now_us, None)


def test_segments_end_where_they_should_though_two_lines_come_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = Pair(tmp_path / "data", monkeypatch, segment_bytes=4096)
    receipts = [pair.hand(" " + "x" * 900) for _ in range(200)]
    assert pair.told > 100
    pair.check(*receipts)
    sizes = [path.stat().st_size for path in (pair.root / "channels" / CHANNEL / "0").glob("*.jsonl")]
    assert len(sizes) > 20
    assert max(sizes) <= 4096
    pair.close()


def test_who_syncs_each_message_neither_serves_nor_hands_in(tmp_path: Path) -> None:
    with (
        open_station(tmp_path, name="host1", durability="always") as one,
        open_station(tmp_path, durability="always") as other,
    ):
        for number in range(10):
            one.publish(CHANNEL, number)
            other.publish(CHANNEL, number)
        assert not (tmp_path / "channels" / CHANNEL / "0" / "tray").exists()


# -- what was appended for another process, and is for that one to sync -------------------------------------------


def test_what_another_process_appended_for_this_one_is_synced_by_this_one(pair: Pair) -> None:
    receipt = pair.hand()
    assert pair.other.dirty
    assert pair.other.bounds(synced=True).next <= receipt.offset
    pair.stations[1].sync()
    assert pair.other.bounds(synced=True).next > receipt.offset
    assert not pair.other.dirty


def test_closing_syncs_what_another_process_appended_for_this_one(pair: Pair) -> None:
    receipt = pair.hand()
    pair.other.finish()  # as the station does in the end, when it has synced everything: nothing comes in between
    assert pair.one.bounds(synced=True).next > receipt.offset


def test_what_whoever_appended_it_has_synced_needs_no_second_sync(pair: Pair) -> None:
    pair.rest()
    while pair.other.dirty:  # by what it knows of others
        pair.other.sync()
    for _ in range(2):
        pair.work()
    pair.clocks[1].meanwhile = pair.work
    pair.hand()
    assert pair.told == 1 and pair.other.dirty
    pair.one.sync()
    assert pair.one._lock.held
    pair.clocks[1].meanwhile = _interrupt
    before = pair.disks[1].counts["fdatasync"]
    pair.other.sync()
    assert not pair.other.dirty
    assert pair.disks[1].counts["fdatasync"] == before


def test_a_failed_sync_of_what_another_process_appended_fences_the_log(pair: Pair) -> None:
    pair.hand()
    pair.disks[1].fail("fdatasync", errno.EIO)
    with pytest.raises(hg.OutcomeUnknown):
        pair.stations[1].sync()
    with pytest.raises(hg.Fenced):
        for _ in range(20):
            pair.work()


def test_nothing_is_owed_of_a_channel_that_was_deleted(pair: Pair) -> None:
    pair.hand()
    pair.one.change(Partition.mark_deleted)
    pair.other.sync()
    assert not pair.other.dirty


def test_a_fence_is_heard_of_by_whoever_had_it_appended(pair: Pair) -> None:
    pair.hand()
    pair.disks[0].fail("fdatasync", errno.EIO)
    with pytest.raises(hg.OutcomeUnknown):
        pair.stations[0].sync()
    with pytest.raises(hg.OutcomeUnknown):
        pair.other.sync()
    assert not pair.other.dirty


# -- whose tray it is ---------------------------------------------------------------------------------------------


def test_one_process_hands_in_at_a_time_and_others_when_it_has_nothing_more(pair: Pair) -> None:
    pair.hand()
    third = Tray(pair.root / "channels" / CHANNEL / "0" / "tray", Disk())
    assert not third.claim()
    assert not pair.other.release_if_idle(pair.other.next), "it has just handed in"
    assert pair.other.release_if_idle(pair.other.next)
    assert third.claim()
    third.close()


def test_what_a_dead_process_left_in_the_tray_is_neither_overwritten_nor_taken_later(pair: Pair) -> None:
    """Whoever holds the lock may be just reading it; hours later, nobody waits for it any more."""
    pair.hand()
    pair.rest()
    pair.other._let_go_of_tray()
    body = b'{"specversion":"1.0","id":"dead"'
    dead, third = (Tray(pair.root / "channels" / CHANNEL / "0" / "tray", Disk()) for _ in range(2))
    assert dead.claim()
    clock = Hands()
    clock.meanwhile = _interrupt
    with pytest.raises(KeyboardInterrupt):
        dead.hand_in(body, google_crc32c.value(body), 1, pair.one._words, clock)
    assert not third.claim(), "it lives"
    dead.close()
    assert not third.claim(), "it is dead, and its message is there"
    for _ in range(2):
        pair.work()
    pair.clocks[1].meanwhile = pair.work
    pair.hand()
    assert pair.told == 2
    assert "dead" not in [message["id"] for message in checked_log(pair.root, CHANNEL).values()]
    third.close()


def _interrupt() -> None:
    raise KeyboardInterrupt


def test_whoever_serves_looks_no_more_when_nothing_comes(pair: Pair) -> None:
    pair.hand()
    for _ in range(2 * TRAY_EMPTY_MAX):
        assert pair.one._serves
        pair.clocks[0].wall_us += 10
        pair.work()
        if not pair.one._serves:
            break
    assert not pair.one._serves and not pair.one._words[SERVED_BY]
    pair.hand()
    assert pair.told == 2, "it is asked again"


def test_a_full_disk_without_a_tray_means_turns(pair: Pair) -> None:
    pair.disks[1].fail("pwrite", errno.ENOSPC, path="tray")
    pair.disks[0].fail("pwrite", errno.ENOSPC, path="tray")
    receipt = pair.hand()
    pair.check(receipt)
    assert pair.told == 0


# -- real processes -----------------------------------------------------------------------------------------------

BUSY = """
    import os, sys, heliograph as hg
    acks = os.open(sys.argv[2], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    with hg.open(sys.argv[1], durability=sys.argv[3]) as station:
        number = 0
        print("ready", flush=True)
        sys.stdin.readline()
        while number < int(sys.argv[4]):
            receipt = station.publish("alerts", {"who": sys.argv[2][-8:], "n": number})
            os.write(acks, b"%d %d %s\\n" % (number, receipt.offset, receipt.id.encode()))
            number += 1
"""


def stored_and_acknowledged(root: Path, acks: list[Path]) -> None:
    stored = checked_log(root, CHANNEL)
    for path in acks:
        mine = [(offset, one["data"]["n"]) for offset, one in stored.items() if one["data"]["who"] == path.name[-8:]]
        numbers = [number for _, number in mine]
        assert numbers == list(range(len(numbers))), f"{path.name}'s are out of order, doubled or lost"
        rows = path.read_text().splitlines() if path.exists() else []
        assert 0 <= len(numbers) - len(rows) <= 1
        for row in rows:
            number, offset, message_id = row.split()
            assert stored[int(offset)]["data"]["n"] == int(number)
            assert stored[int(offset)]["id"] == message_id


@pytest.mark.parametrize("durability", ["interval", "os"])
def test_two_busy_processes_publish_each_message_once(tmp_path: Path, durability: str) -> None:
    root, acks = tmp_path / "data", [tmp_path / f"acks-{number:03}" for number in range(2)]
    hg.open(root, name="host1").close()
    children = [Child(BUSY, root, path, durability, 20_000) for path in acks]
    for child in children:
        assert child.line() == "ready"
    for child in children:
        child.tell()
    for child in children:
        child.finish()
    stored_and_acknowledged(root, acks)
    assert len(checked_log(root, CHANNEL)) == 40_000


@pytest.mark.parametrize("seed", range(3))
def test_kills_of_busy_processes_lose_and_double_nothing(tmp_path: Path, seed: int) -> None:
    """Either may be the one that serves, or the one whose message lies in the tray."""
    luck = random.Random(seed)
    root, acks = tmp_path / "data", [tmp_path / f"acks-{number:03}" for number in range(12)]
    hg.open(root, name="host1").close()
    alive: list[Child] = []
    for path in acks:
        child = Child(BUSY, root, path, "interval", 1_000_000)
        assert child.line() == "ready"
        child.tell()
        alive.append(child)
        eventually(lambda path=path: path.exists() and path.stat().st_size > 1000)  # type: ignore[misc]
        if len(alive) > 1:
            time.sleep(luck.uniform(0.0, 0.1))
            alive.pop(luck.randrange(2)).kill()
    for child in alive:
        child.kill()
    with hg.open(root) as station:
        station.publish(CHANNEL, {"who": "last", "n": 0})
    stored_and_acknowledged(root, acks)
