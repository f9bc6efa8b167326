"""``helio schedule``, and ``helio pub`` with a time."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest

import heliograph as hg
from tests.cli.harness import Helio, lines, one_line_error


def test_pub_with_a_delay_schedules_and_says_when(helio: Helio) -> None:
    result = helio("pub", "alerts", "wake up", "--delay", "1h")
    assert result.exit_code == 0
    assert result.stdout.startswith("scheduled to alerts for 20")
    found = lines(helio("schedule", "list", "--json"))
    assert [(one["channel"], one["error"], one["moving"]) for one in found] == [("alerts", "", False)]
    assert "offset" not in found[0]
    assert found[0]["id"] in result.stdout


def test_pub_at_a_time_and_with_a_lifetime(helio: Helio) -> None:
    moment = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=2)
    made = lines(helio("pub", "alerts", "1", "--at", moment.isoformat(), "--ttl", "30s", "--json"))[0]
    assert datetime.fromisoformat(made["due"]) == moment
    assert "offset" not in made
    shown = json.loads(helio("schedule", "show", made["id"], "--json").stdout)
    assert datetime.fromisoformat(shown["envelope"]["expires"]) == moment + timedelta(seconds=30)
    assert "on its way" not in helio("schedule", "show", made["id"]).stdout


def test_many_lines_are_scheduled_together(helio: Helio) -> None:
    result = helio("pub", "alerts", "--delay", "1h", input="a\nb\nc\n")
    assert "scheduled 3 messages to alerts" in result.stdout
    assert helio("schedule", "count").stdout == "3\n"
    assert json.loads(helio("pub", "alerts", "--delay", "1h", "--json", input="a\nb\n").stdout)["scheduled"] == 2
    assert json.loads(helio("schedule", "count", "alerts", "--json").stdout)["waiting"] == 5
    assert len(lines(helio("schedule", "list", "alerts", "--limit", "2", "--json"))) == 2


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--delay", "soon"], "duration"),
        (["--delay", "-5s"], "duration"),
        (["--at", "tomorrow"], "not a time"),
        (["--at", "2030-01-01", "--delay", "1s"], "not both"),
        (["--delay", "1000w"], "ten years"),
        (["--ttl", "0"], "ttl"),
    ],
)
def test_bad_times_are_one_line(helio: Helio, options: list[str], complaint: str) -> None:
    assert complaint in one_line_error(helio("pub", "alerts", "x", *options), 2)


def test_cancel_takes_back_and_tells_what_it_did_not_find(helio: Helio) -> None:
    made = lines(helio("pub", "alerts", "1", "--delay", "1h", "--json"))[0]["id"]
    assert "nothing-like-it" in one_line_error(helio("schedule", "cancel", made, "nothing-like-it"), 3)
    assert "not waiting" in one_line_error(helio("schedule", "cancel", "\udcff"), 3)  # an argument that is no UTF-8
    assert "no message" in one_line_error(helio("schedule", "show", "\udcff"), 3)
    assert helio("schedule", "count").stdout == "0\n"
    assert "nothing waits" in helio("schedule", "list").stderr


def test_a_table_for_people(helio: Helio, station: hg.Station) -> None:
    station.publish("alerts", 1, delay=3600, key="cpu")
    header, row = helio("schedule", "list").stdout.splitlines()
    assert header.split() == ["CHANNEL", "DUE", "IN", "KEY", "ID", "STATE"]
    assert row.split()[0] == "alerts"
    assert "cpu" in row
    assert row.endswith("waiting")


def test_recurring_schedules_are_made_listed_shown_and_removed(helio: Helio) -> None:
    assert helio("init").exit_code == 0
    made = helio("schedule", "add", "nightly", "reports", '{"n": 1}', "--cron", "0 3 * * *", "--timezone", "UTC")
    assert made.stdout.startswith("nightly publishes to reports, next at 20")
    (found,) = json.loads(helio("schedule", "recurring", "--json").stdout)
    assert (found["name"], found["channel"], found["cron"], found["missed"]) == (
        "nightly",
        "reports",
        "0 3 * * *",
        "one",
    )
    assert "nightly" in helio("schedule", "recurring").stdout
    assert json.loads(helio("schedule", "show", "nightly", "--json").stdout) == found
    assert "0 3 * * *" in helio("schedule", "show", "nightly").stdout
    assert helio("schedule", "remove", "nightly").stdout == "removed nightly\n"
    one_line_error(helio("schedule", "remove", "nightly"), 3)
    one_line_error(helio("schedule", "show", "nightly"), 3)
    assert "no recurring" in helio("schedule", "recurring").stderr


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["add", "n", "reports", "x", "--cron", "whenever"], 2),
        (["add", "n", "reports", "x", "--cron", "* * * * *", "--timezone", "Mars"], 2),
        (["add", "../n", "reports", "x", "--cron", "* * * * *"], 2),
        (["add", "n", "reports", "x"], 2),
    ],
)
def test_bad_schedules_are_one_line(helio: Helio, arguments: list[str], code: int) -> None:
    assert helio("init").exit_code == 0
    one_line_error(helio("schedule", *arguments), code)
