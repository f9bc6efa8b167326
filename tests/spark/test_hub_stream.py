"""Channels of a hub as streams: the same positions, micro-batches and complaints as in its directory."""

from __future__ import annotations

import json
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import heliograph as hg
from heliograph.client.inquirer import Inquirer
from heliograph.errors import Incomplete, NotAllowed
from heliograph.spark.columns import default_schema
from heliograph.spark.options import read_options
from heliograph.spark.stream import StreamReader
from tests.federation.chaos import Proxy
from tests.spark.hub_reading import ReadHub

Positions = dict[str, Any]


pytestmark = pytest.mark.usefixtures("short_pauses")


class Lockstep:
    """A query in the directory and one through the hub: after every step they must be at the same place."""

    def __init__(self, hub: ReadHub, channel: str, url: str | None = None, **options: Any) -> None:
        self.said = [
            {"path": str(hub.root), "channel": channel, **options},
            hub.options(channel, url=url, **options),
        ]
        self.checkpoint: Positions | None = None
        self.batches: list[list[dict[str, Any]]] = []

    def readers(self) -> list[StreamReader]:
        found = [read_options(said, streaming=True) for said in self.said]
        return [StreamReader(one, default_schema(None, gaps=not one.fail_on_gap)) for one in found]

    def run(self) -> list[dict[str, Any]]:
        """Everything that is there now, which was not there before."""
        readers = self.readers()
        try:
            return self._run(readers)
        finally:
            for one in readers:
                one.stop()

    def _run(self, readers: list[StreamReader]) -> list[dict[str, Any]]:
        for one in readers:
            one.prepareForTriggerAvailableNow()
        start = agreed(readers, lambda one: one.initialOffset()) if self.checkpoint is None else self.checkpoint
        self.checkpoint, self.batches = start, []
        while (end := following(readers, self.checkpoint)) != self.checkpoint:
            self.batches.append(batches(readers, self.checkpoint, end))
            self.checkpoint = end
            assert len(self.batches) < 100
        return [row for batch in self.batches for row in batch]


def following(readers: list[StreamReader], start: Positions) -> Positions:
    agreed(readers, lambda one: one.reportLatestOffset())
    found: Positions = agreed(readers, lambda one: one.latestOffset(start, one.getDefaultReadLimit()))
    return found


def batches(readers: list[StreamReader], start: Positions, end: Positions) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = agreed(readers, lambda one: batch(one, start, end))
    return found


def batch(reader: StreamReader, start: Positions, end: Positions) -> list[dict[str, Any]]:
    """The rows of a micro-batch, each split read by a copy of the reader, as in a task."""
    found = []
    for split in reader.partitions(start, end):
        for part in pickle.loads(pickle.dumps(reader)).read(pickle.loads(pickle.dumps(split))):
            found += part.to_pylist()
    return sorted(found, key=lambda row: (row["channel"], row["partition"], row["offset"], row["id"] or ""))


def agreed(readers: list[StreamReader], ask: Callable[[StreamReader], Any]) -> Any:
    """What both answer; or what both raise."""
    answers: list[Any] = []
    for one in readers:
        try:
            answers.append(ask(one))
        except hg.HeliographError as error:
            answers.append(error)
    here, there = answers
    if isinstance(here, hg.HeliographError):
        assert (type(here), str(here)) == (type(there), str(there))
        raise there
    assert here == there
    return json.loads(json.dumps(here)) if isinstance(here, dict) else here


def data(rows: list[dict[str, Any]]) -> list[int]:
    return sorted(int(row["data"]) for row in rows if row.get("gap") is None)


@pytest.mark.parametrize(
    "limit", [{}, {"maxMessagesPerTrigger": "7"}, {"maxBytesPerTrigger": "20kB"}, {"startingOffsets": "-1h"}]
)
def test_steps_are_of_one_size(tmp_path: Path, limit: dict[str, str]) -> None:
    hub = ReadHub(tmp_path, segment_bytes=40_000)
    query = Lockstep(hub, "alerts", **limit)
    with hub.serve() as station:
        station.create_channel("alerts", partitions=3)
        for n in range(300):
            station.publish("alerts", n, key=str(n), headers={"text": "x" * 400})
        assert data(query.run()) == list(range(300))
        assert (len(query.batches) == 1) == ("PerTrigger" not in str(limit))
        assert query.run() == []
        station.publish("alerts", 300)
        assert data(query.run()) == [300]


def test_new_channels_and_partitions_are_picked_up(tmp_path: Path) -> None:
    hub = ReadHub(tmp_path)
    query = Lockstep(hub, "sensors.>", maxBytesPerTrigger="1kB")
    with hub.serve() as station:
        station.publish("sensors.a", 0)
        assert data(query.run()) == [0]
        station.alter_channel("sensors.a", partitions=3)
        for n in range(1, 10):
            station.publish("sensors.a", n, key=str(n))
        station.publish("sensors.b", 10)
        station.publish("others", 11)
        assert data(query.run()) == list(range(1, 11))


