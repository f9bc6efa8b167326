from __future__ import annotations

from datetime import datetime
from typing import Literal

import msgspec

from heliograph.schemas import differences, fields, schema_of


class Place(msgspec.Struct):
    room: str
    near: list[Place] = []


class Alert(msgspec.Struct):
    text: str
    level: int = 1
    place: Place | None = None


class Changed(msgspec.Struct, forbid_unknown_fields=True):
    text: str
    level: float
    kind: Literal["a", "b"] = "a"
    when: datetime | None = None
    tags: dict[str, list[str]] = {}


def test_every_field_has_a_line_and_what_holds_itself_is_described_once() -> None:
    assert fields(schema_of(Alert)) == {
        "$": "object Alert",
        "$.text": "string, required",
        "$.level": "integer, optional, default 1",
        "$.place": "object Place or null, optional, default null",
        "$.place<Place>": "object Place",
        "$.place<Place>.room": "string, required",
        "$.place<Place>.near": "array of object Place, optional, default []",
        "$.place<Place>.near[]": "object Place",
    }


def test_what_was_added_removed_and_changed() -> None:
    found = {
        change.path: (change.kind, change.before, change.now)
        for change in differences(*map(schema_of, (Alert, Changed)))
    }
    assert found["$.level"] == ("changed", "integer, optional, default 1", "number, required")
    assert found["$.kind"] == ("added", "", '"a" or "b", optional, default "a"')
    assert found["$.place"][0] == "removed"
    assert found["$.when"][2] == "string (any-date-time) or null, optional, default null"
    assert found["$.tags"][2] == "object of array of string, optional, default {}"
    assert found["$"][2] == "object Changed, no other fields"
    assert "$.text" not in found


def test_no_difference() -> None:
    assert differences(schema_of(Alert), schema_of(Alert)) == []
