"""The columns of a channel: what they are called, of what type they are, and which a user's schema may ask for.

A user's schema may leave columns out, put them in another order, and name attributes that have no column of their own:
any other name is the attribute of that name, be it a publisher's header or something that a later version adds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DataType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
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

ASKED: Final[dict[str, DataType]] = {"raw": StringType(), "gap": GAP_TYPE, "appended": TimestampType()}
"""Columns that are there for who names them; ``gap`` also with failOnGap=false. ``appended``: see appends.py."""

ATTRIBUTES: Final = {"key": "partitionkey"}
"""Columns that are called otherwise than their attribute."""

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


def check_schema(schema: StructType) -> StructType:
    """A user's schema, if every column of it can be filled.

    >>> from pyspark.sql.types import StructType
    >>> check_schema(StructType().add("offset", "integer"))
    Traceback (most recent call last):
    heliograph.errors.ConfigError: column 'offset' is BIGINT, not INT; change the schema, or cast it afterwards
    """
    for field in schema.fields:
        kind = field.dataType
        known = TYPES.get(field.name) or ASKED.get(field.name)
        if field.name == "data":
            if isinstance(kind, VariantType):
                raise ConfigError("column 'data' cannot be VARIANT; read it as STRING and use parse_json(data)")
        elif known is not None:
            if kind != known:
                raise ConfigError(
                    f"column '{field.name}' is {_name(known)}, not {_name(kind)}; "
                    "change the schema, or cast it afterwards"
                )
        elif kind not in _ATTRIBUTE_TYPES:
            allowed = ", ".join(_name(one) for one in _ATTRIBUTE_TYPES)
            raise ConfigError(
                f"column '{field.name}' would be the attribute of that name, which cannot be {_name(kind)}; use one of "
                f"{allowed}. Payloads are typed by the type of column 'data': data STRUCT<…>"
            )
    return schema


def _name(kind: DataType) -> str:
    return str(kind.simpleString()).upper()
