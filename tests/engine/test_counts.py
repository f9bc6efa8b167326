"""Channels with several partitions: made, grown, counted, deleted, by several processes at once."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import heliograph as hg
from heliograph.disk import Disk
from heliograph.engine import counts
from heliograph.limits import PARTITIONS_MAX
from heliograph.log import channel as channels
from heliograph.station import Station
from heliograph.station.station import open_station
from tests.proof.tools import eventually
from tests.spread import put

CHANNEL = "readings"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def station(root: Path) -> Any:
    with hg.open(root, name="host1") as station:
        yield station


def directories(root: Path) -> list[int]:
    return sorted(int(entry.name) for entry in (root / "channels" / CHANNEL).iterdir() if entry.name.isdigit())


def test_a_channel_gets_as_many_partitions_as_asked_for(station: Station, root: Path) -> None:
    info = station.create_channel(CHANNEL, partitions=3)
    assert info.partitions == 3
    assert directories(root) == [0, 1, 2]
    assert station.engine.partition_count(CHANNEL) == 3


@pytest.mark.parametrize("count", [0, -1, PARTITIONS_MAX + 1, 10_000, True, 2.0, "4"])
def test_a_number_of_partitions_that_cannot_be_is_refused(station: Station, count: Any) -> None:
    with pytest.raises(hg.ConfigError, match="1 to 1024"):
        station.create_channel(CHANNEL, partitions=count)
    assert station.channels() == []
    station.create_channel(CHANNEL)
    with pytest.raises(hg.ConfigError, match="1 to 1024"):
        station.alter_channel(CHANNEL, partitions=count)
    assert station.channel(CHANNEL).partitions == 1


def test_a_channel_grows_and_keeps_what_it_has(station: Station, root: Path) -> None:
    station.create_channel(CHANNEL, partitions=2)
    put(station, CHANNEL, 1, "before")
    assert station.alter_channel(CHANNEL, partitions=4).partitions == 4
    assert directories(root) == [0, 1, 2, 3]
    put(station, CHANNEL, 3, "after")
    assert {(message.partition, message.data) for message in station.read(CHANNEL)} == {(1, "before"), (3, "after")}


def test_a_channel_does_not_shrink(station: Station) -> None:
    station.create_channel(CHANNEL, partitions=3)
    with pytest.raises(hg.ConfigError, match="cannot shrink to 2"):
        station.alter_channel(CHANNEL, partitions=2)
    assert station.channel(CHANNEL).partitions == 3


def test_growing_and_settings_change_together_or_not_at_all(station: Station) -> None:
    station.create_channel(CHANNEL, partitions=3)
    with pytest.raises(hg.ConfigError):
        station.alter_channel(CHANNEL, partitions=1, compress=True)
    assert station.channel(CHANNEL).settings.compress is None
    info = station.alter_channel(CHANNEL, partitions=5, compress=True)
    assert (info.partitions, info.settings.compress) == (5, True)


def test_dead_letters_stay_in_one_partition(root: Path) -> None:
    with hg.open(root, name="host1", partitions=4) as station:
        station.engine.create(CHANNEL + ".dead-letter")
        assert station.channel(CHANNEL + ".dead-letter").partitions == 1
        with pytest.raises(hg.ConfigError, match="dead letters"):
            station.alter_channel(CHANNEL + ".dead-letter", partitions=2)


def test_the_setting_says_how_many_a_channel_gets_that_is_made_by_using_it(root: Path) -> None:
    with hg.open(root, name="host1", partitions=4) as station:
        assert station.engine.partition_count_or_new(CHANNEL) == 4
        assert station.create_channel("own", partitions=2).partitions == 2
        assert station.create_channel("default").partitions == 4


def test_the_count_of_a_channel_that_is_not_there(station: Station) -> None:
    with pytest.raises(hg.NotFound):
        station.engine.partition_count(CHANNEL)


def test_an_unknown_partition_is_not_found(station: Station) -> None:
    station.create_channel(CHANNEL, partitions=2)
    for wrong in (2, -1, "1", True):
        with pytest.raises(hg.NotFound, match="0 to 1"):
            station.engine.check_partition(CHANNEL, wrong)  # type: ignore[arg-type]
    with pytest.raises(hg.NotFound, match="no partition 7"):
        put(station, CHANNEL, 7, "nowhere")


# -- the count is cheap, and fresh ---------------------------------------------------------------------------------


def test_counting_again_reads_nothing(station: Station, monkeypatch: pytest.MonkeyPatch) -> None:
    station.create_channel(CHANNEL, partitions=2)
    put(station, CHANNEL, 0, 1)
    monkeypatch.setattr(counts, "WAIT_SLICE_S", 3600.0)
    station.engine.partition_count(CHANNEL)
    monkeypatch.setattr(station.engine.disk, "read_file", None)
    assert [station.engine.partition_count(CHANNEL) for _ in range(3)] == [2, 2, 2]


def test_another_process_is_told_of_the_growth_by_the_generation(
    root: Path, station: Station, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counts, "WAIT_SLICE_S", 3600.0)
    station.create_channel(CHANNEL, partitions=2)
    with hg.open(root) as other:
        put(other, CHANNEL, 0, 1)
        assert other.engine.partition_count(CHANNEL) == 2
        station.alter_channel(CHANNEL, partitions=4)
        assert other.engine.partition_count(CHANNEL) == 4


def test_who_has_not_opened_the_channel_looks_again_after_a_second(
    root: Path, station: Station, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counts, "WAIT_SLICE_S", 0.0)
    station.create_channel(CHANNEL, partitions=2)
    with hg.open(root) as other:
        assert other.engine.partition_count(CHANNEL) == 2
        station.alter_channel(CHANNEL, partitions=4)
        assert other.engine.partition_count(CHANNEL) == 4


def test_a_channel_that_is_made_anew_is_counted_anew(
    root: Path, station: Station, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counts, "WAIT_SLICE_S", 3600.0)
    station.create_channel(CHANNEL, partitions=4)
    with hg.open(root) as other:
        put(other, CHANNEL, 0, 1)
        assert other.engine.partition_count(CHANNEL) == 4
        station.delete_channel(CHANNEL)
        station.create_channel(CHANNEL, partitions=2)
        put(other, CHANNEL, 0, 1)
        assert other.engine.partition_count(CHANNEL) == 2


def test_a_partition_that_is_not_there_any_more_makes_the_count_fresh(
    root: Path, station: Station, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counts, "WAIT_SLICE_S", 3600.0)
    station.create_channel(CHANNEL, partitions=4)
    with hg.open(root) as other:
        assert other.engine.partition_count(CHANNEL) == 4
        station.delete_channel(CHANNEL)
        station.create_channel(CHANNEL, partitions=2)
        with pytest.raises(hg.NotFound):
            put(other, CHANNEL, 3, 1)
        assert other.engine.partition_count(CHANNEL) == 2


def test_new_settings_reach_every_partition_that_is_open(root: Path, station: Station) -> None:
    station.create_channel(CHANNEL, partitions=3)
    with hg.open(root) as other:
        for number in range(3):
            put(other, CHANNEL, number, "x" * 1000)
        station.alter_channel(CHANNEL, segment_bytes=4096)
        for number in range(3):
            for _ in range(12):
                put(other, CHANNEL, number, "x" * 1000)
        assert all(part.segments > 1 for part in other.channel(CHANNEL).parts)


# -- crashes and races ---------------------------------------------------------------------------------------------


def test_altering_more_partitions_than_may_be_open(root: Path) -> None:
    """Partition 0 is locked meanwhile, and must not be closed to make room for the others."""
    with hg.open(root, name="host1", open_partitions_max=2) as station:
        station.create_channel(CHANNEL, partitions=8)
        for number in range(8):
            put(station, CHANNEL, number, number)
        station.alter_channel(CHANNEL, partitions=12, compress=True)
        assert sorted(message.data for message in station.read(CHANNEL)) == list(range(8))
        station.delete_channel(CHANNEL)
        assert station.channels() == []


class Crash(Exception):
    pass


class CrashingDisk(Disk):
    """Dies at the n-th rename, directory sync or replacement of a file."""

    def __init__(self) -> None:
        self.left = -1

    def _step(self) -> None:
        self.left -= 1
        if self.left == 0:
            raise Crash

    def rename(self, source: Path, target: Path) -> None:
        self._step()
        super().rename(source, target)

    def sync_directory(self, path: Path) -> None:
        self._step()
        super().sync_directory(path)

    def replace_file(self, path: Path, data: bytes, **options: Any) -> None:
        self._step()
        super().replace_file(path, data, **options)


@pytest.mark.parametrize("step", range(1, 10))
def test_a_crash_while_growing_leaves_the_old_number_or_the_new(root: Path, step: int) -> None:
    disk = CrashingDisk()
    with open_station(root, name="host1", disk=disk) as station:
        station.create_channel(CHANNEL, partitions=2)
        put(station, CHANNEL, 1, "kept")
        disk.left = step
        crashed = False
        try:
            station.alter_channel(CHANNEL, partitions=4)
        except Crash:
            crashed = True
        disk.left = -1
        with hg.open(root) as other:
            count = other.channel(CHANNEL).partitions
            assert count in ((2, 4) if crashed else (4,))
            assert set(range(count)) <= set(directories(root))
    with hg.open(root) as station:
        from heliograph.admin import verify

        assert verify.verify(station).ok
        assert not [entry for entry in os.listdir(root / "channels" / CHANNEL) if entry.startswith(".new")]
        assert station.alter_channel(CHANNEL, partitions=4).partitions == 4
        put(station, CHANNEL, 3, "new")
        assert sorted(message.data for message in station.read(CHANNEL)) == ["kept", "new"]


def _in_processes(target: Callable[..., None], arguments: list[tuple[Any, ...]]) -> list[Any]:
    context = multiprocessing.get_context("spawn")
    results: Any = context.Queue()
    processes = [context.Process(target=target, args=(results, *own)) for own in arguments]
    for process in processes:
        process.start()
    found = [results.get(timeout=60) for _ in processes]
    for process in processes:
        process.join(60)
    return found


def _grow(results: Any, root: Path, count: int) -> None:
    with hg.open(root) as station:
        try:
            results.put(station.alter_channel(CHANNEL, partitions=count).partitions)
        except hg.ConfigError as error:
            results.put(str(error))


def test_two_processes_that_grow_a_channel_at_once_end_well(root: Path, station: Station) -> None:
    station.create_channel(CHANNEL)
    found = _in_processes(_grow, [(root, 5), (root, 3)])
    assert 5 in found
    assert station.channel(CHANNEL).partitions == 5  # whoever came second either grew it further or was refused
    assert directories(root) == [0, 1, 2, 3, 4]


def test_a_new_life_while_the_channel_grows_takes_nothing_back(
    station: Station, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Recovery of any partition may give the channel a new life, without the lock of partition 0."""
    station.create_channel(CHANNEL)
    before = station.engine.incarnation(CHANNEL)
    save, saving, go_on = channels.save, threading.Event(), threading.Event()

    def slow_save(*arguments: Any) -> None:
        if not saving.is_set():
            saving.set()
            assert go_on.wait(30)
        save(*arguments)

    monkeypatch.setattr(channels, "save", slow_save)
    reviver = threading.Thread(target=station.engine.new_incarnation, args=(CHANNEL, "test"))
    reviver.start()
    assert saving.wait(30)
    grower = threading.Thread(target=lambda: station.alter_channel(CHANNEL, partitions=2))
    grower.start()
    grower.join(0.2)  # it waits, or would be overwritten
    go_on.set()
    for thread in (reviver, grower):
        thread.join()
    file = station.engine.describe(CHANNEL)
    assert file.partitions == 2
    assert file.incarnation != before


