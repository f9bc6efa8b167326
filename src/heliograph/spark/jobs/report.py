"""``report``: one HTML file about a station: how much there was, how quickly, what failed, what payloads are like."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from heliograph.disk import SYSTEM_DISK, explaining
from heliograph.errors import ConfigError
from heliograph.names import DEAD_LETTER
from heliograph.spark.jobs import rollup as rollups
from heliograph.spark.jobs import triage as letters
from heliograph.spark.jobs import types as payloads
from heliograph.spark.jobs._fields import registered
from heliograph.spark.jobs._page import Figures, page
from heliograph.spark.jobs._places import place
from heliograph.spark.options import Channels
from heliograph.spark.pipelines import Input, Option, Result, Run, procedure
from heliograph.spark.pipelines.tables import records_of, values_of
from heliograph.station.starts import is_offset

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_DAY_S: Final = 86400
_STEPS_S: Final = (
    1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, _DAY_S, 2 * _DAY_S, 7 * _DAY_S,
    30 * _DAY_S, 90 * _DAY_S, 365 * _DAY_S, 3650 * _DAY_S, 36500 * _DAY_S,
)  # fmt: skip
"""The longest are for messages whose publisher has the year 9999 for a time that never comes."""
_WINDOWS: Final = 96
_COLUMNS: Final = "channel STRING, offset BIGINT, id STRING, time TIMESTAMP, data STRING"


@procedure(
    "report",
    options=(
        Option("output", "The file that is written.  [default: report.html]", kind="path", default="report.html"),
        Option("channel", "Only these: one, several (a,b) or a pattern.  [default: all]", kind="channel", default=">"),
        Option("start", "Where to begin: first, a time or an age such as -1d.  [default: first]", default="first"),
        Option("title", "What stands at the top."),
    ),
    examples="""\
helio pipeline report -o report.html
helio pipeline run report --output today.html --start -1d --channel 'orders.>'""",
)
def report(run: Run, output: str, channel: str, start: str, title: str | None) -> Result:
    """Write an HTML report of a station: messages and latency over time, channels, dead letters, payload types.

    It is one file without scripts and links to elsewhere, to be sent and kept; light or dark as the reader's screen.
    It is made from what rollup, triage and types find.
    """
    target = Path(output)
    if target.is_dir() or not target.parent.is_dir():  # said now, not when all is read
        raise ConfigError(
            f"cannot write {target}: " + ("it is a directory" if target.is_dir() else "there is no such directory")
        )
    found = _figures(run, channel, start, title)
    with explaining(f"cannot write {target}"):
        SYSTEM_DISK.replace_file(target, page(found).encode())
    facts = {"file": str(target), "messages": sum(row["messages"] for row in found.channels)}
    return Result({}, facts | {"letters": sum(one["letters"] for one in found.clusters), "drift": len(found.drift)})


def _figures(run: Run, channel: str, start: str, title: str | None) -> Figures:
    options = {"startingOffsets": start, "failOnGap": "false"}
    messages = rollups.prepared(run.read(Input(channel, options, rollups.COLUMNS))).cache()
    try:
        ((first, last),) = values_of(messages.selectExpr("min(time)", "max(time)"))
        every_s = step_s(first, last)
        counts = payloads.collected(payloads.counted(messages))
        drift = []
        for key, fields in sorted(counts.items()):
            schema = payloads.registered_schema(run.path, *key)
            drift += [] if schema is None else payloads.drifted(key, fields, registered(schema))
        return Figures(
            station=place(run.path).name, title=title, made=datetime.now(UTC), first=first, last=last, every_s=every_s,
            channels=_by_channel(messages), windows=_by_time(messages, every_s), latency=_latency(messages, every_s),
            clusters=_clusters(run, channel, start), drift=drift,
            fields=[row for key, fields in sorted(counts.items()) for row in payloads.described(key, fields)],
        )  # fmt: skip
    finally:
        messages.unpersist()


def step_s(first: datetime | None, last: datetime | None) -> int:
    """How long a window is, so that there are not too many to be drawn.

    >>> step_s(datetime(2026, 11, 15, 20, tzinfo=UTC), datetime(2026, 11, 15, 22, tzinfo=UTC))
    120
    >>> step_s(datetime(1970, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, tzinfo=UTC)) // 86400
    36500
    """
    span = (last - first) if first is not None and last is not None else timedelta(0)
    return next((step for step in _STEPS_S if span.total_seconds() / step <= _WINDOWS), _STEPS_S[-1])


def _by_channel(messages: DataFrame) -> list[dict[str, Any]]:
    from pyspark.sql import functions as F

    more = [F.count_distinct("origin").alias("origins"), F.count_distinct("type").alias("types")]
    rows = messages.groupBy("channel").agg(*rollups.figures(), *more).orderBy(F.desc("messages"), "channel")
    return [row.asDict() for row in rows.collect()]


def _by_time(messages: DataFrame, every_s: int) -> list[dict[str, Any]]:
    from pyspark.sql import functions as F

    rows = messages.groupBy(F.window("time", f"{every_s} seconds").start.alias("at"), "channel").agg(
        F.count("*").alias("messages")
    )
    return records_of(rows)


def _latency(messages: DataFrame, every_s: int) -> list[dict[str, Any]]:
    from pyspark.sql import functions as F

    known = messages.where(F.col("latency").isNotNull())
    rows = known.groupBy(F.window("time", f"{every_s} seconds").start.alias("at")).agg(*rollups.figures())
    return records_of(rows)


def _clusters(run: Run, channel: str, start: str) -> list[dict[str, Any]]:
    """Those of the channels that are meant, given up since then: of messages that may be older, and deleted."""
    originals = {name: name.removesuffix(DEAD_LETTER) for name in letters.dead_channels(run.path)}
    meant = Channels(channel).among(list(originals.values()))
    names = [name for name, original in originals.items() if original in meant]
    if not names:
        return []
    begin = "first" if is_offset(start) or start.startswith("{") else start  # offsets are those of the messages
    options = {"startingOffsets": begin, "failOnGap": "false"}
    return letters.clusters(letters.letters(run.read(Input(",".join(names), options, _COLUMNS))))
