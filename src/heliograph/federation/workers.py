"""Threads that the event loop of the links has call the disk.

As ``loop.run_in_executor`` with a ``ThreadPoolExecutor``, in a quarter of the steps: a message that comes alone finds
cold caches, and there every step counts.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, TypeAlias, TypeVar

from heliograph.errors import HeliographError, StationClosed

logger = logging.getLogger("heliograph.links")
_T = TypeVar("_T")
_Future: TypeAlias = asyncio.Future[Any] | None


class Workers:
    """Some threads, begun when they are needed, for one event loop."""

    def __init__(self, most: int, loop: asyncio.AbstractEventLoop) -> None:
        self._most = most
        self._loop = loop
        self._queue: SimpleQueue[tuple[_Future, Callable[..., Any], tuple[Any, ...]] | None] = SimpleQueue()
        self._idle: deque[None] = deque()  # one for each thread that waits, or is about to
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._closed = False

    def run(self, function: Callable[..., _T], *arguments: Any) -> asyncio.Future[_T]:
        """Have something called; to be awaited in the loop. RuntimeError if they are closed."""
        future: asyncio.Future[_T] = self._loop.create_future()
        self._put(future, function, arguments)
        return future

    def submit(self, function: Callable[..., object], *arguments: Any) -> None:
        """Have something called, from any thread, whose end nobody waits for. RuntimeError if they are closed."""
        self._put(None, function, arguments)

    def close(self) -> None:
        """Finish what was asked for, and end."""
        with self._lock:
            self._closed = True
        for _ in self._threads:
            self._queue.put(None)
        for thread in self._threads:
            thread.join()

    def _put(self, future: _Future, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        if self._closed:
            raise RuntimeError("the links are closed")
        self._queue.put((future, function, arguments))
        try:
            self._idle.pop()
        except IndexError:
            self._begin()

    def _begin(self) -> None:
        with self._lock:
            if len(self._threads) < self._most and not self._closed:
                name = f"heliograph-link-{len(self._threads)}"
                thread = threading.Thread(target=self._work, name=name, daemon=True)
                self._threads.append(thread)
                thread.start()

    def _work(self) -> None:
        while (item := self._queue.get()) is not None:
            self._call(*item)
            del item  # or it would be kept until the next one comes

    def _call(self, future: _Future, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        result, error = None, None
        try:
            result = function(*arguments)
        except BaseException as raised:  # noqa: BLE001 - for who awaits it
            error = raised
        self._idle.append(None)  # before anybody is told, who may ask for more
        if future is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(_settle, future, result, error)
        elif error is not None and not isinstance(error, StationClosed):
            known = isinstance(error, HeliographError | OSError)
            logger.warning("something beside the links failed: %s", error, exc_info=None if known else error)


def _settle(future: asyncio.Future[Any], result: object, error: BaseException | None) -> None:
    if future.done():  # cancelled
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)
