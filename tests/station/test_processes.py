"""Any number of processes on one directory: races, stopped and killed holders of locks, fork."""

from __future__ import annotations

import os
import signal
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import heliograph as hg
from heliograph.station import open_station
from tests.faults import FaultyDisk, QuickDisk
from tests.proof.tools import Child, checked_log, eventually

CHANNEL = "events"

PUBLISH = """
    import sys, heliograph as hg
    root, name, count, durability = sys.argv[1:5]
    station = hg.open(root, name="host1", durability=durability, segment_bytes=int(sys.argv[5]))
    print("ready", flush=True)
    sys.stdin.readline()
    for n in range(int(count)):
        receipt = station.publish("events", {"w": name, "n": n})
    print("done", flush=True)
    station.close()
"""


@pytest.mark.parametrize("processes", [2, 8])
def test_processes_that_race_to_create_a_channel_end_with_one(tmp_path: Path, processes: int) -> None:
    for attempt in range(2):
        root = tmp_path / str(attempt)
        open_station(root, name="host1").close()
        children = [Child(PUBLISH, root, f"w{n}", 5, "always", 1 << 20) for n in range(processes)]
        for child in children:
            assert child.line() == "ready"
        for child in children:
            child.tell()
        for child in children:
            child.finish()
        stored = checked_log(root, CHANNEL)
        assert len(stored) == processes * 5
        assert len({message["origin"] for message in stored.values()}) == 1
        assert os.listdir(root / "channels") == [CHANNEL], "something half made was left"


@pytest.mark.parametrize("processes", [2, 8])
def test_processes_that_race_to_open_a_new_directory_agree_on_it(tmp_path: Path, processes: int) -> None:
    children = [Child(PUBLISH, tmp_path / "data", f"w{n}", 5, "os", 1 << 20) for n in range(processes)]
    for child in children:
        child.line()
        child.tell()
    for child in children:
        child.finish()
    assert len(checked_log(tmp_path / "data", CHANNEL)) == processes * 5


def test_processes_that_race_to_recover_lose_nothing(tmp_path: Path) -> None:
    with open_station(tmp_path, name="host1", disk=QuickDisk()) as station:
        for number in range(50):
            station.publish(CHANNEL, {"w": "first", "n": number})
    partition = tmp_path / "channels" / CHANNEL / "0"
    for attempt in range(3):
        (partition / "head").unlink()
        with max(partition.glob("*.jsonl")).open("ab") as file:
            file.write(b'{"half a line')
        children = [Child(PUBLISH, tmp_path, f"w{attempt}-{n}", 5, "always", 1 << 20) for n in range(4)]
        for child in children:
            child.line()
            child.tell()
        for child in children:
            child.finish()
        assert len(checked_log(tmp_path, CHANNEL)) == 50 + (attempt + 1) * 20


@pytest.mark.parametrize("durability", ["always", "interval", "os"])
def test_appends_of_several_processes_interleave_without_gaps_and_in_order(tmp_path: Path, durability: str) -> None:
    children = [Child(PUBLISH, tmp_path, f"w{n}", 100, durability, 8192) for n in range(3)]
    for child in children:
        child.line()
    for child in children:
        child.tell()
    for child in children:
        child.finish()
    stored = checked_log(tmp_path, CHANNEL)
    assert sorted(stored) == list(range(300))
    for writer in ("w0", "w1", "w2"):
        own = [message["data"]["n"] for _, message in sorted(stored.items()) if message["data"]["w"] == writer]
        assert own == list(range(100))


def test_processes_of_different_durability_share_a_log(tmp_path: Path) -> None:
    children = [Child(PUBLISH, tmp_path, d, 60, d, 8192) for d in ("always", "interval", "os")]
    for child in children:
        child.line()
        child.tell()
    for child in children:
        child.finish()
    with open_station(tmp_path, name="host1") as station:
        assert len(list(station.read(CHANNEL))) == len(checked_log(tmp_path, CHANNEL)) == 180


