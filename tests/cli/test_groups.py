"""``helio groups``, and ``--partition`` wherever it is."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import heliograph as hg
from tests.cli.harness import Child, Helio, one_line_error
from tests.delivery.harness import eventually
from tests.spread import fill, put


@pytest.fixture
def readings(station: hg.Station) -> hg.Station:
    station.create_channel("readings", partitions=3)
    fill(station, "readings", 3, 9)
    return station


def test_channels_are_made_and_grow_with_partitions(helio: Helio, station: hg.Station) -> None:
    result = helio("channels", "create", "readings", "--partitions", 4)
    assert "4 partitions" in result.stdout
    assert json.loads(helio("channels", "alter", "readings", "--partitions", 8, "--json").stdout)["partitions"] == 8
    assert "cannot shrink" in one_line_error(helio("channels", "alter", "readings", "--partitions", 2), 2)
    assert "1 to 1024" in one_line_error(helio("channels", "create", "many", "--partitions", 10_000), 2)
    assert station.channel("readings").partitions == 8


def test_a_channel_is_shown_with_its_partitions(helio: Helio, readings: hg.Station) -> None:
    put(readings, "readings", 2, "more")
    shown = helio("channels", "show", "readings").stdout
    assert "PARTITION" in shown
    assert [part["next"] for part in json.loads(helio("channels", "show", "readings", "--json").stdout)["parts"]] == [
        3, 3, 4,
    ]  # fmt: skip
    heading, row = helio("channels", "list").stdout.splitlines()
    assert heading.split()[:3] == ["CHANNEL", "PARTITIONS", "MESSAGES"]
    assert row.split()[:3] == ["readings", "3", "10"]


def test_read_all_partitions_or_one(helio: Helio, readings: hg.Station) -> None:
    lines = [json.loads(line) for line in helio("read", "readings", "--json").stdout.splitlines()]
    assert [line["data"] for line in lines] == list(range(9))
    one = helio("read", "readings", "--partition", 1, "--start", 1, "--json").stdout.splitlines()
    assert [json.loads(line)["data"] for line in one] == [4, 7]
    heading, first, *_ = helio("read", "readings").stdout.splitlines()
    assert heading.split()[0] == "PLACE"
    assert first.split()[0] == "0/0"
    assert "needs a partition" in one_line_error(helio("read", "readings", "--start", 1), 2)
    assert "0 to 2" in one_line_error(helio("read", "readings", "--partition", 3), 3)


def test_export_one_partition(helio: Helio, readings: hg.Station) -> None:
    lines = helio("export", "readings", "--partition", 2).stdout.splitlines()
    assert [json.loads(line)["data"] for line in lines] == [2, 5, 8]


def test_subscriptions_are_listed_and_moved_by_partition(helio: Helio, readings: hg.Station) -> None:
    readings.subscribe("readings", print, name="web", paused=True).close()
    assert len(json.loads(helio("subscriptions", "list", "--json").stdout)) == 3
    moved = helio("subscriptions", "seek", "readings", "web", "--to", "first", "--dry-run").stdout
    assert "would move web of readings in 3 partitions: delivers 9 messages again, 9 messages waiting" in moved
    assert "PARTITION" in moved
    one = helio("subscriptions", "seek", "readings", "web", "--to", "1", "--partition", "2").stdout
    assert "from offset 3 to 1" in one
    assert [info.offset for info in readings.subscriptions()] == [3, 3, 1]
    assert "in 3 partitions, 2 waiting" in helio("subscriptions", "forget", "readings", "web").stdout


def test_groups_show_who_works_on_what(helio: Helio, readings: hg.Station) -> None:
    assert json.loads(helio("groups", "list", "--json").stdout) == []
    with readings.subscribe("readings", print, name="sums", group=True, start="first", paused=True) as worker:
        eventually(lambda: readings.groups()[0].members[0].partitions == [0, 1, 2])
        heading, row = helio("groups", "list", "readings").stdout.splitlines()
        assert heading.split() == ["CHANNEL", "GROUP", "WORKERS", "PARTITIONS", "IDLE", "LAG"]
        assert row.split() == ["readings", "sums", "1", "3", "0", "9"]
        shown = helio("groups", "show", "readings", "sums").stdout
        assert str(worker.worker) in shown
        assert "0, 1, 2" in shown
        info = json.loads(helio("groups", "show", "readings", "sums", "--json").stdout)
        assert {part["worker"] for part in info["partitions"]} == {worker.worker}
    assert "nobody" in helio("groups", "show", "readings", "sums").stdout
    one_line_error(helio("groups", "show", "readings", "nothing"), 3)
    one_line_error(helio("groups", "list", "nothing"), 3)


def test_sub_works_for_a_group(spawn: Callable[..., Child], helio: Helio, readings: hg.Station, data: Path) -> None:
    workers = [spawn("sub", "readings", "--name", "sums", "--group", "--start", "first") for _ in range(2)]
    eventually(lambda: readings.groups() and sum(len(one.partitions) for one in readings.groups()[0].members) == 3)
    eventually(lambda: readings.groups()[0].lag == 0)
    assert [child.process.poll() for child in workers] == [None, None]
    assert "--name" in one_line_error(helio("sub", "readings", "--group"), 2)
