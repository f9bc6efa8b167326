"""A publisher that is killed, or kills itself in the middle of a call of the disk.

    writer.py ROOT NAME ACKS DURABILITY SEED SUICIDE COUNT

Whatever ``publish`` or ``publish_many`` acknowledged is appended to ACKS with one write, afterwards. SUICIDE
is the number of the disk's call in which to die (0: never); COUNT ends the run by itself (0: never).
"""

from __future__ import annotations

import os
import random
import signal
import sys
from typing import Any

import heliograph as hg
from heliograph.disk import Disk
from heliograph.log import room
from heliograph.station import open_station

CHANNEL = "events"
SEGMENT_BYTES = 4096


class SuicidalDisk(Disk):
    """Dies at a call: before it, after it, or when half of it is written."""

    def __init__(self, at: int, luck: random.Random) -> None:
        self._left = at
        self._luck = luck

    def _step(self, call: Any, *arguments: Any) -> Any:
        self._left -= 1
        if self._left:
            return call(*arguments)
        fate = self._luck.random()
        if call in (os.write, os.pwrite) and fate < 0.6:
            fd, data, *rest = arguments
            call(fd, bytes(data)[: self._luck.randint(0, len(data))], *rest)
        elif fate < 0.8:
            call(*arguments)
        os.kill(os.getpid(), signal.SIGKILL)
        return None

    def open(self, path: Any, flags: int, mode: int = 0o644) -> int:
        call = super().open
        return int(self._step(call, path, flags, mode)) if flags & os.O_CREAT else call(path, flags, mode)

    def fdatasync(self, fd: int) -> None:
        self._step(os.fdatasync, fd)

    def sync_directory(self, path: Any) -> None:
        self._step(super().sync_directory, path)


def _forward(name: str) -> Any:
    real = getattr(os, name)
    return lambda self, *arguments: self._step(real, *arguments)


for _name in ("write", "pwrite", "ftruncate", "unlink", "rename"):
    setattr(SuicidalDisk, _name, _forward(_name))


def main() -> None:
    root, name, acks, durability, seed, suicide, count = sys.argv[1:]
    luck = random.Random(int(seed))
    if luck.random() < 0.5:  # these segments are too small for room otherwise
        room.ROOM_AFTER_BYTES = room.ROOM_BYTES_MIN = 1
    disk = SuicidalDisk(int(suicide), luck) if int(suicide) else Disk()
    station = open_station(root, name="host1", durability=durability, segment_bytes=SEGMENT_BYTES, disk=disk)
    fd = os.open(acks, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    number = 0
    while not int(count) or number < int(count):
        size = luck.choice([1, 50, 200, 900, 3000])
        if luck.random() < 0.7:
            receipts = [station.publish(CHANNEL, {"w": name, "n": number, "pad": "x" * luck.randint(0, size)})]
        else:
            of = luck.randint(2, 6)
            receipts = station.publish_many(
                CHANNEL,
                [
                    hg.Draft(
                        data={"w": name, "n": number + i, "b": number, "of": of, "pad": "x" * luck.randint(0, size)}
                    )
                    for i in range(of)
                ],
            )
        acked = [f"{number + i} {receipt.offset} {receipt.id}\n" for i, receipt in enumerate(receipts)]
        os.write(fd, "".join(acked).encode())
        number += len(receipts)
    station.close()


if __name__ == "__main__":
    main()
