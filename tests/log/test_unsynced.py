"""What a killed process did not sync is synced before anybody says that nothing is unsynced."""

from __future__ import annotations

from pathlib import Path

import heliograph as hg
from tests.faults import FaultyDisk


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
