"""Those who call the handler of a queue: threads, or tasks of an event loop."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from heliograph.delivery.assembly import make_invoker
from heliograph.delivery.control import Control, delivering
from heliograph.delivery.invoke import Ended, Interrupt, Invoke, Run, is_async
from heliograph.delivery.workers import Abandoned, TimedInvoker

if TYPE_CHECKING:
    import asyncio
    from concurrent import futures

    from heliograph.clock import Clock
    from heliograph.delivery.ports import Handler
    from heliograph.delivery.queues.tray import Tray
    from heliograph.delivery.statistics import Counters


class Crew(Protocol):
    """Takes messages from a tray and calls the handler."""

    def begin(self) -> None:
        """Start."""

    def wake(self) -> None:
        """The tray was filled, or closed."""

    def alive(self) -> bool:
        """Whether anybody still works."""

    def cancel(self) -> None:
        """Do not wait for handlers any more."""

    def end(self) -> None:
        """Let go of what it started."""


def make_crew(
    tray: Tray,
    control: Control,
    handler: Handler,
    *,
    concurrency: int,
    timeout_s: float | None,
    counters: Counters,
    clock: Clock,
    event_loop: asyncio.AbstractEventLoop | None,
    name: str,
) -> Crew:
    """The crew that suits a handler; nothing is started yet."""
    if is_async(handler):
        return TaskCrew(tray, control, handler, concurrency, timeout_s, counters, event_loop, name)

    def make_plain(interrupt: Interrupt) -> Invoke:
        return make_invoker(handler, interrupt)

    abandoned = Abandoned()

    def make_invoke() -> Invoke:
        if timeout_s is None:
            return make_plain(control.interrupt)
        return TimedInvoker(
            make_plain, control.interrupt, timeout_s=timeout_s, abandoned=abandoned, counters=counters, clock=clock,
            name=f"{name}-worker",
        )  # fmt: skip

    return ThreadCrew(tray, control, make_invoke, concurrency, name)


class ThreadCrew:
    """A plain handler: a thread for each lane."""

    def __init__(
        self, tray: Tray, control: Control, make_invoke: Callable[[], Invoke], concurrency: int, name: str
    ) -> None:
        self._tray = tray
        self._control = control
        self._make_invoke = make_invoke
        self._threads = [
            threading.Thread(target=self._work, name=f"{name}-{number}", daemon=True) for number in range(concurrency)
        ]

    def begin(self) -> None:
        """Start the threads."""
        for thread in self._threads:
            thread.start()

    def _work(self) -> None:
        delivering.set(self._control)
        invoke = self._make_invoke()
        while (found := self._tray.take(wait=True)) is not None:
            self._tray.finish(found, invoke(Run([found.message])))
        if isinstance(invoke, TimedInvoker):
            invoke.close()

    def wake(self) -> None:
        """The tray itself wakes threads."""

    def alive(self) -> bool:
        """Threads end only with the tray."""
        return True

    def cancel(self) -> None:
        """A thread cannot be interrupted; it ends after its message."""

    def end(self) -> None:
        """They end by themselves."""


class TaskCrew:
    """A coroutine function: a task for each lane, in the station's event loop or in one of its own."""

    def __init__(
        self,
        tray: Tray,
        control: Control,
        handler: Handler,
        concurrency: int,
        timeout_s: float | None,
        counters: Counters,
        event_loop: asyncio.AbstractEventLoop | None,
        name: str,
    ) -> None:
        import asyncio

        from heliograph.delivery.coroutines import AsyncInvoker

        self._tray = tray
        self._control = control
        self._invoke = AsyncInvoker(handler, control.interrupt, timeout_s=timeout_s, counters=counters)
        self._concurrency = concurrency
        self._given_loop = event_loop
        self._own_loop: Any = None
        self._name = name
        self._bell = asyncio.Event()
        self._tasks: list[futures.Future[None]] = []

    def begin(self) -> None:
        """Start the tasks."""
        import asyncio

        from heliograph.delivery.tasks import LoopThread

        if self._given_loop is None:
            self._own_loop = LoopThread(f"{self._name}-asyncio")
            self._loop: asyncio.AbstractEventLoop = self._own_loop.loop
        else:
            self._loop = self._given_loop
        self._tasks = [asyncio.run_coroutine_threadsafe(self._work(), self._loop) for _ in range(self._concurrency)]

    async def _work(self) -> None:
        delivering.set(self._control)
        while not self._tray.closed:
            self._bell.clear()
            found = self._tray.take(wait=False)
            if found is None:
                if not self._tray.closed:
                    await self._bell.wait()
                continue
            try:
                outcome = await self._invoke(Run([found.message]))
            except BaseException:  # cancelled: somebody else shall have it
                self._tray.finish(found, Ended.INTERRUPTED)
                raise
            self._tray.finish(found, outcome)

    def wake(self) -> None:
        """Let the tasks look."""
        with contextlib.suppress(RuntimeError):  # the loop is closed, which the keeper notices
            self._loop.call_soon_threadsafe(self._bell.set)

    def alive(self) -> bool:
        """Whether its event loop, and each of its tasks, is still there."""
        return not self._loop.is_closed() and not any(task.done() for task in self._tasks)

    def cancel(self) -> None:
        """Cancel the handlers that are still at work."""
        for task in self._tasks:
            with contextlib.suppress(RuntimeError):
                task.cancel()

    def end(self) -> None:
        """Close the event loop if it is its own."""
        if self._own_loop is not None:
            self._own_loop.end()
