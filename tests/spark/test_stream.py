"""Channels as streams, in a real Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import heliograph as hg


class Query:
    """A stream into a list, which goes on where it stopped."""

    def __init__(self, spark: Any, root: Path, place: Path, channel: str, **options: Any) -> None:
        self.spark, self.root, self.place, self.channel, self.options = spark, root, place, channel, options
        self.batches: list[list[Any]] = []

    def start(self, **trigger: Any) -> Any:
        read = self.spark.readStream.format("heliograph").option("path", str(self.root)).option("channel", self.channel)
        keep = lambda frame, _: self.batches.append(frame.collect())  # noqa: E731
        return (
            read.options(**self.options).load().writeStream.foreachBatch(keep)
            .option("checkpointLocation", str(self.place / "checkpoint")).trigger(**trigger).start()
        )  # fmt: skip

    def run(self) -> list[Any]:
        """Everything that is there now, which was not there before."""
        self.batches = []
        query = self.start(availableNow=True)
        query.awaitTermination(100)
        return [row for batch in self.batches for row in batch]


def data(rows: list[Any]) -> list[int]:
    return sorted(int(row.data) for row in rows)


def test_a_stream_goes_on_where_it_stopped_in_small_steps(spark: Any, tmp_path: Path) -> None:
    root = tmp_path / "data"
    query = Query(spark, root, tmp_path, "alerts", maxMessagesPerTrigger="7")
    with hg.open(root, name="host1", durability="os") as station:
        station.create_channel("alerts", partitions=2)
        for n in range(20):
            station.publish("alerts", n, key=str(n))
        assert data(query.run()) == list(range(20))
        assert [len(batch) for batch in query.batches] == [7, 7, 6]
        assert query.run() == []
        for n in range(20, 25):
            station.publish("alerts", n, key=str(n))
        assert data(query.run()) == list(range(20, 25))


def test_new_channels_of_a_pattern_and_new_partitions_are_picked_up(spark: Any, tmp_path: Path) -> None:
    root = tmp_path / "data"
    query = Query(spark, root, tmp_path, "sensors.>", maxBytesPerTrigger="1kB")
    with hg.open(root, name="host1", durability="os") as station:
        station.publish("sensors.a", 0)
        assert data(query.run()) == [0]
        station.alter_channel("sensors.a", partitions=3)
        for n in range(1, 10):
            station.publish("sensors.a", n, key=str(n))
        station.publish("sensors.b", 10)
        station.publish("others", 11)
        assert data(query.run()) == list(range(1, 11))


def test_a_stream_hears_what_comes(spark: Any, tmp_path: Path) -> None:
    root = tmp_path / "data"
    query = Query(spark, root, tmp_path, "alerts", startingOffsets="new")
    with hg.open(root, name="host1", durability="os") as station:
        station.publish("alerts", 0)
        running = query.start(processingTime="100 milliseconds")
        try:
            running.processAllAvailable()
            station.publish("alerts", 1)
            running.processAllAvailable()
            station.publish("alerts", 2)
            running.processAllAvailable()
        finally:
            running.stop()
    assert data([row for batch in query.batches for row in batch]) == [1, 2]


def test_what_retention_takes_from_a_stream_is_an_error_or_counted(spark: Any, tmp_path: Path) -> None:
    root = tmp_path / "data"
    strict = Query(spark, root, tmp_path / "strict", "alerts")
    lenient = Query(spark, root, tmp_path / "lenient", "alerts", failOnGap="false")
    with hg.open(root, name="host1", durability="os", segment_bytes=10_000, retention_bytes=20_000) as station:
        station.publish("alerts", 0)
        assert data(strict.run()) == data(lenient.run()) == [0]
        for n in range(1, 400):
            station.publish("alerts", n, headers={"text": "x" * 100})
        station.trim()
        first = station.channel("alerts").first
    assert first > 1
    with pytest.raises(Exception, match="deleted by retention"):
        strict.run()
    found = lenient.run()
    assert [(row.offset, row.gap.next) for row in found if row.gap is not None] == [(1, first)]
    assert data([row for row in found if row.gap is None]) == list(range(first, 400))


def test_another_life_of_a_channel_is_an_error_or_counted(spark: Any, tmp_path: Path) -> None:
    root = tmp_path / "data"
    strict = Query(spark, root, tmp_path / "strict", "alerts")
    lenient = Query(spark, root, tmp_path / "lenient", "alerts", failOnGap="false")
    with hg.open(root, name="host1", durability="os") as station:
        for n in range(3):
            station.publish("alerts", n)
        assert data(strict.run()) == data(lenient.run()) == [0, 1, 2]
        station.delete_channel("alerts")
        with pytest.raises(Exception, match="channel 'alerts' was deleted"):
            strict.run()
        for n in range(10, 15):
            station.publish("alerts", n)
        with pytest.raises(Exception, match="lives anew"):
            strict.run()
        found = lenient.run()
        assert [row.gap.reason[:24] for row in found if row.gap is not None] == ["the channel lives anew ("]
        assert data([row for row in found if row.gap is None]) == list(range(10, 15))


def test_a_moved_directory_is_the_same_log(spark: Any, tmp_path: Path) -> None:
    """It gets new incarnations, and the message before the position says that nothing else changed."""
    import shutil

    root = tmp_path / "data"
    query = Query(spark, root, tmp_path, "alerts")
    with hg.open(root, name="host1") as station:
        for n in range(3):
            station.publish("alerts", n)
    assert data(query.run()) == [0, 1, 2]
    shutil.copytree(root, tmp_path / "moved")
    shutil.rmtree(root)
    (tmp_path / "moved").rename(root)
    with hg.open(root) as station:
        station.publish("alerts", 3)
    assert data(query.run()) == [3]
