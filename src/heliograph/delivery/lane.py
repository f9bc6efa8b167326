"""One lane: messages in order, and what to do when one of them fails.

The decisions are generators. They yield what they want done and are sent what came of it, so that threads and
event loops are driven through the same course::

    yield Run(…)     deliver these             -> FINISHED, INTERRUPTED or the error
    yield Wait(s)    wait, and while held      -> True: go on, False: stop
    yield Job(f)     call f, which may block   -> None or the error

A course returns True when everything it was given is done, and False when the subscription stops: then what
was not done is delivered again next time.

* A message: called up to ``1 + max_retries`` times, then it goes to the dead letters.
* A batch: called up to ``1 + max_retries`` times as a whole. Then it is halved, and the halves that fail
  again, until single messages are left; each of these gets the same chances alone, in a list of one, before
  it goes to the dead letters. So the good messages around a bad one are delivered (again: at least once),
  and the bad one is found in a few calls.
* A message whose time is over (``expires``) is passed over, also between two attempts; a batch is looked
  through before its first attempt.
* A dead letter that cannot be written is tried again for ever. Skipping the message instead would lose it.
* Dead letters have no dead letters: when the handler of a ``….dead-letter`` channel gives up, the
  subscription fails. It stays where it is until somebody mends the cause and calls ``resume()``.
"""

from __future__ import annotations

import enum
import logging
import random
from collections.abc import Callable, Generator
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from heliograph.clock import from_us, to_us
from heliograph.delivery.deadletter import (
    DeadLetter,
    DeadLetterIdentity,
    DeadLetters,
    describe,
    letter_for_message,
    letter_for_problem,
)
from heliograph.delivery.invoke import Ended, HandlerUnusable, Invoke, Now, Oldest, Outcome, Run
from heliograph.delivery.retry import GiveUp, Retry
from heliograph.delivery.statistics import Counters
from heliograph.errors import StationClosed

if TYPE_CHECKING:
    from datetime import datetime

    from heliograph.clock import Clock
    from heliograph.delivery.control import Control
    from heliograph.engine.port import Problem
    from heliograph.message import Message

TROUBLE = Retry(base_s=0.1, max_s=5.0)
"""How patiently the storage is tried again. Only its delays are used: there is no giving up."""

logger = logging.getLogger("heliograph.delivery")


class Wait(NamedTuple):
    """Wait this long, and while held."""

    seconds: float


class Job(NamedTuple):
    """Call this; it may block."""

    work: Callable[[], object]

    def attempt(self) -> Exception | None:
        """Call it, and return what it raised."""
        try:
            self.work()
        except Exception as error:  # noqa: BLE001 - the course decides
            return error
        return None


Step = Run | Wait | Job
Course = Generator[Step, Any, bool]


class _End(enum.Enum):
    DONE = "delivered"
    STOPPED = "the subscription stops"


class _Spent(NamedTuple):
    """The retries are used up."""

    error: BaseException
    attempts: int


class Life:
    """The life of the channel that is being read: another one after a repair of its log."""

    def __init__(self, incarnation: str, birth: Any = None) -> None:
        self.incarnation, self.birth = incarnation, birth


class Terms(NamedTuple):
    """What was agreed when subscribing; the same for all lanes."""

    channel: str
    partition: int
    name: str | None
    life: Life
    batch: bool
    retry: Retry
    letters: DeadLetters | None
    """None for a channel of dead letters."""
    oldest: Oldest | None
    save: Callable[[], object]
    control: Control
    clock: Clock
    worker: str | None = None
    """Which worker of a group this is, if it is one."""
    station: str = ""
    """Whose subscription it is."""

    def __str__(self) -> str:
        return f"subscription {self.name or '(ephemeral)'} of {self.channel}/{self.partition}"

    @property
    def incarnation(self) -> str:
        """The channel's life."""
        return self.life.incarnation

    def identity(self, offset: int) -> DeadLetterIdentity:
        """What a letter about this offset is known by."""
        return DeadLetterIdentity(self.name or "", self.incarnation, self.partition, offset)

    def now_us(self) -> int:
        """The wall clock."""
        return self.clock.time_ns() // 1000

    def now(self) -> datetime:
        """The same, to compare with when a message expires."""
        return from_us(self.now_us())


