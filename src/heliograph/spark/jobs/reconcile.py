"""``reconcile``: do several stations, or their archives, have the same messages?

A message's identity is its channel, its origin and its sequence there, wherever it is; so two logs are compared without
looking at offsets. Repair gives a station the stored lines that it lacks, as a link would: byte for byte, each once,
under the origin that they have. What a station had before, and retention or redaction removed, it does not take again.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

import msgspec

from heliograph.errors import ConfigError
from heliograph.names import DEAD_LETTER, REPLY
from heliograph.patterns import Pattern, is_pattern
from heliograph.spark.jobs._places import Place, places
from heliograph.spark.pipelines import Option, Result, Run, procedure
from heliograph.station.station import open_station

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_IDENTITY: Final = ("channel", "origin", "sequence_partition", "sequence")
_CONTENT: Final = (
    "id", "source", "type", "key", "subject", "correlationid", "traceparent", "data", "bytes",
)  # fmt: skip
_TIMES: Final = ("time", "expires")
_STEP: Final = 1000
"""How many lines a station gets at once."""


class Taken(msgspec.Struct, kw_only=True):
    """What became of a station's missing messages."""

    station: str
    appended: int = 0
    had_before: int = 0
    refused: int = 0
    why: str = ""


@procedure(
    "reconcile",
    options=(
        Option(
            "also",
            "Another station's directory, or an archive; may be repeated.",
            kind="path",
            needed=True,
            several=True,
        ),
        Option("channel", "Only these: one, several (a,b) or a pattern; else all that two have.", kind="channel"),
        Option("settle", "Leave out what is younger: it may be on its way.", kind="duration", default=0.0),
        Option("repair", "Give every station what it lacks and another one has.", kind="flag", default=False),
    ),
    examples="""\
helio pipeline run reconcile -d host1 --also hub
helio pipeline run reconcile -d host1 --also hub --also host3 --settle 1m
helio pipeline run reconcile -d host1 --also /backup/archive --json
helio pipeline run reconcile -d host1 --also hub --repair""",
)
def reconcile(run: Run, also: tuple[str, ...], channel: str | None, settle: float, repair: bool) -> Result:
    """Compare the messages of two or more stations or archives; the exit code is 1 if they differ.

    A row for each channel, origin and place: how many messages are there, are missing (another place has them), are
    there more than once, stand behind later ones of their origin, or are not the same as elsewhere. Below, the
    messages themselves.

    --repair appends the stored lines that a station lacks, as a link would have brought them: byte for byte, under the
    origin and sequence that they have, each once. Lines are taken from logs; archives do not keep them. A station
    does not take what it had before and was removed there; its own messages are never given back to it.
    """
    there = places([run.path, *also])
    chosen = compared(there, channel)
    messages = labelled([one.read(run, chosen) for one in there], there, settle).cache()
    try:
        found = compare(messages, [one.name for one in there])
        summary = [row.asDict() for row in found.pop("summary").collect()]  # before anything is repaired
        tables = {name: table.cache() for name, table in found.items()}
        counts = {name: table.count() for name, table in tables.items()}
        facts: dict[str, Any] = {"places": [one.name for one in there], "channels": chosen, **counts}
        unmended, repaired = counts["missing"], {}
        if repair and counts["missing"]:
            taken = [_repaired(run, there, one, tables["missing"], chosen) for one in there if not one.archive]
            repaired = {"repaired": [msgspec.to_builtins(one) for one in taken]}
            unmended = counts["missing"] - _mended(there, tables["missing"], taken)
        bad = bool(unmended or counts["duplicated"] or counts["reordered"] or counts["differing"])
        shown = {name: table for name, table in tables.items() if counts[name]}
        return Result({"summary": summary, **shown, **repaired}, facts, bad)
    finally:
        messages.unpersist()


def compared(there: list[Place], channel: str | None) -> list[str]:
    """The channels that are compared: those that are meant, or else all that at least two places have."""
    every = [name for one in there for name in one.channels()]
    if channel is None:
        internal = (DEAD_LETTER, REPLY)
        return sorted({
            name for name in every
            if every.count(name) > 1 and not name.endswith(internal[0]) and not name.startswith(internal[1])
        })  # fmt: skip
    words = [word.strip() for word in channel.split(",") if word.strip()]
    fits = [Pattern(word).matches if is_pattern(word) else word.__eq__ for word in words]
    found = sorted({name for name in every if any(fit(name) for fit in fits)})
    if not found:
        raise ConfigError(f"none of {', '.join(one.name for one in there)} has a channel '{channel}'")
    return found


# -- pure -------------------------------------------------------------------------------------------------------------


def labelled(tables: list[DataFrame], there: list[Place], settle_s: float) -> DataFrame:
    """The messages of all places with their identity, and a digest of what they say."""
    from pyspark.sql import functions as F

    times = [F.unix_micros(name).alias(name) for name in _TIMES]  # as text they would end at the millisecond
    content = F.to_json(F.struct(*_CONTENT, *times, F.sort_array(F.map_entries("headers")).alias("headers")))
    found = [table.withColumn("place", F.lit(one.name)) for table, one in zip(tables, there, strict=True)]
    whole = reduce(lambda one, other: one.unionByName(other), found).withColumn("digest", F.xxhash64(content))
    if settle_s:
        whole = whole.where(F.col("time") < F.current_timestamp() - F.make_dt_interval(secs=F.lit(settle_s)))
    sequence = F.split("originseq", "/")
    return whole.select(
        "place", "channel", "partition", "offset", "id", "time", "type", "origin", "originseq", "digest",
        F.get(sequence, 0).try_cast("int").alias("sequence_partition"),
        F.get(sequence, 1).try_cast("bigint").alias("sequence"),
    )  # fmt: skip


