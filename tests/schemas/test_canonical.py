from __future__ import annotations

import os
import subprocess
import sys
from datetime import datetime, time
from typing import Annotated, Any

import msgspec
import pytest

from heliograph.schemas import digest, schema_of


class First(msgspec.Struct):
    """Says something."""

    a: int
    b: str | list[int] | None = None


class Second(msgspec.Struct, kw_only=True):
    """Says it otherwise, in another order, with another default."""

    b: list[int] | str | None = "x"
    a: Annotated[int, msgspec.Meta(title="A", description="…", examples=[1])]


class Node(msgspec.Struct):
    left: Node | None = None
    right: Node | None = None


class Knot(msgspec.Struct):
    left: Knot | None = None
    right: Knot | None = None


def test_what_says_nothing_about_the_data_is_not_looked_at() -> None:
    described = {"title": "T", "description": "D", "default": 3, "examples": [1], "x-mine": 1, "type": "integer"}
    assert digest(described) == digest({"type": "integer"})


def test_order_is_not_looked_at_where_there_is_none() -> None:
    one = {"anyOf": [{"type": "integer"}, {"type": "null"}], "enum": [1, None]}
    other = {"enum": [None, 1], "anyOf": [{"type": "null"}, {"type": "integer"}]}
    assert digest(one) == digest(other)
    assert digest({"prefixItems": [{"type": "integer"}, {}]}) != digest({"prefixItems": [{}, {"type": "integer"}]})


def test_a_field_called_as_an_annotation_counts() -> None:
    one = {"type": "object", "properties": {"title": {"type": "string"}, "default": {}}}
    assert digest(one) != digest({"type": "object", "properties": {"default": {}}})


def test_names_of_classes_are_not_looked_at_also_of_recursive_ones() -> None:
    assert digest(schema_of(Node)) == digest(schema_of(Knot))
    assert digest(schema_of(First)) == digest(schema_of(Second))


def test_the_hash_is_the_same_in_every_process() -> None:
    code = """
import msgspec
from heliograph.schemas import digest, schema_of
made = msgspec.defstruct("A", [("a", frozenset[str], frozenset("abcdef")), ("b", int | str | None, None)])
print(digest(schema_of(made)))
"""
    found = {
        subprocess.run(
            [sys.executable, "-c", code], env={**os.environ, "PYTHONHASHSEED": seed}, check=True,
            capture_output=True,
        ).stdout
        for seed in ("1", "2", "3")
    }  # fmt: skip
    assert len(found) == 1


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (datetime, str),
        (time, str),
        (dict[int, int], dict[str, int]),
        (list[datetime], list[str]),
        (int | datetime, int | str),
        (dict[str, datetime | None], dict[str, str | None]),
        (tuple[datetime, int], tuple[str, int]),
        (
            msgspec.defstruct("A", [("a", datetime)], array_like=True),
            msgspec.defstruct("B", [("a", str)], array_like=True),
        ),
        (Annotated[datetime, msgspec.Meta(tz=False)], Annotated[datetime, msgspec.Meta(tz=True)]),
    ],
)
def test_what_json_schema_alone_does_not_tell_apart_differs(one: Any, other: Any) -> None:
    assert digest(schema_of(one)) != digest(schema_of(other))
