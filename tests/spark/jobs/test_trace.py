"""The way of an order through channels and stations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import heliograph as hg
from heliograph.admin import dead
from heliograph.spark.jobs.trace import trace
from heliograph.spark.pipelines.running import run
from tests.arrivals import line
from tests.proof.tools import eventually

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


@pytest.fixture(scope="module")
def stations(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, str]:
    """An order that fails and is redriven at its station, is relayed to a hub, and paid for there."""
    base = tmp_path_factory.mktemp("trace")
    host, hub = base / "host1", base / "hub"
    with hg.open(host, name="host1", durability="os") as station:
        for n in range(5):
            station.publish("orders", {"n": n}, correlation_id=f"c-{n}")
        order = next(message.id for message in station.read("orders") if message.correlationid == "c-3")
        subscription = station.subscribe("orders", _refuse, name="ship", start="first")
        eventually(lambda: "orders.dead-letter" in station.engine.channel_names())
        subscription.close()
        dead.replay(station, "orders")
        lines = [message.raw for message in station.read("orders")]
    with hg.open(hub, name="hub", durability="os") as station:
        station.engine.relayed.arrive("orders", lines[:5])
        station.publish("payments", {"paid": 3}, correlation_id="c-3")
        station.publish("payments", {"paid": 2}, correlation_id="c-2")
    return host, hub, order


def _refuse(message: hg.Message) -> None:
    if message.correlationid == "c-3":
        raise hg.Reject("no such address")


def told(result: Any) -> list[tuple[str, str, str]]:
    return [(one["what"], one["station"], one["channel"]) for one in result.tables["timeline"]]


def test_a_correlation_id_is_followed_across_channels_stations_and_redrives(
    spark: Any, stations: tuple[Path, Path, str]
) -> None:
    host, hub, order = stations
    result = run(trace, {"of": "c-3", "also": (str(hub),)}, host)
    assert told(result) == [
        ("published", "host1", "orders"),
        ("└ is there, too", "hub", "orders"),
        ("└ published again", "host1", "orders"),
        ("published", "hub", "payments"),
    ]
    assert result.tables["timeline"][0]["after_ms"] == 0
    assert [one["detail"] for one in result.tables["timeline"]] == ['{"n":3}', "", '{"n":3}', '{"paid":3}']
    assert result.facts["messages"] == 2
    assert result.facts["stations"] == ["host1", "hub"]
    by_id = run(trace, {"of": order, "also": (str(hub),)}, host)
    assert told(by_id) == told(result)


def test_a_dead_letter_stands_below_its_message(spark: Any, tmp_path: Path) -> None:
    with hg.open(tmp_path / "data", name="host1", durability="os") as station:
        station.publish("orders", {"n": 3}, correlation_id="c-3")
        station.subscribe("orders", _refuse, name="ship", start="first")
        eventually(lambda: "orders.dead-letter" in station.engine.channel_names())
    rows = run(trace, {"of": "c-3"}, tmp_path / "data").tables["timeline"]
    assert [(one["what"], one["channel"]) for one in rows] == [
        ("published", "orders"), ("└ given up", "orders.dead-letter"),
    ]  # fmt: skip
    assert rows[1]["detail"] == "by 'ship': Reject: no such address"
    assert rows[1]["after_ms"] > 0


def test_a_trace_is_found_by_its_id_and_what_is_not_there_is_bad_news(spark: Any, tmp_path: Path) -> None:
    with hg.open(tmp_path / "data", name="hub", durability="os") as station:
        extra = b',"traceparent":"00-%b-00f067aa0ba902b7-01"' % TRACE.encode()
        station.engine.relayed.arrive("alerts", [line(0), line(1, extra=extra), line(2)])
    found = run(trace, {"of": TRACE}, tmp_path / "data").tables["timeline"]
    assert [(one["what"], one["station"], one["id"]) for one in found] == [
        ("published", "host2", "host2.aaaaaa-0-1"), ("└ is there, too", "hub", "host2.aaaaaa-0-1"),
    ]  # fmt: skip
    nothing = run(trace, {"of": "c-9"}, tmp_path / "data")
    assert nothing.bad
    assert nothing.tables["timeline"] == []


def test_a_traceparent_that_is_none_disturbs_nobody(spark: Any, tmp_path: Path) -> None:
    with hg.open(tmp_path / "data", name="hub", durability="os") as station:
        extra = b',"correlationid":"c-1","traceparent":"another"'
        station.engine.relayed.arrive("alerts", [line(0), line(1, extra=extra)])
    found = run(trace, {"of": "c-1"}, tmp_path / "data").tables["timeline"]
    assert [one["id"] for one in found] == ["host2.aaaaaa-0-1"] * 2
