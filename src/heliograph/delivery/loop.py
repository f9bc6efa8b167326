"""The loop of one subscription: pull a batch, hand it to the lanes, again.

One daemon thread. Whatever goes wrong below (a disk that cannot be read, a full one that takes no position)
is logged and tried again; whatever goes wrong above (the handler) is the lanes' business. The loop only
ends when the subscription is closed or its station is.
"""

from __future__ import annotations

import logging
import random
from bisect import bisect_left
from collections.abc import Iterator
from typing import TYPE_CHECKING

from heliograph.addressee import is_meant
from heliograph.delivery.control import delivering
from heliograph.delivery.deadletter import describe
from heliograph.delivery.invoke import is_async
from heliograph.delivery.lane import TROUBLE, Lane, Terms, drive
from heliograph.delivery.overflow import newest_to_keep, oldest_to_keep
from heliograph.errors import NotFound, StationClosed
from heliograph.log.cursor import LogCut
from heliograph.message import Gap

if TYPE_CHECKING:
    from heliograph.clock import Clock
    from heliograph.delivery.invoke import Outcome, Run
    from heliograph.delivery.lanes import Lanes
    from heliograph.delivery.ports import Cursor, Engine, OnGap, OverflowPolicy
    from heliograph.delivery.positions import Flusher, Positions
    from heliograph.engine.port import Batch, Problem
    from heliograph.filters import Sieve
    from heliograph.message import Message

WAIT_S = 10.0
"""Longest single wait for news; the engine looks more often by itself."""

BACKLOG_LOOK_S = 0.01
"""How often the end of the log is looked at while messages are being dropped."""

CUT_LOOK_S = 0.02
"""How often the lanes are looked at while they finish what a repair has cut off the log."""

DROP_WARNING_SHARE = 0.01
"""A warning is logged when more than this share of the messages is dropped."""

DROP_WARNING_S = 60.0
"""Shortest time between two such warnings."""

logger = logging.getLogger("heliograph.delivery")


class Backlog:
    """What waits in the log for an ephemeral subscription, and which part of it is dropped."""

    def __init__(
        self,
        engine: Engine,
        channel: str,
        partition: int,
        *,
        buffer: int,
        policy: OverflowPolicy,
        clock: Clock,
    ) -> None:
        self.policy = policy
        self.buffer = buffer
        self._engine = engine
        self._channel = channel
        self._partition = partition
        self._clock = clock
        self._oldest = 0
        self._look_at = 0.0

    def end(self) -> int:
        """Where the log ends now."""
        return self._engine.bounds(self._channel, self._partition).next

    def oldest(self) -> int:
        """``drop_oldest``: messages before this offset are dropped. Asked often, so it looks seldom."""
        now = self._clock.monotonic()
        if now >= self._look_at:
            self._look_at = now + BACKLOG_LOOK_S
            try:
                self._oldest = oldest_to_keep(self.end(), self.buffer)
            except Exception as error:  # noqa: BLE001 - not the handler's fault, and the loop meets it, too
                logger.debug("the end of %s cannot be read: %s", self._channel, describe(error))
        return self._oldest


