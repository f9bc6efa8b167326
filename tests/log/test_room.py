"""Room behind a busy segment: lines overwrite it, nobody reads it, and whatever happens it costs no message."""

from __future__ import annotations

import errno
import json
import os
import random
import signal
from pathlib import Path
from typing import Any

import pytest

import heliograph as hg
from heliograph import disk as disks
from heliograph.admin.verify import verify
from heliograph.log import room
from heliograph.log.head import ROOM, SEQUENCE
from heliograph.log.partition import Partition
from tests.faults import Died, FaultyDisk, PowerDisk, SteppedClock
from tests.opening import Opener
from tests.proof.tools import Child, checked_log, eventually

CHANNEL = "events"
EVERYWHERE = """
    import heliograph as hg
    from heliograph import disk as disks
    from heliograph.log import room
    room.ROOM_AFTER_BYTES = room.ROOM_BYTES_MIN = 1
    disks.file_system = lambda path: "ext4"
"""


@pytest.fixture(autouse=True)
def _everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """The smallest segment is given room, whatever file system the tests run on."""
    monkeypatch.setattr(room, "ROOM_AFTER_BYTES", 1)
    monkeypatch.setattr(room, "ROOM_BYTES_MIN", 1)
    monkeypatch.setattr(disks, "file_system", lambda path: "ext4")


def active(root: Path) -> Path:
    return max((root / "channels" / CHANNEL / "0").glob("*.jsonl"))


def room_in(root: Path) -> int:
    data = active(root).read_bytes()
    return len(data) - len(data.rstrip(b"\r"))


def fill(station: hg.Station, count: int = 20, first: int = 0) -> None:
    for number in range(first, first + count):
        station.publish(CHANNEL, {"n": number})


def numbers(station: hg.Station) -> list[int]:
    return [message.data["n"] for message in station.read(CHANNEL)]


def writer(station: hg.Station) -> Partition:
    return station.engine.writer(CHANNEL, 0)


def settled(station: hg.Station) -> None:
    """An idle process gives a lock back that it kept."""
    eventually(lambda: not writer(station)._lock.held)


def die(station: hg.Station, disk: FaultyDisk) -> None:
    """As a process that is killed: nothing is closed in order."""
    disk.kill_at(1)
    station._upkeep.close()
    station.engine.abandon()
    disk.bury()


# -- what it is for -----------------------------------------------------------------------------------------------


def test_lines_overwrite_room_so_that_the_file_keeps_its_length(opened: Opener, root: Path) -> None:
    with opened() as station:
        fill(station, 40)
        sizes = []
        for number in range(40, 60):
            station.publish(CHANNEL, {"n": number})
            sizes.append(active(root).stat().st_size)
        assert len(set(sizes)) < 5, "it grew with every message"
        assert room_in(root) > 0
        assert numbers(station) == list(range(60))


def test_the_file_is_json_lines_and_white_space_while_it_is_written(opened: Opener, root: Path) -> None:
    with opened() as station:
        fill(station)
        text = active(root).read_text()
        assert room_in(root) > 0
        decoder, at, found = json.JSONDecoder(), 0, []
        while at < len(text.rstrip()):
            message, at = decoder.raw_decode(text, at)
            found.append(message["data"]["n"])
            at += len(text[at:]) - len(text[at:].lstrip())
        assert found == list(range(20))


def test_nothing_is_left_of_it_when_a_station_is_closed(opened: Opener, root: Path) -> None:
    with opened() as station:
        fill(station)
        assert room_in(root) > 0
    assert room_in(root) == 0
    assert len(checked_log(root, CHANNEL)) == 20


def test_a_partition_that_is_closed_for_others_leaves_none(opened: Opener, root: Path) -> None:
    with opened(open_partitions_max=1) as station:
        fill(station)
        assert room_in(root) > 0
        for _ in range(3):
            station.publish("other", 1)
        assert room_in(root) == 0
        fill(station, 5, 20)
        assert numbers(station) == list(range(25))


def test_a_sealed_segment_has_none(opened: Opener, root: Path) -> None:
    with opened(segment_bytes=4096) as station:
        fill(station, 60)
        *sealed, last = sorted((root / "channels" / CHANNEL / "0").glob("*.jsonl"))
        assert len(sealed) > 2
        assert all(path.read_bytes().endswith(b"}\n") for path in sealed)
        assert last.stat().st_size <= 4096
        assert verify(station).ok
        assert numbers(station) == list(range(60))


