"""Handlers that are not in this process: messages go there several at a time, and an answer says how far they got.

As many go at once as were handled the last time, and twice that; the other side answers soon even if it is slow. So
little has to be delivered again when it dies, a partition that is to be given up is not held for long, and a quick
handler costs few round trips.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from heliograph.delivery.invoke import Ended, Interrupt, Outcome, Run

if TYPE_CHECKING:
    from heliograph.message import Message

AHEAD_FIRST: Final = 16
AHEAD_MAX: Final = 1024
AHEAD_BYTES: Final = 256 * 1024
"""How much goes at once, unless a single message is larger."""


class Told(NamedTuple):
    """What became of some messages: so many are done; the next one ended with the error, or was not begun."""

    done: int
    error: BaseException | None = None


class FarHandler(ABC):
    """A handler that is elsewhere."""

    @abstractmethod
    def deliver(self, messages: Sequence[Message]) -> Told:
        """Have some messages of one partition handled, in order; returns when the other side has answered.

        Neither done nor an error: there is nobody, and its subscription is about to be closed.
        """

    def __call__(self, message: Message) -> None:
        """Have one message handled."""
        done, error = self.deliver([message])
        if not done:
            raise error or ConnectionError("nobody is there to handle it")


class FarInvoker:
    """Takes a run to a handler that is elsewhere, part by part."""

    def __init__(self, handler: FarHandler, interrupt: Interrupt) -> None:
        self._handler = handler
        self._interrupt = interrupt
        self._ahead = AHEAD_FIRST

    def __call__(self, run: Run) -> Outcome:
        """Deliver until the end, the first error, or an interruption."""
        for _ in run.source:  # takes the first message of a part
            if self._interrupt:
                return Ended.INTERRUPTED
            part = self._part(run.messages, run.taken() - 1)
            try:
                done, error = self._handler.deliver(part)
            except BaseException as failure:  # noqa: BLE001 - as for any other handler
                return failure
            self._ahead = min(AHEAD_MAX, max(1, 2 * done))
            if error is not None:
                run.pass_by(done)
                return error
            if not done:
                return Ended.INTERRUPTED
            run.pass_by(done - 1)
        return Ended.FINISHED

    def _part(self, messages: list[Message], first: int) -> list[Message]:
        part = messages[first : first + self._ahead]
        size = 0
        for at, message in enumerate(part):
            size += len(message.raw)
            if size > AHEAD_BYTES and at:
                return part[:at]
        return part
