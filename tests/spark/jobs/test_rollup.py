"""Figures per minute, against figures that are made here without Spark."""

from __future__ import annotations

import json
from collections import defaultdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import heliograph as hg
from heliograph.spark.jobs.rollup import _together, rollup, rollup_channel
from heliograph.spark.pipelines.declared import Output
from heliograph.spark.pipelines.running import How, run

MINUTE = datetime(2026, 11, 15, 20, 30, tzinfo=UTC)


def publish(station: hg.Station, seconds: int, count: int, channel: str = "orders") -> None:
    for n in range(count):
        moment = MINUTE + timedelta(seconds=seconds, milliseconds=n)
        draft = hg.Draft(data={"text": "é" * n}, type=f"com.example.kind{n % 2}.v1", time=moment)
        station.publish_many(channel, [draft])


def here(root: Path, channel: str = "orders") -> dict[tuple[str, str, str], tuple[int, int]]:
    """Messages and bytes of payloads by minute, origin and type."""
    found: dict[tuple[str, str, str], tuple[int, int]] = defaultdict(lambda: (0, 0))
    with hg.open(root, read_only=True) as station:
        for message in station.read(channel):
            payload = message.raw.split(b',"data":', 1)[1].split(b',"origin"', 1)[0]
            key = (f"{message.time:%H:%M}", message.origin.rpartition(".")[0], message.type)
            messages, size = found[key]
            found[key] = (messages + 1, size + len(payload))
    return dict(found)


def told(rows: list[Any]) -> dict[tuple[str, str, str], tuple[int, int]]:
    utc = [row.minute.astimezone(UTC) for row in rows]
    return {
        (f"{minute:%H:%M}", row.origin, row.type): (row.messages, row.bytes)
        for minute, row in zip(utc, rows, strict=True)
    }


@pytest.fixture
def root(tmp_path: Path) -> Path:
    with hg.open(tmp_path / "data", name="host1", durability="os") as station:
        publish(station, 0, 7)
        publish(station, 59, 3)
        publish(station, 60, 4)
    return tmp_path / "data"


def test_a_batch_counts_everything_per_minute_origin_and_type(spark: Any, root: Path) -> None:
    result = run(rollup, {}, root, How(trigger="batch", output=Output()))
    rows = result.tables["rollup"].collect()
    assert told(rows) == here(root)
    assert {(row.station, row.channel) for row in rows} == {("here", "orders")}


def test_latency_is_that_of_messages_whose_storing_the_log_knows_and_of_no_others(spark: Any, root: Path) -> None:
    before = datetime.now(UTC)
    with hg.open(root) as station:
        station.publish_many("orders", [hg.Draft(data=1, type="late.v1", time=before - timedelta(seconds=90))])
    row = (
        run(rollup, {}, root, How(trigger="batch", output=Output())).tables["rollup"].where("type = 'late.v1'").first()
    )
    assert row.measured == 1  # the last of its log
    passed_ms = (datetime.now(UTC) - before).total_seconds() * 1000
    assert 90_000 <= row.latency_p50_ms == row.latency_max_ms <= 90_000 + passed_ms
    with hg.open(root) as station:
        for _ in range(300):
            station.publish("orders", {"filling": "x" * 100}, type="filling.v1")
    rows = run(rollup, {}, root, How(trigger="batch", output=Output())).tables["rollup"].collect()
    late = next(row for row in rows if row.type == "late.v1")
    assert (late.measured, late.latency_p50_ms) == (0, None)
    filling = [row for row in rows if row.type == "filling.v1"]
    assert 2 <= sum(row.measured for row in filling) < 30  # one for 16 KiB, and the last
    for row in filling:
        if row.measured:  # a minute may have begun meanwhile
            assert row.latency_p50_ms <= row.latency_p99_ms <= row.latency_max_ms