def test_a_reader_that_wants_synced_data_sees_what_another_process_wrote_without_syncing(tmp_path: Path) -> None:
    with (
        open_station(tmp_path, name="host1", durability="os") as writer,
        open_station(tmp_path, name="host1") as reader,
    ):
        writer.publish(CHANNEL, 1)
        assert [message.data for message in reader.read(CHANNEL)] == [1]
        seen: list[int] = []
        reader.subscribe(CHANNEL, lambda message: seen.append(message.data), start="first")
        for number in range(2, 5):
            writer.publish(CHANNEL, number)
        eventually(lambda: seen == [1, 2, 3, 4])


# -- locks and their holders ----

HOLD = """
    import os, signal, sys, threading, time
    import heliograph as hg
    from heliograph.disk import Disk
    from heliograph.station import open_station

    class Stuck(Disk):
        armed = False
        def pwrite(self, fd, data, position):
            if self.armed and bytes(data).startswith(b'{"specversion'):
                print("holding", flush=True)
                sys.stdin.readline()
            return os.pwrite(fd, data, position)

    disk = Stuck()
    station = open_station(sys.argv[1], name="host1", durability=sys.argv[2], disk=disk)
    station.publish("events", "before")
    station.sync()
    disk.armed = True
    station.publish("events", "held")
    print("published", flush=True)
    time.sleep(60)
"""


@pytest.mark.parametrize("durability", ["always", "interval"])
def test_a_stopped_holder_of_the_lock_makes_others_busy_by_name_and_they_go_on_afterwards(
    tmp_path: Path, durability: str
) -> None:
    with Child(HOLD, tmp_path, durability) as holder:
        assert holder.line() == "holding"
        holder.signal(signal.SIGSTOP)
        with open_station(tmp_path, name="host1", durability=durability, busy_timeout_s=0.3) as station:
            with pytest.raises(hg.Busy, match=rf"process {holder.pid}\b.*Nothing was published"):
                station.publish(CHANNEL, "never")
            with pytest.raises(hg.Busy):
                station.publish_many(CHANNEL, ["never", "never"])
            assert [message.data for message in station.read(CHANNEL)] == ["before"]  # readers are not held up
            holder.signal(signal.SIGCONT)
            holder.tell()
            assert holder.line() == "published"
            deadline = time.monotonic() + 30
            while True:
                try:
                    station.publish(CHANNEL, "after")
                    break
                except hg.Busy:
                    assert time.monotonic() < deadline
    stored = [message["data"] for message in checked_log(tmp_path, CHANNEL).values()]
    assert sorted(stored) == ["after", "before", "held"]


@pytest.mark.parametrize("durability", ["always", "interval"])
def test_a_killed_holder_of_the_lock_is_succeeded_at_once(tmp_path: Path, durability: str) -> None:
    with Child(HOLD, tmp_path, durability) as holder:
        assert holder.line() == "holding"
        with open_station(tmp_path, name="host1", durability=durability, busy_timeout_s=30) as station:
            started = time.monotonic()
            threading.Timer(0.2, holder.process.kill).start()
            assert station.publish(CHANNEL, "after").offset == 1
            assert time.monotonic() - started < 30  # not the deadline: the kernel freed it
    assert [message["data"] for message in checked_log(tmp_path, CHANNEL).values()] == ["before", "after"]


def test_a_stopped_upkeep_makes_administration_busy_instead_of_hanging(tmp_path: Path) -> None:
    code = """
        import sys, heliograph as hg
        station = hg.open(sys.argv[1], name="host1")
        station.publish("events", 1)
        with station.engine.without_upkeep():
            print("holding", flush=True)
            sys.stdin.readline()
    """
    with Child(code, tmp_path) as holder:
        assert holder.line() == "holding"
        with open_station(tmp_path, name="host1", busy_timeout_s=0.2) as station:
            with pytest.raises(hg.Busy, match=str(holder.pid)):
                station.trim()
            message = next(iter(station.read(CHANNEL)))
            with pytest.raises(hg.Busy):
                station.redact(message.id)
            holder.kill()
            station.trim()
            station.redact(message.id)


