"""SIGKILL at every step of the dispatcher: what was acknowledged is delivered, once."""

from __future__ import annotations

import random
import signal
import time
from pathlib import Path

import pytest

import heliograph as hg
from heliograph.clock import Clock
from tests.proof.tools import Child, checked_log, eventually

# Every step is a method; the child dies before or after one of them, or in its middle.
DYING = """
    import os, signal, sys
    import heliograph as hg
    from heliograph.schedule import recurring, waiting
    from heliograph.schedule.mover import Mover
    from heliograph.schedule.recurring import Recurring
    from heliograph.schedule.waiting import Waiting

    root, step, durability = sys.argv[1:]

    def die(*_):
        os.kill(os.getpid(), signal.SIGKILL)

    def around(cls, name, before=None, after=None):
        real = getattr(cls, name)
        def wrapped(*arguments, **named):
            if before:
                before()
            result = real(*arguments, **named)
            if after and result != 0:
                after()
            return result
        setattr(cls, name, wrapped)

    def half(self, channel, rows):
        carry(self, channel, rows[: len(rows) // 2])
        die()

    def unsynced(self, channel, rows):
        self._append(channel, [row.body for row in rows], [hg.message.parse_time("2026-11-16") for row in rows])
        die()

    carry = Mover._carry
    if step == "before send":
        around(Waiting, "send", before=die)
    elif step == "inside send":
        real = waiting._hold_back
        def hold_back(*arguments):
            real(*arguments)
            die()
        waiting._hold_back = hold_back
    elif step == "after send":
        around(Mover, "_carry", before=die)
    elif step == "half appended":
        Mover._carry = half
    elif step == "appended, not synced":
        Mover._carry = unsynced
    elif step == "appended":
        around(Waiting, "arrived", before=die)
    elif step == "inside arrived":
        def arrived(self, rows, *rest):
            with self._database.writing() as connection:
                connection.executemany("DELETE FROM waiting WHERE seq = ?", [(row.seq,) for row in rows])
                die()
        Waiting.arrived = arrived
    elif step == "after arrived":
        around(Waiting, "arrived", after=die)
    elif step == "looked":
        around(Mover, "_in_log", after=die)

    station = hg.open(root, name="host1", durability=durability)
    print("ready", flush=True)
    if step != "looked":
        station.publish("alerts", {"n": -1})
        station.publish_many("alerts", [{"n": n} for n in range(10)], delay=0)
    sys.stdin.readline()
"""

STEPS = [
    "before send", "inside send", "after send", "half appended", "appended, not synced", "appended",
    "inside arrived", "after arrived",
]  # fmt: skip


@pytest.mark.parametrize("durability", ["always", "interval"])
@pytest.mark.parametrize("step", STEPS)
def test_killed_at_any_step_nothing_is_lost_or_doubled(tmp_path: Path, step: str, durability: str) -> None:
    with Child(DYING, tmp_path, step, durability) as child:
        child.line()
        child.process.wait(60)
        assert child.process.returncode == -signal.SIGKILL
    with hg.open(tmp_path, name="host1", durability=durability) as station:
        eventually(lambda: len(list(station.read("alerts"))) == 11 and station.scheduled_count() == 0)
    assert [message["data"]["n"] for _, message in sorted(checked_log(tmp_path, "alerts").items())] == [*range(-1, 10)]


def test_killed_while_it_looks_what_arrived_it_looks_again(tmp_path: Path) -> None:
    with Child(DYING, tmp_path, "half appended", "always") as child:
        child.line()
        child.process.wait(60)
    with Child(DYING, tmp_path, "looked", "always") as child:  # which may die before it says that it is ready
        child.process.wait(60)
        assert child.process.returncode == -signal.SIGKILL
    with hg.open(tmp_path, name="host1") as station:
        eventually(lambda: station.scheduled_count() == 0)
    found = [message["data"]["n"] for message in checked_log(tmp_path, "alerts").values()]
    assert sorted(found) == [*range(-1, 10)]


