"""A backup is taken while others publish, holds everything acknowledged before it began, and is whole or refused."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import google_crc32c
import pytest

import heliograph as hg
from heliograph.admin.backup import backup, check, restore
from heliograph.admin.verify import verify
from tests.admin.helpers import CHANNEL, MESSAGES, fill, numbers, open_station, overwrite, segments
from tests.faults import Died, FaultyDisk


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "backup"


def subscribe_until(station: hg.Station, count: int) -> None:
    enough, got = threading.Event(), []

    def handle(message: hg.Message) -> None:
        got.append(message)
        if len(got) == count:
            enough.set()

    with station.subscribe(CHANNEL, handle, name="worker-1", start="first"):
        assert enough.wait(20)


def test_a_restored_station_is_the_one_that_was_backed_up(root: Path, target: Path, tmp_path: Path) -> None:
    with open_station(root) as station:
        station.create_channel(CHANNEL, retention_bytes=10_000_000)
        station.create_channel("empty")
        fill(station)
        station.publish("bytes", b"\0\1", headers={"team": "blue"})
        subscribe_until(station, MESSAGES)
        life = station.channel(CHANNEL).incarnation
        report = backup(station, target)
        before = {name: [m.raw for m in station.read(name)] for name in (CHANNEL, "bytes", "empty")}
    assert (report.messages, report.channels, report.incremental) == (MESSAGES + 1, 3, False)
    assert report.bytes == report.copied_bytes
    assert check(target) == []
    restored = restore(target, tmp_path / "again")
    assert (restored.name, restored.channels, restored.taken) == ("host1", 3, report.taken)
    with open_station(tmp_path / "again") as station:
        assert {name: [m.raw for m in station.read(name)] for name in before} == before
        assert station.channel(CHANNEL).settings.retention_bytes == 10_000_000
        assert station.channel(CHANNEL).incarnation != life
        (subscription,) = station.subscriptions(CHANNEL)
        assert (subscription.name, subscription.offset, subscription.lag) == ("worker-1", MESSAGES, 0)
        assert station.publish(CHANNEL, {"n": 1}).offset == MESSAGES
        assert verify(station).ok
        assert "backup" in (root / "audit" / "audit.jsonl").read_text()


def test_a_restore_is_known_as_one_even_where_inodes_are_used_again(root: Path, target: Path) -> None:
    with open_station(root) as station:
        fill(station, 3)
        life = station.channel(CHANNEL).incarnation
        backup(station, target)
    shutil.rmtree(root)
    restore(target, root)
    described = json.loads((root / "station.json").read_bytes())
    assert described["inode"] == 0
    with open_station(root) as station:
        assert station.channel(CHANNEL).incarnation != life


def test_a_restore_can_give_the_station_another_name(root: Path, target: Path, tmp_path: Path) -> None:
    with open_station(root) as station:
        fill(station, 5)
        backup(station, target)
    assert restore(target, tmp_path / "copy", name="host1-copy").name == "host1-copy"
    with hg.open(tmp_path / "copy") as copy:
        assert copy.name == "host1-copy"
        assert numbers(copy) == list(range(5))
        copy.publish(CHANNEL, {"n": 5})
        assert verify(copy).ok
    with pytest.raises(hg.InvalidName):
        restore(target, tmp_path / "third", name="../x")
    assert not (tmp_path / "third").exists()


# -- only what is new -----------------------------------------------------------------------------------------------


def test_a_second_backup_copies_only_what_is_new(root: Path, target: Path, tmp_path: Path) -> None:
    with open_station(root, segment_bytes=50_000) as station:
        fill(station, 1000)
        first = backup(station, target)
        unchanged = {path: path.stat().st_mtime_ns for path in target.rglob("*.jsonl") if "audit" not in str(path)}
        again = backup(station, target)
        assert again.incremental
        assert again.copied_bytes < 500  # the word of the first backup in the audit log
        fill(station, 10, first=1000)
        more = backup(station, target)
        assert more.copied_bytes < 10 * 400 + 500
        assert more.bytes > first.bytes
        sealed = sorted(unchanged)[:-1]
        assert all(path.stat().st_mtime_ns == unchanged[path] for path in sealed)
        fill(station, 300, first=1010)
        assert backup(station, target).copied_bytes < 300 * 400 + 2000
    assert check(target) == []
    restore(target, tmp_path / "again")
    with open_station(tmp_path / "again") as station:
        assert numbers(station) == list(range(1310))


def test_what_was_redacted_since_is_gone_from_the_backup_too(root: Path, target: Path, tmp_path: Path) -> None:
    for compress in (False, True):
        with open_station(root / str(compress), compress=compress) as station:
            station.publish(CHANNEL, {"n": 0, "secret": "hunter2"})
            fill(station, first=1)
            station.trim()
            place = target / str(compress)
            backup(station, place)
            stored = b"".join(path.read_bytes() for path in place.rglob("*.jsonl*"))
            assert b"hunter2" in stored or compress
            station.redact(next(iter(station.read(CHANNEL))).id)
            assert backup(station, place).copied_bytes < 30_000
            assert all(b"hunter2" not in path.read_bytes() for path in place.rglob("*") if path.is_file())
        assert check(place) == []
        restore(place, tmp_path / f"again-{compress}")
        with open_station(tmp_path / f"again-{compress}") as station:
            assert numbers(station) == list(range(1, MESSAGES + 1))
            assert verify(station).ok


def test_a_redaction_that_died_halfway_is_finished_before_its_segment_is_copied(root: Path, target: Path) -> None:
    with open_station(root) as station:
        station.publish(CHANNEL, {"secret": "hunter2"})
        fill(station)
        (root / "channels" / CHANNEL / "0" / "redact.json").write_bytes(b'{"offsets":[0]}')
        backup(station, target)
    assert all(b"hunter2" not in path.read_bytes() for path in target.rglob("*") if path.is_file())


def test_trimmed_deleted_and_compressed_things_are_so_in_the_backup(root: Path, target: Path, tmp_path: Path) -> None:
    with open_station(root) as station:
        fill(station)
        fill(station, 5, "doomed")
        station.publish("other", {"n": 1})
        backup(station, target)
        station.delete_channel("doomed")
        station.alter_channel(CHANNEL, retention_bytes=20_000)
        station.trim()
        first = station.channel(CHANNEL).first
        assert first > 0
        station.alter_channel(CHANNEL, compress=True)
        station.trim()
        report = backup(station, target)
        assert report.removed_files > 0
    assert not (target / "channels" / "doomed").exists()
    assert {path.name.split(".")[0] for path in (target / "channels" / CHANNEL / "0").glob("*.jsonl*")} == {
        path.name.split(".")[0] for path in (root / "channels" / CHANNEL / "0").glob("*.jsonl*")
    }
    assert segments(target, ".jsonl.zst")
    assert len(segments(target, ".jsonl")) == 1
    restore(target, tmp_path / "again")
    with open_station(tmp_path / "again") as station:
        assert numbers(station) == list(range(first, MESSAGES))
        assert station.channel(CHANNEL).first == first
        assert [info.name for info in station.channels()] == [CHANNEL, "other"]
        assert verify(station).ok


def test_a_good_copy_is_kept_when_the_station_itself_is_damaged_later(root: Path, target: Path, tmp_path: Path) -> None:
    with open_station(root) as station:
        fill(station)
        backup(station, target)
        overwrite(segments(root)[1], 100, b"!!!")
        report = backup(station, target)
        assert report.warnings == []
    restore(target, tmp_path / "again")
    with open_station(tmp_path / "again") as station:
        assert numbers(station) == list(range(MESSAGES))


def test_what_is_damaged_before_the_first_backup_is_copied_with_a_warning(
    root: Path, target: Path, tmp_path: Path
) -> None:
    with open_station(root) as station:
        fill(station)
        overwrite(segments(root)[1], 100, b"!!!")
        (warning,) = backup(station, target).warnings
        assert segments(root)[1].name in warning
    assert check(target) == []
    restore(target, tmp_path / "again")
    with open_station(tmp_path / "again") as station:
        assert len(numbers(station)) == MESSAGES - 1


def test_a_channel_that_cannot_be_read_is_left_out_and_its_older_copy_stays(
    root: Path, target: Path, tmp_path: Path
) -> None:
    with open_station(root) as station:
        fill(station)
        station.publish("other", "one")
        backup(station, target)
        fill(station, 5)
        station.publish("other", "two")
        overwrite(root / "channels" / CHANNEL / "channel.json", 0, b"!!!")
        report = backup(station, target)
        again = backup(station, target)
    assert (report.left_out, again.left_out) == ([CHANNEL], [CHANNEL])
    assert f"channel '{CHANNEL}' was not backed up; it keeps the older copy" in report.warnings[0]
    assert (report.channels, report.messages) == (2, MESSAGES + 2)
    assert check(target) == []
    restore(target, tmp_path / "again")
    with open_station(tmp_path / "again") as station:
        assert numbers(station) == list(range(MESSAGES))
        assert [message.data for message in station.read("other")] == ["one", "two"]
        assert verify(station).ok


def test_a_channel_that_never_could_be_read_is_no_part_of_the_backup_until_it_is_mended(
    root: Path, target: Path, tmp_path: Path
) -> None:
    with open_station(root) as station:
        fill(station)
        station.publish("other", "one")
        settings = root / "channels" / CHANNEL / "channel.json"
        intact = settings.read_bytes()
        settings.write_bytes(b"{")
        report = backup(station, target)
        assert (report.left_out, report.channels) == ([CHANNEL], 1)
        assert "it has no older copy, either" in report.warnings[0]
        settings.write_bytes(intact)
        report = backup(station, target)
        assert (report.left_out, report.warnings, report.channels) == ([], [], 2)
    restore(target, tmp_path / "again")
    with open_station(tmp_path / "again") as station:
        assert numbers(station) == list(range(MESSAGES))


def test_a_fenced_log_is_backed_up_as_far_as_it_was_synced(root: Path, target: Path, tmp_path: Path) -> None:
    disk = FaultyDisk()
    with open_station(root, disk=disk) as station:
        fill(station, 20)
        disk.fail("fdatasync", path=".jsonl")
        with pytest.raises(hg.OutcomeUnknown):
            station.publish(CHANNEL, {"n": 999})
        disk.heal()
        assert "fenced" in backup(station, target).warnings[0]
        verify(station, repair=True)
    restore(target, tmp_path / "again")
    with open_station(tmp_path / "again") as station:
        assert numbers(station) == list(range(20))


@pytest.mark.parametrize("durability", ["interval", "os"])
def test_what_was_written_and_not_synced_is_synced_and_copied(
    root: Path, target: Path, tmp_path: Path, durability: str
) -> None:
    with open_station(root, durability=durability, sync_interval_ms=600_000) as station:
        fill(station, 50)
        assert backup(station, target).messages == 50
    restore(target, tmp_path / "again")
    with open_station(tmp_path / "again") as station:
        assert numbers(station) == list(range(50))


def test_a_read_only_station_can_be_backed_up(root: Path, target: Path, tmp_path: Path) -> None:
    with open_station(root) as station:
        fill(station)
    with open_station(root, read_only=True) as station:
        assert backup(station, target).messages == MESSAGES
    restore(target, tmp_path / "again")
    with open_station(tmp_path / "again") as station:
        assert numbers(station) == list(range(MESSAGES))


# -- refusals --------------------------------------------------------------------------------------------------------


def test_a_backup_that_was_altered_is_refused_and_nothing_is_left(root: Path, target: Path, tmp_path: Path) -> None:
    with open_station(root) as station:
        fill(station)
        backup(station, target)
    victim = segments(target)[2]
    overwrite(victim, 10, b"!")
    assert check(target) == [f"channels/{CHANNEL}/0/{victim.name} does not match its checksum"]
    (tmp_path / "there").mkdir()
    for place in (tmp_path / "there", tmp_path / "new"):
        with pytest.raises(hg.Damaged, match=victim.name):
            restore(target, place)
    assert os.listdir(tmp_path / "there") == []
    assert not (tmp_path / "new").exists()
    victim.unlink()
    assert check(target) == [f"channels/{CHANNEL}/0/{victim.name} is missing"]
    with pytest.raises(hg.Damaged):
        restore(target, tmp_path / "new")


def test_a_damaged_manifest_is_refused(root: Path, target: Path, tmp_path: Path) -> None:
    with open_station(root) as station:
        fill(station, 3)
        backup(station, target)
    text = (target / "manifest.json").read_bytes()
    (target / "manifest.json").write_bytes(text.replace(b'"next":3', b'"next":4'))  # JSON as before, other words
    for refused in (lambda: check(target), lambda: restore(target, tmp_path / "new")):
        with pytest.raises(hg.Damaged):
            refused()


def test_a_manifest_cannot_lead_out_of_the_backup(root: Path, target: Path, tmp_path: Path) -> None:
    with open_station(root) as station:
        fill(station, 3)
        backup(station, target)
    honest = (target / "manifest.json").read_bytes()
    for bad in ("../../etc/passwd", "/etc/passwd", "channels/../../x", "elsewhere/x", ""):
        described = json.loads(honest)
        del described["crc"]
        described["files"][0]["path"] = bad
        body = json.dumps(described).encode()[:-1]
        (target / "manifest.json").write_bytes(b'%b,"crc":"%08x"}' % (body, google_crc32c.value(body)))
        with pytest.raises(hg.Damaged):
            restore(target, tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_targets_that_make_no_sense_are_refused(root: Path, target: Path, tmp_path: Path) -> None:
    with open_station(root) as station, hg.open(tmp_path / "other", name="host2") as other:
        fill(station, 3)
        backup(station, target)
        for bad in (root, root / "inside", root.parent):
            with pytest.raises(hg.ConfigError):
                backup(station, bad)
        with pytest.raises(hg.WrongStation):
            backup(other, target)
        (tmp_path / "foreign").mkdir()
        (tmp_path / "foreign" / "file").touch()
        with pytest.raises(hg.AlreadyExists):
            backup(station, tmp_path / "foreign")
        with pytest.raises(hg.AlreadyExists):
            restore(target, root)
        with pytest.raises(hg.NotFound):
            restore(tmp_path / "nothing", tmp_path / "new")
        with pytest.raises(hg.NotFound):
            check(tmp_path / "foreign")
    assert check(target) == []


def test_two_backups_into_one_place_at_once_are_refused(root: Path, target: Path) -> None:
    with open_station(root) as station:
        fill(station)

        def meanwhile(done: int, total: int) -> None:
            with pytest.raises(hg.Busy):
                backup(station, target)

        backup(station, target, progress=meanwhile)


# -- interruptions ---------------------------------------------------------------------------------------------------


def test_a_first_backup_that_dies_anywhere_is_refused_and_can_be_taken_again(root: Path, tmp_path: Path) -> None:
    with open_station(root) as station:
        fill(station, 60)
    for number in range(1, 400):
        target, disk = tmp_path / f"b{number}", FaultyDisk()
        station = open_station(root, disk=disk)
        disk.kill_at(number)
        try:
            backup(station, target)
            died = False
        except Died:
            died = True
        station.engine.abandon()
        station._upkeep.close()
        if died and (target / "manifest.json").exists():
            assert check(target) == []  # it died in its last words
        elif died:
            with pytest.raises((hg.Damaged, hg.NotFound)):
                restore(target, tmp_path / "r")
        assert not (tmp_path / "r").exists()
        if number % 5 == 0:
            with open_station(root) as again:
                assert backup(again, target).messages == 60
            assert check(target) == []
        if not died:
            assert number > 20
            return
    pytest.fail("a backup takes more than 400 calls")


def test_a_later_backup_that_dies_anywhere_leaves_the_one_before_it_whole(root: Path, tmp_path: Path) -> None:
    with open_station(root, compress=True) as station:
        station.publish(CHANNEL, {"n": 0})
        fill(station, 59, first=1)
        station.trim()
        backup(station, tmp_path / "first")
        station.redact(next(iter(station.read(CHANNEL))).id)
        fill(station, 40, first=60)
        station.trim()
    for number in range(1, 400):
        target, disk = tmp_path / "second", FaultyDisk()
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(tmp_path / "first", target)
        station = open_station(root, disk=disk)
        disk.kill_at(number)
        try:
            backup(station, target)
            died = False
        except Died:
            died = True
        station.engine.abandon()
        station._upkeep.close()
        assert check(target) == []
        held = sum(part["next"] for part in json.loads((target / "manifest.json").read_bytes())["parts"])
        assert held in ((60, 100) if died else (100,))
        if not died:
            assert number > 20
            return
    pytest.fail("a backup takes more than 400 calls")


def test_an_interrupted_restore_cannot_be_opened(root: Path, target: Path, tmp_path: Path) -> None:
    with open_station(root) as station:
        fill(station)
        backup(station, target)
    disk = FaultyDisk()
    disk.kill_at(40)

    def die(path: Path, was_there: bool, used: object) -> None:
        """A killed process tidies nothing up."""

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("heliograph.admin.restore._undo", die)
        with pytest.raises(Died):
            restore(target, tmp_path / "half", disk=disk)
    assert (tmp_path / "half" / "channels").exists()
    with pytest.raises(hg.Damaged):
        hg.open(tmp_path / "half")
    with pytest.raises(hg.AlreadyExists):
        restore(target, tmp_path / "half")


PUBLISH = """
import sys, heliograph as hg
with hg.open(sys.argv[1], name="host1", segment_bytes=8192, compress=True) as station:
    n = 0
    while True:
        station.publish("alerts", {"n": n})
        print(n, flush=True)
        n += 1
        if n % 50 == 0:
            station.trim()
