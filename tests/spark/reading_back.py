"""What the tests of Spark share: messages of every kind, and what JSON says of a stored line."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
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
)

import heliograph as hg
from heliograph.disk import SYSTEM_DISK, Disk
from heliograph.message import RESERVED
from heliograph.spark.columns import Wanted, default_schema
from heliograph.spark.filters import Conditions
from heliograph.spark.options import read_options
from heliograph.spark.source import FilteringReader, Reader
from heliograph.spark.splits import Split

KINDS: dict[str, DataType] = {
    "STRING": StringType(), "BIGINT": LongType(), "INT": IntegerType(), "BOOLEAN": BooleanType(),
    "BINARY": BinaryType(), "TIMESTAMP": TimestampType(), "MAP<STRING,STRING>": MapType(StringType(), StringType()),
    "DOUBLE": DoubleType(),
}  # fmt: skip


def ddl(text: str) -> StructType:
    """A schema without a session, which `StructType.fromDDL` wants."""
    return StructType([StructField(name, KINDS[kind]) for name, kind in (one.split() for one in text.split(", "))])


def arrow(schema: StructType | str | None = None, *, gaps: bool = False) -> pa.Schema:
    if schema is None:
        schema = default_schema(None, gaps=gaps)
    if isinstance(schema, str):
        schema = ddl(schema)
    return to_arrow_schema(schema, timezone="UTC")


def wanted(schema: StructType | str | None = None, **more: Any) -> Wanted:
    return Wanted(arrow(schema), **more)


def expected(line: bytes, channel: str, partition: int, offset: int) -> dict[str, Any]:
    """The row of a line, by the standard library alone."""
    found = json.loads(line)
    text = None
    if found.get("data") is not None:
        text = found["data"]
    return {
        "channel": channel,
        "partition": partition,
        "offset": offset,
        "time": datetime.fromisoformat(found["time"]),
        "id": found["id"],
        "source": found["source"],
        "type": found["type"],
        "key": found.get("partitionkey"),
        "subject": found.get("subject"),
        "correlationid": found.get("correlationid"),
        "traceparent": found.get("traceparent"),
        "headers": sorted(
            (name, value if isinstance(value, str) else json.dumps(value))
            for name, value in found.items()
            if name not in RESERVED
        ),
        "data": text,
        "origin": found.get("origin"),
        "originseq": found.get("originseq"),
    }


def comparable(row: dict[str, Any]) -> dict[str, Any]:
    """A row as `expected` has it: the payload decoded, headers in order."""
    found = {name: value for name, value in row.items() if name not in ("bytes", "expires", "gap")}
    found["data"] = None if found["data"] is None else json.loads(found["data"])
    found["headers"] = sorted(found["headers"])
    return found


def publish_every_kind(station: hg.Station, channel: str) -> int:
    """Messages written in every way there is; how many."""
    before = station.channel(channel).next if channel in {one.name for one in station.channels()} else 0
    publish = station.publish
    publish(channel, {"n": 1})
    publish(channel, {"text": 'quotes " and \\ and \n and ,"origin":"x" and }'}, key="k")
    publish(channel, None, key="gone")
    publish(channel, 'plain text with "quotes"', key='a "key" \\ with escapes')
    publish(channel, [1, [2, {"batch": "1/2"}]], correlation_id="c-1", subject="größe")
    publish(channel, 7, headers={"region": "north", "level": 3, "urgent": True})
    publish(channel, b"\x00\xff bytes")
    publish(channel, {"data": {"data": None}, "origin": "x", "crc": "y"}, key="ключ", headers={"a": 'es"caped'})
    publish(channel, {"ends": 'with ,"batch":"1/2"'}, ttl=timedelta(hours=1))
    publish(channel, True, subject="s", correlation_id="c", key="k", id="own-id-1")
    publish(channel, "", type="com.example.größe.v1")
    publish(channel, 1.5e300)
    publish(channel, {})
    publish(channel, "\u2028 and \ud83d\ude00".encode("utf-16", "surrogatepass").decode("utf-16"))
    station.publish_many(channel, [{"m": n} for n in range(5)], key="batch")
    with station.producer("numbered") as producer:
        producer.publish(channel, {"p": 1}, key="k")
        producer.publish_many(channel, [{"p": 2}, {"p": 3}])
        producer.publish(channel, {"p": 4}, headers={"h": "x"})
    with station.atomic() as step:
        step.publish(channel, {"s": 1}, key="k")
        step.publish(channel, {"s": 2})
    return station.channel(channel).next - before


class CountingDisk(Disk):
    """Counts the bytes of segments that are read."""

    def __init__(self) -> None:
        self.bytes = 0

    def pread(self, fd: int, length: int, position: int) -> bytes:  # type: ignore[override]
        data = SYSTEM_DISK.pread(fd, length, position)
        self.bytes += len(data)
        return data


def reader(path: Path, channel: str, schema: str | None = None, **options: Any) -> FilteringReader:
    said = {
        "path": str(path),
        "channel": channel,
        **{name: str(value) for name, value in options.items()},
    }
    read = read_options(said, streaming=False)
    return FilteringReader(read, ddl(schema) if schema else default_schema(None, gaps=not read.fail_on_gap))


def rows(one: Reader) -> list[dict[str, Any]]:
    return [row for split in one.partitions() for batch in one.read(split) for row in batch.to_pylist()]


def covered(splits: list[Split]) -> list[int]:
    return [at for split in splits for first, following in split.stretches for at in range(first, following)]


ANY = Conditions()
