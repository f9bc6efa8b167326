"""Rows become messages of a hub, from a real Spark over real TLS: each once, whatever is killed, cut or refused."""

from __future__ import annotations

import json
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

import heliograph as hg
from heliograph.spark.aside import cuts
from tests.client.conftest import Hub
from tests.federation.chaos import Proxy
from tests.federation.stations import Process
from tests.spark.bridge_process import bridge
from tests.spark.test_kills import kill, start

WRITER = {"name": "writer", "publish": ["out", "out.>"]}  # and reads nothing
ROUNDS = 12
KILLS = 4


@pytest.fixture
def hub(tmp_path: Path) -> Hub:
    net = Hub(tmp_path)
    net.station("hub", peers=[WRITER], storage={"partitions": 3})
    return net


@pytest.fixture
def station(hub: Hub) -> Iterator[hg.Station]:
    with hub.open("hub") as found:
        yield found


def place(hub: Hub, port: int | None = None, name: str = "writer") -> dict[str, str]:
    """The options of a source or sink."""
    tls = {f"tls{kind.title()}": str(path) for kind, path in hub.tls(name).items()}
    return {"hub": f"wss://localhost:{port}" if port else hub.url, **tls}


def save(frame: Any, options: dict[str, str], **more: Any) -> None:
    frame.write.format("heliograph").mode("append").options(**options, **more).save()


def copied(hub: Hub) -> Counter[int]:
    with hg.open(hub.path("hub"), read_only=True) as station:
        if "out" not in {info.name for info in station.channels()}:
            return Counter()
        return Counter(message.data["n"] for message in station.read("out"))


