"""From Arrow to JSON: payloads of many rows at once, each in one line.

Text is JSON already, and looked at. A struct becomes an object column by column: what stands behind each other in each
row is a part, either a text that is the same in all rows or a column, and whoever makes lines of rows joins them all at
once, in C. What Arrow has no quick way for (lists, maps, decimals, dates) is made value by value::

    STRUCT<host: STRING, n: BIGINT>   ──▶   '{"host":"'   host   '","n":'   n as text   '}'
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from heliograph.errors import InvalidMessage
from heliograph.payloads import encode
from heliograph.spark.checking import content, in_lines

Parts = list[Any]
"""Texts, and columns of texts without nulls."""

_SPACE: Final = 0x20
_encode: Final = msgspec.json.Encoder().encode


def payload_parts(values: pa.Array) -> Parts:
    """Payloads as JSON, each in one line, part by part; InvalidMessage if one does not become JSON."""
    if pa.types.is_string(values.type):
        return [_or_null(in_lines(values))]
    try:
        return _parts(values)
    except InvalidMessage:  # of a part of a row: only the whole row knows where in it that is
        return [_one_by_one(values)]


def joined(parts: Parts) -> pa.Array:
    """Parts, at least one of them a column, behind each other in each row."""
    return parts[0] if len(parts) == 1 else pc.binary_join_element_wise(*parts, "")


def quoted(texts: pa.Array) -> pa.Array:
    """Texts as JSON."""
    if escaped(texts):
        return pa.array([None if one is None else text(one) for one in texts.to_pylist()], pa.string())
    return pc.binary_join_element_wise('"', texts, '"', "")


def escaped(texts: pa.Array) -> bool:
    """Whether any of them holds what JSON has another way of writing."""
    found = content(texts)
    return b'"' in found or b"\\" in found or (bool(found) and int(np.frombuffer(found, np.uint8).min()) < _SPACE)


def text(value: str) -> str:
    """One text as JSON."""
    return _encode(value).decode()


# -- columns ----------------------------------------------------------------------------------------------------------


def _parts(values: pa.Array) -> Parts:
    kind = values.type
    for fits, made in _WAYS:
        if fits(kind):
            return made(values)
    return [_one_by_one(values)]


def _strings(values: pa.Array) -> Parts:
    if not values.null_count and not escaped(values):
        return ['"', values, '"']  # as they are, and joined with all the rest
    return [_or_null(quoted(values))]


def _whole(values: pa.Array) -> Parts:
    """Whole numbers, and what is true or false: Arrow writes them as JSON does."""
    return [_or_null(values.cast(pa.string()))]


def _floats(values: pa.Array) -> Parts:
    """Arrow would write 1.0 as 1, which a reader takes for a whole number.

    A FLOAT has the digits that tell it from other ones, and not those that it has as a double.
    """
    known = pc.fill_null(values, 0.0)
    if not pc.all(pc.is_finite(known), min_count=0).as_py():
        raise InvalidMessage("a number that is none")
    if pa.types.is_float32(known.type):
        known = known.cast(pa.string()).cast(pa.float64())
    listed = known.to_numpy(zero_copy_only=False).tolist()
    texts = pa.array(_encode(listed)[1:-1].split(b",") if listed else [], pa.binary()).view(pa.string())
    return [pc.if_else(values.is_valid(), texts, "null") if values.null_count else texts]


def _struct(values: pa.Array) -> Parts:
    names = [field.name for field in values.type]
    if not names:
        return [_one_by_one(values)]
    parts: Parts = []
    for name, column in zip(names, values.flatten(), strict=True):
        parts += [f"{',' if parts else '{'}{text(name)}:", *_parts(column)]
    parts.append("}")
    return [pc.if_else(values.is_valid(), joined(parts), "null")] if values.null_count else parts


_WAYS: Final[list[tuple[Callable[[pa.DataType], bool], Callable[[pa.Array], Parts]]]] = [
    (pa.types.is_string, _strings),
    (pa.types.is_integer, _whole),
    (pa.types.is_boolean, _whole),
    (pa.types.is_floating, _floats),
    (pa.types.is_struct, _struct),
]


def _or_null(texts: pa.Array) -> pa.Array:
    return pc.coalesce(texts, "null") if texts.null_count else texts


# -- value by value ---------------------------------------------------------------------------------------------------


def _one_by_one(values: pa.Array) -> pa.Array:
    try:
        found = values.to_pylist()
    except (OverflowError, ValueError) as error:
        raise InvalidMessage(
            f"column 'data' is {values.type}, and holds a date or a time that is not of the years 1 to 9999 in UTC "
            f"({error}): use to_json"
        ) from None
    return pa.array([_encoded(one, values.type) for one in found], pa.string())


def _encoded(value: Any, kind: pa.DataType) -> str:
    try:
        apart = any(word in str(kind) for word in ("map<", "float"))
        return encode(_plain(value, kind) if apart else value).decode()
    except (InvalidMessage, TypeError) as error:
        raise InvalidMessage(f"column 'data' is {kind}, which does not become JSON ({error}): use to_json") from None


def _plain(value: Any, kind: pa.DataType) -> Any:
    """The same with objects for maps, which Arrow gives as pairs, and the digits that a FLOAT needs."""
    if value is None:
        return None
    if pa.types.is_float32(kind):
        return float(str(np.float32(value)))
    if pa.types.is_map(kind):
        return {key: _plain(one, kind.item_type) for key, one in value}
    if pa.types.is_struct(kind):
        return {field.name: _plain(value[field.name], field.type) for field in kind}
    return [_plain(one, kind.value_type) for one in value] if pa.types.is_list(kind) else value
