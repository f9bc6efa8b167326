"""examples/declarative: Spark's own declarative pipelines, run as the example says."""

from __future__ import annotations

import os
import shutil
import socket
import sys
from pathlib import Path

import pytest

import heliograph as hg
from tests.spark.daemons import Process, environment

pytest.importorskip("grpc")
EXAMPLE = Path(__file__).parents[2] / "examples" / "declarative"
PLACE = "/tmp/heliograph-shop"
CONNECT = 15002  # where spark-pipelines starts its server


@pytest.fixture
def spec(tmp_path: Path, java: str) -> Path:
    with socket.socket() as taken:
        if taken.connect_ex(("127.0.0.1", CONNECT)) == 0:
            pytest.skip(f"somebody listens on port {CONNECT}")
    shutil.copytree(EXAMPLE, tmp_path / "example")
    for name in ("spark-pipeline.yaml", "spark-defaults.conf"):
        file = tmp_path / "example" / name
        assert PLACE in file.read_text()
        file.write_text(file.read_text().replace(PLACE, str(tmp_path)))
    return tmp_path / "example" / "spark-pipeline.yaml"


def run(place: Path, spec: Path) -> str:
    env = environment(
        PATH=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}", SPARK_CONF_DIR=str(spec.parent)
    )
    process = Process(place, [str(Path(env["SPARK_HOME"], "bin", "spark-pipelines")), "run", "--spec", str(spec)], env)
    try:
        code, out, error = process.end(300)
    finally:
        process.kill()
    assert code == 0, out + error
    return out + error


def order(station: hg.Station, customer: str, total: float) -> None:
    station.publish("orders", {"item": "lamp", "total": total}, key=customer)


def large(tmp_path: Path) -> list[tuple[str | None, float]]:
    with hg.open(tmp_path / "data", read_only=True) as station:
        return [(message.key, message.data["total"]) for message in station.read("orders.large")]


def totals(tmp_path: Path) -> list[tuple[str, float]]:
    import pyarrow.parquet as pq

    found = pq.read_table(tmp_path / "warehouse" / "customers").to_pylist()
    return sorted((row["customer"], row["total"]) for row in found)


@pytest.fixture
def first(tmp_path: Path, spec: Path) -> Path:
    """After a first run."""
    with hg.open(tmp_path / "data", name="shop", durability="os") as station:
        order(station, "ada", 1200.0)
        order(station, "eve", 80.0)
    run(tmp_path / "first", spec)
    return spec


@pytest.mark.timeout(600)  # a start of Spark with a catalog
def test_a_run_makes_table_view_and_channel(tmp_path: Path, first: Path) -> None:
    assert large(tmp_path) == [("ada", 1200.0)]
    assert totals(tmp_path) == [("ada", 1200.0), ("eve", 80.0)]


@pytest.mark.prove
@pytest.mark.timeout(1_200)
def test_every_other_run_brings_them_up_to_date(tmp_path: Path, first: Path) -> None:
    with hg.open(tmp_path / "data") as station:
        order(station, "eve", 2500.0)
    run(tmp_path / "second", first)
    assert large(tmp_path) == [("ada", 1200.0), ("eve", 2500.0)]
    assert totals(tmp_path) == [("ada", 1200.0), ("eve", 2580.0)]
