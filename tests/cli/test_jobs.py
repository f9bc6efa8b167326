"""The built-in pipelines as commands, without a Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from heliograph.spark.pipelines import Result, running
from heliograph.spark.pipelines.finding import builtin
from tests.cli.harness import Helio, lines

SEEN = list[tuple[str, dict[str, Any]]]


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> SEEN:
    """What is run, and with which options, instead of running it."""
    found: SEEN = []

    def run(pipeline: Any, options: Any, path: Path, how: Any, listener: Any) -> Result:
        found.append((pipeline.name, dict(options)))
        return Result({"missing": [{"is_in": ["host1", "hub"]}]}, {"places": ["host1", "hub"]}, bad=True)

    monkeypatch.setattr(running, "run", run)
    return found


@pytest.mark.parametrize("name", sorted(builtin()))
def test_every_job_explains_itself_with_examples(helio: Helio, name: str) -> None:
    result = helio("pipeline", "run", name, "--help")
    assert result.exit_code == 0
    for option in builtin()[name].options:
        assert f"--{option.name.replace('_', '-')}" in result.output
    assert f"helio pipeline run {name}" in result.output


@pytest.mark.usefixtures("station")
def test_defaults_on_the_command_line_are_those_of_the_job(helio: Helio, seen: SEEN) -> None:
    for name, more in (("rollup", []), ("types", []), ("triage", []), ("reconcile", ["--also", "x"]), ("report", [])):
        helio("pipeline", "run", name, *more)
        assert seen[-1] == (name, builtin()[name].defaults() | ({"also": ("x",)} if more else {}))


@pytest.mark.usefixtures("station")
def test_report_is_short_for_running_it(helio: Helio, seen: SEEN) -> None:
    helio("pipeline", "report", "-o", "x.html", "--start", "-1d")
    assert seen == [("report", {"output": "x.html", "channel": ">", "start": "-1d", "title": None})]


@pytest.mark.usefixtures("station", "seen")
def test_bad_news_is_an_exit_code_and_lists_are_words(helio: Helio) -> None:
    result = helio("pipeline", "run", "reconcile", "--also", "hub")
    assert result.exit_code == 1
    assert result.output.count("host1, hub") == 2
    (told,) = lines(helio("pipeline", "run", "reconcile", "--also", "hub", "--json"))
    assert told["facts"] == {"places": ["host1", "hub"]}


@pytest.mark.usefixtures("station")
def test_the_tables_of_a_procedure_are_as_long_as_is_said(helio: Helio, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(pipeline: Any, options: Any, path: Path, how: Any, listener: Any) -> Result:
        return Result({"missing": [{"number": number} for number in range(8)]})

    monkeypatch.setattr(running, "run", run)
    result = helio("pipeline", "run", "reconcile", "--also", "hub", "--limit", "5")
    assert result.stdout.split() == ["NUMBER", *"01234"]
    assert result.stderr == "missing: only the first 5 rows; --limit shows more\n"
