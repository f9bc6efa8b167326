"""Several subscriptions, one handler: how many calls of it there may be at once, and who is next.

A handler that was subscribed with ``concurrency=1`` is never called twice at once, however many channels it
hears. Lanes of different subscriptions therefore pass a gate before they call it, in the order they came. A
lane keeps its place for a turn, not for a message: when its turn is over and somebody waits, it leaves between
two messages, as if it were interrupted, and queues up again. While a lane waits to try a failed message again
it has no place, so a channel that fails holds up no other.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from heliograph.delivery.invoke import AsyncInvoke, Either, Ended, Interrupt, Invoke, Outcome, Run
from heliograph.delivery.workers import TimedInvoker

if TYPE_CHECKING:
    import asyncio

TURN_S = 0.005
"""How long a lane may go on while others wait: some hundred calls of a quick handler, one of a slow one."""

LOOK_S = 0.05
"""How often a lane that waits looks whether it should still."""


class _Queue(Protocol):
    """What a turn wants to know of its gate."""

    @property
    def contended(self) -> bool: ...  # whether somebody waits


class Turn:
    """True when it is over: the time is up and somebody waits."""

    __slots__ = ("_gate", "_until")

    def __init__(self, gate: _Queue) -> None:
        self._gate = gate
        self._until = 0.0

    def begin(self) -> None:
        """A new one."""
        self._until = time.monotonic() + TURN_S

    def __bool__(self) -> bool:
        return self._gate.contended and time.monotonic() >= self._until


class Gate:
    """Lets some threads through at once; the others wait in a line, and who leaves lets the first of it in."""

    def __init__(self, width: int = 1) -> None:
        self._free = width
        self._line: deque[threading.Lock] = deque()
        self._lock = threading.Lock()

    @property
    def contended(self) -> bool:
        """Whether somebody waits."""
        return bool(self._line)

    def enter(self, interrupt: Interrupt) -> bool:
        """Wait for a place. False: interrupted before there was one."""
        with self._lock:
            if self._free:
                self._free -= 1
                return True
            called = threading.Lock()
            called.acquire()
            self._line.append(called)
        while not called.acquire(timeout=LOOK_S):
            if interrupt and self._leave_line(called):
                return False
        return True

    def _leave_line(self, called: threading.Lock) -> bool:
        with self._lock:
            if called in self._line:
                self._line.remove(called)
                return True
        return False  # called in this moment

    def leave(self) -> None:
        """Give the place to the next in line."""
        with self._lock:
            if self._line:
                self._line.popleft().release()
            else:
                self._free += 1


class GatedInvoke:
    """Calls a plain handler when its gate allows. ``make`` makes what calls it; it gets what interrupts it."""

    def __init__(self, gate: Gate, make: Callable[[Interrupt], Invoke], interrupt: Interrupt) -> None:
        self._gate = gate
        self._interrupt = interrupt
        self._turn = Turn(gate)
        self._invoke = make(Either(interrupt, self._turn))

    def __call__(self, run: Run) -> Outcome:
        """Deliver until the end, the first error, an interruption, or the end of the turn."""
        if not self._gate.enter(self._interrupt):
            return Ended.INTERRUPTED
        try:
            self._turn.begin()
            return self._invoke(run)
        finally:
            self._gate.leave()

    def close(self) -> None:
        """Let the worker of a timed handler go, if there is one."""
        if isinstance(self._invoke, TimedInvoker):
            self._invoke.close()


class AsyncGate:
    """The same for the tasks of one event loop."""

    def __init__(self, width: int = 1) -> None:
        import asyncio

        self._places: asyncio.Semaphore = asyncio.Semaphore(width)
        self._waiting = 0

    @property
    def contended(self) -> bool:
        """Whether somebody waits."""
        return self._waiting > 0

    async def enter(self) -> None:
        """Wait for a place."""
        self._waiting += 1
        try:
            await self._places.acquire()
        finally:
            self._waiting -= 1

    def leave(self) -> None:
        """Give the place to the next in line."""
        self._places.release()


class AsyncGatedInvoke:
    """Awaits a coroutine function when its gate allows."""

    def __init__(self, gate: AsyncGate, make: Callable[[Interrupt], AsyncInvoke], interrupt: Interrupt) -> None:
        self._gate = gate
        self._turn = Turn(gate)
        self._invoke = make(Either(interrupt, self._turn))

    async def __call__(self, run: Run) -> Outcome:
        """Deliver until the end, the first error, an interruption, or the end of the turn."""
        await self._gate.enter()
        try:
            self._turn.begin()
            return await self._invoke(run)
        finally:
            self._gate.leave()
