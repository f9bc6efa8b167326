"""The columns of a channel: what they are called, of what type they are, and which a user's schema may ask for.

A user's schema may leave columns out, put them in another order, and name attributes that have no column of their own:
any other name is the attribute of that name, be it a publisher's header or something that a later version adds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    NumericType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
    VariantType,
)

from heliograph.errors import ConfigError

if TYPE_CHECKING:
    import pyarrow as pa

    from heliograph.spark.appends import Appends

GAP_TYPE: Final = StructType([StructField("next", LongType()), StructField("reason", StringType())])
TYPES: Final[dict[str, DataType]] = {
    "channel": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "time": TimestampType(),
    "id": StringType(),
    "source": StringType(),
    "type": StringType(),
    "key": StringType(),
    "subject": StringType(),
    "correlationid": StringType(),
    "traceparent": StringType(),
    "headers": MapType(StringType(), StringType()),
    "data": StringType(),
    "bytes": BinaryType(),
    "expires": TimestampType(),
    "origin": StringType(),
    "originseq": StringType(),
}
"""The columns that a reader gets who asks for nothing else, in this order."""

ASKED: Final[dict[str, DataType]] = {
    "raw": StringType(), "gap": GAP_TYPE, "appended": TimestampType(), "headers_json": StringType(),
}  # fmt: skip
"""Columns that are there for who names them; ``gap`` also with failOnGap=false. ``appended``: see appends.py."""

ATTRIBUTES: Final = {"key": "partitionkey"}
"""Columns that are called otherwise than their attribute."""

_PAYLOAD_TYPES: Final = (StringType, BooleanType, NumericType, DateType, TimestampType, TimestampNTZType, BinaryType)
_ATTRIBUTE_TYPES: Final = (StringType(), LongType(), IntegerType(), DoubleType(), BooleanType())


class Wanted(NamedTuple):
    """What a reader asked for."""

    schema: pa.Schema
    payload_type: str | None = None  # only messages of this type
    fail_on_mismatch: bool = False
    appends: Appends | None = None  # when lines were appended, if that is asked for

    @property
    def names(self) -> frozenset[str]:
        """Its columns."""
        return frozenset(self.schema.names)


def default_schema(data: DataType | None, *, gaps: bool) -> StructType:
    """What a reader without a schema of its own gets; ``data`` as that type, JSON text if None."""
    types = {**TYPES, **({"gap": GAP_TYPE} if gaps else {})}
    if data is not None:
        types["data"] = data
    return StructType([StructField(name, kind) for name, kind in types.items()])


def kept_schema(*, gaps: bool) -> StructType:
    """Everything that becomes a message once more: all columns, and headers as what they are."""
    return default_schema(None, gaps=gaps).add("headers_json", ASKED["headers_json"])


def check_schema(schema: StructType) -> StructType:
    """A user's schema, if every column of it can be filled.

    >>> from pyspark.sql.types import StructType
    >>> check_schema(StructType().add("offset", "integer"))
    Traceback (most recent call last):
    heliograph.errors.ConfigError: column 'offset' is BIGINT, not INT; change the schema, or cast it afterwards
    """
    names = schema.fieldNames()
    for field in schema.fields:
        name, kind = field.name, field.dataType
        if name != name.lower():
            raise ConfigError(f"column '{name}': columns and attributes are written in small letters, '{name.lower()}'")
        if names.count(name) > 1:
            raise ConfigError(f"column '{name}' is there twice")
        if not field.nullable and not _certain(name, names):
            raise ConfigError(f"column '{name}' may be null: leave out NOT NULL, which Spark would rely on")
        known = TYPES.get(name) or ASKED.get(name)
        if name == "data":
            _check_payload(kind, name)
        elif known is not None:
            if kind != known:
                raise ConfigError(
                    f"column '{name}' is {_name(known)}, not {_name(kind)}; change the schema, or cast it afterwards"
                )
        elif kind not in _ATTRIBUTE_TYPES:
            allowed = ", ".join(_name(one) for one in _ATTRIBUTE_TYPES)
            raise ConfigError(
                f"column '{name}' would be the attribute of that name, which cannot be {_name(kind)}; use one of "
                f"{allowed}. Payloads are typed by the type of column 'data': data STRUCT<…>"
            )
    return schema


def _certain(name: str, names: list[str]) -> bool:
    """Whether a column is filled in every row; those that stand for a gap have little more than their place."""
    return name in {"channel", "partition", "offset"} or (
        name in {"time", "id", "source", "type", "raw"} and "gap" not in names
    )


def _check_payload(kind: DataType, where: str) -> None:
    """Refuse a type that no JSON becomes: it would be null in every row."""
    if isinstance(kind, StructType):
        for field in kind.fields:
            _check_nullable(field.nullable, f"{where}.{field.name}")
            _check_payload(field.dataType, f"{where}.{field.name}")
    elif isinstance(kind, ArrayType):
        _check_nullable(kind.containsNull, f"{where}[]")
        _check_payload(kind.elementType, f"{where}[]")
    elif isinstance(kind, MapType):
        if kind.keyType != StringType():
            raise ConfigError(f"the keys of '{where}' are STRING, as JSON has them, not {_name(kind.keyType)}")
        _check_nullable(kind.valueContainsNull, f"{where}.*")
        _check_payload(kind.valueType, f"{where}.*")
    elif isinstance(kind, VariantType):
        raise ConfigError(f"column '{where}' cannot be VARIANT; read it as STRING and use parse_json({where})")
    elif not isinstance(kind, _PAYLOAD_TYPES):
        raise ConfigError(f"column '{where}' cannot be {_name(kind)}; read it as STRING and convert it with SQL")


def _check_nullable(nullable: bool, where: str) -> None:
    if not nullable:
        raise ConfigError(f"'{where}' may be null: leave out NOT NULL (containsNull=False), which Spark would rely on")


def _name(kind: DataType) -> str:
    return str(kind.simpleString()).upper()
