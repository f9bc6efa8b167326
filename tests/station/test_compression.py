"""Compressed segments: the same bytes for everybody, with zstd's own tools as well as through the station."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

import heliograph as hg
from heliograph.admin.verify import verify
from heliograph.log import compress
from heliograph.message import Message
from heliograph.station import Station, open_station
from tests.faults import Died, FaultyDisk, QuickDisk
from tests.opening import Opener

CHANNEL = "events"
COUNT = 900
needs_zstd = pytest.mark.skipif(shutil.which("zstd") is None, reason="the zstd command is not installed")


def partition(root: Path) -> Path:
    return root / "channels" / CHANNEL / "0"


def plain(root: Path) -> dict[int, bytes]:
    return {int(path.stem): path.read_bytes() for path in sorted(partition(root).glob("*.jsonl"))}


def compressed(root: Path) -> list[Path]:
    return sorted(partition(root).glob("*.jsonl.zst"))


@pytest.fixture(autouse=True)
def small_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several frames in a segment of a size that tests can afford."""
    monkeypatch.setattr(compress, "FRAME_BYTES_MAX", 40_000)


@pytest.fixture
def log(opened: Opener, root: Path) -> Path:
    """Three sealed segments and an active one, not compressed; station closed."""
    with opened(segment_bytes=120_000) as station:
        for first in range(0, COUNT, 3):
            some = range(first, first + 3)
            station.publish_many(CHANNEL, [{"n": n, "pad": f"{n * 7919 % 10007:05d}" * 40} for n in some])
    assert len(plain(root)) >= 3
    return root


def everything(station: Station, **where: Any) -> tuple[list[Message], set[int]]:
    gaps: list[hg.Gap] = []
    messages = list(station.read(CHANNEL, on_gap=gaps.append, **where))
    return messages, {offset for gap in gaps for offset in range(gap.first, gap.next)}


@needs_zstd
def test_zstd_gives_back_the_very_bytes_that_were_written(opened: Opener, log: Path) -> None:
    before = plain(log)
    with opened(compress=True) as station:
        station.trim()
        assert verify(station).ok
    packed = compressed(log)
    assert [int(path.name[:20]) for path in packed] == sorted(before)[:-1], "all sealed ones, and only those"
    assert list(plain(log)) == sorted(before)[-1:]
    for path in packed:
        out = subprocess.run(["zstd", "-dcq", path], capture_output=True, check=True).stdout
        assert out == before[int(path.name[:20])]
        assert path.stat().st_size < len(out) / 2


@pytest.mark.skipif(shutil.which("zstdgrep") is None, reason="the zstdgrep command is not installed")
def test_zstdgrep_finds_a_message(opened: Opener, log: Path) -> None:
    with opened(compress=True) as station:
        station.trim()
        wanted = next(iter(station.read(CHANNEL, start=100)))
    found = subprocess.run(["zstdgrep", "-h", wanted.id, *compressed(log)], capture_output=True, check=False).stdout
    assert found == wanted.raw + b"\n"


