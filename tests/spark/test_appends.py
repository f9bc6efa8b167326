"""Column ``appended``: exact where it is told, which is where the index of a log, or its end, tells it."""

from __future__ import annotations

import struct
import time
from pathlib import Path
from typing import Any

import pytest

import heliograph as hg
from tests.proof.tools import eventually
from tests.spark.hub_reading import ReadHub
from tests.spark.reading_back import reader

SCHEMA = "offset BIGINT, appended TIMESTAMP"


def rows(root: Path, **options: Any) -> dict[int, float | None]:
    one = reader(root, "orders", SCHEMA, **options)
    found: dict[int, float | None] = {}
    for split in one.partitions():
        for batch in one.read(split):
            for row in batch.to_pylist():
                found[row["offset"]] = None if row["appended"] is None else row["appended"].timestamp()
    return found


def noted(root: Path) -> dict[int, float]:
    """What the indexes say, by the specification alone: the last line of each entry, and its time."""
    found: dict[int, float] = {}
    for path in (root / "channels" / "orders" / "0").glob("*.index"):
        data = path.read_bytes()
        for at in range(0, len(data) // 64 * 64, 64):
            first, _, append_us, *_, lines, _, _, _ = struct.unpack_from("<6Q4I", data, at)
            found[first + lines - 1] = append_us / 1e6
    return found


def test_the_time_of_appending_is_told_for_the_last_line_of_an_entry_and_of_the_log(tmp_path: Path) -> None:
    before = time.time()
    with hg.open(tmp_path / "data", name="host1", durability="os", segment_bytes=40_000) as station:
        for n in range(400):
            station.publish("orders", {"n": n, "text": "x" * 100})
    after = time.time()
    found = rows(tmp_path / "data", splitBytes="10kB")
    index = noted(tmp_path / "data")
    assert len(index) > 5
    assert list(found) == list(range(400))
    told = {offset: moment for offset, moment in found.items() if moment is not None}
    assert {offset: told[offset] for offset in index} == index
    assert set(told) - set(index) <= {399}
    assert told[399] is not None
    assert all(before <= moment <= after for moment in told.values())


def test_a_channel_without_an_index_still_tells_the_last(tmp_path: Path) -> None:
    with hg.open(tmp_path / "data", name="host1", durability="os") as station:
        for n in range(3):
            station.publish("orders", n)
    assert [moment is not None for moment in rows(tmp_path / "data").values()] == [False, False, True]


def test_a_hub_tells_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("heliograph.spark.fetching.PAGE_BYTES", 20_000)
    monkeypatch.setattr("heliograph.spark.fetching.PAGE_BYTES_MAX", 20_000)
    hub = ReadHub(tmp_path, segment_bytes=100_000)
    with hub.serve() as station:
        station.create_channel("alerts", partitions=2)
        for n in range(1_500):
            station.publish("alerts", {"n": n, "text": "x" * 100}, key=f"k{n % 9}")
        for partition in range(2):  # whoever keeps the append lock says the time of its last append when it frees it
            eventually(lambda number=partition: station.engine.last_append("alerts", number) is not None)
        for size in ("10kB", "1MiB"):
            found = hub.both("alerts", f"partition INT, {SCHEMA}", splitBytes=size)
            assert len([row for row in found if row["appended"] is not None]) > 15
        few = hub.both("alerts", f"partition INT, {SCHEMA}", startingOffsets='{"alerts": {"0": 300}}')
        assert len([row for row in few if row["appended"] is not None]) > 8
