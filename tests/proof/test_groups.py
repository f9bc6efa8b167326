"""Groups of processes: killed, joined and left under load. Nothing lost, nothing reordered, never two at once."""

from __future__ import annotations

import random
import signal
import time
from pathlib import Path

import pytest

import heliograph as hg
from heliograph.station import Station
from tests.proof import checker
from tests.proof.tools import HERE, Child, eventually
from tests.spread import put

CHANNEL, GROUP = "readings", "sums"
PARTITIONS = 6


class Load:
    """A channel, workers in processes of their own, and what they said."""

    def __init__(self, tmp_path: Path, broken: str = "") -> None:
        self.root = tmp_path / "data"
        self.journals = tmp_path / "journals"
        self.journals.mkdir()
        self.broken = broken
        self.station: Station = hg.open(self.root, name="host1", durability="os", position_flush_ms=20)
        self.station.create_channel(CHANNEL, partitions=PARTITIONS)
        self.workers: list[Child] = []
        self.killed: list[int] = []
        self.count = 0

    def publish(self, count: int) -> None:
        for _ in range(count):
            partition = self.count % PARTITIONS
            put(self.station, CHANNEL, partition, self.count, key=f"key {partition}")
            self.count += 1

    def join(self, pause_s: float = 0.001) -> Child:
        journal = self.journals / f"{len(self.workers)}-{len(self.killed)}-{time.monotonic_ns()}"
        child = Child(HERE / "worker.py", self.root, CHANNEL, GROUP, journal, pause_s, self.broken)
        assert child.line() == "working"
        self.workers.append(child)
        return child

    def kill(self, child: Child) -> None:
        child.process.send_signal(signal.SIGKILL)
        child.process.wait()
        self.killed.append(child.pid)
        self.workers.remove(child)

    def leave(self, child: Child) -> None:
        child.process.stdin.close()  # type: ignore[union-attr]
        assert child.process.wait(60) == 0
        self.workers.remove(child)

    def events(self) -> list[checker.Event]:
        return checker.read(self.journals.iterdir())

    def lag(self) -> int:
        return sum(info.lag for info in self.station.subscriptions(CHANNEL))

    def complaints(self) -> list[str]:
        ends = {part.partition: part.next for part in self.station.channel(CHANNEL).parts}
        return checker.complaints(self.events(), ends, self.killed)

    def complaints_but_lost(self) -> list[str]:
        """While the work is not done, what is not done yet is not lost."""
        return [complaint for complaint in self.complaints() if "lost" not in complaint]

    def close(self) -> None:
        for child in list(self.workers):
            child.process.kill()
            child.process.wait()
        self.station.close()


@pytest.fixture
def load(tmp_path: Path):  # type: ignore[no-untyped-def]
    loads: list[Load] = []

    def make(broken: str = "") -> Load:
        loads.append(Load(tmp_path, broken))
        return loads[-1]

    yield make
    for one in loads:
        one.close()


def test_processes_share_and_a_killed_one_is_replaced(load) -> None:  # type: ignore[no-untyped-def]
    one = load()
    first, _ = one.join(), one.join()
    eventually(lambda: [len(member.partitions) for member in one.station.groups()[0].members] == [3, 3])
    one.publish(120)
    eventually(lambda: len(one.events()) > 60)
    one.kill(first)
    one.publish(120)
    eventually(lambda: one.lag() == 0)
    eventually(lambda: [len(member.partitions) for member in one.station.groups()[0].members] == [6])
    assert one.complaints() == []
    assert len({event.who for event in one.events()}) == 2


def test_joining_leaving_and_dying_under_load(load) -> None:  # type: ignore[no-untyped-def]
    one, luck = load(), random.Random(4711)
    one.join()
    for _ in range(8):
        one.publish(60)
        fate = luck.random()
        if len(one.workers) < 2 or (fate < 0.4 and len(one.workers) < 4):
            one.join()
        elif fate < 0.7:
            one.leave(luck.choice(one.workers))
        else:
            one.kill(luck.choice(one.workers))
        if not one.workers:
            one.join()
    eventually(lambda: one.lag() == 0)
    for child in list(one.workers):
        one.leave(child)
    assert one.complaints() == []


BROKEN = ["leases for everybody", "gives back too early", "commits what is not done"]


@pytest.mark.parametrize("broken", BROKEN)
def test_the_checker_catches_broken_workers(load, broken: str) -> None:  # type: ignore[no-untyped-def]
    """Each is a mistake in one line of the code; none may pass for right."""
    one = load(broken)
    one.publish(600)
    pause_s = 0.6 if broken == "gives back too early" else 0.02  # long enough for another to take the lease meanwhile
    first = one.join(pause_s)
    eventually(lambda: len(one.events()) >= PARTITIONS)
    one.join(pause_s)
    if broken == "commits what is not done":
        one.kill(first)
        eventually(lambda: one.lag() == 0)
        time.sleep(0.5)  # what is at hand may still end
        assert any("lost" in complaint or "after" in complaint for complaint in one.complaints())
    else:
        eventually(one.complaints_but_lost)
