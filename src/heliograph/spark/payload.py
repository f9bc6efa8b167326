"""Payloads as typed columns: from JSON text to Arrow, and from a registered type's JSON Schema to Spark's types."""

from __future__ import annotations

import base64
import math
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Context, Decimal, Inexact, InvalidOperation
from types import NoneType
from typing import Any, Final, Self

import msgspec
import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DoubleType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from heliograph.errors import PayloadMismatch

_decode: Final = msgspec.json.Decoder().decode
_EXACTLY: Final = Context(prec=76, traps=[InvalidOperation, Inexact])
"""No decimal has more digits; what has is not even tried: a number of a million digits takes its time."""
_TAKEN: Final[dict[pa.DataType, set[type]]] = {
    pa.string(): {str, NoneType}, pa.int64(): {int, NoneType}, pa.float64(): {int, float, NoneType},
}  # fmt: skip
"""What of JSON these types are made from, as it is."""


# -- from JSON text ---------------------------------------------------------------------------------------------------


class _Number(float):
    """A number with a fraction or an exponent, and how it is written: a double has 17 digits, a decimal up to 38."""

    text: str

    def __new__(cls, text: str) -> Self:
        made = super().__new__(cls, text)
        if math.isinf(made):
            raise ValueError("Number out of range")
        made.text = text
        return made


_decode_exactly: Final = msgspec.json.Decoder(float_hook=_Number).decode
_encode: Final = msgspec.json.Encoder(enc_hook=lambda number: msgspec.Raw(number.text.encode())).encode


def typed(texts: pa.Array, kind: pa.DataType, place: Callable[[int], str], *, fail: bool) -> pa.Array:
    """JSON texts as values of a type. What does not fit is null, or raises PayloadMismatch naming its place."""
    given = texts.to_pylist()
    if _direct(kind):
        values = [None if text is None else _decoded(text, _decode) for text in given]
        if _exact(values, kind):
            try:
                return pa.array(values, kind)
            except (pa.ArrowException, TypeError, ValueError, OverflowError):
                pass  # some value does not fit: look at each
    values = [None if text is None else _decoded(text, _decode_exactly) for text in given]
    return pa.array([_one(value, kind, at, place, fail=fail) for at, value in enumerate(values)], kind)


def _decoded(text: str, decode: Callable[[str], Any]) -> Any:
    """What a text says; an error, if Python has nothing that it could be: 1e999 is good JSON."""
    try:
        return decode(text)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        return ValueError(str(error))


def _one(value: Any, kind: pa.DataType, at: int, place: Callable[[int], str], *, fail: bool) -> Any:
    try:
        if isinstance(value, ValueError):
            raise value
        return _shaped(value, kind)
    except (ValueError, TypeError, OverflowError, InvalidOperation) as error:
        if fail:
            raise PayloadMismatch(f"{place(at)}: the payload does not fit {kind}: {error}") from None
        return None


def _direct(kind: pa.DataType) -> bool:
    """Whether Arrow takes what JSON has, as it is."""
    if pa.types.is_struct(kind):
        return all(_direct(kind.field(at).type) for at in range(kind.num_fields))
    if pa.types.is_list(kind):
        return _direct(kind.value_type)
    return kind in _TAKEN


def _exact(values: list[Any], kind: pa.DataType) -> bool:
    """Whether values are what a type wants. Arrow is content with less: 1.5 is its 1, true its 1.0, a text its list."""
    found = set(map(type, values))
    if pa.types.is_struct(kind):
        objects = [value for value in values if value is not None]
        fields = [kind.field(at) for at in range(kind.num_fields)]
        return found <= {dict, NoneType} and all(
            _exact([one.get(field.name) for one in objects], field.type) for field in fields
        )
    if pa.types.is_list(kind):
        if not found <= {list, NoneType}:
            return False
        return _exact([one for value in values if value for one in value], kind.value_type)
    return found <= _TAKEN[kind]


def _shaped(value: Any, kind: pa.DataType) -> Any:
    """A JSON value as Arrow takes it for a type; raises if it does not fit."""
    if value is None:
        return None
    if pa.types.is_struct(kind):
        fields = [kind.field(at) for at in range(kind.num_fields)]
        return {field.name: _shaped(_object(value).get(field.name), field.type) for field in fields}
    if pa.types.is_list(kind):
        if not isinstance(value, list):
            raise TypeError(f"expected an array, got {_shown(value)}")
        return [_shaped(one, kind.value_type) for one in value]
    if pa.types.is_map(kind):
        return [(key, _shaped(one, kind.item_type)) for key, one in _object(value).items()]
    return _scalar(value, kind)


def _object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise TypeError(f"expected an object, got {_shown(value)}")
    return value


def _scalar(value: Any, kind: pa.DataType) -> Any:
    if pa.types.is_string(kind):
        return value if isinstance(value, str) else _encode(value).decode()  # as text, whatever it is
    if pa.types.is_boolean(kind):
        return _of(value, bool)
    if isinstance(value, bool):
        raise TypeError(f"expected {kind}, got {_shown(value)}")
    if pa.types.is_integer(kind):
        return pa.scalar(_whole(value) if isinstance(value, _Number) else _of(value, int), kind).as_py()
    if pa.types.is_floating(kind):
        return _float(float(_of(value, int, float)), kind)
    if pa.types.is_decimal(kind):
        return _decimal(_of(value, int, float, str), kind)
    return _from_text(_of(value, str), kind)


