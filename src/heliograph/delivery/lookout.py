"""Looking around once a second, for whoever must notice what nobody tells: a channel that has grown."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from heliograph.delivery.deadletter import describe

LOOK_S = 1.0
"""How often."""

logger = logging.getLogger("heliograph.delivery")


class Lookout:
    """Calls everybody on its list once a second. One per station; its thread starts with the first on the list."""

    def __init__(self, interval_s: float = LOOK_S) -> None:
        self._interval_s = interval_s
        self._looks: list[Callable[[], None]] = []
        self._changed = threading.Condition(threading.Lock())
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    def add(self, look: Callable[[], None]) -> None:
        """Call this from now on. It must not block for long; what it raises is logged."""
        with self._changed:
            self._looks.append(look)
            if self._thread is None and not self._closed.is_set():
                self._thread = threading.Thread(target=self._work, name="heliograph-lookout", daemon=True)
                self._thread.start()
            self._changed.notify()

    def discard(self, look: Callable[[], None]) -> None:
        """Call it no more; it may be running just now."""
        with self._changed:
            if look in self._looks:
                self._looks.remove(look)

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
                while not self._looks and not self._closed.is_set():
                    self._changed.wait()
            if self._closed.wait(self._interval_s):
                return
            with self._changed:
                looks = list(self._looks)
            for look in looks:
                try:
                    look()
                except Exception as error:  # noqa: BLE001 - it is tried again in a second
                    logger.warning("looking for new partitions failed, trying again: %s", describe(error))
