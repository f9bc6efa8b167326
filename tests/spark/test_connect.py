"""Over Spark Connect: a real server, and ``helio`` in processes of its own, because a process has one Spark."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import heliograph as hg
from heliograph.errors import ConfigError, Unreachable
from heliograph.spark.pipelines.launch import launch
from tests.spark.daemons import ConnectServer, helio

pytest.importorskip("grpc")
pytestmark = pytest.mark.timeout(600)  # a loaded machine takes long to start Spark

COUNT = 300
FILE = """
pipelines:
  - name: totals
    help: What there is, by key, and the hour of the first as the session sees it.
    inputs: {numbers: numbers}
    sql: |
      SELECT key, count(*) AS messages, sum(CAST(get_json_object(data, '$.n') AS INT)) AS total,
             date_format(timestamp'2026-11-16 12:00:00 UTC', 'HH:mm') AS noon
      FROM numbers GROUP BY key ORDER BY key
  - name: copy
    help: Every message, once.
    inputs: {numbers: {channel: numbers, options: {maxMessagesPerTrigger: "100"}}}
    sql: SELECT data, key FROM numbers
    output: {kind: channel, to: copied}
  - name: nothing
    help: A channel that is not there.
    inputs: {numbers: missing}
    sql: SELECT data FROM numbers
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, java: str) -> Iterator[ConnectServer]:
    made = ConnectServer(tmp_path_factory.mktemp("connect"))
    yield made
    made.close()


@pytest.fixture
def data(tmp_path: Path) -> Path:
    (tmp_path / "all.yaml").write_text(FILE)
    with hg.open(tmp_path / "data", name="host1", durability="os") as station:
        station.publish_many("numbers", [hg.Draft(data={"n": n}, key=f"k{n % 3}") for n in range(COUNT)])
    return tmp_path / "data"


class Runs:
    """``helio pipeline run NAME --remote …``."""

    def __init__(self, place: Path, data: Path, server: ConnectServer) -> None:
        self._place, self._data, self._server = place, data, server
        self._count = 0

    def __call__(self, name: str, *more: str, code: int = 0) -> tuple[str, str]:
        self._count += 1
        args = ["pipeline", "run", name, "--file", str(self._place / "all.yaml"), "--remote", self._server.url, *more]
        with helio(self._place / f"run-{self._count}", self._data, *args) as process:
            found, out, error = process.end(300)
        assert found == code, error
        assert "Traceback" not in error
        return out, error

    def refused(self, name: str, *more: str, code: int) -> str:
        _, error = self(name, *more, code=code)
        (said,) = [line for line in error.splitlines() if line.startswith("error: ")]
        return said


@pytest.fixture
def run(tmp_path: Path, data: Path, server: ConnectServer) -> Runs:
    return Runs(tmp_path, data, server)


def copied(data: Path) -> Counter[int]:
    with hg.open(data, read_only=True) as station:
        return Counter(message.data["n"] for message in station.read("copied"))


def test_a_table_over_connect_in_utc(run: Runs) -> None:
    out, _ = run("totals", "--json")
    assert json.loads(out)["tables"]["totals"] == [
        {"key": f"k{n}", "messages": 100, "total": sum(range(n, COUNT, 3)), "noon": "12:00"} for n in range(3)
    ]


def test_a_stream_over_connect_reaches_a_channel_once_and_goes_on(run: Runs, data: Path) -> None:
    out, error = run("copy")
    assert out.split() == ["rows", str(COUNT)]
    assert "300 rows, " in error
    assert ", 0 behind" in error
    with hg.open(data) as station:
        station.publish("numbers", {"n": COUNT})
    assert run("copy")[0].split() == ["rows", "1"]
    assert copied(data) == Counter(range(COUNT + 1))


@pytest.mark.prove
def test_built_in_pipelines_run_over_connect(run: Runs, data: Path) -> None:
    import pyarrow.dataset as ds

    out, _ = run("archive", "--json")
    files = ds.dataset([str(path) for path in (data / "archive" / "channel=numbers").rglob("*.parquet")])
    numbers = [json.loads(text)["n"] for text in files.to_table(["data"])["data"].to_pylist()]
    assert sorted(numbers) == list(range(COUNT))
    assert json.loads(out)["pipeline"] == "archive"


@pytest.mark.prove
@pytest.mark.parametrize("name", ["types", "rollup", "triage", "report", "compact"])
def test_every_other_built_in_pipeline_runs_over_connect(run: Runs, data: Path, name: str) -> None:
    more = {"rollup": ["--trigger", "batch", "--to", "table"], "report": ["--output", str(data / "report.html")]}
    run(name, *more.get(name, []))


@pytest.mark.prove
def test_rows_reach_a_delta_table_over_connect(run: Runs, data: Path) -> None:
    deltalake = pytest.importorskip("deltalake")
    run("copy", "--to", "delta:out/delta")
    assert deltalake.DeltaTable(data / "out" / "delta").count() == COUNT


def test_what_cannot_work_over_connect_is_refused_in_a_line(run: Runs) -> None:
    assert "prints tables here" in run.refused("copy", "--to", "console", code=2)
    said = run.refused("copy", "--set", "spark.executor.memory=1g", code=2)
    assert "spark.executor.memory cannot be set for sc://" in said
    assert "there is no channel 'missing'" in run.refused("nothing", code=3)


# -- without a server -------------------------------------------------------------------------------------------------


def launched(**how: Any) -> Any:
    return launch("x", settings={}, log=None, **{"master": None, "remote": None, **how})


def test_a_server_that_is_not_there_is_said_at_once() -> None:
    with pytest.raises(Unreachable, match=r"no Spark Connect server at sc://127.0.0.1:1 \(Connection refused\)"):
        launched(remote="sc://127.0.0.1:1")
    with pytest.raises(Unreachable, match=r"no Spark master at spark://127.0.0.1:1,127.0.0.1:2 \(Connection refused\)"):
        launched(master="spark://127.0.0.1:1,127.0.0.1:2")
    with pytest.raises(ConfigError, match="is spark://HOST"):
        launched(master="spark://")
    for wrong in ("spark://127.0.0.1", "sc://", "127.0.0.1:15002", "sc://host:port"):
        with pytest.raises(ConfigError, match="is sc://HOST"):
            launched(remote=wrong)
    with pytest.raises(ConfigError, match="leave out one"):
        launched(remote="sc://127.0.0.1:1", master="local[1]")


def test_a_master_that_spark_does_not_know_is_said_before_java_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    for wrong in (
        "nonsense",
        "",
        "local[]",
        "local[0]",
        "local[two]",
        "local[٢]",
        "k8s://",
        "yarn-client",
        "sc://host",
    ):
        with pytest.raises(
            ConfigError, match=re.escape(f"no master {wrong!r}: use local[*], spark://HOST:7077, yarn or")
        ):
            launched(master=wrong)
    for right in (
        "local",
        "local[*]",
        "local[4]",
        "local[4, 2]",
        "local-cluster[1,1,1024]",
        "yarn",
        "k8s://https://host",
    ):
        with pytest.raises(ConfigError, match="needs Java"):
            launched(master=right)
    with pytest.raises(ConfigError, match="no master 'nonsense'"):
        launch("x", settings={"spark.master": "nonsense"}, log=None, master=None, remote=None)
