"""Channels of a hub as tables and streams, in a real Spark whose workers connect by themselves."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import heliograph as hg
from heliograph.spark.pipelines import Input, Run
from tests.spark.hub_reading import ReadHub
from tests.spark.reading_back import publish_every_kind
from tests.spark.test_source import Reading
from tests.spark.test_stream import data


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ReadHub, hg.Station]]:
    hub = ReadHub(tmp_path_factory.mktemp("hub"), segment_bytes=50_000)
    with hub.serve() as station:
        publish_every_kind(station, "kinds")
        station.create_channel("sensors.many", partitions=3)
        for n in range(600):
            station.publish("sensors.many", n, key=f"k{n % 9}")
        station.register("com.example.reading.v1", Reading)
        for n in range(5):
            station.publish("typed", Reading(f"web-{n}", n / 2, datetime(2026, 11, 15, tzinfo=UTC)))
        yield hub, station


Served = tuple[ReadHub, hg.Station]


def table(spark: Any, hub: ReadHub, channel: str, schema: str | None = None, **options: Any) -> Any:
    read = spark.read.format("heliograph").options(**hub.options(channel, **options))
    return (read.schema(schema) if schema else read).load()


def test_a_table_through_the_hub_is_the_one_of_its_directory(spark: Any, served: Served) -> None:
    hub, _ = served
    here = spark.read.format("heliograph").option("path", str(hub.root)).option("channel", "kinds,sensors.>").load()
    there = table(spark, hub, "kinds,sensors.>", splitBytes="2kB")
    assert there.schema == here.schema
    assert there.rdd.getNumPartitions() > 12
    order = ("channel", "partition", "offset")
    assert there.orderBy(*order).collect() == here.orderBy(*order).collect()


def test_filters_are_pushed_down_to_the_hub(spark: Any, served: Served) -> None:
    few = table(spark, served[0], "sensors.>", splitBytes="2kB", pushdown="true")
    few = few.where("partition = 1 and offset between 20 and 24")
    assert few.rdd.getNumPartitions() == 1
    assert [row.offset for row in few.orderBy("offset").collect()] == [20, 21, 22, 23, 24]


def test_a_registered_type_of_the_hub_gives_typed_columns(spark: Any, served: Served) -> None:
    found = table(spark, served[0], "typed", payloadType="com.example.reading.v1")
    assert [row.value for row in found.select("data.*").orderBy("host").collect()] == [0.0, 0.5, 1.0, 1.5, 2.0]
    with pytest.raises(Exception, match="knows a schema of type"):
        table(spark, served[0], "kinds", payloadType="com.example.reading.v2")


def test_errors_of_the_hub_say_what_to_do(spark: Any, served: Served) -> None:
    hub, _ = served
    with pytest.raises(Exception, match="NotAllowed: few is not allowed to subscribe 'kinds'"):
        table(spark, hub, "kinds", peer="few").collect()
    with pytest.raises(Exception, match="there is no channel 'missing' at the hub hub"):
        table(spark, hub, "missing").collect()
    with pytest.raises(Exception, match="two places: leave out one"):
        table(spark, hub, "kinds", path=hub.root).collect()


class Query:
    """A stream into a list, whose checkpoint lasts from run to run."""

    def __init__(self, spark: Any, place: Path) -> None:
        self.spark, self.place = spark, place
        self.rows: list[Any] = []

    def start(self, options: dict[str, str], **trigger: Any) -> Any:
        keep = lambda frame, _: self.rows.extend(frame.collect())  # noqa: E731
        read = self.spark.readStream.format("heliograph").options(**options).load()
        return (
            read.writeStream.foreachBatch(keep)
            .option("checkpointLocation", str(self.place / "checkpoint")).trigger(**trigger).start()
        )  # fmt: skip

    def run(self, options: dict[str, str]) -> list[Any]:
        self.rows = []
        self.start(options, availableNow=True).awaitTermination(100)
        return self.rows


def test_a_stream_goes_on_through_the_hub_or_in_its_directory(spark: Any, served: Served, tmp_path: Path) -> None:
    hub, station = served
    query = Query(spark, tmp_path)
    for n in range(20):
        station.publish("steps", n)
    ways = [hub.options("steps", maxMessagesPerTrigger="7"), {"path": str(hub.root), "channel": "steps"}]
    assert data(query.run(ways[0])) == list(range(20))
    for turn in (1, 0, 1):
        station.publish("steps", 20 + turn)
        assert data(query.run(ways[turn])) == [20 + turn]


def test_a_stream_hears_what_comes_to_the_hub(spark: Any, served: Served, tmp_path: Path) -> None:
    hub, station = served
    station.publish("news", 0)
    query = Query(spark, tmp_path)
    running = query.start(hub.options("news", startingOffsets="new"), processingTime="100 milliseconds")
    try:
        running.processAllAvailable()
        for n in (1, 2):
            station.publish("news", n)
            running.processAllAvailable()
    finally:
        running.stop()
    assert data(query.rows) == [1, 2]


def test_a_pipeline_reads_what_the_hub_of_its_input_has(spark: Any, served: Served, tmp_path: Path) -> None:
    run = Run(spark, tmp_path, tmp_path, None, trigger="batch")  # type: ignore[arg-type]
    options = served[0].options("sensors.many")
    del options["channel"]
    assert run.read(Input("sensors.many", options)).count() == 600
