"""Who works for a queue: a lock file each, subscriptions/images/resize/workers/4711-9f3a1c.lock.

The kernel frees a dead worker's lock, so that what it held can be handed out at once. Identities are never used
twice, which is why a file that is free, or gone, belongs to somebody who is dead.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path

from heliograph.disk import Disk, explain
from heliograph.log.locks import FileLock

DIRECTORY = "workers"


class Worker:
    """One worker, as long as it lives."""

    def __init__(self, queue: Path, disk: Disk) -> None:
        self.name = f"{os.getpid()}-{os.urandom(4).hex()}"
        self._disk = disk
        directory = queue / DIRECTORY
        try:
            directory.mkdir(exist_ok=True)
            self._lock = FileLock(_path(queue, self.name), disk)
            self._lock.try_exclusive()  # nobody else knows its name yet
            self._lock.note(f"process {os.getpid()}")
        except OSError as error:
            raise explain(error, f"cannot become a worker of {queue}") from error

    def close(self) -> None:
        """It works no more, and holds nothing."""
        with contextlib.suppress(OSError):
            self._disk.unlink(self._lock.path)
        self._lock.release()


def _path(queue: Path, name: str) -> Path:
    return queue / DIRECTORY / f"{name}.lock"


def is_dead(queue: Path, name: str, disk: Disk) -> bool:
    try:
        lock = FileLock(_path(queue, name), disk, create=False)
    except FileNotFoundError:
        return True
    try:
        return lock.free()
    finally:
        lock.release()


def bury(queue: Path, names: Iterable[str], disk: Disk) -> None:
    """Remove what dead workers left, once nothing is leased to them any more."""
    for name in names:
        with contextlib.suppress(OSError):
            disk.unlink(_path(queue, name))


def living(queue: Path, disk: Disk) -> list[str]:
    """The workers there are now."""
    with contextlib.suppress(FileNotFoundError):
        names = [entry.removesuffix(".lock") for entry in sorted(disk.listdir(queue / DIRECTORY))]
        return [name for name in names if not is_dead(queue, name, disk)]
    return []
