"""On a standalone cluster of separate processes: the same pipelines, and whoever is killed costs time, not rows."""

from __future__ import annotations

import json
import random
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

import heliograph as hg
from tests.cli.harness import wait_until
from tests.spark.daemons import Cluster, Process, environment, helio

pytestmark = [
    pytest.mark.timeout(900),  # several starts of Java, on a machine that may be loaded
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks for executors in /proc"),
]

HERE = Path(__file__).parent
COUNT = 2_000
COPY = """
name: copy
help: Every message, once.
inputs: {numbers: {channel: in, options: {maxMessagesPerTrigger: "500", splitBytes: 30kB}}}
sql: SELECT data, key FROM numbers WHERE java_method('java.lang.Thread', 'sleep', 4L) IS NOT NULL
output: {kind: channel, to: out}
"""
"""So slow that whoever is killed was at something."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, java: str) -> Iterator[Cluster]:
    made = Cluster(tmp_path_factory.mktemp("cluster"), workers=2)
    yield made
    made.close()


@pytest.fixture
def data(tmp_path: Path) -> Path:
    (tmp_path / "copy.yaml").write_text(COPY)
    with hg.open(tmp_path / "data", name="host1", durability="os", segment_bytes=100_000) as station:
        station.create_channel("in", partitions=2)
        station.create_channel("out", partitions=3)
        publish(station, range(COUNT))
    return tmp_path / "data"


def publish(station: hg.Station, numbers: range) -> None:
    station.publish_many("in", [hg.Draft(data={"n": n}, key=f"k{n % 17}") for n in numbers])


def on(cluster: Cluster) -> list[str]:
    return ["--master", cluster.url, *(word for one in cluster.SETTINGS for word in ("--set", one))]


def copied(data: Path) -> list[hg.Message]:
    with hg.open(data, read_only=True) as station:
        return list(station.read("out"))


def check_each_once(data: Path, count: int) -> None:
    assert Counter(message.data["n"] for message in copied(data)) == Counter(range(count))


def check_order(data: Path) -> None:
    """The messages of a key are in one partition, as they came."""
    keys: dict[str | None, list[hg.Message]] = defaultdict(list)
    for message in copied(data):
        keys[message.key].append(message)
    for key, messages in keys.items():
        assert len({message.partition for message in messages}) == 1, key
        numbers = [message.data["n"] for message in sorted(messages, key=lambda message: message.offset)]
        assert numbers == sorted(numbers), key


def test_an_executor_killed_in_the_middle_of_a_pipeline_costs_time_and_no_row(
    cluster: Cluster, data: Path, tmp_path: Path
) -> None:
    run = ("pipeline", "run", "copy", "--file", tmp_path / "copy.yaml", *on(cluster))
    with helio(tmp_path / "helio", data, *run) as process:
        wait_until(lambda: copied(data) or not process.running(), 300)
        assert len(cluster.executors()) == 2, process.text()
        time.sleep(0.5)  # the next micro-batch has begun
        cluster.kill_executor(random.Random(3))
        assert len(copied(data)) < COUNT, "it was in the middle"
        code, out, error = process.end(400)
    assert (code, out.split()) == (0, ["rows", f"{COUNT:,}"]), error
    check_each_once(data, COUNT)
    check_order(data)
    assert "Lost executor" in (data / "pipelines" / "copy" / "spark.log").read_text(), "Spark noticed"
    assert cluster.executors_ever(cluster.newest_app()) > 2, "another executor took its place"


@pytest.mark.prove
def test_a_built_in_pipeline_runs_on_the_cluster(cluster: Cluster, data: Path, tmp_path: Path) -> None:
    import pyarrow.dataset as ds

    run = ("pipeline", "run", "archive", "--channel", "in", *on(cluster), "--set", "spark.cores.max=2")
    with helio(tmp_path / "helio", data, *run) as process:
        code, _, error = process.end(400)
    assert code == 0, error
    assert cluster.executors_ever(cluster.newest_app()) == 2
    files = ds.dataset([str(path) for path in (data / "archive" / "channel=in").rglob("*.parquet")])
    rows = files.to_table(["partition", "offset", "id", "data"]).to_pylist()
    with hg.open(data, read_only=True) as station:
        expected = {(one.partition, one.offset): (one.id, one.data["n"]) for one in station.read("in")}
    assert len(rows) == COUNT
    found = {(row["partition"], row["offset"]): (row["id"], json.loads(row["data"])["n"]) for row in rows}
    assert found == expected


# -- long ones --------------------------------------------------------------------------------------------------------

ROUNDS = 40


def bridge(place: Path, data: Path, checkpoint: Path, cluster: Cluster) -> Process:
    """A driver of its own that copies until it is killed."""
    command = [sys.executable, str(HERE / "bridge_process.py"), str(data), str(checkpoint), "out", "null"]
    started = Process(place, [*command, cluster.url, *cluster.SETTINGS], environment())
    started.said("running")
    return started


@pytest.mark.prove
@pytest.mark.timeout(3_600)
def test_sigkill_of_executors_workers_and_drivers_at_random_moments_neither_loses_nor_doubles_a_row(
    cluster: Cluster, data: Path, tmp_path: Path
) -> None:
    chance = random.Random(11)
    published = COUNT
    checkpoint = tmp_path / "checkpoint"
    killed: Counter[str] = Counter()
    with hg.open(data) as station:
        process = bridge(tmp_path / "driver-0", data, checkpoint, cluster)
        try:
            for turn in range(ROUNDS):
                until = time.monotonic() + chance.uniform(0.2, 9.0)
                while time.monotonic() < until:
                    publish(station, range(published, published + 50))
                    published += 50
                    time.sleep(0.05)
                whom = chance.choices(["executor", "worker", "driver"], [6, 2, 2])[0]
                killed[whom] += 1
                if whom == "executor":
                    cluster.kill_executor(chance)
                elif whom == "worker":
                    cluster.kill_worker(chance)
                else:
                    process.kill()
                if not process.running():
                    process.kill()
                    process = bridge(tmp_path / f"driver-{turn + 1}", data, checkpoint, cluster)
                seen = Counter(message.data["n"] for message in copied(data))
                assert max(seen.values(), default=1) == 1, f"round {turn} {whom}: {seen.most_common(3)}"
            wait_until(lambda: len(copied(data)) >= published or not process.running(), 400)
            time.sleep(2)  # what came twice would come now
        finally:
            process.kill()
    check_each_once(data, published)
    assert min(killed.values()) > 0, killed
