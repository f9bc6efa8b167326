"""Stations that should have the same messages, and do not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import heliograph as hg
from heliograph.errors import ConfigError, NotFound
from heliograph.spark.jobs._places import places
from heliograph.spark.jobs.reconcile import Taken, _mended, reconcile
from heliograph.spark.pipelines.running import How, Listener, run


def lines(root: Path, channel: str = "orders") -> list[bytes]:
    with hg.open(root, read_only=True) as station:
        return [message.raw for message in station.read(channel)]


@pytest.fixture
def stations(tmp_path: Path) -> tuple[Path, Path]:
    """Host 1 with 20 orders, and a hub that lacks 3 of them, has 5 and 6 the wrong way round, and one of its own."""
    host, hub = tmp_path / "host1", tmp_path / "hub"
    with hg.open(host, name="host1", durability="os") as station:
        for n in range(20):
            station.publish("orders", {"n": n, "text": "é"}, headers={"b": "2", "a": n})
        station.publish("private", 1)
    sent = lines(host)
    with hg.open(hub, name="hub", durability="os") as station:
        arrive = station.engine.relayed.arrive
        arrive("orders", sent[:5])
        arrive("orders", [sent[6]])
        arrive("orders", [sent[5]])
        arrive("orders", sent[7:10])
        arrive("orders", sent[13:])
        station.publish("orders", {"n": 99})
    return host, hub


def found(result: Any, name: str) -> list[Any]:
    return result.tables[name].collect() if name in result.tables else []


def home(row: Any) -> str:
    return str(row.origin.partition(".")[0])


def test_what_is_missing_and_reordered_is_told_by_origin_and_sequence(spark: Any, stations: tuple[Path, Path]) -> None:
    host, hub = stations
    result = run(reconcile, {"also": (str(hub),)}, host)
    missing = [
        (row.origin.partition(".")[0], row.originseq, row.is_in, row.is_not_in) for row in found(result, "missing")
    ]
    assert missing[:3] == [("host1", f"0/{n}", ["host1"], ["hub"]) for n in (10, 11, 12)]
    assert missing[3:] == [("hub", "0/17", ["hub"], ["host1"])]
    assert [(row.place, row.originseq, row.offset) for row in found(result, "reordered")] == [("hub", "0/5", 6)]
    assert not found(result, "duplicated")
    assert not found(result, "differing")
    assert result.bad
    assert result.facts["channels"] == ["orders"]  # only one has the other
    summary = result.tables["summary"]
    counts = {(row["origin"].partition(".")[0], row["place"]): (row["messages"], row["missing"]) for row in summary}
    assert counts == {
        ("host1", "host1"): (20, 0),
        ("host1", "hub"): (17, 3),
        ("hub", "host1"): (0, 1),
        ("hub", "hub"): (1, 0),
    }


def test_repair_appends_the_lines_as_they_are_and_once(spark: Any, stations: tuple[Path, Path]) -> None:
    host, hub = stations
    result = run(reconcile, {"also": (str(hub),), "repair": True}, host)
    assert {one["station"]: one["appended"] for one in result.tables["repaired"]} == {"host1": 1, "hub": 3}
    assert sorted(lines(host)) == sorted(lines(hub))
    with hg.open(hub) as station:  # the links would not bring them again
        arrival = station.engine.relayed.arrive("orders", lines(host))
    assert (arrival.appended, arrival.duplicates) == (0, 21)
    again = run(reconcile, {"also": (str(hub),), "repair": True}, host)
    assert not found(again, "missing")
    assert "repaired" not in again.tables


def test_a_repair_that_is_stopped_says_that_not_all_is_well(spark: Any, stations: tuple[Path, Path]) -> None:
    host, hub = stations
    before = lines(hub)
    stopping = Listener(asked=lambda: True)
    result = run(reconcile, {"also": (str(hub),), "channel": "orders", "repair": True}, host, How(), stopping)
    assert [(one["appended"], one["why"]) for one in result.tables["repaired"]] == [(0, "it was stopped")] * 2
    assert lines(hub) == before
    assert len(found(result, "missing")) == 4
    taken = [Taken(station="host1", appended=1), Taken(station="hub", why="it was stopped")]
    assert _mended(places([host, hub]), result.tables["missing"], taken) == 1


def test_lines_that_are_there_twice_or_differ_are_told(spark: Any, stations: tuple[Path, Path], tmp_path: Path) -> None:
    from tests.arrivals import line, sealed

    one, other = tmp_path / "one", tmp_path / "other"
    for root, name, micros in ((one, "one", b"000003"), (other, "other", b"000004")):
        later = sealed(line(3)[:-18].replace(b":03.000003Z", b":03.%bZ" % micros))
        with hg.open(root, name=name, durability="os") as station:
            station.engine.relayed.arrive("alerts", [line(0), line(1, data=b'"%s"' % name.encode()), line(2), later])
    segment = next((other / "channels" / "alerts" / "0").glob("*.jsonl"))
    for derived in segment.parent.glob("*"):
        if derived.name in {"head", segment.with_suffix(".index").name}:
            derived.unlink()
    with segment.open("ab") as file:
        file.write(line(0) + b"\n")
    with hg.open(other):
        pass  # recovery
    result = run(reconcile, {"also": (str(other),)}, one)
    assert [row.originseq for row in found(result, "differing")] == ["0/1", "0/3"]
    assert [(row.place, row.originseq, row.copies) for row in found(result, "duplicated")] == [("other", "0/0", 2)]
    assert result.bad


def test_a_place_is_compared_with_others(tmp_path: Path) -> None:
    for name in ("one", "other"):
        hg.open(tmp_path / name, name="same", durability="os").close()
    one, other = str(tmp_path / "one"), str(tmp_path / "other")
    assert [found.name for found in places([one, other])] == [one, other]
    with pytest.raises(ConfigError, match=r"/one is named twice"):
        places([one, other, f"{other}/../one"])


def test_equal_stations_are_good_news(spark: Any, stations: tuple[Path, Path], tmp_path: Path) -> None:
    host, _ = stations
    with hg.open(tmp_path / "third", name="third", durability="os") as station:
        station.engine.relayed.arrive("orders", lines(host))
    result = run(reconcile, {"also": (str(tmp_path / "third"),), "channel": "orders"}, host)
    assert not result.bad
    assert list(result.tables) == ["summary"]


def test_a_station_and_its_archive_are_compared(spark: Any, stations: tuple[Path, Path]) -> None:
    from heliograph.spark.jobs.archive import archive

    host, _ = stations
    run(archive, {}, host)
    with hg.open(host) as station:
        station.publish("orders", {"n": 20})
    result = run(reconcile, {"also": (str(host / "archive"),), "channel": "orders"}, host)
    assert [(row.originseq, row.is_not_in) for row in found(result, "missing")] == [("0/20", ["archive"])]
    assert not found(result, "differing")


def test_a_place_that_is_none_is_named(spark: Any, stations: tuple[Path, Path], tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="nowhere"):
        run(reconcile, {"also": (str(tmp_path / "nowhere"),)}, stations[0])
    with pytest.raises(ConfigError, match="neither"):
        run(reconcile, {"also": (str(tmp_path),)}, stations[0])
