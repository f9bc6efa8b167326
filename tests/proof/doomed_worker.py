"""A worker of a group that kills itself in the middle of a rebalance, at a given step of it.

    doomed_worker.py ROOT CHANNEL GROUP JOURNAL MOMENT STEP BROKEN

MOMENT is what it is doing when it dies: ``joining``, ``leaving``, ``giving`` a partition to a worker that joined, or
``taking`` one of a worker that left. STEP counts its calls that change files of the group, from that moment on; just
before the STEP-th it sends itself SIGKILL. It says "ready" when it has its share, waits for a line, and says
"survived" if what it was to do took fewer steps; then it ends in order. BROKEN is as for ``worker.py``.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import heliograph as hg
from tests.faults import FaultyDisk
from tests.proof.group_model import FATAL
from tests.proof.journal import telling
from tests.proof.worker import break_it

PATIENCE_S = 60.0


class MortalDisk(FaultyDisk):
    """Kills its process before one of its calls on files of subscriptions."""

    def __init__(self) -> None:
        super().__init__()
        self.left = 0

    def _call(self, kind, function, *arguments, **named):  # type: ignore[no-untyped-def]
        if self.left and kind in (*FATAL, "close") and "/subscriptions/" in self._path_of(arguments):
            self.left -= 1
            if not self.left:
                os.kill(os.getpid(), signal.SIGKILL)
                time.sleep(PATIENCE_S)  # it is not always there at once
        return super()._call(kind, function, *arguments, **named)


def wait_for(subscription: hg.Subscription, condition) -> None:  # type: ignore[no-untyped-def]
    until = time.monotonic() + PATIENCE_S
    while not condition(subscription.partitions):
        assert time.monotonic() < until, "it never got its share"
        time.sleep(0.002)


def main() -> None:
    root, channel, group, journal, moment, step, broken = sys.argv[1:]
    break_it(broken)
    disk = MortalDisk()
    station = hg.open(root, disk=disk, durability="os", position_flush_ms=20)
    if moment == "joining":
        disk.left = int(step)
    handle = telling(Path(journal), os.getpid())
    subscription = station.subscribe(channel, handle, name=group, group=True, start="first", concurrency=6)
    wait_for(subscription, bool)
    if broken:
        time.sleep(0.5)  # for a mistake to show
    if moment == "joining":
        disk.left = 0
        print("survived", flush=True)
        station.close()
        return
    print("ready", flush=True)
    sys.stdin.readline()
    before = len(subscription.partitions)
    disk.left = int(step)
    print("armed", flush=True)
    if moment == "leaving":
        subscription.close()
    else:
        wait_for(subscription, lambda now: len(now) < before if moment == "giving" else len(now) > before)
    disk.left = 0
    print("survived", flush=True)
    station.close()


if __name__ == "__main__":
    main()
