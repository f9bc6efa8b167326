"""Channels as streams, in a real Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

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