def staged(hub: Hub) -> list[Path]:
    return list((hub.path("hub") / "spark" / "staged").rglob("*.lines"))


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A directory of its own, from which rows come."""
    with hg.open(tmp_path / "source", name="source", durability="os") as station:
        station.create_channel("in", partitions=2)
        for first in range(0, 1_500, 500):
            fresh = range(first, first + 500)
            station.publish_many("in", [hg.Draft(data={"n": n}, key=f"k{n % 17}") for n in fresh])
    return tmp_path / "source"


# -- batches ----------------------------------------------------------------------------------------------------------


def test_every_column_has_its_place_in_the_envelope(spark: Any, hub: Hub, station: hg.Station) -> None:
    frame = spark.sql("""
        SELECT 'out' AS channel, 'a "key"' AS key, 'com.example.x.v1' AS type, 'own-1' AS id,
               timestamp'2026-11-15 20:30:01.123456 UTC' AS time, 'größe' AS subject, 'c' AS correlationid,
               map('region', 'north') AS headers, '{"n": 1,\n "t": "x"}' AS data
        UNION ALL SELECT 'out.more', NULL, NULL, 'own-2', NULL, NULL, NULL, NULL, NULL
    """)
    save(frame, place(hub), service="batch")
    (first,), (second,) = station.read("out"), station.read("out.more")
    assert (first.key, first.type, first.id, first.subject) == ('a "key"', "com.example.x.v1", "own-1", "größe")
    assert first.time == datetime(2026, 11, 15, 20, 30, 1, 123456, UTC)
    assert (first.correlationid, first.headers, first.data) == ("c", {"region": "north"}, {"n": 1, "t": "x"})
    assert (second.key, second.type, second.data, second.source) == (None, "heliograph.data.v1", None, "writer/batch")
    assert not staged(hub)


def test_many_rows_of_several_tasks_and_bytes(spark: Any, hub: Hub) -> None:
    hub.station("hub", peers=[WRITER], storage={"partitions": 3}, messages={"max_bytes": 100_000})  # and small frames
    text = "to_json(struct(id AS n, repeat('x', 200) AS pad)) AS data"
    frame = spark.range(0, 20_000, 1, 2).selectExpr(text, "cast(id % 50 AS STRING) AS key")
    with hub.open("hub") as station:
        save(frame, place(hub), channel="out")
        found = list(station.read("out"))
        assert sorted(message.data["n"] for message in found) == list(range(20_000))
        assert all(message.partition == crc32((message.key or "").encode()) % 3 for message in found)
        save(spark.sql("SELECT cast('abc' AS BINARY) AS bytes"), place(hub), channel="out.raw")
        assert [(one.data, one.type) for one in station.read("out.raw")] == [(b"abc", "heliograph.bytes.v1")]
    assert not staged(hub)


def test_a_row_that_is_larger_than_what_is_sent_at_once(spark: Any, hub: Hub, station: hg.Station) -> None:
    frame = spark.range(0, 6, 1, 1).selectExpr(
        "to_json(struct(id AS n, repeat('x', cast(id AS INT) * 700000))) AS data"
    )
    save(frame, place(hub), channel="out")
    assert sorted(message.data["n"] for message in station.read("out")) == list(range(6))


def test_a_failed_task_leaves_nothing_visible(spark: Any, hub: Hub, station: hg.Station) -> None:
    broken = "if(id = 900, raise_error('broken row'), to_json(struct(id))) AS data"
    with pytest.raises(Exception, match="broken row"):
        save(spark.range(0, 1_000, 1, 4).selectExpr(broken), place(hub), channel="out")
    assert [info.name for info in station.channels()] == []


@pytest.mark.parametrize(
    ("channel", "message"),
    [("secrets", "not allowed to publish 'secrets'"), ("out.dead-letter", "letters cannot be written through a hub")],
)
def test_what_is_not_allowed_is_said_before_a_task_runs(
    spark: Any, hub: Hub, station: hg.Station, channel: str, message: str
) -> None:
    with pytest.raises(Exception, match=message):
        save(spark.sql("SELECT '1' AS data"), place(hub), channel=channel)


def test_a_row_for_a_channel_that_is_not_allowed_fails_the_batch(spark: Any, hub: Hub, station: hg.Station) -> None:
    frame = spark.sql("SELECT '1' AS data, 'out' AS channel UNION ALL SELECT '2', 'secrets'")
    with pytest.raises(Exception, match="not allowed to publish 'secrets'"):
        save(frame, place(hub))
    assert [info.name for info in station.channels()] == []


def test_no_rows_are_no_error(spark: Any, hub: Hub, station: hg.Station) -> None:
    save(spark.sql("SELECT '1' AS data WHERE 1 = 0"), place(hub), channel="out")
    assert [info.name for info in station.channels()] == []


# -- streams ----------------------------------------------------------------------------------------------------------


def run(spark: Any, source: Path, checkpoint: Path, options: dict[str, str]) -> None:
    query = bridge(spark, str(source), str(checkpoint), "out", options).trigger(availableNow=True).start()
    assert query.awaitTermination(400), "it did not end in time"


def test_a_stream_goes_on_and_a_batch_that_comes_again_is_recognised(
    spark: Any, hub: Hub, station: hg.Station, source: Path, tmp_path: Path
) -> None:
    checkpoint = tmp_path / "checkpoint"
    run(spark, source, checkpoint, place(hub))
    assert copied(hub) == Counter(range(1_500))
    with hg.open(source) as more:
        more.publish("in", {"n": 1_500})
    run(spark, source, checkpoint, place(hub))
    # Spark died after the batch was published and before it noted that: it comes again.
    newest = max((checkpoint / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    newest.unlink()
    newest.with_name(f".{newest.name}.crc").unlink(missing_ok=True)
    run(spark, source, checkpoint, place(hub))
    assert copied(hub) == Counter(range(1_501))
    assert not staged(hub)


def test_cuts_anywhere(spark: Any, hub: Hub, station: hg.Station, source: Path, tmp_path: Path) -> None:
    line = Proxy(hub.port("hub"), cut_after=(8_000, 80_000), seed=9)
    try:
        run(spark, source, tmp_path / "checkpoint", place(hub, line.port))
        assert line.cuts
    finally:
        line.close()
    assert copied(hub) == Counter(range(1_500))


class Served:
    """A hub in a process of its own that may be killed, and is back soon after."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._process: Process = hub.run("hub")

    def restart(self, away_s: float = 0.0) -> None:
        self._process.kill()
        time.sleep(away_s)
        self._process = self._hub.run("hub")

    def close(self) -> None:
        self._process.kill()


