"""Workers of a hub's groups and queues at a client: they are given messages, and say what became of them.

The hub knows how far a worker is. When the connection is lost it gives the worker's share to others; the worker
finishes the message at hand, whose answer nobody hears, and joins again once there is a connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import itertools
import logging
import time
from abc import abstractmethod
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

import msgspec

from heliograph.arguments import check_seconds
from heliograph.client.keeper import Keeper
from heliograph.client.line import Line
from heliograph.client.pages import OnGap
from heliograph.client.subscription import CLOSE_S, AsyncClientSubscription, Handler, expired, is_ours
from heliograph.errors import (
    AlreadyExists,
    ConfigError,
    HeliographError,
    InvalidMessage,
    InvalidName,
    NotAllowed,
    NotFound,
    ProtocolError,
    Reject,
    StationClosed,
    Unreachable,
)
from heliograph.federation import asking, errands
from heliograph.federation.errands import RUN_S, Ended, Joined, Leave, Missing, Nothing, Pull, Ran, Run, Work
from heliograph.federation.events import Called
from heliograph.federation.questions import Lost
from heliograph.message import Gap, Message, PayloadDecoder, decode_line, decode_lines

logger = logging.getLogger("heliograph.client")
GRACE_S: Final = 5.0
"""How much longer than a handler the hub has time."""
JOINING_MAX: Final = 8
"""How many workers join or leave at once: they leave room for other requests."""
AGAIN_S: Final = 0.5
"""How soon a worker that could not join again tries once more."""
_FINAL = (NotAllowed, NotFound, InvalidName, ConfigError, AlreadyExists, ProtocolError)
"""What does not go away by trying again."""

_T = TypeVar("_T", bound=msgspec.Struct)
_Settings = TypeVar("_Settings", Work, Pull)
Decoder = Callable[[], PayloadDecoder | None]
Going = Callable[[int], bool]
"""Whether to begin another message after so many."""


class Worker(AsyncClientSubscription):
    """One worker. How its handler is called is for those who inherit it."""

    def __init__(self, workers: Workers, ask: Work, decoder: Decoder, on_gap: OnGap | None) -> None:
        super().__init__(ask.channel, ask.name)
        self.worker = ""
        """What the hub knows it by."""
        self.stopping = False
        self._workers = workers
        self._ask = ask
        self._decoder = decoder
        self._on_gap = on_gap
        self._line: Line | None = None
        self._complaint = ""
        self._staying: asyncio.Task[None] | None = None
        self.running: set[asyncio.Task[Any]] = set()

    @abstractmethod
    async def handle(self, messages: list[Message], going: Going) -> Ran:
        """Call the handler with each, as long as it is to go on; how far it came."""

    # -- joining ------------------------------------------------------------------------------------------------

    async def start(self, timeout_s: float) -> None:
        """Join for the first time."""
        loop = asyncio.get_running_loop()
        until = loop.time() + timeout_s
        line: Line | None = None
        self._workers.known[self._ask.number] = self
        try:
            while True:
                with contextlib.suppress(Lost):
                    line = await self._workers.keeper.line(until)
                    await self._join(line)
                    break
        except asyncio.CancelledError:  # it may have joined, or will
            self._workers.beside(self._leave(line, 0.0))
            raise
        except BaseException:
            self._workers.known.pop(self._ask.number, None)
            raise
        self._staying = loop.create_task(self._stay())

    async def _join(self, line: Line) -> None:
        joined, _ = await self._workers.ask(line, errands.WORK, self._ask, Joined)
        self._line, self.worker, self._complaint = line, joined.worker, ""
        self._ask = as_it_is(self._ask)

    async def _stay(self) -> None:
        """Join again after every cut."""
        try:
            while not self.stopping:
                if self._line is not None:
                    await self._line.over.wait()
                    self._line = None
                if not self.stopping:
                    await self._join_again()
        except StationClosed:
            pass
        except HeliographError as error:
            self.end(error)
        finally:
            self._workers.known.pop(self._ask.number, None)

    async def _join_again(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            await self._join(await self._workers.keeper.line(loop.time() + 60.0))
        except Lost:
            return
        except _FINAL:
            raise
        except StationClosed:
            raise
        except Unreachable as error:
            self._complain(error)
        except HeliographError as error:  # the hub's disk is full, or has not noticed yet that the old one is gone
            self._complain(error)
            await asyncio.sleep(AGAIN_S)

    def _complain(self, error: HeliographError) -> None:
        """Once for each reason."""
        if str(error) != self._complaint:
            self._complaint = str(error)
            logger.warning("a worker of '%s' could not join again yet: %s", self.name, error)

    def end(self, error: HeliographError) -> None:
        """The hub does not want it any more."""
        self.error = error
        self.stopping = True
        logger.error("the worker of '%s' of '%s' ended: %s", self.name, self.channel, error)
        self._workers.known.pop(self._ask.number, None)
        if self._staying is not None and self._staying is not asyncio.current_task():
            self._staying.cancel()

    @property
    def live(self) -> bool:
        """Whether it goes on."""
        return self._staying is not None and not self._staying.done() and not self.stopping

    async def close(self, timeout_s: float = CLOSE_S) -> None:
        """Leave, after the messages at hand."""
        timeout_s = check_seconds("timeout_s", timeout_s)
        self.stopping = True
        leaving = self._leave(self._line, timeout_s)
        if asyncio.current_task() in self.running:  # its own handler must not wait for itself
            self._workers.beside(leaving)
        else:
            await leaving

    async def _leave(self, line: Line | None, timeout_s: float) -> None:
        number = self._ask.number
        if line is not None and line.working:
            leave = Leave(number=number, timeout_s=timeout_s)
            with contextlib.suppress(Lost, TimeoutError, HeliographError):
                await asyncio.wait_for(self._workers.ask(line, errands.LEAVE, leave, Nothing), timeout_s + GRACE_S)
        for task in [*self.running, *([] if self._staying is None else [self._staying])]:
            if task is not asyncio.current_task():
                task.cancel()
        self._workers.known.pop(number, None)

    # -- working ------------------------------------------------------------------------------------------------

    async def run(self, line: Line, run: Run, lines: bytes) -> Ran:
        """Some messages came."""
        messages, bad = self._decode(run, lines)
        until = time.monotonic() + RUN_S

        def going(done: int) -> bool:
            return not self.stopping and not line.over.is_set() and (not done or time.monotonic() < until)

        ran = await self.handle(messages, going)
        if bad is not None and ran.error is None and ran.done == len(messages):
            self.failed += 1
            return Ran(done=ran.done, error=errands.failure_of(bad))
        return ran

    def _decode(self, run: Run, lines: bytes) -> tuple[list[Message], Reject | None]:
        """The messages; up to one that does not fit its type, and why not."""
        decoder, offsets = self._decoder(), run.offsets
        first, following = offsets[0], offsets[-1] + 1
        if following - first == len(offsets):
            found = decode_lines(lines, first, following, run.partition, decoder)
            if found is not None:
                return found, None
        messages: list[Message] = []
        for offset, line in zip(offsets, lines.split(b"\n"), strict=False):
            try:
                messages.append(decode_line(line, offset, run.partition, decoder))
            except (InvalidMessage, msgspec.MsgspecError) as error:
                rejected = Reject(str(error))
                rejected.__cause__ = error
                return messages, rejected
        return messages, None

    def tell(self, missing: Missing) -> None:
        """Some messages will not come."""
        gap = Gap(self.channel, missing.partition, missing.first, missing.next, missing.reason)
        logger.warning("'%s' offsets %d to %d do not come: %s", gap.channel, gap.first, gap.next - 1, gap.reason)
        if self._on_gap is not None:
            try:
                self._on_gap(gap)
            except Exception:
                logger.exception("'%s': on_gap failed", self.channel)


def as_it_is(ask: _Settings) -> _Settings:
    """To join once more: the settings of a queue may have been changed by others meanwhile."""
    return msgspec.structs.replace(ask, visibility_s=None, max_in_flight=None, max_deliveries=None)


class AwaitingWorker(Worker):
    """A worker whose handler, a function or a coroutine function, is called in the event loop."""

    def __init__(self, workers: Workers, ask: Work, decoder: Decoder, on_gap: OnGap | None, handler: Handler) -> None:
        super().__init__(workers, ask, decoder, on_gap)
        self._handler = handler

    async def handle(self, messages: list[Message], going: Going) -> Ran:
        """Call the handler with each."""
        for done, message in enumerate(messages):
            if not going(done):
                return Ran(done=done)
            if expired(message):
                continue
            try:
                result = self._handler(message)
                if inspect.isawaitable(result):
                    await result
            except (Exception, asyncio.CancelledError) as error:  # the hub decides what becomes of it
                if is_ours(error):
                    raise
                self.failed += 1
                return Ran(done=done, error=errands.failure_of(error))
            self.delivered += 1
        return Ran(done=len(messages))


class Workers:
    """All workers of one client, and what the hub asks of them."""

    def __init__(self) -> None:
        self.known: dict[int, Worker] = {}
        self.keeper: Keeper
        self._numbers = itertools.count(1)
        self._turns = asyncio.Semaphore(JOINING_MAX)
        self._tasks: set[asyncio.Task[Any]] = set()

    def number(self) -> int:
        """Another one."""
        return next(self._numbers)

    async def ask(self, line: Line, name: str, head: msgspec.Struct, kind: type[_T]) -> tuple[_T, bytes]:
        """Ask the hub over one connection, and no other."""
        async with self._turns:
            return await line.ask(name, head, kind)

    def beside(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Do something that nobody waits for."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            logger.debug("something that the hub asked for failed: %s", task.exception())

    def called(self, line: Line, event: Called) -> None:
        """The hub asks for something."""
        try:
            if event.name == errands.RUN:
                run, lines = asking.decode(event.body, Run)
                self._run(line, event.call, self._worker(run.number), run, lines)
            elif event.name == errands.GAP:
                missing, _ = asking.decode(event.body, Missing)
                self._worker(missing.number).tell(missing)
                line.reply(event.call, Nothing())
            elif event.name == errands.ENDED:
                ended, _ = asking.decode(event.body, Ended)
                self._worker(ended.number).end(asking.error_of(ended.error, ended.message))
                line.reply(event.call, Nothing())
            else:
                raise NotFound(f"there is no request {event.name!r} here")
        except HeliographError as error:
            line.fail(event.call, error)

    def _worker(self, number: int) -> Worker:
        worker = self.known.get(number)
        if worker is None:
            raise NotFound(f"there is no worker {number} here")
        return worker

    def _run(self, line: Line, call: int, worker: Worker, run: Run, lines: bytes) -> None:
        if not run.offsets:
            raise ProtocolError("a run of no messages")

        async def work() -> None:
            ran = Ran(done=0)  # cancelled: somebody else shall have them
            try:
                ran = await worker.run(line, run, lines)
            finally:
                line.reply(call, ran)

        task = self.beside(work())
        worker.running.add(task)
        task.add_done_callback(worker.running.discard)
