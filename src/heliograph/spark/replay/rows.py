"""Which rows a replay publishes: those of a range that fulfil a condition, in an order that is always the same."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow as pa

from heliograph.errors import ConfigError, NotFound
from heliograph.spark.archive.together import whole
from heliograph.spark.bodies import COLUMNS, check_columns
from heliograph.spark.columns import kept_schema
from heliograph.spark.offsets import Places
from heliograph.spark.options import WriteOptions, read_options
from heliograph.spark.replay.record import At, Said

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Offsets = dict[str, dict[str, int]]
_PLACE: Final = ("channel", "partition", "offset")
_TAKEN: Final = tuple(name for name in COLUMNS if name != "channel")
_TYPES: Final = {"time": pa.timestamp("us", "UTC"), "bytes": pa.binary()}
_encode: Final = msgspec.json.Encoder().encode
_raws: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def resolved(path: Path, said: Said) -> tuple[Offsets, Offsets]:
    """What the words for start and end mean now, for every partition, archive included."""
    options = read_options({"path": str(path), "channel": said.channel, "includeArchive": "true"}, streaming=False)
    places = [Places("start", said.start, "first"), Places("end", said.end, "new")]
    found: tuple[Offsets, Offsets] = ({}, {})
    with whole(options) as store:
        names = store.among(options.channels)
        if not names:
            raise NotFound(f"no channel matches '{said.channel}'; 'helio channels' shows which there are")
        for place in places:
            place.check_channels(store, names)
        for name in names:
            for number in range(store.channel(name).partitions):
                for offsets, place in zip(found, places, strict=True):
                    offsets.setdefault(name, {})[str(number)] = place.offset(store, name, number)
    return found


def selected(spark: SparkSession, path: Path, said: Said, starts: Offsets, ends: Offsets) -> DataFrame:
    """The messages that are meant."""
    table = (
        spark.read.format("heliograph")
        .schema(kept_schema(gaps=False))
        .option("path", str(path))
        .option("channel", ",".join(starts))
        .option("includeArchive", "true")
        .option("startingOffsets", msgspec.json.encode(starts).decode())
        .option("endingOffsets", msgspec.json.encode(ends).decode())
        .load()
    )
    # A partition that was added since is no part of the range, and what is not named would be read as a whole.
    table = table.where(" OR ".join(f"(channel = '{name}' AND partition < {len(of)})" for name, of in starts.items()))
    if said.where is not None:
        table = table.where(said.where)
    if said.sql is None:
        return table
    table.createOrReplaceTempView("messages")
    made = spark.sql(said.sql)
    lacking = [name for name in (*_PLACE, "time") if name not in made.columns]
    if lacking:
        raise ConfigError(
            f"--sql leaves out column '{lacking[0]}': messages are recognised by where they were, so the result needs "
            "channel, partition, offset and time. Write SELECT * EXCEPT (data), … AS data FROM messages"
        )
    _check_types(made, WriteOptions(str(path), said.into, None, None))
    return made


def _check_types(made: DataFrame, options: WriteOptions) -> None:
    """Refuse columns that are not what the sink takes, before anything is published."""
    from pyspark.sql.types import NullType, StringType

    schema = made.select(*(name for name in COLUMNS if name in made.columns)).schema
    check_columns(schema, options)
    if "data" in schema.names and not isinstance(schema["data"].dataType, StringType | NullType):
        raise ConfigError(f"--sql makes column 'data' {schema['data'].dataType.simpleString().upper()}: use to_json(…)")


def ordered(table: DataFrame, after: At | None) -> DataFrame:
    """In the order in which they are published: by time between partitions, as in the log within each."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

    log = Window.partitionBy("channel", "partition").orderBy("offset").rowsBetween(Window.unboundedPreceding, 0)
    latest = F.coalesce(F.max(F.unix_micros("time")).over(log), F.lit(0))  # SQL may say NULL AS time: now
    table = table.withColumn("_at", latest)
    key = F.struct("_at", *_PLACE)
    if after is not None:
        behind = F.struct(
            F.lit(after.time_us).cast("bigint"),
            F.lit(after.channel),
            F.lit(after.partition),
            F.lit(after.offset).cast("bigint"),
        )
        table = table.where(key > behind)
    return table.orderBy("_at", *_PLACE)


def chunks(table: DataFrame, size: int, *, new_ids: bool) -> Iterator[tuple[At, pa.RecordBatch]]:
    """The rows on their way to the sink, and the place of the last of each chunk.

    What SQL made of one message stays together: whoever goes on behind a chunk goes on behind that message.
    """
    from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

    taken = [name for name in _TAKEN if name in table.columns and not (new_ids and name in {"id", "time"})]
    asked = [F.unix_micros("time").alias("time") if name == "time" else name for name in taken]
    columns = ["_at", *_PLACE, *(["headers_json"] if "headers_json" in table.columns else []), *asked]
    schema = pa.schema([(name, _TYPES.get(name, pa.string())) for name in taken])
    waiting: list[Any] = []
    for row in table.select(*columns).toLocalIterator(prefetchPartitions=True):
        if len(waiting) >= size and _place(row) != _place(waiting[-1]):
            yield _chunk(waiting, schema)
            waiting = []
        waiting.append(row)
    if waiting:
        yield _chunk(waiting, schema)


def _chunk(rows: list[Any], schema: pa.Schema) -> tuple[At, pa.RecordBatch]:
    arrays = [pa.array([_plain(field.name, row) for row in rows], field.type) for field in schema]
    return _place(rows[-1]), pa.RecordBatch.from_arrays(arrays, schema=schema)


def _place(row: Any) -> At:
    return At(row["_at"], row["channel"], row["partition"], row["offset"])


def _plain(name: str, row: Any) -> Any:
    value = row[name]
    if name == "headers":
        return _headers(value, row["headers_json"] if "headers_json" in row else None)  # noqa: SIM401 - a Row is no dict
    return bytes(value) if isinstance(value, bytearray) else value


def _headers(texts: Mapping[str, Any] | None, exact: str | None) -> str | None:
    """Headers as JSON: whole numbers and booleans as what they were, unless SQL made something else of them."""
    known = {} if exact is None else _raws(exact)

    def kept(name: str, text: Any) -> Any:
        raw = known.get(name)
        if raw is None or bytes(raw).decode() != text:
            return text
        value = msgspec.json.decode(raw)
        return value if isinstance(value, int) else text

    return _encode({name: kept(name, text) for name, text in texts.items()}).decode() if texts else None
