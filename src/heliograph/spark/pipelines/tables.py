"""The rows of a result as plain values, for tables and JSON."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from heliograph.clock import from_us
from heliograph.spark.pipelines.mishaps import explained

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType


class Rows(NamedTuple):
    """Some rows of a table."""

    columns: list[str]
    rows: list[dict[str, Any]]
    more: bool


def rows_of(table: Any, limit: int) -> Rows:
    """The first rows of a DataFrame, or of a list of mappings; what was taken before stays as it is.

    >>> rows_of([{"a": 1}, {"a": 2}], 1)
    Rows(columns=['a'], rows=[{'a': 1}], more=True)
    """
    if isinstance(table, Rows):
        return table
    if isinstance(table, list):
        columns = list(table[0]) if table else []
        return Rows(columns, [_plain(row) for row in table[:limit]], len(table) > limit)
    try:  # only now Spark does what the pipeline asked for
        schema = table.schema
        found = values_of(table.limit(limit + 1))
    except Exception as error:
        raise explained(error) from error
    columns = distinct(schema.names)
    kinds = [field.dataType for field in schema.fields]
    rows = [
        {name: _typed(value, kind) for name, value, kind in zip(columns, row, kinds, strict=True)}
        for row in found[:limit]
    ]
    return Rows(columns, rows, len(found) > limit)


def values_of(table: DataFrame) -> list[tuple[Any, ...]]:
    """All rows of a DataFrame, with times in UTC.

    Spark would make local times of them: the last hours of the year 9999 have none east of Greenwich.
    """
    from pyspark.sql.functions import unix_micros
    from pyspark.sql.types import TimestampType

    times = [isinstance(field.dataType, TimestampType) for field in table.schema.fields]
    if not any(times):
        return [tuple(row) for row in table.collect()]
    named = table.toDF(*[f"c{at}" for at in range(len(times))])
    known = named.select(
        *[unix_micros(name) if is_time else name for name, is_time in zip(named.columns, times, strict=True)]
    )
    return [
        tuple([_moment(value) if is_time else value for value, is_time in zip(row, times, strict=True)])
        for row in known.collect()
    ]


def records_of(table: DataFrame) -> list[dict[str, Any]]:
    """The same, by the names of columns."""
    return [dict(zip(table.columns, row, strict=True)) for row in values_of(table)]


def _moment(us: int | None) -> datetime | None:
    return None if us is None else from_us(us)


def distinct(names: Sequence[str]) -> list[str]:
    """Names that differ: a join has columns of the same name, and each is told.

    >>> distinct(["key", "n", "key", "key_2"])
    ['key', 'n', 'key_3', 'key_2']
    """
    made: list[str] = []
    for at, name in enumerate(names):
        number, one = 1, name
        while one in made or (number > 1 and one in names):
            number += 1
            one = f"{name}_{number}"
        made.append(one if name in names[:at] else name)
    return made


def _typed(value: Any, kind: DataType) -> Any:
    """A value of Spark as a plain one."""
    from pyspark.sql.types import ArrayType, MapType, StructType, TimestampNTZType, VariantType

    if value is None:
        return None
    if isinstance(kind, StructType):
        names, kinds = distinct(kind.names), [field.dataType for field in kind.fields]
        return {name: _typed(one, each) for name, one, each in zip(names, value, kinds, strict=True)}
    if isinstance(kind, ArrayType):
        return [_typed(one, kind.elementType) for one in value]
    if isinstance(kind, MapType):
        return {str(_typed(name, kind.keyType)): _typed(one, kind.valueType) for name, one in value.items()}
    if isinstance(kind, VariantType):
        return msgspec.json.decode(value.toJson())
    if isinstance(kind, TimestampNTZType):
        return value.isoformat()  # whatever zone it is of, nobody said so
    return _plain(value)


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.astimezone(UTC)  # Spark gives local times without a zone
    if isinstance(value, dict):
        return {str(name): _plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return value
