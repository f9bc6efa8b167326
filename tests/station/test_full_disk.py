"""A really full disk, a really read-only one, and too few descriptors."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import heliograph as hg
from tests.proof.tools import Child, checked_log, eventually


def _mount(*arguments: object) -> None:
    done = subprocess.run(["mount", *map(str, arguments)], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"mounting is not permitted here: {done.stderr.strip()}")


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A file system of one megabyte."""
    point = tmp_path / "small"
    point.mkdir()
    _mount("-t", "tmpfs", "-o", "size=1m", "tmpfs", point)
    yield point
    subprocess.run(["umount", "-l", str(point)], check=True)


def fill(point: Path) -> Path:
    """Take every byte that is left."""
    ballast = point / "ballast"
    with pytest.raises(OSError, match="No space left"), ballast.open("wb", buffering=0) as file:
        while True:
            file.write(b"x" * 4096)
    return ballast


@pytest.mark.parametrize("durability", ["always", "interval"])
def test_a_full_disk_is_said_at_once_shows_nothing_half_and_publishing_resumes(small: Path, durability: str) -> None:
    root = small / "data"
    with hg.open(root, name="host1", durability=durability) as station:
        acknowledged = [station.publish("a", {"n": n, "pad": "x" * 1000}).id for n in range(5)]
        ballast = fill(small)
        with pytest.raises(hg.DiskFull, match="publishing resumes"):
            for n in range(20):
                receipt = station.publish("a", {"n": n, "pad": "x" * 1000})
                acknowledged.append(receipt.id)
        with pytest.raises(hg.DiskFull):
            station.publish_many("a", [{"pad": "x" * 1000}] * 20)
        with pytest.raises(hg.DiskFull):
            station.publish("a", {"pad": "x" * 100_000})
        assert [message.id for message in station.read("a")] == acknowledged
        ballast.unlink()
        acknowledged += [one.id for one in station.publish_many("a", [{"pad": "x" * 1000}] * 20)]
        acknowledged.append(station.publish("a", "after").id)
        assert [message.id for message in station.read("a")] == acknowledged
    assert [envelope["id"] for envelope in checked_log(root, "a").values()] == acknowledged


def test_a_new_channel_on_a_full_disk_is_refused_whole_and_made_later(small: Path) -> None:
    with hg.open(small / "data", name="host1") as station:
        station.publish("a", 1)
        ballast = fill(small)
        with pytest.raises(hg.DiskFull):
            station.publish("new", 1)
        assert [info.name for info in station.channels()] == ["a"]
        assert not [path for path in (small / "data" / "channels").iterdir() if path.name.startswith(".")]
        ballast.unlink()
        assert station.publish("new", 1).offset == 0


def test_a_position_that_cannot_be_saved_is_counted_and_the_subscription_goes_on(small: Path) -> None:
    with hg.open(small / "data", name="host1", position_flush_ms=10) as station:
        station.publish_many("a", ["x" * 1000] * 5)
        got: list[int] = []
        subscription = station.subscribe(
            "a", lambda message: got.append(message.offset), name="s", paused=True, start=0
        )
        ballast = fill(small)
        subscription.resume()
        eventually(lambda: len(got) == 5)
        eventually(lambda: subscription.stats().position_errors > 0)
        assert subscription.state == "running"
        ballast.unlink()
        station.publish("a", "after")
        eventually(lambda: [info.offset for info in station.subscriptions("a")] == [6])
        assert got == list(range(6))


def test_a_read_only_file_system_says_read_only_and_can_be_read(small: Path) -> None:
    root = small / "data"
    with hg.open(root, name="host1") as station:
        station.publish_many("a", [1, 2, 3])
    _mount("-o", "remount,ro", small)
    with pytest.raises(hg.ReadOnly, match="read_only=True"):
        hg.open(root)
    with hg.open(root, read_only=True) as station:
        assert [message.data for message in station.read("a")] == [1, 2, 3]
        with pytest.raises(hg.ReadOnly):
            station.publish("a", 4)
    with pytest.raises(hg.ReadOnly):
        hg.open(small / "new")


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
