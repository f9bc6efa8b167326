"""``types``: what payloads are really like, field by field, and where they are not as registered."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from heliograph.schemas.canonical import Schema
from heliograph.spark.jobs._fields import COUNTS, UNREADABLE, Field, count_fields, registered
from heliograph.spark.pipelines import Input, Option, Result, Run, procedure

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_COLUMNS: Final = "channel STRING, type STRING, data STRING"
TOP: Final = 3


class Found(NamedTuple):
    """A path in the payloads of a channel and type: how many values of which kinds, and the most frequent."""

    kinds: dict[str, int]
    top: list[tuple[str, int]]

    @property
    def total(self) -> int:
        """How many values there are."""
        return sum(self.kinds.values())


Payloads = dict[tuple[str, str], dict[str, Found]]
"""By channel and type, by path."""


@procedure(
    "types",
    options=(
        Option("channel", "Only these: one, several (a,b) or a pattern.  [default: all]", kind="channel", default=">"),
        Option("type", "Only this type; may be repeated.", several=True),
        Option("start", "Where to begin: first, a time or an age such as -1h.  [default: first]", default="first"),
        Option("schemas", "Show a JSON schema of each type, made from the data.", kind="flag", default=False),
    ),
    examples="""\
helio pipeline run types
helio pipeline run types --channel 'sensors.>' --start -1d
helio pipeline run types --type com.example.order.v1 --schemas --json""",
)
def types(run: Run, channel: str, type: tuple[str, ...], start: str, schemas: bool) -> Result:
    """The fields of payloads as they are: kinds, how often each is filled, top values; and drift.

    'filled' is how many of the objects that could have the field have it, and not null. Drift is what does not fit the
    newest schema that is registered for the type in the channel: fields that it does not know, kinds that it does not
    allow, required fields that are not there. The exit code is 1 if there is any.
    """
    messages = run.read(Input(channel, {"startingOffsets": start, "failOnGap": "false"}, _COLUMNS))
    if type:
        messages = messages.where(messages["type"].isin(list(type)))
    payloads = collected(counted(messages))
    known = {key: registered_schema(run.path, *key) for key in payloads}
    fields = [row for key, found in sorted(payloads.items()) for row in described(key, found)]
    drift = [
        row for key, found in sorted(payloads.items()) if (schema := known[key]) is not None
        for row in drifted(key, found, registered(schema))
    ]  # fmt: skip
    tables: dict[str, Any] = {"fields": fields, "drift": drift}
    if schemas:
        tables["schemas"] = [
            {"channel": place, "type": kind, "schema": msgspec.json.encode(inferred(found)).decode()}
            for (place, kind), found in sorted(payloads.items())
        ]
    facts = {"types": len(payloads), "registered": sum(one is not None for one in known.values()), "drift": len(drift)}
    return Result({name: table for name, table in tables.items() if table}, facts, bad=bool(drift))


def registered_schema(path: Path, channel: str, kind: str) -> Schema | None:
    """The newest schema of a type in a channel."""
    from heliograph.spark.directory import Directory

    with Directory(str(path)) as directory:
        versions = directory.engine.schemas.versions(channel, kind)
    return versions[-1].schema if versions else None


# -- counting ---------------------------------------------------------------------------------------------------------


def counted(messages: DataFrame) -> DataFrame:
    """How many values of which kind are at which path, and the most frequent values."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    counts = messages.select("channel", "type", "data").mapInArrow(count_fields, COUNTS)
    whole = counts.groupBy("channel", "type", "path", "kind", "value").agg(F.sum("count").alias("count"))
    best = Window.partitionBy("channel", "type", "path", F.isnull("value")).orderBy(F.desc("count"), "value")
    ranked = whole.withColumn("rank", F.row_number().over(best))
    return ranked.where(F.isnull("value") | (F.col("rank") <= TOP))


def collected(counts: DataFrame) -> Payloads:
    """The counts by channel, type and path."""
    found: Payloads = {}
    for row in counts.orderBy("channel", "type", "path", "rank").collect():
        fields = found.setdefault((row["channel"], row["type"]), {})
        one = fields.setdefault(row["path"], Found({}, []))
        if row["value"] is None:
            one.kinds[row["kind"]] = row["count"]
        else:
            one.top.append((row["value"], row["count"]))
    return found


# -- pure -------------------------------------------------------------------------------------------------------------


def parent_of(path: str) -> str:
    """The path of what a field or member is in.

    >>> parent_of("$.limits.cpu"), parent_of("$.tags[]"), parent_of("$")
    ('$.limits', '$.tags', '')
    """
    return path[:-2] if path.endswith("[]") else path.rpartition(".")[0]