def test_a_second_subscriber_of_a_name_is_refused_until_the_first_is_gone_however_it_went(tmp_path: Path) -> None:
    code = """
        import sys, time, heliograph as hg
        station = hg.open(sys.argv[1], name="host1")
        station.subscribe("events", print, name="worker")
        print("subscribed", flush=True)
        time.sleep(60)
    """
    with Child(code, tmp_path) as first, open_station(tmp_path, name="host1") as station:
        assert first.line() == "subscribed"
        with pytest.raises(hg.SubscriptionBusy, match=str(first.pid)):
            station.subscribe(CHANNEL, print, name="worker")
        with pytest.raises(hg.SubscriptionBusy):
            station.seek(CHANNEL, "worker", 0)
        with pytest.raises(hg.SubscriptionBusy):
            station.forget(CHANNEL, "worker")
        with pytest.raises(hg.SubscriptionBusy):
            station.delete_channel(CHANNEL)
        assert station.subscriptions()[0].live
        first.kill()
        assert not station.subscriptions()[0].live
        station.subscribe(CHANNEL, print, name="worker").close()


# -- rule 2: the head ----


def test_a_torn_head_is_repaired_by_whoever_comes_next(tmp_path: Path) -> None:
    """Its writer was killed in the middle of an update: the sequence stays odd and the fields are a mixture."""
    doors = [
        lambda station: station.publish(CHANNEL, "x"),
        lambda station: station.publish_many(CHANNEL, ["x", "y"]),
        lambda station: list(station.read(CHANNEL)),
        lambda station: station.channel(CHANNEL),
        lambda station: station.channels(),
        lambda station: station.stats(),
        lambda station: station.trim(),
        lambda station: station.alter_channel(CHANNEL, segment_bytes=100_000),
        lambda station: station.subscribe(CHANNEL, print, name="w", start="first", paused=True).close(),
        lambda station: station.seek(CHANNEL, "w", 0),
        lambda station: station.sync(),
        lambda station: station.delete_channel(CHANNEL),
    ]
    with open_station(tmp_path, name="host1", disk=QuickDisk(), retention_bytes=10**9, durability="os") as station:
        for number in range(5):
            station.publish(CHANNEL, number)
        for door in doors:
            station.sync()
            eventually(lambda: not station.engine.writer(CHANNEL, 0)._lock.held)  # an idle process gives it back
            tear(tmp_path / "channels" / CHANNEL / "0" / "head")
            before = len(list(station.engine.disk.read_file(segment(tmp_path)).splitlines()))
            door(station)
            if door is not doors[-1]:
                assert [message.data for message in station.read(CHANNEL)][:5] == list(range(5))
                assert station.channel(CHANNEL).next >= before


def segment(root: Path) -> Path:
    return max((root / "channels" / CHANNEL / "0").glob("*.jsonl"))


def tear(head: Path) -> None:
    with head.open("r+b") as file:
        file.seek(64)
        (sequence,) = struct.unpack("<Q", file.read(8))
        file.seek(64)
        file.write(struct.pack("<Q", sequence | 1))
        file.seek(72)
        file.write(b"\x11" * 20)


def test_a_torn_head_does_not_lift_a_fence(tmp_path: Path) -> None:
    import errno

    disk = FaultyDisk()
    with open_station(tmp_path, name="host1", disk=disk) as station:
        station.publish(CHANNEL, 0)
        disk.fail("fdatasync", errno.EIO, path=".jsonl")
        with pytest.raises(hg.OutcomeUnknown):
            station.publish(CHANNEL, 1)
        disk.heal()
        tear(tmp_path / "channels" / CHANNEL / "0" / "head")
        with pytest.raises(hg.Fenced):
            station.publish(CHANNEL, 2)


