"""Stopping in order: SIGINT and SIGTERM ask, and are heard between two messages."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Final, Self

from heliograph.cli import exits

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


class Terminated(BaseException):
    """SIGTERM came: the same as KeyboardInterrupt, which SIGINT is."""


def raise_for(number: int) -> None:
    """Leave at once, through every ``finally``."""
    if number == signal.SIGTERM:
        raise Terminated
    raise KeyboardInterrupt


@contextmanager
def raising() -> Iterator[None]:
    """Signals raise, so that terminals, files and stations are left in order."""

    def handle(number: int, _: FrameType | None) -> None:
        _end_line(number)
        raise_for(number)

    with _handling(SIGNALS, handle):
        yield


def _end_line(number: int) -> None:
    """The terminal has shown ^C; what follows begins on a line of its own."""
    if number == signal.SIGINT and os.isatty(2):
        os.write(2, b"\n")


class Stop:
    """Within this context a first signal only asks; whoever works looks at ``asked`` before the next message.

    A second signal of an impatient person calls ``on_second``, by default to leave at once.
    """

    def __init__(self) -> None:
        self.signal = 0
        self.asked = threading.Event()
        self.on_second: Callable[[int], None] = raise_for
        self._waiting = False
        self._restore: Any = None

    def __enter__(self) -> Self:
        self._restore = _handling(SIGNALS, self._handle)
        self._restore.__enter__()
        return self

    def __exit__(self, *details: object) -> None:
        self._restore.__exit__(*details)

    def _handle(self, number: int, _: FrameType | None) -> None:
        _end_line(number)
        second, self.signal = bool(self.signal), number
        self.asked.set()
        if self._waiting:
            raise_for(number)
        if second:
            self.on_second(number)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Nothing is at work in this block (it waits for input): a signal leaves it at once."""
        self._waiting = True
        try:
            if self.signal:
                raise_for(self.signal)
            yield
        finally:
            self._waiting = False

    def raise_if_asked(self) -> None:
        """Between two messages: leave if somebody asked."""
        if self.signal:
            raise_for(self.signal)

    @property
    def exit_code(self) -> int:
        """Of a command that has no end of its own: SIGTERM is its ordinary end."""
        return exits.INTERRUPTED if self.signal == signal.SIGINT else exits.OK


@contextmanager
def _handling(numbers: tuple[signal.Signals, ...], handler: Any) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may; whoever calls from another has signals of their own
        return
    # What the shell told us to ignore (a job in the background, nohup) stays ignored.
    heeded = [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, handler) for number in heeded}
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)
