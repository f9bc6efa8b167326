"""Payloads as typed columns: what does not fit is null, or an error, whatever its neighbours are."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from heliograph.errors import PayloadMismatch
from heliograph.spark.payload import typed

TEXTS = pa.list_(pa.string())
UTC_US = pa.timestamp("us", "UTC")
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
        (pa.float32(), "0.5", 0.5, "1e39"),
        (pa.float32(), "-2", -2.0, "-4e38"),
        (
            UTC_US,
            '"2026-11-15T20:30:01+02:00"',
            datetime(2026, 11, 15, 18, 30, 1, tzinfo=UTC),
            '"9999-12-31T23:59:59-01:00"',
        ),
        (UTC_US, '"2026-11-15"', datetime(2026, 11, 15, tzinfo=UTC), '"0001-01-01T00:00:00+01:00"'),
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


def test_numbers_keep_all_their_digits_as_decimals_and_as_text() -> None:
    money = '{"a":12345678901234567.89,"b":{"c":1.10,"d":[1E2,-0.0]},"e":123456789012345678901234567890}'
    kind = pa.struct([("a", pa.decimal128(38, 2)), ("b", pa.string()), ("e", pa.string())])
    assert values(kind, money, '{"a":0.10,"b":"1.10","e":2.50}') == [
        {
            "a": Decimal("12345678901234567.89"),
            "b": '{"c":1.10,"d":[1E2,-0.0]}',
            "e": "123456789012345678901234567890",
        },
        {"a": Decimal("0.10"), "b": "1.10", "e": "2.50"},
    ]
    assert values(pa.decimal128(38, 19), "0.1234567890123456789") == [Decimal("0.1234567890123456789")]
    assert values(pa.decimal128(38, 0), "123456789012345678901234567890", "1e300", '"1e1000000000"', '"nan"') == [
        Decimal(123456789012345678901234567890), None, None, None,
    ]  # fmt: skip
    assert values(pa.float32(), "1.5", "2") == [1.5, 2.0]
    whole = (
        "9007199254740993.0",
        "-9.007199254740993e15",
        "0e999999999",
        "0.99999999999999999999",
        "1e-999999999",
        "1e19",
    )
    assert values(pa.int64(), *whole) == [9007199254740993, -9007199254740993, 0, None, None, None]


@pytest.mark.parametrize("tiny", ["1e-999999999", "-1e-10000000", "0." + "0" * 9_000_000 + "1"])
@pytest.mark.parametrize("quoted", [False, True])
def test_a_tiny_number_does_not_end_the_process_that_reads_it_as_a_decimal(tiny: str, quoted: bool) -> None:
    """Arrow crashes over such an exponent, and with it each task that comes to the message, again and again."""
    text = f'"{tiny}"' if quoted else tiny
    assert values(pa.decimal128(38, 10), text, "1.5", "0e-999999999", "0e999999999", "1." + "0" * 9_000_000) == [
        None, Decimal("1.5"), Decimal(0), Decimal(0), Decimal(1),
    ]  # fmt: skip
