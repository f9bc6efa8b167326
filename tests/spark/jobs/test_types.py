"""Payloads as they are, and as they are registered."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

import heliograph as hg
from heliograph.spark.jobs._fields import registered
from heliograph.spark.jobs.types import Found, drifted, inferred, types
from heliograph.spark.pipelines.running import run


class Limits(msgspec.Struct):
    low: int
    high: float | None = None


class Reading(msgspec.Struct):
    host: str
    value: float
    limits: Limits
    tags: list[str] = []
    note: str | None = None


TYPE = "com.example.reading.v1"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("types") / "data"
    with hg.open(path, name="host1", durability="os") as station:
        station.register(TYPE, Reading)
        for n in range(8):
            note = "hot" if n % 4 == 0 else None
            station.publish("readings", Reading(f"web-{n % 2}", n / 2, Limits(n), ["a", "b"], note))
        station.publish("plain", {"n": 1, "inner": [{"x": 1}, {"x": "one", "y": None}]})
        station.publish("plain", {"n": 2.5})
        station.publish("plain", None)
    return path


def drift_in(root: Path, bodies: list[bytes], channel: str = "readings") -> None:
    """Somebody else publishes under the same name what does not fit."""
    from tests.arrivals import line

    with hg.open(root) as station:
        lines = [
            line(n, channel=channel, data=body).replace(b"heliograph.data.v1", TYPE.encode())
            for n, body in enumerate(bodies)
        ]
        station.engine.relayed.arrive(channel, [resealed(one) for one in lines])


def resealed(line: bytes) -> bytes:
    from tests.arrivals import sealed

    return sealed(line.rpartition(b',"crc"')[0])


def rows(result: Any, table: str, channel: str) -> dict[str, dict[str, Any]]:
    return {one["field"]: one for one in result.tables.get(table, ()) if one["channel"] == channel}


def test_fields_are_told_with_kinds_fill_rates_and_top_values(spark: Any, root: Path) -> None:
    result = run(types, {"schemas": True}, root)
    assert not result.bad
    found = rows(result, "fields", "readings")
    assert set(found) == {
        "$", "$.host", "$.value", "$.limits", "$.limits.low", "$.limits.high", "$.tags", "$.tags[]", "$.note",
    }  # fmt: skip
    assert (found["$.host"]["filled_percent"], found["$.host"]["top"]) == (100.0, "web-0 (4), web-1 (4)")
    assert (found["$.note"]["filled_percent"], found["$.note"]["kind"]) == (25.0, "string or null")
    assert (found["$.tags[]"]["values"], found["$.tags[]"]["filled_percent"]) == (16, None)
    plain = rows(result, "fields", "plain")
    assert plain["$"]["kind"] == "object or null"
    assert plain["$.n"]["kind"] == "number"
    assert plain["$.inner[].x"]["kind"] == "integer or string"
    assert (plain["$.inner"]["filled_percent"], plain["$.inner[].y"]["filled_percent"]) == (50.0, 0.0)
    schema = next(msgspec.json.decode(one["schema"]) for one in result.tables["schemas"] if one["channel"] == "plain")
    assert schema["properties"]["inner"]["items"]["properties"]["x"] == {"type": ["integer", "string"]}
    assert schema["required"] == ["n"]


def test_what_does_not_fit_the_registered_schema_is_drift(spark: Any, root: Path) -> None:
    drift_in(root, [
        b'{"host":7,"value":1,"limits":{"low":1,"max":9}}', b'{"value":1,"limits":{"low":1},"unit":"C"}',
    ])  # fmt: skip
    result = run(types, {"channel": "readings"}, root)
    assert result.bad
    told = {(one["field"], one["what"]): one["messages"] for one in result.tables["drift"]}
    assert told == {
        ("$.host", "is integer, registered as string"): 1,
        ("$.host", "is not there, and required"): 1,
        ("$.limits.max", "is not registered: integer"): 1,
        ("$.unit", "is not registered: string"): 1,
    }


def test_names_with_dots_and_payloads_that_nobody_can_read_are_told_like_others(spark: Any, tmp_path: Path) -> None:
    path = tmp_path / "data"
    with hg.open(path, name="host1", durability="os") as station:
        station.publish("spans", {"http.status": 200, "attributes": {"net.peer.name": "a"}})
        station.publish("spans", {"attributes": {}})
    drift_in(path, [b"1e999"], channel="odd")
    result = run(types, {"schemas": True}, path)
    spans = rows(result, "fields", "spans")
    assert spans["$.http.status"]["filled_percent"] == spans["$.attributes.net.peer.name"]["filled_percent"] == 50.0
    odd = rows(result, "fields", "odd")
    assert [(one["field"], one["kind"], one["values"]) for one in odd.values()] == [("$", "unreadable", 1)]
    assert [one["schema"] for one in result.tables["schemas"] if one["channel"] == "odd"] == ["{}"]


def test_a_field_with_a_dot_that_is_not_registered_is_drift() -> None:
    known = registered(
        {"type": "object", "properties": {"http.status": {"type": "integer"}}, "required": ["http.status"]}
    )
    fields = {
        "$": Found({"object": 3}, []),
        "$.http.status": Found({"integer": 2}, []),
        "$.a.b": Found({"string": 1}, []),
    }
    assert [(one["field"], one["what"], one["percent"]) for one in drifted(("c", "t"), fields, known)] == [
        ("$.a.b", "is not registered: string", 33.3), ("$.http.status", "is not there, and required", 33.3),
    ]  # fmt: skip


def test_schemas_that_allow_anything_know_no_drift() -> None:
    fields = {"$": Found({"object": 1}, []), "$.a": Found({"string": 1}, [])}
    assert drifted(("c", "t"), fields, registered({})) == []
    free = registered({"type": "object", "additionalProperties": {"type": "string"}})
    assert drifted(("c", "t"), fields, free) == []
    union = {
        "anyOf": [{"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}, {"type": "null"}]
    }
    assert [one["what"] for one in drifted(("c", "t"), fields, registered(union))] == [
        "is string, registered as integer"
    ]


def test_an_inferred_schema_is_what_the_payloads_fit() -> None:
    fields = {"$": Found({"object": 2}, []), "$.a": Found({"integer": 2}, []), "$.*": Found({"number": 9}, [])}
    assert inferred(fields) == {
        "type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"],
        "additionalProperties": {"type": "number"},
    }  # fmt: skip


def test_what_is_required_in_an_object_that_may_be_left_out_is_not_missed_with_it() -> None:
    limits = {"type": "object", "properties": {"low": {"type": "integer"}}, "required": ["low"]}
    known = registered({"type": "object", "properties": {"limits": limits}})
    fields = {"$": Found({"object": 3}, [])}
    assert drifted(("c", "t"), fields, known) == []
    fields |= {"$.limits": Found({"object": 2}, []), "$.limits.low": Found({"integer": 1}, [])}
    assert [(one["field"], one["messages"], one["percent"]) for one in drifted(("c", "t"), fields, known)] == [
        ("$.limits.low", 1, 50.0)
    ]


def test_a_schema_of_names_that_begin_like_others_and_go_on_with_a_dot() -> None:
    fields = {
        "$": Found({"object": 1}, []),
        "$.http": Found({"integer": 1}, []),
        "$.http.status": Found({"integer": 1}, []),
    }
    assert inferred(fields) == {"type": "object", "properties": {"http": {"type": "integer"}}, "required": ["http"]}
