"""Somebody deletes what a station has open, with `rm -rf`: no publisher is told that its message is stored."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import heliograph as hg
from heliograph.log import segments
from heliograph.log.held import ChannelGone
from heliograph.log.partition import Partition
from heliograph.station import Station, open_station
from tests.faults import FaultyDisk
from tests.opening import Opener

CHANNEL = "alerts"
DURABILITIES = pytest.mark.parametrize("durability", ["always", "interval", "os"])


def log(station: Station) -> Partition:
    return station.engine.writer(CHANNEL, 0)


def begin(station: Station) -> None:
    """Publish so often that all is known and opened, and the lock is kept."""
    for _ in range(100):
        station.publish(CHANNEL, "before")


def publish_until(wanted: Callable[[], bool], station: Station, seconds: float = 10.0) -> None:
    """Publish without a pause, as whoever keeps the append lock does."""
    until = time.monotonic() + seconds
    while not wanted():
        assert time.monotonic() < until, "nobody noticed"
        station.publish(CHANNEL, "busy")


@DURABILITIES
def test_whoever_publishes_now_and_then_hears_at_once_that_the_directory_is_gone(
    opened: Opener, root: Path, durability: str
) -> None:
    station = opened(durability=durability, sync_interval_ms=60_000)
    begin(station)
    time.sleep(0.2)  # the lock is given back
    shutil.rmtree(root)
    for _ in range(2):
        with pytest.raises(hg.StorageError, match="was moved or deleted") as caught:
            station.publish(CHANNEL, 2)
        assert str(root) in str(caught.value) and "\n" not in str(caught.value)
    assert not root.exists()


@DURABILITIES
@pytest.mark.parametrize("sync_interval_ms", [20, 60_000])
def test_whoever_publishes_all_the_time_hears_soon_that_the_directory_is_gone(
    opened: Opener, root: Path, durability: str, sync_interval_ms: int
) -> None:
    station = opened(  # never a new segment, which would find no directory
        durability=durability, sync_interval_ms=sync_interval_ms, segment_bytes=1 << 40
    )
    begin(station)
    shutil.rmtree(root)
    with pytest.raises(hg.StorageError, match="was moved or deleted"):
        publish_until(lambda: False, station, 5.0)
    assert not root.exists()


@DURABILITIES
def test_batches_and_coroutines_hear_it_too(opened: Opener, root: Path, durability: str) -> None:
    station = opened(durability=durability, sync_interval_ms=60_000)
    begin(station)
    station.publish_many(CHANNEL, [1, 2])
    asynchronous = asyncio.run(_publish_before_and_after(root, durability))
    assert isinstance(asynchronous, hg.StorageError) and "was moved or deleted" in str(asynchronous)
    with pytest.raises(hg.StorageError, match="was moved or deleted"):
        station.publish_many(CHANNEL, [3, 4])


async def _publish_before_and_after(root: Path, durability: str) -> BaseException | None:
    async with hg.open_async(root, durability=durability, sync_interval_ms=60_000) as station:
        for _ in range(3):
            await station.publish(CHANNEL, 1)
        await asyncio.sleep(0.2)  # as above
        shutil.rmtree(root)
        try:
            await station.publish(CHANNEL, 2)
        except hg.HeliographError as error:
            return error
    return None


@DURABILITIES
def test_a_channel_that_was_deleted_by_hand_is_made_anew_with_what_is_published_then(
    opened: Opener, root: Path, durability: str
) -> None:
    station = opened(durability=durability, sync_interval_ms=60_000)
    begin(station)
    shutil.rmtree(root / "channels" / CHANNEL)
    publish_until((root / "channels" / CHANNEL / "channel.json").exists, station)
    receipt = station.publish(CHANNEL, "stored")
    assert [message.data for message in station.read(CHANNEL)][receipt.offset] == "stored"
    if durability == "always":
        assert receipt.offset == 1  # after the one that the channel was made for


def test_where_channels_are_not_made_by_publishing_it_is_said_that_the_whole_directory_is_gone(
    opened: Opener, root: Path
) -> None:
    station = opened(auto_create=False)
    station.create_channel(CHANNEL)
    station.publish(CHANNEL, 1)
    shutil.rmtree(root / "channels" / CHANNEL)
    with pytest.raises(hg.NotFound, match="no channel 'alerts'"):
        station.publish(CHANNEL, 2)
    shutil.rmtree(root)
    with pytest.raises(hg.StorageError, match="was moved or deleted"):
        station.publish(CHANNEL, 2)


@DURABILITIES
def test_nothing_is_published_into_a_station_that_was_made_anew_at_the_same_path(
    opened: Opener, root: Path, durability: str
) -> None:
    station = opened(durability=durability, sync_interval_ms=60_000)
    begin(station)
    time.sleep(0.2)
    shutil.rmtree(root)
    with open_station(root, name="another") as another:
        another.publish(CHANNEL, "its own")
        with pytest.raises(hg.StorageError, match="was moved or deleted"):
            station.publish(CHANNEL, 2)
        with pytest.raises(hg.StorageError, match="was moved or deleted"):
            station.publish("orders", 2)
        assert [message.data for message in another.read(CHANNEL)] == ["its own"]


@DURABILITIES
def test_a_segment_that_was_deleted_by_hand_is_an_error(opened: Opener, root: Path, durability: str) -> None:
    station = opened(durability=durability, sync_interval_ms=60_000)
    begin(station)
    time.sleep(0.2)
    segments.path_of(root / "channels" / CHANNEL / "0", 0).unlink()
    for _ in range(2):
        with pytest.raises(hg.StorageError, match="No such file"):
            station.publish(CHANNEL, 2)


@pytest.mark.parametrize("end", ["sync", "close"])
@pytest.mark.parametrize("durability", ["interval", "os"])
def test_whoever_wants_it_on_disk_hears_that_the_directory_is_gone(root: Path, durability: str, end: str) -> None:
    station = open_station(root, name="host1", durability=durability, sync_interval_ms=60_000)
    begin(station)
    shutil.rmtree(root)
    with pytest.raises(hg.StorageError, match="was moved or deleted"):
        getattr(station, end)()
    station.close()  # nothing is left to say


@pytest.mark.parametrize("durability", ["interval", "os"])
def test_a_channel_that_is_deleted_is_no_error_for_whoever_published_before(
    opened: Opener, root: Path, durability: str
) -> None:
    station = opened(durability=durability, sync_interval_ms=60_000)
    begin(station)
    with open_station(root) as other:
        other.delete_channel(CHANNEL)
    station.sync()
    station.publish("orders", 1)
    shutil.rmtree(root / "channels" / "orders")
    station.sync()


def test_a_segment_that_others_sealed_and_removed_during_the_sync_is_no_error(root: Path) -> None:
    disk = FaultyDisk()
    with open_station(root, name="host1", disk=disk) as station, open_station(root) as other:
        station.publish(CHANNEL, 1)
        folder = root / "channels" / CHANNEL / "0"

        def seal(path: str, *_: object) -> None:
            if path.endswith(".jsonl"):
                disk.after.clear()
                log(other).rotate()
                segments.remove(folder, 0, disk)  # too old, or compressed

        disk.after["fdatasync"] = seal
        log(station)._lock.shared_until = float("inf")  # as if both published
        assert station.publish(CHANNEL, 2).offset == 1
        assert not segments.path_of(folder, 0).exists()
        assert station.publish(CHANNEL, 3).offset == 2


def test_a_durable_publish_does_not_ask_for_the_times_of_its_segment(opened: Opener) -> None:
    """The next sync would take two fifths longer."""
    disk, asked = FaultyDisk(), []
    station = opened(disk=disk)
    begin(station)
    disk.before["fstat"] = disk.before["stat"] = lambda *arguments: asked.append(arguments)
    for number in range(3):
        station.publish(CHANNEL, number)
        station.publish_many(CHANNEL, [number, number])
    assert not asked


def test_a_look_at_the_lock_that_fails_ends_no_thread(opened: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = FaultyDisk()
    station = opened(durability="os", disk=disk)
    begin(station)

    def fail(*_: object) -> None:
        raise OSError(5, "Input/output error")

    partition = log(station)
    monkeypatch.setattr(disk, "linked", fail)
    partition.release_if_idle(-1)
    assert not partition._lock.held
    monkeypatch.undo()
    station.publish(CHANNEL, 1)


def test_a_log_that_is_synced_when_its_directory_is_gone_says_so(opened: Opener, root: Path) -> None:
    station = opened(durability="interval", sync_interval_ms=60_000)
    begin(station)
    partition = log(station)
    shutil.rmtree(root)
    with pytest.raises(ChannelGone):
        partition.sync()
    assert not partition.dirty  # nobody tries again and again
