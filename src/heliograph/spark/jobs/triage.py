"""``triage``: dead letters clustered by what went wrong, and redriven by an SQL condition."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from heliograph.admin import dead
from heliograph.admin.letters import original_channel
from heliograph.errors import ConfigError, NotFound
from heliograph.names import DEAD_LETTER
from heliograph.spark.pipelines import Input, Option, Result, Run, procedure
from heliograph.spark.pipelines.tables import records_of
from heliograph.station.station import open_station

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_COLUMNS: Final = "channel STRING, offset BIGINT, id STRING, time TIMESTAMP, data STRING"
_LETTER: Final = (
    "original STRING, reason STRING, error STRING, error_type STRING, attempts INT, subscription STRING, "
    "`group` STRING, queue STRING, peer STRING, failed_at TIMESTAMP"
)
PLACEHOLDERS: Final = (
    (r"\s+", " "),
    (r"[a-zA-Z][a-zA-Z0-9+.-]*://[^\s'\"<>]+", "<url>"),
    (r"[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}", "<id>"),
    (r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d+)?)?(Z|[+-]\d\d:?\d\d)?", "<time>"),
    (r"(?<![\w.<])(~|\.{1,2})?(/[\w.@%+=:-]+){2,}/?", "<path>"),
    (r"\b0x[0-9a-fA-F]+\b", "<id>"),
    (r"\b(?=[0-9a-fA-F]*\d)(?=[0-9a-fA-F]*[a-fA-F])[0-9a-fA-F]{8,}\b", "<id>"),
    (r"\b\d{1,3}(\.\d{1,3}){3}(:\d+)?\b", "<address>"),
    (r"(?<![a-zA-Z0-9_])[+-]?\d+(\.\d+)?([eE][+-]?\d+)?", "<n>"),
    (r"\d+", "<n>"),
)
"""What differs between two errors that are the same, and what stands for it."""
_ERROR_CHARS: Final = 160
_BARS: Final = "▁▂▃▄▅▆▇█"
BINS: Final = 16
_CLUSTER: Final = ("channel", "subscription", "kind", "type", "reason", "error_type", "pattern")


@procedure(
    "triage",
    options=(
        Option("channel", "Only the letters of this channel; may be repeated.", kind="channel", several=True),
        Option("where", "Only letters that fulfil this SQL condition."),
        Option("redrive", "Publish the originals again, each to who gave it up.", kind="flag", default=False),
        Option("to_all", "With --redrive: publish them for everybody.", kind="flag", default=False),
        Option("dry_run", "With --redrive: only say what would be done.", kind="flag", default=False),
    ),
    examples="""\
