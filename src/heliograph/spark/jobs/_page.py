"""The page of the report: figures in, HTML out."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from html import escape
from typing import Any, Final

import msgspec

from heliograph.spark.jobs._plots import COLOURS, Column, Series, legend, lines, share, short, stacked, table

_STYLE: Final = """
:root { color-scheme: light dark; --page: #f6f7f9; --card: #fff; --text: #1c2330; --dim: #667085; --line: #e3e6eb;
  --bad: #b42318; --badpage: #fef3f2; --good: #067647;
  --c0: #3b6fd4; --c1: #e08a1e; --c2: #2f9e6e; --c3: #b4479b; --c4: #7a6ff0; --c5: #98a2b3; }
@media (prefers-color-scheme: dark) { :root { --page: #12151b; --card: #1a1f28; --text: #e6e9ef; --dim: #98a2b3;
  --line: #2c3340; --bad: #f97066; --badpage: #2a1a1b; --good: #47cd89;
  --c0: #6c9cf5; --c1: #f2a94e; --c2: #53c596; --c3: #d87fc4; --c4: #a49bff; --c5: #667085; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--text); font: 15px/1.5 system-ui, sans-serif; }
main { max-width: 1040px; margin: 0 auto; padding: 32px 20px 64px; }
h1 { font-size: 26px; margin: 0; } h2 { font-size: 18px; margin: 36px 0 4px; }
h3 { font-size: 15px; margin: 20px 0 6px; }
h3 small { font-weight: 400; color: var(--dim); }
p { margin: 4px 0 10px; } .dim, .note { color: var(--dim); } .note { font-size: 13.5px; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(140px, 1fr)); gap: 12px; margin: 20px 0 0; }
.tile, .card { background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: 14px 16px; }
.tile b { display: block; font-size: 24px; line-height: 1.2; font-variant-numeric: tabular-nums; }
.tile.bad b { color: var(--bad); } .tile span { color: var(--dim); font-size: 13px; }
svg { display: block; width: 100%; height: auto; }
.grid { stroke: var(--line); } .tick { fill: var(--dim); font-size: 11.5px; }
.legend { display: flex; flex-wrap: wrap; gap: 4px 18px; font-size: 13.5px; margin: 0 0 8px; }
.legend i { display: inline-block; width: 11px; height: 11px; border-radius: 3px; margin-right: 6px; }
.wide { overflow-x: auto; } table { border-collapse: collapse; width: 100%; font-size: 13.5px; }
th { text-align: left; font-weight: 600; color: var(--dim); white-space: nowrap; }
th, td { padding: 6px 10px 6px 0; border-bottom: 1px solid var(--line); vertical-align: top; }
tr:last-child td { border-bottom: 0; }
.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
code { font: 12.5px/1.5 ui-monospace, monospace; overflow-wrap: anywhere; } .bad { color: var(--bad); }
.share { position: relative; display: inline-block; width: 90px; height: 18px; background: var(--line);
  border-radius: 4px; overflow: hidden; }
.share i { position: absolute; inset: 0 auto 0 0; background: var(--c0); opacity: .45; }
.share b { position: relative; display: block; font-size: 12px; line-height: 18px; font-weight: 500;
  padding-left: 6px; }
.when { color: var(--c0); letter-spacing: -.5px; white-space: nowrap; }
footer { margin-top: 40px; color: var(--dim); font-size: 13px; }
""" + "".join(
    f".c{at} {{ fill: var(--c{at}); }} .s{at} {{ stroke: var(--c{at}); stroke-width: 2; }} "
    f".b{at} {{ background: var(--c{at}); }}\n"
    for at in range(COLOURS)
)  # fmt: skip
_PERCENTILES: Final = ("p50", "p95", "p99")


class Figures(msgspec.Struct, kw_only=True):
    """What a report is about."""

    station: str
    title: str | None
    made: datetime
    first: datetime | None
    last: datetime | None
    every_s: int
    channels: list[dict[str, Any]]
    windows: list[dict[str, Any]]
    latency: list[dict[str, Any]]
    clusters: list[dict[str, Any]]
    fields: list[dict[str, Any]]
    drift: list[dict[str, Any]]


def page(found: Figures) -> str:
    """The whole file."""
    title = escape(found.title or f"Station {found.station}")
    parts = [_head(found, title), _traffic(found), _latency(found), _channels(found), _letters(found), _types(found)]
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{_STYLE}</style></head>'
        f"<body><main>{''.join(parts)}<footer>Made by Heliograph, {found.made:%Y-%m-%d %H:%M} UTC. "
        "All times are UTC.</footer></main></body></html>\n"
    )


def _head(found: Figures, title: str) -> str:
    if found.first is None or found.last is None:
        span = "There are no messages."
    else:
        span = f"{found.first:%Y-%m-%d %H:%M:%S} to {found.last:%Y-%m-%d %H:%M:%S} UTC"
    letters = sum(one["letters"] for one in found.clusters)
    tiles = [
        ("messages", sum(one["messages"] for one in found.channels), False),
        ("bytes of payload", sum(one["bytes"] for one in found.channels), False),
        ("channels", len(found.channels), False),
        ("payload types", len({(one["channel"], one["type"]) for one in found.fields}), False),
        ("dead letters", letters, bool(letters)),
        ("schema drift", len(found.drift), bool(found.drift)),
    ]
    drawn = "".join(
        f'<div class="tile{" bad" if bad else ""}"><b>{short(number)}</b><span>{name}</span></div>'
        for name, number, bad in tiles
    )
    return f'<h1>{title}</h1><p class="dim">{span}</p><div class="tiles">{drawn}</div>'


# -- over time --------------------------------------------------------------------------------------------------------


def _moments(found: Figures) -> list[datetime]:
    """The beginnings of all windows, those without messages too."""
    if not found.windows:
        return []
    first, last = min(row["at"] for row in found.windows), max(row["at"] for row in found.windows)
    step = timedelta(seconds=found.every_s)
    return [first + step * at for at in range((last - first) // step + 1)]


def _every(found: Figures) -> str:
    for size, word in ((86400, "day"), (3600, "hour"), (60, "minute")):
        if found.every_s % size == 0:
            return f"{found.every_s // size} {word}s" if found.every_s > size else word
    return f"{found.every_s} seconds" if found.every_s > 1 else "second"


def _traffic(found: Figures) -> str:
    times = _moments(found)
    if not times:
        return ""
    names = [row["channel"] for row in found.channels]
    shown = names if len(names) <= COLOURS else names[: COLOURS - 1]
    rest = [name for name in names if name not in shown]
    counts = {(row["at"], row["channel"]): row["messages"] for row in found.windows}
    series = [Series(name, [counts.get((at, name), 0) for at in times]) for name in shown]
    if rest:
        others = [sum(counts.get((at, name), 0) for name in rest) for at in times]
        series.append(Series(f"{len(rest)} other channels", others))
    return (
        f"<h2>Messages</h2><p class=note>How many messages in every {_every(found)}, by their own time.</p>"
        f'<div class="card">{legend([one.name for one in series])}{stacked(times, series, "messages")}</div>'
    )


def _latency(found: Figures) -> str:
    times = _moments(found)
    if not times or not found.latency:
        return ""
    known = {row["at"]: row for row in found.latency}
    series = [
        Series(name, [known[at][f"latency_{name}_ms"] if at in known else None for at in times])
        for name in _PERCENTILES
    ]  # fmt: skip
    measured = sum(row["measured"] for row in found.latency)
    return (
        "<h2>Latency</h2><p class=note>Milliseconds from a message's time to its storing in this station's log, hops "
        f"between stations included; measured on {measured:,} messages, those whose storing the log has a time of.</p>"
        f'<div class="card">{legend(_PERCENTILES)}{lines(times, series, "ms")}</div>'
    )


def _channels(found: Figures) -> str:
    if not found.channels:
        return ""
    total = sum(row["messages"] for row in found.channels)

    def milliseconds(name: str) -> Column:
        def cell(row: dict[str, Any]) -> str:
            value = row[f"latency_{name}_ms"]
            return '<span class="dim">–</span>' if value is None else short(value)

        return Column(f"{name} ms", cell, True)

    columns = [
        Column("channel", lambda row: escape(row["channel"])),
        Column("share", lambda row: share(round(100 * row["messages"] / total, 1))),
        Column("messages", lambda row: f"{row['messages']:,}", True),
        Column("payload bytes", lambda row: f"{row['bytes']:,}", True),
        Column("origins", lambda row: str(row["origins"]), True),
        Column("types", lambda row: str(row["types"]), True),
        *(milliseconds(name) for name in _PERCENTILES),
        Column("measured", lambda row: f"{row['measured']:,}", True),
    ]
    return f'<h2>Channels</h2><div class="card">{table(columns, found.channels)}</div>'


# -- what is wrong, and what there is ---------------------------------------------------------------------------------


def _letters(found: Figures) -> str:
    if not found.clusters:
        return '<h2>Dead letters</h2><div class="card">There are none.</div>'
    columns = [
        Column("letters", lambda one: f"{one['letters']:,}", True),
        Column("channel, given up by", lambda one: f"{escape(one['channel'])}<br>{_giver(one)}"),
        Column("what went wrong", lambda one: f"<code>{escape(one['pattern'] or one['reason'])}</code>{_kind(one)}"),
        Column("when", lambda one: f'<span class="when">{one["when"]}</span>{_span(one)}'),
        Column("cluster", lambda one: f"<code>{escape(one['cluster'])}</code>"),
    ]
    return (
        "<h2>Dead letters</h2><p class=note>Errors that differ only in numbers, ids, times and paths are one. "
        "<code>helio pipeline run triage --redrive --where \"cluster = '…'\"</code> publishes the originals of one "
        f'kind again.</p><div class="card">{table(columns, found.clusters)}</div>'
    )


def _giver(one: dict[str, Any]) -> str:
    kind = "subscription" if one["kind"] == "plain" else one["kind"]
    return f'<span class="dim">{escape(kind)} {escape(one["subscription"])}</span>'


def _kind(one: dict[str, Any]) -> str:
    return f'<br><span class="dim">{escape(one["type"])}</span>' if one["type"] else ""


def _span(one: dict[str, Any]) -> str:
    return f'<br><span class="dim">{one["first"]:%d %b %H:%M} – {one["last"]:%d %b %H:%M}</span>'


def _types(found: Figures) -> str:
    if not found.fields:
        return ""
    wrong: dict[tuple[str, str, str], list[str]] = {}
    for one in found.drift:
        told = f"{one['what']} ({one['percent']:g} %)"
        wrong.setdefault((one["channel"], one["type"], one["field"]), []).append(told)
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in found.fields:
        groups.setdefault((row["channel"], row["type"]), []).append(row)
    cards = "".join([_type(key, rows, wrong) for key, rows in groups.items()])
    return (
        "<h2>Payload types</h2><p class=note>What the fields of payloads are like, how often they are filled, and, in "
        f"red, where that is not what is registered.</p>{cards}"
    )


def _type(
    key: tuple[str, str], rows: Sequence[dict[str, Any]], wrong: dict[tuple[str, str, str], list[str]]
) -> str:  # fmt: skip
    absent = [(field, told) for (*place, field), told in wrong.items() if tuple(place) == key]
    there = {row["field"] for row in rows}
    gone = [{"field": field, "kind": "", "filled_percent": 0.0, "top": ""} for field, _ in absent if field not in there]

    def field(row: dict[str, Any]) -> str:
        told = wrong.get((*key, row["field"]), [])
        return f"<code>{escape(row['field'])}</code>" + "".join(
            f'<br><span class="bad">{escape(one)}</span>' for one in told
        )

    columns = [
        Column("field", field),
        Column("kind", lambda row: escape(row["kind"])),
        Column("filled", lambda row: share(row["filled_percent"])),
        Column("most frequent", lambda row: f'<span class="dim">{escape(row["top"])}</span>'),
    ]
    count = next((row["values"] for row in rows if row["field"] == "$"), 0)
    shown = [row for row in rows if row["field"] != "$" or len(rows) == 1]
    return (
        f"<h3>{escape(key[1])} <small>in {escape(key[0])}, {count:,} messages</small></h3>"
        f'<div class="card">{table(columns, [*shown, *gone])}</div>'
    )
