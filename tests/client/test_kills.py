"""Workers of a group at clients that are killed, frozen and cut off at random: nothing lost, order kept."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import pytest

import heliograph as hg
from tests.client.conftest import TOOL, Hub
from tests.client.processes import WorkerProcess
from tests.federation.stations import wait_for

pytestmark = pytest.mark.prove
ROUNDS = 25


def one_order(records: list[tuple[int, int, int]]) -> list[str]:
    """What is wrong with (when, partition, offset) of everything that was handled, anywhere: first times in order."""
    firsts: dict[tuple[int, int], int] = {}
    for when, partition, offset in sorted(records):
        firsts.setdefault((partition, offset), when)
    faults, last = [], dict[int, tuple[int, int]]()
    for (partition, offset), when in sorted(firsts.items()):
        before = last.get(partition)
        if before is not None and when < before[1]:
            faults.append(f"{partition}/{offset} was handled before {before[0]}")
        last[partition] = (offset, when)
    return faults


def test_the_checker_sees_what_is_out_of_order() -> None:
    assert one_order([(1, 0, 0), (2, 0, 1), (3, 0, 0), (4, 1, 0)]) == []
    assert one_order([(2, 0, 0), (1, 0, 1)]) == ["0/1 was handled before 0"]


def test_random_deaths_of_workers(tmp_path: Path) -> None:
    chance = random.Random(11)
    hub = Hub(tmp_path)
    hub.station("hub", peers=[TOOL], storage={"partitions": 5})
    here: list[tuple[int, int, int]] = []
    everyone: list[WorkerProcess] = []

    def worker() -> WorkerProcess:
        options = {"group": True, "start": "first"}
        everyone.append(WorkerProcess(hub, "alerts", "pager", pause_s=0.002, when=True, options=options))
        return everyone[-1]

    with hub.open("hub") as station, contextlib.ExitStack() as stack:
        live = [worker() for _ in range(3)]
        own: Any = None
        sent = 0
        for _ in range(ROUNDS):
            station.publish_many("alerts", [hg.Draft(data=n, key=f"k{n % 31}") for n in range(sent, sent + 40)])
            sent += 40
            time.sleep(chance.random() * 0.3)
            victim = chance.randrange(len(live))
            if chance.random() < 0.5:
                live[victim].kill()
                live[victim] = worker()
            elif own is None:
                own = station.subscribe(
                    "alerts",
                    lambda message: here.append((time.monotonic_ns(), message.partition, message.offset)),
                    name="pager", group=True,
                )  # fmt: skip
                stack.callback(own.close)
            else:
                pid = live[victim].child.pid
                os.kill(pid, signal.SIGSTOP)
                time.sleep(chance.random() * 0.5)
                os.kill(pid, signal.SIGCONT)
        wait_for(
            lambda: sum(part.offset for group in station.groups("alerts") for part in group.partitions) == sent, 60
        )
        for one in live:
            assert one.end() == 0
    records = here + [(when, partition, offset) for one in everyone for _, partition, offset, _, when in one.said]
    assert len({(partition, offset) for _, partition, offset in records}) == sent, "nothing is lost"
    assert one_order(records) == []
