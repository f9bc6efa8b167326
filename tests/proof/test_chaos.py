"""Everything at once, from several threads and processes: publish, read, subscribe, redact, trim, compress, alter."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import heliograph as hg
from heliograph.station import Station, open_station
from tests.faults import QuickDisk
from tests.proof.tools import Child, checked_log, eventually

CHANNEL = "events"
SETTINGS: dict[str, Any] = {"name": "host1", "segment_bytes": 16_384, "position_flush_ms": 5}

PUBLISHER = """
    import random, select, sys, heliograph as hg
    station = hg.open(sys.argv[1], name="host1", segment_bytes=16384, durability=sys.argv[2])
    print("ready", flush=True)
    luck = random.Random(int(sys.argv[3]))
    acknowledged = 0
    while not select.select([sys.stdin], [], [], 0)[0]:
        if luck.random() < 0.8:
            station.publish("events", {"w": sys.argv[3], "n": acknowledged, "pad": "x" * luck.randint(0, 400)})
            acknowledged += 1
        else:
            station.publish_many("events", [{"w": sys.argv[3], "n": acknowledged + i, "pad": ""} for i in range(3)])
            acknowledged += 3
    print(acknowledged, flush=True)
    station.close()
"""


class Chaos:
    """Threads that work on one station until they are told to stop; the first error of any of them is raised."""

    def __init__(self, station: Station, seed: int) -> None:
        self.station = station
        self.luck = random.Random(seed)
        self.stop = threading.Event()
        self.errors: list[BaseException] = []
        self.published: dict[str, int] = {}
        self.redacted: set[str] = set()
        self.gaps: set[int] = set()
        self.seen: list[list[int]] = []
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()

    def start(self, work: Callable[[random.Random], None]) -> None:
        luck = random.Random(self.luck.random())

        def run() -> None:
            try:
                while not self.stop.is_set():
                    work(luck)
            except BaseException as error:
                self.errors.append(error)
                self.stop.set()

        self._threads.append(threading.Thread(target=run, daemon=True))
        self._threads[-1].start()

    def end(self) -> None:
        self.stop.set()
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive(), "somebody hangs"
        if self.errors:
            raise self.errors[0]

    # -- what they do

    def publish(self, luck: random.Random) -> None:
        if luck.random() < 0.8:
            receipts = [self.station.publish(CHANNEL, {"w": "thread", "pad": "y" * luck.randint(0, 400)})]
        else:
            receipts = self.station.publish_many(CHANNEL, [{"w": "thread", "pad": ""}] * luck.randint(2, 5))
        with self._lock:
            for receipt in receipts:
                self.published[receipt.id] = receipt.offset

    def redact(self, luck: random.Random) -> None:
        time.sleep(0.01)
        with self._lock:
            candidates = [id for id in list(self.published)[-200:] if id not in self.redacted]
        if not candidates:
            return
        victim = luck.choice(candidates)
        with self._lock:
            self.redacted.add(victim)
        try:
            self.station.redact(victim)
        except hg.NotFound:  # trimmed meanwhile
            return
        assert self.station.get(victim) is None

    def tidy(self, luck: random.Random) -> None:
        time.sleep(0.05)
        if luck.random() < 0.2:
            self.station.alter_channel(CHANNEL, compress=luck.random() < 0.5, segment_bytes=luck.choice([8192, 16_384]))
        self.station.trim()

    def read(self, luck: random.Random) -> None:
        """From somewhere to the end: in order, nothing twice."""
        info = self.station.channel(CHANNEL)
        start = luck.randint(0, max(0, info.next - 1))
        gaps: list[hg.Gap] = []
        offsets = [message.offset for message in self.station.read(CHANNEL, start=start, on_gap=gaps.append)]
        assert offsets == sorted(set(offsets))
        assert not offsets or offsets[0] >= start
        for gap in gaps:
            assert "retention" in gap.reason, f"told damaged: {gap}"
            assert not set(range(gap.first, gap.next)) & set(offsets)

    def look(self, _: random.Random) -> None:
        self.station.stats()
        self.station.channels()
        self.station.subscriptions()
        time.sleep(0.005)


@pytest.mark.parametrize("durability", ["always", "interval"])
def test_everything_at_once_loses_doubles_and_moves_nothing(tmp_path: Path, durability: str) -> None:
    chaos(tmp_path, durability, seed=1, seconds=1.5)


@pytest.mark.prove
@pytest.mark.parametrize("seed", range(2, 12))
@pytest.mark.parametrize("durability", ["always", "interval", "os"])
def test_everything_at_once_for_long_loses_doubles_and_moves_nothing(
    tmp_path: Path, durability: str, seed: int
) -> None:
    chaos(tmp_path, durability, seed, seconds=30.0)


def chaos(root: Path, durability: str, seed: int, seconds: float) -> None:
    with open_station(root, durability=durability, disk=QuickDisk(), **SETTINGS) as station:
        station.create_channel(CHANNEL, retention_bytes=400_000, holdback_bytes=1, compress=True)
        station.publish(CHANNEL, {"w": "first"})
        one = Chaos(station, seed)
        delivered: list[int] = []
        gaps: list[hg.Gap] = []
        subscription = station.subscribe(
            CHANNEL, lambda message: delivered.append(message.offset), name="worker", start="first", on_gap=gaps.append
        )
        with Child(PUBLISHER, root, durability, seed) as child:
            assert child.line() == "ready"
            for work in (one.publish, one.publish, one.redact, one.tidy, one.read, one.read, one.look):
                one.start(work)
            one.stop.wait(seconds)
            child.tell()
            one.end()
            others = int(child.line())
            child.finish()
        end = station.channel(CHANNEL).next
        assert end == 1 + len(one.published) + others, "offsets without gaps"
        eventually(lambda: subscription.position == end)
        assert delivered == sorted(set(delivered)), "delivered twice or out of order without a restart"
        told = {offset for gap in gaps for offset in range(gap.first, gap.next)}
        assert not told & set(delivered)
        redacted = {one.published[id] for id in one.redacted}
        assert set(range(end)) - set(delivered) - told <= redacted, "neither delivered, nor told, nor redacted"
        subscription.close()
    check(root, one)


def check(root: Path, one: Chaos) -> None:
    stored = checked_log(root, CHANNEL, holes=True)
    first = min(stored)
    for id, offset in one.published.items():
        if offset < first:
            continue
        if id in one.redacted:
            assert offset not in stored
        else:
            assert stored[offset]["id"] == id
    with open_station(root, disk=QuickDisk(), **SETTINGS) as station:
        assert [message.offset for message in station.read(CHANNEL)] == sorted(stored)
