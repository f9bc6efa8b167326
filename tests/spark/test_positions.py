"""Where a stream goes on, and what it is told when that is not possible. Called as Spark calls it, without one."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import heliograph as hg
from heliograph.errors import ConfigError, Incomplete
from heliograph.spark.columns import default_schema
from heliograph.spark.directory import Directory
from heliograph.spark.options import read_options
from heliograph.spark.positions import from_json
from heliograph.spark.stream import StreamReader


class Query:
    """Micro-batches until nothing is new, as Spark makes them; its checkpoint lasts from run to run."""

    def __init__(self, root: Path, channel: str, **options: Any) -> None:
        self.said = {"path": str(root), "channel": channel, **options}
        self.checkpoint: dict[str, Any] | None = None
        self.batches: list[list[Any]] = []

    def reader(self) -> StreamReader:
        options = read_options(self.said, streaming=True)
        return StreamReader(options, default_schema(None, gaps=not options.fail_on_gap))

    def run(self) -> list[Any]:
        """Everything that is there now, which was not there before."""
        reader = self.reader()
        reader.prepareForTriggerAvailableNow()
        start = reader.initialOffset() if self.checkpoint is None else self.checkpoint
        self.batches = []
        while True:
            end = json.loads(json.dumps(reader.latestOffset(start, reader.getDefaultReadLimit())))
            if end == start:
                break
            splits = reader.partitions(start, end)
            rows = [row for split in splits for batch in reader.read(split) for row in batch.to_pylist()]
            self.batches.append([SimpleNamespace(**row) for row in rows])
            start = self.checkpoint = end
            assert len(self.batches) < 100
        self.checkpoint = start
        return [row for batch in self.batches for row in batch]


def data(rows: list[Any]) -> list[int]:
    return sorted(int(row.data) for row in rows)


def test_a_channel_made_again_in_the_middle_of_a_run_is_read_from_its_first_message(tmp_path: Path) -> None:
    """What a run was to read, in bounded batches, is another's by now: nothing of that one may be taken for read."""
    root = tmp_path / "data"
    query = Query(root, "orders", failOnGap="false", maxMessagesPerTrigger="2")
    with hg.open(root, name="host1", durability="os") as station:
        for n in range(6):
            station.publish("orders", n)
        reader = query.reader()
        reader.prepareForTriggerAvailableNow()
        start = reader.initialOffset()
        station.delete_channel("orders")
        for n in range(10, 20):
            station.publish("orders", n)
        query.checkpoint = reader.latestOffset(start, reader.getDefaultReadLimit())
        found = query.run()
    assert data([row for row in found if row.gap is None]) == list(range(10, 20))
    assert [row.gap["reason"] for row in found if row.gap is not None]


def test_new_channels_of_a_pattern_and_new_partitions_are_picked_up(tmp_path: Path) -> None:
    root = tmp_path / "data"
    query = Query(root, "sensors.>", maxBytesPerTrigger="1kB")
    with hg.open(root, name="host1", durability="os") as station:
        station.publish("sensors.a", 0)
        assert data(query.run()) == [0]
        station.alter_channel("sensors.a", partitions=3)
        for n in range(1, 10):
            station.publish("sensors.a", n, key=str(n))
        station.publish("sensors.b", 10)
        station.publish("others", 11)
        assert data(query.run()) == list(range(1, 11))


@pytest.mark.parametrize("wrong", ["0", "٣", "x", "1.5"])
def test_how_many_messages_is_a_whole_number(tmp_path: Path, wrong: str) -> None:
    with pytest.raises(ConfigError, match=f"option 'maxMessagesPerTrigger' is '{wrong}': use a whole number"):
        Query(tmp_path / "data", "alerts", maxMessagesPerTrigger=wrong).reader()


