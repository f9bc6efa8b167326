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


class Lost(Exception):
    """The connection ended before an answer came."""


class Questions:
    """Who asked what."""

    def __init__(self, calls: Calls, flush: Callable[[], None]) -> None:
        self._calls = calls
        self._flush = flush
        self._loop = asyncio.get_running_loop()
        self._answers: dict[int, asyncio.Future[bytes]] = {}
        self._over = ""

    async def ask(self, name: str, head: msgspec.Struct, kind: type[_T], lines: bytes = b"") -> tuple[_T, bytes]:
        """Ask, and wait for the answer; Lost if the connection ends first."""
        if self._over:
            raise Lost(self._over)
        answer: asyncio.Future[bytes] = self._loop.create_future()
        self._answers[self._calls.call(name, asking.encode(head, lines))] = answer
        self._flush()
        return asking.decode(await answer, kind)

    def answered(self, event: Replied) -> None:
        """An answer came."""
        answer = self._answers.pop(event.call, None)
        if answer is None or answer.done():
            return  # nobody waits for it any more
        if event.error:
            answer.set_exception(asking.error_of(event.error, event.message))
        else:
            answer.set_result(bytes(event.body))

    def close(self, reason: str) -> None:
        """No answer will come any more."""
        self._over = reason or "the connection is over"
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(Lost(self._over))
        self._answers.clear()
