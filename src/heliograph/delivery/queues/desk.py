"""Where a worker gets messages and hands them in: the book, the log, the dead letters and the worker's own lock.

What cannot be delivered never reaches a worker: a redacted message is done, one that is missing is told, one that is
not readable or was handed out too often becomes a dead letter.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from heliograph.addressee import is_meant
from heliograph.clock import from_us
from heliograph.delivery.deadletter import describe
from heliograph.delivery.queues import decisions
from heliograph.delivery.queues.floors import LOCK_S
from heliograph.delivery.queues.ledger import Exchange, Return
from heliograph.delivery.queues.letters import Failure, QueueLetters, expired
from heliograph.delivery.queues.shelf import Shelf
from heliograph.delivery.retry import Retry
from heliograph.delivery.statistics import Counters
from heliograph.engine import queueworkers
from heliograph.engine.bell import Bell
from heliograph.engine.fitting import TRIMMED
from heliograph.engine.port import Problem
from heliograph.engine.queuestore import Key, Pending
from heliograph.errors import HeliographError, StationClosed
from heliograph.limits import QUEUE_LOOK_S
from heliograph.message import Gap

if TYPE_CHECKING:
    from heliograph.delivery.ports import OnGap, PublishDeadLetter, RecentDeadLetters
    from heliograph.delivery.positions import Flusher
    from heliograph.delivery.queues.decisions import QueueSettings
    from heliograph.delivery.queues.floors import Floors
    from heliograph.delivery.queues.ledger import Ledger
    from heliograph.engine.files import FilesEngine
    from heliograph.message import Message

NEVER = 1 << 62
"""An offset that no log reaches."""

FULL_S = 0.05
"""A worker that finds as many messages in flight as are allowed looks again after this long at the soonest."""

LETTER_AGAIN_S = 1.0
"""A message whose dead letter could not be written is tried again after this long."""

logger = logging.getLogger("heliograph.delivery")


class Found(NamedTuple):
    """A message that was leased and read."""

    lease: Pending
    message: Message

    @property
    def key(self) -> Key:
        """What its lease is known by."""
        return key_of(self.lease)


def key_of(lease: Pending) -> Key:
    """What a lease is known by."""
    assert lease.token is not None
    return Key(lease.partition, lease.offset, lease.token)


class Got(NamedTuple):
    """What an exchange gave: messages, leases that were lost, and why the log could not be read."""

    found: list[Found]
    lost: list[Key]
    failed: Exception | None


class Parts(NamedTuple):
    """What a station opens a queue with; shared by its workers of one process."""

    engine: FilesEngine
    channel: str
    name: str
    ledger: Ledger
    floors: Floors
    flusher: Flusher
    retry: Retry
    publish_dead_letter: PublishDeadLetter
    recent_dead_letters: RecentDeadLetters
    load_settings: Callable[[], QueueSettings]
    release: Callable[[], None]
    """Gives the queue's state and its name back, once."""


