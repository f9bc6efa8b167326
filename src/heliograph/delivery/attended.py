"""Work in a thread for a task that may be cancelled meanwhile.

A thread cannot be cancelled: it goes on when nobody waits for it any more. What it made then has no owner, and what it
uses must not be taken away before it has ended.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import threading
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import TypeVar

from heliograph.limits import WAITERS_MAX

_T = TypeVar("_T")
logger = logging.getLogger("heliograph.delivery")


class Waiters:
    """Threads for what waits: for news, for messages of a queue.

    Those of the event loop are few (six on two processors) and everybody's: as many readers as that, and whatever else
    needs a thread, also the application's own work, would stand behind their waiting.
    """

    def __init__(self) -> None:
        self._threads: ThreadPoolExecutor | None = None

    def threads(self) -> Executor:
        """Made when somebody waits for the first time. Called in the event loop only, as :meth:`close` is."""
        if self._threads is None:
            self._threads = ThreadPoolExecutor(WAITERS_MAX, "heliograph-wait")
        return self._threads

    def close(self) -> None:
        """Let the threads end when they have done what they are at."""
        threads, self._threads = self._threads, None
        if threads is not None:
            threads.shutdown(wait=False)


class _Errand:
    """How far the work has come, and whether anybody waits for it. Seen by the task and by the thread."""

    def __init__(self, clear_up: Callable[[], object]) -> None:
        self._clear_up = clear_up
        self._lock = threading.Lock()
        self._at_work = self._deserted = False

    def begin(self) -> bool:
        """Called by the thread; False if nobody waits any more."""
        with self._lock:
            self._at_work = not self._deserted
            return self._at_work

    def end(self) -> None:
        """Called by the thread."""
        with self._lock:
            self._at_work, left = False, self._deserted
        if left:
            self._tidy()

    def desert(self) -> None:
        """Called by the task."""
        with self._lock:
            self._deserted, idle = True, not self._at_work
        if idle:  # not by a thread of the loop's, which may be about to end
            threading.Thread(target=self._tidy, name="heliograph-clear-up").start()

    def _tidy(self) -> None:
        try:
            self._clear_up()
        except Exception:
            logger.exception("what a cancelled task left behind was not cleared up in order")


async def attended(work: Callable[[], _T], clear_up: Callable[[], object], threads: Executor | None = None) -> _T:
    """Call ``work`` in a thread. If its caller is cancelled, ``clear_up`` is called once the work has ended."""
    errand = _Errand(clear_up)

    def run() -> _T:
        if not errand.begin():
            raise asyncio.CancelledError
        try:
            return work()
        finally:
            errand.end()

    try:
        return await asyncio.get_running_loop().run_in_executor(threads, contextvars.copy_context().run, run)
    except asyncio.CancelledError:
        errand.desert()
        raise


async def made(make: Callable[[], _T], undo: Callable[[_T], object], threads: Executor | None = None) -> _T:
    """Have something made in a thread; what came of it is undone if whoever asked for it was cancelled."""
    found: list[_T] = []

    def work() -> _T:
        found.append(make())
        return found[0]

    def clear_up() -> None:
        for one in found:
            undo(one)

    return await attended(work, clear_up, threads)


async def surely(close: Callable[[], _T]) -> _T:
    """Have something closed in a thread, also if whoever asks is cancelled before a thread had time for it."""
    begun = threading.Event()

    def work() -> _T:
        begun.set()
        return close()

    def clear_up() -> None:
        if not begun.is_set():
            close()

    return await attended(work, clear_up)
