"""Rows become messages, in a real Spark."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import heliograph as hg
from heliograph.staging.publishing import tidy


@pytest.fixture
def root(tmp_path: Path) -> Path:
    with hg.open(tmp_path / "data", name="host1", durability="os") as station:
        station.create_channel("keyed", partitions=4)
    return tmp_path / "data"


def save(frame: Any, root: Path, **options: Any) -> None:
    frame.write.format("heliograph").mode("append").option("path", str(root)).options(**options).save()


def messages(root: Path, channel: str) -> list[hg.Message]:
    with hg.open(root, read_only=True) as station:
        return list(station.read(channel))


def staged(root: Path) -> list[Path]:
    return list((root / "spark" / "staged").rglob("*.lines"))


def test_every_column_has_its_place_in_the_envelope(spark: Any, root: Path) -> None:
    frame = spark.sql("""
        SELECT 'out' AS channel, 'a "key"' AS key, 'com.example.x.v1' AS type, 'own-1' AS id,
               timestamp'2026-11-15 20:30:01.123456 UTC' AS time, 'größe' AS subject, 'c' AS correlationid,
               map('region', 'north') AS headers, '{"n": 1,\n "t": "x"}' AS data
        UNION ALL SELECT 'out', NULL, NULL, 'own-2', NULL, NULL, NULL, NULL, NULL
    """)
    save(frame, root)
    first, second = sorted(messages(root, "out"), key=lambda message: message.id)
    assert (first.key, first.type, first.id, first.subject) == ('a "key"', "com.example.x.v1", "own-1", "größe")
    assert first.time == datetime(2026, 11, 15, 20, 30, 1, 123456, UTC)
    assert (first.correlationid, first.headers, first.data) == ("c", {"region": "north"}, {"n": 1, "t": "x"})
    assert (second.key, second.type, second.data, second.source) == (None, "heliograph.data.v1", None, "host1")
    assert not staged(root)


def test_structs_bytes_and_many_rows(spark: Any, root: Path) -> None:
    frame = spark.range(3_000).selectExpr(
        "struct(id AS n, cast(id AS STRING) AS t) AS data", "cast(id % 50 AS STRING) AS key"
    )
    save(frame, root, channel="keyed", type="com.example.n.v1", service="batch")
    found = messages(root, "keyed")
    assert sorted(message.data["n"] for message in found) == list(range(3_000))
    assert {(message.type, message.source) for message in found} == {("com.example.n.v1", "host1/batch")}
    from zlib import crc32

    assert all(message.partition == crc32(message.key.encode()) % 4 for message in found if message.key)
    save(spark.sql("SELECT cast('abc' AS BINARY) AS bytes"), root, channel="raw")
    assert [(message.data, message.type) for message in messages(root, "raw")] == [(b"abc", "heliograph.bytes.v1")]


def test_a_failed_task_leaves_nothing_visible(spark: Any, root: Path) -> None:
    broken = "if(id = 900, raise_error('broken row'), to_json(struct(id))) AS data"
    with pytest.raises(Exception, match="broken row"):
        save(spark.range(0, 1_000, 1, 4).selectExpr(broken), root, channel="out")
    with hg.open(root, read_only=True) as station:
        assert "out" not in {info.name for info in station.channels()}
    for folder in (root / "spark" / "staged").glob("*/*"):  # of a task that was not yet told
        os.utime(folder, (0, 0))
    tidy(str(root))
    assert not staged(root)


def test_a_table_is_not_overwritten(spark: Any, root: Path) -> None:
    with pytest.raises(Exception, match="a channel is appended to"):
        spark.sql("SELECT '1' AS data").write.format("heliograph").mode("overwrite").option("path", str(root)).option(
            "channel", "out"
        ).save()


def test_a_stream_from_channel_to_channel(spark: Any, root: Path, tmp_path: Path) -> None:
    with hg.open(root, durability="os") as station:
        for n in range(30):
            station.publish("in", {"n": n}, key=f"k{n % 3}")

    def run() -> None:
        stream = spark.readStream.format("heliograph").option("path", str(root)).option("channel", "in")
        query = (
            stream.option("maxMessagesPerTrigger", "10").load()
            .selectExpr("data", "key", "concat('out.', key) AS channel")
            .writeStream.format("heliograph").option("path", str(root))
            .option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
        )  # fmt: skip
        query.awaitTermination(100)

    run()
    run()
    assert sorted(message.data["n"] for message in messages(root, "out.>")) == list(range(30))
    assert [message.data["n"] for message in messages(root, "out.k1")] == list(range(1, 30, 3))
    # Spark died after the batch was published and before it noted that: it comes again.
    newest = max((tmp_path / "checkpoint" / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    newest.unlink()
    newest.with_name(f".{newest.name}.crc").unlink(missing_ok=True)
    run()
    assert sorted(message.data["n"] for message in messages(root, "out.>")) == list(range(30))
    assert not staged(root)