def test_windows_of_another_length_are_not_mixed_with_those_of_a_checkpoint(spark: Any, root: Path) -> None:
    now = How(trigger="available-now")
    run(rollup, {"late": 60.0}, root, now)
    with pytest.raises(hg.ConfigError, match=r"with --every 1h now.*Run it with --every 1m") as refused:
        run(rollup, {"late": 60.0, "every": 3600.0}, root, now)
    assert "\n" not in str(refused.value)
    run(rollup, {"late": 90.0, "every": 60.0}, root, now)


@pytest.mark.timeout(400)  # several starts of a stream
def test_a_stream_writes_a_window_when_nothing_of_it_can_come_any_more_and_once(spark: Any, root: Path) -> None:
    def stored() -> dict[tuple[str, str, str], tuple[int, int]]:
        rows = spark.read.parquet(str(root / "rollup")).collect()
        found = told(rows)
        assert len(found) == len(rows)
        return found

    now = How(trigger="available-now")
    run(rollup, {"late": 60.0}, root, now)
    with hg.open(root) as station:
        publish(station, 200, 1)
    run(rollup, {"late": 60.0}, root, now)
    assert set(stored().items()) == {(key, value) for key, value in here(root).items() if key[0] in {"20:30", "20:31"}}
    with hg.open(root) as station:
        publish(station, 10, 5)  # too late
        publish(station, 500, 1)
    run(rollup, {"late": 60.0}, root, now)
    with hg.open(root) as station:
        publish(station, 900, 1)
    run(rollup, {"late": 60.0}, root, now)
    found = stored()
    assert {key[0] for key in found} == {"20:30", "20:31", "20:33", "20:38"}
    assert found["20:30", "host1", "com.example.kind1.v1"][0] == 4  # 3 and 1; those that came too late are not in


def test_a_dashboard_gets_messages_and_they_are_not_counted(spark: Any, root: Path) -> None:
    with hg.open(root) as station:
        publish(station, 600, 1)
    run(rollup_channel, {}, root, How(trigger="available-now"))
    with hg.open(root, read_only=True) as station:
        found = list(station.read("rollup"))
    assert {message.key for message in found} == {"orders"}
    first = min(found, key=lambda message: (message.time, message.type, message.data["type"]))
    assert first.type == "heliograph.rollup.v1"
    assert first.time == MINUTE + timedelta(minutes=1)
    assert json.loads(json.dumps(first.data)) | {"bytes": 0} == {
        "minute": "2026-11-15T20:30:00Z", "station": "here", "channel": "orders", "origin": "host1",
        "type": "com.example.kind0.v1", "messages": 6, "bytes": 0, "measured": 0,
    }  # fmt: skip
    again = run(rollup, {}, root, How(trigger="batch", output=Output())).tables["rollup"]
    assert {row.channel for row in again.collect()} == {"orders"}


def test_other_stations_on_the_way_have_figures_of_their_own(spark: Any, root: Path, tmp_path: Path) -> None:
    with hg.open(root, read_only=True) as station:
        lines = [message.raw for message in station.read("orders")]
    with hg.open(tmp_path / "hub", name="hub", durability="os") as hub:
        hub.engine.relayed.arrive("orders", lines[:10])
    rows = run(rollup, {"also": (str(tmp_path / "hub"),)}, root, How(trigger="batch", output=Output())).tables["rollup"]
    counts: dict[str, int] = defaultdict(int)
    for row in rows.collect():
        counts[row.station] += row.messages
        assert row.origin == "host1"
    assert counts == {"here": 14, "hub": 10}


def test_stations_in_directories_of_the_same_name_have_rows_of_their_own(spark: Any, tmp_path: Path) -> None:
    rows = spark.sql("SELECT 1 AS n")
    also = tuple(str(tmp_path / name) for name in ("a/data", "b/data", "hub", "x/here"))
    found = _together(rows, also, {f"also_{number}": rows for number in range(4)}).collect()
    expected = ["here", str(tmp_path / "a/data"), str(tmp_path / "b/data"), "hub", str(tmp_path / "x/here")]
    assert [row["station"] for row in found] == expected
