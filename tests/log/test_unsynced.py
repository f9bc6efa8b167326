"""What a killed process, or another thread, did not sync is synced before anybody says that nothing is unsynced."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

import pytest

import heliograph as hg
from heliograph.log.partition import Partition
from tests.faults import FaultyDisk
from tests.opening import Opener


def test_the_mark_goes_only_after_the_logs_of_a_dead_writer_are_synced(tmp_path: Path) -> None:
    disk = FaultyDisk()
    station = hg.open(tmp_path, name="host1", durability="os", disk=disk)
    station.publish("alerts", 1)
    disk.kill_at(1)
    station.engine.abandon()  # as the kernel does with a dead process's files
    station._upkeep.close()
    assert (tmp_path / "unsynced").exists()
    fresh = FaultyDisk()
    fresh.recording = True
    with hg.open(tmp_path, name="host1", disk=fresh):
        calls = [(kind, Path(path).name) for kind, path in fresh.journal]
        assert ("fdatasync", f"{0:020d}.jsonl") in calls[: calls.index(("unlink", "unsynced"))]
    assert not (tmp_path / "unsynced").exists()


@pytest.mark.parametrize("durability", ["interval", "os"])
def test_what_another_thread_publishes_while_the_station_is_closed_is_synced(
    opened: Opener, root: Path, monkeypatch: pytest.MonkeyPatch, durability: str
) -> None:
    station = opened(durability=durability, sync_interval_ms=600_000)
    station.publish("events", 0)
    _publish_after_the_last_sync(station, monkeypatch)
    station.close()
    assert not (root / "unsynced").exists()
    with opened(read_only=True) as reading:
        fields = reading.engine.head_fields("events", 0)
        assert (fields.next, fields.synced_next) == (2, 2)


def test_a_last_sync_that_fails_is_told_and_the_directory_is_let_go(
    opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = FaultyDisk()
    station = opened(durability="interval", sync_interval_ms=600_000, disk=disk)
    station.publish("events", 0)
    _publish_after_the_last_sync(station, monkeypatch, lambda: disk.fail("fdatasync", errno.EIO, path=".jsonl"))
    with pytest.raises(hg.OutcomeUnknown):
        station.close()
    disk.heal()
    with opened() as after, pytest.raises(hg.Fenced):
        after.publish("events", 2)


def _publish_after_the_last_sync(
    station: hg.Station, monkeypatch: pytest.MonkeyPatch, then: Callable[[], object] = lambda: None
) -> None:
    sync = station.engine._sync

    def sync_first(partitions: list[Partition]) -> None:
        sync(partitions)
        station.publish("events", 1)  # as another thread may do
        then()

    monkeypatch.setattr(station.engine, "_sync", sync_first)