def test_growing_just_before_it_is_deleted_leaves_no_partition_that_takes_messages(
    root: Path, station: Station, monkeypatch: pytest.MonkeyPatch
) -> None:
    station.create_channel(CHANNEL, partitions=2)
    with hg.open(root, auto_create=False) as other:
        change_all = station.engine._change_all

        def meanwhile(name: str, change: Any) -> None:
            other.alter_channel(CHANNEL, partitions=4)
            put(other, CHANNEL, 3, "deleted with the channel")
            change_all(name, change)

        monkeypatch.setattr(station.engine, "_change_all", meanwhile)
        station.delete_channel(CHANNEL)
        with pytest.raises(hg.NotFound):
            put(other, CHANNEL, 3, "nowhere")


def test_who_still_has_a_deleted_channel_open_alters_the_one_that_is_there(
    root: Path, station: Station, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counts, "WAIT_SLICE_S", 3600.0)
    station.create_channel(CHANNEL)
    with hg.open(root) as other:
        put(other, CHANNEL, 0, "before")
        station.delete_channel(CHANNEL)
        station.create_channel(CHANNEL, partitions=2)
        put(station, CHANNEL, 0, "after")
        assert station.engine.partition_count(CHANNEL) == 2
        other.alter_channel(CHANNEL, partitions=4)
        assert station.engine.partition_count(CHANNEL) == 4, "told by the head that is there, not the old one"