def above(path: str, fields: Mapping[str, Any]) -> str:
    """The path of what a field is in, among those that are there: a name may hold dots itself.

    >>> above("$.limits.http.status", {"$": 1, "$.limits": 1, "$.limits.http.status": 1})
    '$.limits'
    """
    found = parent_of(path)
    while found and found not in fields:
        found = parent_of(found)
    return found


def filled(path: str, fields: dict[str, Found]) -> float | None:
    """Which share of the objects that could have a field have it; None where that means nothing."""
    one = fields[path]
    there = one.total - one.kinds.get("null", 0)
    if path == "$":
        return there / one.total
    if path.endswith(("[]", ".*")):
        return None
    return min(there / max(fields[above(path, fields)].kinds.get("object", 0), 1), 1.0)


def described(key: tuple[str, str], fields: dict[str, Found]) -> list[dict[str, Any]]:
    """Each field in a row."""
    rows = []
    for path, one in fields.items():
        share = filled(path, fields)
        rows.append({
            "channel": key[0],
            "type": key[1],
            "field": path,
            "kind": in_words(one.kinds),
            "values": one.total,
            "filled_percent": None if share is None else round(share * 100, 1),
            "top": ", ".join(f"{value} ({count})" for value, count in one.top if count > 1 or one.total <= TOP),
        })  # fmt: skip
    return rows


def in_words(kinds: dict[str, int]) -> str:
    """What is there, most first; an integer is a number where there are both.

    >>> in_words({"integer": 3, "number": 1, "null": 9, "string": 2})
    'number, string or null'
    """
    merged = {kind: count for kind, count in kinds.items() if kind != "null"}
    if "number" in merged and "integer" in merged:
        merged["number"] += merged.pop("integer")
    names = [kind for kind, _ in sorted(merged.items(), key=lambda one: (-one[1], one[0]))]
    if "null" in kinds:
        names.append("null")
    return ", ".join(names[:-1]) + f" or {names[-1]}" if len(names) > 1 else names[0]


def drifted(
    key: tuple[str, str], fields: dict[str, Found], known: dict[str, Field]
) -> list[dict[str, Any]]:  # fmt: skip
    """What does not fit what is registered."""
    rows: list[dict[str, Any]] = []

    def tell(path: str, what: str, count: int, of: int) -> None:
        rows.append(
            {
                "channel": key[0],
                "type": key[1],
                "field": path,
                "what": what,
                "messages": count,
                "percent": round(100 * count / of, 1),
            }
        )

    for path, one in fields.items():
        parent = above(path, fields)
        rule = known.get(path) or known.get(f"{parent}.*")
        if rule is None:
            if parent in known and known[parent].kinds:
                tell(path, f"is not registered: {in_words(one.kinds)}", one.total, max(1, _parents(path, fields)))
            continue
        for kind, count in sorted(one.kinds.items()):
            if rule.kinds and kind not in rule.kinds:
                tell(path, f"is {kind}, registered as {' or '.join(sorted(rule.kinds))}", count, one.total)
    for path, rule in known.items():
        parents = _parents(path, fields, known)  # what it is in may be optional, and nowhere
        there = fields[path].total if path in fields else 0
        if rule.required and path != "$" and parents > there:
            tell(path, "is not there, and required", parents - there, parents)
    return rows


def _parents(path: str, fields: dict[str, Found], among: Mapping[str, Any] | None = None) -> int:
    """How many there are of what a field is in, as those say that are there, or others."""
    parent = fields.get(above(path, fields if among is None else among))
    return 0 if parent is None else parent.kinds.get("array" if path.endswith("[]") else "object", 0)


def inferred(fields: dict[str, Found], path: str = "$") -> Schema:
    """A JSON schema that all the payloads fit."""
    one = fields.get(path)
    if one is None:
        return {}
    kinds = sorted(set(one.kinds) - ({"integer"} if "number" in one.kinds else set()))
    if UNREADABLE in kinds:
        return {}
    schema: Schema = {"type": kinds[0] if len(kinds) == 1 else kinds}
    if f"{path}[]" in fields:
        schema["items"] = inferred(fields, f"{path}[]")
    names = list(_children(path, fields)) if "object" in one.kinds else []  # else it is another's, with a dot in it
    if names:
        schema["properties"] = {name: inferred(fields, f"{path}.{name}") for name in names if name != "*"}
        always = [name for name in schema["properties"] if fields[f"{path}.{name}"].total >= one.kinds["object"]]
        schema |= {"required": always} if always else {}
        schema |= {"additionalProperties": inferred(fields, f"{path}.*")} if "*" in names else {}
    return schema


def _children(path: str, fields: dict[str, Found]) -> Iterable[str]:
    """Names of the fields of an object; such as hold a dot cannot be told from deeper ones and are left out."""
    for other in fields:
        name = other.removeprefix(f"{path}.")
        if name != other and "." not in name and not name.endswith("[]"):
            yield name