def test_a_stream_that_begins_at_an_offset_to_come_waits_for_it(tmp_path: Path) -> None:
    with hg.open(tmp_path / "data", name="host1", durability="os") as station:
        for n in range(3):
            station.publish("alerts", n)
        reader = Query(tmp_path / "data", "alerts", startingOffsets="5").reader()  # as a trigger by time asks it
        start = reader.initialOffset()
        assert reader.latestOffset(start, reader.getDefaultReadLimit()) == start
        for n in range(3, 7):
            station.publish("alerts", n)
        end = reader.latestOffset(start, reader.getDefaultReadLimit())
    found = [
        row for split in reader.partitions(start, end) for batch in reader.read(split) for row in batch.to_pylist()
    ]
    assert [row["offset"] for row in found] == [5, 6]


def test_what_retention_takes_from_a_stream_is_an_error_or_counted(tmp_path: Path) -> None:
    root = tmp_path / "data"
    strict = Query(root, "alerts")
    lenient = Query(root, "alerts", failOnGap="false")
    with hg.open(root, name="host1", durability="os", segment_bytes=10_000, retention_bytes=20_000) as station:
        station.publish("alerts", 0)
        assert data(strict.run()) == data(lenient.run()) == [0]
        for n in range(1, 400):
            station.publish("alerts", n, headers={"text": "x" * 100})
        station.trim()
        first = station.channel("alerts").first
    assert first > 1
    with pytest.raises(Incomplete, match="deleted by retention"):
        strict.run()
    found = lenient.run()
    assert [(row.offset, row.gap["next"]) for row in found if row.gap is not None] == [(1, first)]
    assert data([row for row in found if row.gap is None]) == list(range(first, 400))


def test_another_life_of_a_channel_is_an_error_or_counted(tmp_path: Path) -> None:
    root = tmp_path / "data"
    strict = Query(root, "alerts")
    lenient = Query(root, "alerts", failOnGap="false")
    with hg.open(root, name="host1", durability="os") as station:
        for n in range(3):
            station.publish("alerts", n)
        assert data(strict.run()) == data(lenient.run()) == [0, 1, 2]
        station.delete_channel("alerts")
        with pytest.raises(Incomplete, match="channel 'alerts' was deleted"):
            strict.run()
        for n in range(10, 15):
            station.publish("alerts", n)
        with pytest.raises(Incomplete, match="lives anew"):
            strict.run()
        found = lenient.run()
        assert [row.gap["reason"][:24] for row in found if row.gap is not None] == ["the channel lives anew ("]
        assert data([row for row in found if row.gap is None]) == list(range(10, 15))


@pytest.mark.parametrize("bound", [{"maxBytesPerTrigger": "1kB"}, {"maxMessagesPerTrigger": "2"}, {}])
def test_a_channel_that_is_deleted_in_the_middle_is_left_out(tmp_path: Path, bound: dict[str, str]) -> None:
    root = tmp_path / "data"
    query = Query(root, "a,b", failOnGap="false", **bound)
    with hg.open(root, name="host1", durability="os") as station:
        for channel in ("a", "b"):
            for n in range(5):
                station.publish(channel, n)
        reader = query.reader()
        reader.prepareForTriggerAvailableNow()
        start = reader.initialOffset()
        station.delete_channel("a")
        found: list[dict[str, Any]] = []
        while (end := reader.latestOffset(start, reader.getDefaultReadLimit())) != start:
            batches = [batch for split in reader.partitions(start, end) for batch in reader.read(split)]
            found += [row for batch in batches for row in batch.to_pylist()]
            start = end
        assert [row["data"] for row in found if row["gap"] is None] == ["0", "1", "2", "3", "4"]
        gaps = [range(row["offset"], row["gap"]["next"]) for row in found if row["gap"] is not None]
        assert [offset for gap in gaps for offset in gap] == [0, 1, 2, 3, 4]
        station.publish("a", 7)
        query.checkpoint = json.loads(json.dumps(start))
        assert data([row for row in query.run() if row.gap is None]) == [7]


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("moment", ["bounds", "id_at"])
def test_a_channel_that_is_deleted_while_it_is_looked_at_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, known: bool, again: bool, moment: str
) -> None:
    """And if it is made again at once, all of its new life is read: its end is not taken for that of the old one."""
    root = tmp_path / "data"
    reader = Query(root, "sensors.>", failOnGap="false").reader()
    rows: list[Any] = []
    with hg.open(root, name="host1", durability="os") as station:

        def trigger(start: dict[str, Any]) -> dict[str, Any]:
            end: dict[str, Any] = json.loads(json.dumps(reader.latestOffset(start, reader.getDefaultReadLimit())))
            splits = [] if end == start else reader.partitions(start, end)
            rows.extend(row for split in splits for batch in reader.read(split) for row in batch.to_pylist())
            return end

        station.publish("sensors.a", 0)
        if known:
            station.publish("sensors.b", 1)
        at = trigger(reader.initialOffset())
        station.publish("sensors.a", 2)
        for n in (3, 4):
            station.publish("sensors.b", n)
        real, left = getattr(Directory, moment), [1]

        def unlucky(directory: Directory, channel: str, *place: int) -> Any:
            if channel == "sensors.b" and left:
                left.clear()
                station.delete_channel(channel)
                for n in (5, 6, 7) if again else ():
                    station.publish(channel, n)
            return real(directory, channel, *place)

        monkeypatch.setattr(Directory, moment, unlucky)
        for _ in range(5):
            at = trigger(at)
        assert not left
        assert sorted(int(row["data"]) for row in rows if row["gap"] is None) == [
            0, *([1] if known else []), 2, *([5, 6, 7] if again else [])
        ]  # fmt: skip


