"""Replay: messages of archive and log once more, each once, however often it is interrupted."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

import heliograph as hg
from heliograph.errors import ConfigError, HeliographError, InvalidMessage
from heliograph.spark.jobs import replay as jobs
from heliograph.spark.pipelines.finding import find
from heliograph.spark.pipelines.run import Run
from heliograph.spark.pipelines.running import How, Listener, run
from heliograph.spark.replay import record as records
from heliograph.spark.replay import rows as selecting
from heliograph.spark.replay.record import At, Record, Said
from heliograph.spark.replay.rows import Chunk
from tests.opening import Opener

pytestmark = pytest.mark.timeout(600)  # a loaded machine takes long to start Spark
SAID = Said(channel="orders", into="again", start="first", end="new")


def read(path: Path, channel: str) -> list[Any]:
    with hg.open(path, read_only=True) as station:
        return list(station.read(channel)) if channel in {one.name for one in station.channels()} else []


class Killed(BaseException):
    """As if the process had ended here."""


def fake_chunks(table: Any, size: int, *, new_ids: bool) -> Iterator[Chunk]:
    """Rows without a Spark: a table is a list of numbers."""
    for at in range(0, len(table), size):
        part = table[at : at + size]
        rows = pa.record_batch({"data": [f'{{"n":{n}}}' for n in part]})
        yield Chunk(At(part[-1], "orders", 0, part[-1]), rows, {"orders": {"0": part[-1] + 1}})


def fake_ordered(table: Any, after: At | None, left: Any) -> Any:
    assert left == ({} if after is None else {"orders": {"0": after.offset + 1}})
    return [n for n in table if after is None or n > after.offset]


@pytest.fixture
def without_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selecting, "chunks", fake_chunks)
    monkeypatch.setattr(selecting, "ordered", fake_ordered)
    monkeypatch.setattr(jobs, "_CHUNK_ROWS", 10)


def publishing(root: Path, rate: float | None = None, **more: Any) -> Any:
    folder = root / "pipelines" / "replay"
    folder.mkdir(parents=True, exist_ok=True)
    one: Any = Run(None, root, folder, find("replay"), trigger="batch", **more)  # type: ignore[arg-type]
    found = records.load(folder, "x", SAID) or Record(said=SAID, starts={}, ends={})
    return jobs._Publishing(one, "x", found, rate)


@pytest.mark.usefixtures("without_spark")
@pytest.mark.parametrize("module", ["heliograph.spark.replay.record.save", "heliograph.staging.publishing._save"])
@pytest.mark.parametrize("before", [True, False])
def test_a_death_between_any_two_steps_leaves_every_message_published_once(
    opened: Opener, root: Path, module: str, before: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened().close()
    import importlib

    home, _, name = module.rpartition(".")
    real = getattr(importlib.import_module(home), name)
    for fatal in range(20):
        left = fatal % 5

        def dying(*args: Any) -> None:
            nonlocal left
            left -= 1
            if before and left < 0:
                raise Killed
            real(*args)
            if left < 0:
                raise Killed

        with monkeypatch.context() as patched:
            patched.setattr(module, dying)
            patched.setattr(jobs, "_CHUNK_ROWS", (10, 7)[fatal % 2])  # another --rate
            try:
                publishing(root).all(list(range(45)))
                break
            except Killed:
                continue
    publishing(root).all(list(range(45)))
    assert [message.data["n"] for message in read(root, "again")] == list(range(45))


@pytest.mark.usefixtures("without_spark")
def test_a_rate_is_kept(opened: Opener, root: Path) -> None:
    opened().close()
    slept: list[float] = []
    one = publishing(root, rate=100.0)
    one.now = 50
    one._begun = time.monotonic()

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        one._begun -= seconds

    assert one._paced(sleep)
    assert sum(slept) == pytest.approx(0.5, abs=0.1)
    one = publishing(root, rate=100.0, stopping=lambda: True)
    assert not one._paced()


def test_the_name_of_another_replay_is_refused(tmp_path: Path) -> None:
    records.save(tmp_path, "x", Record(said=SAID, starts={}, ends={}))
    assert records.load(tmp_path, "x", SAID) is not None
    with pytest.raises(ConfigError, match=r"of something else .*--into again.*another --name"):
        records.load(tmp_path, "x", Said(channel="orders", into="elsewhere", start="first", end="new"))


def test_what_sql_makes_of_one_message_is_not_torn_apart() -> None:
    """A replay goes on behind a message, so a chunk does not end within what one became."""

    class Table(list[dict[str, Any]]):
        columns = ("data",)

        def select(self, *_: Any) -> Table:
            return self

        def toLocalIterator(self, **_: Any) -> Iterator[dict[str, Any]]:
            return iter(self)

    offsets = [0, 0, 0, 1, 2, 2, 3]
    table: Any = Table({"_at": 7, "channel": "orders", "partition": 0, "offset": n, "data": str(n)} for n in offsets)
    found = list(selecting.chunks(table, 2, new_ids=True))
    assert [one.at.offset for one in found] == [0, 2, 3]
    assert [one.rows["data"].to_pylist() for one in found] == [["0", "0", "0"], ["1", "2", "2"], ["3"]]


def test_headers_are_what_they_were_unless_sql_made_something_else_of_them() -> None:
    exact = '{"level":3,"urgent":true,"text":"3","part":1.5,"nothing":null,"list":[1]}'
    texts = {"level": "3", "urgent": "true", "text": "3", "part": "1.5", "nothing": "", "list": "[1]"}
    found = json.loads(selecting._headers(texts, exact) or "")
    assert found == {**texts, "level": 3, "urgent": True}
    assert json.loads(selecting._headers({"level": "4", "new": "x"}, exact) or "") == {"level": "4", "new": "x"}
    assert json.loads(selecting._headers({"level": "3"}, None) or "") == {"level": "3"}
    assert selecting._headers({}, exact) is selecting._headers(None, None) is None


def test_a_message_that_cannot_be_published_again_is_told_with_what_to_do(opened: Opener, root: Path) -> None:
    with opened() as station:
        station.publish("orders", 1)
    rows = pa.record_batch({"id": ["größe 1"], "data": ["1"]})
    with pytest.raises(InvalidMessage, match=r"batch 7 of the replay holds .*'größe 1' is no id.* --where leaves"):
        publishing(root)._publish(rows, 7)


def test_a_slip_in_the_range_replays_nothing(opened: Opener, root: Path) -> None:
    with opened() as station:
        station.publish("orders", 1)
    for more, why in (
        ({"start": '{"ordres": {"0": 41}}'}, "start names channel 'ordres', which is not read"),
        ({"end": '{"orders": {"1": 1}}'}, "end: channel 'orders' has no partition '1'"),
        ({"channel": "invoices.>"}, r"no channel matches 'invoices.>'"),
    ):
        with pytest.raises(HeliographError, match=why):
            selecting.resolved(root, msgspec.structs.replace(SAID, **more))


@pytest.mark.parametrize("rate", [0.0, -1.0, float("nan"), float("inf")])
def test_a_rate_that_is_none_is_refused(root: Path, rate: float) -> None:
    one: Any = None
    with pytest.raises(ConfigError, match="--rate"):
        find("replay").function(one, name=None, rate=rate, dry_run=True, **msgspec.structs.asdict(SAID))


def test_a_partition_that_is_added_while_a_replay_rests_is_no_part_of_it(
    opened: Opener, root: Path, spark: Any
) -> None:
    with opened() as station:
        station.publish("orders", "before")
        starts, ends = selecting.resolved(root, SAID)
        station.alter_channel("orders", partitions=3)
        for n in range(9):
            station.publish("orders", n, key=f"k{n}")
    rows = selecting.selected(spark, root, SAID, starts, ends).collect()
    assert [row["data"] for row in rows] == ['"before"']


def test_messages_without_a_time_have_a_place_in_the_order(tmp_path: Path, spark: Any) -> None:
    rows = spark.sql(
        "SELECT 'orders' AS channel, 0 AS partition, id AS offset, CAST(NULL AS TIMESTAMP) AS time, '1' AS data "
        "FROM range(3)"
    )
    ((at, found, left),) = selecting.chunks(selecting.ordered(rows, None, {}), 9, new_ids=False)
    assert (at.offset, found["time"].to_pylist()) == (2, [None, None, None])
    records.save(tmp_path, "x", Record(said=SAID, starts={}, ends={}, batch=1, after=at))
    record = records.load(tmp_path, "x", SAID)
    assert record is not None
    assert record.after == at
    assert selecting.ordered(rows, at, None).count() == 0
    assert selecting.ordered(rows, at, left).count() == 0


def taken(rows: Any, size: int) -> tuple[list[str], Chunk]:
    """What the first chunk of a replay publishes, and how far it has come then."""
    first = next(selecting.chunks(selecting.ordered(rows, None, {}), size, new_ids=False))
    return first.rows["data"].to_pylist(), first


def test_a_message_that_is_removed_while_a_replay_rests_takes_no_other_along(spark: Any) -> None:
    """Its time was later than those behind it, and so had been their place in the order."""
    rows = spark.sql(
        "SELECT 'orders' AS channel, CAST(id % 2 AS INT) AS partition, id DIV 2 AS offset, "
        "timestamp_seconds(1000 + id + if(id = 3, 100, 0)) AS time, CAST(id AS STRING) AS data FROM range(20)"
    )
    published, first = taken(rows, 14)
    assert len(published) == 14
    assert "3" in published
    rest = selecting.ordered(rows.where("data != '3'"), first.at, first.left).collect()
    assert sorted(int(row["data"]) for row in rest) == sorted({*range(20)} - {int(one) for one in published})


def test_what_sql_made_of_one_message_has_one_place_whatever_times_it_gave(spark: Any) -> None:
    rows = spark.sql(
        "SELECT 'orders' AS channel, p.id AS partition, o.id AS offset, timestamp_seconds(o.id * 10 + t.id) AS time, "
        "concat_ws('/', p.id, o.id, t.id) AS data FROM range(2) p, range(5) o, range(3) t"
    )
    published, first = taken(rows, 8)
    assert len(published) == 9
    rest = [row["data"] for row in selecting.ordered(rows, first.at, first.left).collect()]
    assert (len(rest), len({*published, *rest})) == (21, 30)


def test_a_record_of_an_earlier_version_is_gone_on_with_by_its_place_alone(spark: Any) -> None:
    rows = spark.sql(
        "SELECT 'orders' AS channel, 0 AS partition, id AS offset, timestamp_seconds(id) AS time, '1' AS data "
        "FROM range(9)"
    )
    _, first = taken(rows, 4)
    assert [row["offset"] for row in selecting.ordered(rows, first.at, None).collect()] == [4, 5, 6, 7, 8]
    assert selecting.joined(None, first.left) is None, "of some partitions it would not be known"


def test_a_replay_goes_on_though_retention_took_what_it_has_published(opened: Opener, root: Path, spark: Any) -> None:
    zone = spark.conf.get("spark.sql.session.timeZone")
    with opened(segment_bytes=4096, retention_bytes=8192) as station:
        for n in range(100):
            station.publish("orders", {"n": n, "text": "x" * 100})
        seen: list[Any] = []
        asked = {"channel": "orders", "into": "again"}
        listener = Listener(progress=seen.append, asked=lambda: len(seen) > 1)
        first = run(find("replay"), {**asked, "rate": 40.0}, root, How(), listener)
        assert first.facts["published"] == 80
        (trimmed,) = station.trim("orders")
        assert 0 < trimmed.first <= 80
        assert run(find("replay"), asked, root).facts["published"] == 20
        assert [message.data["n"] for message in station.read("again")] == list(range(100))
    spark.conf.set("spark.sql.session.timeZone", zone)


def test_a_range_and_a_condition_over_archive_and_log_are_published_once(
    opened: Opener, root: Path, spark: Any
) -> None:
    zone = spark.conf.get("spark.sql.session.timeZone")
    with opened(segment_bytes=4096, retention_bytes=4096, retention_archived=True) as station:
        station.create_channel("orders", partitions=2)
        station.create_channel("again", partitions=2)
        for n in range(80):
            station.publish("orders", {"n": n, "text": "x" * 60}, key=f"k{n % 5}", headers={"level": n % 3})
        assert run(find("archive"), {}, root).facts["messages"] == 80
        assert station.trim("orders")
        for n in range(80, 100):
            station.publish("orders", {"n": n}, key=f"k{n % 5}", headers={"level": n % 3})
    asked = {"channel": "orders", "into": "again", "where": "headers['level'] = '1'"}
    wanted = [n for n in range(100) if n % 3 == 1]
    dry = run(find("replay"), {**asked, "dry_run": True}, root)
    assert (dry.facts["messages"], read(root, "again")) == (len(wanted), [])

    seen: list[Any] = []
    slow = {**asked, "rate": 10.0}
    first = run(find("replay"), slow, root, How(), Listener(progress=seen.append, asked=lambda: bool(seen)))
    assert 0 < first.facts["published"] < len(wanted)
    second = run(find("replay"), asked, root)
    assert second.facts["published"] == len(wanted) - first.facts["published"]
    assert run(find("replay"), asked, root).facts["published"] == 0

    found = read(root, "again")
    assert sorted(message.data["n"] for message in found) == wanted
    for key in range(5):
        numbers = [message.data["n"] for message in found if message.key == f"k{key}"]
        assert numbers == sorted(numbers)
    before = {message.data["n"]: message for message in read(root, "orders")}
    for message in found:
        if message.data["n"] in before:
            one = before[message.data["n"]]
            assert (message.id, message.time, message.key) == (one.id, one.time, one.key)
        assert message.headers == {"level": 1}  # a number, as it was, from the archive and from the log
    twice = {
        "channel": "orders", "into": "twice", "start": '{"orders": {"0": 0, "1": "new"}}',
        "sql": "SELECT * EXCEPT (data), to_json(struct(offset AS n)) AS data FROM messages",
    }  # fmt: skip
    assert run(find("replay"), twice, root).facts["published"] == len({m.data["n"] for m in read(root, "twice")}) > 0
    with pytest.raises(ConfigError, match="leaves out column 'channel'"):
        run(find("replay"), {**twice, "sql": "SELECT data FROM messages"}, root)
    with pytest.raises(ConfigError, match="column 'key' is INT, and must be STRING: cast it"):
        run(find("replay"), {**twice, "sql": "SELECT * EXCEPT (key), 5 AS key FROM messages"}, root)
    with pytest.raises(ConfigError, match=r"makes column 'data' STRUCT<N:BIGINT>: use to_json"):
        run(find("replay"), {**twice, "sql": "SELECT * EXCEPT (data), struct(offset AS n) AS data FROM messages"}, root)

    stream = spark.readStream.format("heliograph").options(path=str(root), channel="orders", includeArchive="true")
    query = (
        stream.option("maxMessagesPerTrigger", 30).load().writeStream.format("memory").queryName("archived_orders")
        .option("checkpointLocation", str(root / "checkpoint")).trigger(availableNow=True).start()
    )  # fmt: skip
    query.awaitTermination()
    assert spark.sql("SELECT count(*), count(DISTINCT partition, offset) FROM archived_orders").first() == (100, 100)
    assert run(find("compact"), {}, root).facts["files after"] <= 2
    whole = spark.read.format("heliograph").options(path=str(root), channel="orders", includeArchive="true").load()
    assert whole.select("partition", "offset").distinct().count() == whole.count() == 100
    spark.conf.set("spark.sql.session.timeZone", zone)
