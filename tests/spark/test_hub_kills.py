"""Exactly once from a channel of a hub to another, though the driver and all its processes, or the hub, are killed."""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import heliograph as hg
from tests.client.conftest import Hub
from tests.spark.bridge_process import bridge
from tests.spark.test_hub_sink import Served, place
from tests.spark.test_kills import copied, kill, start

BRIDGE = {"name": "bridge", "subscribe": ["in"], "publish": ["in", "out"]}
ROUNDS = 8


@pytest.fixture
def hub(tmp_path: Path) -> Hub:
    net = Hub(tmp_path)
    net.station("hub", peers=[BRIDGE], storage={"partitions": 3})
    return net


@pytest.fixture
def served(hub: Hub) -> Iterator[Served]:
    process = Served(hub)
    yield process
    process.close()


def finish(spark: Any, hub: Hub, checkpoint: Path) -> None:
    query = (
        bridge(spark, json.dumps(place(hub, name="bridge")), str(checkpoint), "out").trigger(availableNow=True).start()
    )
    query.awaitTermination(300)


def test_sigkill_of_the_driver_once(spark: Any, hub: Hub, served: Served, tmp_path: Path) -> None:
    """Killed as soon as the first messages are there, and the hub after it; another Spark goes on."""
    with hub.connect("bridge") as client:
        client.publish_many("in", [{"n": n} for n in range(1_500)])
    driver = start(json.dumps(place(hub, name="bridge")), tmp_path / "checkpoint")
    try:
        until = time.monotonic() + 300
        while not copied(hub.path("hub")) and time.monotonic() < until:
            time.sleep(0.02)
    finally:
        kill(driver)
    served.restart()
    assert copied(hub.path("hub"))
    finish(spark, hub, tmp_path / "checkpoint")
    assert copied(hub.path("hub")) == Counter(range(1_500))


@pytest.mark.prove
@pytest.mark.timeout(3_000)
def test_sigkill_of_driver_and_hub_at_random_moments_neither_loses_nor_doubles_a_row(
    spark: Any, hub: Hub, served: Served, tmp_path: Path
) -> None:
    chance = random.Random(11)
    published = 0
    for turn in range(ROUNDS):
        driver = start(json.dumps(place(hub, name="bridge")), tmp_path / "checkpoint")
        until = time.monotonic() + chance.uniform(0.5, 15.0)
        try:
            while time.monotonic() < until:
                with hub.connect("bridge") as client:
                    fresh = range(published, published + 100)
                    client.publish_many("in", [hg.Draft(data={"n": n}, key=f"k{n % 17}") for n in fresh])
                published += 100
                if chance.random() < 0.05:
                    served.restart(chance.uniform(0.0, 1.0))
        finally:
            kill(driver)
        seen = copied(hub.path("hub"))
        assert max(seen.values(), default=1) == 1, f"round {turn}: {seen.most_common(3)}"
    finish(spark, hub, tmp_path / "checkpoint")
    assert copied(hub.path("hub")) == Counter(range(published))
