"""Exactly once from channel to channel, though the driver and all its processes are killed at random moments."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import heliograph as hg
from tests.spark.bridge_process import bridge

HERE = Path(__file__).parent
ROUNDS = 12


def start(root: Path | str, checkpoint: Path, *sink: str) -> subprocess.Popen[str]:
    """Driver, JVM and workers are one process group, which is killed as a whole."""
    command = [sys.executable, str(HERE / "bridge_process.py"), str(root), str(checkpoint), "out", *sink]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True, env=environment
    )
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "running\n"
    except BaseException:  # the test's time is up
        kill(process)
        raise
    return process


def kill(process: subprocess.Popen[str]) -> None:
    """The process group of what this test started, and nothing else."""
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    if process.stdout is not None:
        process.stdout.close()


def copied(root: Path) -> Counter[int]:
    with hg.open(root, read_only=True) as station:
        if "out" not in {info.name for info in station.channels()}:
            return Counter()
        return Counter(message.data["n"] for message in station.read("out"))


@pytest.mark.prove
@pytest.mark.timeout(3_000)
def test_sigkill_of_the_driver_at_random_moments_neither_loses_nor_doubles_a_row(tmp_path: Path) -> None:
    root, checkpoint = tmp_path / "data", tmp_path / "checkpoint"
    chance = random.Random(7)
    published = 0
    with hg.open(root, name="host1") as station:
        station.create_channel("in", partitions=2)
        station.create_channel("out", partitions=3)
        for turn in range(ROUNDS):
            process = start(root, checkpoint)
            until = time.monotonic() + chance.uniform(0.5, 12.0)
            try:
                while time.monotonic() < until:
                    fresh = range(published, published + 100)
                    station.publish_many("in", [hg.Draft(data={"n": n}, key=f"k{n % 17}") for n in fresh])
                    published += 100
                    time.sleep(0.05)
            finally:
                kill(process)
            seen = copied(root)
            assert max(seen.values(), default=1) == 1, f"round {turn}: {seen.most_common(3)}"
        process = start(root, checkpoint)
        try:
            until = time.monotonic() + 240
            while sum(copied(root).values()) < published and time.monotonic() < until:
                time.sleep(0.5)
            time.sleep(2)  # what came twice would come now
        finally:
            kill(process)
    assert copied(root) == Counter(range(published))
    with hg.open(root) as station:
        for key in {f"k{n}" for n in range(17)}:
            assert len({message.partition for message in station.read("out", where=hg.Filter(key=key))}) == 1


def test_sigkill_of_the_driver_once(spark: Any, tmp_path: Path) -> None:
    """Killed as soon as the first messages are there; another Spark goes on with the checkpoint."""
    root, checkpoint = tmp_path / "data", tmp_path / "checkpoint"
    with hg.open(root, name="host1", durability="os") as station:
        station.publish_many("in", [{"n": n} for n in range(1_500)])
    process = start(root, checkpoint)
    try:
        until = time.monotonic() + 300
        while not copied(root) and time.monotonic() < until:
            time.sleep(0.02)
    finally:
        kill(process)
    first = copied(root)
    assert first
    assert max(first.values()) == 1
    query = bridge(spark, str(root), str(checkpoint), "out").trigger(availableNow=True).start()
    query.awaitTermination(300)
    assert copied(root) == Counter(range(1_500))
