"""``helio read`` and ``helio sub`` with patterns, filters and several partitions."""

from __future__ import annotations

from pathlib import Path

import heliograph as hg
from tests.cli.harness import Helio, lines


def fill(station: hg.Station, count: int = 12) -> None:
    station.create_channel("sensors.a", partitions=3)
    for number in range(count):
        channel = "sensors.a" if number % 2 else "sensors.b"
        station.publish(channel, number, key=f"k{number % 5}", type="wanted.v1" if number < 6 else "other.v1")


def test_tables_show_the_channel_for_patterns_and_the_place_for_partitions(helio: Helio, station: hg.Station) -> None:
    fill(station)
    header, *rows = helio("read", "sensors.*").stdout.splitlines()
    assert header.split() == ["CHANNEL", "PLACE", "TIME", "KEY", "TYPE", "DATA"]
    expected = [(one.channel, f"{one.partition}/{one.offset}") for one in station.read("sensors.*")]
    assert [tuple(row.split()[:2]) for row in rows] == expected
    assert helio("read", "sensors.a").stdout.split()[0] == "PLACE"
    assert helio("read", "sensors.b").stdout.split()[0] == "OFFSET"


def test_a_condition_and_a_partition_together(helio: Helio, station: hg.Station) -> None:
    fill(station)
    found = lines(helio("read", "sensors.a", "--partition", 1, "--where", "type=wanted.v1", "--json"))
    expected = [one.data for one in station.read("sensors.a", partition=1) if one.type == "wanted.v1"]
    assert [line["data"] for line in found] == expected


def test_a_partition_of_a_pattern_is_refused(helio: Helio, station: hg.Station) -> None:
    fill(station)
    result = helio("read", "sensors.*", "--partition", 1)
    assert result.exit_code == 2
    assert "belongs to one channel" in result.stderr


def test_count_ends_when_messages_of_several_partitions_were_tried_again(
    helio: Helio, station: hg.Station, tmp_path: Path
) -> None:
    station.create_channel("jobs", partitions=2)
    station.publish_many("jobs", [hg.Draft(data=number, key=f"k{number}") for number in range(20)])
    seen = f"{tmp_path}/seen-$HELIOGRAPH_PARTITION"
    script = f"test -e {seen} || {{ touch {seen}; exit 1; }}"  # the first message of each fails, once
    result = helio("sub", "jobs", "--name", "x", "--start", "first", "--count", 2, "--max-retries", 3, "--exec", script)
    assert result.exit_code == 0
    assert "2 messages delivered" in result.stderr
    assert sum(info.offset for info in station.subscriptions("jobs")) == 2
