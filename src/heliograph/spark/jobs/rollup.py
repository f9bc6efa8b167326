"""``rollup``: how much there was, and how long it took to arrive, per channel, origin, type and minute.

Latency is the time from a message's own ``time`` to when it was stored in the log that is read. For a message from
elsewhere that is all hops together; the logs of the stations on its way (``--also``) tell how far it had come after
each. It is measured on the messages whose storing the log has a time of (column ``appended``): ``measured`` says how
many these were. What publishers say to be the time, and clocks that differ, are taken as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from heliograph.spark.pipelines import Input, Option, Output, pipeline

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

TYPE: Final = "heliograph.rollup.v1"
"""What is published about messages is none of those that are counted."""
HERE: Final = "here"
COLUMNS: Final = (
    "channel STRING, time TIMESTAMP, type STRING, origin STRING, data STRING, bytes BINARY, appended TIMESTAMP"
)
_LAST: Final = "9999-12-31T23:59:59.999999Z"
"""No message can have a later time, though a window may end later."""
_PERCENTILES: Final = {"p50": 0.5, "p95": 0.95, "p99": 0.99}

OPTIONS: Final = (
    Option("channel", "Only these: one, several (a,b) or a pattern.  [default: all]", kind="channel", default=">"),
    Option("start", "Where to begin: first, new, a time or an age such as -1h.  [default: first]", default="first"),
    Option("every", "How long a window is.  [default: 1m]", kind="duration", default=60.0, fixed=True),
    Option("late", "How late a message may come to a stream.  [default: 2m]", kind="duration", default=120.0),
    Option("also", "Directory of another station on the way; may be repeated.", kind="path", several=True),
)


def inputs(channel: str, start: str, also: tuple[str, ...], **_: Any) -> dict[str, Input]:
    """This station's messages, and those of the others, by where they are."""
    options = {"startingOffsets": start}
    found = {"messages": Input(channel, options, COLUMNS)}
    for number, directory in enumerate(also):
        found[f"also_{number}"] = Input(channel, options, COLUMNS, directory)
    return found


@pipeline(
    "rollup",
    inputs=inputs,
    options=OPTIONS,
    output=Output("parquet", "rollup"),
    trigger="available-now",
    examples="""\
helio pipeline run rollup --trigger batch --to table
helio pipeline run rollup --trigger '10 seconds'
helio pipeline run rollup --channel 'sensors.>' --every 1h --to parquet:hours
helio pipeline run rollup --trigger batch --to table --also ../hub""",
)
def rollup(messages: DataFrame, every: float, late: float, also: tuple[str, ...], **others: Any) -> DataFrame:
    """Messages, bytes and latency per minute, station, channel, origin and type.

    A batch counts everything that is there; a stream writes a window when no message of it can come any more, which
    is when one has come that is later than its end by more than --late. Bytes are those of payloads. Latency is in
    milliseconds from a message's time to when this station (or one named by --also) stored it, of as many messages as
    'measured' says.
    """
    found = counted(_together(messages, also, others), every, late)
    return found if found.isStreaming else found.orderBy("minute", "station", "channel", "origin", "type")


@pipeline(
    "rollup-channel",
    inputs=inputs,
    options=OPTIONS,
    output=Output("channel", "rollup"),
    trigger="10 seconds",
    examples="""\
helio pipeline run rollup-channel
helio pipeline run rollup-channel --trigger available-now --to channel:figures
helio sub rollup""",
)
def rollup_channel(messages: DataFrame, every: float, late: float, also: tuple[str, ...], **others: Any) -> DataFrame:
    """The rollup as messages, for a dashboard to chart: one per window, station, channel, origin and type.

    See rollup for what is in them. Their key is the channel that is counted, their time the end of the window.
    """
    from pyspark.sql import functions as F

    found = counted(_together(messages, also, others), every, late)
    return found.select(
        F.col("channel").alias("key"),
        F.least(F.col("minute") + F.make_dt_interval(secs=F.lit(every)), F.lit(_LAST).cast("timestamp")).alias("time"),
        F.lit(TYPE).alias("type"),
        F.to_json(F.struct(*found.columns), {"timestampFormat": "yyyy-MM-dd'T'HH:mm:ssXXX"}).alias("data"),
    )


def _together(messages: DataFrame, also: tuple[str, ...], others: Mapping[str, Any]) -> DataFrame:
    from pyspark.sql import functions as F

    found = messages.withColumn("station", F.lit(HERE))
    paths = [Path(directory).resolve() for directory in also]
    names = [HERE, *(path.name for path in paths)]
    for number, path in enumerate(paths):
        name = path.name if names.count(path.name) == 1 else str(path)
        found = found.unionByName(others[f"also_{number}"].withColumn("station", F.lit(name)))
    return found


def counted(messages: DataFrame, every_s: float, late_s: float) -> DataFrame:
    """The figures of messages with column ``station``."""
    from pyspark.sql import functions as F

    windows = (
        prepared(messages)
        .withWatermark("time", f"{round(late_s * 1000)} milliseconds")
        .groupBy(F.window("time", f"{round(every_s * 1000)} milliseconds"), "station", "channel", "origin", "type")
    )
    found = windows.agg(*figures())
    return found.select(F.col("window.start").alias("minute"), *found.columns[1:])


def prepared(messages: DataFrame) -> DataFrame:
    """Those messages that count, with their latency, and of their origin the station."""
    from pyspark.sql import functions as F

    latency = (F.unix_micros("appended") - F.unix_micros("time")) / 1000
    origin = F.regexp_replace("origin", r"\.[^.]*$", "")
    return messages.where(F.col("type") != TYPE).withColumns({"latency": latency, "origin": origin})


def figures() -> list[Column]:
    """What is told of some messages."""
    from pyspark.sql import functions as F

    size = F.coalesce(F.octet_length("data"), F.lit(0)) + F.coalesce(F.octet_length("bytes"), F.lit(0))
    percentiles = {name: F.percentile_approx("latency", share, 1000) for name, share in _PERCENTILES.items()}
    return [
        F.count("*").alias("messages"),
        F.sum(size).cast("bigint").alias("bytes"),
        F.count("latency").alias("measured"),
        *(F.round(one, 3).alias(f"latency_{name}_ms") for name, one in percentiles.items()),
        F.round(F.max("latency"), 3).alias("latency_max_ms"),
    ]
