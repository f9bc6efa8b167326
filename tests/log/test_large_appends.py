"""Appends of megabytes: written some at a time, so that the disk begins early, and still there whole or not at all."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

import heliograph as hg
from heliograph.admin.verify import verify
from heliograph.log import roomy
from heliograph.log.packed import Packed
from heliograph.station import Station
from tests.faults import Died, FaultyDisk
from tests.opening import Opener

SOME = 10_000
"""So much is written at once here."""
HEAD = b'{"specversion":"1.0","id":"a","source":"s","type":"t","time":"2026-11-15T20:30:01Z","channel":"out"'

TIMES_US = (1_794_774_601_000_000, 1_794_774_601_000_000)


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roomy, "WRITE_AT_ONCE_BYTES", SOME)


class Watched(FaultyDisk):
    """Notes what was asked of the log's own file."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[tuple[str, int, int]] = []
        self.after["pwrite"] = lambda path, fd, data, at: self._note(path, "written", at, len(data))
        self.after["fdatasync"] = lambda path, fd: self._note(path, "synced", 0, 0)

    def _note(self, path: str, what: str, at: int, length: int) -> None:
        if path.endswith(".jsonl"):
            self.asked.append((what, at, length))

    def start_sync(self, fd: int, position: int, length: int) -> None:  # type: ignore[override]
        self._note(self._paths[fd], "begun", position, length)

    def uncache(self, fd: int, length: int, position: int) -> None:
        self._note(self._paths[fd], "passed", position, length)


def publish(station: Station, *texts: str) -> None:
    station.publish_many("out", [*texts])


def found(station: Station) -> list[str]:
    return [message.data for message in station.read("out")]


def test_the_disk_begins_with_the_first_while_the_others_are_written(opened: Opener) -> None:
    disk = Watched()
    station = opened(disk=disk)
    publish(station, "small")
    disk.asked.clear()
    large = [f"{n:05}" * 100 for n in range(400)]
    publish(station, *large)
    *pieces, last = disk.asked
    assert last[0] == "synced"
    assert len(pieces) > 10
    at = pieces[0][1]
    for written, begun in zip(pieces[::2], pieces[1::2], strict=True):
        assert written == ("written", at, begun[2])
        assert begun[:2] == ("begun", at)
        assert 0 < begun[2] <= SOME
        at += begun[2]
    assert found(station) == ["small", *large]
    assert verify(station).ok


@pytest.mark.parametrize("at", [1, 2, 5])
@pytest.mark.parametrize("short", [None, 100])
def test_a_disk_that_is_full_in_the_middle_takes_nothing(opened: Opener, at: int, short: int | None) -> None:
    disk = Watched()
    station = opened(disk=disk)
    publish(station, "before")
    if short is not None:
        disk.fail("pwrite", path=".jsonl", at=at, short=short)
        at += 1
    disk.fail("pwrite", errno.ENOSPC, path=".jsonl", at=at)
    with pytest.raises(hg.DiskFull):
        publish(station, *["x" * 1000] * 80)
    assert found(station) == ["before"]
    publish(station, *["y" * 1000] * 80)
    assert found(station) == ["before", *["y" * 1000] * 80]
    assert verify(station).ok


@pytest.mark.parametrize("calls", range(1, 12))
def test_who_dies_in_the_middle_leaves_all_of_it_or_nothing(root: Path, opened: Opener, calls: int) -> None:
    disk = FaultyDisk()
    station = opened(disk=disk)
    publish(station, "before")
    disk.kill_at(calls, kinds=("pwrite", "fdatasync"))
    large = [f"{n:05}" * 100 for n in range(150)]
    with pytest.raises(Died):
        publish(station, *large)
    disk.bury()
    again = opened(root)
    publish(again, "after")
    assert found(again) in (["before", "after"], ["before", *large, "after"])
    assert verify(again).ok


@pytest.mark.parametrize("passing", [True, False])
def test_what_only_passes_is_not_kept_in_memory_once_it_is_synced(opened: Opener, passing: bool) -> None:
    disk = Watched()
    station = opened(disk=disk)
    with station.producer("p") as producer:
        for number in (1, 201):
            disk.asked.clear()
            bodies = Packed.of([HEAD + b',"data":"%b"' % (b"x" * 1000)] * 200)
            producer.publish_encoded("out", 0, bodies, seq=number, times_us=TIMES_US, passing=passing)
            written = [one for one in disk.asked if one[0] == "written"]
            passed = ("passed", written[0][1], sum(length for _, _, length in written))
            assert disk.asked[-2:] == [("synced", 0, 0), passed] if passing else disk.asked[-1][0] == "synced"
    assert found(station) == ["x" * 1000] * 400


@pytest.mark.parametrize("durability", ["always", "interval", "os"])
@pytest.mark.parametrize("size", [1, 100])
def test_lines_that_are_finished_together_are_stored_whichever_way(opened: Opener, durability: str, size: int) -> None:
    station = opened(durability=durability)
    with station.producer("p") as producer:
        for number in (1, 1_001, 2_001):  # in the last two all numbers are of one length: what Arrow made is written
            bodies = Packed.of([HEAD + b',"data":"%b"' % (b"x" * size)] * 1_000)
            producer.publish_encoded("out", 0, bodies, seq=number, times_us=TIMES_US)
    assert found(station) == ["x" * size] * 3_000
    assert verify(station).ok


def test_of_a_segment_that_ended_meanwhile_nothing_is_forgotten(opened: Opener) -> None:
    disk = Watched()
    station = opened(disk=disk)
    station.create_channel("out", segment_bytes=50_000)
    with station.producer("p") as producer:
        for number, count in ((1, 40), (41, 30), (71, 20)):
            bodies = Packed.of([HEAD + b',"data":"%b"' % (b"x" * 1000)] * count)
            producer.publish_encoded("out", 0, bodies, seq=number, times_us=TIMES_US, passing=True)
    assert all(position >= 0 and length > 0 for what, position, length in disk.asked if what == "passed")
    assert found(station) == ["x" * 1000] * 90
    assert verify(station).ok
