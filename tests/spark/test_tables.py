"""What a pipeline found, as plain values: each column is told, and as what it is."""

from __future__ import annotations

from datetime import UTC, date, datetime
from typing import Any

import msgspec

from heliograph.spark.pipelines.tables import rows_of

EVERYTHING = """
SELECT 1 AS key, 2 AS n, 3 AS key, struct(4 AS a, 5 AS a) AS pair,
  parse_json('{"a":[1.5,"x",null]}') AS v, array(struct(parse_json('2') AS v)) AS inside,
  timestamp_ntz'2026-07-01 00:00:00' AS anywhere, timestamp'2026-07-01 00:00:00Z' AS moment,
  map(date'2026-07-01', timestamp'2026-07-01 00:00:00Z') AS days, cast(null AS VARIANT) AS nothing
"""


def test_every_column_is_told_and_as_what_it_is(spark: Any) -> None:
    found = rows_of(spark.sql(EVERYTHING), 5)
    moment = datetime(2026, 7, 1, tzinfo=UTC)
    assert found.rows == [
        {
            "key": 1, "n": 2, "key_2": 3, "pair": {"a": 4, "a_2": 5}, "v": {"a": [1.5, "x", None]},
            "inside": [{"v": 2}], "anywhere": "2026-07-01T00:00:00", "moment": moment,
            "days": {str(date(2026, 7, 1)): moment}, "nothing": None,
        }
    ]  # fmt: skip
    assert found.columns == list(found.rows[0])
    assert msgspec.json.decode(msgspec.json.encode(found.rows))[0]["v"] == {"a": [1.5, "x", None]}