def test_growing_while_it_is_deleted_leaves_no_partition_that_takes_messages(root: Path, station: Station) -> None:
    for _ in range(10):
        station.create_channel(CHANNEL, partitions=2)
        with hg.open(root) as other:
            grower = threading.Thread(target=_quietly(lambda other=other: other.alter_channel(CHANNEL, partitions=6)))
            grower.start()
            station.delete_channel(CHANNEL)
            grower.join()
            assert not channels.names(root, station.engine.disk)


def _quietly(action: Callable[[], object]) -> Callable[[], None]:
    def run() -> None:
        with contextlib.suppress(hg.HeliographError):
            action()

    return run


def test_deleting_tells_every_process_that_has_a_partition_open(root: Path, station: Station) -> None:
    station.create_channel(CHANNEL, partitions=3)
    with hg.open(root, auto_create=False) as other:
        for number in range(3):
            put(other, CHANNEL, number, 1)
        station.delete_channel(CHANNEL)
        for number in range(3):
            with pytest.raises(hg.NotFound):
                put(other, CHANNEL, number, 2)


def test_more_partitions_are_subscribed_than_may_be_open(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Waiting readers keep theirs open, the others are closed and opened again under each other's hands."""
    with hg.open(root, name="host1", open_partitions_max=4) as station:
        station.create_channel(CHANNEL, partitions=24)
        got: list[Any] = []
        with station.subscribe(CHANNEL, got.append):
            for number in range(72):
                put(station, CHANNEL, number % 24, number)
            eventually(lambda: len(got) == 72)
    assert not [record for record in caplog.records if record.levelname in ("WARNING", "ERROR")]


def test_a_channel_that_another_process_deleted_is_not_counted_as_it_was(station: Station, root: Path) -> None:
    """Nor is one that it made anew with fewer partitions: publishing there needs no second try."""
    station.create_channel(CHANNEL, partitions=4)
    for number in range(4):
        put(station, CHANNEL, number, [number])
    assert station.engine.partition_count(CHANNEL) == 4
    with hg.open(root) as other:
        other.delete_channel(CHANNEL)
        with pytest.raises(hg.NotFound):
            station.engine.partition_count(CHANNEL)
        other.create_channel(CHANNEL, partitions=2)
        assert station.engine.partition_count(CHANNEL) == 2
        for _ in range(4):
            station.publish(CHANNEL, "anew", headers={"the": "long way"})
