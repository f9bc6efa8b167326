"""Messages of the last day that there is, told where that day is over already."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import heliograph as hg
from heliograph.spark.jobs.report import report
from heliograph.spark.jobs.rollup import rollup, rollup_channel
from heliograph.spark.jobs.trace import trace
from heliograph.spark.pipelines.declared import Output
from heliograph.spark.pipelines.running import How, run
from heliograph.spark.pipelines.tables import rows_of

LAST = datetime(9999, 12, 31, 23, 59, 59, 500_000, UTC)


@pytest.fixture
def east(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patched:
        patched.setenv("TZ", "Pacific/Kiritimati")
        time.tzset()
        yield
    time.tzset()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    with hg.open(tmp_path / "data", name="host1", durability="os") as station:
        station.publish_many("orders", [hg.Draft(data=1, time=LAST, correlation_id="x", id="far"), 2])
    return tmp_path / "data"


@pytest.mark.usefixtures("east")
def test_every_job_tells_of_the_last_day(spark: Any, root: Path, tmp_path: Path) -> None:
    assert run(report, {"output": str(tmp_path / "report.html")}, root).facts["messages"] == 2
    (timeline,) = run(trace, {"of": "x"}, root).tables.values()
    assert [row["time"] for row in rows_of(timeline, 5).rows] == [LAST]
    table = run(rollup, {}, root, How(trigger="batch", output=Output())).tables["rollup"]
    assert rows_of(table, 5).rows[-1]["minute"] == datetime(9999, 12, 31, 23, 59, tzinfo=UTC)
    run(rollup_channel, {}, root, How(trigger="batch"))
    with hg.open(root, read_only=True) as station:
        assert max(message.time for message in station.read("rollup")) == LAST.replace(microsecond=999_999)
