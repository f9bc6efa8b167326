"""Structs as JSON, column by column: the same that each row would be by itself."""

from __future__ import annotations

import decimal
from datetime import date
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as some

from heliograph.errors import InvalidMessage
from heliograph.payloads import encode
from heliograph.spark.jsontext import joined, payload_parts

KINDS: dict[pa.DataType, some.SearchStrategy[Any]] = {
    pa.string(): some.text(max_size=8),
    pa.int64(): some.integers(-(2**63), 2**63 - 1),
    pa.uint64(): some.integers(0, 2**64 - 1),
    pa.int8(): some.integers(-128, 127),
    pa.bool_(): some.booleans(),
    pa.float64(): some.floats(allow_nan=False, allow_infinity=False),
    pa.float32(): some.floats(allow_nan=False, allow_infinity=False, width=32),
    pa.date32(): some.dates(date(1970, 1, 1), date(2100, 1, 1)),
    pa.decimal128(10, 2): some.decimals(-1000, 1000, places=2),
    pa.list_(pa.int64()): some.lists(some.integers(0, 9), max_size=3),
    pa.binary(): some.binary(max_size=5),
}


@some.composite
def structs(draw: some.DrawFn, depth: int = 2) -> tuple[pa.DataType, some.SearchStrategy[Any]]:
    """A type, and its values, some of them null."""
    names = draw(some.lists(some.text(max_size=4), min_size=1, max_size=4, unique=True))
    fields, values = [], {}
    for name in names:
        if depth and draw(some.integers(0, 4)) == 0:
            kind, value = draw(structs(depth - 1))
        else:
            kind = draw(some.sampled_from(list(KINDS)))
            value = KINDS[kind]
        fields.append(pa.field(name, kind))
        values[name] = value if draw(some.booleans()) else value | some.none()
    whole = some.fixed_dictionaries(values)
    return pa.struct(fields), whole if draw(some.booleans()) else whole | some.none()


def rows_of(values: pa.Array) -> list[str]:
    parts = payload_parts(values)
    assert any(isinstance(part, pa.Array) for part in parts)
    made = joined(parts)
    assert not made.null_count
    return [str(one) for one in made.to_pylist()]


@given(some.data())
def test_a_struct_is_what_each_row_would_be_by_itself(data: some.DataObject) -> None:
    kind, value = data.draw(structs())
    values = pa.array(data.draw(some.lists(value, max_size=5)), kind)
    begin = data.draw(some.integers(0, len(values)))
    some_of_it = values.slice(begin, data.draw(some.integers(0, 3)))
    for array in (values, some_of_it):
        assert rows_of(array) == [encode(shortest(one, kind)).decode() for one in array.to_pylist()]


def shortest(value: Any, kind: pa.DataType) -> Any:
    """The same with the fewest digits of what has single precision."""
    if value is None or not (pa.types.is_struct(kind) or pa.types.is_float32(kind)):
        return value
    if pa.types.is_struct(kind):
        return {field.name: shortest(value[field.name], field.type) for field in kind}
    return next(float(text) for text in (f"{value:.{n}e}" for n in range(9)) if np.float32(text) == np.float32(value))


@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
@pytest.mark.parametrize("within", [lambda one: one, lambda one: {"deep": one}, lambda one: [one]])
def test_what_is_no_number_is_refused_with_its_place(wrong: float, within: Any) -> None:
    values = pa.array([{"n": within(1.0)}, {"n": within(wrong)}])
    with pytest.raises(InvalidMessage, match=r"holds (nan|inf) at \$\.n"):
        payload_parts(values)


def test_text_with_quotes_and_breaks_is_escaped() -> None:
    values = pa.array([{"a": "plain", "b": one} for one in ('"', "\\", "\n", "\x1f", "é", "\x7f")])
    assert rows_of(values) == [encode(one).decode() for one in values.to_pylist()]


def test_a_float_stays_one_though_it_is_whole() -> None:
    values = pa.array([{"n": 1.0}, {"n": -0.0}, {"n": 1e22}, {"n": 5e-324}])
    assert rows_of(values) == ['{"n":1.0}', '{"n":-0.0}', '{"n":1e22}', '{"n":5e-324}']


def test_a_number_of_single_precision_has_the_digits_that_it_needs() -> None:
    kind = pa.struct([("n", pa.float32())])
    for values in (
        pa.array([{"n": 0.1}, {"n": 1.0}, {"n": None}, {"n": 16777216.0}, {"n": 3.4028235e38}], kind),
        pa.array([{"n": 0.1}, {"n": 1.0}, {"n": None}, {"n": 16777216.0}, {"n": 3.4028235e38}, None], kind).slice(0, 5),
    ):
        assert rows_of(values) == [
            '{"n":0.1}', '{"n":1.0}', '{"n":null}', '{"n":16777216.0}', '{"n":3.4028235e38}'
        ]  # fmt: skip
    for made, wanted in (
        (pa.array([[0.1, None]], pa.list_(pa.float32())), "[0.1,null]"),
        (pa.array([{"l": [{"n": 0.1}]}], pa.struct([("l", pa.list_(kind))])), '{"l":[{"n":0.1}]}'),
        (pa.array([[("a", 0.1)]], pa.map_(pa.string(), pa.float32())), '{"a":0.1}'),
    ):
        assert rows_of(made) == [wanted]


@given(some.lists(some.floats(allow_nan=False, allow_infinity=False, width=32)))
def test_and_is_read_back_as_the_same(numbers: list[float]) -> None:
    texts = rows_of(pa.array(numbers, pa.float32()))
    assert [np.float32(float(text)) for text in texts] == [np.float32(one) for one in numbers]


def test_values_that_are_no_structs_become_json_too() -> None:
    for values, wanted in [
        (pa.array([1, None]), ["1", "null"]),
        (pa.array([[1], [], None]), ["[1]", "[]", "null"]),
        (pa.array([decimal.Decimal("1.50")]), ['"1.50"']),
        (pa.array([{}, None], pa.struct([])), ["{}", "null"]),
        (pa.array(["", ""]).dictionary_encode().cast(pa.string()), None),
    ]:
        if wanted is None:
            with pytest.raises(InvalidMessage):  # text is JSON already
                payload_parts(values)
        else:
            assert rows_of(values) == wanted
    empty = pa.array([{"a": ""}, {"a": ""}])
    assert rows_of(empty) == ['{"a":""}', '{"a":""}']