def test_reading_is_the_same_from_every_offset_time_and_id(opened: Opener, log: Path) -> None:
    with opened() as station:
        before, _ = everything(station)
    with opened(compress=True) as station:
        station.trim()
        assert len(compressed(log)) >= 2
        after, missing = everything(station)
        assert [(one.offset, one.raw) for one in after] == [(one.offset, one.raw) for one in before]
        assert not missing
        for message in before[:: COUNT // 60]:
            assert next(iter(station.read(CHANNEL, start=message.offset))).raw == message.raw
            by_time = next(iter(station.read(CHANNEL, start=message.time)))
            assert by_time.time == message.time
            assert by_time.offset == min(one.offset for one in before if one.time >= message.time)
            found = station.get(message.id, CHANNEL)
            assert found is not None
            assert (found.offset, found.raw) == (message.offset, message.raw)
    with opened(read_only=True) as station:
        assert [one.raw for one in station.read(CHANNEL)] == [one.raw for one in before]


def test_frames_are_independent_and_no_larger_than_the_limit(opened: Opener, log: Path) -> None:
    with opened(compress=True) as station:
        station.trim()
    for path in compressed(log):
        frames = list(compress._FRAME.iter_unpack(frames_of(path).read_bytes()))
        assert len(frames) > 1
        stored = path.read_bytes()
        for _, length, at, size in frames:
            assert length <= 40_000
            data = compress._zstd().decompress(stored[at : at + size])
            assert len(data) == length
            assert data.endswith(b"\n"), "cut at a batch"


def frames_of(path: Path) -> Path:
    return path.parent / f"{path.name[:20]}.frames"


def test_a_crash_at_any_moment_of_compressing_leaves_one_consistent_log(
    opened: Opener, log: Path, tmp_path: Path
) -> None:
    with opened(read_only=True) as station:
        before = [one.raw for one in station.read(CHANNEL)]
    both = 0
    for number in range(1, 200):
        root = tmp_path / f"crash-{number}"
        shutil.copytree(log, root)
        disk = FaultyDisk()
        station = open_station(root, name="host1", compress=True, disk=disk)
        disk.kill_at(number, kinds=("open", "write", "rename", "unlink", "fdatasync", "sync_directory"))
        with contextlib.suppress(Died):
            station.trim()
        died = bool(disk.fired)
        station._upkeep.close()
        disk.bury()
        names = {path.name for path in partition(root).iterdir()}
        both += any(name + ".zst" in names for name in names)
        with opened(root, read_only=True) as looking:
            assert [one.raw for one in looking.read(CHANNEL)] == before, f"died at call {number}"
        with opened(root, compress=True) as again:
            again.trim()
            assert [one.raw for one in again.read(CHANNEL)] == before, f"died at call {number}"
            report = verify(again)
            assert report.ok, (number, report.troubles)
        assert not any((partition(root) / path.name.removesuffix(".zst")).exists() for path in compressed(root))
        shutil.rmtree(root)
        if not died:
            break
    assert not died, "not all moments were tried"
    assert both, "the moment between rename and unlink was not among them"


@pytest.mark.parametrize("harm", ["lost", "emptied", "cut", "first entry", "a middle entry", "garbage"])
def test_a_lost_or_damaged_frames_file_is_made_again(opened: Opener, log: Path, harm: str) -> None:
    with opened(compress=True) as station:
        station.trim()
        before = [one.raw for one in station.read(CHANNEL)]
    path = frames_of(compressed(log)[0])
    good = path.read_bytes()
    if harm == "lost":
        path.unlink()
    else:
        path.write_bytes(
            {
                "emptied": b"",
                "cut": good[:-5],
                "first entry": bytes(32) + good[32:],
                "a middle entry": good[:40] + b"\xff" + good[41:],
                "garbage": b"\xa5" * len(good),
            }[harm]
        )
    with opened() as station:
        messages, missing = everything(station)
        assert not missing
        assert [one.raw for one in messages] == before
        assert verify(station).ok
    assert path.read_bytes() == good


@pytest.mark.parametrize("frames", ["kept", "lost"])
def test_damage_in_a_compressed_segment_costs_one_frame_and_is_told(opened: Opener, log: Path, frames: str) -> None:
    before = plain(log)
    with opened(compress=True) as station:
        station.trim()
        whole = {one.offset: one.raw for one in station.read(CHANNEL)}
    victim = compressed(log)[1]
    base = int(victim.name[:20])
    position, length, at, size = list(compress._FRAME.iter_unpack(frames_of(victim).read_bytes()))[1]
    first = base + before[base][:position].count(b"\n")
    hit = set(range(first, first + before[base][position : position + length].count(b"\n")))
    data = bytearray(victim.read_bytes())
    data[at + size // 2 : at + size // 2 + 20] = bytes(20)
    victim.write_bytes(data)
    if frames == "lost":
        frames_of(victim).unlink()
    with opened() as station:
        messages, missing = everything(station)
        assert missing == hit
        assert {one.offset: one.raw for one in messages} == {o: raw for o, raw in whole.items() if o not in hit}
        last = max(hit)
        assert next(iter(station.read(CHANNEL, start=last))).offset == last + 1
        assert next(iter(station.read(CHANNEL, start=last + 1))).raw == whole[last + 1]


def test_a_reader_in_the_middle_does_not_notice_that_its_segment_is_compressed(opened: Opener, log: Path) -> None:
    with opened(compress=True) as station:
        reader = station.read(CHANNEL)
        got = [next(reader).data["n"] for _ in range(10)]
        station.trim()
        assert compressed(log)
        got += [one.data["n"] for one in reader]
    assert got == list(range(COUNT))


def test_a_log_that_ends_with_a_compressed_segment_goes_on_behind_it(opened: Opener, log: Path) -> None:
    with opened(compress=True) as station:
        station.trim()
    for path in list(partition(log).iterdir()):  # as if the rotation's new segment and the head had been lost
        if path.name[:20].isdigit() and int(path.name[:20]) > int(compressed(log)[-1].name[:20]):
            path.unlink()
    (partition(log) / "head").unlink()
    with opened() as station:
        end = station.channel(CHANNEL).next
        assert station.publish(CHANNEL, {"n": -1}).offset == end
        assert [one.offset for one in station.read(CHANNEL)] == list(range(end + 1))
        assert verify(station).ok


def test_a_file_that_does_not_read_back_is_not_put_in_the_place_of_the_plain_one(opened: Opener, log: Path) -> None:
    class Rotten(QuickDisk):
        def write_all(self, fd: int, data: bytes | memoryview) -> None:
            if bytes(data[:4]) == b"\x28\xb5\x2f\xfd":
                data = bytes(data[:-8]) + bytes(8)
            super().write_all(fd, data)

    before = plain(log)
    with opened(compress=True, disk=Rotten()) as station:
        with pytest.raises(hg.HeliographError):
            station.trim()
        assert [one.data["n"] for one in station.read(CHANNEL)] == list(range(COUNT))
    assert plain(log) == before
    assert not compressed(log)
