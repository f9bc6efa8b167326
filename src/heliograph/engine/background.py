"""The engine's own threads, each started when it is first needed and asleep when it is not."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue

from heliograph.engine.watch import Watcher
from heliograph.errors import HeliographError
from heliograph.limits import LOCK_LOOK_DEAF_S, LOCK_LOOK_S, SYNC_LOOKS_MAX
from heliograph.log.commit import GroupCommit
from heliograph.log.partition import Partition

logger = logging.getLogger("heliograph.engine")


class LockKeeper:
    """Gives append locks back that an idle process kept (see AppendLock): soon, and at once if somebody rings."""

    def __init__(self, watcher: Watcher) -> None:
        self._watcher = watcher
        self._kept: dict[Partition, int] = {}
        self._wake = threading.Event()
        self._started = False
        self._closed = False

    def add(self, partition: Partition) -> None:
        """The partition keeps its lock from now on."""
        self._kept[partition] = -1
        self._wake.set()
        if not self._started:
            self._started = True
            threading.Thread(target=self._run, name="heliograph-locks", daemon=True).start()

    def _run(self) -> None:
        while not self._closed:
            if not self._kept:
                self._wake.wait()
                self._wake.clear()
            for partition in list(self._kept):
                if not partition.closed:
                    self._watcher.watch(partition.lock_path, partition.release_if_asked)
            time.sleep(LOCK_LOOK_DEAF_S if self._watcher.deaf else LOCK_LOOK_S)
            self._look()

    def _look(self) -> None:
        for partition in list(self._kept):
            following = self._kept.pop(partition)  # before: whoever publishes right after the look adds it again
            if not partition.release_if_idle(following):
                self._kept.setdefault(partition, partition.next)

    def close(self) -> None:
        self._closed = True
        self._wake.set()


class Syncer:
    """Durability `interval`: syncs what was written, every so often, and sleeps while nobody writes.

        looking ──nothing to sync, SYNC_LOOKS_MAX times──▶ asleep = True ──still nothing astir──▶ asleep
           ▲                                                   │ something is                        │
           └───────────────────────────────────────────────────┴──◀── whoever is about to write ─────┘

    Whoever takes an append lock, or has handed something in, looks at ``asleep`` afterwards. So the syncer says that it
    is about to sleep, and only then looks whether anybody has a lock, or has written, or has closed it.
    """

    def __init__(self, interval_s: float, partitions: Callable[[], list[Partition]]) -> None:
        self._interval_s = interval_s
        self._partitions = partitions
        self._stop = threading.Event()
        self._wake = threading.Event()
        self.asleep = False
        self._thread = threading.Thread(target=self._run, name="heliograph-sync", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        looks = 0
        while not self._stop.wait(self._interval_s):
            looks = 0 if self._sync() else looks + 1
            if looks >= SYNC_LOOKS_MAX:
                self._sleep()
                looks = 0

    def _sync(self) -> bool:
        """Sync what is not; whether there was anything."""
        found = False
        for partition in self._partitions():
            if partition.dirty:
                found = True
                try:
                    partition.sync()
                except HeliographError as error:
                    logger.error("%s", error)
                except (OSError, ValueError) as error:  # closed in this moment
                    logger.debug("sync skipped: %s", error)
        return found

    def _sleep(self) -> None:
        """Until somebody is about to write."""
        self._wake.clear()
        self.asleep = True
        if not (self._stop.is_set() or any(partition.astir for partition in self._partitions())):
            self._wake.wait()
        self.asleep = False

    def wake(self) -> None:
        """Something is about to be written."""
        self._wake.set()

    def close(self) -> None:
        self._stop.set()
        self._wake.set()
        self._thread.join()


class Committers:
    """Lead group commits for callers that must not block (asyncio)."""

    def __init__(self, threads_max: int = 4) -> None:
        self._queue: SimpleQueue[GroupCommit | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._threads_max = threads_max
        self._threads: list[threading.Thread] = []
        self._busy = 0

    def start_leader(self, commit: GroupCommit) -> None:
        """Have a thread lead this commit."""
        with self._lock:
            if self._busy >= len(self._threads) and len(self._threads) < self._threads_max:
                thread = threading.Thread(target=self._run, name="heliograph-commit", daemon=True)
                self._threads.append(thread)
                thread.start()
            self._busy += 1
        self._queue.put(commit)

    def _run(self) -> None:
        while (commit := self._queue.get()) is not None:
            try:
                commit.lead(None)
            except Exception:
                logger.exception("a group commit failed")
            finally:
                with self._lock:
                    self._busy -= 1

    def close(self) -> None:
        for _ in self._threads:
            self._queue.put(None)
        for thread in self._threads:
            thread.join()
