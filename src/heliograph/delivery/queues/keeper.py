"""The thread that keeps a worker of a queue supplied: books what is finished, leases more, extends what is at work.

All of that is one transaction a turn, however many messages were handled meanwhile. Leases are extended for as long
as handlers run, so that nobody else gets their messages; what was taken ahead and not started is given back soon, so
that a slow handler holds back nothing but its own message.
"""

from __future__ import annotations

import logging
import random
from typing import TYPE_CHECKING, NamedTuple

from heliograph.clock import to_us
from heliograph.delivery.deadletter import describe
from heliograph.delivery.invoke import Ended, HandlerUnusable
from heliograph.delivery.lane import TROUBLE
from heliograph.delivery.queues import decisions
from heliograph.delivery.queues.ledger import Return
from heliograph.delivery.queues.letters import Failure
from heliograph.errors import HeliographError, StationClosed
from heliograph.limits import QUEUE_AHEAD_S, QUEUE_FLUSH_S, QUEUE_UNSTARTED_S, WAIT_SLICE_S

if TYPE_CHECKING:
    from heliograph.clock import Clock
    from heliograph.delivery.control import Control
    from heliograph.delivery.queues.crews import Crew
    from heliograph.delivery.queues.desk import Desk, Found
    from heliograph.delivery.queues.tray import Finished, Tray
    from heliograph.delivery.retry import Retry
    from heliograph.engine.queuestore import Key

logger = logging.getLogger("heliograph.delivery")


class _Unburied(NamedTuple):
    """A message whose dead letter is not written yet; it stays leased."""

    found: Found
    failure: Failure


