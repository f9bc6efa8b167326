"""Which rows a replay publishes: those of a range that fulfil a condition, in an order that is always the same."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
import pyarrow as pa

from heliograph.errors import ConfigError, NotFound
from heliograph.spark.archive.together import whole
from heliograph.spark.bodies import COLUMNS, check_columns
from heliograph.spark.columns import kept_schema
from heliograph.spark.offsets import Places
from heliograph.spark.options import WriteOptions, read_options
from heliograph.spark.replay.record import At, Offsets, Said

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

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


def left_of(said: Said, starts: Offsets, left: Offsets | None) -> Offsets:
    """Where to read from when a replay goes on; what is published may be deleted. SQL may want to see all of it."""
    if said.sql is not None or not left:
        return starts
    return {name: {**of, **left.get(name, {})} for name, of in starts.items()}


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


def ordered(table: DataFrame, after: At | None, left: Offsets | None) -> DataFrame:
    """What is not published, in the order in which it will be: by time between partitions, as in the log within each.

    All that SQL made of one message has the same place in it.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

    log = Window.partitionBy("channel", "partition").orderBy("offset").rangeBetween(Window.unboundedPreceding, 0)
    latest = F.coalesce(F.max(F.unix_micros("time")).over(log), F.lit(0))  # SQL may say NULL AS time: now
    table = table.withColumn("_at", latest)
    if left:
        known = [F.lit(one) for name, of in left.items() for key in of for one in (f"{name}/{key}", of[key])]
        begin = F.element_at(F.create_map(*known), F.concat_ws("/", "channel", F.col("partition").cast("string")))
        table = table.where(F.col("offset") >= F.coalesce(begin, F.lit(0)))
    elif after is not None:
        behind = F.struct(
            F.lit(after.time_us).cast("bigint"),
            F.lit(after.channel),
            F.lit(after.partition),
            F.lit(after.offset).cast("bigint"),
        )
        table = table.where(F.struct("_at", *_PLACE) > behind)
    return table.orderBy("_at", *_PLACE)


class Chunk(NamedTuple):
    """Rows on their way to the sink, the place of the last one, and where each partition goes on behind them."""

    at: At
    rows: pa.RecordBatch
    left: Offsets


def joined(left: Offsets | None, behind: Offsets) -> Offsets | None:
    """Where partitions go on after one more chunk; not known, if it was not known before.

    >>> joined({"orders": {"0": 3, "1": 5}}, {"orders": {"0": 4}, "bills": {"0": 1}})
    {'orders': {'0': 4, '1': 5}, 'bills': {'0': 1}}
    """
    if left is None:
        return None
    return {name: {**left.get(name, {}), **behind.get(name, {})} for name in {**left, **behind}}


def chunks(table: DataFrame, size: int, *, new_ids: bool) -> Iterator[Chunk]:
    """The rows on their way to the sink.

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


def _chunk(rows: list[Any], schema: pa.Schema) -> Chunk:
    arrays = [pa.array([_plain(field.name, row) for row in rows], field.type) for field in schema]
    left: Offsets = {}
    for row in rows:
        left.setdefault(row["channel"], {})[str(row["partition"])] = row["offset"] + 1
    return Chunk(_place(rows[-1]), pa.RecordBatch.from_arrays(arrays, schema=schema), left)


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
