"""From Arrow to messages: the envelopes and payloads of many rows, put together column by column in C.

What a row may say of its message: ``channel``, ``key``, ``type``, ``id``, ``time``, ``subject``, ``correlationid``,
``traceparent``, ``headers``, and its payload as ``data`` or ``bytes``. All that is checked before anything is written.
"""

from __future__ import annotations

import base64
import time
import zlib
from typing import Any, Final, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    MapType,
    NullType,
    StringType,
    StructType,
    TimestampType,
    VariantType,
    YearMonthIntervalType,
)

from heliograph.errors import ConfigError, InvalidMessage, MessageTooLarge
from heliograph.limits import KEY_BYTES_MAX
from heliograph.log.beginnings import Beginning, Run
from heliograph.log.lines import TAIL_BYTES_MAX
from heliograph.log.stamping import can_together
from heliograph.message import Timestamps, attributes, id_run
from heliograph.payloads import DEFAULT_TYPE, check_type_name
from heliograph.spark.jsontext import Parts, escaped, joined, payload_parts, quoted, text
from heliograph.spark.options import WriteOptions
from heliograph.staging.files import PRODUCER_BYTES_MAX

BYTES_TYPE: Final = "heliograph.bytes.v1"
COLUMNS: Final = (
    "channel", "key", "type", "id", "time", "subject", "correlationid", "traceparent", "headers", "data", "bytes",
)  # fmt: skip
_TEXTS: Final = {"key": KEY_BYTES_MAX, "correlationid": 1024, "traceparent": 256, "subject": 8192}
"""How many bytes an optional attribute may have."""
_ORDER: Final = ("key", "correlationid", "traceparent", "subject")
_NAMES: Final = {"key": "partitionkey"}
_KINDS: Final = {"time": TimestampType, "headers": MapType, "bytes": BinaryType}
"""What columns must be that are no text; ``data`` may be anything that becomes JSON."""
_ID: Final = r"^[!#-\[\]-~]{1,200}$"
_FRESH: Final = object()
"""Stands for ids that nobody gave."""
_COMMON: Final = 3
"""So many merged parts come before what is particular to each row, if nobody gave ids: text, ids, text."""
_US_MAX: Final = 253_402_300_800_000_000
_decode: Final = msgspec.json.Decoder().decode


class Bodies(NamedTuple):
    """Rows as messages that are not yet published."""

    texts: pa.Array  # envelopes without their closing brace, each with a newline
    times_us: tuple[int, int]
    begin: Beginning | None  # how each of them begins, if that is not in the texts


def check_columns(schema: StructType, options: WriteOptions) -> None:
    """Refuse a table that cannot be published."""
    names = schema.fieldNames()
    unknown = [name for name in names if name not in COLUMNS]
    if unknown:
        raise ConfigError(
            f"column '{unknown[0]}' has no meaning for a message. Payloads belong into one column: "
            f"to_json(struct(…)) AS data; else there are {', '.join(COLUMNS)}"
        )
    if "channel" not in names and options.channel is None:
        raise ConfigError("where to? Say option('channel', …), or have a column 'channel'")
    if "data" not in names and "bytes" not in names:
        raise ConfigError("there is neither a column 'data' nor a column 'bytes': messages would be empty")
    for field in schema.fields:
        wanted = _KINDS.get(field.name, StringType)
        if field.name != "data" and not isinstance(field.dataType, (wanted, NullType)):
            raise ConfigError(
                f"column '{field.name}' is {field.dataType.simpleString().upper()}, and must be "
                f"{wanted.__name__.removesuffix('Type').upper()}: cast it"
            )
        if field.name == "data":
            _check_payload(field.dataType)


def _check_payload(kind: DataType) -> None:
    """Refuse what Arrow has as something else: a VARIANT would be published as the bytes that Spark keeps it in.

    And what readers would see the half of: two fields of one name.
    """
    if isinstance(kind, VariantType | YearMonthIntervalType):
        raise ConfigError(f"column 'data' is or holds {kind.simpleString().upper()}: use to_json(data)")
    names = kind.fieldNames() if isinstance(kind, StructType) else []
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"column 'data' has or holds two fields '{name}': give one of them another name")
    inside = [field.dataType for field in kind.fields] if isinstance(kind, StructType) else []
    inside += [kind.elementType] if isinstance(kind, ArrayType) else []
    inside += [kind.valueType] if isinstance(kind, MapType) else []
    for one in inside:
        _check_payload(one)


