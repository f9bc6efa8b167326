"""The rows of a result as plain values, for tables and JSON."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, NamedTuple

from heliograph.spark.pipelines.mishaps import explained


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
        found, columns = table[: limit + 1], list(table[0]) if table else []
    else:
        try:  # only now Spark does what the pipeline asked for
            columns = table.columns
            found = [row.asDict(recursive=True) for row in table.limit(limit + 1).collect()]
        except Exception as error:
            raise explained(error) from error
    return Rows(
        columns, [{name: _plain(value) for name, value in row.items()} for row in found[:limit]], len(found) > limit
    )


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.astimezone(UTC)  # Spark gives local times without a zone
    if isinstance(value, dict):
        return {str(name): _plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return value
