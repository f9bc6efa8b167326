"""``trace``: what happened to a correlation id, a message or a trace, across channels and stations, in order of time.

Below a message stand its copies at other stations, the dead letters that it became, and what was published for it
again. When a log got a copy is told where the log knows (column ``appended``).
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from heliograph.names import DEAD_LETTER
from heliograph.spark.jobs._places import Place, places
from heliograph.spark.pipelines import Option, Result, Run, procedure
from heliograph.spark.pipelines.tables import records_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_BRANCH: Final = "└ "
_DATA_CHARS: Final = 60


class Event(NamedTuple):
    """One thing that happened: a message was published, stored, given up or published again."""

    time: datetime
    what: str
    depth: int
    station: str
    channel: str
    partition: int
    offset: int
    type: str
    id: str
    detail: str


@procedure(
    "trace",
    options=(
        Option("of", "A correlation id, a message's id, or a traceparent or its trace id.", needed=True),
        Option("also", "Another station's directory, or an archive; may be repeated.", kind="path", several=True),
        Option("channel", "Look only here; may be repeated.", kind="channel", several=True),
    ),
    examples="""\
helio pipeline run trace --of order-4711
helio pipeline run trace --of order-4711 --also ../hub --also ../host3
helio pipeline run trace --of 4bf92f3577b34da6a3ce929d0e0e4736 --json""",
)
def trace(run: Run, of: str, also: tuple[str, ...], channel: tuple[str, ...]) -> Result:
    """The timeline of a correlation id across channels and stations.

    Messages stand in the order of their time. Indented below each: its copies at other stations (when they got it, if
    their log knows), the dead letters that it became, and what was published for it again. A message's id finds
    also what has the same correlation id or trace.
    """
    there = places([run.path, *also])
    asked = {of}
    rows = _found(run, there, channel, asked)
    wider = asked | _relatives(rows)
    if wider != asked:
        rows = _found(run, there, channel, wider)
    events = timeline(rows)
    first = min((event.time for event in events), default=None)
    facts: dict[str, Any] = {
        "messages": len({event.id for event in events if event.what == "published"}),
        "stations": sorted({event.station for event in events}),
        "channels": sorted({event.channel for event in events}),
    }
    if first is not None:
        facts["took_ms"] = round((max(event.time for event in events) - first).total_seconds() * 1000, 3)
    return Result({"timeline": [_shown(event, first) for event in events]}, facts, bad=not events)


def _found(run: Run, there: list[Place], chosen: tuple[str, ...], asked: set[str]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for one in there:
        names = [name for name in one.channels() if not chosen or name.removesuffix(DEAD_LETTER) in chosen]
        more = "" if one.archive else ", appended TIMESTAMP"
        rows += records_of(about(one.read(run, names, more), asked, one.name))
    return rows


# -- pure -------------------------------------------------------------------------------------------------------------


def about(messages: DataFrame, asked: Iterable[str], place: str) -> DataFrame:
    """The messages that have one of some ids, as correlation id, id, trace, or as what they were made for."""
    from pyspark.sql import functions as F

    wanted = sorted(asked)
    dead = F.col("channel").endswith(DEAD_LETTER)

    def within(path: str) -> Any:
        return F.when(dead, F.get_json_object("data", f"$.original.{path}"))

    found = messages.withColumns({
        "original_id": within("id"),
        "original_correlationid": within("correlationid"),
        "original_trace": F.get(F.split(within("traceparent"), "-"), 1),
        "trace": F.get(F.split("traceparent", "-"), 1),
        "replayof": F.element_at("headers", "replayof"),
        "error": F.when(dead, F.get_json_object("data", "$.error")),
        "subscription": F.when(dead, F.get_json_object("data", "$.subscription")),
        "place": F.lit(place),
    })  # fmt: skip
    if "appended" not in messages.columns:
        found = found.withColumn("appended", F.lit(None).cast("timestamp"))
    names = ("id", "correlationid", "traceparent", "trace", "original_id", "original_correlationid", "original_trace",
             "replayof")  # fmt: skip
    fits = F.lit(False)
    for name in names:
        fits = fits | F.coalesce(F.col(name).isin(wanted), F.lit(False))
    return found.where(fits)


def _relatives(rows: Iterable[Any]) -> set[str]:
    """By what else the messages of these rows are known."""
    names = ("id", "correlationid", "trace", "original_id", "original_correlationid", "original_trace", "replayof")
    return {row[name] for row in rows if not row["channel"].endswith(DEAD_LETTER) for name in names if row[name]}


def timeline(rows: list[dict[str, Any]]) -> list[Event]:
    """What happened, in order: messages by time, and below each what belongs to it."""
    known: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for row in rows:
        known.setdefault((row["channel"], row["origin"], row["originseq"]), []).append(row)
    below: dict[str, list[list[dict[str, Any]]]] = {}
    tops: list[list[dict[str, Any]]] = []
    ids = {row["id"] for row in rows}
    for copies in known.values():
        above = copies[0]["original_id"] or copies[0]["replayof"]
        if above is not None and above in ids and above != copies[0]["id"]:
            below.setdefault(above, []).append(copies)
        else:
            tops.append(copies)
    events: list[Event] = []
    for copies in _by_time(tops):
        _tell(copies, 0, below, events)
    return events


def _by_time(messages: list[list[dict[str, Any]]]) -> list[list[dict[str, Any]]]:
    return sorted(messages, key=lambda copies: (copies[0]["time"], copies[0]["channel"], copies[0]["originseq"]))


def _tell(
    copies: list[dict[str, Any]], depth: int, below: dict[str, list[list[dict[str, Any]]]], events: list[Event]
) -> None:
    home = copies[0]["origin"].rpartition(".")[0]
    copies = sorted(copies, key=lambda row: (row["place"] != home, row["appended"] or row["time"], row["place"]))
    first = copies[0]
    what = "given up" if first["original_id"] else "published again" if first["replayof"] else "published"
    events.append(_event(first, what, depth, first["time"], station=home))
    for row in copies:
        if row["place"] != home:
            known = row["appended"] is not None
            events.append(
                _event(row, "stored" if known else "is there, too", depth + 1, row["appended"] or row["time"])
            )
    for others in _by_time(below.pop(first["id"], [])):
        _tell(others, depth + 1, below, events)


def _event(row: dict[str, Any], what: str, depth: int, time: datetime, station: str | None = None) -> Event:
    if row["original_id"]:
        detail = f"by '{row['subscription']}': {row['error']}" if row["subscription"] else str(row["error"])
    else:
        detail = row["data"] or ""
    return Event(
        time.astimezone(UTC), what, depth, station or row["place"], row["channel"], row["partition"], row["offset"],
        row["type"], row["id"], detail if what not in {"stored", "is there, too"} else "",
    )  # fmt: skip


def _shown(event: Event, first: datetime | None) -> dict[str, Any]:
    after_ms = (event.time - (first or event.time)).total_seconds() * 1000
    indent = "  " * (event.depth - 1) + _BRANCH if event.depth else ""
    detail = event.detail if len(event.detail) <= _DATA_CHARS else event.detail[: _DATA_CHARS - 1] + "…"
    return {
        "after_ms": round(after_ms, 3),
        "what": f"{indent}{event.what}",
        "station": event.station,
        "channel": event.channel,
        "type": event.type,
        "detail": detail,
        "place": f"{event.partition}/{event.offset}",
        "id": event.id,
        "time": event.time,
    }
