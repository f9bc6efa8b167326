"""Spark: channels as tables beside Spark's own JSON reader, and messages from rows beside its JSON writer."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import heliograph as hg
from bench import spark_latency, spark_scale
from bench.harness import Bench, Goal, NotRun, Row, compare, rate_of
from bench.samples import CHANNEL
from bench.spark_scale import consume, fill, table
from heliograph.errors import ConfigError

ENVELOPE = (
    "id STRING, source STRING, type STRING, time TIMESTAMP, channel STRING, partitionkey STRING, correlationid STRING, "
    "traceparent STRING, subject STRING, data STRING, origin STRING, originseq STRING"
)
THREE = "id STRING, time TIMESTAMP, type STRING"
NATIVE = "read.json with the same schema on the same files"


def run(bench: Bench) -> list[Row]:
    """One session for all: starting it takes longer than a quick run."""
    try:
        from heliograph.spark import session

        spark = session("bench")
    except (ImportError, ConfigError) as error:
        raise NotRun(f"Spark cannot be started: {error}") from error
    count = int(bench.either(4_000_000, 20_000))
    with bench.scratch("spark") as path:
        fill(path / "data", count)
        return [
            *reading(bench, spark, path, count),
            *streaming(bench, spark, path, count),
            *spark_scale.workers(bench, path / "data", count, ENVELOPE),
            *writing(bench, spark, path),
            *spark_scale.line(bench, spark, path / "data", ENVELOPE),
            *spark_latency.run(bench, spark, path),
        ]


def native(spark: Any, path: Path, schema: str) -> Any:
    files = sorted((path / "channels" / CHANNEL / "0").glob("*.jsonl"))
    return spark.read.schema(schema).json([str(file) for file in files])


def rounds(bench: Bench) -> int:
    return int(bench.either(5, 2))


def reading(bench: Bench, spark: Any, path: Path, count: int) -> list[Row]:
    """All columns of the envelope, and three of them. A query is planned anew each time."""
    data = path / "data"

    def rate(make: Callable[[], Any]) -> float:
        return rate_of(count, lambda: consume(make()))

    found = bench.measure(
        {
            "raw": lambda: rate(lambda: native(spark, data, ENVELOPE)),
            "ours": lambda: rate(lambda: table(spark, data, ENVELOPE)),
            "raw, three columns": lambda: rate(lambda: native(spark, data, THREE)),
            "ours, three columns": lambda: rate(lambda: table(spark, data, THREE)),
        },
        rounds(bench),
    )
    row = partial(compare, "spark", rounds=found, unit="rows/s", raw_is=NATIVE)
    return [
        row("table of a channel, whole envelopes", name="ours", goal=Goal(ratio_min=0.8)),
        row("table of a channel, three columns", name="ours, three columns", raw="raw, three columns",
            goal=Goal(ratio_min=1.2)),
    ]  # fmt: skip


def streaming(bench: Bench, spark: Any, path: Path, count: int) -> list[Row]:
    """Everything there is as a stream, and as micro-batches of 128 MB, beside the same as a table."""
    data, checkpoint = path / "data", path / "checkpoint"

    def stream(**options: str) -> None:
        shutil.rmtree(checkpoint, ignore_errors=True)
        read = spark.readStream.format("heliograph").schema(ENVELOPE).option("path", str(data))
        frame = read.option("channel", CHANNEL).options(**options).load()
        query = frame.writeStream.format("noop").option("checkpointLocation", str(checkpoint))
        query.trigger(availableNow=True).start().awaitTermination()

    found = bench.measure(
        {
            "raw": lambda: rate_of(count, lambda: consume(table(spark, data, ENVELOPE))),
            "ours": lambda: rate_of(count, stream),
            "bounded": lambda: rate_of(count, lambda: stream(maxBytesPerTrigger="128MB")),
        },
        rounds(bench),
    )
    row = partial(compare, "spark", rounds=found, unit="rows/s", raw_is="the same as a table")
    return [
        row("stream of a channel, available now", name="ours", goal=Goal(ratio_min=0.8)),
        row("stream of a channel, micro-batches of 128 MB", name="bounded"),
    ]


def writing(bench: Bench, spark: Any, path: Path) -> list[Row]:
    """Rows of a payload that the JVM makes JSON of, beside its writer of JSON files."""
    count = int(bench.either(4_000_000, 10_000))
    target = path / "out"
    hg.open(target, name="bench").close()
    numbers = spark.range(count).selectExpr(
        "concat('web-', id % 7) AS host", "'cpu' AS metric", "id / 7 AS value", "'system problem!' AS message"
    )
    messages = numbers.selectExpr("to_json(struct(*)) AS data", "host AS key")
    objects = numbers.selectExpr("struct(*) AS data", "host AS key")

    def publish(frame: Any) -> None:
        frame.write.format("heliograph").mode("append").option("path", str(target)).option("channel", "out").save()

    def write_json(frame: Any) -> None:
        frame.write.mode("overwrite").json(str(path / "json"))

    found = bench.measure(
        {
            "raw": lambda: rate_of(count, lambda: write_json(numbers)),
            "same": lambda: rate_of(count, lambda: write_json(messages)),
            "ours": lambda: rate_of(count, lambda: publish(messages)),
            "same-objects": lambda: rate_of(count, lambda: write_json(objects)),
            "objects": lambda: rate_of(count, lambda: publish(objects)),
        },
        rounds(bench),
    )
    row = partial(compare, "spark", rounds=found, unit="rows/s", goal=Goal(ratio_min=0.5))
    return [
        row("messages from rows, exactly once", name="ours", raw_is="write.json of the payload alone"),
        row("messages from rows; raw writes the same rows", name="ours", raw="same",
            raw_is="write.json of payload as text and key"),
        row("the same with structs as payloads", name="objects", raw="same-objects",
            raw_is="write.json of payload as struct and key"),
    ]  # fmt: skip
