"""The dispatcher at work: on time, one of many, through restarts, clock steps and cancels."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import heliograph as hg
from heliograph.disk import SYSTEM_DISK
from heliograph.log.locks import FileLock
from heliograph.schedule import dispatcher as dispatchers
from heliograph.schedule.mover import Mover
from heliograph.schedule.waiting import Waiting
from tests.delivery.harness import SteppedClock
from tests.proof.tools import Child, checked_log, eventually
from tests.schedule.conftest import Hands, Opener

HOUR_US = 3_600_000_000


def arrived(station: hg.Station, channel: str = "alerts") -> list[object]:
    try:
        return [message.data for message in station.read(channel)]
    except hg.NotFound:
        return []


def test_a_delayed_message_reaches_a_subscriber_and_not_before_it_is_due(opened: Opener) -> None:
    station = opened()
    seen: list[tuple[int, datetime]] = []
    station.subscribe("alerts", lambda message: seen.append((message.data, datetime.now(UTC))))
    receipts = [station.publish("alerts", number, delay=number / 20) for number in (6, 2, 4)]
    assert all(isinstance(receipt, hg.Scheduled) for receipt in receipts)
    eventually(lambda: len(seen) == 3)
    assert [number for number, _ in seen] == [2, 4, 6]
    due = {number: receipt.due for number, receipt in zip((6, 2, 4), receipts, strict=True)}  # type: ignore[attr-defined]
    assert all(when >= due[number] for number, when in seen)
    eventually(lambda: station.scheduled_count() == 0)


def test_a_time_in_the_past_is_due_at_once(opened: Opener) -> None:
    station = opened()
    station.publish("alerts", 1, deliver_at=datetime(1960, 1, 1))
    eventually(lambda: arrived(station) == [1])


def test_it_waits_for_the_due_time_of_what_is_first_not_for_a_tick(
    opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With looks an hour apart only the wake-ups are left: for what is due, and for what is scheduled before it."""
    monkeypatch.setattr(dispatchers, "SCHEDULE_LOOK_S", 3600.0)
    station = opened()
    station.publish("alerts", 1, delay=3000)
    dispatcher = station.timetable._dispatcher
    assert dispatcher is not None
    eventually(lambda: dispatcher._until_us < 1 << 61)
    station.publish("alerts", 2, delay=0.2)
    eventually(lambda: arrived(station) == [2])
    station.publish("alerts", 3, delay=0)
    eventually(lambda: arrived(station) == [2, 3])


def test_what_is_scheduled_while_it_looks_is_not_overlooked(opened: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatchers, "SCHEDULE_LOOK_S", 3600.0)
    station = opened()
    real, late = Waiting.next_us, [1]

    def next_us(self: Waiting) -> int | None:
        found = real(self)
        if late:
            station.publish("alerts", late.pop(), delay=0.1)
        return found

    monkeypatch.setattr(Waiting, "next_us", next_us)
    station.publish("alerts", 0, delay=3000)
    eventually(lambda: arrived(station) == [1])


def test_another_process_wakes_the_dispatcher(root: Path, opened: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatchers, "SCHEDULE_LOOK_S", 3600.0)
    station = opened()
    station.publish("alerts", 0, delay=3000)
    dispatcher = station.timetable._dispatcher
    assert dispatcher is not None
    eventually(lambda: dispatcher._leading and dispatcher._until_us < 1 << 61)
    code = "import sys, heliograph as hg\nwith hg.open(sys.argv[1]) as s: s.publish('alerts', 1, delay=0.1)"
    subprocess.run([sys.executable, "-c", code, root], check=True)
    eventually(lambda: arrived(station) == [1])


def test_a_station_opened_before_the_first_schedule_takes_over_when_its_maker_ends(root: Path, opened: Opener) -> None:
    station = opened()
    code = "import sys, heliograph as hg\nwith hg.open(sys.argv[1]) as s: s.publish('alerts', 1, delay=0.5)"
    subprocess.run([sys.executable, "-c", code, root], check=True)
    eventually(lambda: arrived(station) == [1])