HAMMER = """
    import sys, time
    from pathlib import Path
    from heliograph.disk import Disk
    from heliograph.log.head import Fields, Head
    head = Head(Path(sys.argv[1]), Disk())
    print("ready", flush=True)
    width = len(Fields())
    n = 0
    until = time.monotonic() + float(sys.argv[2])
    while time.monotonic() < until:
        for _ in range(500):
            n += 1
            head.store(*[n] * width)
    print(n, flush=True)
"""


def test_a_head_read_under_a_hammering_writer_is_never_torn(tmp_path: Path) -> None:
    from heliograph.disk import Disk, boot_id
    from heliograph.log.head import Fields, Head, TornHead

    path = tmp_path / "head"
    Head.create(path, Disk(), boot_id(), Fields())
    head = Head(path, Disk())
    values: set[int] = set()
    with Child(HAMMER, path, 60.0) as writer:
        assert writer.line() == "ready"
        until = time.monotonic() + 1.0
        while (time.monotonic() < until or len(values) <= 100) and writer.process.poll() is None:
            try:
                fields = head.load()
            except TornHead:
                continue  # a very slow writer; readers then take the lock
            assert len(set(fields)) == 1, f"torn: {fields}"
            values.add(fields[0])
    assert len(values) > 100, "the reader never met the writer"
    head.close()


def test_the_test_above_sees_a_torn_head() -> None:
    """Without the sequence a reader does meet mixtures: the check is worth its name."""
    mixed = struct.pack("<17Q", *[1] * 8, *[2] * 9)
    assert len(set(struct.unpack("<17Q", mixed))) == 2


# -- rule 12: deleting ----


def test_a_channel_deleted_while_another_process_publishes_is_deleted_or_made_again_but_never_half(
    tmp_path: Path,
) -> None:
    code = """
        import sys, heliograph as hg
        station = hg.open(sys.argv[1], name="host1", segment_bytes=4096, durability=sys.argv[2])
        print("ready", flush=True)
        n = 0
        import select
        while not select.select([sys.stdin], [], [], 0)[0]:
            station.publish("events", {"n": n, "pad": "x" * 100})
            n += 1
        print(n, flush=True)
        last = list(station.read("events"))
        print(last[-1].data["n"], last[0].offset, flush=True)
        station.close()
    """
    for durability in ("always", "interval"):
        root = tmp_path / durability
        with open_station(root, name="host1", durability=durability) as station, Child(code, root, durability) as child:
            child.line()
            lives = set()
            for _ in range(10):
                eventually(lambda: any(info.messages > 3 for info in station.channels()))
                lives.add(station.channel(CHANNEL).incarnation)
                station.delete_channel(CHANNEL)
            child.tell()
            count = int(child.line())
            last, first = map(int, child.line().split())
            child.finish()
            assert last == count - 1, "what was acknowledged last is not there"
            assert first == 0
            assert len(lives) == 10
        checked_log(root, CHANNEL)
        assert not list((root / "trash").iterdir())


