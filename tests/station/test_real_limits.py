"""Real limits of a real system: a small file system that is full, a directory nobody may write, too few descriptors."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import heliograph as hg
from heliograph.station import open_station
from tests.proof.tools import Child, checked_log, eventually

CHANNEL = "events"


def mount(*arguments: object) -> None:
    done = subprocess.run(["mount", *map(str, arguments)], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"mounting is not permitted here: {done.stderr.strip()}")


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A file system of one mebibyte."""
    point = tmp_path / "small"
    point.mkdir()
    mount("-t", "tmpfs", "-o", "size=1m", "tmpfs", point)
    try:
        yield point
    finally:
        subprocess.run(["umount", "-l", point], check=True)


def fill_up(point: Path) -> Path:
    ballast = point / "ballast"
    with ballast.open("ab", buffering=0) as file:
        for size in (65_536, 4096, 1):
            try:
                while True:
                    file.write(b"x" * size)
            except OSError as error:
                assert error.errno == errno.ENOSPC  # noqa: PT017
    return ballast


@pytest.mark.parametrize("durability", ["always", "interval", "os"])
def test_a_full_disk_is_an_error_at_once_and_publishing_resumes_when_there_is_room(
    small: Path, durability: str
) -> None:
    with open_station(small / "data", name="host1", durability=durability, segment_bytes=16_384) as station:
        acknowledged = [station.publish(CHANNEL, {"n": number, "pad": "x" * 200}).id for number in range(20)]
        ballast = fill_up(small)
        refused = 0
        for size in (10, 500, 5000, 100_000, 500, 10) * 8:
            try:
                acknowledged.append(station.publish(CHANNEL, {"pad": "y" * size}).id)
            except hg.DiskFull as error:
                assert "space" in str(error)  # noqa: PT017
                assert "publishing resumes" in str(error)  # noqa: PT017
                refused += 1
            try:
                acknowledged += [r.id for r in station.publish_many(CHANNEL, [{"pad": "z" * size}] * 3)]
            except hg.DiskFull:
                refused += 1
        assert refused > 10
        # Reading goes on meanwhile.
        assert [message.id for message in station.read(CHANNEL)] == acknowledged
        ballast.unlink()
        acknowledged += [station.publish(CHANNEL, {"after": number}).id for number in range(20)]
        acknowledged += [receipt.id for receipt in station.publish_many(CHANNEL, [{"pad": "x" * 1000}] * 20)]
        assert [message.id for message in station.read(CHANNEL)] == acknowledged
    assert [message["id"] for message in checked_log(small / "data", CHANNEL).values()] == acknowledged
    with open_station(small / "data", name="host1") as station:
        assert [message.id for message in station.read(CHANNEL)] == acknowledged


def test_a_full_disk_does_not_lose_a_subscriber_s_place(small: Path) -> None:
    with open_station(small / "data", name="host1", position_flush_ms=1) as station:
        for number in range(10):
            station.publish(CHANNEL, number)
        ballast = fill_up(small)
        got: list[int] = []
        leave = threading.Event()

        def handle(message: hg.Message) -> None:
            got.append(message.data)
            if len(got) == 10:
                leave.set()

        try:
            subscription = station.subscribe(CHANNEL, handle, name="worker", start="first")
        except hg.DiskFull:
            ballast.unlink()
            subscription = station.subscribe(CHANNEL, handle, name="worker", start="first")
        assert leave.wait(30)
        if ballast.exists():
            ballast.unlink()
        eventually(lambda: subscription.stats().saved_position == 10)
        subscription.close()
        assert got == list(range(10))
        assert station.subscriptions()[0].offset == 10