def test_what_was_due_while_nobody_ran_comes_when_somebody_does(root: Path, opened: Opener) -> None:
    first = opened()
    first.publish_many("alerts", [1, 2], delay=0.3)
    first.publish("alerts", 3, delay=3600)
    first.close()
    time.sleep(0.4)
    second = opened()
    eventually(lambda: arrived(second) == [1, 2])
    eventually(lambda: second.scheduled_count() == 1)


def test_one_of_two_dispatches_and_the_other_takes_over_when_it_is_killed(root: Path, opened: Opener) -> None:
    code = """
        import sys, time, heliograph as hg
        station = hg.open(sys.argv[1], name="host1")
        station.publish("alerts", 0, delay=0)
        while station.scheduled_count():
            time.sleep(0.01)
        print("leads", flush=True)
        sys.stdin.readline()
    """
    with Child(code, root) as child:
        assert child.line() == "leads"
        station = opened()
        dispatcher = station.timetable._dispatcher
        assert dispatcher is not None
        for number in range(1, 4):
            station.publish("alerts", number, delay=0)
        eventually(lambda: len(arrived(station)) == 4)
        assert not dispatcher._leading, "two lead"
        lease = FileLock(root / "schedule" / "lock", SYSTEM_DISK)
        assert lease.noted() == f"process {child.pid}"
        lease.release()
        child.kill()
        station.publish("alerts", 4, delay=0)
        eventually(lambda: len(arrived(station)) == 5)
        assert dispatcher._leading
    assert len(checked_log(root, "alerts")) == 5


def test_two_processes_that_schedule_and_dispatch_lose_and_double_nothing(root: Path) -> None:
    code = """
        import sys, time, heliograph as hg
        with hg.open(sys.argv[1], name="host1") as station:
            for number in range(60):
                station.publish(f"c{number % 3}", [sys.argv[2], number], delay=0.01 * (number % 7))
            until = time.monotonic() + 30
            while station.scheduled_count() and time.monotonic() < until:
                time.sleep(0.01)
    """
    children = [Child(code, root, name) for name in "ab"]
    for child in children:
        child.finish()
    stored = [tuple(m["data"]) for n in range(3) for m in checked_log(root, f"c{n}").values()]
    assert sorted(stored) == sorted((name, number) for name in "ab" for number in range(60))


# -- the clock ------------------------------------------------------------------------------------------------


def test_a_clock_stepped_forward_brings_them_early(opened: Opener) -> None:
    clock = SteppedClock()
    station = opened(clock=clock)
    station.publish("alerts", 1, delay=3600)
    time.sleep(0.05)
    assert arrived(station) == []
    clock.step_us = HOUR_US
    eventually(lambda: arrived(station) == [1])


def test_a_clock_stepped_back_makes_them_wait_until_it_has_caught_up_and_doubles_nothing(opened: Opener) -> None:
    clock = SteppedClock()
    station = opened(clock=clock)
    station.publish("alerts", 1, delay=0)
    eventually(lambda: arrived(station) == [1])
    station.publish("alerts", 2, delay=0.3)
    clock.step_us = -HOUR_US
    time.sleep(0.5)
    assert arrived(station) == [1]
    clock.step_us = 0
    eventually(lambda: arrived(station) == [1, 2])
    eventually(lambda: station.scheduled_count() == 0)