"""


def test_a_backup_during_publishing_holds_a_prefix_with_everything_acknowledged_before_it_began(
    root: Path, target: Path, tmp_path: Path
) -> None:
    acknowledged = [-1]

    def follow(lines: object) -> None:
        for line in lines:  # type: ignore[attr-defined]
            acknowledged[0] = int(line)

    with open_station(root) as station:
        station.create_channel(CHANNEL)
        publisher = subprocess.Popen([sys.executable, "-c", PUBLISH, str(root)], stdout=subprocess.PIPE, text=True)
        with publisher:
            thread = threading.Thread(target=follow, args=(publisher.stdout,))
            thread.start()
            try:
                for round_number in range(6):
                    while acknowledged[0] < 60 * (round_number + 1):
                        time.sleep(0.005)
                    sure = acknowledged[0]
                    report = backup(station, target)
                    assert check(target) == []
                    place = tmp_path / f"again-{round_number}"
                    restore(target, place)
                    with open_station(place) as again:
                        got = numbers(again)
                        assert got == list(range(len(got)))
                        assert len(got) == report.messages
                        assert len(got) > sure
                        assert verify(again).ok
            finally:
                publisher.kill()
                thread.join()


BACKUP = """
import sys, heliograph as hg
from heliograph.admin.backup import backup
with hg.open(sys.argv[1], name="host1", segment_bytes=8192) as station:
    print("ready", flush=True)
    backup(station, sys.argv[2])