class Loop:
    """Carries the decisions out, in one thread."""

    def __init__(
        self,
        engine: Engine,
        terms: Terms,
        *,
        lanes: Lanes,
        backlog: Backlog | None,
        positions: Positions | None,
        flusher: Flusher,
        on_gap: OnGap | None,
        gap: Gap | None,
        sieve: Sieve | None,
    ) -> None:
        self.clerk = Lane(-1, terms)
        """Sees to what is not a message: missing ranges, lines that cannot be delivered, drops."""
        self.lanes = lanes
        self.positions = positions
        self._engine = engine
        self._terms = terms
        self._control = terms.control
        self._backlog = backlog
        self._flusher = flusher
        self._on_gap = on_gap
        self._gap = gap
        self._sieve = sieve
        self._cursor: Cursor | None = None
        self._cut: LogCut | None = None
        self._keep_until: int | None = None
        self._resume_at = 0
        self._pulled_to = 0
        self._troubles = 0
        self._warn_at = 0.0

    def run(self) -> None:
        """Deliver until the subscription is closed."""
        delivering.set(self._control)
        try:
            self.lanes.begin()
            if self._gap is not None:
                self._tell(self._gap, missing=self._gap.next <= self.lanes.reach())
            self._deliver()
        except Exception as error:
            logger.exception("%s broke down", self._terms)
            self._control.fail(f"internal error, please report it: {describe(error)}")
            while self._control.hold():  # resume() cannot help, but closing is still an orderly end
                self._control.fail("broke down; close and subscribe again")
        finally:
            self.lanes.end()
            self._close_cursor()

    def retrying(self) -> bool:
        """Whether something failed and is being tried again."""
        return self._troubles > 0 or self.clerk.retrying or any(lane.retrying for lane in self.lanes.lanes)

    def _deliver(self) -> None:
        control = self._control
        while not control.interrupt or control.hold():
            batch = self._pull()
            if batch is not None and not self._take(batch):
                return
            del batch  # before the next is decoded: it then reuses the same memory, still in the CPU's cache

    # -- reading

    def _pull(self) -> Batch | None:
        """The next batch; None when it is time to look at the control again."""
        terms = self._terms
        try:
            if self._cut is not None and not self._go_back(self._cut):
                return None
            if self._cursor is None:
                self._cursor = self._engine.cursor(
                    terms.channel, terms.partition, self.lanes.reach(), self._sieve, terms.life.birth
                )
            if self._backlog is not None:
                self._skip(self._cursor, self._backlog)
            batch = self._cursor.pull()
            self._troubles = 0
            if batch is not None:
                self._pulled_to = batch.next
            elif not self._control.interrupt:
                self._wait(self._cursor.offset)
        except StationClosed:
            self._control.stop()
        except LogCut as cut:
            self._close_cursor()
            self._cut = cut
        except NotFound as error:
            self._close_cursor()
            logger.error("%s failed: %s", terms, error)
            self._control.fail(f"{describe(error)}; close and subscribe again")
        except Exception as error:  # noqa: BLE001 - the disk may recover, the subscription must be there then
            self._close_cursor()
            self._trouble(error)
        else:
            return batch
        return None

    def _wait(self, offset: int) -> None:
        """Wait for news; a log that has become shorter is another one."""
        terms = self._terms
        if self._engine.bounds(terms.channel, terms.partition).next < self._pulled_to:
            raise NotFound(f"channel '{terms.channel}' was deleted and made again")
        self._engine.wait(terms.channel, terms.partition, offset, WAIT_S)

    def _go_back(self, cut: LogCut) -> bool:
        """The log was repaired and is shorter than what was read of it: let that be finished, go on where it does."""
        terms, lanes = self._terms, self.lanes
        while lanes.committed() < lanes.reach():
            if not self._control.sleep(CUT_LOOK_S):
                return False
        before, terms.life.incarnation = lanes.reach(), self._engine.incarnation(terms.channel)
        if cut.offset < before:
            lanes.rewind(cut.offset)
            if self.positions is not None:
                self.positions.rewind(cut.offset)
                self.positions.save()
            self._tell(Gap(terms.channel, terms.partition, cut.offset, before, str(cut)), missing=False)
        self._cut, self._keep_until, self._pulled_to = None, None, lanes.reach()
        return True

    def _trouble(self, error: Exception) -> None:
        self._troubles += 1
        self._control.last_error = text = describe(error)
        if self._troubles & (self._troubles - 1) == 0:  # the 1st, 2nd, 4th, 8th … time in a row
            logger.error("%s cannot read (attempt %d), trying again: %s", self._terms, self._troubles, text)
        self._control.sleep(TROUBLE.delay_s(self._troubles, random.random()))

    def _close_cursor(self) -> None:
        cursor, self._cursor = self._cursor, None
        if cursor is not None:
            try:
                cursor.close()
            except Exception as error:  # noqa: BLE001 - it is given up anyway
                logger.debug("closing a cursor: %s", describe(error))

    # -- dropping

    def _skip(self, cursor: Cursor, backlog: Backlog) -> None:
        """Move past what is to be dropped before it is even read."""
        if backlog.policy == "drop_oldest":
            self._drop_to(cursor, oldest_to_keep(backlog.end(), backlog.buffer))
        elif self._keep_until is None:
            done, handed_out = self.lanes.committed(), self.lanes.reach()
            keep = newest_to_keep(done, handed_out, backlog.end(), backlog.buffer)
            if keep is not None:
                self._keep_until, self._resume_at = keep.until, keep.resume
        if self._keep_until is not None and cursor.offset >= self._keep_until:
            self._keep_until = None
            self._drop_to(cursor, self._resume_at)

    def _drop_to(self, cursor: Cursor, offset: int) -> None:
        reach = self.lanes.reach()
        if offset > reach:
            self.clerk.counters.dropped += offset - reach
            self.lanes.advance(offset)
            cursor.seek(offset)
            self._warn_of_drops()

    def _warn_of_drops(self) -> None:
        lanes = self.lanes.lanes
        dropped = self.clerk.counters.dropped + sum(lane.counters.dropped for lane in lanes)
        total = dropped + sum(lane.delivered() for lane in lanes)
        now = self._terms.clock.monotonic()
        if dropped > DROP_WARNING_SHARE * total and now >= self._warn_at:
            self._warn_at = now + DROP_WARNING_S
            logger.warning(
                "%s is too slow: %d of %d messages were dropped (%.1f %%); its handler must be faster, or "
                'subscribe with a name or overflow="block"',
                self._terms,
                dropped,
                total,
                100 * dropped / total,
            )

    # -- handing over

    def _take(self, batch: Batch) -> bool:
        """Deliver a batch. False: the subscription stops."""
        positions = self.positions
        self.clerk.counters.filtered += batch.filtered
        if positions is not None:
            positions.remember(batch)  # first: the flusher must not believe that there is nothing left to save
            self._flusher.touch(positions)
        if batch.problems or self._keep_until is not None:
            going = all(self._take_part(part, batch) for part in _parts(batch, self._keep_until))
        else:
            going = self._hand_out(batch.messages, batch.lag_base_us, batch.next)
        if self._backlog is not None:
            self._warn_of_drops()
        if positions is not None:
            if self._flusher.every_batch:
                positions.save()
            positions.let_go()
        return going

    def _take_part(self, part: _Part, batch: Batch) -> bool:
        messages, problem, reach = part
        if not self._hand_out(messages, batch.lag_base_us, max(reach, self.lanes.reach())):
            return False
        if problem is None:
            return True
        if problem.kind == "mismatch" and not self._is_meant(problem.line):
            self.clerk.counters.passed_over += 1
            self.lanes.advance(problem.next)
            return True
        if problem.kind == "missing" or self._terms.letters is None:
            terms = self._terms
            self._tell(Gap(terms.channel, terms.partition, problem.offset, problem.next, problem.reason))
        elif not drive(self.clerk.bury_problem(problem), _no_messages, self._control):
            return False
        self.lanes.advance(problem.next)
        return True

    def _hand_out(self, messages: list[Message], lag_base_us: int, reach: int) -> bool:
        """Deliver these, but not what was redriven for another subscription."""
        if messages and messages[0].lines.addressed:
            count = len(messages)
            messages = [one for one in messages if one.redrivefor is None or self._is_meant(one.raw)]
            self.clerk.counters.passed_over += count - len(messages)
        return self.lanes.hand_out(messages, lag_base_us, reach)

    def _is_meant(self, line: bytes) -> bool:
        """Whether a line is for this subscription: it may be redriven for another one, here or elsewhere."""
        return is_meant(line, self._terms.name, self._terms.station)

    def _tell(self, gap: Gap, *, missing: bool = True) -> None:
        """Messages are missing (or, when a log is not what it was, come again): count, log, tell."""
        self.clerk.counters.missing += gap.next - gap.first if missing else 0
        what = "cannot be delivered" if missing else "are delivered again"
        logger.warning("%s: offsets %d to %d %s: %s", self._terms, gap.first, gap.next - 1, what, gap.reason)
        if self._on_gap is None:
            return
        try:
            if is_async(self._on_gap):
                self.lanes.await_gap_handler(self._on_gap(gap))
            else:
                self._on_gap(gap)
        except Exception as error:
            self._control.last_error = describe(error)
            logger.exception("%s: on_gap failed", self._terms)


_Part = tuple[list["Message"], "Problem | None", int]


def _parts(batch: Batch, until: int | None) -> Iterator[_Part]:
    """The batch in offset order: messages, then the problem that follows them, and where it lies.

    Nothing at or beyond ``until`` is left in.
    """
    index, end = 0, batch.next if until is None else min(batch.next, until)
    messages, problems = batch.messages, [problem for problem in batch.problems if problem.offset < end]
    for problem in problems:
        cut = bisect_left(messages, problem.offset, index, key=_offset)
        yield messages[index:cut], problem, problem.offset
        index = cut
    cut = bisect_left(messages, end, index, key=_offset)
    yield messages[index:cut], None, end


def _offset(message: Message) -> int:
    return message.offset


def _no_messages(run: Run) -> Outcome:
    raise AssertionError(f"the clerk delivers nothing, yet got {len(run.messages)} messages")
