"""The state of queues is in backups, and is checked: what was acknowledged does not come again."""

from __future__ import annotations

import shutil
import sqlite3
import threading
from pathlib import Path
from typing import Any

import pytest

import heliograph as hg
from heliograph.admin.backup import backup, check, restore
from heliograph.admin.verify import verify
from heliograph.engine.queuestore import FILE
from tests.admin.helpers import kinds, open_station, overwrite
from tests.proof.tools import eventually

QUEUE = "resize"


def state(root: Path) -> Path:
    return root / "subscriptions" / "jobs" / QUEUE / FILE


def data(jobs: list[hg.Job]) -> list[Any]:
    return sorted(job.message.data for job in jobs)


def half_done(station: hg.Station, partitions: int = 2) -> None:
    """Of numbers 0 to 39 the even ones below 30 are acknowledged, the others below 30 were handed out once."""
    station.create_channel("jobs", partitions=partitions)
    with station.queue("jobs", QUEUE, start="first") as queue:
        for number in range(30):
            station.publish("jobs", number)
        queue.ack(job for job in queue.receive(100) if job.message.data % 2 == 0)
    for number in range(30, 40):
        station.publish("jobs", number)


LEFT = [*range(1, 30, 2), *range(30, 40)]


@pytest.mark.parametrize("read_only", [False, True])
def test_a_restored_queue_does_not_hand_out_what_was_acknowledged(tmp_path: Path, read_only: bool) -> None:
    with open_station(tmp_path / "data") as station:
        half_done(station)
        if not read_only:
            backup(station, tmp_path / "copy")
    if read_only:
        with hg.open(tmp_path / "data", read_only=True) as station:
            backup(station, tmp_path / "copy")
    assert check(tmp_path / "copy") == []
    restore(tmp_path / "copy", tmp_path / "restored")
    gaps: list[hg.Gap] = []
    with open_station(tmp_path / "restored") as station:
        assert verify(station).ok
        with station.queue("jobs", QUEUE, on_gap=gaps.append) as queue:
            jobs = queue.receive(100)
            assert data(jobs) == LEFT
            again = [job.deliveries for job in jobs if job.message.data < 30]
            assert set(again) == {2}, "and it knows how often they were handed out"
            assert not gaps
            queue.ack(jobs)
        assert station.queue_info("jobs", QUEUE).depth == 0


def test_what_is_leased_when_the_backup_is_taken_is_free_in_it(tmp_path: Path) -> None:
    with open_station(tmp_path / "data") as station:
        half_done(station)
        with station.queue("jobs", QUEUE, visibility_s=3600) as queue:
            held = queue.receive(100)
            backup(station, tmp_path / "copy")
            restore(tmp_path / "copy", tmp_path / "restored")
            with open_station(tmp_path / "restored") as other:
                info = other.queue_info("jobs", QUEUE)
                assert (info.in_flight, info.workers, info.depth) == (0, [], len(LEFT))
                with other.queue("jobs", QUEUE) as elsewhere:
                    assert data(elsewhere.receive(100)) == data(held) == LEFT
            queue.ack(held)  # here it has lost nothing by it


def test_a_copy_knows_what_was_acknowledged_a_moment_ago(tmp_path: Path) -> None:
    """The queue's position on disk, and the place that it knows its log by, are older."""
    with open_station(tmp_path / "data", position_flush_ms=600_000) as station:
        station.publish_many("jobs", range(20))
        with station.queue("jobs", QUEUE, start="first") as queue:
            queue.ack(queue.receive(5))
        with station.queue("jobs", QUEUE) as queue:
            queue.ack(job for job in queue.receive(10) if job.message.data != 5)
            backup(station, tmp_path / "copy")
    restore(tmp_path / "copy", tmp_path / "restored")
    with open_station(tmp_path / "restored") as station, station.queue("jobs", QUEUE) as queue:
        assert data(queue.receive(100)) == [5, 15, 16, 17, 18, 19]


def test_a_log_that_is_not_the_one_it_was_is_noticed_though_it_is_long_enough(tmp_path: Path) -> None:
    """A queue's state beside an older copy of its log: what was published since has the offsets of what was done."""
    with open_station(tmp_path / "data") as station:
        station.publish_many("jobs", range(10))
        with station.queue("jobs", QUEUE, start="first") as queue:
            queue.ack(queue.receive(100))
            backup(station, tmp_path / "copy")
            station.publish_many("jobs", range(10, 15))
            queue.ack(queue.receive(100))
    restore(tmp_path / "copy", tmp_path / "restored")
    shutil.copy(state(tmp_path / "data"), state(tmp_path / "restored"))
    with open_station(tmp_path / "restored") as station:
        station.publish_many("jobs", range(100, 110))
        with station.queue("jobs", QUEUE) as queue:
            assert set(range(100, 110)) <= set(data(queue.receive(100))), (
                "others may come again, these must not be missing"
            )


