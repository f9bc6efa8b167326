"""From the store to the log: every way it can fail, step by step, and the way back."""

from __future__ import annotations

import errno

import pytest

import heliograph as hg
from heliograph.admin.verify import verify
from heliograph.clock import to_us
from heliograph.limits import SCHEDULE_MOVE_MAX
from heliograph.log.locks import FileLock
from heliograph.schedule import waiting
from tests.faults import FaultyDisk
from tests.schedule.conftest import Hands, Opener

FAR_US = 1 << 60
pytestmark = pytest.mark.usefixtures("undisturbed")


def data(station: hg.Station, channel: str = "alerts") -> list[object]:
    return [message.data for message in station.read(channel)]


def test_moved_in_the_order_they_are_due_and_only_those(opened: Opener) -> None:
    station = opened()
    for number, delay in enumerate((30, 10, 20, 3600)):
        station.publish("alerts", number, delay=delay)
    now_us = to_us(next(station.scheduled("alerts")).due) + 25_000_000
    assert Hands(station).mover.move(now_us) == 3
    assert data(station) == [1, 2, 0]
    assert station.scheduled_count() == 1


def test_those_due_at_the_same_time_come_in_the_order_they_were_published(opened: Opener) -> None:
    station = opened()
    station.publish_many("alerts", list(range(100)), delay=0)
    Hands(station).mover.move(FAR_US)
    assert data(station) == list(range(100))


