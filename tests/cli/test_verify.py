from __future__ import annotations

import json

import heliograph as hg
from tests.cli.harness import Helio, one_line_error


def damage(station: hg.Station, channel: str, offset: int) -> None:
    """Change a byte of one line on disk."""
    path = next((station.path / "channels" / channel / "0").glob("*.jsonl"))
    lines = path.read_bytes().splitlines(keepends=True)
    lines[offset] = lines[offset].replace(b'"data"', b'"dbta"')
    path.write_bytes(b"".join(lines))


def test_what_is_whole_is_ok(helio: Helio, station: hg.Station) -> None:
    station.publish_many("numbers", range(100))
    result = helio("verify")
    assert result.exit_code == 0
    assert "ok: 100 lines" in result.stdout
    report = json.loads(helio("verify", "numbers", "--json").stdout)
    assert (report["ok"], report["lines"], report["damaged"]) == (True, 100, 0)


def test_damage_is_exit_code_1_and_said_to_the_offset(helio: Helio, station: hg.Station) -> None:
    station.publish_many("numbers", range(100))
    damage(station, "numbers", 41)
    result = helio("verify")
    assert result.exit_code == 1
    assert "numbers: offset 41 is lost" in result.stdout
    assert "helio verify --repair" in result.stdout
    assert json.loads(helio("verify", "--json").stdout)["damaged"] == 1


def test_repair_sets_damage_aside_and_then_all_is_well(helio: Helio, station: hg.Station) -> None:
    station.publish_many("numbers", range(100))
    damage(station, "numbers", 41)
    station.close()
    result = helio("verify", "--repair")
    assert result.exit_code == 0, result.output
    assert "1 message lost to damage" in result.stdout
    assert "set aside in quarantine/" in result.stdout
    assert helio("verify", "--quiet").output == ""
    assert len(helio("read", "numbers", "--json").stdout.splitlines()) == 99


def test_an_unknown_channel_is_not_found(helio: Helio, station: hg.Station) -> None:
    one_line_error(helio("verify", "nothing"), 3)


def test_a_log_whose_files_are_all_gone_is_told_and_repaired(helio: Helio, station: hg.Station) -> None:
    station.publish_many("numbers", range(100))
    station.close()
    log = station.path / "channels" / "numbers" / "0"
    (log / "00000000000000000000.jsonl").unlink()
    (log / "head").unlink()  # or not to be trusted, as after a restart of the machine
    assert helio("stats").exit_code == 0
    result = helio("verify")
    assert result.exit_code == 1
    assert "says the active segment is 0, which is not there" in result.stdout
    assert helio("verify", "--repair").exit_code == 0
    assert helio("verify").exit_code == 0
