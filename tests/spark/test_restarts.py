"""Streams that are run again, with other options or another checkpoint, or whose channels change under them."""

from __future__ import annotations

import json
import shutil
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import heliograph as hg
from tests.spark.test_stream import Query, data


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "data"


def put(root: Path, channel: str, numbers: range) -> None:
    with hg.open(root, name="host1", durability="os") as station:
        station.publish_many(channel, list(numbers))


def test_options_that_may_change_between_runs(spark: Any, root: Path, tmp_path: Path) -> None:
    """As docs/spark.md says: bounds, splits, failOnGap (which adds a column), columns."""
    changes: list[dict[str, str]] = [
        {"maxMessagesPerTrigger": "7"}, {"maxBytesPerTrigger": "2kB"}, {"splitBytes": "1kB"}, {"failOnGap": "false"}, {}
    ]  # fmt: skip
    for turn, options in enumerate(changes):
        put(root, "alerts", range(turn * 20, turn * 20 + 20))
        query = Query(spark, root, tmp_path, "alerts", **options)
        assert data(query.run()) == list(range(turn * 20, turn * 20 + 20)), options
    put(root, "alerts", range(100, 110))
    narrow = spark.readStream.format("heliograph").option("path", str(root)).option("channel", "alerts")
    found: list[Any] = []
    narrow.schema("data STRING").load().writeStream.foreachBatch(lambda rows, _: found.extend(rows.collect())).option(
        "checkpointLocation", str(tmp_path / "checkpoint")
    ).trigger(availableNow=True).start().awaitTermination(100)
    assert data(found) == list(range(100, 110))


def test_another_channel_goes_on_with_what_they_have_in_common(spark: Any, root: Path, tmp_path: Path) -> None:
    for channel in ("a", "b", "c"):
        put(root, channel, range(3))
    assert len(Query(spark, root, tmp_path, "a,b").run()) == 6
    for channel in ("a", "b", "c"):
        put(root, channel, range(3, 5))
    query = Query(spark, root, tmp_path, "b,c")
    running = query.start(processingTime="100 milliseconds")
    try:
        running.processAllAvailable()
    finally:
        running.stop()
    found = sorted((row.channel, int(row.data)) for batch in query.batches for row in batch)
    assert found == [("b", 3), ("b", 4), *(("c", n) for n in range(5))]
    assert len(Query(spark, root, tmp_path, "a").run()) == 2, "what was left out is not lost"


def copy(spark: Any, root: Path, checkpoint: Path, target: str = "out") -> None:
    stream = spark.readStream.format("heliograph").option("path", str(root)).option("channel", "in").load()
    write = stream.select("data", "key").writeStream.format("heliograph").option("path", str(root))
    query = write.option("channel", target).option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
    query.start().awaitTermination(100)


def copied(root: Path, channel: str = "out") -> Counter[str]:
    with hg.open(root, read_only=True) as station:
        return Counter(json.dumps(message.data) for message in station.read(channel))


def test_without_its_checkpoint_a_query_publishes_everything_again_and_nothing_is_dropped(
    spark: Any, root: Path, tmp_path: Path
) -> None:
    """The numbers of its batches are those of before; only the query's id tells them apart."""
    put(root, "in", range(30))
    copy(spark, root, tmp_path / "checkpoint")
    copy(spark, root, tmp_path / "checkpoint")
    assert copied(root) == Counter({str(n): 1 for n in range(30)})
    shutil.rmtree(tmp_path / "checkpoint")
    put(root, "in", range(30, 40))
    copy(spark, root, tmp_path / "checkpoint")
    assert copied(root) == Counter({str(n): 2 if n < 30 else 1 for n in range(40)})


def test_another_target_gets_what_is_new(spark: Any, root: Path, tmp_path: Path) -> None:
    put(root, "in", range(5))
    copy(spark, root, tmp_path / "checkpoint")
    put(root, "in", range(5, 8))
    copy(spark, root, tmp_path / "checkpoint", "other")
    assert (len(copied(root)), copied(root, "other")) == (5, Counter({"5": 1, "6": 1, "7": 1}))


def test_a_channel_deleted_under_a_running_stream_is_an_error_or_left_out_until_it_is_back(
    spark: Any, root: Path, tmp_path: Path
) -> None:
    put(root, "alerts", range(3))
    put(root, "others", range(1))
    strict = Query(spark, root, tmp_path / "strict", "alerts")
    lenient = Query(spark, root, tmp_path / "lenient", "alerts,others", failOnGap="false")
    queries = [one.start(processingTime="100 milliseconds") for one in (strict, lenient)]
    try:
        for running in queries:
            running.processAllAvailable()
        with hg.open(root) as station:
            station.delete_channel("alerts")
        with pytest.raises(Exception, match="channel 'alerts' was deleted"):
            queries[0].awaitTermination(100)
        put(root, "others", range(1, 2))
        queries[1].processAllAvailable()
        put(root, "alerts", range(10, 12))
        queries[1].processAllAvailable()
    finally:
        for running in queries:
            running.stop()
    rows = [row for batch in lenient.batches for row in batch]
    messages = sorted((row.channel, int(row.data)) for row in rows if row.gap is None)
    assert messages == [("alerts", n) for n in (0, 1, 2, 10, 11)] + [("others", 0), ("others", 1)]
    assert ["lives anew" in row.gap.reason for row in rows if row.gap is not None] == [True]


def test_a_channel_that_grows_while_it_is_read_is_a_table_of_one_moment_and_a_stream_of_all(
    spark: Any, root: Path, tmp_path: Path
) -> None:
    enough = threading.Event()
    published = 0

    def publish() -> None:
        nonlocal published
        with hg.open(root) as station:
            while not enough.is_set():
                station.publish_many("in", list(range(published, published + 50)))
                published += 50

    put(root, "in", range(50))
    published = 50
    growing = threading.Thread(target=publish)
    growing.start()
    try:
        table = spark.read.format("heliograph").option("path", str(root)).option("channel", "in").load()
        first = data(table.collect())
        assert first == list(range(len(first)))
        assert data(table.collect()) == first
        checkpoint = tmp_path / "checkpoint"
        copy(spark, root, checkpoint)
        copy(spark, root, checkpoint)
    finally:
        enough.set()
        growing.join()
    copy(spark, root, checkpoint)
    assert copied(root) == Counter({str(n): 1 for n in range(published)})


def test_empty_channels_and_payloads_of_every_kind_and_size_pass_through(
    spark: Any, root: Path, tmp_path: Path
) -> None:
    with hg.open(root, name="host1", durability="os") as station:
        station.create_channel("in", partitions=2)
    copy(spark, root, tmp_path / "checkpoint")
    payloads: list[Any] = [1, "text", None, True, 2.5, [1, {"a": None}], {"n": {"deep": [1]}}, {"big": "x" * 9_990_000}]
    with hg.open(root) as station:
        for payload in payloads:
            station.publish("in", payload)
    copy(spark, root, tmp_path / "checkpoint")
    assert copied(root) == Counter(json.dumps(payload) for payload in payloads)
