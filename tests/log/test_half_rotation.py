"""A rotation that stops in the middle, by an error or a kill, is finished before anything is appended."""

from __future__ import annotations

import errno
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import heliograph as hg
from heliograph.disk import Disk
from heliograph.log import head
from heliograph.station import open_station


class Sick(Disk):
    """Cannot sync the names of a directory while ``sick``."""

    sick = False

    def sync_directory(self, path: str | Path) -> None:
        if self.sick:
            raise OSError(errno.EMFILE, "too many open files")
        super().sync_directory(path)


def distrust_head(directory: Path) -> None:
    """As after a boot: the head is from before."""
    path = directory / "channels" / "c" / "0" / "head"
    data = bytearray(path.read_bytes())
    data[8:24] = bytes(16)
    path.write_bytes(data)
    assert len(data) == head.SIZE


@pytest.mark.parametrize("rebooted", [False, True])
def test_messages_after_a_failed_rotation_are_found(tmp_path: Path, rebooted: bool) -> None:
    disk = Sick()
    with open_station(tmp_path, name="x", segment_bytes=4096, disk=disk) as station:
        for n in range(10):
            station.publish("c", n)
        disk.sick = True
        with pytest.raises(hg.StorageError):
            station.publish("c", "x" * 4000)  # does not fit: a new segment is begun
        with pytest.raises(hg.StorageError):
            station.publish("c", "small")  # would fit the old one
        disk.sick = False
        receipts = [station.publish("c", n) for n in range(10, 13)]
        assert [receipt.offset for receipt in receipts] == [10, 11, 12]
        assert [message.data for message in station.read("c", start=10)] == [10, 11, 12]
    if rebooted:
        distrust_head(tmp_path)
    with hg.open(tmp_path) as station:
        assert station.publish("c", 13).offset == 13
        assert [message.data for message in station.read("c")] == list(range(14))


KILLED_WHILE_ROTATING = """
import os, signal, sys
import heliograph as hg
from heliograph.disk import Disk
from heliograph.station import open_station

class Deadly(Disk):
    deadly = False
    def sync_directory(self, path):
        if self.deadly:
            os.kill(os.getpid(), signal.SIGKILL)
        super().sync_directory(path)

disk = Deadly()
station = open_station(sys.argv[1], segment_bytes=4096, disk=disk)
station.publish("c", 9)
disk.deadly = True
station.publish("c", "x" * 4000)
"""


def test_another_process_finishes_the_rotation_of_one_that_was_killed(tmp_path: Path) -> None:
    with hg.open(tmp_path, name="x", segment_bytes=4096) as station:
        for n in range(9):
            station.publish("c", n)
        killed = subprocess.run([sys.executable, "-c", KILLED_WHILE_ROTATING, tmp_path], check=False)
        assert killed.returncode == -signal.SIGKILL
        assert len(list((tmp_path / "channels/c/0").glob("*.jsonl"))) == 2
        assert station.publish("c", 10).offset == 10
        assert [message.data for message in station.read("c")] == list(range(11))


class Interrupted(Disk):
    """Ctrl-C comes when the ``left``-th file of a segment was opened or closed."""

    left = 0

    def _count(self) -> None:
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt

    def open(self, path: str | Path, flags: int, mode: int = 0o666) -> int:
        found = super().open(path, flags, mode)
        self._count()
        return found

    def close(self, fd: int) -> None:
        super().close(fd)
        self._count()


@pytest.mark.parametrize("left", range(1, 7))
def test_an_interrupt_while_files_are_changed_for_others_closes_none_twice(tmp_path: Path, left: int) -> None:
    disk = Interrupted()
    with open_station(tmp_path, name="host1", durability="os", disk=disk) as station:
        station.publish("c", 0)
        with open_station(tmp_path, name="host1", durability="os") as other:
            other.engine.writer("c", 0).rotate()  # so that the first one has to open the next segment
            other.publish("c", 1)
        disk.left = left
        try:
            station.publish("c", 2)
        except KeyboardInterrupt:
            disk.left = 0
            station.publish("c", 2)
        disk.left = 0
        station.publish("c", 3)
        found = [message.data for message in station.read("c")]
        assert sorted(set(found)) == [0, 1, 2, 3]