class Keeper:
    """Runs in the subscription's own thread."""

    def __init__(
        self, desk: Desk, tray: Tray, crew: Crew, control: Control, retry: Retry, clock: Clock, *, concurrency: int
    ) -> None:
        self.troubles = 0
        """Turns in a row that failed: the storage is tried again."""
        self.unwritten = 0
        """Times in a row that a dead letter could not be written."""
        self.abandoned = False
        """Nobody waits for the handlers any more."""
        self._desk = desk
        self._tray = tray
        self._crew = crew
        self._control = control
        self._retry = retry
        self._clock = clock
        self._concurrency = concurrency
        self._done: list[Key] = []
        self._returned: list[Return] = []
        self._unburied: list[_Unburied] = []
        self._ahead = concurrency
        self._handled, self._since_s = 0, clock.monotonic()
        self._extend_at_s = 0.0
        self._bury_at_s = 0.0

    def run(self) -> None:
        """Until the subscription is closed and its handlers have come to an end."""
        self._crew.begin()
        try:
            while not self._finished():
                try:
                    self._turn()
                    self._wait()
                except StationClosed:
                    return
                except Exception as error:  # noqa: BLE001 - a full disk or a long lock must not end the delivery
                    self._in_trouble(error)
                else:
                    self.troubles = 0
        finally:
            self._tray.close()
            self._crew.wake()
            self._crew.end()

    def _finished(self) -> bool:
        if self.abandoned or not self._crew.alive():
            return True
        idle = not self._tray.at_work() and not self._tray.has_finished() and not self._tray.waiting()
        return self._control.stopping and idle and not self._done and not self._returned and not self._unburied

    def _in_trouble(self, error: Exception) -> None:
        self.troubles += 1
        self._desk.bell.wait({}, min(self._pause_s("it", self.troubles, error), WAIT_SLICE_S))

    def _pause_s(self, what: str, times: int, error: Exception) -> float:
        """Say what is tried again; after how long."""
        self._control.last_error = describe(error)
        if times & (times - 1) == 0:  # the 1st, 2nd, 4th, 8th … time in a row
            logger.error("%s: %s is tried again (attempt %d): %s", self._desk, what, times, describe(error))
        return TROUBLE.delay_s(times, random.random())

    # -- one turn -----------------------------------------------------------------------------------------------

    def _turn(self) -> None:
        for one in self._tray.take_finished():
            self._decide(one)
        self._bury()
        resting = bool(self._control.interrupt)
        back = self._tray.take_back(0.0 if resting else QUEUE_UNSTARTED_S)
        self._returned += [Return(found.key, counts=False) for found in back]
        if back:
            self._ahead = self._concurrency  # it is not as quick as it was
        wanted = 0 if resting else self._wanted()
        if wanted or self._done or self._returned:
            self._exchange(wanted)
            if back:
                self._desk.tell()
        self._extend()

    def _wanted(self) -> int:
        """Half of what it should have at hand is left: as much as is missing. Otherwise nothing yet."""
        self._measure()
        held = self._tray.waiting() + self._tray.at_work()
        return 0 if 2 * held > self._ahead and held >= self._concurrency else max(0, self._ahead - held)

    def _measure(self) -> None:
        now_s = self._clock.monotonic()
        if now_s - self._since_s >= QUEUE_AHEAD_S / 2:
            allowed = self._desk.settings.max_in_flight
            self._ahead = decisions.ahead(self._handled, now_s - self._since_s, self._concurrency, allowed)
            self._handled, self._since_s = 0, now_s

    def _exchange(self, wanted: int) -> None:
        got = self._desk.exchange(wanted, self._done, self._returned)
        self._done, self._returned = [], []
        self._report_lost(got.lost)
        if got.found:
            self._count_latency(got.found[-1])
            self._tray.put(got.found)
            self._crew.wake()
        if got.failed is not None:
            raise got.failed

    def _count_latency(self, last: Found) -> None:
        self._desk.counters.latency.add(self._desk.ledger.wall_us() - to_us(last.message.time))

    def _extend(self) -> None:
        now_s, visibility_s = self._clock.monotonic(), self._desk.settings.visibility_s
        if now_s < self._extend_at_s:
            return
        keys = [*self._tray.held(), *(one.found.key for one in self._unburied)]
        if keys:
            lost = self._desk.ledger.extend(keys, visibility_s)
            self._tray.lose(lost)
            self._report_lost(lost)
        self._extend_at_s = now_s + visibility_s / 3

    def _report_lost(self, lost: list[Key]) -> None:
        for key in lost:
            self._control.last_error = f"the lease of offset {key.offset} of partition {key.partition} was lost"
            logger.warning("%s: %s; somebody else has the message too", self._desk, self._control.last_error)

    # -- what handlers came to --------------------------------------------------------------------------------

    def _decide(self, finished: Finished) -> None:
        found, outcome = finished
        counters = self._desk.counters
        self._handled += 1
        if outcome is Ended.FINISHED:
            counters.delivered += 1
            self._done.append(found.key)
        elif isinstance(outcome, Ended):
            self._returned.append(Return(found.key, counts=False))
        elif isinstance(outcome, HandlerUnusable):
            self._returned.append(Return(found.key, counts=False))
            self._fail(str(outcome))
        else:
            counters.failed += 1
            self._after_failure(found, outcome)

    def _after_failure(self, found: Found, error: BaseException) -> None:
        deliveries, desk = found.lease.deliveries, self._desk
        self._control.last_error = describe(error)
        delay_s = decisions.after_failure(self._retry, desk.settings, deliveries, error, random.random())
        if delay_s is not None:
            desk.counters.retries += 1
            logger.info(
                "%s: offset %d failed (%s), again in %.3g s", desk, found.lease.offset, describe(error), delay_s
            )
            self._returned.append(Return(found.key, delay_s))
        elif desk.letters.possible:
            self._unburied.append(_Unburied(found, Failure("handler", error, deliveries)))
        else:
            self._returned.append(Return(found.key, counts=False))
            self._fail(f"the handler gave up on a dead letter, which has no dead letters: {describe(error)}")

    def _fail(self, reason: str) -> None:
        logger.error("%s stops: %s", self._desk, reason)
        self._control.fail(reason)

    def _bury(self) -> None:
        """Write the letters that are due; one that cannot be written is tried again for ever, not skipped.

        It stays leased and holds up nothing else.
        """
        if not self._unburied or self._clock.monotonic() < self._bury_at_s:
            return
        left, self._unburied = self._unburied, []
        for at, one in enumerate(left):
            try:
                if self._desk.bury(one.found.lease, one.found.message, one.failure):
                    self._done.append(one.found.key)
            except HeliographError as error:
                self._unburied = left[at:]
                self.unwritten += 1
                self._bury_at_s = self._clock.monotonic() + self._pause_s("a dead letter", self.unwritten, error)
                return
        self.unwritten = 0

    # -- waiting ------------------------------------------------------------------------------------------------

    def _wait(self) -> None:
        tray = self._tray
        if tray.has_finished():
            tray.drained.wait(QUEUE_FLUSH_S)  # more will be finished until then
            return
        now_s = self._clock.monotonic()
        timeout_s = max(0.0, min(WAIT_SLICE_S, self._extend_at_s - now_s))
        if tray.waiting():
            timeout_s = min(timeout_s, QUEUE_UNSTARTED_S)
        if not self._control.interrupt and self._wanted():
            self._desk.wait(timeout_s)
        elif not self._finished():
            self._desk.bell.wait({}, timeout_s)
