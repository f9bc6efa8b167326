"""Spark, more of it: two workers beside one, and many messages beside few."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import heliograph as hg
from bench.harness import ROOT, Bench, Goal, Row, compare
from bench.samples import CHANNEL, PAYLOADS, TYPE

MILLION = 1_000_000


def fill(path: Path, count: int) -> None:
    """One partition, as a publisher of batches with keys makes it; what is there already stays."""
    payloads = (PAYLOADS * 10)[:1000]
    with hg.open(path, name="bench", durability="os") as station:
        there = sum(info.messages for info in station.channels() if info.name == CHANNEL)
        for first in range(there, count, len(payloads)):
            station.publish_many(CHANNEL, payloads, type=TYPE, key=f"k{first % 13}")


# -- two workers beside one -------------------------------------------------------------------------------------------


def workers(bench: Bench, data: Path, count: int, schema: str) -> list[Row]:
    """The same table, read by Sparks with one and with two workers, each in a process of its own.

    A worker's Java and Python work beside each other, so one alone uses half of a second core as well, if it may. Where
    somebody sees to it that a worker has one core, as Kubernetes and YARN do, it may not: that is the other row, which
    Linux alone can show.
    """
    numbers = {"one": 1, "two": 2} | ({"alone": 1} if sys.platform == "linux" else {})
    with ExitStack() as stack:
        sparks = {
            name: stack.enter_context(spark_with(number, data, schema, alone=name == "alone"))
            for name, number in numbers.items()
        }
        found = bench.measure(
            {name: partial(lambda spark: count / spark(), spark) for name, spark in sparks.items()},
            int(bench.either(5, 1)),
        )
    row = partial(compare, "spark", rounds=found, unit="rows/s", name="two", goal=Goal(ratio_min=1.4))
    rows = [row("table of a channel, two workers", raw="one", raw_is="one worker, on the same machine")]
    if "alone" in numbers:
        rows.append(row("table of a channel, two workers on two cores", raw="alone", raw_is="one worker on one core"))
    return rows


@contextmanager
def spark_with(number: int, data: Path, schema: str, *, alone: bool) -> Iterator[Callable[[], float]]:
    """A Spark with so many workers; call it to read everything once, and hear how many seconds that took.

    ``alone``: on one core of the machine.
    """
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)])}
    core = str(min(os.sched_getaffinity(0))) if alone else ""
    process = subprocess.Popen(
        [sys.executable, "-m", "bench.spark_scale", str(number), str(data), schema, core], stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment,
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    asking, answers = process.stdin, process.stdout

    def read() -> float:
        print("read", file=asking, flush=True)
        return float(answers.readline())

    try:
        yield read
    finally:
        asking.close()
        process.wait(60)
        answers.close()


def serve(number: str, data: str, schema: str, core: str) -> None:
    """In that process: read whenever a line comes."""
    if core:
        os.sched_setaffinity(0, {int(core)})
    from heliograph.spark import session

    spark = session("bench", master=f"local[{number}]", spark__driver__memory="1g")
    for _ in sys.stdin:
        started = perf_counter()
        consume(table(spark, Path(data), schema))
        print(perf_counter() - started, flush=True)
    spark.stop()


def table(spark: Any, data: Path, schema: str, **options: str) -> Any:
    """The channel, or a part of it."""
    read = spark.read.format("heliograph").schema(schema).option("path", str(data)).option("channel", CHANNEL)
    return read.options(**options).load()


def consume(frame: Any) -> None:
    """Make every row and keep none."""
    frame.write.format("noop").mode("overwrite").save()


# -- many messages beside few -----------------------------------------------------------------------------------------


def line(bench: Bench, spark: Any, data: Path, schema: str) -> list[Row]:
    """How long tables of different sizes take: a straight line, if a message costs the same in each."""
    smallest, *larger = bench.sizes(
        normal=[MILLION, 2 * MILLION, 5 * MILLION, 10 * MILLION], quick=[5_000, 10_000],
        long=[MILLION, 5 * MILLION, 10 * MILLION, 20 * MILLION, 50 * MILLION],
    )  # fmt: skip
    fill(data, larger[-1])

    def rate(size: int) -> float:
        started = perf_counter()
        consume(table(spark, data, schema, endingOffsets=str(size)))
        return size / (perf_counter() - started)

    rounds = 1 if bench.long else int(bench.either(3, 1))  # 50 million take minutes
    found = bench.measure({str(size): partial(rate, size) for size in (smallest, *larger)}, rounds)
    rows = []
    for size in larger:
        seconds = size / median(found[str(size)])
        rows.append(
            compare(
                "spark", f"table of {told(size)} messages, {seconds:.3g} s", found, str(size), raw=str(smallest),
                unit="rows/s", raw_is=f"table of {told(smallest)} messages", goal=Goal(ratio_min=0.8),
            )
        )  # fmt: skip
    return rows


def told(size: int) -> str:
    """A size in words.

    >>> told(50_000_000), told(5_000)
    ('50 million', '5,000')
    """
    return f"{size // MILLION} million" if size >= MILLION else f"{size:,}"


if __name__ == "__main__":
    serve(*sys.argv[1:])