@pytest.mark.parametrize("strict", ["true", "false"])
def test_what_retention_takes_is_an_error_or_counted(tmp_path: Path, strict: str) -> None:
    hub = ReadHub(tmp_path, segment_bytes=10_000, retention_bytes=20_000)
    query = Lockstep(hub, "alerts", failOnGap=strict)
    with hub.serve() as station:
        station.publish("alerts", 0)
        assert data(query.run()) == [0]
        for n in range(1, 400):
            station.publish("alerts", n, headers={"text": "x" * 100})
        station.trim()
        first = station.channel("alerts").first
        assert first > 1
        if strict == "true":
            with pytest.raises(Incomplete, match="deleted by retention"):
                query.run()
        else:
            found = query.run()
            assert [(row["offset"], row["gap"]["next"]) for row in found if row["gap"] is not None] == [(1, first)]
            assert data(found) == list(range(first, 400))


@pytest.mark.parametrize("strict", ["true", "false"])
def test_another_life_is_an_error_or_counted(tmp_path: Path, strict: str) -> None:
    hub = ReadHub(tmp_path)
    query = Lockstep(hub, "alerts,sensors.>", failOnGap=strict)
    with hub.serve() as station:
        for n in range(3):
            station.publish("alerts", n)
        assert data(query.run()) == [0, 1, 2]
        station.delete_channel("alerts")
        if strict == "true":
            with pytest.raises(Incomplete, match="channel 'alerts' was deleted"):
                query.run()
        else:
            assert query.run() == []
        for n in range(10, 15):
            station.publish("alerts", n)
        if strict == "true":
            with pytest.raises(Incomplete, match="lives anew"):
                query.run()
        else:
            found = query.run()
            assert [row["gap"]["reason"][:24] for row in found if row["gap"]] == ["the channel lives anew ("]
            assert data(found) == list(range(10, 15))


def test_a_hub_whose_directory_was_moved_is_the_same_log(tmp_path: Path) -> None:
    hub = ReadHub(tmp_path)
    query = Lockstep(hub, "alerts")
    with hub.serve() as station:
        for n in range(3):
            station.publish("alerts", n)
        assert data(query.run()) == [0, 1, 2]
    shutil.copytree(hub.root, tmp_path / "moved")
    shutil.rmtree(hub.root)
    (tmp_path / "moved").rename(hub.root)
    with hub.serve() as station:
        station.publish("alerts", 3)
        assert data(query.run()) == [3]


def test_a_channel_that_is_deleted_between_plan_and_task(tmp_path: Path) -> None:
    hub = ReadHub(tmp_path)
    query = Lockstep(hub, "alerts", failOnGap="false")
    with hub.serve() as station:
        station.publish("alerts", 0)
        readers = query.readers()
        start = agreed(readers, lambda one: one.initialOffset())
        end = agreed(readers, lambda one: one.latestOffset(start, one.getDefaultReadLimit()))
        station.delete_channel("alerts")
        for _ in range(2):
            found = batches(readers, start, end)
            assert [(row["offset"], row["gap"]["next"]) for row in found] == [(0, 1)]
            station.publish("alerts", "another")
        for one in readers:
            one.stop()


def test_one_connection_serves_a_whole_stream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub = ReadHub(tmp_path)
    made: list[Inquirer] = []
    begin = Inquirer.__init__

    def note(self: Inquirer, *arguments: Any) -> None:
        made.append(self)
        begin(self, *arguments)

    monkeypatch.setattr(Inquirer, "__init__", note)
    with hub.serve() as station:
        station.publish("alerts", 0)
        _, reader = Lockstep(hub, "alerts").readers()
        start = reader.initialOffset()
        for n in range(1, 20):
            end = reader.latestOffset(start, reader.getDefaultReadLimit())
            assert len(reader.partitions(start, end)) == 1
            start = end
            station.publish("alerts", n)
        assert len(made) == 1
        reader.stop()
        reader.stop()


def test_a_stream_whose_line_is_cut_again_and_again(tmp_path: Path) -> None:
    hub = ReadHub(tmp_path)
    line = Proxy(hub.port("hub"), cut_after=(5_000, 20_000))
    try:
        query = Lockstep(hub, "sensors.>", url=f"wss://localhost:{line.port}", maxMessagesPerTrigger="20")
        with hub.serve() as station:
            for n in range(200):
                station.publish(f"sensors.{n % 5}", n)
            assert data(query.run()) == list(range(200))
            assert line.cuts > 2
    finally:
        line.close()


def test_a_hub_that_is_started_again_between_two_micro_batches(tmp_path: Path) -> None:
    hub = ReadHub(tmp_path)
    with hub.serve() as station:
        for n in range(5):
            station.publish("alerts", n)
        _, reader = Lockstep(hub, "alerts").readers()
        start = reader.initialOffset()
        middle = reader.latestOffset(start, reader.getDefaultReadLimit())
        assert data(batch(reader, start, middle)) == list(range(5))
    with hub.serve() as station:
        station.publish("alerts", 5)
        end = reader.latestOffset(middle, reader.getDefaultReadLimit())
        assert data(batch(reader, middle, end)) == [5]
        reader.stop()


def test_a_right_that_is_withdrawn_is_an_error_and_not_less(tmp_path: Path) -> None:
    hub = ReadHub(tmp_path)
    with hub.serve() as station:
        station.publish("sensors.b", 0)
        station.publish("sensors.a.x", 0)
        _, reader = Lockstep(hub, "sensors.>").readers()
        start = reader.initialOffset()
        reader.stop()
        options = read_options(hub.options("sensors.>", "few"), streaming=True)
        few = StreamReader(options, default_schema(None, gaps=False))
        with pytest.raises(NotAllowed, match=r"few is not allowed to subscribe 'sensors\.b'"):
            few.latestOffset(start, few.getDefaultReadLimit())
        few.stop()
