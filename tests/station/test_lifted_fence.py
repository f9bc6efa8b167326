"""A fence is lifted under live readers: they are told what happened and go on where the log does."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

import heliograph as hg
from heliograph.admin.verify import verify
from heliograph.station import Station, open_station
from tests.faults import FaultyDisk
from tests.proof.tools import Child, eventually

CHANNEL = "events"
# Nothing is synced but where a test says so; saving a position would do it.
SETTINGS: dict[str, Any] = {
    "name": "host1", "durability": "interval", "sync_interval_ms": 600_000, "position_flush_ms": 600_000,
}  # fmt: skip


class Reader:
    """A live subscription that keeps account."""

    def __init__(self, station: Station, **how: Any) -> None:
        self.got: list[tuple[int, Any]] = []
        self.gaps: list[hg.Gap] = []
        self.lock = threading.Lock()
        if how.pop("coroutine", False):

            async def handle_async(message: hg.Message) -> None:
                self._note(message)

            handler: Any = handle_async
        else:
            handler = self._note
        self.live = station.subscribe(CHANNEL, handler, start="first", on_gap=self.gaps.append, **how)

    def _note(self, message: hg.Message) -> None:
        with self.lock:
            self.got.append((message.offset, message.data))


def fence_and_repair(station: Station, disk: FaultyDisk) -> None:
    disk.fail("fdatasync", path=".jsonl")
    with pytest.raises(hg.OutcomeUnknown):
        station.sync()
    disk.heal()
    verify(station, repair=True)
    assert not station.channel(CHANNEL).fenced


HOW = [
    {"name": "w"},
    {},
    {"name": "w", "concurrency": 3},
    {"name": "w", "coroutine": True},
    {"name": "w", "coroutine": True, "concurrency": 2},
]


@pytest.mark.parametrize("synced", [0, 5])
@pytest.mark.parametrize("how", HOW, ids=lambda how: "-".join(map(str, how)) or "ephemeral")
def test_a_live_subscription_is_told_and_goes_on(tmp_path: Path, how: dict[str, Any], synced: int) -> None:
    disk = FaultyDisk()
    with open_station(tmp_path, disk=disk, **SETTINGS) as station:
        for number in range(synced):
            station.publish(CHANNEL, number, key=str(number % 4))
        if synced:
            station.sync()
        for number in range(synced, 10):
            station.publish(CHANNEL, number, key=str(number % 4))
        reader = Reader(station, **how)
        eventually(lambda: len(reader.got) == 10 and reader.live.position == 10)
        fence_and_repair(station, disk)
        eventually(lambda: reader.live.position == synced)
        for number in range(3):
            assert station.publish(CHANNEL, f"new {number}").offset == synced + number
        eventually(lambda: len(reader.got) == 13)
        assert sorted(reader.got[10:]) == [(synced + number, f"new {number}") for number in range(3)]
        assert reader.live.state == "running"
        ((first, following, reason),) = [(gap.first, gap.next, gap.reason) for gap in reader.gaps]
        assert (first, following) == (synced, 10)
        assert "repaired after a failed sync" in reason
        assert reader.live.stats().missing == 0
        if reader.live.name:
            reader.live.close()
            again = Reader(station, name="w")
            station.publish(CHANNEL, "last")
            eventually(lambda: again.got == [(synced + 3, "last")])
            assert not again.gaps


def test_nothing_is_skipped_though_the_log_has_grown_again_before_anybody_looked(tmp_path: Path) -> None:
    """The new messages have the offsets of those that were cut off."""
    disk = FaultyDisk()
    with open_station(tmp_path, disk=disk, **SETTINGS) as station:
        station.publish(CHANNEL, 0)
        station.sync()
        readers = [Reader(station, name=name) for name in ("a", "b")]
        for number in range(1, 10):
            station.publish(CHANNEL, number)
        eventually(lambda: all(len(reader.got) == 10 for reader in readers))
        for reader in readers:
            reader.live.pause()
            eventually(lambda reader=reader: reader.live.state == "paused")
        fence_and_repair(station, disk)
        for number in range(20):
            station.publish(CHANNEL, f"new {number}")
        for reader in readers:
            reader.live.resume()
        new = [(1 + number, f"new {number}") for number in range(20)]
        eventually(lambda: all(reader.got[10:] == new for reader in readers))
        assert all(len(reader.gaps) == 1 for reader in readers)


def test_a_dead_letter_of_a_new_message_is_not_taken_for_that_of_an_old_one(tmp_path: Path) -> None:
    disk = FaultyDisk()
    with open_station(tmp_path, disk=disk, max_retries=0, **SETTINGS) as station:
        station.publish(CHANNEL, 0)
        station.sync()

        def fail(message: hg.Message) -> None:
            if message.offset:
                raise ValueError(message.data)

        with station.subscribe(CHANNEL, fail, start="first") as live:  # a durable one would sync when it is saved
            station.publish(CHANNEL, "old")
            eventually(lambda: live.position == 2)
            station.engine.write(f"{CHANNEL}.dead-letter", 0, lambda partition: partition.settle())
            disk.fail("fdatasync", path=f"{CHANNEL}/0/")
            with pytest.raises(hg.OutcomeUnknown):
                station.sync()
            disk.heal()
            verify(station, repair=True)
            eventually(lambda: live.position == 1)
            station.publish(CHANNEL, "new")
            eventually(lambda: live.position == 2)
        old, new = [message.data for message in station.read(f"{CHANNEL}.dead-letter")]
        assert (old["original"]["data"], new["original"]["data"]) == ("old", "new")
        assert old["offset"] == new["offset"] == 1
        assert old["incarnation"] != new["incarnation"] == station.channel(CHANNEL).incarnation


def test_whoever_reads_and_follows_goes_on_also_in_another_process(tmp_path: Path) -> None:
    code = """
        import sys, heliograph as hg
        gaps = []
        with hg.open(sys.argv[1], name="host1", durability="interval", sync_interval_ms=600_000) as station:
            for message in station.read("events", follow=True, on_gap=gaps.append):
                print(message.offset, message.data, [(gap.first, gap.next) for gap in gaps], flush=True)
    """
    disk = FaultyDisk()
    with open_station(tmp_path, disk=disk, **SETTINGS) as station:
        station.publish(CHANNEL, 0)
        station.sync()
        station.publish_many(CHANNEL, [1, 2])
        with Child(code, tmp_path) as reader:
            assert [reader.line() for _ in range(3)] == ["0 0 []", "1 1 []", "2 2 []"]
            fence_and_repair(station, disk)
            station.publish(CHANNEL, "new")
            assert reader.line() == "1 new [(1, 3)]"
