"""Who reads what: everything once, in parts of one size, and nothing that cannot be wanted."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import EqualTo, GreaterThan, GreaterThanOrEqual, In, LessThan, LessThanOrEqual

import heliograph as hg
from heliograph.spark.admission import Allowance, admitted
from heliograph.spark.directory import Directory
from heliograph.spark.filters import conditions
from heliograph.spark.reading import Stored, Task
from heliograph.spark.splits import Ask, Shared, Split, Stretch, plan
from tests.opening import Opener
from tests.spark.reading_back import ANY, CountingDisk, covered, reader, rows, wanted

BASE = datetime(2020, 1, 1, tzinfo=UTC)


def fill(station: hg.Station, count: int, channel: str = "alerts", size: int = 200) -> None:
    """Messages an hour apart, each batch of 50 an index entry or so."""
    for first in range(0, count, 50):
        station.publish_many(
            channel,
            [
                hg.Draft(data={"n": n, "text": "x" * size}, time=BASE + timedelta(hours=n))
                for n in range(first, min(count, first + 50))
            ],
        )


def ask(directory: Directory, channel: str = "alerts", partition: int = 0, stretch: Stretch | None = None) -> Ask:
    bounds = directory.bounds(channel, partition)
    found = directory.find(channel)
    assert found is not None
    return Ask(channel, partition, found.incarnation, stretch or Stretch(*bounds))


def test_splits_cover_everything_once(root: Path, opened: Opener) -> None:
    fill(opened(segment_bytes=100_000), 2_000)
    with Directory(str(root)) as directory:
        for split_bytes in (1, 20_000, 64_000, 150_000, 10**9):
            splits = plan(directory, [ask(directory)], ANY, split_bytes)
            assert covered(splits) == list(range(2_000))
        assert len(splits) == 1
        assert len(plan(directory, [ask(directory)], ANY, 64_000)) > 8


@given(st.integers(0, 700), st.integers(0, 700), st.integers(1, 200_000))
def test_a_stretch_is_covered_exactly(
    tmp_path_factory: pytest.TempPathFactory, first: int, following: int, split_bytes: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "splits"
    if not path.exists():
        with hg.open(path, name="host1", segment_bytes=50_000, durability="os") as station:
            fill(station, 700)
    with Directory(str(path)) as directory:
        splits = plan(directory, [ask(directory, stretch=Stretch(first, following))], ANY, split_bytes)
    assert covered(splits) == list(range(first, following))


def test_a_split_yields_its_rows_and_no_others(root: Path, opened: Opener) -> None:
    fill(opened(segment_bytes=60_000), 1_000)
    task = Task(Stored(str(root)), wanted("offset BIGINT, data STRING"), fail_on_gap=True)
    with Directory(str(root)) as directory:
        incarnation = ask(directory).incarnation
    for stretches in ([(0, 1)], [(999, 1_000)], [(3, 77), (500, 501), (640, 999)], [(0, 1_000)]):
        split = Split("alerts", 0, incarnation, tuple(Stretch(*one) for one in stretches))
        got = [row for batch in task.read(split) for row in batch.to_pylist()]
        assert [row["offset"] for row in got] == covered([split])
        assert all(f'"n":{row["offset"]},' in row["data"] for row in got)


def test_one_large_partition_keeps_all_cores_busy(root: Path, opened: Opener) -> None:
    fill(opened(), 5_000)  # one segment
    splits = reader(root, "alerts", splitBytes="100kB").partitions()
    assert len(splits) > 10
    sizes = [sum(following - first for first, following in split.stretches) for split in splits]
    assert max(sizes) < 3 * min(sizes[:-1])


def test_an_index_that_is_missing_or_broken_costs_time_only(root: Path, opened: Opener) -> None:
    station = opened(segment_bytes=60_000)
    fill(station, 1_000)
    station.close()
    first, second, *_ = sorted((root / "channels/alerts/0").glob("*.index"))
    first.unlink()
    second.write_bytes(second.read_bytes()[:-80] + b"\0" * 80)
    one = reader(root, "alerts", splitBytes="1kB")
    one.pushFilters([GreaterThanOrEqual(("time",), BASE + timedelta(hours=100))])
    assert [row["offset"] for row in rows(one) if row["time"] >= BASE + timedelta(hours=100)] == list(range(100, 1_000))


def test_an_entry_that_is_not_genuine_leaves_nothing_out(root: Path, opened: Opener) -> None:
    station = opened(segment_bytes=60_000)
    fill(station, 1_000)
    station.close()
    index = min((root / "channels/alerts/0").glob("*.index"))
    data = bytearray(index.read_bytes())
    data[32:40] = bytes(8)  # the first entry says that its latest message is of 1970
    index.write_bytes(data)
    one = reader(root, "alerts")
    one.pushFilters([GreaterThanOrEqual(("time",), BASE)])
    assert rows(one)[0]["offset"] == 0


# -- filters ----------------------------------------------------------------------------------------------------------


def bytes_read(root: Path, filters: list[object]) -> tuple[int, list[int]]:
    """What is read of segments under some filters, and the offsets that come."""
    one = reader(root, "alerts", "offset BIGINT, time TIMESTAMP")
    one.pushFilters(filters)
    disk = CountingDisk()
    task = Task(Stored(str(root), disk), wanted("offset BIGINT, time TIMESTAMP"), fail_on_gap=True)
    splits = [split for split in one.partitions() if split.stretches]
    found = [row["offset"] for split in splits for batch in task.read(split) for row in batch.to_pylist()]
    return disk.bytes, found


def test_filters_read_fewer_bytes(root: Path, opened: Opener) -> None:
    fill(opened(segment_bytes=100_000), 4_000)
    everything, offsets = bytes_read(root, [])
    assert offsets == list(range(4_000))
    few = everything // 10
    size, offsets = bytes_read(root, [GreaterThanOrEqual(("offset",), 1_000), LessThan(("offset",), 1_010)])
    assert offsets == list(range(1_000, 1_010))
    assert size < few
    low, high = BASE + timedelta(hours=2_000), BASE + timedelta(hours=2_005)
    size, offsets = bytes_read(root, [GreaterThan(("time",), low), LessThanOrEqual(("time",), high)])
    assert set(range(2_001, 2_006)) <= set(offsets)  # the index knows no single messages: Spark looks at each
    assert size < few
    size, offsets = bytes_read(root, [EqualTo(("partition",), 1)])
    assert (size, offsets) == (0, [])
    size, offsets = bytes_read(root, [In(("channel",), ["others"])])
    assert (size, offsets) == (0, [])


def test_a_time_out_of_order_is_found(root: Path, opened: Opener) -> None:
    station = opened(segment_bytes=50_000)
    fill(station, 1_000)
    late = BASE - timedelta(days=400)
    station.publish_many("alerts", [hg.Draft(data=1, time=late)])
    fill(station, 1_000)
    assert 1_000 in bytes_read(root, [LessThan(("time",), BASE - timedelta(days=1))])[1]


def test_conditions_are_those_of_the_filters() -> None:
    moment = datetime(2026, 11, 15, 20, 30)
    found = conditions(
        [
            In(("partition",), [1, 2]), EqualTo(("partition",), 2), GreaterThan(("offset",), 4),
            LessThanOrEqual(("offset",), 9), GreaterThanOrEqual(("time",), moment.replace(tzinfo=UTC)),
            LessThan(("time",), moment + timedelta(seconds=1)), EqualTo(("data", "n"), 7),
        ]
    )  # fmt: skip
    assert found.partitions == {2}
    assert found.offset == (5, 9)
    start = int(moment.replace(tzinfo=UTC).timestamp())
    assert found.time_us == (start * 10**6, (start + 1) * 10**6 - 1)


# -- how much at once -------------------------------------------------------------------------------------------------


def test_a_micro_batch_takes_about_what_it_may(root: Path, opened: Opener) -> None:
    station = opened(segment_bytes=100_000)
    station.create_channel("alerts", partitions=2)
    for n in range(2_000):
        station.publish("alerts", {"n": n, "text": "x" * 100}, key="one" if n % 4 else "other")
    with Directory(str(root)) as directory:
        asks = [ask(directory, partition=number) for number in (0, 1)]
        total = [one.stretch.next for one in asks]
        assert sum(admitted(directory, asks, Allowance(100))) == 100
        assert admitted(directory, asks, Allowance(10**9, 10**9)) == total
        taken = admitted(directory, asks, Allowance(None, 50_000))
        assert 0 < sum(taken) < sum(total) / 4
        assert sum(admitted(directory, asks, Allowance(None, 1))) > 0
        assert admitted(directory, asks, Allowance(1, 1)) != [0, 0]


def test_thousands_of_small_channels_share_tasks_and_large_ones_do_not(
    root: Path, opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task for each would take Spark longer than all of the reading."""
    station = opened(segment_bytes=50_000)
    for n in range(20):
        station.publish(f"small.{n}", n)
    fill(station, 2_000)
    one = reader(root, "small.>,alerts", splitBytes="50kB", failOnGap="false")
    alone = one.partitions()
    want = sorted((row["channel"], row["offset"]) for row in rows(one))
    assert len(alone) > 25
    monkeypatch.setattr("heliograph.spark.splits.SPARK_TASKS_MIN", 5)
    planned = one.partitions()
    groups = [split.splits for split in planned if isinstance(split, Shared)]
    assert sum(len(group) for group in groups) >= 20
    assert max(len(group) for group in groups) <= -(-len(alone) // 5)
    assert all(len(group) == 1 or sum(split.size for split in group) <= 50_000 for group in groups)
    assert sorted((row["channel"], row["offset"]) for row in rows(one)) == want
    station.delete_channel("small.3")
    gone = [
        row for split in planned for batch in one.read(split) for row in batch.to_pylist() if row["gap"] is not None
    ]
    assert [(row["channel"], row["offset"]) for row in gone] == [("small.3", 0)]
