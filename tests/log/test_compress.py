"""Compressed segments: the same lines, readable with ordinary tools, and never a message less."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

import heliograph as hg
from heliograph.limits import FRAME_BYTES_MAX
from heliograph.station import Station
from tests.faults import Died, FaultyDisk
from tests.opening import Opener
from tests.proof.tools import checked_log

CHANNEL = "events"
COUNT = 200

needs_zstd = pytest.mark.skipif(shutil.which("zstd") is None, reason="the zstd command is not installed")


def partition(root: Path) -> Path:
    return root / "channels" / CHANNEL / "0"


def fill(station: Station, count: int = COUNT) -> list[hg.Receipt]:
    return [
        station.publish(CHANNEL, {"n": number, "pad": "x" * (number % 300), "secret": f"secret-{number}"})
        for number in range(count)
    ]


def everything(station: Station) -> tuple[list[int], set[int]]:
    gaps: list[hg.Gap] = []
    got = [message.data["n"] for message in station.read(CHANNEL, on_gap=gaps.append)]
    return got, {offset for gap in gaps for offset in range(gap.first, gap.next)}


@pytest.fixture
def compressed(opened: Opener, root: Path) -> dict[str, bytes]:
    """A compressed log; what its segments were before."""
    with opened(segment_bytes=8192) as station:
        fill(station)
        plain = {path.name: path.read_bytes() for path in partition(root).glob("*.jsonl")}
        station.alter_channel(CHANNEL, compress=True)
        station.trim()
    return plain


@needs_zstd
def test_zstd_reads_what_was_written(compressed: dict[str, bytes], root: Path) -> None:
    found = sorted(partition(root).glob("*.zst"))
    assert len(found) == len(compressed) - 1  # the active one stays
    for path in found:
        assert subprocess.run(["zstd", "-dcq", path], capture_output=True, check=True).stdout == compressed[path.stem]
        assert subprocess.run(["zstd", "-tq", path], check=False).returncode == 0
        assert not path.with_suffix("").exists()


@pytest.mark.skipif(shutil.which("zstdgrep") is None, reason="zstdgrep is not installed")
def test_zstdgrep_finds_a_message(compressed: dict[str, bytes], root: Path) -> None:
    found = subprocess.run(
        ["zstdgrep", "-h", '"secret-3"', *sorted(partition(root).glob("*.zst"))], capture_output=True, check=False
    )
    assert b'"n":3,' in found.stdout


@needs_zstd
def test_frames_are_independent_and_at_most_a_mebibyte(opened: Opener, root: Path) -> None:
    luck = random.Random(1)
    with opened(segment_bytes=8 << 20, compress=True) as station:
        for _ in range(60):
            station.publish_many(CHANNEL, [{"pad": luck.randbytes(30_000).hex()} for _ in range(2)])
        station.engine.writer(CHANNEL, 0).rotate()
        station.trim()
        assert len(list(station.read(CHANNEL))) == 120
        assert next(iter(station.read(CHANNEL, start=77))).offset == 77
    path = next(partition(root).glob("*.zst"))
    listed = subprocess.run(["zstd", "-lv", path], capture_output=True, text=True, check=False)
    table = path.with_name(path.name.replace(".jsonl.zst", ".frames")).read_bytes()
    assert len(table) // 32 > 3
    for at in range(0, len(table), 32):
        length = int.from_bytes(table[at + 8 : at + 16], "little")
        where, stored = (int.from_bytes(table[at + i : at + i + 8], "little") for i in (16, 24))
        assert length <= FRAME_BYTES_MAX
        frame = path.read_bytes()[where : where + stored]
        alone = subprocess.run(["zstd", "-dcq"], input=frame, capture_output=True, check=True).stdout
        assert len(alone) == length
        assert alone.endswith(b"\n"), "a frame ends inside a line"
    assert listed.returncode == 0


def test_reading_is_the_same_as_before(opened: Opener, root: Path) -> None:
    with opened(segment_bytes=8192) as station:
        receipts = fill(station)
        before = [(message.offset, message.raw) for message in station.read(CHANNEL)]
        station.alter_channel(CHANNEL, compress=True)
        station.trim()
        assert list(partition(root).glob("*.zst"))
        assert [(message.offset, message.raw) for message in station.read(CHANNEL)] == before
        for start in range(0, COUNT, 13):
            assert [message.offset for message in station.read(CHANNEL, start=start)] == list(range(start, COUNT))
        for receipt in receipts[::17]:
            found = station.get(receipt.id)
            assert found is not None
            assert found.offset == receipt.offset
    checked_log(root, CHANNEL)


def test_a_reader_in_the_middle_does_not_notice(opened: Opener) -> None:
    with opened(segment_bytes=8192) as station:
        fill(station)
        readers = [station.read(CHANNEL, start=start) for start in (0, 5, 50, 150)]
        got = [[next(reader).offset] for reader in readers]
        station.alter_channel(CHANNEL, compress=True)
        station.trim()
        for reader, offsets in zip(readers, got, strict=True):
            offsets += [message.offset for message in reader]
            assert offsets == list(range(offsets[0], COUNT))


def test_a_redacted_message_is_gone_from_a_compressed_segment_and_its_neighbours_are_not(
    opened: Opener, root: Path, compressed: dict[str, bytes]
) -> None:
    with opened() as station:
        for number in (0, 5, 60):
            message = next(iter(station.read(CHANNEL, start=number)))
            station.redact(message.id, reason="asked for")
            assert station.get(message.id) is None
        got, missing = everything(station)
        assert got == [number for number in range(COUNT) if number not in (0, 5, 60)]
        assert not missing
        assert station.publish(CHANNEL, "next").offset == COUNT
    stored = checked_log(root, CHANNEL, holes=True)
    assert {0, 5, 60} & set(stored) == set()
    everywhere = b"".join(
        subprocess.run(["zstd", "-dcq", path], capture_output=True, check=True).stdout
        if path.suffix == ".zst"
        else path.read_bytes()
        for path in root.rglob("*")
        if path.is_file()
    )
    assert b'"secret-60"' not in everywhere
    assert b'"secret-61"' in everywhere


def test_redacting_while_compression_runs_does_not_bring_the_message_back(opened: Opener, root: Path) -> None:
    import threading

    disk = FaultyDisk()
    with opened(disk=disk, segment_bytes=8192) as station:
        receipts = fill(station)
        station.alter_channel(CHANNEL, compress=True)
        done = threading.Event()
        thread = threading.Thread(target=lambda: station.redact(receipts[3].id), daemon=True)

        def meanwhile(path: str, *_: Any) -> None:
            if ".zst" in path and not done.is_set():
                done.set()
                thread.start()
                thread.join(0.3)  # it may have to wait for the compression; it must not be undone by it

        disk.before["fdatasync"] = meanwhile
        station.trim()
        disk.before.clear()
        assert done.is_set()
        thread.join(30)
        assert station.get(receipts[3].id) is None
        assert 3 not in everything(station)[0]


@pytest.mark.parametrize("kind", ["compress", "redact"])
def test_a_crash_at_any_call_loses_nothing(opened: Opener, root: Path, tmp_path: Path, kind: str) -> None:
    with opened(segment_bytes=8192) as station:
        receipts = fill(station, 60)
        station.alter_channel(CHANNEL, compress=True)
        if kind == "redact":
            station.trim()
    shutil.move(root, tmp_path / "saved")
    for number in range(1, 150):
        shutil.copytree(tmp_path / "saved", root)
        disk = FaultyDisk()
        station = opened(disk=disk)
        disk.kill_at(number)
        with contextlib.suppress(Died):
            station.trim() if kind == "compress" else station.redact(receipts[3].id)
        finished = not disk.fired
        station._upkeep.close()
        station.engine.abandon()
        disk.bury()
        with opened() as again:
            got, missing = everything(again)
            assert not missing, disk.fired
            assert [number for number in got if number != 3] == [number for number in range(60) if number != 3], (
                disk.fired
            )
            if finished and kind == "redact":
                assert 3 not in got
            again.trim()
            assert [number for number in everything(again)[0] if number != 3] == [n for n in range(60) if n != 3]
        checked_log(root, CHANNEL, holes=True)
        shutil.rmtree(root)
        if finished:
            break
    assert finished
    assert number > 10


def test_where_both_files_exist_the_messages_are_there_once(
    opened: Opener, root: Path, compressed: dict[str, bytes]
) -> None:
    """A crash came between renaming the compressed one and removing the plain one."""
    for name, data in compressed.items():
        (partition(root) / name).write_bytes(data)
    with opened() as station:
        assert everything(station) == (list(range(COUNT)), set())
        station.trim()
        assert everything(station) == (list(range(COUNT)), set())
    assert len(list(partition(root).glob("*.jsonl"))) == 1


@pytest.mark.parametrize("damage", ["truncated", "emptied", "garbage"])
def test_a_compressed_file_that_is_not_whole_does_not_win_over_a_plain_one(
    opened: Opener, root: Path, compressed: dict[str, bytes], damage: str
) -> None:
    """A restore that was interrupted, for example."""
    for path in partition(root).glob("*.zst"):
        (partition(root) / path.stem).write_bytes(compressed[path.stem])
        spoil(path, damage)
        for derived in (path.name.replace(".jsonl.zst", ".frames"), path.name.replace(".jsonl.zst", ".index")):
            (partition(root) / derived).unlink()
    with opened() as station:
        assert everything(station) == (list(range(COUNT)), set())
        station.trim()
        assert everything(station) == (list(range(COUNT)), set())


def spoil(path: Path, damage: str) -> None:
    size = path.stat().st_size
    if damage == "truncated":
        os.truncate(path, size // 2)
    elif damage == "emptied":
        os.truncate(path, 0)
    elif damage == "garbage":
        path.write_bytes(random.Random(1).randbytes(size))
    else:
        data = bytearray(path.read_bytes())
        data[size // 2] ^= 0x10
        path.write_bytes(data)


@pytest.mark.parametrize("frames", ["kept", "lost", "damaged"])
@pytest.mark.parametrize("damage", ["truncated", "emptied", "garbage", "flipped"])
def test_damage_to_a_compressed_segment_costs_that_segment_at_most_and_is_told(
    opened: Opener, root: Path, compressed: dict[str, bytes], damage: str, frames: str
) -> None:
    path = sorted(partition(root).glob("*.zst"))[1]
    lost = range(int(path.name[:20]), int(path.name[:20]) + compressed[path.stem].count(b"\n"))
    spoil(path, damage)
    table = path.with_name(path.name.replace(".jsonl.zst", ".frames"))
    if frames == "lost":
        table.unlink()
    elif frames == "damaged":
        table.write_bytes(random.Random(2).randbytes(table.stat().st_size))
    with opened() as station:
        got, missing = everything(station)
        assert missing <= set(lost)
        assert sorted(missing | set(got)) == list(range(COUNT))
        assert not missing & set(got)
        assert len(missing) > 0


@pytest.mark.parametrize("seed", range(12))
def test_a_damaged_table_of_frames_costs_nothing(
    opened: Opener, root: Path, compressed: dict[str, bytes], seed: int
) -> None:
    luck = random.Random(seed)
    for table in partition(root).glob("*.frames"):
        data = bytearray(table.read_bytes())
        data[luck.randrange(len(data))] ^= 1 << luck.randrange(8)
        table.write_bytes(data)
    with opened() as station:
        assert everything(station) == (list(range(COUNT)), set())


def test_a_disk_that_gives_back_something_else_keeps_the_plain_segment(opened: Opener, root: Path) -> None:
    class Liar(FaultyDisk):
        lying = False

        def pread(self, fd: int, length: int, position: int) -> bytes:  # type: ignore[override]
            data: bytes = super().pread(fd, length, position)  # type: ignore[misc]
            return data[:-1] + b"\0" if self.lying and ".zst.tmp" in self._path_of((fd,)) else data

    disk = Liar()
    with opened(disk=disk, segment_bytes=8192, compress=True) as station:
        fill(station)
        disk.lying = True
        with pytest.raises(hg.HeliographError):
            station.trim()
        disk.lying = False
        assert not list(partition(root).glob("*.zst*"))
        assert everything(station) == (list(range(COUNT)), set())
        station.trim()
        assert list(partition(root).glob("*.zst"))
