"""Group commit: one write and one sync for everybody who is waiting.

Publishers queue their groups. The first to come leads: it takes the whole queue, appends it with one write,
syncs once, and tells the others. Who came meanwhile forms the next group, led by its first member. Nobody waits
for a timer, and a single publisher never changes threads::

    idle ──submit──▶ leading (by the publisher's thread, or the committer's for asyncio)
    leading ──group durable, queue empty──▶ idle
    leading ──group durable, queue not empty──▶ leading (by the first of the queue)
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence

from heliograph.errors import Busy, HeliographError, OutcomeUnknown, StationClosed
from heliograph.limits import GROUP_BYTES_MAX
from heliograph.log.groups import Guard
from heliograph.log.held import Evicted
from heliograph.log.lines import Form
from heliograph.log.partition import Partition
from heliograph.log.tickets import ColumnsTicket, OneTicket, Ticket

logger = logging.getLogger("heliograph.engine")
_NOBODY = Ticket((), (), 0)
"""Stands for whoever led without a ticket."""


class GroupCommit:
    """The queue in front of one partition."""

    def __init__(
        self,
        partition: Partition,
        *,
        always: bool,
        pending_bytes_max: int,
        wait_s: float,
        start_leader: Callable[[GroupCommit], None],
    ) -> None:
        self.partition = partition
        self._wait_s = wait_s
        self._always = always
        self._pending_bytes_max = pending_bytes_max
        self._start_leader = start_leader
        self._mutex = threading.Lock()
        self._room = threading.Condition(self._mutex)
        self._queue: list[Ticket] = []
        self._leading = False
        self._leader: Ticket | None = None  # the ticket of a thread that leads, or is to lead next
        self._waiting_for_room = 0
        self._closed = False
        self._finishing = False
        self.pending_bytes = 0
        self.refused = 0

    def append_one(
        self, form: Form, id_bytes: bytes, microseconds: int, hole: bytes, now_us: int, guard: Guard | None = None
    ) -> int:
        """Append and sync one message from this thread: without any detour if nobody else is at it; its offset."""
        size = len(hole)
        with self._mutex:
            alone = not self._leading and not self._closed
            if alone:
                self._leading = True
                self.pending_bytes += size
        if not alone:
            ticket = OneTicket(form, id_bytes, microseconds, hole, now_us, guard)
            self.commit(ticket, self._wait_s)
            return ticket.first
        try:
            return self.partition.commit_one(form, id_bytes, microseconds, hole, now_us, guard)
        finally:
            with self._mutex:
                self.pending_bytes -= size
                others = self._queue or self._waiting_for_room
                if not others:
                    self._leading = False
            if others:
                self._hand_over((), _NOBODY)

    def append_batch(self, batch: ColumnsTicket) -> int:
        """Append and sync a batch from this thread; its first offset."""
        self.commit(batch, self._wait_s)
        return batch.first

    def commit(self, ticket: Ticket, wait_s: float) -> None:
        """Append and sync from this thread; returns when it is durable."""
        with self._mutex:
            alone = not self._leading and not self._closed
            if alone:
                self._leading = True
                self.pending_bytes += ticket.size
        ticket.error = None  # a partition just deleted or closed may have refused it before
        if alone:
            self._commit_alone(ticket)
        else:
            self._commit_queued(ticket, wait_s)
        ticket.check()

    def _commit_queued(self, ticket: Ticket, wait_s: float) -> None:
        ticket.prepare_to_wait()
        try:
            if self._join(ticket, wait_s):
                self.lead(ticket)
            while not ticket.wait():
                self.lead(ticket)
        except BaseException:
            self._give_up(ticket)
            raise

    def _give_up(self, ticket: Ticket) -> None:
        """Its owner was interrupted (Ctrl-C): nobody must wait for it to lead."""
        with self._mutex:
            if ticket in self._queue:
                self._queue.remove(ticket)
                self.pending_bytes -= ticket.size
            leads = self._leader is ticket
        ticket.desert()
        if leads:
            self._hand_over((), ticket)

    def _commit_alone(self, ticket: Ticket) -> None:
        """Lead a group of one: the way of a single publisher, hence without any detour."""
        try:
            self.partition.commit((ticket,))
        finally:
            self._hand_over((ticket,), ticket)

    def submit(self, ticket: Ticket) -> None:
        """Queue for the committer thread; the ticket's callback is called from there."""
        if self._join(ticket, 0.0):
            self._start_leader(self)

    def _join(self, ticket: Ticket, wait_s: float) -> bool:
        """Queue the ticket, within the bound; whether its owner has to lead."""
        with self._mutex:
            self._check_open()
            if self.pending_bytes and self.pending_bytes + ticket.size > self._pending_bytes_max:
                self._wait_for_room(ticket, wait_s)
                self._check_open()
            self.pending_bytes += ticket.size
            self._queue.append(ticket)
            if self._leading:
                return False
            self._leading = True
            self._leader = ticket if ticket.callback is None else None
            return True

    def _check_open(self) -> None:
        if self._finishing:
            raise StationClosed("the station is closed")
        if self._closed:
            raise Evicted(str(self.partition.place.directory))

    def _wait_for_room(self, ticket: Ticket, wait_s: float) -> None:
        def fits() -> bool:
            return not self.pending_bytes or self.pending_bytes + ticket.size <= self._pending_bytes_max

        self._waiting_for_room += 1
        try:
            room = wait_s > 0 and self._room.wait_for(fits, wait_s)
        finally:
            self._waiting_for_room -= 1
        if not room:
            self.refused += 1
            raise Busy(
                f"{self.pending_bytes} bytes wait for the disk already (publishing.pending_bytes_max is "
                f"{self._pending_bytes_max}). Nothing was published: slow down, or publish with wait=SECONDS."
            )

    def close_if_idle(self) -> bool:
        """Close the partition if nobody is using it just now."""
        with self._mutex:
            if self._leading or self._queue:
                return False
            self._closed = self.partition.close_if_idle()
            return self._closed

    def finish(self) -> None:
        """The station is being closed: take nothing more."""
        with self._mutex:
            self._closed = self._finishing = True

    def finished(self, wait_s: float) -> None:
        """Wait for what was taken before: whoever published it shall hear what became of it."""
        with self._mutex:
            self._waiting_for_room += 1  # or nobody would say that the queue is empty
            try:
                self._room.wait_for(lambda: not self._leading, wait_s)
            finally:
                self._waiting_for_room -= 1

    def abandon(self) -> None:
        """In a forked child: take nothing more. Who leads, or has the mutex, is a thread that does not exist here."""
        self._mutex = threading.Lock()
        self._room = threading.Condition(self._mutex)
        self._closed = True

    def lead(self, own: Ticket | None) -> None:
        """Commit what is queued; then hand over to the first who came meanwhile.

        The committer (``own`` is None) goes on until the queue is empty or a thread can take over.
        """
        leading = True
        while leading:
            group: list[Ticket] = []
            error: BaseException | None = OutcomeUnknown(
                "publishing was interrupted; it may or may not have been stored"
            )
            try:
                self._take(group)
                error = self._carry_out(group)
            finally:  # whatever interrupts the leader, somebody leads on and nobody waits for ever
                try:
                    self._resolve(group, error, own)
                finally:
                    leading = self._hand_over(group, own)

    def _resolve(self, group: list[Ticket], error: BaseException | None, own: Ticket | None) -> None:
        """Tell everybody. Tickets of one event loop share their callback: it is called once, with all of them."""
        calls: dict[Callable[[list[Ticket]], None], list[Ticket]] = {}
        waiting: list[Ticket] = []
        for ticket in group:
            if ticket.callback is not None:
                ticket.error = error or ticket.refused
                calls.setdefault(ticket.callback, []).append(ticket)
            else:
                waiting.append(ticket)
        if waiting:
            Ticket.wake(waiting, error, own if own in waiting else None)
        for callback, tickets in calls.items():
            try:
                callback(tickets)
            except Exception:  # who cannot be told must not keep the others from it
                logger.exception("%d publishers cannot be told what became of their messages", len(tickets))

    def _hand_over(self, group: Sequence[Ticket], own: Ticket | None) -> bool:
        """Whether the present leader has to lead once more."""
        with self._mutex:
            for ticket in group:
                self.pending_bytes -= ticket.size
            self._leader = None
            if not self._queue:
                self._leading = False
            if self._waiting_for_room:
                self._room.notify_all()
            if not self._queue:
                return False
            heir = self._queue[0]
            if heir.callback is None:
                self._leader = heir
                heir.lead()
                return False
        if own is None:
            return True
        self._start_leader(self)
        return False

    def _take(self, group: list[Ticket]) -> None:
        """Move the next group out of the queue."""
        with self._mutex:
            total, count = 0, 0
            for ticket in self._queue:
                total += ticket.size
                if count and total > GROUP_BYTES_MAX:
                    break
                count += 1
            group += self._queue[:count]
            del self._queue[:count]

    def _carry_out(self, group: list[Ticket]) -> BaseException | None:
        try:
            if self._always:
                self.partition.commit(group)
            else:
                self.partition.append(group)
        except (HeliographError, OSError) as error:
            return error
        return None
