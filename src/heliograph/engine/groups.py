"""The workers of a group, as files. The kernel frees a dead worker's locks at once.

    subscriptions/alerts/pager/lock             held shared by every live worker, alone by whoever seeks or forgets
    subscriptions/alerts/pager/join.lock        held for a moment while joining, and while positions begin
    subscriptions/alerts/pager/members/ID.lock  held by that worker
    subscriptions/alerts/pager/members/ID.json  {"worker":ID,"process":4711,"since":…,"partitions":[0,2]}
    subscriptions/alerts/pager/leases/2.lock    held by the worker that delivers partition 2
    subscriptions/alerts/pager/changes          written to whenever something changes: the others are watching it

What a worker says it holds is for the others' decisions, and for people; what counts is the lease.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from heliograph.clock import Clock, from_us
from heliograph.disk import Disk
from heliograph.engine.members import LOCK, live_members
from heliograph.engine.port import MemberInfo
from heliograph.engine.positions import Positions, taken
from heliograph.engine.watch import Watcher
from heliograph.log.locks import FileLock
from heliograph.log.news import ring

JOIN_TIMEOUT_S = 30.0
"""How long to wait for another worker that is joining."""


class Bells:
    """Watches files for several listeners each: a group's workers may be threads of one process."""

    def __init__(self, watcher: Watcher) -> None:
        self._watcher = watcher
        self._listeners: dict[Path, list[Callable[[], object]]] = {}
        self._lock = threading.Lock()

    def listen(self, path: Path, listener: Callable[[], object]) -> None:
        with self._lock:
            self._listeners.setdefault(path, []).append(listener)
        self._watcher.watch(path, lambda: self._ring(path))

    def _ring(self, path: Path) -> None:
        for listener in list(self._listeners.get(path, ())):
            listener()

    def ignore(self, path: Path, listener: Callable[[], object]) -> None:
        with self._lock:
            listeners = self._listeners.get(path, [])
            if listener in listeners:
                listeners.remove(listener)
            if listeners:
                return
            self._listeners.pop(path, None)
        self._watcher.unwatch(path)


class PartitionLease:
    """The right to deliver one partition of a group."""

    def __init__(self, lock: FileLock) -> None:
        self._lock: FileLock | None = lock

    def valid(self) -> bool:
        """Whether it is held, and still is the lease that others would ask for."""
        lock = self._lock
        return lock is not None and lock.in_place()

    def release(self) -> None:
        lock, self._lock = self._lock, None
        if lock is not None:
            lock.release()


class Membership:
    """One worker's place in a group."""

    def __init__(
        self, positions: Positions, disk: Disk, clock: Clock, bells: Bells, channel: str, name: str, worker: str
    ) -> None:
        self.worker = worker
        self._disk = disk
        self._clock = clock
        self._bells = bells
        self._directory = positions.directory(channel, name)
        self._listener: Callable[[], object] | None = None
        self._shared: FileLock | None = positions.share(channel, name)
        self._own: FileLock | None = None
        try:
            for part in ("members", "leases"):
                (self._directory / part).mkdir(exist_ok=True)
            with self.alone():
                positions.claim_kind(channel, name, "group")
                self._sweep()
                since = from_us(clock.time_ns() // 1000)
                self._info = MemberInfo(worker=worker, process=os.getpid(), since=since, partitions=[])
                self._write()
                self._own = FileLock(self._member(worker, LOCK), disk)
                taken(self._own)  # nobody else wants it, though somebody may just look at it
        except BaseException:
            self.leave()
            raise
        self.tell()

    def _member(self, worker: str, suffix: str) -> Path:
        return self._directory / "members" / f"{worker}{suffix}"

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """No other worker joins or begins positions meanwhile."""
        lock = FileLock(self._directory / "join.lock", self._disk)
        try:
            lock.exclusive(self._clock, JOIN_TIMEOUT_S)
            yield
        finally:
            lock.release()

    def members(self) -> dict[str, list[int]]:
        """What every live worker says it holds, this one among them."""
        return {info.worker: info.partitions for info in live_members(self._directory, self._disk)}

    def say(self, partitions: list[int]) -> None:
        """Tell the others what this one holds."""
        self._info = msgspec.structs.replace(self._info, partitions=sorted(partitions))
        self._write()
        self.tell()

    def _write(self) -> None:
        """Without a sync: after a power cut nobody is a worker."""
        path = self._member(self.worker, ".json")
        temporary = path.with_suffix(".tmp")
        fd = self._disk.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        try:
            self._disk.pwrite(fd, msgspec.json.encode(self._info) + b"\n", 0)
        finally:
            self._disk.close(fd)
        self._disk.rename(temporary, path)

    def lease(self, partition: int) -> PartitionLease | None:
        """The right to deliver a partition, if nobody else has it."""
        lock = FileLock(self._directory / "leases" / f"{partition}.lock", self._disk)
        if not lock.try_exclusive():
            lock.release()
            return None
        lock.note(self.worker)
        return PartitionLease(lock)

    def listen(self, listener: Callable[[], object]) -> None:
        """Call this whenever something changes."""
        self._listener = listener
        self._bells.listen(self._directory / "changes", listener)

    def tell(self) -> None:
        """Something has changed."""
        ring(self._directory / "changes", self._disk)

    def _sweep(self) -> None:
        """Remove what dead workers left. Alone, so that nobody is between making his file and locking it."""
        members = self._directory / "members"
        live = {info.worker for info in live_members(self._directory, self._disk)}
        for entry in self._disk.listdir(members):
            if entry.rpartition(".")[0] not in live:
                with contextlib.suppress(OSError):  # what cannot be removed, a directory, say, is in nobody's way
                    self._disk.unlink(members / entry)

    def leave(self) -> None:
        """Be a worker no longer; every lease was given back. Safe to call again."""
        if self._listener is not None:
            self._bells.ignore(self._directory / "changes", self._listener)
            self._listener = None
        own, self._own = self._own, None
        if own is not None:
            for suffix in (".json", LOCK):
                with contextlib.suppress(OSError):
                    self._disk.unlink(self._member(self.worker, suffix))
            own.release()
            self.tell()
        shared, self._shared = self._shared, None
        if shared is not None:
            shared.release()
