"""The doctor finds what is wrong with a machine, a directory or a station, and leaves no trace."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

import heliograph as hg
from heliograph.admin import doctor, wellbeing
from heliograph.admin.doctor import Finding, examine
from heliograph.config import Config
from tests.admin.helpers import CHANNEL, fill, open_station, overwrite, segments
from tests.admin.test_dead import bury
from tests.faults import FaultyDisk


@pytest.fixture(autouse=True)
def _be_quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "SYNC_S", 0.02)


def findings(path: Path, config: Config | None = None) -> dict[str, Finding]:
    found = examine(path, config or Config())
    assert all(bool(one.advice) == (one.status != "ok") for one in found), found
    return {one.name: one for one in found}


def test_a_healthy_station_is_well_and_stays_untouched(tmp_path: Path) -> None:
    with open_station(tmp_path / "data") as station:
        fill(station, 10)
    before = sorted((path, path.stat().st_mtime_ns) for path in (tmp_path / "data").rglob("*"))
    found = findings(tmp_path / "data")
    assert {one.name for one in found.values() if one.status != "ok"} <= {"sync speed", "file system", "open files"}
    assert {"versions", "permissions", "free space", "sync speed", "clock", "fenced logs", "dead letters"} <= set(found)
    assert "p50" in found["sync speed"].value
    assert "p99" in found["sync speed"].value
    assert "Python" in found["versions"].value
    assert found["channels"].value == "1 channels"
    assert sorted((path, path.stat().st_mtime_ns) for path in (tmp_path / "data").rglob("*")) == before


def test_a_directory_that_is_not_there_yet_is_examined_where_it_would_be(tmp_path: Path) -> None:
    found = findings(tmp_path / "not" / "yet")
    assert found["station"].value.startswith("none yet")
    assert str(tmp_path) in found["permissions"].value
    assert os.listdir(tmp_path) == []


def test_the_trial_of_the_disk_takes_about_a_second(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "SYNC_S", 0.3)
    started_s = time.monotonic()
    examine(tmp_path, Config())
    assert time.monotonic() - started_s < 60, "it did not stop by itself"


def test_a_fenced_log_quarantine_and_dead_letters_are_found(tmp_path: Path) -> None:
    disk = FaultyDisk()
    with open_station(tmp_path, disk=disk) as station:
        fill(station)
        bury(station, 3)
        overwrite(segments(tmp_path)[0], 50, b"!")
        from heliograph.admin.verify import verify

        verify(station, repair=True)
        disk.fail("fdatasync", errno.EIO, path=".jsonl")
        with pytest.raises(hg.OutcomeUnknown):
            station.publish("other", 1)
        disk.heal()
        found = findings(tmp_path)
        assert (found["fenced logs"].status, found["fenced logs"].value) == ("bad", "other")
        assert found["quarantine"].status == "warn"
        assert (found["dead letters"].status, found["dead letters"].value) == ("warn", "3")
        verify(station, repair=True)
        assert findings(tmp_path)["fenced logs"].status == "ok"


def test_a_clock_behind_the_log_and_late_subscriptions_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_station(tmp_path) as station:
        fill(station, 3)
        station.subscribe(CHANNEL, print, name="late", start="first", paused=True).close()
        station.seek(CHANNEL, "late", 0)
    assert findings(tmp_path)["clock"].status == "ok"
    assert findings(tmp_path)["subscriptions"].status == "ok"
    monkeypatch.setattr(wellbeing, "LAG_S_MAX", -1.0)
    now_s = time.time()
    monkeypatch.setattr(wellbeing.time, "time", lambda: now_s - 500)
    found = findings(tmp_path)
    assert found["clock"].status == "warn"
    assert "behind" in found["clock"].value
    assert "'late' of 'alerts'" in found["subscriptions"].value


KILLED = """
import os, signal, sys, heliograph as hg
station = hg.open(sys.argv[1], name="host1", durability="os")
station.publish("alerts", 1)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_data_that_a_killed_process_did_not_sync_is_found(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], check=False)
    assert findings(tmp_path)["unsynced data"].status == "warn"
    with open_station(tmp_path):
        assert findings(tmp_path)["unsynced data"].status == "ok"


