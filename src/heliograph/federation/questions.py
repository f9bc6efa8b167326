"""The requests of this side that wait for their answers, on one connection."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

import msgspec

from heliograph.federation import asking
from heliograph.federation.calls import Calls
from heliograph.federation.events import Replied

_T = TypeVar("_T", bound=msgspec.Struct)
Head = msgspec.Struct | Callable[[], msgspec.Struct]
"""What is asked; or what makes it when its turn has come."""


class Lost(Exception):
    """The connection ended before an answer came."""


class Questions:
    """Who asked what."""

    def __init__(self, calls: Calls, flush: Callable[[], None]) -> None:
        self._calls = calls
        self._flush = flush
        self._loop = asyncio.get_running_loop()
        self._answers: dict[int, tuple[asyncio.Future[bytes], asyncio.Semaphore | None]] = {}
        self._over = ""

    async def ask(
        self, name: str, head: Head, kind: type[_T], lines: bytes = b"", turn: asyncio.Semaphore | None = None
    ) -> tuple[_T, bytes]:
        """Ask, and wait for the answer; Lost if the connection ends first.

        ``turn`` is held until the answer comes, also if nobody waits for it any more: the other side is still at it.
        """
        if turn is not None:
            await turn.acquire()
        try:
            if self._over:
                raise Lost(self._over)
            said = head() if callable(head) else head
            call = self._calls.call(name, asking.encode(said, lines))
        except BaseException:
            if turn is not None:
                turn.release()
            raise
        answer: asyncio.Future[bytes] = self._loop.create_future()
        self._answers[call] = answer, turn
        self._flush()
        return asking.decode(await answer, kind)

    def answered(self, event: Replied) -> None:
        """An answer came."""
        answer, turn = self._answers.pop(event.call, (None, None))
        if turn is not None:
            turn.release()
        if answer is None or answer.done():
            return  # nobody waits for it any more
        if event.error:
            answer.set_exception(asking.error_of(event.error, event.message))
        else:
            answer.set_result(bytes(event.body))

    def close(self, reason: str) -> None:
        """No answer will come any more."""
        self._over = reason or "the connection is over"
        for answer, turn in self._answers.values():
            if turn is not None:
                turn.release()
            if not answer.done():
                answer.set_exception(Lost(self._over))
        self._answers.clear()
