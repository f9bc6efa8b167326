"""Who reads finds the segment of an offset without listing a long partition each time, and misses no change of it."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from heliograph.disk import Disk
from heliograph.limits import LISTING_MIN, LISTINGS_MAX
from heliograph.log import directory, segments
from heliograph.station import open_station
from tests.faults import QuickDisk


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
    monkeypatch.setattr(segments, "_settled", lambda *_: True)


def made(folder: Path, count: int = 2 * LISTING_MIN) -> Path:
    folder.mkdir()
    for base in range(0, count * 10, 10):
        segments.path_of(folder, base).touch()
    return folder


def wait_for_another_time_of_change(path: Path) -> None:
    """The clock of the file system may be coarse."""
    now = os.stat(path).st_ctime_ns
    while True:
        with tempfile.NamedTemporaryFile() as probe:
            if os.stat(probe.name).st_ctime_ns > now:
                return
        time.sleep(0.001)


@pytest.mark.usefixtures("settled")
def test_a_long_partition_that_does_not_change_is_listed_once(tmp_path: Path, disk: CountingDisk) -> None:
    folder = made(tmp_path / "0")
    assert [segments.holding(folder, offset, disk) for offset in (0, 9, 10, 199, 200, 10**9)] == [
        *(0, 0, 10, 190, 200, 390)
    ]
    assert segments.bases_known(folder, disk) == segments.bases(folder, Disk())
    assert disk.listed == 1


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (lambda folder: segments.path_of(folder, 195).touch(), 195),
        (lambda folder: segments.path_of(folder, 190).unlink(), 180),
        (lambda folder: segments.path_of(folder, 190).rename(segments.path_of(folder, 191)), 191),
    ],
    ids=["begun", "deleted", "renamed"],
)
@pytest.mark.usefixtures("settled")
def test_a_segment_that_is_begun_deleted_or_renamed_is_seen(
    tmp_path: Path, disk: CountingDisk, change: Callable[[Path], None], found: int
) -> None:
    folder = made(tmp_path / "0")
    assert segments.holding(folder, 199, disk) == 190
    wait_for_another_time_of_change(folder)
    change(folder)
    assert segments.holding(folder, 199, disk) == found


@pytest.mark.usefixtures("settled")
def test_another_directory_of_the_same_name_is_another(tmp_path: Path, disk: CountingDisk) -> None:
    folder = made(tmp_path / "0")
    assert segments.holding(folder, 399, disk) == 390
    folder.rename(tmp_path / "old")
    made(folder, LISTING_MIN)
    assert segments.holding(folder, 399, disk) == (LISTING_MIN - 1) * 10


def test_what_changed_a_moment_ago_may_change_again_at_the_same_time(tmp_path: Path, disk: CountingDisk) -> None:
    folder = made(tmp_path / "0")
    for count in (1, 2, 3):
        assert segments.holding(folder, 199, disk) == 190
        assert disk.listed == count


@pytest.mark.parametrize(
    ("changed_s", "settled_s"),
    [(1000, 3), (1000.25, 3), (1000.251, 3), (1000.2510001, 0.1)],
    ids=["seconds", "quarters", "milliseconds", "fine"],
)
def test_where_the_clock_of_the_file_system_may_be_coarse_it_takes_longer(changed_s: float, settled_s: float) -> None:
    changed_ns, settled_ns = round(changed_s * 1e9), round(settled_s * 1e9)
    assert not segments._settled(changed_ns, changed_ns + settled_ns - 1_000_000)
    assert segments._settled(changed_ns, changed_ns + settled_ns + 1_000_000)


def test_a_partition_that_changed_is_not_listed_for_long(tmp_path: Path, disk: CountingDisk) -> None:
    folder = made(tmp_path / "0")
    until = time.monotonic() + 10
    while folder not in segments._listings:
        assert time.monotonic() < until
        segments.bases_known(folder, disk)
        time.sleep(0.02)
    listed = disk.listed
    segments.bases_known(folder, disk)
    assert disk.listed == listed


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
    with open_station(tmp_path, name="host1", disk=QuickDisk(), segment_bytes=4096, retention_bytes=120_000) as station:
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


# -- opening -------------------------------------------------------------------------------------------------


class PartitionDisk(QuickDisk):
    """Counts how often the directory of a partition is listed."""

    def __init__(self) -> None:
        super().__init__()
        self.listed = 0

    def listdir(self, path: str | Path) -> list[str]:  # type: ignore[override]
        self.listed += Path(path).name == "0"
        return os.listdir(path)


@pytest.fixture
def look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """Opens a station with three messages, sees that they are there, and says how often the partition was listed."""
    monkeypatch.setattr(directory, "LISTING_SETTLED_S", -1.0)
    with open_station(tmp_path, name="host1", disk=QuickDisk()) as station:
        for number in range(3):
            station.publish("alerts", number)

    def opened() -> int:
        disk = PartitionDisk()
        with open_station(tmp_path, disk=disk) as station:
            found = disk.listed
            assert [message.data for message in station.read("alerts")] == [0, 1, 2]
        return found

    return opened


def test_a_partition_in_which_no_file_came_or_went_is_not_listed_at_opening(look: Callable[[], int]) -> None:
    assert [look(), look(), look()] == [1, 0, 0]


def test_what_a_dying_process_left_is_removed_though_the_partition_was_looked_through(
    tmp_path: Path, look: Callable[[], int]
) -> None:
    look()
    partition = tmp_path / "channels" / "alerts" / "0"
    wait_for_another_time_of_change(partition)
    left = partition / "head.tmp-1-1"
    left.touch()
    assert look() == 1
    assert not left.exists()
    assert [look(), look()] == [1, 0]


def test_a_segment_that_came_or_went_is_seen_at_opening(tmp_path: Path, look: Callable[[], int]) -> None:
    look()
    partition = tmp_path / "channels" / "alerts" / "0"
    wait_for_another_time_of_change(partition)
    segments.path_of(partition, 3).touch()  # a rotation that died before the head knew
    assert look() > 0
    with open_station(tmp_path, disk=QuickDisk()) as station:
        assert station.publish("alerts", 3).offset == 3
        assert [message.data for message in station.read("alerts")] == [0, 1, 2, 3]


def test_a_log_that_ends_elsewhere_than_its_head_says_is_repaired_though_no_file_came_or_went(
    tmp_path: Path, look: Callable[[], int]
) -> None:
    look()
    assert look() == 0
    with segments.path_of(tmp_path / "channels" / "alerts" / "0", 0).open("ab") as file:
        file.write(b'{"half a li')
    assert look() > 0


def test_a_partition_that_changed_a_moment_ago_is_listed_again(
    look: Callable[[], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(directory, "LISTING_SETTLED_S", 3600.0)
    assert [look(), look()] == [1, 1]
