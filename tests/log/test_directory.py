"""Whose directory it is, what was done to it while nobody looked, and new lives where old ones may have been seen."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

import heliograph as hg
from heliograph import disk as disks
from heliograph.station import Station, open_station
from tests.faults import Died, FaultyDisk, QuickDisk
from tests.opening import Opener
from tests.proof.tools import Child, checked_log, tree

CHANNEL = "events"


def audited(root: Path, event: str) -> list[dict[str, Any]]:
    path = root / "audit" / "audit.jsonl"
    records = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return [record for record in records if record["event"] == event]


def filled(station: Station, count: int = 10) -> str:
    for number in range(count):
        station.publish(CHANNEL, number)
    return station.channel(CHANNEL).incarnation


def incarnation(opened: Opener, root: Path, **settings: Any) -> str:
    with opened(root, **settings) as station:
        return station.channel(CHANNEL).incarnation


def another_boot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disks, "boot_id", lambda: os.urandom(16))


# -- rule 9: incarnations ----


def test_opening_again_is_no_new_life(opened: Opener, root: Path) -> None:
    with opened() as station:
        life = filled(station)
    for _ in range(3):
        assert incarnation(opened, root) == life
    assert not audited(root, "incarnation")


def test_a_boot_is_no_new_life_where_everything_was_synced_before_it_was_shown(
    opened: Opener, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened() as station:
        life = filled(station)
    another_boot(monkeypatch)
    assert incarnation(opened, root) == life


def test_a_killed_process_is_no_new_life(opened: Opener, root: Path) -> None:
    for durability in ("always", "interval"):
        code = """
            import os, signal, sys, heliograph as hg
            station = hg.open(sys.argv[1], name="host1", durability=sys.argv[2], sync_interval_ms=60000)
            for n in range(10):
                station.publish("events", n)
            print(station.channel("events").incarnation, flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        """
        with Child(code, root / durability, durability) as child:
            life = child.line()
        assert incarnation(opened, root / durability) == life


@pytest.mark.parametrize("how", ["copytree", "cp -a", "tar"])
def test_a_copy_is_a_new_life_and_the_original_is_not(opened: Opener, root: Path, tmp_path: Path, how: str) -> None:
    with opened() as station:
        life = filled(station)
    copy = tmp_path / "copy"
    if how == "copytree":
        shutil.copytree(root, copy)
    elif how == "cp -a":
        subprocess.run(["cp", "-a", root, copy], check=True)
    else:
        copy.mkdir()
        subprocess.run(f"tar -C {root} -c . | tar -C {copy} -x", shell=True, check=True)
    renewed = incarnation(opened, copy)
    assert renewed != life
    assert incarnation(opened, copy) == renewed, "one new life is enough"
    assert incarnation(opened, root) == life
    assert "copied" in audited(copy, "incarnation")[0]["why"]
    with opened(copy) as station:
        assert [message.data for message in station.read(CHANNEL)] == list(range(10))
        station.publish(CHANNEL, "new")
    lines = [line["origin"] for line in checked_log(copy, CHANNEL).values()]
    assert set(lines[:10]) == {f"host1.{life}"}
    assert lines[10] == f"host1.{renewed}"


def test_a_copy_of_a_directory_that_is_in_use_is_a_new_life(opened: Opener, root: Path, tmp_path: Path) -> None:
    with opened() as station:
        life = filled(station)
        subprocess.run(["cp", "-a", root, tmp_path / "copy"], check=True)
    assert incarnation(opened, tmp_path / "copy") != life
    with opened(tmp_path / "copy") as station:
        assert [message.data for message in station.read(CHANNEL)] == list(range(10))


def test_another_machine_is_a_new_life(opened: Opener, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disks, "machine_id", lambda: "machine-1")
    with opened() as station:
        life = filled(station)
    monkeypatch.setattr(disks, "machine_id", lambda: "machine-2")
    assert incarnation(opened, root) != life


def test_a_lost_tail_is_a_new_life(opened: Opener, root: Path) -> None:
    with opened() as station:
        life = filled(station)
    segment = next((root / "channels" / CHANNEL / "0").glob("*.jsonl"))
    os.truncate(segment, segment.stat().st_size - 10)
    assert incarnation(opened, root) != life
    with opened() as station:
        assert [message.data for message in station.read(CHANNEL)] == list(range(9))
        assert station.publish(CHANNEL, "again").offset == 9


def test_a_tail_lost_under_a_running_station_is_a_new_life(opened: Opener, root: Path) -> None:
    with opened() as station:
        life = filled(station)
        segment = next((root / "channels" / CHANNEL / "0").glob("*.jsonl"))
        os.truncate(segment, segment.stat().st_size - 10)
        assert station.publish(CHANNEL, "again").offset == 9
        assert station.channel(CHANNEL).incarnation != life
        assert [message.data for message in station.read(CHANNEL)] == [*range(9), "again"]


def test_a_tail_that_a_head_from_before_the_boot_knew_is_a_new_life(
    opened: Opener, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened() as station:
        life = filled(station)
    segment = next((root / "channels" / CHANNEL / "0").glob("*.jsonl"))
    os.truncate(segment, segment.stat().st_size - 10)
    another_boot(monkeypatch)
    assert incarnation(opened, root) != life


@pytest.mark.parametrize("durability", ["interval", "os"])
def test_a_power_cut_while_unsynced_messages_may_have_been_seen_is_a_new_life(
    opened: Opener, root: Path, monkeypatch: pytest.MonkeyPatch, durability: str
) -> None:
    code = """
        import os, signal, sys, heliograph as hg
        station = hg.open(sys.argv[1], name="host1", durability=sys.argv[2], sync_interval_ms=60000)
        for n in range(10):
            station.publish("events", n)
        print(station.channel("events").incarnation, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    with Child(code, root, durability) as child:
        life = child.line()
    assert (root / "unsynced").exists()
    another_boot(monkeypatch)
    with opened() as station:
        assert station.channel(CHANNEL).incarnation != life
    assert "power" in audited(root, "incarnation")[0]["why"]
    assert not (root / "unsynced").exists()


def test_an_orderly_close_leaves_nothing_unsynced(opened: Opener, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(durability="interval") as station:
        life = filled(station)
        assert (root / "unsynced").exists()
    assert not (root / "unsynced").exists()
    another_boot(monkeypatch)
    assert incarnation(opened, root) == life


KILLED_WRITER = """
    import os, signal, sys, heliograph as hg
    station = hg.open(sys.argv[1], name="host1", durability="os")
    station.publish("seen", 1)
    print("ready", flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_the_last_one_out_does_not_vouch_for_what_a_killed_process_left_unsynced(
    opened: Opener, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(durability="os") as station:
        filled(station)
        with Child(KILLED_WRITER, root) as child:
            child.line()
            child.process.wait()
    with opened(read_only=True) as station:
        fields = station.engine.head_fields("seen", 0)
        unsynced = fields.written != fields.synced
    assert not unsynced or (root / "unsynced").exists()


def test_whoever_recovers_syncs_what_a_killed_process_left_unsynced(opened: Opener, root: Path) -> None:
    with Child(KILLED_WRITER, root) as child:
        child.line()
        child.process.wait()
    disk = FaultyDisk()
    disk.recording = True
    with opened(disk=disk) as station:
        fields = station.engine.head_fields("seen", 0)
        assert fields.synced == fields.written > 0
        assert [message.data for message in station.read("seen")] == [1]
    synced = [path for kind, path in disk.journal if kind == "fdatasync"]
    assert any("seen" in path and ".jsonl" in path for path in synced)


def test_a_recovery_that_is_interrupted_does_not_forget_the_new_life(
    opened: Opener, root: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    code = KILLED_WRITER.replace('"seen", 1', '"events", 1')
    with Child(code, root) as child:
        child.line()
        child.process.wait()
    life = msgspec.json.decode((root / "channels" / CHANNEL / "channel.json").read_bytes())["incarnation"]
    boot = os.urandom(16)
    monkeypatch.setattr(disks, "boot_id", lambda: boot)  # one boot, several tries
    pristine = tmp_path / "pristine"
    subprocess.run(["cp", "-a", root, pristine], check=True)
    inode = root.stat().st_ino
    for number in range(1, 100):
        for path in list(root.iterdir()):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        subprocess.run(["cp", "-a", f"{pristine}/.", root], check=True)
        assert root.stat().st_ino == inode
        disk = FaultyDisk()
        disk.kill_at(number)
        try:
            opened(disk=disk).close()
        except Died:
            disk.bury()
        assert incarnation(opened, root) != life, f"forgotten when killed at {disk.fired}"
        if not disk.fired:
            break
    assert not disk.fired
    assert number > 10


# -- rule 19: whose it is, and which format ----


def test_a_directory_belongs_to_one_name(opened: Opener, root: Path) -> None:
    opened(name="host1").close()
    with pytest.raises(hg.WrongStation, match="belongs to station 'host1', not 'host2'"):
        opened(name="host2")
    assert opened(name=None).name == "host1"


def test_without_a_name_the_host_s_is_taken(tmp_path: Path) -> None:
    with open_station(tmp_path / "data") as station:
        assert station.name


def edited(path: Path, **changes: Any) -> None:
    path.write_bytes(msgspec.json.encode({**msgspec.json.decode(path.read_bytes()), **changes}))


@pytest.mark.parametrize("read_only", [False, True])
def test_a_newer_directory_is_refused_with_its_version_and_left_alone(
    opened: Opener, root: Path, read_only: bool
) -> None:
    opened().close()
    edited(root / "station.json", format=7, novelty={"a": 1})
    before = tree(root)
    with pytest.raises(hg.UnsupportedFormat, match=r"format 7.*Upgrade"):
        opened(read_only=read_only)
    after = tree(root)
    assert {name: entry[3] for name, entry in after.items()} == {name: entry[3] for name, entry in before.items()}


def test_a_newer_channel_is_refused_and_the_others_work(opened: Opener, root: Path) -> None:
    with opened() as station:
        filled(station)
        station.publish("other", 1)
    edited(root / "channels" / CHANNEL / "channel.json", format=9)
    with opened() as station:
        for door in (
            lambda: station.publish(CHANNEL, 1),
            lambda: list(station.read(CHANNEL)),
            lambda: station.channel(CHANNEL),
        ):
            with pytest.raises(hg.UnsupportedFormat, match="format 9"):
                door()
        assert station.publish("other", 2).offset == 1


def test_fields_of_a_later_version_in_station_and_channel_survive_being_read(opened: Opener, root: Path) -> None:
    with opened() as station:
        filled(station)
    edited(root / "station.json", comment="kept by hand")
    edited(root / "channels" / CHANNEL / "channel.json", comment="kept by hand")
    with opened() as station:
        assert station.publish(CHANNEL, "x").offset == 10


@pytest.mark.parametrize("name", ["station.json", "channels/events/channel.json"])
@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"format":1}', b"\xff\xfe"])
def test_a_damaged_description_says_which_file_and_what_to_do(
    opened: Opener, root: Path, name: str, content: bytes
) -> None:
    with opened() as station:
        filled(station)
    (root / name).write_bytes(content)
    with pytest.raises(hg.Damaged, match=name.rsplit("/", maxsplit=1)[-1]), opened() as station:
        station.publish(CHANNEL, 1)


def test_network_file_systems_are_refused_unless_a_single_process_is_declared(
    opened: Opener, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disks, "file_system", lambda path: "nfs4")
    with pytest.raises(hg.ConfigError, match=r"nfs4.*single_process"):
        opened()
    assert opened(single_process=True).publish(CHANNEL, 1).offset == 0


def test_a_directory_that_holds_no_station_cannot_be_read_only(opened: Opener, root: Path) -> None:
    with pytest.raises(hg.NotFound, match="helio init"):
        opened(read_only=True)
    assert not root.exists()


def test_what_a_crash_left_half_made_or_half_removed_is_swept(opened: Opener, root: Path) -> None:
    with opened() as station:
        filled(station)
    (root / "channels" / ".new-events-1-abc" / "0").mkdir(parents=True)
    (root / "trash" / "events-abc" / "0").mkdir(parents=True)
    (root / "trash" / "events-abc" / "0" / "file").write_text("x")
    with opened() as station:
        assert [info.name for info in station.channels()] == [CHANNEL]
    assert not list((root / "trash").iterdir())
    assert os.listdir(root / "channels") == [CHANNEL]


def test_a_sealed_and_compressed_log_without_its_last_segment_goes_on_where_it_ended(
    opened: Opener, root: Path
) -> None:
    """Were it to begin again at the segment's own name, what is published next would be taken for a leftover."""
    for index in ("kept", "lost"):
        with opened(root / index, segment_bytes=4096, compress=True) as station:
            for number in range(40):
                station.publish(CHANNEL, {"n": number, "pad": "x" * 100})
            station.engine.writer(CHANNEL, 0).rotate()
            station.trim()
        partition = root / index / "channels" / CHANNEL / "0"
        for path in partition.glob("*.jsonl"):
            path.unlink()
        (partition / "head").unlink()
        if index == "lost":
            for path in partition.glob("*.index"):
                path.unlink()
        for _ in range(2):
            with opened(root / index, segment_bytes=4096, compress=True) as station:
                count = station.channel(CHANNEL).next
                assert count >= 40
                assert station.publish(CHANNEL, {"n": count}).offset == count
                station.trim()
                assert [message.data["n"] for message in station.read(CHANNEL)] == list(range(count + 1))


def test_python_m_of_another_process_sees_the_same_station(opened: Opener, root: Path) -> None:
    with opened() as station:
        filled(station)
        done = subprocess.run(
            [sys.executable, "-c", "import sys, heliograph as hg; print(hg.open(sys.argv[1]).name)", str(root)],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        assert done.stdout.strip() == "host1"


def test_opening_while_another_recovers_for_ever_is_busy_and_says_who(opened: Opener, root: Path) -> None:
    opened().close()
    code = """
        import sys, time, heliograph as hg
        from pathlib import Path
        from heliograph.clock import SYSTEM_CLOCK
        from heliograph.disk import Disk
        from heliograph.log.locks import FileLock
        lock = FileLock(Path(sys.argv[1]) / "recover.lock", Disk())
        lock.exclusive(SYSTEM_CLOCK, 5)
        print("holding", flush=True)
        time.sleep(60)
    """
    with Child(code, root) as holder:
        holder.line()
        holder.signal(signal.SIGSTOP)
        with pytest.raises(hg.Busy, match=str(holder.pid)):
            opened(busy_timeout_s=0.2)
        holder.kill()
        opened(busy_timeout_s=5).close()


def test_quick_disks_only_skip_syncs() -> None:
    both = set(vars(QuickDisk)) & set(vars(disks.Disk))
    assert {name for name in both if not name.startswith("__")} == {"fdatasync", "sync_directory"}
