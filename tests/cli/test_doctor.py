from __future__ import annotations

import json
from pathlib import Path

import heliograph as hg
from tests.cli.harness import Helio


def test_a_station_is_examined_and_found_well(helio: Helio, station: hg.Station) -> None:
    result = helio("doctor", "--json")
    report = json.loads(result.stdout)
    bad = [finding for finding in report["findings"] if finding["status"] == "bad"]
    assert (report["ok"], result.exit_code) == (not bad, 1 if bad else 0)
    assert {finding["status"] for finding in report["findings"]} <= {"ok", "warn", "bad"}
    shown = helio("doctor").stdout
    assert all(finding["name"] in shown for finding in report["findings"])


def test_a_directory_may_be_examined_before_a_station_is_made_there(helio: Helio, data: Path) -> None:
    assert json.loads(helio("doctor", "--json").stdout)["findings"]
    assert not data.exists()


def test_what_is_bad_is_exit_code_1_with_advice(helio: Helio, data: Path) -> None:
    data.write_text("a file where a directory should be")
    result = helio("doctor", "--json")
    assert result.exit_code == 1
    assert [
        finding for finding in json.loads(result.stdout)["findings"] if finding["status"] == "bad" and finding["advice"]
    ]
