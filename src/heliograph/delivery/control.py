"""What the outside asks of a subscription: go on, hold, or stop.

==========  =========================  =============================================
state       asked by                   lanes and loop
==========  =========================  =============================================
running     start, ``resume()``        deliver
paused      ``pause()``                finish the message at hand, then hold
failed      themselves                 as paused, until ``resume()`` tries again
closed      ``close()``                finish the message at hand, then end
==========  =========================  =============================================

("retrying" is not asked for: it is shown while a lane waits before it tries again.)
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextvars import ContextVar

delivering: ContextVar[Control | None] = ContextVar("delivering", default=None)
"""Set wherever a handler runs, also in what it starts with ``asyncio.to_thread``: whoever closes the
subscription from there must not wait for the handler to return."""


class Control:
    """Shared by the loop and its lanes. Every change is seen before the next message is started."""

    def __init__(self, *, paused: bool = False) -> None:
        self.interrupt: list[bool] = []
        """Not empty: start no further message. A list, because testing it is the cheapest test there is."""
        self.stopping = False
        self.paused = paused
        self.failure = ""
        self.last_error = ""
        self._lock = threading.Lock()
        self._interrupted = threading.Event()
        self._going = threading.Event()
        self._listeners: list[Callable[[], None]] = []
        self._settle()

    def on_change(self, listener: Callable[[], None]) -> None:
        """Call this after every change; it must not block."""
        self._listeners.append(listener)

    def pause(self) -> None:
        """Hold after the message at hand."""
        with self._lock:
            self.paused = True
            self._settle()

    def resume(self) -> None:
        """Go on, also after a failure."""
        with self._lock:
            self.paused = False
            self.failure = ""
            self._settle()

    def fail(self, reason: str) -> None:
        """Hold until somebody has seen to the cause."""
        with self._lock:
            self.failure = self.last_error = reason
            self._settle()

    def stop(self) -> None:
        """End after the message at hand. There is no way back."""
        with self._lock:
            self.stopping = True
            self._settle()

    def hold(self) -> bool:
        """Wait while held. True: go on; False: stop."""
        self._going.wait()
        return not self.stopping

    def sleep(self, seconds: float) -> bool:
        """Wait that long, and while held; a stop ends it at once. True: go on; False: stop."""
        self._interrupted.wait(seconds)
        return self.hold()

    def _settle(self) -> None:
        held = self.paused or bool(self.failure)
        if self.stopping or held:
            self.interrupt[:] = [True]
            self._interrupted.set()
        else:
            self.interrupt.clear()
            self._interrupted.clear()
        if held and not self.stopping:
            self._going.clear()
        else:
            self._going.set()
        for listener in self._listeners:
            listener()
