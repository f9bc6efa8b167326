"""What publishers wait for: groups on their way to the disk, each with an owner that is told."""

from __future__ import annotations

import _thread
from collections.abc import Callable, Sequence
from itertools import pairwise

import google_crc32c

from heliograph.limits import WAKE_CHAINS
from heliograph.log.groups import Group, Guard
from heliograph.log.lines import Column, Form, fill, put_together

_crc = google_crc32c.value


class Ticket(Group):
    """A group on its way to the disk: resolves when it is durable."""

    __slots__ = ("_chain", "_done", "_lock", "callback", "deserted", "error", "size")

    def __init__(
        self,
        bodies: Sequence[bytes],
        crcs: Sequence[int],
        now_us: int,
        *,
        atomic: bool = False,
        callback: Callable[[list[Ticket]], None] | None = None,
    ) -> None:
        super().__init__(bodies, crcs, now_us, atomic=atomic)
        self.size = len(bodies[0]) if len(bodies) == 1 else sum(map(len, bodies))
        self.error: BaseException | None = None
        self.callback = callback
        self._done = False
        self._lock: _thread.LockType | None = None

    def prepare_to_wait(self) -> None:
        self._done = False
        self._chain: dict[Ticket, Ticket] = {}
        self.deserted = False  # nobody waits for it any more
        self._lock = _thread.allocate_lock()
        self._lock.acquire()

    def wait(self) -> bool:
        """Wait until it is durable (True) or until this thread shall lead (False)."""
        assert self._lock is not None
        self._lock.acquire()
        self.pass_on()
        return self._done

    def pass_on(self) -> None:
        """Wake whoever comes next in the chain; once, however often and by whomever this is called."""
        follower = self._chain.pop(self, None)
        if follower is not None:
            follower.lead()

    def desert(self) -> None:
        """Its owner was interrupted. Who comes next is woken all the same, by it or by whoever resolves it."""
        self.deserted = True
        if self._done:
            self.pass_on()

    def lead(self) -> None:
        """Wake its owner: to lead, unless it is resolved."""
        assert self._lock is not None
        self._lock.release()

    def check(self) -> None:
        """Raise why it is not durable, if it is not."""
        failure = self.error or self.refused
        if failure is not None:
            raise failure

    def resolve(self, error: BaseException | None) -> None:
        """Say that it is durable, or why not; its owner is not woken yet."""
        self.error = error
        self._done = True

    @staticmethod
    def wake(tickets: list[Ticket], error: BaseException | None, leader: Ticket | None) -> None:
        """Resolve tickets that threads wait for, and wake those: each wakes the next one when it runs.

        All at once would stand in each other's way, for only one of them can run.
        """
        others = [ticket for ticket in tickets if ticket is not leader]
        chain: dict[Ticket, Ticket] = {}
        for first in range(WAKE_CHAINS):
            part = others[first::WAKE_CHAINS]
            chain.update(pairwise(part))
        for ticket in others:
            ticket._chain = chain
        for ticket in tickets:  # only now: who deserts before leaves its part to us, who does it later finds its own
            ticket.resolve(error)
        if leader is not None:
            leader.lead()
        for ticket in others[:WAKE_CHAINS]:
            ticket.lead()
        for ticket in others:
            if ticket.deserted:
                ticket.pass_on()


class ColumnsTicket(Ticket):
    """An atomic batch whose messages differ in little: its bodies lie in columns, and become lines all at once."""

    __slots__ = ("columns",)

    def __init__(
        self,
        columns: Sequence[Column],
        count: int,
        size: int,
        now_us: int,
        *,
        callback: Callable[[list[Ticket]], None] | None = None,
    ) -> None:
        self.columns = columns
        self.bodies = self.crcs = ()
        self.count = count
        self.now_us = self.min_us = self.max_us = now_us
        self.atomic = True
        self.first = -1
        self.guard = self.refused = self.error = self.meanwhile = None
        self.passing = False
        self.callback = callback
        self.size = size  # of all bodies
        self._done = False
        self._lock = None

    def lines(self, place: bytes, first: int) -> bytes:
        return fill(self.columns, self.count, place, first)

    def filled(self) -> list[bytes]:
        """The bodies, as a ticket for messages that have nothing in common would hold them."""
        return put_together(self.columns, self.count)


class OneTicket(Ticket):
    """A message that differs in little from others of its publisher: finished in one step."""

    __slots__ = ("form", "hole", "id_bytes", "microseconds")

    def __init__(
        self, form: Form, id_bytes: bytes, microseconds: int, hole: bytes, now_us: int,
        guard: Guard | None = None, callback: Callable[[list[Ticket]], None] | None = None,
    ) -> None:  # fmt: skip
        self.form = form
        self.id_bytes = id_bytes
        self.microseconds = microseconds
        self.hole = hole
        self.bodies = self.crcs = ()
        self.count = 1
        self.now_us = self.min_us = self.max_us = now_us
        self.atomic = False
        self.first = -1
        self.guard = guard
        self.refused = self.error = self.meanwhile = None
        self.passing = False
        self.callback = callback
        self.size = len(hole) + form.bytes
        self._done = False
        self._lock = None

    def lines(self, place: bytes, first: int) -> bytes:
        form = self.form.line(place)
        text = form % (self.id_bytes, self.microseconds, self.hole, first)
        return b'%b,"crc":"%08x"}\n' % (text, _crc(text))
