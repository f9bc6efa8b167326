from __future__ import annotations

import json
import signal

import heliograph as hg
from tests.cli.harness import Child, Helio


def test_stats_are_those_of_the_api(helio: Helio, station: hg.Station) -> None:
    station.publish_many("alerts", range(7))
    station.subscribe("alerts", print, name="pager", start=4, paused=True).close()
    numbers = json.loads(helio("stats", "--json").stdout)
    assert numbers["name"] == "host1"
    assert [(channel["channel"], channel["messages"]) for channel in numbers["channels"]] == [("alerts", 7)]
    assert [(info["name"], info["lag"]) for info in numbers["subscriptions"]] == [("pager", 3)]
    shown = helio("stats").stdout
    assert "station host1" in shown
    assert "pager" in shown


def test_watch_prints_a_line_at_each_look_until_it_is_ended(station: hg.Station, spawn: type[Child]) -> None:
    child = spawn("stats", "--watch", "--interval", "0.1", "--json")
    for n in range(3):
        assert json.loads(child.stdout.readline())["channels"] is not None, n
    child.signal(signal.SIGTERM)
    code, _, err = child.end()
    assert (code, err) == (0, "")


def test_what_waits_for_its_time_is_mentioned(helio: Helio, station: hg.Station) -> None:
    assert "no channels yet" in helio("stats").stdout
    assert "scheduled" not in helio("stats").stdout
    station.publish("alerts", 1, delay=3600)
    assert "1 message scheduled" in helio("stats").stdout