def test_a_hub_that_is_killed_in_the_middle_is_waited_for(spark: Any, hub: Hub, source: Path, tmp_path: Path) -> None:
    process = Served(hub)
    over = threading.Event()
    chance = random.Random(4)

    def restart() -> None:
        for _ in range(KILLS):
            if over.wait(chance.uniform(0.5, 3.0)):
                return
            process.restart(chance.uniform(0.0, 0.5))

    killing = threading.Thread(target=restart)
    killing.start()
    try:
        run(spark, source, tmp_path / "checkpoint", place(hub))
    finally:
        over.set()
        killing.join()
        process.close()
    assert copied(hub) == Counter(range(1_500))


def test_sigkill_of_the_driver_once(spark: Any, hub: Hub, station: hg.Station, source: Path, tmp_path: Path) -> None:
    """Killed as soon as the first messages are there; another Spark goes on with the checkpoint."""
    checkpoint = tmp_path / "checkpoint"
    process = start(source, checkpoint, json.dumps(place(hub)))
    try:
        until = time.monotonic() + 300
        while not copied(hub) and time.monotonic() < until:
            time.sleep(0.02)
    finally:
        kill(process)
    first = copied(hub)
    assert first
    assert max(first.values()) == 1
    run(spark, source, checkpoint, place(hub))
    assert copied(hub) == Counter(range(1_500))


@pytest.mark.prove
@pytest.mark.timeout(3_000)
def test_sigkill_of_driver_and_hub_at_random_moments_neither_loses_nor_doubles_a_row(
    hub: Hub, source: Path, tmp_path: Path
) -> None:
    checkpoint, chance, published = tmp_path / "checkpoint", random.Random(7), 1_500
    process = Served(hub)
    try:
        with hg.open(source) as station:
            for turn in range(ROUNDS):
                driver = start(source, checkpoint, json.dumps(place(hub)))
                until = time.monotonic() + chance.uniform(0.5, 12.0)
                restart_at = time.monotonic() + chance.uniform(0.0, 12.0)
                try:
                    while time.monotonic() < until:
                        fresh = range(published, published + 100)
                        station.publish_many("in", [hg.Draft(data={"n": n}, key=f"k{n % 17}") for n in fresh])
                        published += 100
                        time.sleep(0.05)
                        if time.monotonic() > restart_at:
                            process.restart(chance.uniform(0.0, 1.0))
                            restart_at += 20
                finally:
                    kill(driver)
                seen = copied(hub)
                assert max(seen.values(), default=1) == 1, f"round {turn}: {seen.most_common(3)}"
            driver = start(source, checkpoint, json.dumps(place(hub)))
            try:
                until = time.monotonic() + 240
                while sum(copied(hub).values()) < published and time.monotonic() < until:
                    time.sleep(0.5)
                time.sleep(2)  # what came twice would come now
            finally:
                kill(driver)
    finally:
        process.close()
    assert copied(hub) == Counter(range(published))
    with hg.open(hub.path("hub"), read_only=True) as found:
        for message in found.read("out"):
            assert message.partition == crc32((message.key or "").encode()) % 3


# -- pure parts -------------------------------------------------------------------------------------------------------


@given(st.lists(st.integers(1, 50), max_size=40), st.integers(1, 100))
def test_pieces_are_all_of_it_in_order_and_no_larger_than_need_be(sizes: list[int], size: int) -> None:
    borders = [sum(sizes[:at]) for at in range(len(sizes) + 1)]
    found = list(cuts(borders, size))
    assert [end for _, end in found[:-1]] == [begin for begin, _ in found[1:]]
    assert ([found[0][0], found[-1][1]] if found else [0, 0]) == [0, sum(sizes)]
    for begin, end in found:
        assert begin in borders
        assert end - begin <= size or borders.index(end) == borders.index(begin) + 1
    for (begin, end), (_, more) in pairwise(found):
        following = borders[borders.index(end) + 1]
        assert following - begin > size
        assert following <= more