def test_what_was_on_its_way_is_looked_after_though_the_clock_was_stepped_back(opened: Opener, root: Path) -> None:
    (root / "schedule").mkdir(parents=True)
    lease = FileLock(root / "schedule" / "lock", SYSTEM_DISK)
    assert lease.try_exclusive()
    clock = SteppedClock()
    station = opened(clock=clock)
    receipt = station.publish("alerts", 1, delay=0)
    hands = Hands(station)
    hands.waiting.send(time.time_ns() // 1000 + 1_000_000, hands.mover._record_of)
    clock.step_us = -HOUR_US
    lease.release()
    eventually(lambda: not any(one.moving for one in station.scheduled()))
    assert arrived(station) == []
    assert station.cancel(receipt.id)


def test_a_recurring_schedule_does_not_fire_again_for_a_clock_that_steps_back(opened: Opener) -> None:
    clock = SteppedClock()
    station = opened(clock=clock)
    station.schedule("often", "alerts", "tick", cron="*/10 * * * *")
    clock.step_us = HOUR_US
    eventually(lambda: len(arrived(station)) == 1)
    clock.step_us = 0
    station.publish("alerts", "mark", delay=0)
    eventually(lambda: "mark" in arrived(station))
    assert arrived(station).count("tick") == 1
    clock.step_us = 2 * HOUR_US
    eventually(lambda: arrived(station).count("tick") == 2)


# -- cancelling -----------------------------------------------------------------------------------------------


def test_of_cancel_and_delivery_exactly_one_wins(opened: Opener) -> None:
    station = opened()
    ids = [station.publish("alerts", number, delay=0.05).id for number in range(60)]
    time.sleep(0.05)
    won: list[str] = []
    threads = [
        threading.Thread(target=lambda part: won.extend(one for one in part if station.cancel(one)), args=(ids[n::3],))
        for n in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    eventually(lambda: station.scheduled_count() == 0)
    delivered = [message.id for message in station.read("alerts")] if station.channels() else []
    assert sorted(won + delivered) == sorted(ids)


# -- ends -----------------------------------------------------------------------------------------------------


def test_a_broken_schedule_neither_stops_the_station_nor_its_closing(opened: Opener, root: Path) -> None:
    (root / "schedule").mkdir(parents=True)
    (root / "schedule" / "schedule.sqlite3").write_bytes(b"no database at all" * 500)
    station = opened()
    station.publish("alerts", 1)
    assert arrived(station) == [1]
    station.close()
    assert station.closed


def test_closing_while_others_schedule_leaves_each_with_an_answer(opened: Opener, root: Path) -> None:
    station = opened()
    acknowledged: list[str] = []
    ends: list[str] = []

    def work() -> None:
        try:
            while True:
                acknowledged.append(station.publish("alerts", 1, delay=3600).id)
        except hg.HeliographError as error:
            ends.append(type(error).__name__)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    eventually(lambda: len(acknowledged) > 20)
    station.close()
    for thread in threads:
        thread.join()
    assert ends == ["StationClosed"] * 4
    assert set(acknowledged) <= {one.id for one in opened().scheduled()}


def test_an_error_that_nobody_expected_is_logged_and_tried_again(
    opened: Opener, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    real, errors = Mover.move, [RuntimeError("surprise")]

    def move(self: Mover, now_us: int) -> int:
        if errors:
            raise errors.pop()
        return real(self, now_us)

    monkeypatch.setattr(Mover, "move", move)
    station = opened()
    station.publish("alerts", 1, delay=0)
    eventually(lambda: arrived(station) == [1])
    assert "surprise" in caplog.text


def test_nothing_is_dispatched_after_close(opened: Opener, root: Path) -> None:
    station = opened()
    station.publish("alerts", 1, delay=0.2)
    station.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "heliograph-schedule"]
    with pytest.raises(hg.StationClosed):
        station.publish("alerts", 1, delay=1)
    with pytest.raises(hg.StationClosed):
        station.scheduled_count()


def test_the_lifetime_counts_from_when_it_is_due(opened: Opener) -> None:
    station = opened()
    receipt = station.publish("alerts", 1, delay=timedelta(hours=1), ttl=60)
    found = station.timetable.find(receipt.id)
    assert found is not None
    assert b'"expires":"%b' % (found[0].due + timedelta(seconds=60)).strftime("%Y-%m-%dT%H:%M:%S").encode() in found[1]
