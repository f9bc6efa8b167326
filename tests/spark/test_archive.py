"""The archive: every message once, whatever dies when; archive and log as one table."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.dataset as ds
import pytest

import heliograph as hg
from heliograph.disk import SYSTEM_DISK
from heliograph.errors import Busy, ConfigError, Damaged, Incomplete, NotFound
from heliograph.spark.admission import Allowance, admitted
from heliograph.spark.archive import manifest as manifests
from heliograph.spark.archive import steps, writing
from heliograph.spark.archive.manifest import Range
from heliograph.spark.archive.merging import groups, merged
from heliograph.spark.archive.together import WithArchive
from heliograph.spark.archive.writing import KEPT, Writing
from heliograph.spark.directory import Directory
from heliograph.spark.options import Channels
from heliograph.spark.splits import Ask, Stretch
from heliograph.station import archived
from tests import arrivals
from tests.opening import Opener
from tests.spark.archiving import LARGE, TOLD, archive, places, whole, write_here
from tests.spark.reading_back import publish_every_kind, reader, rows

HERE = Path(__file__).parent
DRIVERS = 8
SMALL: dict[str, Any] = {"segment_bytes": 4096}


@pytest.fixture(autouse=True)
def _here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "write", write_here)


def filled(opened: Opener, count: int = 120, partitions: int = 2, **settings: Any) -> hg.Station:
    station = opened(**SMALL, **settings)
    station.create_channel("orders", partitions=partitions)
    for n in range(count):
        station.publish("orders", {"n": n, "text": "x" * 100}, key=f"k{n % 5}")
    return station


def numbers(found: list[dict[str, Any]]) -> list[int]:
    return sorted(msgspec.json.decode(row["data"])["n"] for row in found)


def merge(root: Path, channel: str, file_bytes: int) -> None:
    """As `merging.merge` does it, without a Spark."""
    before = manifests.load(root, channel)
    for group in list(groups(before.files, file_bytes)):
        made = merged(root, channel, group)
        before = msgspec.structs.replace(before, files=[*(f for f in before.files if f not in group), made])
    manifests.save(root, before)
    manifests.settle(root, before)


# -- what is in it ----------------------------------------------------------------------------------------------------


def test_rows_from_the_archive_are_those_of_the_log(opened: Opener, root: Path) -> None:
    with opened() as station:
        count = publish_every_kind(station, "all")
    before = rows(reader(root, "all"))
    assert archive(root).rows == count
    assert whole(root, "all") == before
    schema = "offset BIGINT, region STRING, level INT, key STRING"
    assert whole(root, "all", schema=schema) == rows(reader(root, "all", schema=schema))


def test_each_day_has_a_directory_by_utc(opened: Opener, root: Path) -> None:
    times = [datetime(2026, 11, 1, 23, 59), datetime(2026, 11, 2), datetime(2026, 11, 1), datetime(2026, 11, 2)]
    batch = pa.table({
        "channel": ["a"] * 4, **{field.name: pa.nulls(4, field.type) for field in KEPT},
        "partition": pa.array([0, 0, 0, 1], pa.int32()), "offset": [7, 8, 9, 3],
        "time": pa.array(times, pa.timestamp("us")).cast(pa.timestamp("us", "America/St_Johns")),
        "gap": pa.nulls(4, pa.struct([("next", pa.int64()), ("reason", pa.string())])),
    })  # fmt: skip
    told = [row for one in Writing(str(root), 1 << 30, TOLD)(iter(batch.to_batches())) for row in one.to_pylist()]
    assert sorted((row["partition"], row["date"], row["first"], row["next"], row["rows"]) for row in told) == [
        (0, "2026-11-01", 7, 10, 2), (0, "2026-11-02", 8, 9, 1), (1, "2026-11-02", 3, 4, 1),
    ]  # fmt: skip


def test_a_file_is_finished_when_it_is_large_enough(
    opened: Opener, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writing, "_GROUP_ROWS", 10)
    with filled(opened, 100, partitions=1):
        archive(root, file_bytes=1)
    files = manifests.load(root / "archive", "orders").files
    assert len(files) > 1
    assert sum(file.rows for file in files) == 100
    merge(root / "archive", "orders", 1 << 20)
    assert [file.rows for file in manifests.load(root / "archive", "orders").files] == [100]
    assert numbers(whole(root, "orders")) == list(range(100))


def test_what_is_archived_already_is_not_archived_again(opened: Opener, root: Path) -> None:
    with filled(opened, 50) as station:
        assert archive(root).rows == 50
        assert archive(root).rows == 0
        station.publish("orders", {"n": 50}, key="k1")
        assert archive(root).rows == 1
    assert numbers(whole(root, "orders")) == list(range(51))


def test_a_partition_that_is_added_in_the_middle_of_a_step_is_archived_once(
    opened: Opener, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened() as station:
        station.publish("orders", "first")

        def grown(*given: Any) -> list[Any]:
            station.alter_channel("orders", partitions=3)
            station.publish_many("orders", list(range(9)), key="k1")
            station.publish_many("orders", list(range(9)), key="k2")
            monkeypatch.setattr(steps, "write", write_here)
            return write_here(*given)

        monkeypatch.setattr(steps, "write", grown)
        archive(root)
        archive(root)
        assert len({message.partition for message in station.read("orders")}) > 1
    found = places(whole(root, "orders"))
    assert len(found) == len(set(found)) == 19


@pytest.mark.parametrize("again", [False, True])
def test_a_channel_that_is_deleted_in_the_middle_of_a_step_keeps_no_other_from_the_archive(
    opened: Opener, root: Path, monkeypatch: pytest.MonkeyPatch, again: bool
) -> None:
    """A run that goes on until it is stopped, of all channels, sees channels come and go."""
    with filled(opened, 20, partitions=1) as station:
        for name in ("brief", "later"):
            station.publish(name, {"n": 1})
        real, looked = steps.write, Directory.look

        def unlucky(*arguments: Any) -> list[Any]:
            if "brief" in arguments[1]["channel"].split(","):
                station.delete_channel("brief")
                if again:
                    station.publish("brief", {"n": 2})
            return real(*arguments)

        monkeypatch.setattr(steps, "write", unlucky)

        def late(directory: Directory, channels: Channels) -> list[str]:
            return looked(directory, channels) + ["gone"] * bool(channels.patterns)  # since it looked

        monkeypatch.setattr(Directory, "look", late)
        with steps.held(root / "archive"):
            done = steps.step(None, root, root / "archive", Channels(">"), LARGE, LARGE)  # type: ignore[arg-type]
        assert (done.rows, done.left) == (21, 1)
        monkeypatch.undo()
        monkeypatch.setattr(steps, "write", write_here)
        assert archive(root).rows == again
        assert numbers(whole(root, "orders")) == list(range(20))
        assert numbers(whole(root, "later")) == [1]
        with pytest.raises(NotFound, match="no channel 'nope'"):
            archive(root, channel="nope,orders")


def test_headers_from_the_archive_are_of_the_kind_that_they_are_in_the_log(opened: Opener, root: Path) -> None:
    with opened() as station:
        for value in (1, "1", True, "true", 2**40, "x", ""):
            station.publish("orders", {"n": 0}, headers={"h": value, "appended": "2026-01-01"})
        station.publish("orders", {"n": 0})
        station.engine.relayed.arrive("orders", [arrivals.line(0, channel="orders", extra=b',"h":null,"i":1.5')])
        archive(root)
    for kind in ("INT", "BIGINT", "DOUBLE", "BOOLEAN", "STRING"):
        schema = f"offset BIGINT, h {kind}, headers_json STRING"
        assert whole(root, "orders", schema=schema) == rows(reader(root, "orders", schema=schema))
    assert {row["appended"] for row in whole(root, "orders", schema="appended TIMESTAMP")} == {None}


def test_files_of_an_earlier_version_are_read_and_merged_with_those_of_this(
    opened: Opener, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened() as station:
        station.publish("orders", {"n": 0}, headers={"level": 3})
        with monkeypatch.context() as earlier:
            earlier.setattr(writing, "KEPT", writing.KEPT.remove(writing.KEPT.get_field_index("headers_json")))
            archive(root)
        station.publish("orders", {"n": 1}, headers={"level": 4})
        archive(root)
    schema = "offset BIGINT, level INT, headers_json STRING"
    expected = [
        {"offset": 0, "level": 3, "headers_json": None},
        {"offset": 1, "level": 4, "headers_json": '{"level":4}'},
    ]
    assert whole(root, "orders", schema=schema) == expected
    merge(root / "archive", "orders", 1 << 30)
    assert len(manifests.load(root / "archive", "orders").files) == 1
    assert whole(root, "orders", schema=schema) == expected


def test_columns_that_the_archive_does_not_keep_are_refused(opened: Opener, root: Path) -> None:
    with filled(opened, 3):
        archive(root)
    with pytest.raises(ConfigError, match="'raw' is not kept in the archive"):
        whole(root, "orders", schema="offset BIGINT, raw STRING")


# -- one table --------------------------------------------------------------------------------------------------------


def test_archive_and_log_are_one_table_while_the_log_grows_and_shrinks(opened: Opener, root: Path) -> None:
    with filled(opened, 100, retention_bytes=4096, retention_archived=True) as station:
        archive(root, step_bytes=8192)
        for n in range(100, 130):
            station.publish("orders", {"n": n}, key=f"k{n % 5}")
        assert numbers(whole(root, "orders")) == list(range(130))
        assert station.trim("orders")
        assert len(rows(reader(root, "orders"))) < 130
        found = whole(root, "orders")
        assert numbers(found) == list(range(130))
        assert len(set(places(found))) == 130
        archive(root)
        merge(root / "archive", "orders", 1 << 20)
        assert places(whole(root, "orders")) == places(found)


def test_a_stretch_by_offsets_and_by_time_reaches_into_the_archive(opened: Opener, root: Path) -> None:
    with filled(opened, 60, partitions=1) as station:
        middle = station.read("orders")
        moment = [message.time for message in middle][40]
        archive(root)
        for n in range(60, 80):
            station.publish("orders", {"n": n})
    assert numbers(whole(root, "orders", startingOffsets="50", endingOffsets="70")) == list(range(50, 70))
    found = whole(root, "orders", startingOffsets=moment.isoformat())
    assert numbers(found) == list(range(40, 80))
    assert numbers(whole(root, "orders", startingOffsets=(datetime.now(UTC) + timedelta(hours=1)).isoformat())) == []


def test_who_planned_before_files_were_merged_reads_each_message_once(opened: Opener, root: Path) -> None:
    with filled(opened, 60, partitions=1):
        archive(root, step_bytes=4096)
    one = reader(root, "orders", includeArchive="true")
    splits = one.partitions()
    assert len(splits) > 2
    merge(root / "archive", "orders", 1 << 20)
    assert len(manifests.load(root / "archive", "orders").files) == 1
    found = [row for split in splits for batch in one.read(split) for row in batch.to_pylist()]
    assert numbers(found) == list(range(60))
    assert len(list((root / "archive").glob("channel=orders/date=*/*.parquet"))) == 1
    manifests.sweep(root / "archive", 3600.0, time.time() + 3601)
    assert not list((root / "archive" / "_old").iterdir())
    with pytest.raises(Incomplete, match="not in the archive"):
        list(one.read(splits[0]))


def test_a_channel_that_lives_anew_is_archived_from_its_beginning(opened: Opener, root: Path) -> None:
    with filled(opened, 20, partitions=1) as station:
        archive(root)
        station.delete_channel("orders")
        station.create_channel("orders")
        station.publish("orders", {"n": 1000})
        assert numbers(whole(root, "orders")) == [1000]
        assert archive(root).rows == 1
        assert numbers(whole(root, "orders")) == [1000]
    manifest = manifests.load(root / "archive", "orders")
    assert [file.rows for file in manifest.files] == [20, 1]
    assert [file.life for file in manifest.files] == [0, 1]


def test_what_was_deleted_before_it_was_archived_is_told(opened: Opener, root: Path) -> None:
    with filled(opened, 20, partitions=1, retention_bytes=4096) as station:
        archive(root)
        for n in range(20, 120):
            station.publish("orders", {"n": n, "text": "x" * 100})
        (trimmed,) = station.trim("orders")
        done = archive(root)
    ((channel, hole),) = done.holes
    assert (channel, hole.range) == ("orders", Range(20, trimmed.first))
    with pytest.raises(Incomplete, match=f"offsets 20 to {trimmed.first - 1}"):
        whole(root, "orders")
    found = whole(root, "orders", failOnGap="false")
    assert [row["gap"]["next"] for row in found if row["gap"]] == [trimmed.first]
    assert numbers([row for row in found if not row["gap"]]) == [*range(20), *range(trimmed.first, 120)]


def test_what_an_archive_that_began_empty_never_got_is_told_before_its_next_run(opened: Opener, root: Path) -> None:
    with opened(**SMALL, retention_bytes=4096) as station:
        station.create_channel("orders")
        archive(root)
        for n in range(100):
            station.publish("orders", {"n": n, "text": "x" * 100})
        (trimmed,) = station.trim("orders")
        with pytest.raises(Incomplete, match=f"offsets 0 to {trimmed.first - 1}: deleted by retention"):
            whole(root, "orders")
        before = whole(root, "orders", failOnGap="false")
        archive(root)
        after = whole(root, "orders", failOnGap="false")
    assert [(row["offset"], row["gap"]["next"]) for row in before if row["gap"]] == [(0, trimmed.first)]
    assert places(before) == places(after)


def test_what_was_deleted_before_anything_was_archived_is_told(opened: Opener, root: Path) -> None:
    """A stream that was down, for example, goes on at an offset which neither the log nor the archive has."""
    with filled(opened, 100, partitions=1, retention_bytes=4096) as station:
        (trimmed,) = station.trim("orders")
        archive(root)
        station.publish("orders", {"n": 100})
    with pytest.raises(Incomplete, match=f"offsets 7 to {trimmed.first - 1}: deleted by retention"):
        whole(root, "orders", startingOffsets="7")
    found = whole(root, "orders", startingOffsets="7", failOnGap="false")
    assert [(row["offset"], row["gap"]["next"]) for row in found if row["gap"]] == [(7, trimmed.first)]
    assert numbers([row for row in found if not row["gap"]]) == list(range(trimmed.first, 101))


@pytest.mark.parametrize("size", [1, 1 << 10, 1 << 40])
def test_a_stream_comes_past_what_nobody_has(opened: Opener, root: Path, size: int) -> None:
    with filled(opened, 100, partitions=1, retention_bytes=4096) as station:
        station.trim("orders")
        archive(root)
        station.publish("orders", {"n": 100})
    ends = [7]
    with WithArchive(str(root), None) as store:
        life = store.channel("orders").incarnation
        while ends[-1] < 101:
            ask = Ask("orders", 0, life, Stretch(ends[-1], 101))
            ends += admitted(store, [ask], Allowance(bytes=size))
            assert ends[-2] < ends[-1] <= 101


# -- retention --------------------------------------------------------------------------------------------------------


def test_retention_waits_for_the_archive(opened: Opener, root: Path) -> None:
    with filled(opened, 100, partitions=1) as station:
        station.alter_channel("orders", retention_bytes=4096, retention_archived=True)
        assert station.trim("orders") == []
        archive(root)
        (trimmed,) = station.trim("orders")
        assert 0 < trimmed.first <= 100
        assert not trimmed.unread


def test_retention_deletes_nothing_that_only_another_life_had_archived(opened: Opener, root: Path) -> None:
    with filled(opened, 100, partitions=1, retention_bytes=4096, retention_archived=True) as station:
        archive(root)
        found = archived.load(root, "orders")
        assert found is not None
        archived.save(root, "orders", msgspec.structs.replace(found, incarnation="other0"))
        assert station.trim("orders") == []


# -- whatever dies when -----------------------------------------------------------------------------------------------


class Killed(BaseException):
    """As if the process had ended here."""


@pytest.mark.parametrize("operation", ["rename", "fdatasync", "sync_directory"])
def test_a_death_at_any_moment_leaves_every_message_archived_once(
    opened: Opener, root: Path, operation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with filled(opened, 40) as station:
        real, fatal, deaths = getattr(SYSTEM_DISK, operation), 0, 0
        while True:
            left = fatal

            def dying(*args: Any) -> Any:
                nonlocal left
                if left == 0:
                    raise Killed
                left -= 1
                return real(*args)

            for n in range(10):
                station.publish("orders", {"n": 40 + fatal * 10 + n}, key=f"k{n}")
            with monkeypatch.context() as patched, contextlib.suppress(Killed):
                patched.setattr(SYSTEM_DISK, operation, dying)
                archive(root, step_bytes=4096)
            if left > 0:
                break
            deaths += 1
            with steps.held(root / "archive"):  # whoever is next finishes what was begun
                _in_place(root)
            assert numbers(whole(root, "orders")) == list(range(40 + (fatal + 1) * 10))
            fatal += 1
        archive(root)
    assert deaths >= 3
    assert sum(file.rows for file in manifests.load(root / "archive", "orders").files) == 40 + (fatal + 1) * 10
    table = ds.dataset(root / "archive", format="parquet", partitioning="hive").to_table(
        columns=["partition", "offset"]
    )
    assert (
        table.num_rows == len(set(map(tuple, zip(*table.to_pydict().values(), strict=True)))) == 40 + (fatal + 1) * 10
    )


def _in_place(root: Path) -> None:
    found = {path.name for path in (root / "archive").glob("channel=orders/date=*/*.parquet")}
    assert found == {file.name for file in manifests.load(root / "archive", "orders").files}


def test_sigkill_at_random_moments_neither_loses_nor_doubles_a_message(root: Path) -> None:
    _kill_again_and_again(root, rounds=4)


@pytest.mark.prove
@pytest.mark.timeout(1_200)
def test_sigkill_many_times(root: Path) -> None:
    _kill_again_and_again(root, rounds=150)


def _kill_again_and_again(root: Path, rounds: int) -> None:
    chance = random.Random(5)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    command = [sys.executable, str(HERE / "archive_process.py"), str(root)]
    count = 0
    with hg.open(root, name="host1", **SMALL) as station:
        station.create_channel("orders", partitions=2)
        for _ in range(rounds):
            station.publish_many("orders", [{"n": count + at, "text": "x" * 50} for at in range(300)])
            count += 300
            child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
            assert child.stdout is not None
            assert child.stdout.readline() == "archiving\n"
            time.sleep(chance.uniform(0.0, 0.15))
            child.send_signal(signal.SIGKILL)
            child.communicate()
            assert numbers(whole(root, "orders")) == list(range(count))
    while archive(root).left:
        pass
    files = manifests.load(root / "archive", "orders").files
    assert sum(file.rows for file in files) == count
    assert len(list((root / "archive").glob("channel=orders/date=*/*.parquet"))) == len(files)


@pytest.mark.prove
@pytest.mark.timeout(3_000)
def test_sigkill_of_the_driver_and_its_workers(root: Path) -> None:
    """As above, with Spark: driver, Java and workers are one process group, which is killed as a whole."""
    chance = random.Random(11)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    command = [sys.executable, "-m", "heliograph.cli", "-d", str(root), "pipeline", "run", "archive"]
    command += ["--trigger", "100ms", "--step-bytes", "8KiB", "--master", "local[2]"]
    count = 0
    with hg.open(root, name="host1", **SMALL) as station:
        station.create_channel("orders", partitions=2)
        for _ in range(DRIVERS):
            station.publish_many("orders", [{"n": count + at, "text": "x" * 50} for at in range(400)])
            count += 400
            child = subprocess.Popen(
                command, stderr=subprocess.PIPE, text=True, env=environment, start_new_session=True
            )
            assert child.stderr is not None
            assert child.stderr.readline().startswith("archive: ")
            time.sleep(chance.uniform(0.0, 3.0))
            os.killpg(child.pid, signal.SIGKILL)
            child.communicate()
            assert numbers(whole(root, "orders")) == list(range(count))
    archive(root)
    assert sum(file.rows for file in manifests.load(root / "archive", "orders").files) == count


def test_one_at_a_time_changes_an_archive(tmp_path: Path) -> None:
    with steps.held(tmp_path), pytest.raises(Busy, match="being changed by another process"), steps.held(tmp_path):
        pass


def test_a_manifest_that_cannot_be_read_is_not_taken_for_an_empty_one(opened: Opener, root: Path) -> None:
    with filled(opened, 3):
        archive(root)
        (root / "archive" / "channel=orders" / "_manifest.json").write_text("{")
        with pytest.raises(Damaged, match="archived once more"):
            archive(root)


@pytest.mark.parametrize("name", ["host2", "host1"])
def test_two_stations_do_not_archive_one_channel_into_one_directory(tmp_path: Path, name: str) -> None:
    """Each would take the other for a former life of the channel, and archive all of it once more, by turns."""
    one, other, root = tmp_path / "one", tmp_path / "other", tmp_path / "archive"
    for path, called in ((one, "host1"), (other, name)):
        with hg.open(path, name=called, durability="os") as station:
            station.publish("orders", {"n": 1})
            station.publish(f"only.{path.name}", {"n": 2})
    archive(one, root)
    if name == "host1":  # which cannot be told from a channel that was made anew, the first time
        archive(other, root)
        other = one
    before = manifests.load(root, "orders")
    with pytest.raises(ConfigError, match="give every station a directory of its own"):
        archive(other, root)
    assert manifests.load(root, "orders") == before
    archive(other, root, channel=f"only.{other.name}")  # these are nobody else's
    steps.note_all(other, root)
    assert (archived.load(other, "orders") is None) == (name == "host2")


def test_an_archive_that_is_not_where_it_was_is_an_error(root: Path, opened: Opener, tmp_path: Path) -> None:
    filled(opened).close()
    place = tmp_path / "mounted"
    archive(root, place)
    with hg.open(root) as station:
        station.alter_channel("orders", retention_bytes=1)
        station.trim()
        assert station.channel("orders").first > 0
    assert numbers(whole(root, "orders")) == list(range(120))
    place.rename(tmp_path / "unmounted")
    with pytest.raises(NotFound, match=r"archived in .*mounted, and its _manifest\.json is not there"):
        whole(root, "orders")
    with pytest.raises(NotFound, match="is that disk mounted"):
        archive(root, place)
    with pytest.raises(NotFound, match=r"there is no archive .*nowhere"):
        rows(reader(root, "orders", includeArchive=tmp_path / "nowhere"))
    assert numbers(rows(reader(root, "orders", includeArchive=tmp_path / "unmounted"))) == list(range(120))


def test_an_archive_moves_with_its_station(root: Path, opened: Opener) -> None:
    filled(opened).close()
    archive(root)
    with hg.open(root) as station:
        station.alter_channel("orders", retention_bytes=1)
        station.trim()
    moved = root.rename(root.with_name("moved"))
    assert numbers(whole(moved, "orders")) == list(range(120))