class Desk:
    """One worker of a queue. Safe to use from several threads."""

    def __init__(self, parts: Parts, on_gap: OnGap | None = None) -> None:
        self.parts = parts
        self.ledger = parts.ledger
        self.counters = Counters()
        self.closed = False
        self.settings = parts.load_settings()
        self._engine = engine = parts.engine
        self._directory = engine.positions.directory(parts.channel, parts.name)
        self._identity = queueworkers.Worker(self._directory, engine.disk)
        self.worker = self._identity.name
        self.bell = Bell(engine, parts.channel)
        self.letters = QueueLetters(
            self.ledger, channel=parts.channel, name=parts.name, worker=self.worker,
            publish=parts.publish_dead_letter, recent=parts.recent_dead_letters,
        )  # fmt: skip
        self._on_gap = on_gap
        self._shelf = Shelf(engine, parts.channel)
        self._mutex = threading.Lock()
        self._look_at_s = 0.0
        self._full = False

    def __str__(self) -> str:
        return f"queue {self.parts.name} of {self.parts.channel}"

    # -- getting messages -------------------------------------------------------------------------------------

    def exchange(self, wanted: int, done: Sequence[Key] = (), returned: Sequence[Return] = ()) -> Got:
        """Hand in what is finished and get more, in one transaction. Raises if it failed: then nothing was booked."""
        self.check()
        failed: Exception | None = None
        found: list[Found] = []
        with self._mutex:
            given = self._exchange(wanted, done, returned)
            gaps = [(gap, gap.reason == TRIMMED) for gap in given.gaps]
            try:
                found = self._read(given.leases, gaps)
            except Exception as error:  # noqa: BLE001 - what was handed in is booked all the same
                failed = error
            if wanted and not given.leases:
                self._shelf.clear()
            self._full = wanted > 0 and given.full
        for gap, missing in gaps:
            self._tell(gap, missing)
        if done or len(found) < len(given.leases):
            self.moved()
        if given.freed:
            self.tell()
        return Got(found, given.lost, failed)

    def _exchange(self, wanted: int, done: Sequence[Key], returned: Sequence[Return]) -> Exchange:
        if wanted and self._time_to_look():
            self.look_after_others()
        given = self.ledger.exchange(self.worker, wanted, self.settings, done, returned)
        if wanted and not given.leases and self.look_after_others():
            again = self.ledger.exchange(self.worker, wanted, self.settings)
            freed = given.freed or again.freed
            given = again._replace(lost=given.lost, gaps=[*given.gaps, *again.gaps], freed=freed)
        return given

    def _time_to_look(self) -> bool:
        now_s = self._engine.clock.monotonic()
        if now_s < self._look_at_s:
            return False
        self._look_at_s = now_s + QUEUE_LOOK_S
        self.settings = self.parts.load_settings()
        return True

    def look_after_others(self) -> bool:
        """Take the leases of workers that died; whether there were any."""
        dead = self.ledger.release_dead(
            self.worker, lambda name: queueworkers.is_dead(self._directory, name, self._engine.disk)
        )
        if dead:
            logger.info("%s: took over what dead workers held: %s", self, ", ".join(dead))
            queueworkers.bury(self._directory, dead, self._engine.disk)
        return bool(dead)

    def _read(self, leases: list[Pending], gaps: list[tuple[Gap, bool]]) -> list[Found]:
        found: list[Found] = []
        dropped: list[Key] = []
        returned: list[Return] = []
        try:
            for lease in leases:
                what = self._wanted(self._shelf.find(lease.partition, lease.offset, again=lease.deliveries > 1))
                if what is not None and not isinstance(what, Problem) and self._fresh_enough(lease):
                    found.append(Found(lease, what))
                elif self._deal_with(lease, what, gaps):
                    dropped.append(key_of(lease))
                else:
                    returned.append(Return(key_of(lease), LETTER_AGAIN_S, counts=False))
        except Exception:  # the log cannot be read: nobody has seen these, so nobody may have to wait for them
            handled = {*dropped, *(one.key for one in returned)}
            returned += [Return(key_of(one), counts=False) for one in leases if key_of(one) not in handled]
            self.ledger.settle(dropped, returned)
            raise
        if dropped or returned:
            self.ledger.settle(dropped, returned)
        return found

    def _wanted(self, what: Message | Problem | None) -> Message | Problem | None:
        """What was found, or nothing if its time is over or it is for another subscription."""
        if what is None:
            return None
        line = what.line if isinstance(what, Problem) else what.raw if what.redrivefor is not None else None
        if line is not None and not is_meant(line, self.parts.name, self._engine.name):
            self.counters.passed_over += 1
            return None
        expires = None if isinstance(what, Problem) else what.expires
        if expires is None or expires > from_us(self._engine.clock.time_ns() // 1000):
            return what
        self.counters.expired += 1
        return None

    def _fresh_enough(self, lease: Pending) -> bool:
        return not (self.letters.possible and decisions.exhausted(lease.deliveries, self.settings))

    def _deal_with(self, lease: Pending, what: Message | Problem | None, gaps: list[tuple[Gap, bool]]) -> bool:
        """What no worker gets. True: it only has to be acknowledged; False: its letter has to be tried again."""
        if what is None:
            return True
        if isinstance(what, Problem) and (what.kind == "missing" or not self.letters.possible):
            gap = Gap(self.parts.channel, lease.partition, lease.offset, lease.offset + 1, what.reason)
            gaps.append((gap, True))
            return True
        try:
            self.bury(lease, what, None if isinstance(what, Problem) else expired(lease.deliveries - 1))
        except HeliographError as error:
            logger.error("%s: the dead letter for offset %d is tried again: %s", self, lease.offset, describe(error))
            return False
        return True

    def bury(self, lease: Pending, what: Message | Problem, failure: Failure | None) -> bool:
        """Write the dead letter; the caller acknowledges. False: the lease was lost, somebody else decides."""
        written = self.letters.write(lease, self._engine.incarnation(self.parts.channel), what, failure)
        if written:
            self.counters.dead_letters += 1
            why = what.reason if isinstance(what, Problem) else describe(failure.error) if failure else ""
            logger.warning("%s: offset %d went to the dead letters: %s", self, lease.offset, why)
        return written

    def _tell(self, gap: Gap, missing: bool) -> None:
        """Messages are missing (or, when a log is not what it was, come again): count, log, tell."""
        self.counters.missing += gap.next - gap.first if missing else 0
        what = "cannot be delivered" if missing else "are delivered again"
        logger.warning("%s: offsets %d to %d %s: %s", self, gap.first, gap.next - 1, what, gap.reason)
        if self._on_gap is not None:
            try:
                self._on_gap(gap)
            except Exception:
                logger.exception("%s: on_gap failed", self)

    # -- waiting ----------------------------------------------------------------------------------------------

    def wait(self, timeout_s: float) -> None:
        """Until there may be something to hand out, or the bell is rung; a second at most."""
        offsets, due_s = self.ledger.reached()
        if self._full:  # what is in the log does not help: only what others finish, or lose
            offsets, due_s = dict.fromkeys(offsets, NEVER), max(due_s, FULL_S)
        if due_s > 0 and timeout_s > 0:
            self.bell.wait(offsets, min(timeout_s, due_s))

    def tell(self) -> None:
        """Something is visible again: let those look who wait, in all processes."""
        self._engine.tell(self.parts.channel, 0)

    def settle(self, done: Sequence[Key] = (), returned: Sequence[Return] = ()) -> list[Key]:
        """Acknowledge and give back; which leases were lost meanwhile."""
        self.check()
        given = self.ledger.settle(done, returned)
        if len(given.lost) < len(done) + len(returned):
            self.moved()
        if given.freed or any(not one.delay_s for one in returned):
            self.tell()
        return given.lost

    def moved(self) -> None:
        """Something was acknowledged: the floor may have moved."""
        self.parts.floors.move(self.parts.flusher)

    # -- ending -----------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Refuse to work once it is closed."""
        self._engine.check_writable()
        if self.closed:
            raise StationClosed(f"{self} was closed")

    def close(self) -> None:
        """Give everything back. Safe to call again."""
        if self.closed:
            return
        self.closed = True
        self.bell.ring()
        with self._mutex:
            self._shelf.close()
            try:
                if self.ledger.release(self.worker):
                    self.tell()
                self.parts.floors.save(LOCK_S)
            except HeliographError as error:
                logger.error("%s was not closed in order: %s", self, describe(error))
            finally:
                self._identity.close()
                self.parts.release()
