"""A pipeline that is ended before it began, in a process of its own."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

import heliograph as hg
from heliograph.spark.pipelines import state
from tests.cli.harness import wait_until
from tests.spark.daemons import START_S, child, helio

pytestmark = pytest.mark.timeout(600)


@pytest.mark.usefixtures("java")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_while_spark_starts_ends_it_at_once_and_its_java(
    tmp_path: Path, number: signal.Signals, code: int
) -> None:
    data = tmp_path / "data"
    with hg.open(data, name="host1") as station:
        station.publish("alerts", 1)
    with helio(tmp_path / "helio", data, "pipeline", "run", "types") as process:
        wait_until(lambda: child(process.pid, b"SparkSubmit"), START_S)
        java = child(process.pid, b"SparkSubmit")
        os.kill(process.pid, number)
        assert process.end() == (code, "", "")
        told = state.status(data, "types")
        assert told is not None and told.state == "stopped"
        wait_until(lambda: not Path(f"/proc/{java}").exists(), START_S)