def test_a_channel_whose_deleter_died_in_the_middle_is_whole_or_gone(tmp_path: Path) -> None:
    code = """
        import os, signal, sys
        import heliograph as hg
        from heliograph.disk import Disk
        from heliograph.station import open_station

        class Deadly(Disk):
            left = int(sys.argv[2])
            armed = False
            def _step(self, call, *arguments):
                if self.armed:
                    self.left -= 1
                    if self.left == 0:
                        os.kill(os.getpid(), signal.SIGKILL)
                return call(*arguments)
            def rename(self, a, b): return self._step(os.rename, a, b)
            def unlink(self, a): return self._step(os.unlink, a)
            def rmdir(self, a): return self._step(os.rmdir, a)
            def flock(self, fd, kind):
                import fcntl
                return self._step(fcntl.flock, fd, kind)
            def sync_directory(self, path): return self._step(super().sync_directory, path)

        disk = Deadly()
        station = open_station(sys.argv[1], name="host1", disk=disk)
        list(station.read("events"))
        disk.armed = True
        station.delete_channel("events")
        print("deleted", flush=True)
    """
    for number in range(1, 40):
        root = tmp_path / str(number)
        with open_station(root, name="host1", disk=QuickDisk(), busy_timeout_s=5) as station:
            for n in range(3):
                station.publish(CHANNEL, n)
            child = Child(code, root, number)
            survived = child.process.wait(30) == 0
            child.kill()
            # Whoever had it open, and whoever opens it now, goes on.
            receipt = station.publish(CHANNEL, "again")
            assert receipt.offset in (0, 3)
            data = [message.data for message in station.read(CHANNEL)]
            assert data in (["again"], [0, 1, 2, "again"])
            other = subprocess.run(
                [sys.executable, "-c", ("import sys, heliograph as hg\nwith hg.open(sys.argv[1], name='host1') as s:\n"
                 " print([m.data for m in s.read('events')])"), str(root)],
                capture_output=True, text=True, check=True,
            )  # fmt: skip
            assert other.stdout.strip() == repr(data)
        if survived:
            break
    assert survived
    assert number > 3


# -- rule 14: fork ----