class Encoder:
    """Makes bodies of the rows for one channel."""

    def __init__(self, station: str, options: WriteOptions, max_bytes: int) -> None:
        self._source = f"{station}/{options.service}" if options.service else station
        self._type = options.type
        self._max_bytes = max_bytes - TAIL_BYTES_MAX - PRODUCER_BYTES_MAX
        self._stamps = Timestamps()

    def bodies(self, channel: str, rows: pa.Table) -> Bodies:
        """What is published to a channel for some rows, without what it has in common if that is worth it."""
        parts, span = self._parts(channel, rows, "\n")
        begin = _beginning(parts) if can_together(len(rows)) else None
        texts = _joined(parts if begin is None else parts[_COMMON:], len(rows))
        self._check_size(channel, texts, 0 if begin is None else len(begin))
        return Bodies(texts, span, begin)

    def events(self, channel: str, rows: pa.Table) -> pa.Array:
        """The same as whole events, each with a newline."""
        parts, _ = self._parts(channel, rows, "}\n")
        texts = _joined(parts, len(rows))
        self._check_size(channel, texts)
        return texts

    def _parts(self, channel: str, rows: pa.Table, ending: str) -> tuple[list[Any], tuple[int, int]]:
        """What stands behind each other in each row, and the smallest and largest time."""
        now_us = time.time_ns() // 1000
        times, span = self._times(rows, now_us)
        payloads, binary = _payloads(rows)
        parts: list[Any] = ['{"specversion":"1.0","id":"', self._ids(rows), f'","source":{text(self._source)},"type":']
        parts += [self._types(rows, binary), ',"time":"', times, f'","channel":{text(channel)}']
        for name in _ORDER:
            if name in rows.column_names:
                parts += _optional(name, rows[name])
        if "headers" in rows.column_names:
            parts.append(_headers(rows["headers"]))
        return _merged([*parts, *payloads, ending]), span

    def _ids(self, rows: pa.Table) -> Any:
        if "id" not in rows.column_names:
            return _FRESH
        ids = _chunk(rows["id"])
        if ids.null_count:
            ids = pc.coalesce(ids, _fresh_ids(len(ids)))
        _require(
            pc.match_substring_regex(ids, _ID),
            ids,
            "is no id: use 1 to 200 printable ASCII characters without quotes and spaces",
        )
        return ids

    def _types(self, rows: pa.Table, binary: pa.Array | None) -> Any:
        otherwise = text(self._type) if self._type is not None else None
        types: Any = otherwise or text(DEFAULT_TYPE)
        if self._type is not None:
            check_type_name(self._type)
        elif binary is not None:
            types = pc.if_else(binary, text(BYTES_TYPE), types)
        if "type" in rows.column_names:
            named = _chunk(rows["type"])
            for one in pc.unique(named).drop_null().to_pylist():
                check_type_name(one)
            types = pc.coalesce(quoted(named), types)
        return types

    def _times(self, rows: pa.Table, now_us: int) -> tuple[Any, tuple[int, int]]:
        now = self._stamps.format(now_us).decode()
        if "time" not in rows.column_names:
            return now, (now_us, now_us)
        moments = _chunk(rows["time"]).cast(pa.timestamp("us", "UTC"))
        numbers = pc.coalesce(moments.cast(pa.int64()), now_us)
        low, high = (bound.as_py() for bound in pc.min_max(numbers).values())
        if low < 0 or high >= _US_MAX:
            raise InvalidMessage("column 'time' has values outside of the years 1970 to 9999")
        texts = pc.strftime(numbers.cast(pa.timestamp("us", "UTC")), "%Y-%m-%dT%H:%M:%SZ")
        return texts, (low, high)

    def _check_size(self, channel: str, texts: pa.Array, begin: int = 0) -> None:
        largest = pc.max(pc.binary_length(texts)).as_py() + begin
        if largest > self._max_bytes:
            raise MessageTooLarge(
                f"a row for '{channel}' makes a message of about {largest} bytes; messages.max_bytes allows "
                f"{self._max_bytes}. Publish a reference to the data instead, or raise the limit."
            )


def partitions_of(keys: pa.Array, count: int) -> pa.Array:
    """The partition of each key; null where there is no key."""
    encoded = _chunk(keys).dictionary_encode()
    places = pa.array([zlib.crc32(key.encode()) % count for key in encoded.dictionary.to_pylist()], pa.int32())
    return places.take(encoded.indices)