def test_a_position_that_cannot_be_saved_is_counted_and_the_subscription_goes_on(small: Path) -> None:
    with open_station(small / "data", name="host1", position_flush_ms=10) as station:
        station.publish_many(CHANNEL, ["x" * 1000] * 5)
        got: list[int] = []
        subscription = station.subscribe(
            CHANNEL, lambda message: got.append(message.offset), name="s", paused=True, start=0
        )
        ballast = fill_up(small)
        subscription.resume()
        eventually(lambda: len(got) == 5)
        eventually(lambda: subscription.stats().position_errors > 0)
        assert subscription.state == "running"
        ballast.unlink()
        station.publish(CHANNEL, "after")
        eventually(lambda: [info.offset for info in station.subscriptions(CHANNEL)] == [6])
        assert got == list(range(6))


def test_a_channel_cannot_be_made_on_a_full_disk_and_nothing_half_made_is_left(small: Path) -> None:
    with open_station(small / "data", name="host1") as station:
        station.publish(CHANNEL, 1)
        ballast = fill_up(small)
        with pytest.raises(hg.DiskFull):
            station.publish("another", 1)
        assert [info.name for info in station.channels()] == [CHANNEL]
        assert os.listdir(small / "data" / "channels") == [CHANNEL]
        ballast.unlink()
        assert station.publish("another", 1).offset == 0
        assert os.listdir(small / "data" / "channels") in ([CHANNEL, "another"], ["another", CHANNEL])


def test_the_head_of_a_new_channel_takes_its_page_at_once(small: Path) -> None:
    """A sparse page would be SIGBUS when the disk is full and the page is first written through the mapping."""
    code = """
        import os, sys, heliograph as hg
        station = hg.open(os.path.join(sys.argv[1], "data"), name="host1")
        for n in range(5):
            station.create_channel(f"c{n}")
        with open(os.path.join(sys.argv[1], "ballast"), "wb", buffering=0) as file:
            try:
                while True:
                    file.write(b"x" * 512)
            except OSError:
                pass
        refused = 0
        for n in range(5):
            for i in range(50):
                try:
                    station.publish(f"c{n}", "x" * 3000)
                except hg.DiskFull:
                    refused += 1
        print("alive", refused > 0, flush=True)
    """
    with Child(code, small) as child:
        assert child.line() == "alive True"


def test_opening_on_a_full_disk_explains_itself_and_works_afterwards(small: Path) -> None:
    with open_station(small / "data", name="host1") as station:
        for number in range(10):
            station.publish(CHANNEL, number)
    (small / "data" / "channels" / CHANNEL / "0" / "head").unlink()
    ballast = fill_up(small)
    try:
        open_station(small / "data", name="host1").close()
    except hg.StorageError as error:
        assert "space" in str(error)  # noqa: PT017
    ballast.unlink()
    with open_station(small / "data", name="host1") as station:
        assert [message.data for message in station.read(CHANNEL)] == list(range(10))


# -- nobody may write ----


@pytest.mark.parametrize("derived", ["there", "lost"])
def test_a_directory_that_cannot_be_written_says_so_and_can_be_read(small: Path, derived: str) -> None:
    with open_station(small / "data", name="host1", segment_bytes=4096) as station:
        for number in range(50):
            station.publish(CHANNEL, {"n": number, "pad": "x" * 200})
    if derived == "lost":
        (small / "data" / "channels" / CHANNEL / "0" / "head").unlink()
        for path in (small / "data" / "channels" / CHANNEL / "0").glob("*.index"):
            path.unlink()
    mount("-o", "remount,ro", small)
    for path in (small / "data", small / "new"):
        with pytest.raises(hg.ReadOnly, match="read_only=True"):
            open_station(path, name="host1")
    with open_station(small / "data", read_only=True) as station:
        assert [message.data["n"] for message in station.read(CHANNEL)] == list(range(50))
        with pytest.raises(hg.ReadOnly):
            station.publish(CHANNEL, 1)
    mount("-o", "remount,rw", small)
    with open_station(small / "data", name="host1") as station:
        assert station.publish(CHANNEL, {"n": 50}).offset == 50


