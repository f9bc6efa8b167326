"""The rules of the log, one by one, each named for what its absence would lose.

Most have more tests elsewhere: 2, 12, 14, 15 in tests/station/test_processes.py; 3, 4 in tests/log/test_recovery.py
and tests/proof/test_kills.py; 5 in tests/log/test_half_rotation.py; 6 in tests/station/test_failing_disk.py; 7 and 8 in
tests/log/test_damage.py; 9 in tests/log/test_directory.py; 10 in tests/engine; 18 in tests/log/test_compress.py; 19 in
tests/station/test_doors.py and tests/log/test_readonly.py; 20 in tests/engine/test_partitions.py and
tests/station/test_real_limits.py. Rules 11, 13 and 17 speak of stores that are not built yet, but for the identity of
dead letters.
"""

from __future__ import annotations

import json
import os
import re
import sys
import threading
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

import heliograph as hg
from heliograph import disk as disks
from heliograph.engine.port import Position
from heliograph.station import Station, open_station
from tests.faults import FaultyDisk, QuickDisk
from tests.log.test_commit import SlowDisk, held_up
from tests.opening import Opener
from tests.proof.tools import Child, checked_log, eventually

CHANNEL = "events"


def partition(root: Path) -> Path:
    return root / "channels" / CHANNEL / "0"


def data_of(station: Station) -> list[Any]:
    return [message.data for message in station.read(CHANNEL)]


def test_every_rule_has_a_test() -> None:
    numbers = {int(match[1]) for name in globals() if (match := re.match(r"test_rule_(\d+)_", name))}
    assert numbers == {*range(1, 11), 12, 13, 14, 15, 16, 18, 19, 20}


def test_rule_1_readers_never_act_on_a_message_that_a_power_cut_takes_back(opened: Opener) -> None:
    disk = SlowDisk()
    with opened(disk=disk) as station:
        station.publish(CHANNEL, 0)
        got: list[Any] = []
        station.subscribe(CHANNEL, lambda message: got.append(message.data), start="first")
        eventually(lambda: got == [0])
        leader = held_up(station, disk)
        assert station.engine.limit(CHANNEL, 0, synced=False).next >= 1
        assert station.engine.bounds(CHANNEL).next == 1
        assert data_of_without_settling(station) == [0]
        disk.gate.set()
        leader.join(30)
        eventually(lambda: got == [0, "leader"])


def data_of_without_settling(station: Station) -> list[Any]:
    cursor = station.engine.cursor(CHANNEL, 0, 0)
    batch = cursor.pull()
    return [message.data for message in batch.messages] if batch else []


def test_rule_1_a_sync_does_not_vouch_for_what_was_written_after_it_began(opened: Opener) -> None:
    """Two processes: the sync of the first begins, the second writes, the sync of the first returns."""
    slow = SlowDisk()
    with opened(disk=slow) as first, opened(durability="os") as second:
        first.publish(CHANNEL, 0)
        leader = held_up(first, slow)
        later: list[hg.Receipt] = []
        writer = threading.Thread(target=lambda: later.append(second.publish(CHANNEL, "unsynced")), daemon=True)
        writer.start()
        writer.join(0.5)  # the lock may be kept through the sync; then it comes afterwards
        slow.gate.set()
        leader.join(30)
        writer.join(30)
        fields = first.engine.head_fields(CHANNEL, 0)
        assert later[0].offset == 2
        assert fields.next == 3
        assert fields.synced_next == 2
        assert first.engine.bounds(CHANNEL).next == 2


def test_rule_1_synced_never_goes_back(opened: Opener) -> None:
    """Whoever did the syncing: one that began earlier and returns later moves nothing back."""
    with opened(durability="os") as station:
        station.publish_many(CHANNEL, [1, 2])
        log = station.engine.writer(CHANNEL, 0)
        with log.mutex:
            early = type(log).sync.__globals__["Mark"](log.base, log.written, log.next, log.crc)
        station.publish(CHANNEL, 3)
        station.sync()
        before = station.engine.head_fields(CHANNEL, 0)
        log.sync(early)
        after = station.engine.head_fields(CHANNEL, 0)
        assert (after.synced, after.synced_next) == (before.synced, before.synced_next) == (after.written, 3)


