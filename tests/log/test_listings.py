"""Who reads finds the segment of an offset without listing a long partition each time, and misses no change of it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import heliograph as hg
from heliograph.disk import Disk
from heliograph.limits import LISTING_MIN, LISTINGS_MAX
from heliograph.log import segments


class CountingDisk(Disk):
    def __init__(self) -> None:
        self.listed = 0

    def listdir(self, path: str | Path) -> list[str]:  # type: ignore[override]
        self.listed += 1
        return os.listdir(path)


@pytest.fixture
def disk() -> CountingDisk:
    return CountingDisk()


@pytest.fixture
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if whatever changed had done so long ago."""
    monkeypatch.setattr(segments, "LISTING_SETTLED_S", -1.0)


def made(directory: Path, count: int = 2 * LISTING_MIN) -> Path:
    directory.mkdir()
    for base in range(0, count * 10, 10):
        segments.path_of(directory, base).touch()
    return directory


def wait_for_another_time_of_change(path: Path) -> None:
    """The clock of the file system may be coarse."""
    now, probe = os.stat(path).st_ctime_ns, path.with_name(".new-probe")
    while True:
        probe.touch()
        if os.stat(probe).st_ctime_ns > now:
            return
        time.sleep(0.001)


@pytest.mark.usefixtures("settled")
def test_a_long_partition_that_does_not_change_is_listed_once(tmp_path: Path, disk: CountingDisk) -> None:
    directory = made(tmp_path / "0")
    assert [segments.holding(directory, offset, disk) for offset in (0, 9, 10, 199, 200, 10**9)] == [
        *(0, 0, 10, 190, 200, 390)
    ]
    assert segments.bases_known(directory, disk) == segments.bases(directory, Disk())
    assert disk.listed == 1


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (lambda directory: segments.path_of(directory, 195).touch(), 195),
        (lambda directory: segments.path_of(directory, 190).unlink(), 180),
        (lambda directory: segments.path_of(directory, 190).rename(segments.path_of(directory, 191)), 191),
    ],
    ids=["begun", "deleted", "renamed"],
)
@pytest.mark.usefixtures("settled")
def test_a_segment_that_is_begun_deleted_or_renamed_is_seen(
    tmp_path: Path, disk: CountingDisk, change: Callable[[Path], None], found: int
) -> None:
    directory = made(tmp_path / "0")
    assert segments.holding(directory, 199, disk) == 190
    wait_for_another_time_of_change(directory)
    change(directory)
    assert segments.holding(directory, 199, disk) == found


@pytest.mark.usefixtures("settled")
def test_another_directory_of_the_same_name_is_another(tmp_path: Path, disk: CountingDisk) -> None:
    directory = made(tmp_path / "0")
    assert segments.holding(directory, 399, disk) == 390
    directory.rename(tmp_path / "old")
    made(directory, LISTING_MIN)
    assert segments.holding(directory, 399, disk) == (LISTING_MIN - 1) * 10


def test_what_changed_a_moment_ago_may_change_again_at_the_same_time(tmp_path: Path, disk: CountingDisk) -> None:
    directory = made(tmp_path / "0")
    for count in (1, 2, 3):
        assert segments.holding(directory, 199, disk) == 190
        assert disk.listed == count


@pytest.mark.usefixtures("settled")
def test_the_number_of_partitions_that_are_remembered_has_a_bound(tmp_path: Path, disk: CountingDisk) -> None:
    for number in range(LISTINGS_MAX + 5):
        segments.bases_known(made(tmp_path / str(number), LISTING_MIN), disk)
        assert len(segments._listings) <= LISTINGS_MAX
    few = made(tmp_path / "few", LISTING_MIN - 1)
    segments.bases_known(few, disk)
    assert few not in segments._listings


@pytest.mark.usefixtures("settled")
def test_readers_find_their_place_while_segments_come_and_go(tmp_path: Path) -> None:
    with hg.open(tmp_path, name="host1", segment_bytes=4096, retention_bytes=120_000) as station:
        for number in range(1200):
            station.publish("alerts", number)
            if number % 100 == 99:
                station.trim()
                first, following = station.channel("alerts").first, station.channel("alerts").next
                for offset in range(first, following, 37):
                    assert next(station.read("alerts", start=offset)).data == offset
                wait_for_another_time_of_change(tmp_path / "channels" / "alerts" / "0")
        assert first > 0
        assert tmp_path / "channels" / "alerts" / "0" in segments._listings