def compare(messages: DataFrame, names: list[str]) -> dict[str, DataFrame]:
    """What is not the same everywhere: a summary, and what is missing, duplicated, reordered and differing."""
    from pyspark.sql import functions as F

    each = messages.groupBy(*_IDENTITY, "originseq", "place").agg(
        F.count("*").alias("copies"),
        F.first("digest").alias("digest"),
        F.first("id").alias("id"),
        F.first("type").alias("type"),
        F.first("time").alias("time"),
    )
    every = F.array(*(F.lit(name) for name in names))
    known = each.groupBy(*_IDENTITY, "originseq").agg(
        F.array_sort(F.collect_set("place")).alias("is_in"),
        F.count_distinct("digest").alias("versions"),
        F.first("id").alias("id"),
        F.first("type").alias("type"),
        F.first("time").alias("time"),
    )
    shown = ["channel", "origin", "originseq", "id", "type", "time"]
    order = list(_IDENTITY)
    lacking = F.array_except(every, "is_in")
    missing = (
        known.where(F.size("is_in") < len(names)).withColumn("is_not_in", lacking).orderBy(*order)
        .select(*shown, "is_in", "is_not_in")
    )  # fmt: skip
    tables = {
        "missing": missing,
        "duplicated": each.where("copies > 1").orderBy(*order).select("place", *shown, "copies"),
        "reordered": reordered(messages).select("place", *shown, "partition", "offset", "behind"),
        "differing": known.where("versions > 1").orderBy(*order).select(*shown, "is_in", "versions"),
    }
    return {"summary": _summary(each, tables), **tables}


def reordered(messages: DataFrame) -> DataFrame:
    """Messages that stand behind a later one of the same origin and partition there, in the same partition here."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    line = Window.partitionBy("place", "channel", "partition", "origin", "sequence_partition").orderBy("offset")
    before = F.max("sequence").over(line.rowsBetween(Window.unboundedPreceding, -1))
    return messages.withColumn("behind", before).where("sequence < behind").orderBy("place", "channel", "offset")


def _summary(each: DataFrame, tables: dict[str, DataFrame]) -> DataFrame:
    from pyspark.sql import functions as F

    group = ["channel", "origin", "place"]
    counts = [each.groupBy(*group).agg(F.sum("copies").alias("messages"))]
    for name, table in tables.items():
        column = {"missing": "is_not_in", "differing": "is_in"}.get(name)
        placed = table if column is None else table.withColumn("place", F.explode(column))
        counts.append(placed.groupBy(*group).agg(F.count("*").alias(name)))
    found = reduce(lambda one, other: one.join(other, group, "full"), counts)
    return found.fillna(0).orderBy(*group)


# -- repair -----------------------------------------------------------------------------------------------------------


def _repaired(run: Run, there: list[Place], target: Place, missing: DataFrame, channels: list[str]) -> Taken:
    """Give a station what it lacks, of the first place with a log that has it."""
    from pyspark.sql import functions as F

    taken = Taken(station=target.name)
    lacks = missing.where(F.array_contains("is_not_in", target.name)).select("channel", "origin", "originseq", "is_in")
    sources = [one for one in there if not one.archive and one != target]
    with open_station(target.path) as station:
        for at, source in enumerate(sources):
            earlier = [F.array_contains("is_in", one.name) for one in sources[:at]]
            wanted = lacks.where(F.array_contains("is_in", source.name))
            wanted = reduce(lambda rows, had: rows.where(~had), earlier, wanted)
            lines = source.read(run, channels, ", raw STRING").join(
                wanted.drop("is_in"), ["channel", "origin", "originseq"], "leftsemi"
            )
            ordered = lines.orderBy("channel", "partition", "offset").select("channel", "raw").toLocalIterator()
            for channel, batch in _batches(ordered):
                if run.stopping():
                    taken.why = taken.why or "it was stopped"
                    return taken
                arrival = station.engine.relayed.arrive(channel, batch)
                taken.appended += arrival.appended
                taken.had_before += arrival.duplicates
                taken.refused += len(arrival.refused)
                taken.why = taken.why or next((why for _, why in arrival.refused), "")
    return taken


def _batches(rows: Iterator[Any]) -> Iterator[tuple[str, list[bytes]]]:
    for channel, group in groupby(rows, lambda row: row["channel"]):
        lines: list[bytes] = []
        for row in group:
            lines.append(row["raw"].encode())
            if len(lines) >= _STEP:
                yield str(channel), lines
                lines = []
        if lines:
            yield str(channel), lines


def _mended(there: list[Place], missing: DataFrame, taken: list[Taken]) -> int:
    """How many of the missing messages are nowhere missing any more; told from what was appended."""
    from pyspark.sql import functions as F

    full = {one.station for one in taken if not (one.had_before or one.refused or one.why)}
    stations = {one.name for one in there if not one.archive}
    mended = [F.lit(name) for name in sorted(full)]
    logs = [F.lit(name) for name in sorted(stations)]
    everywhere = F.size(F.array_except("is_not_in", F.array(*mended))) == 0
    return missing.where(everywhere & F.arrays_overlap("is_in", F.array(*logs))).count() if mended else 0
