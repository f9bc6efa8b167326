"""``helio pipeline`` without a Spark: what is listed, shown, refused; the runs are in tests/spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import heliograph as hg
from heliograph.spark.pipelines import Result, running, state
from heliograph.spark.pipelines.finding import find
from heliograph.spark.pipelines.run import Progress
from tests.cli.harness import Helio, error_without, lines, one_line_error

YAML = """
name: large
help: Orders that somebody should look at.
inputs: {orders: orders}
sql: SELECT key, data FROM orders WHERE offset > :above
options: [{name: above, help: Only orders above this., kind: number, default: 10}]
output: {kind: channel, to: orders.large}
"""


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "orders.yaml"
    path.write_text(YAML)
    return str(path)


def test_built_in_and_own_pipelines_are_listed_and_shown(helio: Helio, file: str) -> None:
    (found,) = lines(helio("pipeline", "list", "--file", file, "--json"))
    named = {one["name"]: one for one in found}
    assert {"archive", "compact", "replay", "large"} <= named.keys()
    assert named["large"]["output"]["to"] == "orders.large"
    shown = helio("pipeline", "show", "large", "--file", file).output
    assert "orders = orders" in shown
    assert "--above" in shown


def test_files_can_be_configured(helio: Helio, file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HELIOGRAPH_PIPELINES_FILES", file)
    assert "orders.large" in helio("pipeline", "list").output


@pytest.mark.usefixtures("station")
def test_options_of_a_pipeline_are_options_of_its_command(
    helio: Helio, file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []

    def run(pipeline: Any, options: Any, path: Path, how: Any, listener: Any) -> Result:
        seen.append((pipeline.name, options, how))
        for _ in range(3):  # what is not new is not told
            listener.progress(Progress(rows=7, rows_per_s=3.5, lag=2, watermark="2026-11-16T08:00:00Z"))
        return Result({"t": [{"n": 1, "text": "a"}, {"n": 2, "text": "b"}]}, {"rows": 7})

    monkeypatch.setattr(running, "run", run)
    for place in (
        ["--file", file, "large"],
        ["large", "--file", file],
        ["large", f"--file={file}"],
        ["large", f"-f{file}"],
    ):
        result = helio("pipeline", "run", *place, "--above", "12", "--trigger", "1 second", "--set", "spark.x=y")
        assert result.exit_code == 0, result.output
    assert [(name, options, how.trigger, how.settings) for name, options, how in seen] == [
        ("large", {"above": 12}, "1 second", {"spark.x": "y"})
    ] * 4
    assert result.stderr == "large: 7 rows, 4/s, 2 behind, watermark 2026-11-16T08:00:00Z\n"
    assert "N  TEXT" in result.stdout
    (told,) = lines(helio("pipeline", "run", "large", "--file", file, "--json"))
    assert told == {
        "pipeline": "large",
        "facts": {"rows": 7},
        "tables": {"t": [{"n": 1, "text": "a"}, {"n": 2, "text": "b"}]},
    }
    helio("pipeline", "run", "archive", "--file-bytes", "1MiB", "--channel", "a,b")
    assert seen[-1][1] == {"channel": "a,b", "to": None, "file_bytes": 1 << 20, "step_bytes": 1 << 30}
    assert "not a size" in one_line_error(helio("pipeline", "run", "archive", "--file-bytes", "big"), 2)
    assert "did you mean 'archive'" in one_line_error(helio("pipeline", "run", "archiv"), 3)


@pytest.mark.usefixtures("station")
def test_without_java_there_is_one_clear_line(helio: Helio, file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    result = helio("pipeline", "run", "large", "--file", file)
    assert "Spark needs Java 17 or newer" in one_line_error(result, 2)
    assert "failed" in helio("pipeline", "status").output


@pytest.mark.usefixtures("station")
def test_without_the_packages_of_connect_there_is_one_clear_line(data: Path, file: str) -> None:
    args = ["-d", data, "pipeline", "run", "large", "--file", file, "--remote", "sc://localhost:1"]
    error = error_without("grpc", *args, code=2)
    assert "pip install 'heliograph[connect]'" in error


def test_status_and_stop_from_another_process(helio: Helio, station: hg.Station, data: Path) -> None:
    assert "is not running" in one_line_error(helio("pipeline", "stop", "archive"), 3)
    assert "was never run" in one_line_error(helio("pipeline", "status", "archive"), 3)
    one = find("archive")
    with state.lease(data, "archive") as place:
        teller = state.Teller(place, one, trigger="1 second", output=one.output, checkpoint=None)
        teller.tell(state="running", progress=Progress(rows=7, lag=3))
        (found,) = lines(helio("pipeline", "status", "archive", "--json"))
        assert (found["state"], found["progress"]["lag"]) == ("running", 3)
        assert helio("pipeline", "stop", "archive", "--timeout", "0").exit_code == 0
        assert state.asked_to_stop(place)
        assert "still at something" in one_line_error(helio("pipeline", "stop", "archive", "--timeout", "200ms"), 4)
    killed = helio("pipeline", "status")
    assert (killed.exit_code, "killed" in killed.output) == (1, True)


def test_a_pipeline_needs_a_station(helio: Helio, file: str) -> None:
    assert "helio init" in one_line_error(helio("pipeline", "run", "large", "--file", file), 3)


def test_a_master_that_spark_does_not_know_is_used_wrongly(helio: Helio, station: hg.Station, file: str) -> None:
    station.publish("orders", {"total": 250})
    checkpoint = station.path / "pipelines" / "large" / "checkpoint"
    checkpoint.mkdir(parents=True)
    for wrong in (["run", "large", "--reset"], ["run", "types"], ["explain", "large"]):
        said = helio("pipeline", *wrong, "--file", file, "--master", "nonsense")
        assert "Spark knows no master 'nonsense': use local[*]" in one_line_error(said, 2)
    assert checkpoint.exists(), "nothing was set aside"