def in_child(function) -> str:  # type: ignore[no-untyped-def]
    """What a function returns in a forked child."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        signal.alarm(10)  # whoever hangs answers nothing
        try:
            answer = str(function())
        except BaseException as error:
            answer = type(error).__name__
        os.write(write, answer.encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as file:
        answer = file.read()
    os.waitpid(pid, 0)
    return answer


@pytest.mark.parametrize("durability", ["always", "interval"])
def test_the_station_a_child_inherits_says_forked_at_every_door(tmp_path: Path, durability: str) -> None:
    with open_station(tmp_path, name="host1", durability=durability) as station:
        station.publish(CHANNEL, 1)
        ranged = station.read(CHANNEL)
        doors = {
            "publish": lambda: station.publish(CHANNEL, 2),
            "publish elsewhere": lambda: station.publish("other", 2),
            "publish_many": lambda: station.publish_many(CHANNEL, [2]),
            "read": lambda: list(station.read(CHANNEL)),
            "reading": lambda: next(ranged),
            "subscribe": lambda: station.subscribe(CHANNEL, print),
            "channels": station.channels,
            "channel": lambda: station.channel(CHANNEL),
            "create": lambda: station.create_channel("new"),
            "delete": lambda: station.delete_channel(CHANNEL),
            "get": lambda: station.get("x"),
            "trim": station.trim,
            "subscriptions": station.subscriptions,
            "seek": lambda: station.seek(CHANNEL, "w", 0),
            "stats": station.stats,
            "sync": station.sync,
        }
        for door, act in doors.items():
            assert in_child(act) == "Forked", door
        assert in_child(station.close) == "None"
        assert in_child(lambda: station.closed) == "True"
        assert station.publish(CHANNEL, 2).offset == 1  # the parent goes on
        assert in_child(lambda: open_station(tmp_path, name="host1").publish(CHANNEL, 3).offset) == "2"


@pytest.mark.parametrize("durability", ["always", "interval"])
def test_a_child_is_told_so_though_another_thread_published_when_it_forked(tmp_path: Path, durability: str) -> None:
    disk = FaultyDisk()
    writing, go_on = threading.Event(), threading.Event()

    def slow(*_: object) -> None:
        writing.set()
        go_on.wait(30)

    with open_station(tmp_path, name="host1", durability=durability, disk=disk) as station:
        producer = station.producer("importer")
        producer.publish(CHANNEL, 1)
        disk.before["pwrite"] = slow
        thread = threading.Thread(target=producer.publish, args=(CHANNEL, 2))
        thread.start()
        try:
            assert writing.wait(10)
            doors = {
                "publish": lambda: station.publish(CHANNEL, 3),
                "publish_many": lambda: station.publish_many(CHANNEL, [3]),
                "producer": lambda: producer.publish(CHANNEL, 3),
                "read": lambda: list(station.read(CHANNEL)),
            }
            for door, act in doors.items():
                assert in_child(act) == "Forked", door
            assert in_child(station.close) == "None"
        finally:
            go_on.set()
            thread.join()
        assert [message.data for message in station.read(CHANNEL)] == [1, 2]


def test_a_child_does_not_keep_its_dead_parent_s_locks(tmp_path: Path) -> None:
    code = """
        import os, signal, sys, time
        import heliograph as hg
        from heliograph.station import open_station
        station = open_station(sys.argv[1], name="host1", durability=sys.argv[2])
        station.subscribe("events", lambda message: None, name="worker")
        for n in range(100):
            station.publish("events", n)  # with `interval` the append lock is kept just now
        pid = os.fork()
        if pid == 0:
            time.sleep(120)
        print(pid, flush=True)
        time.sleep(60)
    """
    for durability in ("always", "interval"):
        root = tmp_path / durability
        parent = Child(code, root, durability)
        child_pid = int(parent.line())
        try:
            parent.process.kill()
            parent.process.wait()
            with open_station(root, name="host1", busy_timeout_s=10) as station:
                assert station.publish(CHANNEL, "after").offset == 100
                station.subscribe(CHANNEL, print, name="worker", paused=True).close()
                assert not station.subscriptions()[0].live
        finally:
            os.kill(child_pid, signal.SIGKILL)
            parent._close()


def test_a_child_s_exit_does_not_free_its_parent_s_locks(tmp_path: Path) -> None:
    with open_station(tmp_path, name="host1", durability="interval") as station:
        station.publish(CHANNEL, 1)
        with station.subscribe(CHANNEL, print, name="worker", paused=True):
            assert in_child(lambda: 1) == "1"
            code = """
                import sys, heliograph as hg
                with hg.open(sys.argv[1], name="host1") as station:
                    try:
                        station.subscribe("events", print, name="worker")
                        print("subscribed")
                    except hg.SubscriptionBusy:
                        print("busy")
            """
            with Child(code, tmp_path) as other:
                assert other.line() == "busy"
        assert station.publish(CHANNEL, 2).offset == 1


def test_multiprocessing_with_fork_works_when_the_child_opens_its_own(tmp_path: Path) -> None:
    with open_station(tmp_path, name="host1") as station:
        station.publish(CHANNEL, "parent")
        answers = [in_child(lambda n=n: open_station(tmp_path, name="host1").publish(CHANNEL, n).id) for n in range(3)]
        assert [message.id for message in station.read(CHANNEL)][1:] == answers


# -- news ----


def test_a_reader_in_another_process_is_woken_and_does_not_wait_for_the_second(tmp_path: Path) -> None:
    code = """
        import sys, time, heliograph as hg
        station = hg.open(sys.argv[1], name="host1", durability=sys.argv[2])
        def handle(message):
            print(message.data, flush=True)
        station.subscribe("events", handle, start="new")
        print("ready", flush=True)
        time.sleep(60)
    """
    for durability in ("always", "interval"):
        root = tmp_path / durability
        with (
            open_station(root, name="host1", durability=durability) as station,
            Child(code, root, durability) as reader,
        ):
            assert reader.line() == "ready"
            waits = []
            for number in range(12):
                time.sleep(0.03)  # let it fall asleep
                started = time.monotonic()
                station.publish(CHANNEL, number)
                assert reader.line() == str(number)
                waits.append(time.monotonic() - started)
        assert sorted(waits)[6] < 0.5, f"readers sleep through the news: {waits}"
