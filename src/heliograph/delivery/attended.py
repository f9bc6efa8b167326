"""Work in a thread for a task that may be cancelled meanwhile.

A thread cannot be cancelled: it goes on when nobody waits for it any more. What it made then has no owner, and what it
uses must not be taken away before it has ended.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from typing import TypeVar

_T = TypeVar("_T")
logger = logging.getLogger("heliograph.delivery")


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


async def attended(work: Callable[[], _T], clear_up: Callable[[], object]) -> _T:
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
        return await asyncio.to_thread(run)
    except asyncio.CancelledError:
        errand.desert()
        raise


async def made(make: Callable[[], _T], undo: Callable[[_T], object]) -> _T:
    """Have something made in a thread; what came of it is undone if whoever asked for it was cancelled."""
    found: list[_T] = []

    def work() -> _T:
        found.append(make())
        return found[0]

    def clear_up() -> None:
        for one in found:
            undo(one)

    return await attended(work, clear_up)