def test_room_that_nobody_fills_is_taken_away_and_laid_again_when_somebody_does(opened: Opener, root: Path) -> None:
    clock = SteppedClock()
    with opened(clock=clock) as station:
        fill(station)
        writer(station).take_room(5.0)
        assert room_in(root) > 0, "somebody published just now"
        clock.step_us = 6_000_000
        station.engine.take_idle_room()
        assert room_in(root) == 0
        fill(station, 20, 20)
        assert room_in(root) > 0
        assert numbers(station) == list(range(40))


@pytest.mark.parametrize("settings", [{"room_bytes": 0}, {"room_bytes": 0, "durability": "interval"}])
def test_none_is_laid_where_it_is_of_no_use(opened: Opener, root: Path, settings: dict[str, Any]) -> None:
    with opened(**settings) as station:
        fill(station)
        assert room_in(root) == 0


@pytest.mark.parametrize("kind", ["btrfs", "zfs", "tmpfs", ""])
def test_none_is_laid_where_overwriting_means_to_write_elsewhere(
    opened: Opener, root: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(disks, "file_system", lambda path: kind)
    with opened() as station:
        fill(station)
        assert room_in(root) == 0


def test_whoever_appends_much_at_once_gets_none(opened: Opener, root: Path) -> None:
    with opened() as station:
        station.publish_many(CHANNEL, [{"n": number, "pad": "x" * 1000} for number in range(200)])
        assert room_in(root) == 0


def test_room_is_counted_as_nothing(opened: Opener, root: Path) -> None:
    with opened() as station:
        fill(station)
        size = active(root).stat().st_size
        stored = len(active(root).read_bytes().rstrip(b"\r"))
        assert stored < size
        assert station.channel(CHANNEL).bytes == stored
        report = verify(station)
        assert report.ok
        assert report.bytes == stored


def test_idempotent_batches_and_arrivals_stand_in_room_too(opened: Opener, root: Path) -> None:
    with opened() as station:
        fill(station, 30)
        station.publish_many(CHANNEL, [{"n": 30}, {"n": 31}])
        with station.producer("importer") as producer:
            producer.publish(CHANNEL, {"n": 32}, seq=1)
        assert room_in(root) > 0
        assert numbers(station) == list(range(33))
    assert len(checked_log(root, CHANNEL)) == 33


# -- as memory ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("durability", ["interval", "os"])
def test_where_nothing_is_synced_lines_are_stored_without_a_call_of_the_system(
    opened: Opener, root: Path, durability: str
) -> None:
    disk = FaultyDisk()
    with opened(durability=durability, disk=disk) as station, opened(durability=durability) as reader:
        fill(station, 100)
        before = disk.counts["pwrite"]
        fill(station, 20, 100)
        assert disk.counts["pwrite"] - before < 5
        assert room_in(root) > 0
        assert numbers(reader) == list(range(120))
        station.publish_many(CHANNEL, [{"n": 120}, {"n": 121}])
        station.publish(CHANNEL, {"n": 122, "pad": "x" * 20_000})
        fill(station, 20, 123)
        assert numbers(reader) == list(range(143))
        assert verify(reader).ok
    assert room_in(root) == 0
    assert len(checked_log(root, CHANNEL)) == 143


def test_room_that_is_memory_is_taken_away_and_laid_again(opened: Opener, root: Path) -> None:
    clock = SteppedClock()
    with opened(clock=clock, durability="interval") as station:
        fill(station, 50)
        settled(station)
        clock.step_us = 6_000_000
        station.engine.take_idle_room()
        assert room_in(root) == 0
        assert writer(station)._map is None
        fill(station, 50, 50)
        assert room_in(root) > 0
        assert numbers(station) == list(range(100))


def test_a_segment_that_is_full_takes_its_memory_along(opened: Opener, root: Path) -> None:
    with opened(segment_bytes=8192, durability="interval") as station:
        fill(station, 200)
        *sealed, _ = sorted((root / "channels" / CHANNEL / "0").glob("*.jsonl"))
        assert len(sealed) > 5
        assert all(path.read_bytes().endswith(b"}\n") for path in sealed)
        assert numbers(station) == list(range(200))
    assert len(checked_log(root, CHANNEL)) == 200


def test_a_channel_altered_to_smaller_segments_fills_none_beyond_that_though_its_memory_is_larger(
    opened: Opener, root: Path
) -> None:
    with opened(durability="interval") as station:
        fill(station, 100)
        settled(station)
        smaller = writer(station).written + 2000
        assert writer(station)._map_to > smaller
        station.alter_channel(CHANNEL, segment_bytes=smaller)
        fill(station, 100, 100)
        assert numbers(station) == list(range(200))
    sizes = [path.stat().st_size for path in (root / "channels" / CHANNEL / "0").glob("*.jsonl")]
    assert len(sizes) > 1
    assert max(sizes) <= smaller


@pytest.mark.parametrize("batch", [1, 2, 40])
def test_a_batch_that_begins_a_new_segment_leaves_nothing_of_the_old_ones_memory(
    opened: Opener, root: Path, batch: int
) -> None:
    with opened(durability="interval", segment_bytes=64 * 1024) as station:
        published = 0
        for _ in range(25):
            fill(station, 30, first=published)  # these do not look whether the segment is the same
            station.publish_many(CHANNEL, [{"n": number} for number in range(published + 30, published + 30 + batch)])
            published += 30 + batch
        assert numbers(station) == list(range(published))
        assert len(list((root / "channels" / CHANNEL / "0").glob("*.jsonl"))) > 2
    assert len(checked_log(root, CHANNEL)) == published


def test_memory_that_cannot_be_had_is_done_without(opened: Opener, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any, **__: Any) -> Any:
        raise OSError(errno.ENOMEM, "no memory")

    monkeypatch.setattr("heliograph.log.roomy.mmap", refused)
    with opened(durability="interval") as station:
        fill(station, 50)
        assert numbers(station) == list(range(50))
    assert len(checked_log(root, CHANNEL)) == 50


@pytest.mark.parametrize("number", range(4))
def test_what_was_stored_in_memory_outlives_a_killed_process(opened: Opener, root: Path, number: int) -> None:
    code = f"""{EVERYWHERE}
    import os, sys
    station = hg.open(sys.argv[1], name="host1", durability="os", segment_bytes=20_000)
    n = 0
    while True:
        station.publish("events", {{"n": n, "pad": "x" * (n % 700)}})
        os.write(1, b"%d\\n" % n)
        n += 1
    """
    with Child(code, root) as child:
        for _ in range(100 + 150 * number):
            last = int(child.line())
        child.kill()
    with opened(durability="os") as station:
        found = numbers(station)
        assert found == list(range(len(found)))
        assert len(found) > last
        fill(station, 5, len(found))
        assert verify(station).ok
    assert len(checked_log(root, CHANNEL)) == len(found) + 5


def test_a_head_that_was_torn_does_not_hang_who_closes(opened: Opener, root: Path) -> None:
    station = opened()
    fill(station)
    writer(station)._words[SEQUENCE] |= 1
    station.close()
    with opened() as again:
        assert numbers(again) == list(range(20))


# -- several processes --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("durability", ["always", "interval"])
def test_processes_share_room(opened: Opener, root: Path, durability: str) -> None:
    code = f"""{EVERYWHERE}
    import sys
    station = hg.open(sys.argv[1], name="host1", durability=sys.argv[2])
    print("ready", flush=True)
    for _ in range(5):
        sys.stdin.readline()
        for n in range(20):
            station.publish("events", {{"n": n}})
        print("done", flush=True)
    station.close()
    """
    with opened(name="host1") as station, Child(code, root, durability) as other:
        assert other.line() == "ready"
        for _ in range(5):
            fill(station)
            other.tell()
            fill(station)
            assert other.line() == "done"
        other.finish()
        eventually(lambda: len(numbers(station)) == 300)
    assert len(checked_log(root, CHANNEL)) == 300


@pytest.mark.parametrize("durability", ["always", "interval", "os"])
def test_one_who_closes_takes_it_from_those_who_go_on(opened: Opener, root: Path, durability: str) -> None:
    with opened(durability=durability) as one:
        fill(one)
        settled(one)
        with opened(durability=durability) as other:
            fill(other, 10, 20)
        assert room_in(root) == 0
        fill(one, 10, 30)
        assert numbers(one) == list(range(40))
    assert len(checked_log(root, CHANNEL)) == 40


@pytest.mark.parametrize("step", ["before", "half", "after"])
def test_a_process_killed_while_it_writes_into_room_costs_others_nothing(opened: Opener, root: Path, step: str) -> None:
    code = f"""{EVERYWHERE}
    import os, signal, sys
    from heliograph.disk import Disk

    class Dying(Disk):
        armed = False
        def pwrite(self, fd, data, position):
            if self.armed:
                share = dict(before=0, half=len(data) // 2, after=len(data))[sys.argv[2]]
                os.pwrite(fd, bytes(data)[:share], position)
                os.kill(os.getpid(), signal.SIGKILL)
            return os.pwrite(fd, data, position)

    disk = Dying()
    station = hg.open(sys.argv[1], name="host1", disk=disk)
    for n in range(10):
        station.publish("events", {{"n": n}})
    disk.armed = True
    station.publish("events", {{"n": 10}})
    """
    with opened(name="host1") as living:
        living.publish("other", 1)
        with Child(code, root, step) as child:
            assert child.process.wait(30) == -signal.SIGKILL
        assert room_in(root) > 0 or step == "after"
        known = 11 if step == "after" else 10
        assert living.publish(CHANNEL, {"n": known}).offset == known
        assert numbers(living) == list(range(known + 1))
    assert len(checked_log(root, CHANNEL)) == known + 1


# -- crashes and power cuts ---------------------------------------------------------------------------------------


def test_after_a_kill_the_log_is_not_read_from_its_beginning(opened: Opener, root: Path) -> None:
    disk = FaultyDisk()
    station = opened(disk=disk)
    fill(station)
    die(station, disk)
    assert room_in(root) > 0
    fresh = FaultyDisk()
    fresh.recording = True
    with opened(disk=fresh) as station:
        cut = [path for kind, path in fresh.journal if kind == "ftruncate" and path.endswith(".jsonl")]
        assert not cut, "the head was not believed"
        fill(station, 5, 20)
        assert numbers(station) == list(range(25))
    assert len(checked_log(root, CHANNEL)) == 25


@pytest.mark.parametrize("left", ["line", "half", "garbage"])
def test_what_a_dead_process_left_in_room_is_found_when_the_directory_is_opened(
    opened: Opener, root: Path, left: str
) -> None:
    with opened() as station:
        fill(station)
        line = active(root).read_bytes().split(b"\n")[-2] + b"\n"
    disk = FaultyDisk()
    station = opened(disk=disk)
    fill(station, 10, 20)
    written = writer(station).written
    with active(root).open("r+b") as file:
        file.seek(written)
        file.write({"line": line, "half": line[:50], "garbage": os.urandom(50)}[left])
    die(station, disk)
    with opened() as station:
        found = numbers(station)
        assert found[:30] == list(range(30))
        assert len(found) == (31 if left == "line" else 30)
        assert station.publish(CHANNEL, {"n": 99}).offset == len(found)
    assert verify_closed(root).ok


def verify_closed(root: Path) -> Any:
    with hg.open(root) as station:
        return verify(station)


@pytest.mark.parametrize("seed", range(12))
def test_a_power_cut_takes_nothing_that_was_acknowledged(
    root: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Of what was overwritten and not synced any block may be as it was, as it is, or garbage."""
    luck = random.Random(seed)
    root.mkdir()
    acknowledged: list[int] = []
    number = 0
    for life in range(6):
        boot = luck.randbytes(16)
        monkeypatch.setattr(disks, "boot_id", lambda boot=boot: boot)
        disk = PowerDisk(root)
        disk.everything_is_durable()
        station = hg.open(root, name="host1", segment_bytes=16_384, disk=disk)
        assert set(numbers(station) if life else []) >= set(acknowledged)
        calls = luck.randint(20, 90)
        disk.kill_at(calls, kinds=("pwrite", "fdatasync", "ftruncate"))
        try:
            while True:
                number += 1
                station.publish(CHANNEL, {"n": number, "pad": "x" * luck.choice([0, 100, 900])})
                acknowledged.append(number)
        except Died:
            pass
        station._upkeep.close()
        station.engine.abandon()
        disk.bury()
        disk.cut(luck if life % 2 else None)
    monkeypatch.setattr(disks, "boot_id", lambda: b"the last boot  !")
    with hg.open(root, name="host1") as station:
        found = numbers(station)
        assert set(found) >= set(acknowledged)
        assert len(found) == len(set(found))


# -- disks that fail ----------------------------------------------------------------------------------------------


def test_a_disk_that_is_too_full_for_room_takes_messages_all_the_same(opened: Opener, root: Path) -> None:
    disk = FaultyDisk()
    with opened(disk=disk) as station:
        station.publish(CHANNEL, {"n": 0})
        assert room_in(root) > 0
        writer(station).take_room()
        tried = []

        def full(path: str, fd: int, data: bytes, *_: Any) -> None:
            if path.endswith(".jsonl") and bytes(data).startswith(b"\r"):
                tried.append(path)
                raise OSError(errno.ENOSPC, "full")

        disk.before["pwrite"] = full
        fill(station, 20, 1)
        assert room_in(root) == 0
        assert len(tried) == 1, "it is not tried with each message"
        assert numbers(station) == list(range(21))
    assert len(checked_log(root, CHANNEL)) == 21


@pytest.mark.parametrize("durability", ["always", "interval"])
def test_an_interrupt_while_room_is_laid_keeps_the_lock_from_nobody(
    opened: Opener, root: Path, monkeypatch: pytest.MonkeyPatch, durability: str
) -> None:
    def interrupt(size: int) -> Any:
        raise KeyboardInterrupt

    with opened(durability=durability) as station, opened(durability=durability, busy_timeout_s=1) as other:
        station.publish(CHANNEL, {"n": 0})
        settled(station)
        writer(station).take_room()
        with monkeypatch.context() as patch:
            patch.setattr(room, "cloth", interrupt)
            with pytest.raises(KeyboardInterrupt):
                fill(station, 50, 1)
        found = numbers(other)
        fill(other, 3, 100)
        fill(station, 3, 103)
        stored = numbers(other)
        assert stored[-6:] == list(range(100, 106))
        assert stored[:-6][: len(found)] == found
    assert len(checked_log(root, CHANNEL)) == len(stored)


def test_room_may_be_shorter_than_wanted(opened: Opener, root: Path) -> None:
    disk = FaultyDisk()
    with opened(disk=disk) as station:
        fill(station, 5)
        writer(station).take_room()
        disk.fail("pwrite", at=2, short=100, path=".jsonl")
        station.publish(CHANNEL, {"n": 5})
        assert room_in(root) == 100
        fill(station, 20, 6)
        assert numbers(station) == list(range(26))
    assert len(checked_log(root, CHANNEL)) == 26


@pytest.mark.parametrize("undone", [True, False])
def test_a_write_that_fails_inside_room_leaves_nothing_half_visible(opened: Opener, root: Path, undone: bool) -> None:
    disk = FaultyDisk()
    with opened(disk=disk) as station:
        fill(station)
        assert room_in(root) > 1000
        disk.fail("pwrite", short=200, path=".jsonl")
        disk.fail("pwrite", errno.EIO, at=2, path=".jsonl")
        if not undone:
            disk.fail("ftruncate", errno.EIO, path=".jsonl")
        with pytest.raises(hg.StorageError if undone else hg.OutcomeUnknown):
            station.publish(CHANNEL, {"n": "lost", "pad": "x" * 500})
        disk.heal()
        fill(station, 20, 20)
        assert numbers(station) == list(range(40))
    assert len(checked_log(root, CHANNEL)) == 40


def test_a_failed_sync_sets_aside_what_was_written_and_no_room(opened: Opener, root: Path) -> None:
    disk = FaultyDisk()
    with opened(disk=disk) as station:
        fill(station)
        disk.fail("fdatasync", path=".jsonl")
        with pytest.raises(hg.OutcomeUnknown):
            station.publish(CHANNEL, {"n": 20})
        disk.heal()
        verify(station, repair=True)
        saved = list((root / "quarantine").rglob("*.bad"))
        assert [path.read_bytes()[-2:] for path in saved] == [b"}\n"]
        fill(station, 5, 30)
        assert numbers(station) == [*range(20), *range(30, 35)]
    assert len(checked_log(root, CHANNEL)) == 25


def test_a_file_that_somebody_shortened_is_looked_at(opened: Opener, root: Path) -> None:
    """As an older Heliograph does, that knows of no room and takes it for half a line."""
    with opened() as station:
        fill(station)
        os.truncate(active(root), writer(station).written)
        assert writer(station)._words[ROOM] > writer(station).written
        fill(station, 20, 20)
        assert numbers(station) == list(range(40))
    assert len(checked_log(root, CHANNEL)) == 40


def test_a_copy_of_a_directory_that_is_written_is_sound(opened: Opener, root: Path, tmp_path: Path) -> None:
    import shutil

    with opened() as station:
        fill(station)
        shutil.copytree(root, tmp_path / "copy")
    with hg.open(tmp_path / "copy") as copy:
        assert numbers(copy) == list(range(20))
        fill(copy, 5, 20)
        assert verify(copy).ok
    with hg.open(tmp_path / "copy", read_only=True) as copy:
        assert numbers(copy) == list(range(25))


def test_a_read_only_station_reads_a_log_with_room_whose_head_is_gone(opened: Opener, root: Path) -> None:
    disk = FaultyDisk()
    station = opened(disk=disk)
    fill(station)
    die(station, disk)
    assert room_in(root) > 0
    (root / "channels" / CHANNEL / "0" / "head").unlink()
    with hg.open(root, read_only=True) as reading:
        assert numbers(reading) == list(range(20))