def test_rule_2_a_head_of_another_boot_or_file_loses_no_message(
    opened: Opener, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened() as station:
        station.publish_many(CHANNEL, list(range(10)))
    head = partition(root) / "head"
    assert head.stat().st_size == 4096
    assert head.stat().st_blocks * 512 >= 4096, "a sparse page on a full disk is SIGBUS"
    stale = bytearray(head.read_bytes())
    stale[72:80] = (3).to_bytes(8, "little")  # "the next offset is 3"
    head.unlink()
    head.write_bytes(stale)  # another inode
    with opened() as station:
        assert station.publish(CHANNEL, 10).offset == 10
    monkeypatch.setattr(disks, "boot_id", lambda: b"another boot id!")
    with opened() as station:
        assert station.publish(CHANNEL, 11).offset == 11
        assert data_of(station) == list(range(12))


def test_rule_2_locks_live_on_files_that_are_never_replaced(opened: Opener, root: Path) -> None:
    names = ["open.lock", "recover.lock", f"channels/{CHANNEL}/0/lock", f"channels/{CHANNEL}/0/head"]
    with opened(segment_bytes=4096, compress=True) as station:
        fill(station)
        before = {name: (root / name).stat().st_ino for name in names}
        station.alter_channel(CHANNEL, retention_bytes=8192)
        station.trim()
        station.redact(next(iter(station.read(CHANNEL))).id)
        fill(station)
    with opened() as station:
        fill(station)
    assert {name: (root / name).stat().st_ino for name in names} == before


def fill(station: Station, count: int = 40) -> None:
    for number in range(count):
        station.publish(CHANNEL, {"n": number, "pad": "x" * 300})


def test_rule_3_what_a_dead_writer_left_does_not_swallow_the_next_message(opened: Opener, root: Path) -> None:
    with opened() as station:
        station.publish(CHANNEL, 0)
        for left in (b'{"half', b"\0" * 100, b"x\ny"):
            with next(partition(root).glob("*.jsonl")).open("ab") as file:
                file.write(left)
            station.publish(CHANNEL, 1)
        assert data_of(station) == [0, 1, 1, 1]


def test_rule_4_recovery_does_not_cut_what_a_live_process_is_writing(tmp_path: Path) -> None:
    code = """
        import os, sys
        from heliograph.disk import Disk
        from heliograph.station import open_station

        class Slow(Disk):
            armed = False
            def pwrite(self, fd, data, position):
                if not self.armed:
                    return os.pwrite(fd, data, position)
                half = os.pwrite(fd, bytes(data)[: len(data) // 2], position)
                print("half", flush=True)
                sys.stdin.readline()
                self.armed = False
                return half

        disk = Slow()
        station = open_station(sys.argv[1], name="host1", disk=disk)
        station.publish("events", 0)
        disk.armed = True
        station.publish("events", "whole")
        print("published", flush=True)
        sys.stdin.readline()
    """
    with Child(code, tmp_path) as writer:
        assert writer.line() == "half"
        size = next(partition(tmp_path).glob("*.jsonl")).stat().st_size
        with open_station(tmp_path, name="host1", busy_timeout_s=0.2) as second:
            assert next(partition(tmp_path).glob("*.jsonl")).stat().st_size == size
            assert data_of_without_settling(second) == [0]
            writer.tell()
            assert writer.line() == "published"
            eventually(lambda: data_of_without_settling(second) == [0, "whole"])


def test_rule_5_a_crash_while_rotating_finds_every_message_because_of_the_order_of_steps(
    opened: Opener, root: Path
) -> None:
    disk = FaultyDisk()
    with opened(disk=disk, segment_bytes=4096) as station:
        station.publish(CHANNEL, "x" * 3000)
        disk.recording = True
        station.publish(CHANNEL, "y" * 3000)
        old, new = sorted(path.name for path in partition(root).glob("*.jsonl"))
    steps = [(kind, Path(path).name) for kind, path in disk.journal]
    order = [
        steps.index(("fdatasync", old)),
        steps.index(("open", new)),
        steps.index(("sync_directory", "0")),
        steps.index(("pwrite", new)),
    ]
    assert order == sorted(order), steps


def test_rule_6_after_a_failed_sync_nobody_is_told_that_the_same_bytes_are_safe(opened: Opener) -> None:
    """The kernel forgets a failed write-back once it is reported: syncing again would succeed, and lie."""
    disk = FaultyDisk()
    with opened(disk=disk) as station:
        station.publish(CHANNEL, 0)
        disk.fail("fdatasync", path=".jsonl")
        with pytest.raises(hg.OutcomeUnknown):
            station.publish(CHANNEL, "perhaps")
        disk.heal()
        with pytest.raises(hg.Fenced):
            station.publish(CHANNEL, "never")
        fields = station.engine.head_fields(CHANNEL, 0)
        assert fields.synced < fields.written
        assert data_of(station) == [0]
    with opened() as station, pytest.raises(hg.Fenced):
        station.publish(CHANNEL, "never")


def test_rule_7_offsets_are_line_numbers_after_redaction_compression_and_trimming(opened: Opener, root: Path) -> None:
    with opened(segment_bytes=4096) as station:
        fill(station, 60)
        victims = [message.id for message in station.read(CHANNEL) if message.offset % 7 == 3]
        for victim in victims:
            station.redact(victim)
        station.alter_channel(CHANNEL, compress=True, retention_bytes=6000)
        station.trim()
        for message in station.read(CHANNEL):
            assert message.data["n"] == message.offset
            assert message.originseq == f"0/{message.offset}"
        assert station.channel(CHANNEL).first > 0
    stored = checked_log(root, CHANNEL, holes=True)
    assert all(offset % 7 != 3 for offset in stored)


def test_rule_8_nothing_is_true_only_because_the_index_says_so(opened: Opener, root: Path) -> None:
    with opened(segment_bytes=16_000) as station:
        fill(station, 120)
        stamps = [message.time for message in station.read(CHANNEL)]
    first, second, *_ = sorted(partition(root).glob("*.index"))
    data = first.read_bytes()
    for lie in (second.read_bytes(), data[:64] * 9, bytes(len(data)), b"", data + data):
        first.write_bytes(lie)
        with opened() as station:
            assert [message.data["n"] for message in station.read(CHANNEL)] == list(range(120))
            assert next(iter(station.read(CHANNEL, start=7))).data["n"] == 7
            assert next(iter(station.read(CHANNEL, start=stamps[9]))).offset <= 9


def test_rule_9_a_restored_copy_does_not_pose_as_the_life_it_was_copied_from(
    opened: Opener, root: Path, tmp_path: Path
) -> None:
    import shutil

    with opened() as station:
        station.publish_many(CHANNEL, [0, 1])
    shutil.copytree(root, tmp_path / "backup")
    with opened() as station:
        station.publish(CHANNEL, "in the original")
    with opened(tmp_path / "backup") as station:
        station.publish(CHANNEL, "in the copy")
    one, other = checked_log(root, CHANNEL)[2], checked_log(tmp_path / "backup", CHANNEL)[2]
    assert one["originseq"] == other["originseq"] == "0/2"
    assert one["origin"] != other["origin"], "two messages of one identity: the second would be taken for a duplicate"


def test_rule_10_a_position_of_another_log_skips_nothing_new(opened: Opener, root: Path) -> None:
    with opened() as station:
        station.publish_many(CHANNEL, [0, 1])
        station.subscribe(CHANNEL, print, name="w", start="first", paused=True).close()
        life = station.channel(CHANNEL).incarnation
        path = root / "subscriptions" / CHANNEL / "w" / "0.json"
        ahead = {"incarnation": life, "offset": 99, "id": "0192f0c1-0000-7000-8000-000000000000", "time_us": 1}
        path.write_text(json.dumps(ahead))
        gaps: list[hg.Gap] = []
        got: list[Any] = []
        with station.subscribe(
            CHANNEL, lambda message: got.append(message.data), name="w", on_gap=gaps.append
        ) as subscription:
            station.publish(CHANNEL, "new")
            eventually(lambda: "new" in got)
            assert subscription.position <= 3
        assert gaps
        assert gaps[0].next == 99
    records = [json.loads(line) for line in (root / "audit" / "audit.jsonl").read_text().splitlines()]
    assert any(record["event"] == "position-moved" and record["before"] == 99 for record in records)


def test_rule_12_nobody_publishes_into_a_channel_that_is_gone(opened: Opener, root: Path) -> None:
    with opened() as first, opened() as second:
        first.publish(CHANNEL, 1)
        second.publish(CHANNEL, 2)
        first.delete_channel(CHANNEL)
        receipt = second.publish(CHANNEL, 3)
        assert receipt.offset == 0
        assert data_of(first) == data_of(second) == [3]


def test_rule_13_a_crash_between_dead_letter_and_commit_does_not_double_the_letter(opened: Opener) -> None:
    with opened() as station:
        station.publish(CHANNEL, "bad")
        before = Position(station.channel(CHANNEL).incarnation, 0)

        def fail(_: hg.Message) -> None:
            raise ValueError("no")

        for _ in range(2):
            retry = hg.Retry(max_retries=0)
            with station.subscribe(CHANNEL, fail, name="w", start="first", retry=retry) as subscription:
                eventually(lambda subscription=subscription: subscription.position == 1)
            station.engine.save_position(CHANNEL, "w", 0, before)  # the commit was lost
        assert station.channel(f"{CHANNEL}.dead-letter").messages == 1


def test_rule_14_a_child_cannot_use_or_keep_what_its_parent_opened(opened: Opener) -> None:
    with opened(durability="interval") as station:
        station.publish(CHANNEL, 1)
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                station.publish(CHANNEL, "from the child")
                os.write(write, b"published")
            except hg.Forked:
                os.write(write, b"Forked")
            finally:
                os._exit(0)
        os.waitpid(pid, 0)
        assert os.read(read, 100) == b"Forked"
        os.close(read)
        os.close(write)
        station.publish(CHANNEL, 2)
        assert data_of(station) == [1, 2]


def test_rule_15_news_are_written_only_if_somebody_waits_and_a_lost_one_costs_no_message(
    opened: Opener, root: Path
) -> None:
    disk = FaultyDisk()
    with opened(disk=disk) as writer, opened() as reader:
        writer.publish(CHANNEL, 0)
        disk.recording = True
        writer.publish(CHANNEL, 1)
        assert not [path for kind, path in disk.journal if path.endswith("news")]
        got: list[Any] = []
        reader.subscribe(CHANNEL, lambda message: got.append(message.data), start="first")
        eventually(lambda: got == [0, 1])
        disk.fail("open", path="/news", times=10**6)
        disk.fail("pwrite", path="/news", times=10**6)
        for number in range(2, 5):
            writer.publish(CHANNEL, number)
        eventually(lambda: got == [0, 1, 2, 3, 4])


def test_rule_16_of_several_processes_one_at_a_time_trims(opened: Opener) -> None:
    with (
        opened(segment_bytes=4096, retention_bytes=8192) as first,
        opened(busy_timeout_s=0.1, retention_bytes=8192) as second,
    ):
        fill(first)
        with first.engine.without_upkeep():
            with pytest.raises(hg.Busy):
                second.trim()
            assert first.channel(CHANNEL).first == 0
        assert second.trim()
        assert first.trim() == []


def test_rule_18_where_both_forms_of_a_segment_exist_no_message_is_read_twice_or_not_at_all(
    opened: Opener, root: Path
) -> None:
    with opened(segment_bytes=4096) as station:
        fill(station)
        plain = {path: path.read_bytes() for path in sorted(partition(root).glob("*.jsonl"))[:-1]}
        station.alter_channel(CHANNEL, compress=True)
        station.trim()
    for path, data in plain.items():
        path.write_bytes(data)
    with opened() as station:
        assert [message.data["n"] for message in station.read(CHANNEL)] == list(range(40))


def test_rule_19_no_name_leaves_the_directory(opened: Opener, root: Path) -> None:
    with opened() as station:
        before = sorted(os.listdir(root.parent))
        for name in ("../escaped", "/etc/escaped", "..", "a/b", "x\0y"):
            with pytest.raises(hg.InvalidName):
                station.publish(name, 1)
            with pytest.raises(hg.InvalidName):
                station.subscribe(CHANNEL, print, name=name)
        assert sorted(os.listdir(root.parent)) == before


@pytest.mark.skipif(sys.platform != "darwin", reason="macOS only")
def test_rule_19_on_macos_a_sync_reaches_the_platter() -> None:  # pragma: no cover
    assert "F_FULLFSYNC" in disks.Disk.fdatasync.__code__.co_names


def test_rule_20_reading_and_publishing_a_long_log_takes_little_memory(opened: Opener) -> None:
    with opened(durability="os", disk=QuickDisk(), segment_bytes=1 << 20) as station:
        for _ in range(200):
            station.publish_many(CHANNEL, ["x" * 1000] * 100)
        tracemalloc.start()
        try:
            count = sum(1 for _ in station.read(CHANNEL))
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert count == 20_000
        assert peak < 12_000_000, f"{peak} bytes to read 24 MB"
