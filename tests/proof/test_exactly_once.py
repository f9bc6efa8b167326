"""SIGKILL, again and again, of a producer and of a bridge: every message is stored once, in order, none is missing."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

import heliograph as hg
from tests.proof.tools import Child, eventually

PRODUCER = """
    import sys, heliograph as hg
    root, durability, goal = sys.argv[1], sys.argv[2], int(sys.argv[3])
    station = hg.open(root, name="host1", durability=durability, segment_bytes=65536)
    producer = station.producer("importer")
    seq = producer.last("in") - 3          # as one who does not know how far it came: some again
    print("ready", flush=True)
    while seq < goal:
        seq = max(seq + 1, 1)
        if seq % 7 or seq + 2 > goal:
            producer.publish("in", seq, seq=seq)
        else:
            producer.publish_many("in", [seq, seq + 1, seq + 2], seq=seq)
            seq += 2
    producer.close()
    station.close()
    print("done", flush=True)
"""

BRIDGE = """
    import sys, threading, heliograph as hg
    root, durability, goal = sys.argv[1], sys.argv[2], int(sys.argv[3])
    station = hg.open(root, name="host1", durability=durability, segment_bytes=65536, position_flush_ms=5)
    done = threading.Event()
    def handle(message):
        with station.atomic() as step:
            step.publish("out", message.data)
            step.publish("audit", message.data)
            {commit}
        if message.data == goal:
            done.set()
    station.subscribe("in", handle, name="bridge", start="first")
    print("ready", flush=True)
    if any(channel.name == "out" for channel in station.channels()):
        if any(message.data == goal for message in station.read("out")):
            done.set()  # a killed one came to the end, and did not live to say so
    done.wait()
    station.close()
    print("done", flush=True)
"""
COMMIT = 'step.commit(message, "bridge")'


def run_with_kills(code: str, root: Path, durability: str, goal: int, luck: random.Random, kills: int) -> None:
    """Kill it so many times, then let it finish."""
    for _ in range(kills):
        with Child(code, root, durability, goal) as child:
            assert child.line() == "ready"
            time.sleep(luck.random() * 0.15)
    with Child(code, root, durability, goal) as child:
        assert (child.line(), child.line()) == ("ready", "done")
        child.finish()


def stored(root: Path, channel: str) -> list[int]:
    with hg.open(root, name="host1") as station:
        return [message.data for message in station.read(channel)]


def story(root: Path, durability: str, goal: int, kills: int, seed: int, commit: str = COMMIT) -> None:
    luck = random.Random(seed)
    run_with_kills(PRODUCER, root, durability, goal, luck, kills)
    assert stored(root, "in") == list(range(1, goal + 1)), "lost, doubled or out of order"
    run_with_kills(BRIDGE.replace("{commit}", commit), root, durability, goal, luck, kills)
    assert stored(root, "out") == list(range(1, goal + 1)), "the bridge lost, doubled or moved messages"
    assert stored(root, "audit") == stored(root, "out")


@pytest.mark.parametrize("durability", ["always", "interval"])
def test_a_producer_and_a_bridge_survive_kills_exactly_once(tmp_path: Path, durability: str) -> None:
    story(tmp_path, durability, goal=400, kills=6, seed=1)


@pytest.mark.prove
@pytest.mark.parametrize("seed", range(2, 8))
@pytest.mark.parametrize("durability", ["always", "interval", "os"])
def test_a_producer_and_a_bridge_survive_many_kills_exactly_once(tmp_path: Path, durability: str, seed: int) -> None:
    story(tmp_path, durability, goal=5_000, kills=40, seed=seed)


def test_a_bridge_that_does_not_commit_in_its_step_is_caught(tmp_path: Path) -> None:
    """The checker sees what an ordinary bridge does: at least once."""
    with pytest.raises(AssertionError, match="the bridge lost, doubled"):
        for seed in range(5):
            story(tmp_path / str(seed), "always", goal=600, kills=6, seed=seed, commit="pass")


def test_a_step_of_a_killed_process_is_finished_by_another_that_is_alive(tmp_path: Path) -> None:
    """Nobody opens the station anew: whoever takes the subscription over finishes the step first."""
    code = """
        import os, signal, sys, heliograph as hg
        from heliograph.engine.steps import Steps
        station = hg.open(sys.argv[1], name="host1")
        real = Steps._append
        def append(self, record, number):
            if number == 1:
                print("half", flush=True)
                os.kill(os.getpid(), signal.SIGKILL)
            return real(self, record, number)
        Steps._append = append
        def handle(message):
            with station.atomic() as step:
                step.publish("out", message.data)
                step.publish("audit", message.data)
                step.commit(message, "bridge")
        station.subscribe("in", handle, name="bridge", start="first")
        import time; time.sleep(60)
    """
    with hg.open(tmp_path, name="host1") as station:
        station.publish("in", 1)
        with Child(code, tmp_path) as child:
            assert child.line() == "half"
            child.process.wait(30)
        seen: list[int] = []
        with station.subscribe("in", lambda message: seen.append(message.data), name="bridge", start="first"):
            station.publish("in", 2)
            eventually(lambda: seen)
        assert seen == [2], "delivered again though its step had happened"
        assert [message.data for message in station.read("out")] == [1]
        assert [message.data for message in station.read("audit")] == [1]
