"""What a peer refused: letters that are written once, and with work that grows as their number does."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import heliograph as hg
from heliograph.admin import dead
from heliograph.clock import Clock
from heliograph.config import Config, Link
from heliograph.disk import Disk
from heliograph.federation import again, peerfile
from heliograph.federation.events import Resumed
from heliograph.federation.originals import Originals
from heliograph.federation.outlet import Outlet
from heliograph.seen import SeenSet
from heliograph.station import links

MESSAGES = 2_000
REFUSED = range(1, MESSAGES, 2)
ACKS = [REFUSED[at : at + 100] for at in range(0, len(REFUSED), 100)]


class CountingDisk(Disk):
    """Counts what is read, and how often something is synced."""

    def __init__(self) -> None:
        self.read_bytes = self.syncs = 0

    def pread(self, fd: int, length: int, position: int) -> bytes:  # type: ignore[override]
        data = os.pread(fd, length, position)
        self.read_bytes += len(data)
        return data

    def fdatasync(self, fd: int) -> None:  # type: ignore[override]
        self.syncs += 1
        os.fdatasync(fd)


@pytest.fixture
def disk() -> CountingDisk:
    return CountingDisk()


@pytest.fixture
def station(tmp_path: Path, disk: CountingDisk) -> Iterator[hg.Station]:
    with hg.open(tmp_path / "host1", name="host1", disk=disk, federate=False) as station:
        station.publish_many("alerts", ["x" * 500] * MESSAGES)
        peerfile.note_address(directory(station), "hub:7740", disk)
        links.note_configured(station.path, Config(links=(Link(hub="hub:7740", publish=("alerts",)),)), disk)
        yield station


def directory(station: hg.Station) -> Path:
    return peerfile.directory_of(station.path, "hub", "hub")


def begun(station: hg.Station) -> Outlet:
    outlet = Outlet(station, directory(station), "hub", "alerts")
    outlet.prepare("first")
    outlet.begin(Resumed(stream=1, channel="alerts", origin="", seen=SeenSet(), ends={}), lambda _: True)
    return outlet


def refuse_all(outlet: Outlet) -> None:
    for offsets in ACKS:
        outlet.refused(0, [(offset, "too large") for offset in offsets])
    outlet.save()


def refused_places(station: hg.Station) -> list[int]:
    return [letter.original_offset for letter in dead.letters(station, "alerts")]


def memory_of(station: hg.Station) -> peerfile.Memory:
    memory = peerfile.load(directory(station), "alerts", station.engine.disk)
    assert memory is not None
    return memory


def stored_bytes(station: hg.Station) -> int:
    return sum(path.stat().st_size for path in station.path.rglob("*.jsonl"))


def test_keeping_and_replaying_many_reads_the_log_a_few_times_and_not_for_each(
    station: hg.Station, disk: CountingDisk
) -> None:
    for _ in range(2):  # what is sent again, and refused again, is the same work
        outlet = begun(station)
        disk.read_bytes = disk.syncs = 0
        refuse_all(outlet)
        outlet.close()
        assert disk.read_bytes < 8 * stored_bytes(station)
        assert disk.syncs <= 4 * len(ACKS), "the letters of an acknowledgement are synced together"
        assert refused_places(station) == list(REFUSED)
        assert memory_of(station).spared.count == len(REFUSED)
        disk.read_bytes = 0
        report = dead.replay(station, "alerts")
        assert (report.replayed, report.removed) == (len(REFUSED), len(REFUSED))
        assert disk.read_bytes < 12 * stored_bytes(station)
        assert again.load(directory(station), "alerts", disk).count == len(REFUSED)
    assert refused_places(station) == []


class Hands(Clock):
    """A clock whose hands the test moves."""

    now_s = 100.0

    def monotonic(self) -> float:  # type: ignore[override]
        return self.now_s


@pytest.mark.parametrize(("saving_s", "saved"), [(0.2, 10), (0.001, 100)])
def test_what_takes_long_to_write_down_is_not_written_for_each(
    tmp_path: Path, saving_s: float, saved: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    hands = Hands()
    with hg.open(tmp_path / "host1", name="host1", federate=False) as station:
        station.publish_many("alerts", range(200))
        monkeypatch.setattr(station.engine, "clock", hands)
        outlet = begun(station)
        save, saves = peerfile.save, []

        def slow(*arguments: Any) -> None:
            saves.append(hands.now_s)
            hands.now_s += saving_s
            save(*arguments)

        monkeypatch.setattr(peerfile, "save", slow)
        for offset in REFUSED[:100]:
            hands.now_s += 0.02
            outlet.refused(0, [(offset, "too large")])
        assert len(saves) in (saved, saved + 1)
        outlet.save()
        assert memory_of(station).spared.count == 100


def test_what_was_not_written_down_is_refused_once_more_and_has_one_letter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with hg.open(tmp_path / "host1", name="host1", federate=False) as station:
        station.create_channel("alerts", partitions=3)
        for number in range(30):
            station.publish("alerts", number, key=str(number))
        places = [(message.partition, message.offset) for message in station.read("alerts")]
        begun(station).save()
        monkeypatch.setattr(peerfile, "save", lambda *_: None)  # whoever sends is killed before that
        for _ in range(2):
            outlet = begun(station)
            for partition in range(3):
                outlet.refused(partition, [(offset, "no") for found, offset in places if found == partition])
        letters = [(letter.partition, letter.original_offset) for letter in dead.letters(station, "alerts")]
        assert sorted(letters) == sorted(places)


def test_lines_are_found_wherever_they_are_asked_for(tmp_path: Path) -> None:
    with hg.open(tmp_path / "host1", name="host1", segment_bytes=1 << 20) as station:
        for _ in range(5):
            station.publish_many("alerts", ["x" * 400] * 1_000)
        station.redact(next(station.read("alerts", start=4_001)).id)
        lines = {message.offset: message.raw for message in station.read("alerts")}
        with Originals(station.engine, "alerts") as originals:
            for offset in [0, 1, 700, 2_500, 2_400, 4_999, 0, 3_300, 4_000, 4_002]:
                assert originals.line(0, offset) == lines[offset]
            assert (originals.line(0, 4_001) or b"").strip() == b""
            assert originals.line(0, 5_000) is None
            station.publish("alerts", "later")
            assert b'"later"' in (originals.line(0, 5_000) or b"")
