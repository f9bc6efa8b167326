"""``helio pipeline``: triggers, outputs, plans and progress, as somebody sees them who runs it with a real Spark."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import heliograph as hg
from heliograph.cli.main import cli
from heliograph.spark.pipelines import state
from tests.cli.harness import lines, one_line_error

pytestmark = pytest.mark.timeout(600)  # a loaded machine takes long to start Spark

START = datetime(2026, 11, 15, 20, 30, tzinfo=UTC)
FILE = """
pipelines:
  - name: copy
    help: Every message, in steps.
    inputs: {numbers: {channel: numbers, options: {maxMessagesPerTrigger: "40"}}}
    sql: SELECT key, data FROM numbers
    output: {kind: channel, to: copied}
  - name: minutes
    help: How many in each minute.
    inputs: {numbers: {channel: numbers, options: {maxMessagesPerTrigger: "60"}}}
    watermark: {numbers: 10 seconds}
    sql: SELECT window.start AS minute, count(*) AS messages FROM numbers GROUP BY window(time, '1 minute')
    output: {kind: console}
  - name: totals
    help: How many by now, whenever that changes.
    inputs: {numbers: {channel: numbers, options: {maxMessagesPerTrigger: "60"}}}
    sql: SELECT to_json(struct(count(*) AS n)) AS data FROM numbers
    output: {kind: channel, to: copied, mode: update}
"""
Helio = Callable[..., Result]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    (tmp_path / "all.yaml").write_text(FILE)
    with hg.open(tmp_path / "data", name="host1", durability="os") as station:
        drafts = [hg.Draft(data={"n": n}, time=START + timedelta(seconds=2 * n)) for n in range(100)]
        station.publish_many("numbers", drafts)
    return tmp_path / "data"


@pytest.fixture
def helio(spark: Any, data: Path, tmp_path: Path) -> Iterator[Helio]:
    """A command in the process of the tests, and in their Spark."""
    zone = spark.conf.get("spark.sql.session.timeZone")

    def run(what: str, name: str, *more: str) -> Result:
        args = ["-d", str(data), "pipeline", what, name, "--file", str(tmp_path / "all.yaml"), *more]
        return CliRunner().invoke(cli, args)

    yield run
    spark.conf.set("spark.sql.session.timeZone", zone)


def numbers(data: Path) -> list[int]:
    with hg.open(data, read_only=True) as station:
        return [message.data["n"] for message in station.read("copied")]


def batches(data: Path, name: str) -> int:
    found = state.status(data, name)
    assert found is not None
    return found.progress.batches


@pytest.mark.parametrize(("trigger", "steps"), [("once", 1), ("available-now", 3), (None, 3)])
def test_a_trigger_takes_what_is_there_in_one_step_or_in_bounded_ones(
    helio: Helio, data: Path, trigger: str | None, steps: int
) -> None:
    result = helio("run", "copy", *([] if trigger is None else ["--trigger", trigger]))
    assert (result.exit_code, result.stdout.split()) == (0, ["rows", "100"]), result.output
    assert numbers(data) == list(range(100))
    assert batches(data, "copy") == steps
    assert helio("run", "copy", *([] if trigger is None else ["--trigger", trigger])).stdout.split() == ["rows", "0"]


def test_progress_tells_rows_rate_lag_and_watermark(helio: Helio) -> None:
    result = helio("run", "minutes")
    assert result.exit_code == 0, result.output
    told = [line for line in result.stderr.splitlines() if line.startswith("minutes: ")]
    for line in told:
        assert re.fullmatch(r"minutes: (60 rows, [\d,]+/s, 40|100 rows, [\d,]+/s, 0) behind(, watermark \S+)?", line)
    assert re.fullmatch(r"minutes: 100 rows, [\d,]+/s, 0 behind, watermark 2026-11-15T20:3\d:\d\d.000Z", told[-1])


def test_the_console_shows_the_rows_of_every_step(helio: Helio) -> None:
    result = helio("run", "minutes", "--limit", "5")
    assert result.exit_code == 0, result.output
    shown = [line.split() for line in result.stdout.splitlines()]
    assert ["MINUTE", "MESSAGES"] in shown
    assert [words[-1] for words in shown if words and words[0].startswith("2026-11-15")][:2] == ["30", "30"]
    assert "prints tables here" in one_line_error(helio("run", "minutes", "--json"), 2)
    said = one_line_error(helio("run", "minutes", "--trigger", "batch"), 2)
    assert "the console shows a stream" in said


def test_the_plan_is_shown_and_nothing_is_read_or_written(helio: Helio, data: Path) -> None:
    result = helio("explain", "minutes")
    assert result.exit_code == 0, result.output
    assert "== Physical Plan ==" in result.stdout
    assert "HashAggregate" in result.stdout
    assert "heliograph" in result.stdout
    (told,) = lines(helio("explain", "copy", "--json"))
    assert set(told["plans"]) == {"copy"}
    assert state.status(data, "minutes") is None
    with hg.open(data, read_only=True) as station:
        assert [info.name for info in station.channels()] == ["numbers"]


def test_rows_that_change_reach_a_channel_once_each_time_they_do(helio: Helio, data: Path) -> None:
    result = helio("run", "totals")
    assert result.exit_code == 0, result.output
    # Spark died after the last batch was published and before it noted that: it comes again.
    newest = max((data / "pipelines" / "totals" / "checkpoint" / "commits").glob("[0-9]*"), key=lambda path: path.name)
    newest.unlink()
    newest.with_name(f".{newest.name}.crc").unlink(missing_ok=True)
    assert helio("run", "totals").exit_code == 0
    assert numbers(data) == [60, 100]


def test_rows_of_a_stream_reach_files_once(helio: Helio, data: Path, spark: Any) -> None:
    for _ in range(2):
        assert helio("run", "copy", "--to", "parquet:out/rows").exit_code == 0
    rows = spark.read.parquet(str(data / "out" / "rows")).selectExpr("get_json_object(data, '$.n') AS n").collect()
    assert sorted(int(row.n) for row in rows) == list(range(100))