def _whole(value: _Number) -> int:
    """A whole number that is written with a fraction or an exponent; as a double it might be its neighbour."""
    number = Decimal(value.text)
    if not number:
        return 0
    if number != number.to_integral_value():
        raise ValueError(f"expected int, got {_shown(value)}")
    return int(number)


def _float(number: float, kind: pa.DataType) -> float:
    """Arrow makes an infinity of what is beyond a FLOAT, without a word."""
    if math.isinf(pa.scalar(number, kind).as_py()):
        raise ValueError(f"expected {kind}, got {_shown(number)}")
    return number


def _decimal(value: Any, kind: pa.DataType) -> Any:
    """Arrow gets no more digits than it has room for: an exponent such as that of 1e-9999999 ends the process."""
    number = Decimal(value.text if isinstance(value, _Number) else str(value))
    if not number.is_finite():
        raise ValueError(f"expected {kind}, got {_shown(value)}")
    try:
        number = number.quantize(Decimal((0, (1,), -kind.scale)), context=_EXACTLY)
    except (InvalidOperation, Inexact):
        raise ValueError(f"expected {kind}, got {_shown(value)}") from None
    return pa.scalar(number, kind).as_py()


def _from_text(text: str, kind: pa.DataType) -> Any:
    if pa.types.is_timestamp(kind):
        moment = datetime.fromisoformat(text)
        # In UTC it has to be of a year that there is, or nobody can show it.
        return moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)
    if pa.types.is_date(kind):
        return date.fromisoformat(text)
    if pa.types.is_binary(kind):
        return base64.b64decode(text, validate=True)
    raise ValueError(f"JSON has nothing that becomes {kind}; read data as STRING and convert it with SQL")


def _of(value: Any, *types: type) -> Any:
    if not isinstance(value, types):
        raise TypeError(f"expected {types[0].__name__}, got {_shown(value)}")
    return value


def _shown(value: Any) -> str:
    text = _encode(value).decode()
    return text if len(text) <= 40 else text[:39] + "…"


# -- from JSON Schema -------------------------------------------------------------------------------------------------

_SIMPLE: Final[dict[str, DataType]] = {
    "string": StringType(),
    "integer": LongType(),
    "number": DoubleType(),
    "boolean": BooleanType(),
}
_FORMATS: Final[dict[str, DataType]] = {
    "date-time": TimestampType(),
    "any-date-time": TimestampType(),
    "partial-date-time": TimestampType(),  # without a zone: UTC
    "date": DateType(),
}


def spark_type(schema: dict[str, Any]) -> DataType:
    """The Spark type for what a JSON Schema describes. What has no counterpart (unions, anything) is JSON text.

    >>> fields = {"n": {"type": "integer"}, "tags": {"type": "array"}}
    >>> spark_type({"type": "object", "properties": fields}).simpleString()
    'struct<n:bigint,tags:array<string>>'
    """
    return _type(schema, schema.get("$defs", {}), ())


def common_type(one: DataType, other: DataType) -> DataType:
    """A type for what fits either: channels learn of the versions of a type each at its own time.

    >>> from pyspark.sql.types import LongType, StructType
    >>> older, newer = StructType().add("n", LongType()), StructType().add("unit", "string").add("n", "double")
    >>> common_type(older, newer).simpleString(), common_type(older, LongType()).simpleString()
    ('struct<n:double,unit:string>', 'string')
    """
    if isinstance(one, StructType) and isinstance(other, StructType):
        known = {field.name: field.dataType for field in one.fields}
        for field in other.fields:
            known[field.name] = common_type(known.get(field.name, field.dataType), field.dataType)
        return StructType([StructField(name, kind) for name, kind in known.items()])
    if isinstance(one, ArrayType) and isinstance(other, ArrayType):
        return ArrayType(common_type(one.elementType, other.elementType))
    if isinstance(one, MapType) and isinstance(other, MapType):
        return MapType(StringType(), common_type(one.valueType, other.valueType))
    if {one, other} == {LongType(), DoubleType()}:
        return DoubleType()
    return one if one == other else StringType()


def _type(schema: Any, named: dict[str, Any], within: tuple[str, ...]) -> DataType:
    if not isinstance(schema, dict):
        return StringType()
    if "$ref" in schema:
        name = str(schema["$ref"]).rpartition("/")[2]
        # One that holds itself has no end.
        return StringType() if name in within else _type(named.get(name), named, (*within, name))
    if "anyOf" in schema:
        members = [one for one in schema["anyOf"] if one.get("type") != "null"]
        return _type(members[0], named, within) if len(members) == 1 else StringType()
    kind = schema.get("type")
    if isinstance(kind, list):
        rest = [one for one in kind if one != "null"]
        kind = rest[0] if len(rest) == 1 else None
    if kind == "object":
        return _object_type(schema, named, within)
    if kind == "array":
        return ArrayType(_type(schema.get("items"), named, within))
    if kind == "string":
        if schema.get("contentEncoding") == "base64":
            return BinaryType()
        return _FORMATS.get(schema.get("format", ""), StringType())
    return _SIMPLE.get(kind or "", StringType())


def _object_type(schema: dict[str, Any], named: dict[str, Any], within: tuple[str, ...]) -> DataType:
    fields = schema.get("properties")
    if fields:
        return StructType([StructField(name, _type(one, named, within)) for name, one in fields.items()])
    others = schema.get("additionalProperties")
    return MapType(StringType(), _type(others if isinstance(others, dict) else None, named, within))