# -- payloads ---------------------------------------------------------------------------------------------------------


def _payloads(rows: pa.Table) -> tuple[Parts, pa.Array | None]:
    """The payloads as they stand in a line, part by part, and which of them are bytes."""
    parts: Parts = [pa.repeat("null", len(rows))]
    if "data" in rows.column_names:
        parts = payload_parts(_chunk(rows["data"]))
    parts = [',"data":', *parts]
    if "bytes" not in rows.column_names:
        return parts, None
    found = joined(parts)
    binary = _chunk(rows["bytes"])
    encoded = [None if one is None else base64.b64encode(one).decode() for one in binary.to_pylist()]
    there = binary.is_valid()
    as_text = pc.binary_join_element_wise(',"data_base64":"', pa.array(encoded, pa.string()), '"', "")
    return [pc.if_else(there, as_text, found)], there


# -- attributes -------------------------------------------------------------------------------------------------------


def _optional(name: str, column: pa.ChunkedArray) -> list[Any]:
    texts = _chunk(column)
    if pc.max(pc.coalesce(pc.binary_length(texts), 0)).as_py() > _TEXTS[name]:
        raise InvalidMessage(f"column '{name}' holds more than {_TEXTS[name]} bytes")
    if name != "key":  # an empty one is none, as with publish
        texts = pc.if_else(pc.equal(texts, ""), pa.scalar(None, pa.string()), texts)
    begin = f',"{_NAMES.get(name, name)}":'
    if not texts.null_count and not escaped(texts):
        return [f'{begin}"', texts, '"']  # as they are, and joined with all the rest
    return [pc.binary_join_element_wise(begin, quoted(texts), "")]


def _headers(column: pa.ChunkedArray) -> pa.Array:
    """Headers of a MAP; a replay has them as JSON, because they may be of several kinds."""
    rows = [_decode(one) if isinstance(one, str) else dict(one or ()) for one in _chunk(column).to_pylist()]
    texts = [attributes(None, None, None, None, one).decode() if one else "" for one in rows]
    return pa.array(texts, pa.string())


def _beginning(parts: list[Any]) -> Beginning | None:
    """What merged parts begin with, if all rows begin alike but for ids that nobody gave."""
    before, ids, behind, *_ = parts
    return _fresh(before, behind) if ids is _FRESH else None


def _fresh(before: str = "", behind: str = "") -> Beginning:
    """Ids that nobody gave, between two texts."""
    text, start = id_run()
    return Beginning(before + text, start, behind)


def _fresh_ids(count: int, before: str = "", behind: str = "") -> pa.Array:
    """As many of them as wanted."""
    return Run(_fresh(before, behind), count).column().view(pa.string())


def _joined(parts: list[Any], count: int) -> pa.Array:
    """All merged parts behind each other, row by row; a null is nothing."""
    fewer = [*parts]
    for at in [at for at, part in enumerate(fewer) if part is _FRESH]:
        fewer[at - 1 : at + 2] = [_fresh_ids(count, fewer[at - 1], fewer[at + 1])]
    found = pc.binary_join_element_wise(*fewer, "", null_handling="replace", null_replacement="")
    return found if isinstance(found, pa.Array) else pa.repeat(found, count)


def _merged(parts: list[Any]) -> list[Any]:
    """The same with texts that are the same for all rows put together: each part costs time in each row.

    >>> _merged(["a", "b", 1, "c", 2, 3, "d", "e"])
    ['ab', 1, 'c', 2, 3, 'de']
    """
    found: list[Any] = []
    for part in parts:
        if isinstance(part, str) and found and isinstance(found[-1], str):
            found[-1] += part
        else:
            found.append(part)
    return found


def _require(fits: pa.Array, values: pa.Array, why: str) -> None:
    wrong = pc.filter(values, pc.invert(pc.fill_null(fits, False)))
    if len(wrong):
        raise InvalidMessage(f"{wrong[0].as_py()!r} {why}")


def _chunk(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    """A column in one piece; one that is nothing but NULL is text that is not there."""
    whole = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    return whole.cast(pa.string()) if pa.types.is_null(whole.type) else whole


def borders(texts: pa.Array) -> list[int]:
    """Where each text ends among the bytes of all, and where the first begins."""
    found: list[int] = memoryview(texts.buffers()[1]).cast("i")[texts.offset : texts.offset + len(texts) + 1].tolist()
    return [border - found[0] for border in found] if found[0] else found
