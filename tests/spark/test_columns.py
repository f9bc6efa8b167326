"""A schema that cannot be filled is refused before anything is read: its columns would be null without a word."""

from __future__ import annotations

import re

import pytest
from pyspark.sql.types import (
    ArrayType,
    DayTimeIntervalType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    StringType,
    StructType,
    VariantType,
)

from heliograph.errors import ConfigError
from heliograph.spark.columns import GAP_TYPE, check_schema


def refused(schema: StructType, why: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(why)):
        check_schema(schema)


@pytest.mark.parametrize("name", ["KEY", "Data", "Level", "OFFSET"])
def test_a_column_with_capitals_is_refused_rather_than_null(name: str) -> None:
    kind = LongType() if name == "OFFSET" else StringType()
    refused(StructType().add(name, kind), f"column '{name}': columns and attributes are written in small letters")


def test_a_column_that_is_there_twice_is_refused() -> None:
    refused(StructType().add("key", "string").add("key", "string"), "column 'key' is there twice")


@pytest.mark.parametrize("name", ["key", "data", "level", "origin"])
def test_not_null_is_refused_where_something_may_be_null(name: str) -> None:
    refused(StructType().add(name, "string", nullable=False), f"column '{name}' may be null: leave out NOT NULL")


def test_not_null_is_taken_for_what_every_message_has() -> None:
    sure = StructType().add("offset", "long", nullable=False).add("id", "string", nullable=False)
    assert check_schema(sure) is sure
    refused(sure.add("gap", GAP_TYPE), "column 'id' may be null")  # a row that stands for a gap has none


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        (VariantType(), "column 'data' cannot be VARIANT; read it as STRING and use parse_json(data)"),
        (StructType().add("v", VariantType()), "column 'data.v' cannot be VARIANT"),
        (ArrayType(DayTimeIntervalType()), "column 'data[]' cannot be INTERVAL DAY TO SECOND"),
        (StructType().add("a", MapType(StringType(), NullType())), "column 'data.a.*' cannot be VOID"),
        (MapType(IntegerType(), StringType()), "the keys of 'data' are STRING, as JSON has them, not INT"),
        (StructType().add("a", "integer", nullable=False), "'data.a' may be null: leave out NOT NULL"),
        (ArrayType(StringType(), containsNull=False), "'data[]' may be null: leave out NOT NULL"),
        (MapType(StringType(), StringType(), valueContainsNull=False), "'data.*' may be null: leave out NOT NULL"),
    ],
)
def test_types_that_no_payload_becomes_are_refused(kind: StructType, why: str) -> None:
    refused(StructType().add("data", kind), why)
