"""The store of waiting messages: order, cancelling, what it looks like from outside."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import heliograph as hg
from heliograph.log.locks import FileLock
from heliograph.schedule.database import FILE
from tests.proof.tools import Child, tree
from tests.schedule.conftest import Hands, Opener


def test_nothing_of_it_is_there_until_something_is_scheduled(opened: Opener, root: Path) -> None:
    station = opened()
    assert list(station.scheduled()) == []
    assert station.scheduled_count() == 0
    assert not station.cancel("nothing")
    assert station.schedules() == []
    assert not station.unschedule("nothing")
    assert station.stats().scheduled == 0
    station.publish("alerts", 1)
    assert not (root / "schedule").exists()
    names = [thread.name for thread in threading.enumerate()]
    assert "heliograph-schedule" not in names


def test_a_station_that_schedules_nothing_does_not_import_sqlite(tmp_path: Path) -> None:
    code = (
        "import sys, heliograph as hg\n"
        "with hg.open(sys.argv[1], name='host1') as station:\n"
        "    station.publish('alerts', 1, ttl=60)\n"
        "print([name for name in ('sqlite3', 'cronsim', 'zoneinfo') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code, tmp_path], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_listed_in_the_order_they_are_due(opened: Opener, undisturbed: FileLock) -> None:
    station = opened()
    start = datetime.now(UTC) + timedelta(hours=1)
    for number in (3, 1, 2):
        station.publish("alerts", number, deliver_at=start + timedelta(seconds=number), id=f"m{number}")
    station.publish_many("orders", [1, 2], delay=60)
    assert [one.id for one in station.scheduled("alerts")] == ["m1", "m2", "m3"]
    assert [one.channel for one in station.scheduled()] == ["orders", "orders", "alerts", "alerts", "alerts"]
    assert next(one.due for one in station.scheduled("alerts")) == start + timedelta(seconds=1)
    assert station.scheduled_count() == station.stats().scheduled == 5
    assert [one.offset for one in station.scheduled()] == [-1] * 5


def test_a_listing_longer_than_a_page_is_whole_and_in_order(opened: Opener, undisturbed: FileLock) -> None:
    station = opened()
    for delay in (60, 30, 60):
        station.publish_many("alerts", list(range(700)), delay=delay)
    listed = list(station.scheduled())
    assert len({one.id for one in listed}) == 2100
    assert [one.due for one in listed] == sorted(one.due for one in listed)
    assert len(list(station.scheduled("alerts"))) == 2100


def test_what_is_stored_is_what_would_have_been_published(opened: Opener, undisturbed: FileLock) -> None:
    station = opened()
    with hg.service("billing"), hg.correlation("order-17"):
        receipt = station.publish("alerts", {"a": "ü"}, key="cpu", headers={"region": "eu"}, subject="s", delay=0)
    Hands(station).mover.move(2**62)
    message = station.get(receipt.id)
    assert message is not None
    assert (message.data, message.key, message.headers, message.subject) == ({"a": "ü"}, "cpu", {"region": "eu"}, "s")
    assert (message.source, message.correlationid) == ("host1/billing", "order-17")


def test_bytes_drafts_and_mixed_types_can_wait_too(opened: Opener, undisturbed: FileLock) -> None:
    station = opened()
    moment = datetime(2020, 1, 1, tzinfo=UTC)
    receipts = station.publish_many(
        "alerts", [b"\x00", hg.Draft(data=1, key="k", time=moment, id="own"), {"%": "%b"}], delay=0
    )
    assert receipts[1].id == "own"
    assert [one.key for one in station.scheduled()] == [None, "k", None]
    Hands(station).mover.move(2**62)
    found = list(station.read("alerts"))
    assert [message.data for message in found] == [b"\x00", 1, {"%": "%b"}]
    assert [message.id for message in found] == [receipt.id for receipt in receipts]
    assert found[1].time == moment
    assert [message.offset for message in station.read("alerts", start=moment)] == [0, 1, 2]


def test_an_id_that_waits_already_is_refused_and_nothing_of_its_batch_is_stored(
    opened: Opener, undisturbed: FileLock
) -> None:
    station = opened()
    station.publish("alerts", 1, id="once", delay=60)
    with pytest.raises(hg.AlreadyExists, match="waits already"):
        station.publish_many("alerts", [1, hg.Draft(data=2, id="once")], delay=60)
    assert station.scheduled_count() == 1


def test_an_empty_batch_schedules_nothing(opened: Opener, root: Path) -> None:
    assert opened().publish_many("alerts", [], delay=60) == []
    assert not (root / "schedule").exists()


def test_cancelled_once(opened: Opener, undisturbed: FileLock) -> None:
    station = opened()
    receipt = station.publish("alerts", 1, delay=60)
    assert station.cancel(receipt.id)
    assert not station.cancel(receipt.id)
    assert station.scheduled_count() == 0


def test_what_is_on_its_way_cannot_be_cancelled(opened: Opener, undisturbed: FileLock) -> None:
    station = opened()
    receipt = station.publish("alerts", 1, delay=0)
    hands = Hands(station)
    assert len(hands.waiting.send(2**62, hands.mover._record_of)) == 1
    assert [one.moving for one in station.scheduled()] == [True]
    assert not station.cancel(receipt.id)
    hands.mover.resume(2**62)
    assert station.cancel(receipt.id), "it had not arrived, so it waits again"


# -- other eyes -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", ["closed", "open", "killed"])
def test_read_only_shows_what_waits_and_leaves_no_trace(opened: Opener, root: Path, state: str) -> None:
    if state == "killed":
        code = """
            import sys, heliograph as hg
            station = hg.open(sys.argv[1], name="host1")
            station.publish("alerts", 1, delay=3600)
            print("ready", flush=True)
            sys.stdin.readline()
        """
        with Child(code, root) as child:
            child.line()
    else:
        writer = opened()
        writer.publish("alerts", 1, delay=3600)
        if state == "closed":
            writer.close()
    before = {name: content for name, (_, _, _, content) in tree(root / "schedule").items()}
    reader = opened(read_only=True)
    assert reader.scheduled_count() == len(list(reader.scheduled())) == 1
    assert reader.timetable._dispatcher is None
    with pytest.raises(hg.ReadOnly):
        reader.cancel(next(reader.scheduled()).id)
    with pytest.raises(hg.ReadOnly):
        reader.publish("alerts", 2, delay=1)
    reader.close()
    after = {name: content for name, (_, _, _, content) in tree(root / "schedule").items()}
    if state != "open":  # then its writer leaves traces
        assert after == before


def test_a_damaged_file_is_said_to_be_damaged(opened: Opener, root: Path, undisturbed: FileLock) -> None:
    (root / "schedule" / FILE).write_bytes(b"this is no database" * 100)
    station = opened()
    with pytest.raises(hg.Damaged, match="backup"):
        station.publish("alerts", 1, delay=60)
    station.publish("alerts", 1)
    assert station.stats().scheduled == -1, "the other numbers are worth knowing all the same"


def test_a_newer_file_is_refused(opened: Opener, root: Path, undisturbed: FileLock) -> None:
    connection = sqlite3.connect(root / "schedule" / FILE)
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(hg.UnsupportedFormat, match="99"):
        opened().publish("alerts", 1, delay=60)
    with pytest.raises(hg.UnsupportedFormat, match="99"):
        opened(read_only=True).scheduled_count()


@pytest.mark.parametrize("size", [0, 4096])
def test_a_file_whose_maker_had_no_time_to_fill_it_holds_nothing(opened: Opener, root: Path, size: int) -> None:
    opened().publish("alerts", 1)
    (root / "schedule").mkdir()
    with sqlite3.connect(root / "schedule" / FILE) as connection:
        if size:
            connection.execute("PRAGMA journal_mode = WAL")
    connection.close()
    assert (root / "schedule" / FILE).stat().st_size == size
    reader = opened(read_only=True)
    assert (reader.scheduled_count(), reader.schedules(), reader.stats().scheduled) == (0, [], 0)
    writer = opened()
    writer.publish("alerts", 1, delay=3600)
    assert writer.scheduled_count() == 1


def test_a_forked_child_touches_nothing_and_the_parent_goes_on(opened: Opener, undisturbed: FileLock) -> None:
    station = opened()
    station.publish("alerts", 1, delay=60)
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            station.publish("alerts", 2, delay=60)
        except hg.Forked:
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    station.publish("alerts", 3, delay=60)
    assert station.scheduled_count() == 2


def test_many_threads_schedule_at_once(opened: Opener, undisturbed: FileLock) -> None:
    station = opened()

    def publish() -> None:
        for number in range(20):
            station.publish("alerts", number, delay=60)

    threads = [threading.Thread(target=publish) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert station.scheduled_count() == 120


def test_processes_that_race_to_make_it_agree(root: Path) -> None:
    code = """
        import sys, heliograph as hg
        with hg.open(sys.argv[1], name="host1") as station:
            print("ready", flush=True)
            sys.stdin.readline()
            for number in range(5):
                station.publish("alerts", number, delay=3600)
    """
    children = [Child(code, root) for _ in range(4)]
    for child in children:
        child.line()
    for child in children:
        child.tell()
    for child in children:
        child.finish()
    with hg.open(root) as station:
        assert station.scheduled_count() == 20


def test_a_commit_is_on_disk_when_it_returns(opened: Opener, undisturbed: FileLock) -> None:
    station = opened()
    station.publish("alerts", 1, delay=60)
    with station.timetable._data().reading() as connection:
        assert connection.execute("PRAGMA synchronous").fetchone() == (2,), "not FULL"
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
