"""Work queues by pulling: receive some messages, acknowledge each by itself."""

from __future__ import annotations

import os
from collections.abc import Iterable
from datetime import timedelta
from typing import TYPE_CHECKING, Self

from heliograph.arguments import check_many
from heliograph.delivery.queues import decisions
from heliograph.delivery.queues.ledger import Return
from heliograph.delivery.queues.letters import refused
from heliograph.errors import LeaseLost, Reject
from heliograph.limits import QUEUE_RECEIVE_MAX

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from heliograph.delivery.queues.decisions import QueueSettings
    from heliograph.delivery.queues.desk import Desk, Found
    from heliograph.engine.queuestore import Key
    from heliograph.message import Message


class Job:
    """A message of a queue, leased to this worker until it is acknowledged, given back, or its time runs out.

    Whoever lost the lease meanwhile gets :class:`LeaseLost` and changes nothing.
    """

    __slots__ = ("_found", "_queue")

    def __init__(self, queue: Queue, found: Found) -> None:
        self._queue = queue
        self._found = found

    @property
    def message(self) -> Message:
        """The message."""
        return self._found.message

    @property
    def deliveries(self) -> int:
        """How often it was handed out, this time included."""
        return self._found.lease.deliveries

    def ack(self) -> None:
        """It is done, and is never handed out again."""
        self._queue.ack([self])

    def nack(self, delay: float | timedelta = 0, error: BaseException | None = None) -> None:
        """It is not done: hand it out again, after a while.

        After the last delivery, or with a ``Reject`` as the error, it becomes a dead letter.
        """
        self._queue._nack(self, decisions.seconds(delay, "delay"), error)

    def extend(self, seconds: float | timedelta | None = None) -> None:
        """Keep it for so long from now on; by default for the queue's ``visibility_s``."""
        self._queue.extend([self], seconds)

    def __repr__(self) -> str:
        message = self.message
        return f"<Job {message.channel}/{message.partition}/{message.offset}, delivery {self.deliveries}>"


class Queue:
    """One worker of a queue, which pulls. Made by ``Station.queue``; also a context manager that closes it.

    Safe to use from several threads. What was received and neither acknowledged nor given back when it is closed is
    handed to somebody else at once.
    """

    def __init__(self, desk: Desk, on_closed: Callable[[Queue], None]) -> None:
        self._desk = desk
        self._on_closed = on_closed
        self._pid = os.getpid()

    @property
    def channel(self) -> str:
        """The channel it takes messages of."""
        return self._desk.parts.channel

    @property
    def name(self) -> str:
        """The queue's name."""
        return self._desk.parts.name

    @property
    def worker(self) -> str:
        """What this worker is known by."""
        return self._desk.worker

    @property
    def settings(self) -> QueueSettings:
        """What all workers of the queue agree on."""
        return self._desk.settings

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._desk.closed

    def receive(self, max_messages: int = 1, wait_s: float | timedelta = 0) -> list[Job]:
        """Lease up to so many messages that nobody else has; wait for the first for up to ``wait_s``.

        Each has to be acknowledged or extended within the queue's ``visibility_s``.
        """
        decisions.whole(max_messages, "max_messages", QUEUE_RECEIVE_MAX)
        clock = self._desk.parts.engine.clock
        until = clock.monotonic() + decisions.seconds(wait_s, "wait_s")
        while True:
            got = self._desk.exchange(max_messages)
            if got.failed is not None:
                raise got.failed
            left_s = until - clock.monotonic()
            if got.found or left_s <= 0:
                return [Job(self, found) for found in got.found]
            self._desk.wait(left_s)

    def ack(self, jobs: Iterable[Job]) -> None:
        """Acknowledge many with one transaction. LeaseLost names those that were lost; the others are done."""
        self._complain(self._desk.settle(_keys(jobs)), "acknowledged")

    def extend(self, jobs: Iterable[Job], seconds: float | timedelta | None = None) -> None:
        """Keep many for so long from now on, with one transaction."""
        wanted = self.settings.visibility_s if seconds is None else seconds
        length_s = decisions.seconds(
            wanted, "the extension", decisions.VISIBILITY_S_MIN, decisions.VISIBILITY_S_MAX
        )  # fmt: skip
        self._desk.check()
        self._complain(self._desk.ledger.extend(_keys(jobs), length_s), "extended")

    def give_back(self, jobs: Iterable[Job]) -> None:
        """Let others have what was not even begun: it does not count as a delivery."""
        returned = [Return(key, counts=False) for key in _keys(jobs)]
        self._complain(self._desk.settle((), returned), "given back")

    def _nack(self, job: Job, delay_s: float, error: BaseException | None) -> None:
        desk, found = self._desk, job._found
        desk.check()
        last = found.lease.deliveries >= desk.settings.max_deliveries or isinstance(error, Reject)
        if last and desk.letters.possible:
            if not desk.bury(found.lease, found.message, refused(found.lease.deliveries, error)):
                self._complain([found.key], "given back")
            self.ack([job])
            return
        self._complain(desk.settle((), [Return(found.key, delay_s)]), "given back")

    def _complain(self, lost: list[Key], what: str) -> None:
        if lost:
            places = ", ".join(f"{key.partition}/{key.offset}" for key in lost[:10])
            more = f" and {len(lost) - 10} more" if len(lost) > 10 else ""
            raise LeaseLost(
                f"{places}{more} of queue '{self.name}' of '{self.channel}' cannot be {what}: the lease ran out or was "
                "taken away, and somebody else has the message, or it is done. Extend the lease while you work, or "
                "raise visibility_s."
            )

    def close(self) -> None:
        """Give back what is not acknowledged. Closing twice does no harm."""
        if os.getpid() == self._pid:  # a forked child has no lease
            self._desk.close()
            self._on_closed(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Queue {self.name} of {self.channel}, worker {self.worker}>"


def _keys(jobs: Iterable[Job]) -> list[Key]:
    return [job._found.key for job in check_many("jobs", jobs, Job)]
