"""The partitions this process has open: a bounded number, closed when nobody used them lately."""

from __future__ import annotations

import contextlib
import resource
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, TypeVar

from heliograph.disk import explain
from heliograph.engine.batches import SharedBatches
from heliograph.engine.watch import Watcher
from heliograph.errors import Busy, HeliographError
from heliograph.log.commit import GroupCommit
from heliograph.log.held import ChannelGone, Evicted
from heliograph.log.partition import Partition

if TYPE_CHECKING:
    from heliograph.log.readonly import ReadOnlyLog

_T = TypeVar("_T")
_TRIES = 24
_TRIES_AT_ONCE = 4
_FILES_EACH = 5  # segment, index, lock, news, room as memory


def _affordable() -> int:
    """How many partitions the limit of open files leaves room for, with half of it left to the application."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(1, soft // 2 // _FILES_EACH)


class OpenPartition:
    """One partition this process has open."""

    __slots__ = ("commit", "log", "pins", "shared")

    def __init__(self, log: Partition | ReadOnlyLog, commit: GroupCommit | None) -> None:
        self.log = log
        self.commit = commit
        self.shared = SharedBatches(log.head)
        self.pins = 0  # not to be closed for room

    @property
    def closed(self) -> bool:
        """Whether its files are closed, for room or with the engine."""
        return self.log.closed

    def close_if_idle(self) -> bool:
        return self.log.close_if_idle() if self.commit is None else self.commit.close_if_idle()

    def abandon(self) -> None:
        """In a forked child: close what was inherited. Whoever held a mutex is a thread that does not exist here."""
        if self.commit is not None:
            self.commit.abandon()
        if isinstance(self.log, Partition):
            self.log.mutex = threading.Lock()
        self.log.abandon()


def sync_all(syncs: Iterable[Callable[[], None]]) -> bool:
    """Carry all of them out, though some may fail; then raise what the first one did. Whether channels are gone."""
    errors: list[HeliographError] = []
    gone = False
    for sync in syncs:
        try:
            sync()
        except ChannelGone:
            gone = True  # deleted by another process: there is nothing left to sync
        except HeliographError as error:
            errors.append(error)
    if errors:
        raise errors[0]
    return gone


class OpenPartitions:
    """Opens partitions when they are needed and closes them when others need their room."""

    def __init__(self, open_files: Callable[[str, int], OpenPartition], watcher: Watcher, count_max: int) -> None:
        self.known: dict[tuple[str, int], OpenPartition] = {}
        self._open_files = open_files
        self._watcher = watcher
        self._count_max = min(count_max, _affordable())
        self._lock = threading.RLock()
        self._finishing = False

    def all(self, channel: str | None = None) -> list[OpenPartition]:
        return [entry for (name, _), entry in list(self.known.items()) if channel is None or name == channel]

    def get(self, channel: str, number: int) -> OpenPartition:
        entry = self.known.get((channel, number))
        if entry is None:
            entry = self._open(channel, number)
        entry.log.used = True
        return entry

    def _open(self, channel: str, number: int) -> OpenPartition:
        with self._lock:
            entry = self.known.get((channel, number))
            if entry is None:
                try:
                    self._make_room()
                    entry = self._open_files(channel, number)
                except OSError as error:
                    raise explain(error, f"cannot open channel '{channel}'") from error
                if self._finishing and entry.commit is not None:
                    entry.commit.finish()
                self.known[(channel, number)] = entry
            return entry

    def _make_room(self) -> None:
        """Close partitions nobody used lately (second chance), so that descriptors stay bounded."""
        excess = len(self.known) - self._count_max + 1
        for key, entry in list(self.known.items()) * 2 if excess > 0 else ():
            if excess <= 0 or key not in self.known:
                continue
            if entry.log.used:
                entry.log.used = False
            elif not entry.pins and entry.close_if_idle():
                del self.known[key]
                self._unwatch(entry)
                excess -= 1

    @contextlib.contextmanager
    def pinned(self, channel: str, number: int) -> Iterator[None]:
        """Do not close it for room meanwhile: for whoever holds its lock and opens others, which may need room."""
        with self._lock:
            entry = self.get(channel, number)
            entry.pins += 1
        try:
            yield
        finally:
            with self._lock:
                entry.pins -= 1

    def use(self, channel: str, number: int, action: Callable[[OpenPartition], _T]) -> _T:
        """Run on an open partition; opens it again if it was closed for room or deleted meanwhile."""
        for attempt in range(_TRIES):
            if attempt > _TRIES_AT_ONCE:
                time.sleep(0.001 * attempt)  # more are wanted than may be open: let the others finish
            entry = self.get(channel, number)
            try:
                return action(entry)
            except ChannelGone:
                self.forget(channel, number, entry)
            except Evicted:
                if entry.log.gone:  # and nobody forgot it
                    self.forget(channel, number, entry)
            except ValueError:  # the head was unmapped in the middle of it
                if not entry.closed:
                    raise
        raise Busy(f"channel '{channel}' is being opened and closed all the time; raise storage.open_partitions_max")

    def forget(self, channel: str, number: int, entry: OpenPartition) -> None:
        """Close a partition that is gone; not the one that another thread has opened in its place meanwhile."""
        with self._lock:
            if self.known.get((channel, number)) is not entry:
                return
            del self.known[(channel, number)]
        self._unwatch(entry)
        entry.log.close()

    def _unwatch(self, entry: OpenPartition) -> None:
        for name in ("news", "lock"):
            self._watcher.unwatch(entry.log.place.directory / name)

    def finish(self, wait_s: float) -> None:
        """Take nothing more to publish, and wait for what was taken: before those stop who lead it to the disk."""
        commits = []
        with self._lock:
            self._finishing = True
            for entry in self.known.values():
                if entry.commit is not None:
                    entry.commit.finish()
                    commits.append(entry.commit)
        until = time.monotonic() + wait_s
        for commit in commits:
            commit.finished(max(0.0, until - time.monotonic()))

    def close(self) -> None:
        """Close them all, though some may fail; what others appended until now is synced."""
        with self._lock:
            entries = list(self.known.values())
            self.known.clear()
        sync_all(entry.log.finish for entry in entries)

    def abandon(self) -> None:
        """In a forked child: close what was inherited, without unlocking what the parent holds."""
        self._lock = threading.RLock()
        for entry in list(self.known.values()):
            entry.abandon()
        self.known.clear()
