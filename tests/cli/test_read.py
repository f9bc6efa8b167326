from __future__ import annotations

import json
from pathlib import Path

import pytest

import heliograph as hg
from tests.cli.harness import Child, Helio, lines, one_line_error


@pytest.fixture
def numbers(station: hg.Station) -> list[hg.Receipt]:
    return station.publish_many("numbers", [{"n": n} for n in range(10)], type="com.example.number.v1")


def read(helio: Helio, *args: object) -> list[int]:
    result = helio("read", "numbers", "--json", *args)
    assert result.exit_code == 0, result.stderr
    return [message["data"]["n"] for message in lines(result)]


def test_start_end_and_limit_choose_a_range(helio: Helio, numbers: list[hg.Receipt]) -> None:
    assert read(helio) == list(range(10))
    assert read(helio, "--start", 7) == [7, 8, 9]
    assert read(helio, "--start", 2, "--end", 5) == [2, 3, 4]
    assert read(helio, "--limit", 2) == [0, 1]
    assert read(helio, "--start", "new") == []
    assert read(helio, "--start", "-5m") == list(range(10))
    assert read(helio, "--start", "2099-01-01T00:00:00Z") == []
    assert read(helio, "--end", "2020-01-01T00:00:00Z") == []


def test_where_keeps_what_fits(helio: Helio, numbers: list[hg.Receipt]) -> None:
    assert read(helio, "--where", "data.n>=3", "--where", "data.n<5") == [3, 4]
    assert read(helio, "--where", "type=com.example.other.v1") == []
    assert read(helio, "--where", "data.n>=3", "--limit", 2) == [3, 4]
    one_line_error(helio("read", "numbers", "--where", "nonsense"), 2)


def test_raw_is_what_is_stored(helio: Helio, numbers: list[hg.Receipt], data: Path) -> None:
    stored = b"".join(path.read_bytes() for path in (data / "channels/numbers/0").glob("*.jsonl"))
    assert helio("read", "numbers", "--format", "raw").stdout_bytes == stored


def test_the_table_is_plain_and_uncut_when_nobody_watches(helio: Helio, station: hg.Station) -> None:
    station.publish("alerts", "x" * 500, key="cpu", type="com.example.a-rather-long-name-of-a-type.v1")
    heading, row = helio("read", "alerts").stdout.splitlines()
    assert heading.split() == ["OFFSET", "TIME", "KEY", "TYPE", "DATA"]
    assert "com.example.a-rather-long-name-of-a-type.v1" in row
    assert row.endswith("x" * 500)


def test_no_messages_is_said_and_is_no_error(helio: Helio, station: hg.Station) -> None:
    station.create_channel("empty")
    result = helio("read", "empty")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "no messages\n")


def test_follow_shows_what_comes(data: Path, station: hg.Station, spawn: type[Child]) -> None:
    station.publish("alerts", 0)
    child = spawn("read", "alerts", "--follow", "--json", "--limit", "3")
    for n in range(3):
        assert json.loads(child.stdout.readline())["data"] == n
        station.publish("alerts", n + 1)
    assert child.end()[0] == 0


def test_a_start_that_is_none_is_refused(helio: Helio, numbers: list[hg.Receipt]) -> None:
    assert "'first', 'new'" in one_line_error(helio("read", "numbers", "--start", "yesterday"), 2)


def test_get_finds_a_message_by_its_id(helio: Helio, numbers: list[hg.Receipt]) -> None:
    wanted = numbers[4]
    assert json.loads(helio("get", wanted.id, "--json").stdout)["offset"] == 4
    shown = helio("get", wanted.id, "--channel", "numbers").stdout
    assert wanted.id in shown
    assert '"n": 4' in shown


@pytest.mark.parametrize("unknown", ["0193315c-7a5e-7c41-a0a4-2f7f6d1c9e55", "\udcff"])  # the latter: no UTF-8
def test_get_of_an_unknown_id_is_exit_code_1(helio: Helio, numbers: list[hg.Receipt], unknown: str) -> None:
    result = helio("get", unknown)
    assert (result.exit_code, result.stdout) == (1, "")
    assert "no message" in result.stderr


def test_redact_asks_first_and_then_takes_it_out(helio: Helio, numbers: list[hg.Receipt], station: hg.Station) -> None:
    wanted = numbers[4].id
    assert "--yes" in one_line_error(helio("redact", wanted, input=""), 1)
    assert "--yes" in one_line_error(helio("redact", wanted, input="n\n"), 1)
    assert station.get(wanted) is not None
    assert helio("redact", wanted, "--reason", "request 4711", input="y\n").exit_code == 0
    assert station.get(wanted) is None
    assert read(helio) == [0, 1, 2, 3, 5, 6, 7, 8, 9]
    assert "request 4711" in (station.path / "audit/audit.jsonl").read_text()


def test_redact_tells_of_another_message_with_the_same_id(
    helio: Helio, numbers: list[hg.Receipt], station: hg.Station
) -> None:
    wanted = numbers[4].id
    station.publish("a-copy", 4, id=wanted)
    first = helio("redact", wanted, "--yes")
    assert (first.exit_code, first.stdout) == (0, "redacted offset 0 of a-copy/0\n")
    assert f"helio redact {wanted} --channel {numbers[4].channel}" in first.stderr
    second = helio("redact", wanted, "--yes")
    assert (second.exit_code, second.stderr) == (0, "")
    assert station.get(wanted) is None


def test_redact_does_not_ask_when_told_so(helio: Helio, numbers: list[hg.Receipt]) -> None:
    assert json.loads(helio("redact", numbers[4].id, "--yes", "--json").stdout)["offset"] == 4
    one_line_error(helio("redact", numbers[4].id, "--yes"), 3)


@pytest.mark.parametrize("start", [f"-{'9' * 5000}s", f"-{'9' * 400}d"])
def test_an_age_of_very_many_digits_is_refused(helio: Helio, station: hg.Station, start: str) -> None:
    station.publish("alerts", 1)
    one_line_error(helio("read", "alerts", "--start", start), 2)


def test_an_offset_of_very_many_digits_is_one_that_is_not_reached(helio: Helio, station: hg.Station) -> None:
    station.publish("alerts", 1)
    assert not lines(helio("read", "alerts", "--start", "9" * 5000, "--json"))


def test_conditions_take_numbers_and_ages_of_any_length(helio: Helio, station: hg.Station) -> None:
    station.publish("alerts", {"n": [1], "age": "-999999999999999d"})
    nines = "9" * 5000
    for condition in (f"data.n.0<{nines}", f"data.n.{nines}!=1", "data.age<2026-11-15T20:30:00Z", f"time>-{nines}s"):
        assert len(lines(helio("read", "alerts", "--where", condition, "--json"))) == 1, condition