"""


def test_backups_that_are_killed_again_and_again_never_break_the_last_whole_one(
    root: Path, target: Path, tmp_path: Path
) -> None:
    luck = random.Random(11)
    with open_station(root) as station:
        fill(station)
        backup(station, target)
        for round_number in range(12):
            fill(station, 20, first=MESSAGES + 20 * round_number)
            child = subprocess.Popen(
                [sys.executable, "-c", BACKUP, str(root), str(target)], stdout=subprocess.PIPE, text=True
            )
            with child:
                assert child.stdout is not None
                child.stdout.readline()
                time.sleep(luck.random() * 0.02)
                child.send_signal(signal.SIGKILL)
            assert check(target) == []
        assert backup(station, target).messages == MESSAGES + 240
    restore(target, tmp_path / "again")
    with open_station(tmp_path / "again") as station:
        assert numbers(station) == list(range(MESSAGES + 240))


def test_what_waits_for_its_time_is_in_the_backup(tmp_path: Path) -> None:
    with hg.open(tmp_path / "data", name="host1") as station:
        backup(station, tmp_path / "copy")
        station.publish_many("alerts", [1, 2], delay=3600)
        station.schedule("nightly", "reports", 1, cron="0 3 * * *")
        first = backup(station, tmp_path / "copy")
        again = backup(station, tmp_path / "copy")
        assert first.copied_bytes > again.copied_bytes
        assert not [path for path in (tmp_path / "copy").iterdir() if path.name.startswith(".")]
        waiting = [one.id for one in station.scheduled()]
    assert check(tmp_path / "copy") == []
    restore(tmp_path / "copy", tmp_path / "restored")
    with hg.open(tmp_path / "restored") as station:
        assert [one.id for one in station.scheduled()] == waiting
        assert [one.name for one in station.schedules()] == ["nightly"]
    with hg.open(tmp_path / "data", read_only=True) as station:
        backup(station, tmp_path / "from-read-only")
    assert check(tmp_path / "from-read-only") == []