class Lane:
    """What one lane has at hand and what it decides. Whoever drives its courses is its only writer."""

    def __init__(self, index: int, terms: Terms) -> None:
        self.index = index
        self.counters = Counters()
        self.retrying = False
        self.run: Run | None = None
        self._floor = 0
        self._now: Now | None = None  # set while messages at hand may expire: all others are not looked at
        self._terms = terms
        self._control = terms.control

    def undone(self) -> int:
        """Everything before this offset that the lane was given is done. May be asked from any thread."""
        run = self.run
        return self._floor if run is None else run.undone().offset

    def rewind(self, offset: int) -> None:
        """What it will be given next may begin here, before what it has done. It has nothing at hand."""
        self._floor = offset

    def delivered(self) -> int:
        """How many messages were delivered up to now. May be asked from any thread."""
        run = self.run
        under_way = 0 if run is None else max(0, run.done() - run.skipped)
        return self.counters.delivered + under_way

    def deliver(self, messages: list[Message], lag_base_us: int) -> Course:
        """The course of some messages; ``lag_base_us`` is when the newest of them was appended, or earlier."""
        terms = self._terms
        since_us = max(lag_base_us, to_us(messages[-1].time))
        at_once = terms.batch or len(messages) == 1
        self._now = terms.now if messages[0].lines.expiring else None
        if at_once:
            self.counters.latency.add(terms.now_us() - since_us)
        done: bool = yield from (self._batch(messages) if terms.batch else self._each(messages))
        if done and not at_once:
            self.counters.latency.add(terms.now_us() - since_us)
        return done

    def bury_problem(self, problem: Problem) -> Course:
        """The course of a line that cannot be delivered."""
        terms = self._terms
        make = partial(letter_for_problem, terms.identity(problem.offset), terms.channel, problem, worker=terms.worker)
        self._announce(f"offset {problem.offset} is {problem.kind}: {problem.reason}")
        return (yield from self._bury(make, problem.next))

    # -- one by one

    def _each(self, messages: list[Message]) -> Course:
        while messages:
            outcome = yield self._begin(messages)
            if outcome is Ended.FINISHED:
                self._end(messages)
                return True
            assert self.run is not None
            done = self.run.done()
            rest = messages[done:]
            if done:
                self._end(messages[:done])
            if outcome is Ended.INTERRUPTED:
                if not (yield Wait(0)):
                    return False
            else:
                if not (yield from self._settle(rest[0], outcome)):
                    return False
                del rest[0]
            messages = rest
        return True

    def _settle(self, message: Message, error: BaseException | None) -> Course:
        """Deliver this message or bury it; the error is what its first attempt ended with, if it was made."""
        while True:
            end = yield from self._insist([message], error)
            if not isinstance(end, _Spent):
                return end is _End.DONE
            if self._terms.letters is not None:
                return (yield from self._give_up(message, end))
            reason = (
                f"the handler failed {end.attempts} times at offset {message.offset} ({describe(end.error)}) "
                "and dead letters have no dead letters of their own; mend the handler, then resume()"
            )
            if not (yield from self._fail(reason)):
                return False
            error = None

    # -- all at once

    def _batch(self, messages: list[Message]) -> Course:
        if self._terms.oldest is not None:
            oldest = self._terms.oldest()
            wanted = [message for message in messages if message.offset >= oldest]
            self.counters.dropped += len(messages) - len(wanted)
            messages = wanted
        if self._now is not None:
            now = self._now()
            timely = [message for message in messages if message.expires is None or message.expires > now]
            self.counters.expired += len(messages) - len(timely)
            messages = timely
        if not messages:
            return True
        if len(messages) == 1:
            return (yield from self._settle(messages[0], None))
        end = yield from self._insist(messages)
        if isinstance(end, _Spent):
            return (yield from self._halve(messages))
        return end is _End.DONE

    def _halve(self, messages: list[Message]) -> Course:
        half = len(messages) // 2
        for part in (messages[:half], messages[half:]):
            if len(part) == 1:
                done = yield from self._settle(part[0], None)
            else:
                outcome = yield from self._call(part)
                if isinstance(outcome, BaseException):
                    self._failed(part, outcome)
                    done = yield from self._halve(part)
                else:
                    done = outcome is Ended.FINISHED
            if not done:
                return False
        return True

    # -- trying, and trying again

    def _begin(self, messages: list[Message]) -> Run:
        one_by_one = not self._terms.batch
        self.run = run = Run(messages, self._terms.oldest if one_by_one else None, self._now if one_by_one else None)
        return run

    def _end(self, messages: list[Message]) -> None:
        """These are done, which are the first ones of the run at hand."""
        run, self.run = self.run, None
        skipped, expired = (0, 0) if run is None else (run.skipped, run.expired)
        self._floor = messages[-1].offset + 1
        self.counters.delivered += len(messages) - skipped
        self.counters.dropped += skipped - expired
        self.counters.expired += expired

    def _call(self, messages: list[Message]) -> Generator[Step, Any, Outcome]:
        """Deliver these as one. Interrupted means that the subscription stops."""
        while True:
            outcome: Outcome = yield self._begin(messages)
            if outcome is Ended.FINISHED:
                self._end(messages)
            if outcome is not Ended.INTERRUPTED or not (yield Wait(0)):
                return outcome

    def _insist(
        self, messages: list[Message], error: BaseException | None = None
    ) -> Generator[Step, Any, _End | _Spent]:
        """Deliver these as one, with all the retries; the error is that of an attempt already made."""
        attempts = 0
        try:
            while True:
                if error is not None:
                    attempts += 1
                    self.retrying = True
                    self._failed(messages, error)
                    if isinstance(error, HandlerUnusable):
                        attempts = 0
                        going = yield from self._fail(describe(error))
                    else:
                        decision = self._terms.retry.decide(attempts, error, random.random())
                        if isinstance(decision, GiveUp):
                            return _Spent(error, attempts)
                        going = yield Wait(decision.delay_s)
                    if not going:
                        return _End.STOPPED
                    self.counters.retries += 1
                outcome = yield from self._call(messages)
                if isinstance(outcome, Ended):
                    return _End.DONE if outcome is Ended.FINISHED else _End.STOPPED
                error = outcome
        finally:
            self.retrying = False

    def _failed(self, messages: list[Message], error: BaseException) -> None:
        self.counters.failed += 1
        self._control.last_error = text = describe(error)
        logger.info("%s: the handler failed at offset %d: %s", self._terms, messages[0].offset, text)

    def _fail(self, reason: str) -> Course:
        """Hold the whole subscription. True when somebody resumed it."""
        logger.error("%s failed: %s", self._terms, reason)
        self._control.fail(reason)
        going: bool = yield Wait(0)
        return going

    # -- burying

    def _give_up(self, message: Message, spent: _Spent) -> Course:
        if self._control.stopping:
            return False  # no letter is written any more; the message is delivered again
        identity = self._terms.identity(message.offset)
        worker = self._terms.worker
        make = partial(letter_for_message, identity, message, spent.error, attempts=spent.attempts, worker=worker)
        self._announce(f"the handler gave up at offset {message.offset}: {describe(spent.error)}")
        return (yield from self._bury(make, message.offset + 1))

    def _announce(self, why: str) -> None:
        """Log a dead letter; not all of them aloud, because there may be millions."""
        number = self.counters.dead_letters + 1
        level = logging.WARNING if number & (number - 1) == 0 else logging.INFO  # the 1st, 2nd, 4th, 8th …
        logger.log(level, "%s: dead letter %d, %s", self._terms, number, why)

    def _bury(self, make: Callable[..., DeadLetter], following: int) -> Course:
        """Write the letter, however long it takes; then everything before the following offset is done."""
        letters, control = self._terms.letters, self._control
        assert letters is not None
        write = Job(partial(letters.write, make(now_us=self._terms.now_us())))
        attempts = 0
        try:
            while not control.stopping:
                error = yield write
                if error is None:
                    self.run, self._floor = None, following
                    self.counters.dead_letters += 1
                    yield Job(self._terms.save)
                    return True
                attempts += 1
                self.retrying = True
                self._cannot_bury(error, attempts)
                if not (yield Wait(TROUBLE.delay_s(attempts, random.random()))):
                    break
            return False
        finally:
            self.retrying = False

    def _cannot_bury(self, error: Exception, attempts: int) -> None:
        self._control.last_error = text = describe(error)
        if isinstance(error, StationClosed):
            self._control.stop()
        elif attempts & (attempts - 1) == 0:  # the 1st, 2nd, 4th, 8th … time
            logger.error(
                "%s: the dead letter cannot be written (attempt %d), trying again: %s",
                self._terms,
                attempts,
                text,
            )


def drive(course: Course, invoke: Invoke, control: Control) -> bool:
    """Carry out a course in this thread."""
    answer: Any = None
    try:
        while True:
            step = course.send(answer)
            if isinstance(step, Run):
                answer = invoke(step)
            elif isinstance(step, Wait):
                answer = control.sleep(step.seconds)
            else:
                answer = step.attempt()
    except StopIteration as stop:
        return bool(stop.value)
