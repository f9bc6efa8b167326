"""Channels as tables, in a real Spark."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

import heliograph as hg
from heliograph.spark.source import HeliographSource
from tests.spark.reading_back import expected, publish_every_kind


def table(spark: Any, root: Path, channel: str, schema: str | None = None, **options: Any) -> Any:
    read = spark.read.format("heliograph").option("path", str(root)).option("channel", channel).options(**options)
    return (read.schema(schema) if schema else read).load()


class Reading(msgspec.Struct):
    host: str
    value: float
    at: datetime
    tags: list[str] = []
    limits: dict[str, int] = {}
    note: str | None = None


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("source") / "data"
    with hg.open(path, name="host1", durability="os", segment_bytes=50_000) as station:
        publish_every_kind(station, "kinds")
        station.create_channel("sensors.many", partitions=3)
        for n in range(600):
            station.publish("sensors.many", {"n": n}, key=f"k{n % 9}")
        station.register("com.example.reading.v1", Reading)
        moment = datetime(2026, 11, 15, 20, 30, tzinfo=UTC)
        for n in range(5):
            station.publish("typed", Reading(f"web-{n}", n / 2, moment, ["a"], {"x": n}))
        station.publish("typed", {"host": 7}, type="com.example.other.v1")
    return path


def test_every_kind_of_message_is_a_row_on_a_machine_that_is_not_in_utc(spark: Any, root: Path) -> None:
    found = table(spark, root, "kinds").orderBy("offset").collect()
    with hg.open(root, read_only=True) as station:
        lines = [message.raw for message in station.read("kinds")]
    assert len(found) == len(lines)
    for offset, (row, line) in enumerate(zip(found, lines, strict=True)):
        got, want = row.asDict(), expected(line, "kinds", 0, offset)
        assert got.pop("time").timestamp() == want.pop("time").timestamp()
        assert sorted(got.pop("headers").items()) == want.pop("headers")
        text = got.pop("data")
        assert (None if text is None else json.loads(text)) == want.pop("data")
        del got["bytes"], got["expires"]
        assert got == want


FEW = "partition = 1 and offset between 20 and 24"


def test_a_filter_of_one_query_is_not_that_of_another(spark: Any, root: Path) -> None:
    """Spark 4.3 forgets whose filter it pushed down; so nothing is, unless asked for."""
    whole = table(spark, root, "sensors.>", splitBytes="2kB")
    assert whole.where(FEW).count() == 5
    assert whole.count() == 600
    assert whole.rdd.getNumPartitions() == 12


def test_filters_that_are_pushed_down_prune_splits(spark: Any, root: Path) -> None:
    few = table(spark, root, "sensors.>", splitBytes="2kB", pushdown="true").where(FEW)
    assert few.rdd.getNumPartitions() == 1
    assert [row.offset for row in few.orderBy("offset").collect()] == [20, 21, 22, 23, 24]
    later = datetime.now(UTC) + timedelta(hours=1)
    none = table(spark, root, "sensors.>", pushdown="true").where(f"time > timestamp'{later:%Y-%m-%d %H:%M:%S} UTC'")
    assert none.count() == 0


def test_a_narrower_schema_and_attributes_by_name(spark: Any, root: Path) -> None:
    found = table(spark, root, "kinds", "region STRING, offset BIGINT, level INT").where("region is not null").collect()
    assert [tuple(row) for row in found] == [("north", 5, 3)]
    with pytest.raises(Exception, match="column 'offset' is BIGINT, not STRING"):
        table(spark, root, "kinds", "offset STRING").collect()
    with pytest.raises(Exception, match="use parse_json"):
        table(spark, root, "kinds", "data VARIANT").collect()


def test_a_registered_type_gives_typed_columns(spark: Any, root: Path) -> None:
    found = table(spark, root, "typed", payloadType="com.example.reading.v1")
    assert dict(found.dtypes)["data"] == (
        "struct<host:string,value:double,at:timestamp,tags:array<string>,limits:map<string,bigint>,note:string>"
    )
    rows = found.select("data.*").orderBy("host").collect()
    assert len(rows) == 5
    one = rows[1].asDict()
    del one["at"]
    assert one == {"host": "web-1", "value": 0.5, "tags": ["a"], "limits": {"x": 1}, "note": None}
    assert rows[0]["at"].timestamp() == datetime(2026, 11, 15, 20, 30, tzinfo=UTC).timestamp()
    with pytest.raises(Exception, match="knows a schema of type"):
        table(spark, root, "typed", payloadType="com.example.reading.v2")


def test_a_registered_type_has_the_fields_that_any_channel_knows_of(tmp_path: Path) -> None:
    """One channel has a newer version than another, that comes first."""
    older = msgspec.defstruct("Level", [("value", int)])
    newer = msgspec.defstruct("Level", [("value", int), ("unit", str | None, None), ("spans", list[float], [])])
    for n, kind in enumerate((older, newer)):
        with hg.open(tmp_path, name="host1", durability="os") as station:
            station.register("com.example.level.v1", kind)
            station.publish(f"levels.{n}", kind(n))
    options = {"path": str(tmp_path), "channel": "levels.>", "payloadType": "com.example.level.v1"}
    kind = HeliographSource(options).schema()["data"].dataType
    assert kind.simpleString() == "struct<value:bigint,unit:string,spans:array<double>>"


def test_payloads_that_do_not_fit_are_null_or_an_error(spark: Any, root: Path) -> None:
    schema = "offset BIGINT, data STRUCT<host: STRING, value: DOUBLE>"
    rows = table(spark, root, "kinds", schema).orderBy("offset").collect()
    assert rows[0].data.host is None  # an object of other fields
    assert rows[3].data is None  # a text
    with pytest.raises(Exception, match="kinds/0 offset 3: the payload does not fit"):
        table(spark, root, "kinds", schema, mode="FAILFAST").collect()


def test_variant_through_parse_json(spark: Any, root: Path) -> None:
    found = table(spark, root, "sensors.many").selectExpr("variant_get(parse_json(data), '$.n', 'int') AS n")
    assert found.agg({"n": "sum"}).collect()[0][0] == sum(range(600))


def test_sql_over_a_channel(spark: Any, root: Path) -> None:
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW many USING heliograph OPTIONS (path '{root}', channel 'sensors.many')")
    assert spark.sql("SELECT count(DISTINCT key) FROM many").collect()[0][0] == 9


def test_errors_say_what_to_do(spark: Any, root: Path) -> None:
    with pytest.raises(Exception, match="there is no option 'chanel'; did you mean 'channel'"):
        spark.read.format("heliograph").option("path", str(root)).option("chanel", "x").load()
    with pytest.raises(Exception, match="there is no channel 'missing'"):
        table(spark, root, "missing").collect()
    with pytest.raises(Exception, match="holds no station"):
        table(spark, root / "elsewhere", "kinds").collect()
    assert table(spark, root, "kinds", startingOffsets="9" * 5000).collect() == []


def test_a_wrong_stream_says_what_to_do_and_nothing_else(spark: Any, root: Path, tmp_path: Path) -> None:
    """Without a reader PySpark fails over stopping it, and that was the last thing to be read."""
    read = spark.readStream.format("heliograph").schema("offset BIGINT").option("path", str(root))
    for trigger in ({"availableNow": True}, {"processingTime": "1 second"}):
        where = str(tmp_path / next(iter(trigger)))
        start = read.option("chanel", "kinds").load().writeStream.format("noop").option("checkpointLocation", where)
        with pytest.raises(Exception, match="there is no option 'chanel'; did you mean 'channel'") as raised:
            start.trigger(**trigger).start().awaitTermination(100)
        assert "UnboundLocalError" not in str(raised.value)


def test_a_table_of_sparks_catalog_is_refused_as_it_would_forget_its_options(spark: Any, root: Path) -> None:
    said = f"USING heliograph OPTIONS (path '{root}', channel 'kinds')"
    with pytest.raises(Exception, match="keeps no options: use CREATE TEMPORARY VIEW"):
        spark.sql(f"CREATE TABLE forgetful {said}")
    spark.sql(f"CREATE TABLE forgetful (offset BIGINT) {said}")
    try:
        for query in ("SELECT * FROM forgetful", "INSERT INTO forgetful VALUES (1)"):
            with pytest.raises(Exception, match="keeps no options: use CREATE TEMPORARY VIEW"):
                spark.sql(query).collect()
    finally:
        spark.sql("DROP TABLE forgetful")