def test_a_path_that_is_a_file_says_so(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("not a directory")
    with pytest.raises(hg.HeliographError, match="data"):
        open_station(tmp_path / "data", name="host1")


# -- too few descriptors ----


def test_too_few_descriptors_are_an_error_that_says_so_and_publishing_resumes(tmp_path: Path) -> None:
    code = """
        import os, resource, sys
        import heliograph as hg
        station = hg.open(sys.argv[1], name="host1", segment_bytes=4096)
        acknowledged = [station.publish("events", {"n": n, "pad": "x" * 300}).id for n in range(5)]
        hogs = []
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))
        try:
            while True:
                hogs.append(os.open("/dev/null", os.O_RDONLY))
        except OSError:
            pass
        errors = []
        for n in range(60):
            for act in (
                lambda: acknowledged.append(station.publish("events", {"n": n, "pad": "x" * 300}).id),
                lambda: station.publish("other", n),
                lambda: list(station.read("events")),
                lambda: station.channels(),
            ):
                try:
                    act()
                except hg.HeliographError as error:
                    errors.append(str(error))
        print(len(errors) > 10, all("too many open files" in e for e in errors), flush=True)
        for fd in hogs:
            os.close(fd)
        acknowledged.append(station.publish("events", "after").id)
        print([message.id for message in station.read("events")] == acknowledged, flush=True)
        print(station.publish("other", 1).offset, flush=True)
        station.close()
    """
    with Child(code, tmp_path) as child:
        assert child.line() == "True True"
        assert child.line() == "True"
        assert child.line() == "0"
    checked_log(tmp_path, CHANNEL)


def test_a_thousand_channels_take_a_bounded_number_of_descriptors(tmp_path: Path) -> None:
    code = """
        import os, resource, sys
        import heliograph as hg
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
        with hg.open(sys.argv[1], name="host1", open_partitions_max=16, durability="os") as station:
            most = 0
            for lap in range(2):
                for n in range(150):
                    station.publish(f"c{n}", lap)
                    most = max(most, len(os.listdir("/proc/self/fd")))
            print(most, flush=True)
            for n in range(150):
                assert [message.data for message in station.read(f"c{n}")] == [0, 1], n
            print(len(os.listdir("/proc/self/fd")), station.stats().open_partitions, flush=True)
    """
    with Child(code, tmp_path) as child:
        assert int(child.line()) < 110
        descriptors, partitions = map(int, child.line().split())
        assert descriptors < 110
        assert partitions <= 16


LIMITED = """
    import json, os, resource, sys
    import heliograph as hg
    from heliograph.station import open_station
    from tests.faults import QuickDisk

    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    with open_station(sys.argv[1], name="host1", disk=QuickDisk()) as station:
"""


def test_many_channels_work_with_few_descriptors(tmp_path: Path) -> None:
    code = (
        LIMITED
        + """
        for round in range(2):
            for n in range(80):
                station.publish(f"c{n}", round)
        counts = [info.messages for info in station.channels()]
        print(json.dumps([set(counts) == {2} and len(counts), len(os.listdir("/proc/self/fd"))]), flush=True)
    """
    )
    with Child(code, tmp_path) as child:
        channels, descriptors = json.loads(child.line())
        child.finish()
    assert channels == 80
    assert descriptors <= 64


def test_when_the_application_takes_all_descriptors_the_error_says_so_and_publishing_resumes(tmp_path: Path) -> None:
    code = (
        LIMITED
        + """
        station.publish("a", 1)
        taken = []
        try:
            while True:
                taken.append(os.open("/dev/null", os.O_RDONLY))
        except OSError:
            pass
        try:
            station.publish("b", 1)
            said = None
        except hg.StorageError as error:
            said = str(error)
        going = station.publish("a", 2).offset
        for fd in taken:
            os.close(fd)
        print(json.dumps([said, going, station.publish("b", 1).offset]), flush=True)
    """
    )
    with Child(code, tmp_path) as child:
        said, going, after = json.loads(child.line())
        child.finish()
    assert "too many open files" in said
    assert "ulimit -n" in said
    assert (going, after) == (1, 0)
