"""Patterns and filters on the command line."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

import heliograph as hg
from tests.cli.harness import Child, Helio, lines, one_line_error


def test_read_prints_all_channels_of_a_pattern_in_the_order_of_time(helio: Helio, station: hg.Station) -> None:
    for n in range(9):
        station.publish(f"sensors.{n % 3}", n)
    station.publish("other", "never")
    assert [message["data"] for message in lines(helio("read", "sensors.>", "--json"))] == list(range(9))
    table = helio("read", "sensors.*")
    assert table.exit_code == 0
    assert table.stdout.splitlines()[0].split() == ["CHANNEL", "OFFSET", "TIME", "KEY", "TYPE", "DATA"]
    assert table.stdout.splitlines()[2].split()[0] == "sensors.1"
    assert helio("read", "nothing.>").exit_code == 0


def test_sub_hears_channels_that_another_process_makes(
    data: Path, station: hg.Station, spawn: Callable[..., Child]
) -> None:
    station.publish("sensors.a", "old")
    child = spawn("sub", "sensors.>", "--name", "archive", "--json")
    assert "subscribed to sensors.> as archive (1 channel now), 0 messages waiting" in child.stderr.readline()
    station.publish("sensors.b.c", 1)
    heard = json.loads(child.stdout.readline())
    assert (heard["channel"], heard["data"]) == ("sensors.b.c", 1)
    station.delete_channel("sensors.a")
    station.publish("sensors.d", 2)
    assert json.loads(child.stdout.readline())["data"] == 2
    child.signal(signal.SIGTERM)
    code, _, said = child.end()
    assert code == 0
    assert "2 messages delivered" in said
    assert {info.channel for info in station.subscriptions()} == {"sensors.b.c", "sensors.d"}


def test_sub_counts_messages_of_all_channels(helio: Helio, station: hg.Station) -> None:
    for channel in "abc":
        station.publish_many(f"sensors.{channel}", range(3))
    found = lines(helio("sub", "sensors.*", "--start", "first", "--count", 5, "--json"))
    assert len(found) == 5


def test_failing_commands_of_several_channels_are_counted_once_each(helio: Helio, station: hg.Station) -> None:
    for channel in "abcde":
        station.publish_many(f"sensors.{channel}", [1, 2])
    result = helio(
        "sub", "sensors.*", "--start", "first", "--name", "x", "--exec", "false", "--count", 3, "--max-retries", 2
    )
    assert result.exit_code == 0, result.output
    assert "3 dead letters" in result.stderr


@pytest.mark.parametrize("command", ["read", "sub"])
def test_conditions_on_the_envelope_are_a_filter(helio: Helio, station: hg.Station, command: str) -> None:
    for n in range(8):
        region = {"region": "eu"} if n % 2 else None
        station.publish("alerts", n, key=None if n % 4 == 1 else f"k{n}", type=f"t{n % 3}.v1", headers=region)
    for conditions, expected in (
        (["region=eu"], [1, 3, 5, 7]),
        (["region!=eu"], [0, 2, 4, 6]),
        (["has:key", "region=eu"], [3, 7]),
        (["key=null"], [1, 5]),
        (["type~^t1"], [1, 4, 7]),
        (["time>2020-01-01", "id~-", "source=host1", "channel=alerts", "type!=t0.v1"], [1, 2, 4, 5, 7]),
    ):
        arguments = [word for condition in conditions for word in ("--where", condition)]
        counted = ["--start", "first", "--count", len(expected)] if command == "sub" else []
        found = lines(helio(command, "alerts", "--json", *counted, *arguments))
        assert [message["data"] for message in found] == expected, conditions


def test_read_tests_the_payload_after_the_envelope(helio: Helio, station: hg.Station) -> None:
    for n in range(6):
        station.publish("alerts", {"level": n}, key=f"k{n % 2}")
    found = lines(helio("read", "alerts", "--json", "--where", "data.level>=2", "--where", "key=k1"))
    assert [message["data"]["level"] for message in found] == [3, 5]
    assert [m["offset"] for m in lines(helio("read", "alerts", "--json", "--where", "offset<2"))] == [0, 1]


def test_sub_says_that_it_cannot_look_at_the_payload(helio: Helio, station: hg.Station) -> None:
    result = helio("sub", "alerts", "--where", "data.level>3")
    assert result.exit_code == 2
    assert "cannot look at the payload" in result.stderr


def test_a_wildcard_is_forgotten_with_its_positions(helio: Helio, station: hg.Station) -> None:
    station.publish("sensors.a", 1)
    station.subscribe("sensors.>", print, name="archive").close()
    assert helio("subscriptions", "forget", "sensors.>", "archive").exit_code == 0
    assert station.subscriptions() == []
    one_line_error(helio("subscriptions", "forget", "sensors.>", "archive"), 3)


@pytest.mark.parametrize("text", ["../*", "a*", "sensors.>.temp", "*..b", "/>"])
def test_bad_patterns_are_refused(helio: Helio, station: hg.Station, text: str) -> None:
    for command in (("read", text), ("sub", text), ("subscriptions", "forget", text, "x")):
        assert "is not a pattern" in one_line_error(helio(*command), 2)


@pytest.mark.parametrize("command", [("pub", "a.*", "x"), ("channels", "create", "a.>"), ("channels", "delete", "a.>")])
def test_commands_that_mean_one_channel_take_no_pattern(
    helio: Helio, station: hg.Station, command: tuple[str, ...]
) -> None:
    assert "is not a channel name" in one_line_error(helio(*command), 2)
