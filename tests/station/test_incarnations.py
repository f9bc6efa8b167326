"""A channel's life: a new one whenever bytes that somebody saw may be lost or doubled, and only then."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from heliograph.log.directory import DataDirectory
from heliograph.station import Station, open_station
from tests.opening import Opener
from tests.proof.tools import Child, eventually

CHANNEL = "events"


def fill(station: Station, count: int = 10) -> str:
    for number in range(count):
        station.publish(CHANNEL, {"n": number})
    return station.channel(CHANNEL).incarnation


def segment(root: Path) -> Path:
    return root / "channels" / CHANNEL / "0" / f"{0:020d}.jsonl"


def renewed(root: Path) -> list[dict[str, Any]]:
    path = root / "audit" / "audit.jsonl"
    records = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return [record for record in records if record["event"] == "incarnation"]


def check_renewed(station: Station, root: Path, before: str, offset: int = 10) -> None:
    """A new life, audited, with which new messages are marked; the old ones keep theirs."""
    after = station.channel(CHANNEL).incarnation
    assert after != before
    record = renewed(root)[-1]
    assert (record["channel"], record["before"], record["after"]) == (CHANNEL, before, after)
    assert record["why"]
    assert station.publish(CHANNEL, {"n": -1}).offset == offset
    origins = [message.origin for message in station.read(CHANNEL)]
    assert origins == [f"host1.{before}"] * offset + [f"host1.{after}"]


def test_opening_again_is_the_same_life(opened: Opener, root: Path) -> None:
    with opened() as station:
        before = fill(station)
    for settings in ({}, {"durability": "interval"}, {"durability": "os"}, {"read_only": True}, {}):
        with opened(**settings) as station:
            if not station.read_only:
                station.publish(CHANNEL, {"n": 0})
            assert station.channel(CHANNEL).incarnation == before
    assert renewed(root) == []


def test_several_processes_share_one_life(opened: Opener, root: Path) -> None:
    with opened() as one, opened() as two:
        before = fill(one)
        fill(two)
        assert {message.origin for message in two.read(CHANNEL)} == {f"host1.{before}"}


@pytest.mark.parametrize("how", ["copytree", "cp -a"])
def test_a_copy_of_the_directory_is_a_new_life_and_the_original_is_not(
    opened: Opener, root: Path, tmp_path: Path, how: str
) -> None:
    with opened() as station:
        before = fill(station)
    copy = tmp_path / "copy"
    if how == "copytree":
        shutil.copytree(root, copy)
    else:
        subprocess.run(["cp", "-a", root, copy], check=True)
    with opened(copy) as station:
        check_renewed(station, copy, before)
        life = station.channel(CHANNEL).incarnation
    with opened(copy) as station:
        assert station.channel(CHANNEL).incarnation == life, "once is enough"
    with opened() as station:
        assert station.channel(CHANNEL).incarnation == before


def test_a_copy_taken_while_it_is_open_is_a_new_life_too(opened: Opener, root: Path, tmp_path: Path) -> None:
    with opened() as station:
        before = fill(station)
        shutil.copytree(root, tmp_path / "copy")
    with opened(tmp_path / "copy") as station:
        check_renewed(station, tmp_path / "copy", before)


def test_a_copy_without_what_is_derived_is_a_new_life_too(opened: Opener, root: Path, tmp_path: Path) -> None:
    with opened() as station:
        before = fill(station)
    shutil.copytree(root, tmp_path / "copy", ignore=shutil.ignore_patterns("head", "*.index"))
    with opened(tmp_path / "copy") as station:
        check_renewed(station, tmp_path / "copy", before)


def test_an_older_copy_put_back_in_place_is_a_new_life(opened: Opener, root: Path, tmp_path: Path) -> None:
    with opened() as station:
        before = fill(station)
    shutil.copytree(root, tmp_path / "copy")
    with opened() as station:
        fill(station)
    root.rename(tmp_path / "old")
    shutil.copytree(tmp_path / "copy", root)
    with opened() as station:
        check_renewed(station, root, before)


def test_a_copy_put_back_that_gets_the_number_of_the_old_directory_is_a_new_life(
    opened: Opener, root: Path, tmp_path: Path
) -> None:
    """File systems give the inode of a removed directory to the next one made."""
    with opened() as station:
        before = fill(station)
    shutil.copytree(root, tmp_path / "copy")
    with opened() as station:
        fill(station)
    root.rename(tmp_path / "old")
    shutil.copytree(tmp_path / "copy", root)
    path = root / "station.json"
    described = json.loads(path.read_text())
    path.write_text(json.dumps({**described, "inode": root.stat().st_ino}))
    with opened() as station:
        check_renewed(station, root, before)


def test_a_single_channel_put_back_from_a_copy_is_a_new_life_of_that_one(
    opened: Opener, root: Path, tmp_path: Path
) -> None:
    with opened() as station:
        before = fill(station)
        station.publish("other", 1)
        other = station.channel("other").incarnation
    shutil.copytree(root, tmp_path / "copy")
    with opened() as station:
        fill(station)
    (root / "channels" / CHANNEL).rename(tmp_path / "old")
    shutil.copytree(tmp_path / "copy" / "channels" / CHANNEL, root / "channels" / CHANNEL)
    with opened() as station:
        check_renewed(station, root, before)
        assert station.channel("other").incarnation == other


def test_another_machine_is_a_new_life(opened: Opener, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened() as station:
        before = fill(station)
    monkeypatch.setattr("heliograph.disk.machine_id", lambda: "0123456789abcdef0123456789abcdef")
    with opened() as station:
        check_renewed(station, root, before)
        life = station.channel(CHANNEL).incarnation
    with opened() as station:
        assert station.channel(CHANNEL).incarnation == life


def test_a_machine_that_does_not_say_which_it_is_is_not_another_one(
    opened: Opener, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened() as station:
        before = fill(station)
    monkeypatch.setattr("heliograph.disk.machine_id", lambda: "")
    with opened() as station:
        assert station.channel(CHANNEL).incarnation == before


@pytest.mark.parametrize("kept", [0, 4, 9])
def test_a_lost_tail_is_a_new_life(opened: Opener, root: Path, kept: int) -> None:
    with opened() as station:
        before = fill(station)
    lines = segment(root).read_bytes().splitlines(keepends=True)
    os.truncate(segment(root), sum(map(len, lines[:kept])))
    with opened() as station:
        check_renewed(station, root, before, kept)


def test_only_the_channel_that_lost_something_gets_a_new_life(opened: Opener, root: Path) -> None:
    with opened() as station:
        before = fill(station)
        station.publish("other", 1)
        other = station.channel("other").incarnation
    os.truncate(segment(root), 10)
    with opened() as station:
        assert station.channel(CHANNEL).incarnation != before
        assert station.channel("other").incarnation == other


def test_a_tail_lost_while_the_station_is_open_is_a_new_life_with_the_next_append(opened: Opener, root: Path) -> None:
    with opened() as station:
        before = fill(station)
        lines = segment(root).read_bytes().splitlines(keepends=True)
        os.truncate(segment(root), sum(map(len, lines[:6])))
        assert station.publish(CHANNEL, {"n": -1}).offset == 6
        after = station.channel(CHANNEL).incarnation
        assert after != before
        assert [record["after"] for record in renewed(root)] == [after]
        origins = [message.origin for message in station.read(CHANNEL)]
        assert origins == [f"host1.{before}"] * 6 + [f"host1.{after}"]


@pytest.mark.parametrize("durability", ["interval", "os"])
def test_a_power_cut_while_readers_may_see_the_unsynced_is_a_new_life(
    opened: Opener, root: Path, monkeypatch: pytest.MonkeyPatch, durability: str
) -> None:
    child = _killed(root, durability)
    assert (root / "unsynced").exists()
    monkeypatch.setattr("heliograph.disk.boot_id", lambda: b"another boot id!")
    with opened() as station:
        check_renewed(station, root, child)
    assert not (root / "unsynced").exists()


def test_a_power_cut_in_always_mode_is_the_same_life(
    opened: Opener, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = _killed(root, "always")
    assert not (root / "unsynced").exists()
    monkeypatch.setattr("heliograph.disk.boot_id", lambda: b"another boot id!")
    with opened() as station:
        assert station.channel(CHANNEL).incarnation == before
        assert station.channel(CHANNEL).next == 10


def test_a_boot_after_a_proper_close_is_the_same_life(
    opened: Opener, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(durability="interval") as station:
        before = fill(station)
    monkeypatch.setattr("heliograph.disk.boot_id", lambda: b"another boot id!")
    with opened() as station:
        assert station.channel(CHANNEL).incarnation == before


@pytest.mark.parametrize("durability", ["always", "interval", "os"])
def test_a_killed_process_takes_nothing_back_and_is_no_reason(opened: Opener, root: Path, durability: str) -> None:
    before = _killed(root, durability)
    with opened() as station:
        assert station.channel(CHANNEL).incarnation == before
        assert [message.data for message in station.read(CHANNEL)] == list(range(10))
    assert renewed(root) == []


def _killed(root: Path, durability: str) -> str:
    """Ten messages by a process that was killed; the life in which it published them."""
    code = """
        import sys, time
        from heliograph.station import open_station
        station = open_station(sys.argv[1], name="host1", durability=sys.argv[2])
        for number in range(10):
            station.publish("events", number)
        print(station.channel("events").incarnation, flush=True)
        time.sleep(60)
    """
    with Child(code, root, durability) as child:
        return child.line()


def test_a_new_life_is_not_forgotten_when_opening_is_interrupted(
    opened: Opener, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened() as station:
        before = fill(station)
    shutil.copytree(root, tmp_path / "copy")

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(DataDirectory, "_recover_partition", interrupted)
        with pytest.raises(KeyboardInterrupt):
            opened(tmp_path / "copy")
    with opened(tmp_path / "copy") as station:
        assert station.channel(CHANNEL).incarnation != before


def test_a_channel_made_again_is_a_new_life_and_empty(opened: Opener, root: Path) -> None:
    with opened() as station, opened() as other:
        before = fill(station)
        fill(other)
        station.subscribe(CHANNEL, lambda _: None, name="worker-1", start="first", paused=True).close()
        station.delete_channel(CHANNEL)
        assert CHANNEL not in [info.name for info in other.channels()]
        assert other.publish(CHANNEL, {"n": "new"}).offset == 0
        assert station.publish(CHANNEL, {"n": "newer"}).offset == 1
        assert station.channel(CHANNEL).incarnation != before
        for one in (station, other):
            assert [message.data["n"] for message in one.read(CHANNEL)] == ["new", "newer"]
        assert station.subscriptions(CHANNEL) == []


def test_a_restored_copy_that_got_the_same_inodes_is_a_new_life(tmp_path: Path) -> None:
    data, backup = tmp_path / "data", tmp_path / "backup"
    with open_station(data, name="host1") as station:
        station.publish("events", 1)
        before = station.channel("events").incarnation
    subprocess.run(["cp", "-a", data, backup], check=True)
    shutil.rmtree(data)
    subprocess.run(["cp", "-a", backup, data], check=True)  # a file system that reuses inodes gives the old ones
    recorded = json.loads((data / "station.json").read_text())
    recorded["inode"] = data.stat().st_ino  # so that the test does not depend on the reuse
    (data / "station.json").write_text(json.dumps(recorded))
    with open_station(data) as station:
        assert station.channel("events").incarnation != before


def test_a_deletion_that_was_killed_in_the_middle_leaves_no_position_for_the_next_life(
    opened: Opener, root: Path
) -> None:
    with opened() as station:
        station.publish_many("events", [1, 2, 3])
        station.publish("kept", 1)
        for channel in ("events", "kept"):
            station.subscribe(channel, print, name="w", start="first").close()
        with station.producer("p") as producer:
            producer.publish("events", 4)
    shutil.rmtree(root / "channels" / "events")  # as far as it came
    with opened() as station:
        assert [info.channel for info in station.subscriptions()] == ["kept"]
        assert station.producers() == []
        station.publish("events", 5)
        seen: list[int] = []
        with station.subscribe("events", lambda message: seen.append(message.data), name="w", start="first"):
            eventually(lambda: seen == [5])
