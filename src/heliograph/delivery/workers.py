"""Plain handlers with a timeout.

Python cannot end a thread, so the handler runs in a worker thread of its own and the lane watches its
progress. When a message takes too long the worker is abandoned: it may finish that message some day, but
starts no other, and a fresh worker takes its place. The message counts as failed and is delivered again.
Since a handler that never returns would collect threads without bound, no more than ``ABANDONED_MAX`` of a
subscription may be stuck at once; then it fails, and says so. A worker that comes back frees its place.

The watching is by the run's own progress, so that the price of a timeout is a hop per batch, not per
message; a timeout fires up to a quarter late.
"""

from __future__ import annotations

import contextvars
import queue
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from heliograph.delivery.invoke import (
    Either,
    Ended,
    HandlerUnusable,
    Interrupt,
    Invoke,
    Outcome,
    Run,
    too_slow,
)

if TYPE_CHECKING:
    from heliograph.clock import Clock
    from heliograph.delivery.statistics import Counters

ABANDONED_MAX = 16
"""Most worker threads of one subscription that may be stuck in a handler."""

WATCH_S_MAX = 0.5
"""Longest time between two looks at a worker's progress."""


class Abandoned:
    """The workers a subscription has given up on and that have not come back yet."""

    def __init__(self) -> None:
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()

    def add(self, thread: threading.Thread) -> None:
        """Somebody is stuck."""
        with self._lock:
            self._threads.append(thread)

    def full(self) -> bool:
        """Whether too many are stuck at present."""
        with self._lock:
            self._threads = [thread for thread in self._threads if thread.is_alive()]
            return len(self._threads) >= ABANDONED_MAX


class Worker:
    """A thread that calls the handler, until it is dismissed or abandoned."""

    def __init__(self, make_invoke: Callable[[Interrupt], Invoke], interrupt: Interrupt, name: str) -> None:
        self.abandoned: list[bool] = []
        self.finished = threading.Event()
        self.outcome: Outcome = Ended.INTERRUPTED
        self._runs: queue.SimpleQueue[Run | None] = queue.SimpleQueue()
        self._invoke = make_invoke(Either(interrupt, self.abandoned))
        context = contextvars.copy_context()
        self.thread = threading.Thread(target=context.run, args=(self._work,), name=name, daemon=True)
        self.thread.start()

    def give(self, run: Run) -> None:
        """Begin to deliver these."""
        self.finished.clear()
        self._runs.put(run)

    def dismiss(self) -> None:
        """End, once there is nothing at hand."""
        self._runs.put(None)

    def _work(self) -> None:
        while (run := self._runs.get()) is not None:
            self.outcome = self._invoke(run)
            self.finished.set()


class TimedInvoker:
    """Calls a plain handler in a worker thread and gives up on it when it takes too long.

    ``make_invoke`` makes what the worker runs; it gets what interrupts it.
    """

    def __init__(
        self,
        make_invoke: Callable[[Interrupt], Invoke],
        interrupt: Interrupt,
        *,
        timeout_s: float,
        abandoned: Abandoned,
        counters: Counters,
        clock: Clock,
        name: str,
    ) -> None:
        self._make_invoke = make_invoke
        self._interrupt = interrupt
        self._timeout_s = timeout_s
        self._abandoned = abandoned
        self._counters = counters
        self._clock = clock
        self._name = name
        self._worker: Worker | None = None

    def __call__(self, run: Run) -> Outcome:
        """Deliver until the end, the first error, an interruption, or a message that takes too long."""
        worker = self._worker
        if worker is None:
            if self._abandoned.full():
                return HandlerUnusable(
                    f"{ABANDONED_MAX} calls of the handler hang (each for more than {self._timeout_s:g} s"
                    "), so no further thread is started; mend the handler, then resume() or restart"
                )
            worker = self._worker = Worker(self._make_invoke, self._interrupt, self._name)
        worker.give(run)
        if self._watch(worker, run):
            return worker.outcome
        self.close()
        self._abandoned.add(worker.thread)
        self._counters.timeouts += 1
        return too_slow(self._timeout_s)

    def close(self) -> None:
        """Let the worker go."""
        if self._worker is not None:
            self._worker.dismiss()
            self._worker = None

    def _watch(self, worker: Worker, run: Run) -> bool:
        """True when the run has ended, False when the worker was abandoned."""
        look_s = min(self._timeout_s / 8, WATCH_S_MAX)
        taken, since = run.taken(), self._clock.monotonic()
        while not worker.finished.wait(look_s):
            now = self._clock.monotonic()
            if run.taken() == taken and now - since < self._timeout_s:
                continue
            if run.taken() == taken:
                worker.abandoned.append(True)
                if run.taken() == taken:
                    # Should it come back only now, it takes one more message and does not start it; then
                    # that one counts as the failed one, which is harmless: it is delivered again, and what
                    # was done is done.
                    return False
                # It moved on at the last moment. Either it has not seen the mark, or it ends as interrupted.
                worker.abandoned.clear()
            taken, since = run.taken(), now
        return True
