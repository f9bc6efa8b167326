from __future__ import annotations

import json
from pathlib import Path

import pytest

import heliograph as hg
from tests.cli.harness import Helio, one_line_error


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    return tmp_path / "copy"


def test_a_backup_of_a_station_in_use_can_be_restored(
    helio: Helio, station: hg.Station, copy: Path, tmp_path: Path
) -> None:
    station.publish_many("numbers", range(100))
    assert "100 messages of 1 channel" in helio("backup", copy).stdout
    restored = json.loads(helio("restore", copy, tmp_path / "new", "--name", "host2", "--json").stdout)
    assert restored["name"] == "host2"
    with hg.open(tmp_path / "new", read_only=True) as other:
        assert [message.data for message in other.read("numbers")] == list(range(100))


def test_a_second_backup_copies_what_is_new(helio: Helio, station: hg.Station, copy: Path) -> None:
    station.publish_many("numbers", ["x" * 1_000] * 100)
    first = json.loads(helio("backup", copy, "--json").stdout)
    station.publish("numbers", "y")
    second = json.loads(helio("backup", copy, "--json").stdout)
    assert (first["incremental"], second["incremental"]) == (False, True)
    assert (second["messages"], second["copied_bytes"] < first["copied_bytes"] / 10) == (101, True)


def test_check_tells_a_whole_backup_from_a_damaged_one(helio: Helio, station: hg.Station, copy: Path) -> None:
    station.publish_many("numbers", range(100))
    helio("backup", copy)
    assert "is whole" in helio("backup", copy, "--check").stdout
    log = next((copy / "channels" / "numbers").rglob("*.jsonl"))
    log.write_bytes(log.read_bytes().replace(b'"data":7', b'"data":8', 1))
    result = helio("backup", copy, "--check", "--json")
    assert result.exit_code == 1
    assert json.loads(result.stdout)["ok"] is False


def test_restore_overwrites_nothing(helio: Helio, station: hg.Station, copy: Path, data: Path) -> None:
    station.publish("numbers", 1)
    helio("backup", copy)
    one_line_error(helio("restore", copy, data), 1)
    one_line_error(helio("restore", copy.parent / "nowhere", copy.parent / "new"), 3)
    assert not (copy.parent / "new").exists()


def test_a_backup_without_a_damaged_channel_says_so_with_its_exit_code(
    helio: Helio, station: hg.Station, copy: Path, data: Path
) -> None:
    station.publish("numbers", 1)
    station.publish("words", "one")
    (data / "channels" / "numbers" / "channel.json").write_bytes(b"{")
    result = helio("backup", copy, "--json")
    assert result.exit_code == 1
    assert json.loads(result.stdout)["left_out"] == ["numbers"]
    assert "channel 'numbers' was not backed up" in result.stderr
    assert "1 message of 1 channel" in helio("backup", copy).stdout
