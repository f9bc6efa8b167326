"""Waiting for news of several partitions at once, and for a word from another thread."""

from __future__ import annotations

import _thread
import contextlib
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING

from heliograph.log.news import held_lock

if TYPE_CHECKING:
    from heliograph.engine.files import FilesEngine


class Bell:
    """What one waiting thread hears: the news of a channel's partitions, and ``ring``."""

    def __init__(self, engine: FilesEngine, channel: str) -> None:
        self._engine = engine
        self._channel = channel
        self._mutex = threading.Lock()
        self._rung = False
        self._armed: _thread.LockType | None = None

    def ring(self) -> None:
        """End the wait, or the next one if nobody waits now."""
        with self._mutex:
            self._rung = True
            if self._armed is not None:
                with contextlib.suppress(RuntimeError):  # news freed it in the same moment
                    self._armed.release()

    def wait(self, offsets: Mapping[int, int], timeout_s: float) -> None:
        """Until something is at one of the offsets, by partition; until it is rung; a slice of time at most."""
        armed = held_lock()
        with self._mutex:
            self._armed = armed
            rung, self._rung = self._rung, False
        try:
            if not rung:
                self._engine.wait_any(self._channel, offsets, timeout_s, armed)
        finally:
            with self._mutex:
                self._armed = None
                self._rung = False