def test_a_copy_is_taken_while_workers_work(tmp_path: Path) -> None:
    """Whatever the moment: what was acknowledged before is not handed out, what was not acknowledged after is."""
    acknowledged: list[int] = []
    with open_station(tmp_path / "data", durability="os") as station:
        station.publish_many("jobs", range(3000))
        with station.subscribe(
            "jobs", lambda message: acknowledged.append(message.data), name=QUEUE, queue=True, start="first"
        ) as worker:
            eventually(lambda: worker.position > 200)
            before = set(range(worker.position))
            backup(station, tmp_path / "copy")
            after = set(acknowledged)
    restore(tmp_path / "copy", tmp_path / "restored")
    with open_station(tmp_path / "restored") as station, station.queue("jobs", QUEUE) as queue:
        found: set[int] = set()
        while jobs := queue.receive(1000):
            found.update(data(jobs))
            queue.ack(jobs)
    assert not found & before
    assert set(range(3000)) - after <= found


def test_an_unchanged_queue_is_not_copied_again_and_nothing_is_left_beside_it(tmp_path: Path) -> None:
    with open_station(tmp_path / "data") as station:
        half_done(station)
        backup(station, tmp_path / "copy")
        again = backup(station, tmp_path / "copy")
        assert again.copied_bytes < state(tmp_path / "data").stat().st_size
        assert [path.name for path in (tmp_path / "copy").iterdir() if path.name.startswith(".")] == []
        assert [path.name for path in state(tmp_path / "copy").parent.glob(f"{FILE}*")] == [FILE]


def broken(path: Path, table: str = "pending") -> None:
    """Garbage in place of a table's first page."""
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA journal_mode = DELETE")
    (size,) = connection.execute("PRAGMA page_size").fetchone()
    (page,) = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", (table,)).fetchone()
    connection.close()
    overwrite(path, (page - 1) * size, b"\x0d" * size)


@pytest.mark.parametrize("table", ["pending", "meta"])
def test_a_damaged_state_is_reported_and_set_aside_and_the_queue_goes_on(tmp_path: Path, table: str) -> None:
    root, copy, restored = tmp_path / "data", tmp_path / "copy", tmp_path / "restored"
    with open_station(root) as station:
        half_done(station, partitions=1)
        assert verify(station).ok
    broken(state(root), table)
    with open_station(root) as station:
        report = verify(station)
        assert not report.ok
        assert kinds(report) == ["queue"]
        assert state(root).exists()
        taken = backup(station, copy)
        assert any(f"{QUEUE}/{FILE} is not in the backup" in warning for warning in taken.warnings)
        repaired = verify(station, repair=True)
        assert repaired.ok
        assert [trouble.repaired for trouble in repaired.troubles] == [True]
        assert verify(station).ok
        assert [path.name.split(".")[0] for path in (root / "quarantine" / "jobs").iterdir()] == [f"{QUEUE}-queue"]
        with station.queue("jobs", QUEUE) as queue:
            assert data(queue.receive(100)) == list(range(1, 40)), "delivered again from the floor on, nothing skipped"
    restore(copy, restored)
    with open_station(restored) as station, station.queue("jobs", QUEUE) as queue:
        assert data(queue.receive(100)) == list(range(1, 40))


def test_a_state_that_is_in_use_is_sound_while_it_is_written(tmp_path: Path) -> None:
    stop = threading.Event()
    with open_station(tmp_path, durability="os") as station:
        station.publish_many("jobs", range(200))
        queue = station.queue("jobs", QUEUE, start="first")

        def work() -> None:
            while not stop.is_set():
                for job in queue.receive(20):
                    job.nack()

        worker = threading.Thread(target=work)
        worker.start()
        try:
            for _ in range(10):
                assert verify(station).ok
        finally:
            stop.set()
            worker.join()
        queue.close()


def test_the_state_of_a_live_queue_is_not_taken_away(tmp_path: Path) -> None:
    with open_station(tmp_path) as station:
        half_done(station)
    broken(state(tmp_path))
    with open_station(tmp_path) as station:
        shared = station.engine.positions.share("jobs", QUEUE)
        report = verify(station, repair=True)
        assert not report.ok
        assert state(tmp_path).exists()
        shared.release()


@pytest.mark.parametrize("repair", [False, True])
def test_a_state_whose_maker_was_killed_hides_nothing_else_of_its_channel(tmp_path: Path, repair: bool) -> None:
    with open_station(tmp_path / "data") as station:
        half_done(station)
    state(tmp_path / "data").write_bytes(b"")
    line = next((tmp_path / "data" / "channels" / "jobs" / "0").glob("*.jsonl"))
    overwrite(line, 20, b"#")
    with open_station(tmp_path / "data") as station:
        report = verify(station, repair=repair)
        assert (report.lines, report.damaged, report.ok) == (40 - 1, 1, repair)
        with station.queue("jobs", QUEUE) as queue:
            assert set(data(queue.receive(100))) >= set(LEFT) - {0, 1}


def test_what_is_missing_in_a_channel_that_is_there_is_no_reason_to_pass_over_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> Any:
        raise hg.NotFound("something is not there")

    monkeypatch.setattr("heliograph.admin.verify.check_positions", fail)
    with open_station(tmp_path / "data") as station:
        half_done(station)
        with pytest.raises(hg.NotFound, match="something is not there"):
            verify(station)