def test_a_moved_directory_is_the_same_log(tmp_path: Path) -> None:
    """It gets new incarnations, and the message before the position says that nothing else changed."""
    root = tmp_path / "data"
    query = Query(root, "alerts")
    with hg.open(root, name="host1") as station:
        for n in range(3):
            station.publish("alerts", n)
    assert data(query.run()) == [0, 1, 2]
    shutil.copytree(root, tmp_path / "moved")
    shutil.rmtree(root)
    (tmp_path / "moved").rename(root)
    with hg.open(root) as station:
        station.publish("alerts", 3)
    assert data(query.run()) == [3]


def test_a_batch_that_is_planned_again_reads_the_same(tmp_path: Path) -> None:
    """After a crash Spark asks for the same stretch, whatever came since."""
    query = Query(tmp_path / "data", "sensors.>", maxMessagesPerTrigger="5")
    with hg.open(tmp_path / "data", name="host1", durability="os") as station:
        for n in range(8):
            station.publish("sensors.a", n)
        reader = query.reader()
        start = reader.initialOffset()
        end = reader.latestOffset(start, reader.getDefaultReadLimit())
        station.publish("sensors.b", 100)
        station.alter_channel("sensors.a", partitions=2)
        for n in range(20):
            station.publish("sensors.a", n, key=str(n))
        again = query.reader()
        rows = [
            row for split in again.partitions(start, end) for batch in again.read(split) for row in batch.to_pylist()
        ]
        assert [row["offset"] for row in rows] == [0, 1, 2, 3, 4]


def test_what_is_trimmed_between_two_micro_batches_of_a_new_channel_is_noticed(tmp_path: Path) -> None:
    query = Query(tmp_path / "data", "sensors.>")
    with hg.open(
        tmp_path / "data", name="host1", durability="os", segment_bytes=5_000, retention_bytes=10_000
    ) as station:
        station.publish("sensors.a", 0)
        assert data(query.run()) == [0]
        assert query.checkpoint is not None
        station.publish("sensors.b", 0)
        reader = query.reader()
        entered = reader.latestOffset(query.checkpoint, reader.getDefaultReadLimit())
        assert from_json(entered)["sensors.b"].partitions[0].offset == 0
        for n in range(200):
            station.publish("sensors.b", n, headers={"text": "x" * 100})
        station.trim()
        query.checkpoint = entered
        with pytest.raises(Incomplete, match="deleted by retention"):
            query.run()


def test_another_checkpoint_is_refused() -> None:
    with pytest.raises(ConfigError, match="not one of a Heliograph stream"):
        from_json({"logOffset": 7})
