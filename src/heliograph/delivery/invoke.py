"""How handlers are called.

The way of a million messages a second is ``PlainInvoker``: a ``for`` over a list iterator, one test, one
call. Nothing is counted there. How far it got is asked of the iterator, by whoever wants to know, from any
thread: an iterator over a list knows how many items are left.

``SystemExit`` and ``KeyboardInterrupt`` raised by a handler are failures like any other: they end a thread
the user has never seen, so nobody would notice. Only the cancellation of the task a handler runs in is not
the handler's doing; it is passed on, and so is Ctrl-C in the main thread (see ``coroutines.py``).
"""

from __future__ import annotations

import enum
import functools
import inspect
from collections.abc import Callable, Coroutine, Iterator
from datetime import datetime
from itertools import islice
from operator import length_hint
from typing import TYPE_CHECKING, Any

from heliograph.errors import ConfigError, HeliographError

if TYPE_CHECKING:
    from heliograph.delivery.ports import Handler
    from heliograph.message import Message

Oldest = Callable[[], int]
"""Messages before this offset have waited too long and are not delivered any more."""

Now = Callable[[], datetime]
"""The wall clock, for messages that may expire."""


class Ended(enum.Enum):
    """How a run ended, if not with an error."""

    FINISHED = "every message is done"
    INTERRUPTED = "the last message that was taken was not delivered"


class GivenBack(Exception):
    """Raised by a coroutine that hands messages on and has to stop: as if the message had not been delivered."""


class HandlerUnusable(HeliographError):
    """Calling the handler again cannot help: somebody has to look at it."""


class Either:
    """True if either of two is."""

    __slots__ = ("_one", "_other")

    def __init__(self, one: object, other: object) -> None:
        self._one = one
        self._other = other

    def __bool__(self) -> bool:
        return bool(self._one) or bool(self._other)


class Run:
    """Some messages on their way through a handler, in order, and how far they got."""

    __slots__ = ("_iterator", "expired", "messages", "skipped", "source")

    def __init__(self, messages: list[Message], oldest: Oldest | None = None, now: Now | None = None) -> None:
        self.messages = messages
        self.skipped = 0
        self.expired = 0
        """Of those skipped, the ones whose time was over."""
        self._iterator = iter(messages)
        self.source: Iterator[Message] = self._iterator if oldest is None else self._wanted(oldest)
        if now is not None:
            self.source = self._timely(self.source, now)

    def taken(self) -> int:
        """How many messages were taken; all but the last of them are done."""
        return len(self.messages) - length_hint(self._iterator)

    def done(self) -> int:
        """How many messages are certainly done, counting those that were skipped."""
        return max(0, self.taken() - 1)

    def undone(self) -> Message:
        """The first message that is not certainly done."""
        return self.messages[self.done()]

    def pass_by(self, count: int) -> None:
        """Take so many more messages without looking at them: they are done elsewhere, or known to be."""
        for _ in islice(self._iterator, count):
            pass

    def _wanted(self, oldest: Oldest) -> Iterator[Message]:
        for message in self._iterator:
            if message.offset < oldest():
                self.skipped += 1
            else:
                yield message

    def _timely(self, source: Iterator[Message], now: Now) -> Iterator[Message]:
        for message in source:
            if message.expires is not None and message.expires <= now():
                self.skipped += 1
                self.expired += 1
            else:
                yield message


Interrupt = list[bool] | Either
"""True: start no further message."""

Outcome = Ended | BaseException
Invoke = Callable[[Run], Outcome]
AsyncInvoke = Callable[[Run], Coroutine[Any, Any, Outcome]]


def is_async(handler: Callable[..., Any]) -> bool:
    """Whether calling it gives a coroutine: functions, partials, and objects with an async ``__call__``."""
    while isinstance(handler, functools.partial):
        handler = handler.func
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(
        getattr(handler, "__call__", None)  # noqa: B004 - not whether it is callable, but how
    )


def check_handler(handler: object) -> None:
    """Refuse what can not be a handler while the caller is still there to hear it."""
    if not callable(handler):
        raise ConfigError(f"the handler is {handler!r}, which cannot be called")
    function: Any = handler
    while isinstance(function, functools.partial):
        function = function.func
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise ConfigError(f"the handler {handler!r} contains yield, so calling it would do nothing; remove the yield")


class PlainInvoker:
    """Calls a plain handler, message by message, in this thread."""

    def __init__(self, handler: Handler, interrupt: Interrupt) -> None:
        self._handler = handler
        self._interrupt = interrupt
        self._proven = False

    def __call__(self, run: Run) -> Outcome:
        """Deliver until the end, the first error, or an interruption."""
        handler, interrupt = self._handler, self._interrupt
        try:
            if not self._proven:
                for message in run.source:
                    if interrupt:
                        return Ended.INTERRUPTED
                    refuse_awaitable(handler(message))
                    self._proven = True
                    break
            for message in run.source:
                if interrupt:
                    return Ended.INTERRUPTED
                handler(message)
        except BaseException as error:  # noqa: BLE001 - see the top of the module
            return error
        return Ended.FINISHED


class BatchInvoker:
    """Calls a plain handler with all the messages at once, in this thread.

    The handler gets a list of its own: the messages of a batch are shared with other subscribers.
    """

    def __init__(self, handler: Handler, interrupt: Interrupt) -> None:
        self._handler = handler
        self._interrupt = interrupt

    def __call__(self, run: Run) -> Outcome:
        """Deliver all or, with an error, possibly some."""
        if self._interrupt:
            return Ended.INTERRUPTED
        try:
            refuse_awaitable(self._handler(run.messages[:]))
        except BaseException as error:  # noqa: BLE001 - see the top of the module
            return error
        return Ended.FINISHED


def refuse_awaitable(result: object) -> None:
    """A plain function that returns a coroutine has done nothing yet, and nobody would await it."""
    if result is not None and inspect.isawaitable(result):
        if inspect.iscoroutine(result):
            result.close()
        raise HandlerUnusable(
            "the handler is a plain function but returned an awaitable, so the message was not handled; "
            "subscribe the coroutine function itself (async def)"
        )


def too_slow(timeout_s: float) -> TimeoutError:
    """The failure of a handler that did not return in time."""
    return TimeoutError(f"the handler took longer than {timeout_s:g} s")
