"""Whose turn it is to call the handler, when several partitions have something for it.

A subscription reads each of its partitions in a thread (or task) of its own, and a wildcard those of many channels;
``concurrency`` says how many of them may call the handler at once. Turns are given in the order of asking. A turn
lasts for some messages, so that taking turns costs nothing per message; who waits for long asks the holder to end its
turn after the message at hand. Nobody holds a turn while it waits before a retry.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from heliograph.delivery.invoke import AsyncInvoke, Either, Ended, Interrupt, Invoke, Outcome, Run
from heliograph.delivery.workers import TimedInvoker

if TYPE_CHECKING:
    from heliograph.delivery.control import Control

TURN_S = 0.02
"""How long a turn may last before whoever is next asks for it."""

LOOK_S = 0.1
"""How often the others who wait look whether their subscription stops."""


class _Waiter:
    __slots__ = ("granted", "wake")

    def __init__(self, wake: Callable[[], object]) -> None:
        self.wake = wake
        self.granted = False


class Turns:
    """At most ``count`` at a time."""

    def __init__(self, count: int) -> None:
        self.wanted: list[bool] = []
        """Not empty: somebody has waited for long."""
        self.parties = 0
        """How many partitions take turns."""
        self._free = count
        self._since_s = 0.0
        self._waiting: deque[_Waiter] = deque()
        self._lock = threading.Lock()

    def join(self) -> None:
        """One more takes turns."""
        with self._lock:
            self.parties += 1

    def leave(self) -> None:
        """One less takes turns."""
        with self._lock:
            self.parties -= 1

    def take(self, control: Control) -> bool:
        """Wait for a turn. False: the subscription is held or stops, there is none."""
        if self._at_once():
            return True
        woken = threading.Event()
        waiter = self._queue(woken.set)
        while not woken.wait(self._patience_s(waiter)):
            if control.interrupt:
                return self._withdraw(waiter)
            self._ask()
        return True

    async def take_soon(self, control: Control) -> bool:
        """As `take`, in a task."""
        if self._at_once():
            return True
        import asyncio

        loop, woken = asyncio.get_running_loop(), asyncio.Event()
        waiter = self._queue(lambda: loop.call_soon_threadsafe(woken.set))
        try:
            while not waiter.granted:
                try:
                    async with asyncio.timeout(self._patience_s(waiter)):
                        await woken.wait()
                except TimeoutError:
                    if control.interrupt:
                        return self._withdraw(waiter)
                    self._ask()
        except asyncio.CancelledError:
            if self._withdraw(waiter):
                self.give_back()
            raise
        return True

    def give_back(self) -> None:
        """The turn is over: the next one, please."""
        while True:
            with self._lock:
                self.wanted.clear()
                if not self._waiting:
                    self._free += 1
                    return
                waiter = self._waiting.popleft()
                waiter.granted = True
                self._since_s = time.monotonic()
            try:
                waiter.wake()
                return
            except RuntimeError:  # its event loop is closed
                continue

    def _at_once(self) -> bool:
        with self._lock:
            if not self._free:
                return False
            self._free -= 1
            self._since_s = time.monotonic()
            return True

    def _queue(self, wake: Callable[[], object]) -> _Waiter:
        waiter = _Waiter(wake)
        with self._lock:
            if not self._free:
                self._waiting.append(waiter)
                return waiter
            self._free -= 1
            self._since_s = time.monotonic()
            waiter.granted = True
        wake()
        return waiter

    def _withdraw(self, waiter: _Waiter) -> bool:
        """Wait no longer; True if the turn came in this moment."""
        with self._lock:
            if waiter.granted:
                return True
            self._waiting.remove(waiter)
            return False

    def _patience_s(self, waiter: _Waiter) -> float:
        with self._lock:
            if not self._waiting or self._waiting[0] is not waiter:
                return LOOK_S
            return max(0.001, self._since_s + TURN_S - time.monotonic()) if not self.wanted else LOOK_S

    def _ask(self) -> None:
        with self._lock:
            if self._waiting and not self.wanted and time.monotonic() >= self._since_s + TURN_S:
                self.wanted.append(True)


class TurnInvoker:
    """Calls a plain handler while it is its turn.

    ``make`` makes what calls the handler; it gets what interrupts it.
    """

    def __init__(self, make: Callable[[Interrupt], Invoke], control: Control, turns: Turns) -> None:
        self._invoke = make(Either(control.interrupt, turns.wanted))
        self._alone = make(control.interrupt)  # testing a list is cheaper than testing either of two
        self._control = control
        self._turns = turns

    def __call__(self, run: Run) -> Outcome:
        """Deliver until the end, the first error, or an interruption."""
        if not self._turns.take(self._control):
            return Ended.INTERRUPTED
        try:
            return self._invoke(run) if self._turns.parties > 1 else self._alone(run)
        finally:
            self._turns.give_back()

    def close(self) -> None:
        """Let the worker threads of a timed handler go, if there are any."""
        for invoke in (self._invoke, self._alone):
            if isinstance(invoke, TimedInvoker):
                invoke.close()


def async_in_turn(make: Callable[[Interrupt], AsyncInvoke], control: Control, turns: Turns) -> AsyncInvoke:
    """Awaits a coroutine function while it is its turn; ``make`` as for :class:`TurnInvoker`."""
    invoke = make(Either(control.interrupt, turns.wanted))

    async def in_turn(run: Run) -> Outcome:
        if not await turns.take_soon(control):
            return Ended.INTERRUPTED
        try:
            return await invoke(run)
        finally:
            turns.give_back()

    return in_turn
