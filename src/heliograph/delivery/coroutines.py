"""How coroutine functions are called: as in ``invoke.py``, within an event loop.

Apart, because ``import asyncio`` costs more than all the rest of this room.
"""

from __future__ import annotations

import asyncio
import threading
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from heliograph.delivery.invoke import Ended, GivenBack, Interrupt, Outcome, Run, too_slow

if TYPE_CHECKING:
    from heliograph.delivery.ports import Handler
    from heliograph.delivery.statistics import Counters

ASYNC_TURN_MESSAGES = 64
"""After this many messages an async handler's loop gets a turn, even if the handler never waits."""


class AsyncInvoker:
    """Awaits a coroutine function, message by message, in the running event loop."""

    def __init__(self, handler: Handler, interrupt: Interrupt, *, timeout_s: float | None, counters: Counters) -> None:
        self._handler = handler if timeout_s is None else _limited(handler, timeout_s, counters)
        self._interrupt = interrupt

    async def __call__(self, run: Run) -> Outcome:
        """Deliver until the end, the first error, or an interruption."""
        handler, interrupt = self._handler, self._interrupt
        try:
            for count, message in enumerate(run.source):
                if count and count % ASYNC_TURN_MESSAGES == 0:
                    await asyncio.sleep(0)
                if interrupt:
                    return Ended.INTERRUPTED
                await handler(message)
        except BaseException as error:  # noqa: BLE001 - see the top of the module
            return _outcome(error)
        return Ended.FINISHED


class AsyncBatchInvoker:
    """Awaits a coroutine function with all the messages at once, in the running event loop."""

    def __init__(self, handler: Handler, interrupt: Interrupt, *, timeout_s: float | None, counters: Counters) -> None:
        self._handler = handler if timeout_s is None else _limited(handler, timeout_s, counters)
        self._interrupt = interrupt

    async def __call__(self, run: Run) -> Outcome:
        """Deliver all or, with an error, possibly some."""
        if self._interrupt:
            return Ended.INTERRUPTED
        try:
            await self._handler(run.messages[:])
        except BaseException as error:  # noqa: BLE001 - see the top of the module
            return _outcome(error)
        return Ended.FINISHED


_limit: ContextVar[tuple[asyncio.Timeout, float] | None] = ContextVar("limit", default=None)


def out_of_time() -> TimeoutError | None:
    """The failure, if the handler at hand was cancelled because it took too long and for no other reason."""
    found, task = _limit.get(), asyncio.current_task()
    if found is None or task is None or task.cancelling() != 1:
        return None
    limit, timeout_s = found
    return too_slow(timeout_s) if limit.expired() else None


def _limited(handler: Handler, timeout_s: float, counters: Counters) -> Handler:
    """The handler, cancelled when it takes too long."""

    async def limited(messages: Any) -> None:
        try:
            async with asyncio.timeout(timeout_s) as limit:
                _limit.set((limit, timeout_s))
                await handler(messages)
        except TimeoutError as error:
            if not limit.expired():
                raise
            counters.timeouts += 1
            raise too_slow(timeout_s) from error

    return limited


def _outcome(error: BaseException) -> Outcome:
    """The error, unless it is for whoever runs the task: its cancellation, or somebody pressing Ctrl-C."""
    if isinstance(error, GivenBack):
        return Ended.INTERRUPTED
    if isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread():
        raise error
    task = asyncio.current_task()
    if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
        raise error
    return error
