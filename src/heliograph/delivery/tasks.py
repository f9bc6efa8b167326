"""Lanes for coroutine functions: tasks of an event loop, fed from the subscription's thread.

The event loop is the one the station was opened in, or, when it has none, one in a thread of its own per
subscription: a handler that blocks its loop must not hold up the other subscriptions. There is one hop
between the threads per piece, not per message. What may block for long (writing a dead letter, saving a
position) is done in a thread on the side; that is rare.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine
from concurrent import futures
from typing import TYPE_CHECKING, Any

from heliograph.delivery.invoke import Run
from heliograph.delivery.lane import Wait
from heliograph.delivery.lanes import Lanes, Piece

if TYPE_CHECKING:
    from heliograph.delivery.control import Control
    from heliograph.delivery.invoke import AsyncInvoke
    from heliograph.delivery.lane import Course, Job, Lane
    from heliograph.message import Message

LOOP_END_S = 2.0
"""How long the end of an event loop of our own is waited for."""

LOOK_S = 0.1
"""How often a loop that may have gone away is looked at."""


class LoopThread:
    """An event loop in a daemon thread."""

    def __init__(self, name: str) -> None:
        self._ready = threading.Event()
        self._thread = threading.Thread(target=asyncio.run, args=(self._main(),), name=name, daemon=True)
        self._thread.start()
        self._ready.wait()

    def end(self) -> None:
        """Cancel what still runs there, and close the loop."""
        with contextlib.suppress(RuntimeError):
            self.loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(LOOP_END_S)

    async def _main(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        self._ready.set()
        await self._stop.wait()


class TaskLanes(Lanes):
    """A coroutine function, one or more lanes, a task each."""

    def __init__(
        self,
        lanes: list[Lane],
        control: Control,
        start: int,
        *,
        make_invoke: Callable[[Lane], AsyncInvoke],
        event_loop: asyncio.AbstractEventLoop | None,
        name: str,
    ) -> None:
        super().__init__(lanes, control, start)
        self._make_invoke = make_invoke
        self._given_loop = event_loop
        self._name = name
        self._own_loop: LoopThread | None = None
        self._bell = asyncio.Event()
        self._inboxes: list[asyncio.Queue[Piece | None]] = [asyncio.Queue() for _ in lanes]
        self._tasks: list[futures.Future[None]] = []

    def begin(self) -> None:
        """Start the tasks. They inherit the context of the loop's thread."""
        if self._given_loop is None:
            self._own_loop = LoopThread(f"{self._name}-asyncio")
            self._loop = self._own_loop.loop
        else:
            self._loop = self._given_loop
        self._control.on_change(self._ring)
        for lane in self.lanes:
            self._tasks.append(self._submit(self._work(lane, self._make_invoke(lane))))

    def hand_out(self, messages: list[Message], lag_base_us: int, reach: int) -> bool:
        """Give these to their lanes, as soon as there is room."""
        if not self._wait_for_room():
            return False
        piles = self._split(messages) if messages else {}
        self._register(piles, reach)
        for index, pile in piles.items():
            with contextlib.suppress(RuntimeError):  # the loop is closed, which the next hand-out notices
                self._loop.call_soon_threadsafe(self._inboxes[index].put_nowait, Piece(pile, lag_base_us))
        return True

    def end(self) -> None:
        """Lanes that have nothing at hand end at once, the others after their message."""
        for inbox in self._inboxes:
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(inbox.put_nowait, None)
        while not self._loop.is_closed() and futures.wait(self._tasks, LOOK_S).not_done:
            pass
        if self._own_loop is not None:
            self._own_loop.end()

    def cancel(self) -> None:
        """Cancel the handlers that are still at work; their messages are delivered again next time."""
        for task in self._tasks:
            with contextlib.suppress(RuntimeError):
                task.cancel()

    def await_gap_handler(self, coroutine: Coroutine[Any, Any, object]) -> None:
        """Run a coroutine where the handlers run, unless the subscription stops."""
        future = self._submit(coroutine)
        while not future.done() and self._going_on():
            futures.wait([future], LOOK_S)
        if future.done():
            future.result()

    def _all_alive(self) -> bool:
        return not self._loop.is_closed() and not any(task.done() for task in self._tasks)

    def _submit(self, coroutine: Coroutine[Any, Any, Any]) -> futures.Future[Any]:
        try:
            return asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        except RuntimeError:
            coroutine.close()
            raise

    async def _work(self, lane: Lane, invoke: AsyncInvoke) -> None:
        inbox = self._inboxes[lane.index]
        try:
            while (piece := await inbox.get()) is not None:
                if not await self._drive(lane.deliver(piece.messages, piece.lag_base_us), invoke):
                    return
                self._complete(lane)
        except asyncio.CancelledError:
            self._fail_for_good()
            raise
        except Exception as error:  # noqa: BLE001 - a silent end of this task would look like a slow handler
            self._report(error)

    async def _drive(self, course: Course, invoke: AsyncInvoke) -> bool:
        """Carry out a course in this task."""
        answer: Any = None
        while True:
            try:
                step = course.send(answer)
            except StopIteration as stop:
                return bool(stop.value)
            if isinstance(step, Run):
                answer = await invoke(step)
            elif isinstance(step, Wait):
                answer = await self._sleep(step.seconds)
            else:
                answer = await _aside(step)

    async def _sleep(self, seconds: float) -> bool:
        """Wait that long, and while held. True: go on; False: stop."""
        control, until = self._control, self._loop.time() + seconds
        while not control.stopping:
            bell = self._bell  # first the bell, then the look: whatever changes after the look rings it
            held = control.paused or bool(control.failure)
            left_s = until - self._loop.time()
            if not held and left_s <= 0:
                return True
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(None if held else left_s):
                    await bell.wait()
        return False

    def _ring(self) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody listens
            self._loop.call_soon_threadsafe(self._ring_here)

    def _ring_here(self) -> None:
        bell, self._bell = self._bell, asyncio.Event()
        bell.set()


async def _aside(job: Job) -> Exception | None:
    """Do a job that may block in a thread of its own: a daemon, nothing may hold up the process's end."""
    loop = asyncio.get_running_loop()
    answered: asyncio.Future[Exception | None] = loop.create_future()

    def answer(error: Exception | None) -> None:
        if not answered.done():
            answered.set_result(error)

    def work() -> None:
        error = job.attempt()
        with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile
            loop.call_soon_threadsafe(answer, error)

    threading.Thread(target=work, name="heliograph-aside", daemon=True).start()
    return await answered