def test_a_bounded_number_at_a_time(opened: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    station = opened()
    station.publish_many("alerts", list(range(SCHEDULE_MOVE_MAX + 5)), delay=0)
    hands = Hands(station)
    assert [hands.mover.move(FAR_US) for _ in range(3)] == [SCHEDULE_MOVE_MAX, 5, 0]
    monkeypatch.setattr(waiting, "SCHEDULE_MOVE_BYTES_MAX", 10_000)
    station.publish_many("alerts", ["x" * 4_000] * 5 + ["y" * 20_000], delay=0)
    moved = [hands.mover.move(FAR_US) for _ in range(5)]
    assert sum(moved) == 6
    assert max(moved) == 2
    assert len(data(station)) == SCHEDULE_MOVE_MAX + 11


def test_killed_before_the_append_they_are_appended_next_time(opened: Opener) -> None:
    station = opened()
    station.publish_many("alerts", [1, 2], delay=0)
    hands = Hands(station)
    hands.waiting.send(FAR_US, hands.mover._record_of)
    hands.mover.resume(FAR_US)
    assert [(one.moving, one.error) for one in station.scheduled()] == [(False, "")] * 2
    hands.mover.move(FAR_US)
    assert data(station) == [1, 2]


@pytest.mark.parametrize("appended", [1, 2, 3])
def test_killed_after_some_were_appended_only_the_rest_is(opened: Opener, appended: int) -> None:
    station = opened()
    station.publish("alerts", 0)
    station.publish_many("alerts", [1, 2, 3], delay=0)
    hands = Hands(station)
    rows = hands.waiting.send(FAR_US, hands.mover._record_of)
    hands.mover._carry("alerts", rows[:appended])
    station.publish("alerts", 9)
    hands.mover.resume(FAR_US)
    assert station.scheduled_count() == 3 - appended
    hands.mover.move(FAR_US)
    assert sorted(map(int, data(station))) == [0, 1, 2, 3, 9]
    assert station.scheduled_count() == 0


def test_the_same_id_published_by_somebody_else_is_not_taken_for_it(opened: Opener) -> None:
    station = opened()
    station.publish("alerts", "mine", id="same", delay=0)
    hands = Hands(station)
    hands.waiting.send(FAR_US, hands.mover._record_of)
    station.publish("alerts", "theirs", id="same")
    hands.mover.resume(FAR_US)
    hands.mover.move(FAR_US)
    assert data(station) == ["theirs", "mine"]


def test_an_earlier_message_of_the_same_id_is_not_taken_for_it(opened: Opener) -> None:
    station = opened()
    hands = Hands(station)
    for number in (1, 2):
        station.publish("alerts", number, id="same", delay=0)
        hands.waiting.send(FAR_US, hands.mover._record_of)
        hands.mover.resume(FAR_US)
        hands.mover.move(FAR_US)
    assert data(station) == [1, 2]


def test_a_channel_deleted_and_made_again_in_between_gets_them(opened: Opener) -> None:
    station = opened()
    station.publish_many("alerts", [7, 8], delay=0)
    station.publish("alerts", 0)
    hands = Hands(station)
    rows = hands.waiting.send(FAR_US, hands.mover._record_of)
    hands.mover._carry("alerts", rows)
    station.delete_channel("alerts")
    station.publish("alerts", 1)
    hands.mover.resume(FAR_US)
    hands.mover.move(FAR_US)
    assert data(station) == [1, 7, 8]


def test_what_arrived_in_a_channel_made_again_is_found_though_it_is_shorter(opened: Opener) -> None:
    station = opened()
    station.publish_many("alerts", list(range(5)))
    station.publish_many("alerts", [7, 8], delay=0)
    hands = Hands(station)
    rows = hands.waiting.send(FAR_US, hands.mover._record_of)
    station.delete_channel("alerts")
    hands.mover._carry("alerts", rows)
    hands.mover.resume(FAR_US)
    assert station.scheduled_count() == 0
    assert data(station) == [7, 8]


def test_a_channel_that_must_not_be_made_keeps_them_with_the_reason_until_it_is_there(opened: Opener) -> None:
    station = opened(auto_create=False)
    station.create_channel("alerts")
    station.create_channel("orders")
    station.publish_many("alerts", [1, 2], delay=0)
    station.publish("orders", 3, delay=0)
    station.delete_channel("alerts")
    hands = Hands(station)
    now_us = to_us(next(station.scheduled()).due) + 10_000_000
    hands.mover.move(now_us)
    assert data(station, "orders") == [3]
    assert ["no channel 'alerts'" in one.error for one in station.scheduled()] == [True, True]
    assert not any(one.moving for one in station.scheduled())
    stats = station.stats()
    assert (stats.scheduled, stats.scheduled_failed) == (2, 2)
    assert hands.mover.move(now_us) == 0, "tried again only after a pause"
    assert hands.waiting.next_us() == now_us + 1_000_000
    hands.mover.move(now_us + 1_000_000)
    assert hands.waiting.next_us() == now_us + 3_000_000
    station.create_channel("alerts")
    hands.mover.move(now_us + 3_000_000)
    assert data(station) == [1, 2]
    assert station.scheduled_count() == station.stats().scheduled_failed == 0


def test_what_failed_can_be_cancelled(opened: Opener) -> None:
    station = opened(auto_create=False)
    station.create_channel("alerts")
    receipt = station.publish("alerts", 1, delay=0)
    station.delete_channel("alerts")
    Hands(station).mover.move(FAR_US)
    assert station.cancel(receipt.id)


def test_a_full_disk_keeps_them_and_nothing_is_doubled_when_there_is_room(opened: Opener) -> None:
    disk = FaultyDisk()
    station = opened(disk=disk)
    station.publish("alerts", 0)
    station.publish_many("alerts", [1, 2], delay=0)
    hands = Hands(station)
    disk.fail("pwrite", errno.ENOSPC)
    hands.mover.move(FAR_US)
    assert disk.fired
    assert all("DiskFull" in one.error for one in station.scheduled())
    hands.mover.move(FAR_US + 2_000_000)
    assert data(station) == [0, 1, 2]


def test_nothing_overtakes_what_could_not_be_delivered(opened: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "SCHEDULE_MOVE_MAX", 2)
    disk = FaultyDisk()
    station = opened(disk=disk)
    station.publish("alerts", 0)
    station.publish("others", 0)
    station.publish_many("alerts", [1, 2, 3, 4, 5], delay=0)
    hands = Hands(station)
    for attempt in range(3):
        disk.fail("pwrite", errno.ENOSPC, path="/alerts/")
        now_us = FAR_US + attempt * 10_000_000
        hands.mover.move(now_us)
        for _ in range(3):  # the others of that channel are due, too
            hands.mover.move(now_us + 1_000)
        assert data(station) == [0]
        station.publish("alerts", 6 + attempt, delay=0)
    station.publish("others", 1, delay=0)
    for _ in range(8):
        hands.mover.move(now_us + 2_000)
    assert data(station, "others") == [0, 1], "another channel has nothing to do with it"
    for _ in range(8):
        hands.mover.move(now_us + 60_000_000)
    assert data(station) == list(range(9))


def test_nothing_overtakes_what_another_process_could_not_deliver(opened: Opener) -> None:
    disk = FaultyDisk()
    station = opened(disk=disk)
    station.publish("alerts", 0)
    station.publish("alerts", 1, delay=0)
    before = Hands(station)
    disk.fail("pwrite", errno.ENOSPC, path="/alerts/")
    before.mover.move(FAR_US)
    assert disk.fired
    station.publish("alerts", 2, delay=0)
    after = Hands(station)  # a new process: it has failed at nothing
    after.mover.take_over(FAR_US + 1_000)
    after.mover.move(FAR_US + 1_000)
    assert data(station) == [0, 1, 2]


@pytest.mark.parametrize("at_once", [2, 100])
def test_what_failed_comes_in_the_order_it_was_due(
    opened: Opener, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    monkeypatch.setattr(waiting, "SCHEDULE_MOVE_MAX", at_once)
    disk = FaultyDisk()
    station = opened(disk=disk)
    station.publish("alerts", 0)
    for due in (50, 10, 40, 20, 30, 30.5):
        station.publish("alerts", due, delay=due)
    hands = Hands(station)
    for attempt in range(2):
        disk.fail("pwrite", errno.ENOSPC, path="/alerts/")
        for _ in range(4):
            hands.mover.move(FAR_US + attempt * 10_000_000)
        station.publish("alerts", 60 + attempt, delay=60 + attempt)
        for _ in range(4):
            hands.mover.move(FAR_US + attempt * 10_000_000 + 1)
    assert data(station) == [0]
    found = [one.due for one in station.scheduled()]
    assert found == sorted(found)
    for _ in range(8):
        hands.mover.move(FAR_US + 120_000_000)
    assert data(station) == [0, 10, 20, 30, 30.5, 40, 50, 60, 61]


def test_what_was_on_its_way_while_nobody_could_look_does_so_too(opened: Opener) -> None:
    disk = FaultyDisk()
    station = opened(disk=disk)
    station.publish("alerts", 0)
    for due in (30, 10, 20):
        station.publish("alerts", due, delay=due)
    hands = Hands(station)
    disk.fail("fdatasync", errno.EIO)
    hands.mover.move(FAR_US)
    assert [one.moving for one in station.scheduled()] == [True] * 3
    verify(station, repair=True)
    for step in range(2, 6):
        hands.mover.resume(FAR_US + step * 120_000_000)
        hands.mover.move(FAR_US + step * 120_000_000)
    assert data(station) == [0, 10, 20, 30]


def test_a_failed_sync_leaves_them_on_their_way_until_the_log_is_repaired(opened: Opener) -> None:
    disk = FaultyDisk()
    station = opened(disk=disk)
    station.publish("alerts", 0)
    station.publish_many("alerts", [1, 2], delay=0)
    hands = Hands(station)
    disk.fail("fdatasync", errno.EIO)
    hands.mover.move(FAR_US)
    assert [one.moving for one in station.scheduled()] == [True, True]
    assert all(one.error for one in station.scheduled())
    station.publish("orders", 1, delay=0)
    station.publish("alerts", 3, delay=0)
    hands.mover.move(FAR_US)
    assert data(station, "orders") == [1], "other channels go on"
    hands.mover.resume(FAR_US + 120_000_000)
    assert station.scheduled_count() == 3
    verify(station, repair=True)
    for step in range(2, 6):
        hands.mover.resume(FAR_US + step * 120_000_000)
        hands.mover.move(FAR_US + step * 120_000_000)
    assert sorted(map(int, data(station))) == [0, 1, 2, 3]
    assert station.scheduled_count() == 0


@pytest.mark.parametrize("durability", ["interval", "os"])
def test_they_are_synced_before_they_are_forgotten_whatever_the_durability(
    opened: Opener, durability: str, undisturbed: FileLock
) -> None:
    station = opened(durability=durability, sync_interval_ms=60_000)
    station.publish_many("alerts", [1, 2], delay=0)
    Hands(station).mover.move(FAR_US)
    fields = station.engine.head_fields("alerts", 0)
    assert fields.synced_next == 2
