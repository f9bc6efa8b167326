"""Group commit: one write and one sync for everybody who is waiting, and nobody waits for ever."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import heliograph as hg
from heliograph.station import Station, open_station
from tests.faults import FaultyDisk
from tests.proof.tools import Child, checked_log, eventually

CHANNEL = "events"
THREADS = 64


class SlowDisk(FaultyDisk):
    """Counts; a sync of a segment takes long enough for others to queue behind it, and can be held up."""

    def __init__(self, pause_s: float = 0.002) -> None:
        super().__init__()
        self.pause_s = pause_s
        self.gate = threading.Event()
        self.gate.set()
        self.waiting = threading.Event()
        self.syncs = 0

    def fdatasync(self, fd: int) -> None:
        if ".jsonl" in self._path_of((fd,)):
            self.syncs += 1
            self.waiting.set()
            self.gate.wait(60)
            time.sleep(self.pause_s)
        super().fdatasync(fd)


def in_threads(count: int, work: Callable[[int], Any]) -> None:
    errors: list[BaseException] = []

    def guarded(number: int) -> None:
        try:
            work(number)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(number,), daemon=True) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive(), "a publisher hangs"
    if errors:
        raise errors[0]


def test_sixty_four_threads_share_syncs_and_every_acknowledged_message_is_there(tmp_path: Path) -> None:
    disk = SlowDisk()
    acknowledged: dict[str, int] = {}
    with open_station(tmp_path, name="host1", disk=disk) as station:
        station.publish(CHANNEL, "first")
        before = disk.syncs

        def publish(thread: int) -> None:
            for number in range(20):
                receipt = station.publish(CHANNEL, {"t": thread, "n": number})
                acknowledged[receipt.id] = receipt.offset

        in_threads(THREADS, publish)
        syncs = disk.syncs - before
    stored = checked_log(tmp_path, CHANNEL)
    assert {
        id: offset for offset, id in ((o, m["id"]) for o, m in stored.items()) if id in acknowledged
    } == acknowledged
    assert len(acknowledged) == THREADS * 20
    assert syncs < THREADS * 20 / 4, f"{syncs} syncs for {THREADS * 20} messages"
    for thread in range(THREADS):
        own = [m["data"]["n"] for _, m in sorted(stored.items()) if m["data"] != "first" and m["data"]["t"] == thread]
        assert own == list(range(20)), "one publisher's messages are out of order"


def test_sixty_four_tasks_share_syncs_and_every_acknowledged_message_is_there(tmp_path: Path) -> None:
    disk = SlowDisk()

    async def run() -> dict[str, int]:
        acknowledged: dict[str, int] = {}
        async with hg.open_async(tmp_path, name="host1", disk=disk) as station:

            async def publish(task: int) -> None:
                for number in range(20):
                    receipt = await station.publish(CHANNEL, {"t": task, "n": number})
                    acknowledged[receipt.id] = receipt.offset

            await asyncio.gather(*[publish(task) for task in range(THREADS)])
        return acknowledged

    acknowledged = asyncio.run(run())
    stored = checked_log(tmp_path, CHANNEL)
    assert {message["id"]: offset for offset, message in stored.items()} == acknowledged
    assert len(acknowledged) == THREADS * 20
    assert disk.syncs < THREADS * 20 / 4


def test_threads_and_tasks_and_batches_take_turns_at_one_partition(tmp_path: Path) -> None:
    disk = SlowDisk(0.0005)
    count = 0

    async def tasks(station: Station) -> None:
        from heliograph.aio import AsyncStation

        mirror = AsyncStation(station, asyncio.get_running_loop())
        await asyncio.gather(*[mirror.publish(CHANNEL, number) for number in range(200)])
        await asyncio.gather(*[mirror.publish_many(CHANNEL, [number] * 5) for number in range(20)])

    with open_station(tmp_path, name="host1", disk=disk, segment_bytes=8192) as station:

        def work(number: int) -> None:
            nonlocal count
            if number == 0:
                asyncio.run(tasks(station))
            elif number % 2:
                for i in range(30):
                    station.publish(CHANNEL, i)
            else:
                for i in range(10):
                    station.publish_many(CHANNEL, [i] * 3)

        in_threads(9, work)
    stored = checked_log(tmp_path, CHANNEL)
    assert len(stored) == 200 + 100 + 4 * 30 + 4 * 30
    for offset, message in stored.items():
        if "batch" in message:
            first, size = map(int, message["batch"].split("/"))
            assert first <= offset < first + size


def test_nothing_is_acknowledged_before_its_sync_returned(tmp_path: Path) -> None:
    disk = SlowDisk()
    with open_station(tmp_path, name="host1", disk=disk) as station:
        station.publish(CHANNEL, 0)
        disk.gate.clear()
        disk.waiting.clear()
        done = threading.Event()
        thread = threading.Thread(target=lambda: (station.publish(CHANNEL, 1), done.set()), daemon=True)
        thread.start()
        assert disk.waiting.wait(30)
        time.sleep(0.05)
        assert not done.is_set()
        assert [message.data for message in station.read(CHANNEL, end=1)] == [0]  # nor shown to readers
        assert station.engine.bounds(CHANNEL).next == 1
        disk.gate.set()
        assert done.wait(30)
        assert station.engine.bounds(CHANNEL).next == 2


def held_up(station: Station, disk: SlowDisk) -> threading.Thread:
    """A publisher that leads a commit and waits for the disk."""
    disk.gate.clear()
    disk.waiting.clear()
    thread = threading.Thread(target=lambda: station.publish(CHANNEL, "leader"), daemon=True)
    thread.start()
    assert disk.waiting.wait(30)
    return thread


def test_a_full_queue_says_busy_at_once_and_writes_nothing(tmp_path: Path) -> None:
    disk = SlowDisk()
    with open_station(tmp_path, name="host1", disk=disk, pending_bytes_max=20_000) as station:
        station.publish(CHANNEL, 0)
        leader = held_up(station, disk)
        followers = [
            threading.Thread(target=lambda: station.publish(CHANNEL, "x" * 9000), daemon=True) for _ in range(2)
        ]
        for thread in followers:
            thread.start()
        eventually(lambda: station.stats().pending_bytes > 18_000)
        with pytest.raises(hg.Busy, match="pending_bytes_max"):
            station.publish(CHANNEL, "y" * 9000)
        with pytest.raises(hg.Busy):
            station.publish_many(CHANNEL, ["y" * 5000] * 2)
        assert station.stats().channels[0].refused == 2
        disk.gate.set()
        for thread in [leader, *followers]:
            thread.join(30)
        assert station.publish(CHANNEL, "y" * 9000).offset == 4
        assert station.stats().pending_bytes == 0


def test_who_asked_to_wait_waits_for_room_instead(tmp_path: Path) -> None:
    disk = SlowDisk()
    with open_station(tmp_path, name="host1", disk=disk, pending_bytes_max=20_000) as station:
        station.publish(CHANNEL, 0)
        leader = held_up(station, disk)
        follower = threading.Thread(target=lambda: station.publish(CHANNEL, "x" * 15_000), daemon=True)
        follower.start()
        eventually(lambda: station.stats().pending_bytes > 15_000)
        with pytest.raises(hg.Busy):
            station.publish(CHANNEL, "y" * 9000, wait=0.01)
        patient: list[hg.Receipt] = []
        waiting = threading.Thread(target=lambda: patient.append(station.publish(CHANNEL, "y" * 9000, wait=60)))
        waiting.start()
        time.sleep(0.02)
        assert not patient
        disk.gate.set()
        for thread in (leader, follower, waiting):
            thread.join(30)
        assert patient[0].offset == 3


def test_when_full_wait_is_a_setting_for_all(tmp_path: Path) -> None:
    disk = SlowDisk()
    with open_station(tmp_path, name="host1", disk=disk, pending_bytes_max=20_000, when_full="wait") as station:
        in_threads(16, lambda number: [station.publish(CHANNEL, "x" * 5000) for _ in range(3)])
        assert station.channel(CHANNEL).next == 48


def test_asyncio_publishers_wait_for_room_too_and_the_loop_goes_on(tmp_path: Path) -> None:
    disk = SlowDisk()

    async def run() -> list[int]:
        async with hg.open_async(tmp_path, name="host1", disk=disk, pending_bytes_max=20_000) as station:
            await station.publish(CHANNEL, 0)
            disk.gate.clear()
            first = [asyncio.ensure_future(station.publish(CHANNEL, "x" * 9000)) for _ in range(2)]
            await asyncio.to_thread(disk.waiting.wait, 30)
            await asyncio.sleep(0.01)
            with pytest.raises(hg.Busy):
                await station.publish(CHANNEL, "y" * 9000)
            patient = asyncio.ensure_future(station.publish(CHANNEL, "y" * 9000, wait=60))
            await asyncio.sleep(0.02)  # the loop is free meanwhile
            assert not patient.done()
            disk.gate.set()
            return [(await one).offset for one in [*first, patient]]

    assert asyncio.run(run()) == [1, 2, 3]


def test_a_message_larger_than_the_bound_passes_when_nothing_else_waits(tmp_path: Path) -> None:
    with open_station(tmp_path, name="host1", pending_bytes_max=1000) as station:
        assert station.publish(CHANNEL, "x" * 5000).offset == 0


# -- interrupted ----


class Interrupted(BaseException):
    """As KeyboardInterrupt: no handler of errors catches it."""


@pytest.mark.parametrize("where", ["pwrite", "fdatasync", "flock", "lseek"])
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("durability", ["always", "interval"])
def test_an_interrupt_in_a_publisher_neither_hangs_nor_harms_the_others(
    tmp_path: Path, where: str, when: str, durability: str
) -> None:
    disk = FaultyDisk()
    with open_station(tmp_path, name="host1", durability=durability, sync_interval_ms=60_000, disk=disk) as station:
        for number in range(3):
            station.publish(CHANNEL, number)

        def interrupt(path: str, *_: Any) -> None:
            ours = threading.current_thread() is threading.main_thread()  # where Ctrl-C arrives
            if ours and path.endswith((".jsonl", "lock")):
                hooks = disk.before if when == "before" else disk.after
                hooks.clear()
                raise Interrupted

        (disk.before if when == "before" else disk.after)[where] = interrupt
        try:
            station.publish(CHANNEL, "interrupted")
            station.sync()
        except Interrupted:
            pass
        except hg.OutcomeUnknown:
            pass
        disk.before.clear()
        disk.after.clear()
        other = Child(  # nor does it keep the lock: another process goes on, and goes first
            "import sys, heliograph as hg\n"
            "with hg.open(sys.argv[1], name='host1', busy_timeout_s=20) as station:\n"
            "    print(station.publish('events', 'other').offset, flush=True)",
            tmp_path,
        )
        with other:
            offset = int(other.line())
        receipts: list[hg.Receipt] = []
        in_threads(4, lambda number: receipts.append(station.publish(CHANNEL, f"later {number}", wait=30)))
        assert offset == min(receipt.offset for receipt in receipts) - 1
        read = [message.data for message in station.read(CHANNEL)]
        assert [one for one in read if one != "interrupted"][:3] == [0, 1, 2]
        assert len(read) == len({message.offset for message in station.read(CHANNEL)})
    stored = checked_log(tmp_path, CHANNEL)
    assert len(stored) in (8, 9)


def test_an_interrupt_while_waiting_in_the_queue_does_not_hang_the_others(tmp_path: Path) -> None:
    """Ctrl-C in the main thread, while another thread leads: whoever comes next must not wait for the dead heir."""
    child = Child(
        """
        import os, signal, sys, threading, time
        import heliograph as hg
        from heliograph.station import open_station
        from tests.log.test_commit import SlowDisk

        disk = SlowDisk()
        station = open_station(sys.argv[1], name="host1", disk=disk)
        station.publish("events", 0)
        disk.gate.clear(); disk.waiting.clear()
        threading.Thread(target=lambda: station.publish("events", "leader"), daemon=True).start()
        disk.waiting.wait(30)
        threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        threading.Timer(0.6, disk.gate.set).start()
        try:
            station.publish("events", "interrupted")
            print("published")
        except KeyboardInterrupt:
            print("interrupted", flush=True)
        done = []
        for n in range(3):
            thread = threading.Thread(target=lambda: done.append(station.publish("events", n, wait=10)), daemon=True)
            thread.start()
            thread.join(20)
        print(len(done), flush=True)
        os._exit(0)
        """,
        tmp_path,
    )
    with child:
        assert child.line() in ("interrupted", "published")
        assert child.line() == "3"


@pytest.mark.parametrize("durability", ["always", "interval"])
def test_closing_while_others_publish_acknowledges_or_refuses_but_never_lies(tmp_path: Path, durability: str) -> None:
    station = open_station(tmp_path, name="host1", durability=durability)
    station.publish(CHANNEL, "first")
    acknowledged: list[hg.Receipt] = []
    started = threading.Barrier(9)

    def publish(number: int) -> None:
        started.wait()
        try:
            while True:
                acknowledged.append(station.publish(CHANNEL, number))
        except (hg.StationClosed, hg.OutcomeUnknown):
            pass

    threads = [threading.Thread(target=publish, args=(number,), daemon=True) for number in range(8)]
    for thread in threads:
        thread.start()
    started.wait()
    time.sleep(0.05)
    station.close()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    stored = checked_log(tmp_path, CHANNEL)
    for receipt in acknowledged:
        assert stored[receipt.offset]["id"] == receipt.id