UNTOLD = """
    import os, signal, sys, time
    import heliograph as hg
    from heliograph.disk import Disk
    from heliograph.schedule.mover import Mover

    class Dying(Disk):
        armed = False

        def pwrite(self, fd, data, position):
            count = os.pwrite(fd, data, position)
            if self.armed:
                os.kill(os.getpid(), signal.SIGKILL)
            return count

    disk = Dying()
    carry = Mover._carry

    def arm(self, channel, rows):
        disk.armed = channel == "alerts"
        carry(self, channel, rows)

    Mover._carry = arm
    station = hg.open(sys.argv[1], name="host1", disk=disk)
    station.publish("alerts", 0)
    station.publish("first", 0, delay=0)
    while station.scheduled_count():
        time.sleep(0.01)
    print("leads", flush=True)
    sys.stdin.readline()
    station.publish_many("alerts", [1, 2, 3], delay=0)
    sys.stdin.readline()
"""


def test_what_a_killed_process_wrote_and_told_nobody_is_found_by_one_that_lives(tmp_path: Path) -> None:
    with Child(UNTOLD, tmp_path) as child:
        assert child.line() == "leads"
        with hg.open(tmp_path, name="host1") as station:
            assert [message.data for message in station.read("alerts")] == [0]
            child.tell()
            child.process.wait(60)
            assert child.process.returncode == -signal.SIGKILL
            eventually(lambda: station.scheduled_count() == 0)
            assert [message.data for message in station.read("alerts")] == [0, 1, 2, 3]


FIRING = """
    import os, signal, sys
    import heliograph as hg
    from heliograph.clock import Clock
    from heliograph.schedule import recurring
    from heliograph.schedule.recurring import Recurring

    root, step = sys.argv[1:]

    class Later(Clock):
        step_ns = 0
        def time_ns(self):
            return Clock.time_ns() + self.step_ns

    def die(*_):
        os.kill(os.getpid(), signal.SIGKILL)

    fire, store = Recurring.fire, recurring._store

    def fire_and_die(self, now_us):
        if fire(self, now_us):
            die()
        return 0

    clock = Later()
    station = hg.open(root, name="host1", clock=clock)
    station.schedule("hourly", "reports", 1, cron="0 * * * *", missed="all")
    if step == "inside":
        recurring._store = lambda *arguments: (store(*arguments), die())
    else:
        Recurring.fire = fire_and_die
    print("ready", flush=True)
    clock.step_ns = 3 * 3600 * 10**9
    station.publish("reports", 0, delay=0)
    sys.stdin.readline()
"""


class Later(Clock):
    def time_ns(self) -> int:  # type: ignore[override]
        return time.time_ns() + 3 * 3600 * 10**9


@pytest.mark.parametrize("step", ["inside", "after"])
def test_a_firing_is_published_once_whoever_is_killed(tmp_path: Path, step: str) -> None:
    with Child(FIRING, tmp_path, step) as child:
        child.line()
        child.process.wait(60)
        assert child.process.returncode == -signal.SIGKILL
    from heliograph.station import open_station

    with open_station(tmp_path, name="host1", clock=Later()) as station:
        eventually(lambda: "reports" in [one.name for one in station.channels()] and not station.scheduled_count())
        eventually(lambda: len([m for m in station.read("reports") if m.id.startswith("hourly@")]) == 3)
    checked_log(tmp_path, "reports")


WORKING = """
    import sys, heliograph as hg
    station = hg.open(sys.argv[1], name="host1")
    number = 0
    while True:
        batch = [[sys.argv[2], number + n] for n in range(7)]
        receipts = station.publish_many(f"c{number % 2}", batch, delay=0.002 * (number % 11))
        print(*[receipt.id for receipt in receipts], flush=True)
        number += 7
"""


def test_killed_at_random_again_and_again(tmp_path: Path) -> None:
    acknowledged: set[str] = set()
    for life in range(6):
        with Child(WORKING, tmp_path, life) as child:
            acknowledged |= set(child.line().split())
            time.sleep(random.random() / 3)
            child.process.kill()
            assert child.process.stdout is not None
            for line in child.process.stdout:
                if line.endswith("\n"):
                    acknowledged |= set(line.split())
    with hg.open(tmp_path) as station:
        eventually(lambda: station.scheduled_count() == 0)
    stored = [message["id"] for name in ("c0", "c1") if (tmp_path / "channels" / name).exists()
              for message in checked_log(tmp_path, name).values()]  # fmt: skip
    assert len(stored) == len(set(stored))
    assert acknowledged <= set(stored)
