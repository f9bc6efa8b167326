from __future__ import annotations

import json

import msgspec
import pytest

import heliograph as hg
from tests.cli.harness import Helio, one_line_error

TYPE = "com.example.alert.v1"


class Alert(msgspec.Struct):
    text: str
    level: int = 1


class Wider(msgspec.Struct):
    text: str
    level: float = 1.0
    by: str | None = None


@pytest.fixture
def stored(station: hg.Station) -> None:
    for cls in (Alert, Wider):
        with hg.open(station.path) as other:
            other.register(TYPE, cls)
            other.publish("alerts", cls("x"))


@pytest.mark.usefixtures("stored")
def test_list_shows_the_newest_version_and_its_fields(helio: Helio) -> None:
    header, line = helio("types", "list").stdout.splitlines()
    assert header.split() == ["CHANNEL", "TYPE", "VERSION", "SINCE", "FIELDS"]
    assert line.split()[:3] == ["alerts", TYPE, "2"]
    assert line.endswith("text, level, by")
    found = json.loads(helio("types", "list", "alerts", "--json").stdout)
    assert [(info["type"], info["version"]) for info in found] == [(TYPE, 1), (TYPE, 2)]
    assert found[0]["schema"]["$defs"]["Alert"]["required"] == ["text"]


def test_a_station_without_types_says_how_to_get_one(helio: Helio, station: hg.Station) -> None:
    station.publish("alerts", "plain")
    result = helio("types", "list")
    assert (result.exit_code, result.stdout) == (0, "")
    assert "registered class" in result.stderr


@pytest.mark.usefixtures("stored")
def test_show_tells_every_field(helio: Helio) -> None:
    shown = helio("types", "show", "alerts", TYPE).stdout
    assert "version  2 of 2" in shown
    assert "$.by     string or null, optional, default null" in shown
    old = helio("types", "show", "alerts", TYPE, "--version", 1).stdout
    assert "$.level  integer, optional, default 1" in old
    assert json.loads(helio("types", "show", "alerts", TYPE, "--json").stdout)["version"] == 2


@pytest.mark.usefixtures("stored")
def test_diff_shows_what_changed_and_whether_it_can_be_read(helio: Helio) -> None:
    lines = helio("types", "diff", "alerts", TYPE).stdout.splitlines()
    assert lines[0] == f"{TYPE} in alerts: version 1 → 2"
    assert "~ $.level  integer, optional, default 1 → number, optional, default 1.0" in lines
    assert "+ $.by     string or null, optional, default null" in lines
    assert lines[-1] == "version 2 reads what version 1 wrote"


@pytest.mark.usefixtures("stored")
def test_diff_the_other_way_round_says_what_cannot_be_read(helio: Helio) -> None:
    shown = helio("types", "diff", "alerts", TYPE, 2, 1).stdout
    assert "- $.by     string or null, optional, default null" in shown
    assert "version 1 cannot read all that version 2 wrote:\n  $.level was number, is integer" in shown
    found = json.loads(helio("types", "diff", "alerts", TYPE, 2, 1, "--json").stdout)
    assert (found["before"], found["after"], found["compatible"]) == (2, 1, False)
    assert found["conflicts"] == [{"path": "$.level", "before": "number", "now": "integer"}]
    assert {change["kind"] for change in found["changes"]} == {"changed", "removed"}


@pytest.mark.usefixtures("stored")
def test_what_is_not_there_is_said_with_what_is(helio: Helio, station: hg.Station) -> None:
    assert TYPE in one_line_error(helio("types", "show", "alerts", "com.example.other.v1"), 3)
    assert "1, 2" in one_line_error(helio("types", "show", "alerts", TYPE, "--version", 3), 3)
    assert "no channel" in one_line_error(helio("types", "list", "doors"), 3)
    station.register("com.example.number.v1", int)
    station.publish("numbers", 1, type="com.example.number.v1")
    assert "only version 1" in one_line_error(helio("types", "diff", "numbers", "com.example.number.v1"), 3)
