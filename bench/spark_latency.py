"""From channel to channel through Spark, message by message, beside Spark's own way from file to file.

One message, a wait until it is there, then the next: what is measured is a micro-batch with everything around it.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter, sleep
from typing import Any

import heliograph as hg
from bench.harness import Bench, Rounds, Row, compare
from bench.latency import percentile_99
from bench.samples import PAYLOADS, TYPE

ARRIVES_S = 60.0
LOOK_S = 0.002
Send = Callable[[int], None]
There = Callable[[int], bool]


def run(bench: Bench, spark: Any, path: Path) -> list[Row]:
    """The middle and the tail of each round; a stream is started for each round, and warmed up."""
    count, warm = int(bench.either(60, 3)), int(bench.either(10, 1))
    tails: Rounds = {"raw": [], "ours": []}

    def middle(name: str, way: Callable[..., Any]) -> float:
        with way(spark, path / name) as (send, there):
            found = [seconds(send, there, number) * 1000 for number in range(warm + count)][warm:]
        shutil.rmtree(path / name)
        tails[name].append(percentile_99(found))
        return median(found)

    middles = bench.measure(
        {"raw": partial(middle, "raw", files), "ours": partial(middle, "ours", channels)}, int(bench.either(5, 1))
    )
    tails = {name: found[1:] for name, found in tails.items()}  # without the warm-up
    row = partial(compare, "spark", unit="ms", name="ours", raw_is="file source to file sink, a file for each message")
    return [
        row("micro-batch, channel to channel, p50", rounds=middles),
        row("micro-batch, channel to channel, p99", rounds=tails),
    ]


def seconds(send: Send, there: There, number: int) -> float:
    """How long one message takes."""
    started = perf_counter()
    send(number)
    while not there(number):
        if perf_counter() - started > ARRIVES_S:
            raise TimeoutError(f"message {number} did not arrive")
        sleep(LOOK_S)
    return perf_counter() - started


@contextmanager
def channels(spark: Any, path: Path) -> Iterator[tuple[Send, There]]:
    """Ours: durable when it is published, durable when it is there."""
    with hg.open(path / "data", name="bench") as station:
        for name in ("in", "out"):
            station.create_channel(name)
        stream = spark.readStream.format("heliograph").option("path", str(path / "data")).option("channel", "in")
        write = stream.load().select("data").writeStream.format("heliograph").option("path", str(path / "data"))
        query = started(write.option("channel", "out"), path)

        def send(_: int) -> None:
            station.publish("in", PAYLOADS[0], type=TYPE)

        def there(number: int) -> bool:
            return station.engine.bounds("out").next > number

        try:
            yield send, there
        finally:
            query.stop()


@contextmanager
def files(spark: Any, path: Path) -> Iterator[tuple[Send, There]]:
    """Spark's own: a file that is moved into place, and what the sink's log says is there."""
    (path / "in").mkdir(parents=True)
    line = json.dumps({"data": PAYLOADS[0]})
    stream = spark.readStream.schema("data STRING").json(str(path / "in"))
    query = started(stream.writeStream.format("json").option("path", str(path / "out")), path)

    def send(number: int) -> None:
        (path / "new").write_text(line)
        (path / "new").rename(path / "in" / f"{number}.json")

    def there(number: int) -> bool:
        noted = path / "out" / "_spark_metadata"
        return (noted / str(number)).exists() or (noted / f"{number}.compact").exists()

    try:
        yield send, there
    finally:
        query.stop()


def started(writer: Any, path: Path) -> Any:
    """A query that looks for news again at once."""
    return writer.option("checkpointLocation", str(path / "checkpoint")).trigger(processingTime="0 seconds").start()
