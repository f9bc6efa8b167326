"""A thread that makes its rounds: every so often, as long as there is anything on its list."""

from __future__ import annotations

import threading
from typing import Generic, TypeVar

_T = TypeVar("_T")


class Rounds(Generic[_T]):
    """Its thread starts with the first on the list and sleeps without a timer while the list is empty."""

    def __init__(self, name: str, interval_s: float) -> None:
        self._name = name
        self._interval_s = interval_s
        self._items: list[_T] = []
        self._changed = threading.Condition(threading.Lock())
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    def _add(self, item: _T) -> None:
        """Put it on the list. The caller holds ``_changed``."""
        self._items.append(item)
        if self._thread is None and not self._closed.is_set():
            self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
            self._thread.start()
        self._changed.notify()

    def close(self) -> None:
        """End the thread."""
        self._closed.set()
        with self._changed:
            self._changed.notify()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout=1.0)

    def _work(self) -> None:
        while True:
            with self._changed:
                while not self._items and not self._closed.is_set():
                    self._changed.wait()
            if self._closed.wait(self._interval_s):
                return
            self._round()

    def _round(self) -> None:
        raise NotImplementedError
