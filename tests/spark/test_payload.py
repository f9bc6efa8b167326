"""Payloads as typed columns: what does not fit is null, or an error, whatever its neighbours are."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from heliograph.errors import PayloadMismatch
from heliograph.spark.payload import typed

TEXTS = pa.list_(pa.string())
PAIR = pa.struct([("a", pa.int64()), ("b", pa.list_(pa.float64()))])


def values(kind: pa.DataType, *texts: str | None, fail: bool = False) -> list[Any]:
    found: list[Any] = typed(pa.array(texts, pa.string()), kind, lambda at: f"offset {at}", fail=fail).to_pylist()
    return found


@pytest.mark.parametrize(
    ("kind", "good", "value", "bad"),
    [
        (pa.int64(), "2", 2, "1.5"),
        (pa.int64(), "2.0", 2, "true"),
        (pa.float64(), "2", 2.0, "true"),
        (pa.float64(), "0.5", 0.5, "1e999"),
        (pa.int64(), "-1", -1, "[" * 3000 + "]" * 3000),
        (TEXTS, '["x",null]', ["x", None], '"x"'),
        (TEXTS, "[]", [], '""'),
        (PAIR, '{"a":1,"b":[2,0.5]}', {"a": 1, "b": [2.0, 0.5]}, "[]"),
        (PAIR, '{"c":1}', {"a": None, "b": None}, '{"a":1.5}'),
        (PAIR, '{"a":null,"b":[null]}', {"a": None, "b": [None]}, '{"b":[true]}'),
        (PAIR, "{}", {"a": None, "b": None}, '{"b":""}'),
    ],
)
def test_what_does_not_fit_is_null_or_an_error(kind: pa.DataType, good: str, value: Any, bad: str) -> None:
    assert values(kind, good, None, "null") == [value, None, None]
    assert values(kind, bad) == [None]
    assert values(kind, good, bad, good) == [value, None, value]
    with pytest.raises(PayloadMismatch, match="offset 1: the payload does not fit"):
        values(kind, good, bad, fail=True)