@pytest.mark.skipif(not Path("/proc/locks").exists(), reason="only Linux tells who holds a lock")
def test_unsynced_data_of_a_living_process_is_no_reason_to_worry(tmp_path: Path) -> None:
    code = KILLED.replace("os.kill(os.getpid(), signal.SIGKILL)", "print(1, flush=True); sys.stdin.read()")
    child = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True
    )
    with child:
        assert child.stdout is not None
        child.stdout.readline()
        assert findings(tmp_path)["unsynced data"].status == "ok"
        child.kill()


@pytest.mark.parametrize(
    ("harm", "status"),
    [(b"{ broken", "bad"), (b'{"format":99,"name":"host1","created":"2026-01-01T00:00:00Z"}', "bad")],
)
def test_a_station_that_cannot_be_opened_is_a_finding(tmp_path: Path, harm: bytes, status: str) -> None:
    with open_station(tmp_path) as station:
        fill(station, 1)
    (tmp_path / "station.json").write_bytes(harm)
    assert findings(tmp_path)["station"].status == status


def test_channels_without_a_station_are_a_finding(tmp_path: Path) -> None:
    with open_station(tmp_path) as station:
        fill(station, 1)
    (tmp_path / "station.json").unlink()
    found = findings(tmp_path)["station"]
    assert found.status == "bad"
    assert "station.json is missing" in found.value


def test_limits_that_are_too_small_are_found(tmp_path: Path) -> None:
    config = Config().with_settings(open_partitions_max=900_000)
    found = findings(tmp_path, config)
    assert found["open files"].status == "warn"
    assert "900000" in found["open files"].value


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_directory_that_cannot_be_written_is_found(tmp_path: Path) -> None:
    place = tmp_path / "locked"
    place.mkdir(mode=0o555)
    found = findings(place)
    assert found["permissions"].status == "bad"


def test_a_directory_that_anybody_can_write_is_a_warning(tmp_path: Path) -> None:
    place = tmp_path / "open"
    place.mkdir()
    place.chmod(0o777)
    assert findings(place)["permissions"].status == "warn"


def test_network_and_memory_file_systems_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "file_system", lambda path: "nfs4")
    assert findings(tmp_path)["file system"].status == "bad"
    assert findings(tmp_path, Config().with_settings(single_process=True))["file system"].status == "warn"
    monkeypatch.setattr(doctor, "file_system", lambda path: "tmpfs")
    assert findings(tmp_path)["file system"].status == "warn"


def test_a_check_that_fails_is_a_finding_and_does_not_stop_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> Finding:
        raise OSError("no such thing")

    monkeypatch.setitem(doctor.CHECKS, "free space", fail)
    found = examine(tmp_path, Config())
    assert any(one.name == "free space" and "no such thing" in one.value for one in found)
    assert found[-1].name == "station"


def test_messages_that_nobody_delivers_in_time_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with hg.open(tmp_path, name="host1") as station:
        station.publish("alerts", 1, delay=3600)
    assert findings(tmp_path)["schedule"].value == "1 messages wait for their time"
    now_s = time.time()
    monkeypatch.setattr(wellbeing.time, "time", lambda: now_s + 7200)
    found = findings(tmp_path)["schedule"]
    assert found.status == "warn"
    assert "too long" in found.value


def test_scheduled_messages_that_failed_are_found(tmp_path: Path) -> None:
    with hg.open(tmp_path, name="host1", auto_create=False) as station:
        station.create_channel("alerts")
        station.publish("alerts", 1, delay=0.5)
        station.delete_channel("alerts")
        until_s = time.monotonic() + 30
        while not station.stats().scheduled_failed and time.monotonic() < until_s:
            time.sleep(0.01)
    found = findings(tmp_path)["schedule"]
    assert found.status == "warn"
    assert "could not be delivered" in found.value