helio pipeline run triage
helio pipeline run triage --channel orders --where "attempts > 3"
helio pipeline run triage --redrive --dry-run --where "error like '%busy%'"
helio pipeline run triage --redrive --where "cluster = '3f9a01bc'"
""".rstrip(),
)
def triage(run: Run, channel: tuple[str, ...], where: str | None, redrive: bool, to_all: bool, dry_run: bool) -> Result:
    """Dead letters, clustered by channel, subscription, type and error, most first; redrive by condition.

    Errors that differ only in numbers, ids, times, addresses and paths are one. 'when' shows how the letters of a
    cluster are spread between the oldest and the newest of all.

    Conditions may use these columns: channel, subscription, kind (plain, group, queue or link), reason, error,
    error_type, pattern (the error without what differs), cluster, attempts, replays, failed_at, type, key,
    correlationid, id (the letter's), offset, original_id, and payload (the original's, a VARIANT: payload:total).

    --redrive publishes the originals of the letters that are shown once more, and removes the letters: as 'helio dead
    replay' does, for the subscription that gave them up. It may be interrupted and repeated: each is published once.
    """
    if (to_all or dry_run) and not redrive:
        raise ConfigError("--to-all and --dry-run say how to redrive; add --redrive")
    if redrive and where is None and not channel:
        raise ConfigError("redrive which letters? Say --where or --channel; --where true means all")
    names = dead_channels(run.path, channel)
    if not names:
        if where is not None:  # a column that there is not is told all the same
            letters(run.spark.createDataFrame([], _COLUMNS)).where(where).schema  # noqa: B018 - asking for it is enough
        return Result({"clusters": []}, {"letters": 0})
    found = letters(run.read(Input(",".join(names), {"failOnGap": "false"}, _COLUMNS)))
    if where is not None:
        found = found.where(where)
    found = found.cache()
    try:
        groups = clusters(found)
        facts: dict[str, Any] = {"letters": sum(group["letters"] for group in groups), "clusters": len(groups)}
        if redrive:
            chosen = offsets(found)
            facts |= redriven(run, chosen, to_all=to_all, dry_run=dry_run)
        return Result({"clusters": groups}, facts)
    finally:
        found.unpersist()


def dead_channels(path: Path, chosen: Sequence[str] = ()) -> list[str]:
    """The channels of dead letters of a station, or those of some of its channels: one may have none yet."""
    from heliograph.spark.directory import Directory

    with Directory(str(path)) as directory:
        names = directory.engine.channel_names()
    if not chosen:
        return [name for name in names if name.endswith(DEAD_LETTER)]
    originals = list(dict.fromkeys(map(original_channel, chosen)))
    unknown = [name for name in originals if name not in names and name + DEAD_LETTER not in names]
    if unknown:
        raise NotFound(f"there is no channel '{unknown[0]}' in {path}")
    return [name + DEAD_LETTER for name in originals if name + DEAD_LETTER in names]


# -- pure -------------------------------------------------------------------------------------------------------------


def pattern(error: Column) -> Column:
    """An error without what differs from case to case."""
    from pyspark.sql import functions as F

    for expression, placeholder in PLACEHOLDERS:
        error = F.regexp_replace(error, expression, placeholder)
    return F.substring(F.trim(error), 1, _ERROR_CHARS)


def letters(stored: DataFrame) -> DataFrame:
    """Dead letters as a table, of messages in channels of dead letters."""
    from pyspark.sql import functions as F

    def original(name: str) -> Column:
        return F.get_json_object("letter.original", f"$.{name}")

    def text(name: str) -> Column:
        return F.coalesce(F.col(f"letter.{name}"), F.lit(""))

    kind = (
        F.when(F.col("letter.peer").isNotNull(), "link")
        .when(F.col("letter.group").isNotNull(), "group")
        .when(F.col("letter.queue").isNotNull(), "queue")
        .otherwise("plain")
    )
    found = stored.withColumn("letter", F.from_json("data", _LETTER)).select(
        F.regexp_replace("channel", r"\.dead-letter$", "").alias("channel"),
        F.coalesce("letter.peer", text("subscription")).alias("subscription"),
        kind.alias("kind"),
        F.coalesce(original("type"), F.lit("")).alias("type"),
        F.coalesce("letter.reason", F.lit("unknown")).alias("reason"),
        text("error_type").alias("error_type"),
        text("error").alias("error"),
        pattern(text("error")).alias("pattern"),
        F.coalesce("letter.attempts", F.lit(0)).alias("attempts"),
        F.coalesce(original("replaycount").try_cast("int"), F.lit(0)).alias("replays"),
        F.coalesce("letter.failed_at", "time").alias("failed_at"),
        original("partitionkey").alias("key"),
        original("correlationid").alias("correlationid"),
        original("id").alias("original_id"),
        F.try_variant_get(F.try_parse_json("letter.original"), "$.data", "variant").alias("payload"),
        "id", "offset",
    )  # fmt: skip
    return found.withColumn("cluster", F.substring(F.sha2(F.concat_ws("\n", *_CLUSTER), 256), 1, 8))


def clusters(found: DataFrame) -> list[dict[str, Any]]:
    """What there is of each kind, most first."""
    from pyspark.sql import functions as F

    span = found.agg(
        F.unix_micros(F.min("failed_at")).alias("first"), F.unix_micros(F.max("failed_at")).alias("last")
    ).first()
    if span is None or span["first"] is None:
        return []
    first, last = span["first"] / 1e6, span["last"] / 1e6
    width = max((last - first) / BINS, 1e-6)
    at = F.least(F.floor((F.unix_micros("failed_at") / 1e6 - F.lit(first)) / F.lit(width)), F.lit(BINS - 1))
    rows = found.groupBy("cluster", *_CLUSTER).agg(
        F.count("*").alias("letters"),
        F.min("failed_at").alias("first"),
        F.max("failed_at").alias("last"),
        F.max("attempts").alias("attempts"),
        F.sum(F.when(F.col("replays") > 0, 1).otherwise(0)).alias("replayed"),
        F.min("id").alias("example"),
        F.collect_list(F.greatest(at, F.lit(0)).cast("int")).alias("bins"),
    )  # fmt: skip
    ordered = rows.orderBy(F.desc("letters"), F.desc("last"), "cluster")
    return [_shown(row) for row in records_of(ordered)]


def _shown(row: dict[str, Any]) -> dict[str, Any]:
    counts = [0] * BINS
    for at in row["bins"]:
        counts[at] += 1
    names = ("letters", "channel", "subscription", "kind", "type", "reason", "error_type", "pattern")
    more = ("first", "last", "attempts", "replayed", "example", "cluster")
    return {name: row[name] for name in names} | {"when": sparkline(counts)} | {name: row[name] for name in more}


def sparkline(counts: list[int]) -> str:
    """Numbers as bars; nothing is a dot.

    >>> sparkline([0, 1, 4, 8])
    '·▁▄█'
    """
    most = max(counts, default=0)
    return "".join([_BARS[(count * len(_BARS) - 1) // most] if count else "·" for count in counts])


# -- redrive ----------------------------------------------------------------------------------------------------------


def offsets(found: DataFrame) -> dict[str, list[int]]:
    """Where the letters are, by the channel of their originals."""
    chosen: dict[str, list[int]] = {}
    for row in found.select("channel", "offset").collect():
        chosen.setdefault(row["channel"], []).append(row["offset"])
    return chosen


def redriven(run: Run, chosen: Mapping[str, Collection[int]], *, to_all: bool, dry_run: bool) -> dict[str, Any]:
    """Publish the originals again and remove the letters, or say what would be done."""
    count, removed = 0, 0
    skipped: list[str] = []
    with open_station(run.path, read_only=dry_run) as station:
        for channel, places in sorted(chosen.items()):
            if run.stopping():
                break
            report = dead.replay(station, channel, offsets=places, to_all=to_all, dry_run=dry_run)
            count, removed = count + report.replayed, removed + report.removed
            skipped += [f"{channel} {one.id}: {one.reason}" for one in report.skipped]
    told: dict[str, Any] = {"would be redriven": count} if dry_run else {"redriven": count, "removed": removed}
    return told | ({"skipped": skipped} if skipped else {})
