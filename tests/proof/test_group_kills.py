"""SIGKILL of a worker at each step of a rebalance: joining, leaving, giving a partition away, taking one over.

Two workers live in this process and stay; one after the other joins them in a process of its own and dies one step
later than the one before it, until one comes to the end. All the while messages are published.
"""

from __future__ import annotations

import re
import signal
import threading
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

import heliograph as hg
from tests.proof import checker
from tests.proof.journal import telling
from tests.proof.tools import HERE, Child, eventually
from tests.spread import put

CHANNEL, GROUP = "readings", "sums"
PARTITIONS = 6
MOMENTS = ("joining", "leaving", "giving", "taking")
STEPS_MAX = 400


class Story:
    """A group under load, some of whose workers die."""

    def __init__(self, directory: Path) -> None:
        self.root = directory / "data"
        self.journals = directory / "journals"
        self.journals.mkdir()
        self.station = hg.open(self.root, name="host1", durability="os", position_flush_ms=20)
        self.station.create_channel(CHANNEL, partitions=PARTITIONS)
        self.numbers = count(1)
        self.killed: list[int] = []
        self.staying = [self.worker(), self.worker()]
        self._ending = threading.Event()
        self._load = threading.Thread(target=self._publish, daemon=True)
        self._load.start()

    def worker(self) -> hg.Subscription:
        """One in this process."""
        number = -next(self.numbers)  # not the number of a process
        handle = telling(self.journals / f"here{number}", number)
        return self.station.subscribe(CHANNEL, handle, name=GROUP, group=True, start="first", concurrency=6)

    def _publish(self) -> None:
        for number in count():
            put(self.station, CHANNEL, number % PARTITIONS, None, key=f"key {number % PARTITIONS}")
            if self._ending.wait(0.004):
                return

    def shared(self) -> bool:
        sizes = [len(one.partitions) for one in self.station.groups()[0].members]
        return sum(sizes) == PARTITIONS and max(sizes) - min(sizes) <= 1

    def doomed(self, moment: str, step: int, broken: str = "") -> bool:
        """A worker that dies at this step of what it does in this moment. False: it took fewer, and lives on."""
        journal = self.journals / f"{moment}-{step}"
        with Child(HERE / "doomed_worker.py", self.root, CHANNEL, GROUP, journal, moment, step, broken) as child:
            survived = self._live_and_die(child, moment)
            if survived:
                child.finish()
            else:
                assert child.process.wait(60) == -signal.SIGKILL
                self.killed.append(child.pid)
        eventually(self.shared, "what it had is left to nobody")
        return not survived

    def _live_and_die(self, child: Child, moment: str) -> bool:
        assert child.process.stdout is not None
        if moment != "joining":
            assert child.line() == "ready"
            if moment == "giving":  # where there are two, a third one gets something of both
                self.staying.pop().close()
            eventually(self.shared)
            child.tell()
            assert child.line() == "armed"
            if moment == "giving":
                self.staying.append(self.worker())
            elif moment == "taking":
                self.staying.pop().close()
        said = child.process.stdout.readline().strip()
        if moment == "taking":
            self.staying.append(self.worker())
        return said == "survived"

    def complaints(self) -> list[str]:
        """Everything is published and done: what is wrong with how it was done."""
        self._ending.set()
        self._load.join()
        eventually(lambda: sum(info.lag for info in self.station.subscriptions(CHANNEL)) == 0)
        for worker in self.staying:
            worker.close()
        ends = {part.partition: part.next for part in self.station.channel(CHANNEL).parts}
        return checker.complaints(checker.read(self.journals.iterdir()), ends, self.killed)

    def close(self) -> None:
        self._ending.set()
        self.station.close()


@pytest.fixture
def story(tmp_path: Path) -> Iterator[Story]:
    one = Story(tmp_path)
    yield one
    one.close()


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_worker_that_dies_in_a_rebalance_costs_nothing(story: Story, moment: str) -> None:
    deaths = [story.doomed(moment, step) for step in (1, 4, 9, 16, 25)]
    assert deaths[0]
    assert story.complaints() == []


@pytest.mark.prove
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_worker_may_die_at_every_step_of_a_rebalance(story: Story, moment: str) -> None:
    for step in range(1, STEPS_MAX):
        if not story.doomed(moment, step):
            break
    assert step > 5
    assert story.complaints() == []


BROKEN = [
    ("leaving", "saves nothing", "again"),
    ("joining", "sees nobody", "while|again"),
    ("joining", "begins one later", "lost"),
]


@pytest.mark.parametrize(("moment", "broken", "complaint"), BROKEN)
def test_the_checker_catches_broken_rebalances(story: Story, moment: str, broken: str, complaint: str) -> None:
    """Nobody dies in these: the code is wrong in one line."""
    eventually(lambda: all(worker.stats().delivered > 10 for worker in story.staying))
    assert not story.doomed(moment, STEPS_MAX * 100, broken)
    assert any(re.search(complaint, one) for one in story.complaints())
