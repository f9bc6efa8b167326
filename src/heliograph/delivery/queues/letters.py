"""Dead letters of a queue: written once, though any worker may die between the letter and the acknowledgement.

That a letter is begun is booked first, durably. Whoever gets the message after a crash sees it and looks whether the
letter is there; nobody else has to look.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from heliograph.delivery.deadletter import (
    DeadLetterIdentity,
    DeadLetters,
    is_dead_letter_channel,
    letter_for_message,
    letter_for_problem,
)
from heliograph.engine.port import Problem
from heliograph.engine.queuestore import Key

if TYPE_CHECKING:
    from heliograph.delivery.ports import PublishDeadLetter, RecentDeadLetters
    from heliograph.delivery.queues.ledger import Ledger
    from heliograph.engine.queuestore import Pending
    from heliograph.message import Message


class GivenUp(Exception):
    """No worker finished the message."""


class Failure(NamedTuple):
    """Why a message becomes a dead letter. ``reason``: ``handler``, ``nack``, ``expired``."""

    reason: str
    error: BaseException
    attempts: int


def expired(attempts: int) -> Failure:
    """It was handed out as often as allowed, and every lease ran out or was given back."""
    text = f"handed out {attempts} times, and no worker finished it: their leases ran out or were given back"
    return Failure("expired", GivenUp(text), attempts)


def refused(attempts: int, error: BaseException | None) -> Failure:
    """A worker gave it back for the last time."""
    if error is not None:
        return Failure("handler", error, attempts)
    return Failure("nack", GivenUp(f"given back by a worker after {attempts} deliveries"), attempts)


class QueueLetters:
    """Writes the dead letters of one worker of a queue."""

    def __init__(
        self,
        ledger: Ledger,
        *,
        channel: str,
        name: str,
        worker: str,
        publish: PublishDeadLetter,
        recent: RecentDeadLetters,
    ) -> None:
        self.possible = not is_dead_letter_channel(channel)
        """Dead letters have no dead letters of their own."""
        self._ledger = ledger
        self._channel = channel
        self._name = name
        self._worker = worker
        self._publish = publish
        self._recent = recent

    def write(self, lease: Pending, life: str, what: Message | Problem, failure: Failure | None) -> bool:
        """Return when the letter is durable. False: the lease was lost, and nothing was written."""
        assert lease.token is not None
        if not self._ledger.begin_letter(Key(lease.partition, lease.offset, lease.token)):
            return False
        identity = DeadLetterIdentity(self._name, life, lease.partition, lease.offset)
        now_us = self._ledger.wall_us()
        extra: dict[str, object] = {"queue": self._name, "worker": self._worker}
        if isinstance(what, Problem):
            letter = letter_for_problem(identity, self._channel, what, now_us=now_us)
        else:
            assert failure is not None
            letter = letter_for_message(identity, what, failure.error, attempts=failure.attempts, now_us=now_us)
            extra["reason"] = failure.reason
        DeadLetters(
            self._channel, publish=self._publish, recent=self._recent, since_us=lease.letter_us or None
        ).write(letter._replace(payload={**letter.payload, **extra}))  # fmt: skip
        return True
