from __future__ import annotations

import json
from pathlib import Path

import yaml

from heliograph import config
from tests.cli.harness import Helio, one_line_error


def test_show_prints_what_applies_as_a_file_that_says_the_same(helio: Helio, tmp_path: Path) -> None:
    shown = helio("config", "show", env={"HELIOGRAPH_STORAGE_RETENTION_AGE_S": "7d"}).stdout
    assert yaml.safe_load(shown)["storage"]["retention_age_s"] == "7d"
    file = tmp_path / "heliograph.yaml"
    file.write_text(shown)
    assert config.load(file, env={}).storage.retention_age_s == 604_800
    assert json.loads(helio("config", "show", "--json", "-c", file).stdout)["storage"]["retention_age_s"] == 604_800


def test_validate_tells_right_from_wrong(helio: Helio, tmp_path: Path) -> None:
    good, bad = tmp_path / "good.yaml", tmp_path / "bad.yaml"
    good.write_text("storage:\n  durability: interval\n")
    bad.write_text("storage:\n  durabilty: interval\n")
    assert helio("config", "validate", good).stdout == f"{good}: valid\n"
    result = helio("config", "validate", bad)
    assert result.exit_code == 1
    assert "storage.durability" in result.stdout
    assert json.loads(helio("config", "validate", bad, "--json").stdout)["valid"] is False
    assert helio("config", "validate", "-c", bad).exit_code == 1
    for wrong in ("name: two words", 'service: "two\\nlines"'):
        bad.write_text(wrong)
        result = helio("config", "validate", bad)
        assert result.exit_code == 1
        assert "two" in result.stdout


def test_describe_explains_settings(helio: Helio) -> None:
    everything = helio("config", "describe").stdout
    assert all(setting.env in everything for setting in config.describe())
    (one,) = json.loads(helio("config", "describe", "storage.durability", "--json").stdout)
    assert (one["default"], one["env"]) == ("always", "HELIOGRAPH_STORAGE_DURABILITY")
    assert "storage.durability" in helio("config", "describe", "storage").stdout
    one_line_error(helio("config", "describe", "nonsense"), 3)


def test_a_configuration_file_that_is_not_there_is_not_found(helio: Helio, tmp_path: Path) -> None:
    for name in ("nofile", "nofile.yaml"):
        assert name in one_line_error(helio("--config", tmp_path / name, "stats"), 3)
    (tmp_path / "settings").write_text("storage: {}")
    assert "ends neither" in one_line_error(helio("--config", tmp_path / "settings", "stats"), 2)
    (tmp_path / "settings.yaml").write_bytes(b"name: \xff")
    assert "cannot read" in one_line_error(helio("--config", tmp_path / "settings.yaml", "stats"), 2)
