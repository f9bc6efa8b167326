"""The workers of a hub's groups and queues that are at the other end of one connection.

Each is a worker of this station in every respect, but its handler: that one is asked over the connection. When the
connection ends the worker leaves at once, and others have its partitions and messages.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from heliograph.delivery.far import FarHandler, Told
from heliograph.delivery.queues.decisions import QueueSettings
from heliograph.errors import AlreadyExists, Busy, HeliographError, MessageTooLarge, NotAllowed, NotFound, Reject
from heliograph.federation import errands
from heliograph.federation.errands import Ended, Joined, Leave, Missing, Nothing, Ran, Run, Work
from heliograph.federation.questions import Lost
from heliograph.limits import LINK_SUBSCRIPTIONS_MAX, LINK_WORKERS_MAX
from heliograph.message import Gap
from heliograph.names import check_name, check_ownable
from heliograph.station.answers import Answering

if TYPE_CHECKING:
    from heliograph.delivery import Subscription
    from heliograph.delivery.queues import Queue
    from heliograph.engine.files import FilesEngine
    from heliograph.federation.conversation import Conversation
    from heliograph.message import Message

logger = logging.getLogger("heliograph.links")
_T = TypeVar("_T", bound=msgspec.Struct)
GONE_S: Final = 0.05
"""A pause for whoever finds nobody there: it is told to stop within that."""
LOOK_S: Final = 1.0
CLOSE_S: Final = 10.0
WORKERS_MAX: Final = 2_000
"""How many workers all clients of a hub have together: each has threads."""
NAMES_MAX: Final = 1_000
"""A channel with so many subscriptions gets no more from clients: each keeps a place on the disk."""


class WorkerLost(Exception):
    """The connection of a worker ended while it had the message."""


class Line:
    """Asks the other end of a connection, from any thread."""

    def __init__(self, conversation: Conversation) -> None:
        self._conversation = conversation
        self._loop = asyncio.get_running_loop()

    def ask(self, name: str, head: msgspec.Struct, kind: type[_T], lines: bytes = b"") -> _T:
        """What it answers; Lost if it is not there, or goes."""
        asking = self._conversation.questions.ask(name, head, kind, lines)
        try:
            asked = asyncio.run_coroutine_threadsafe(asking, self._loop)
        except RuntimeError:  # the loop is closed
            asking.close()
            raise Lost from None
        while True:
            try:
                return asked.result(LOOK_S)[0]
            except TimeoutError as error:
                if isinstance(error, HeliographError):  # that is what it answered
                    raise
                if self._conversation.over.is_set() and not asked.done():  # the loop has ended, and tells nobody
                    raise Lost from None
            except CancelledError:
                raise Lost from None

    def tell(self, name: str, head: msgspec.Struct) -> None:
        """Let it know something; in whichever thread."""

        async def telling() -> None:
            with contextlib.suppress(Lost, HeliographError):
                await self._conversation.questions.ask(name, head, Nothing)

        self.call_soon(lambda: self._conversation.spawn(telling()))

    def call_soon(self, action: Callable[..., object], *arguments: object) -> None:
        """Have something done in the event loop."""
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(action, *arguments)


class _Elsewhere(FarHandler):
    """The handler of one worker."""

    def __init__(
        self, line: Line, work: Work, why_not: Callable[[], str], expel: Callable[[int, HeliographError], None]
    ) -> None:
        self._line = line
        self._work = work
        self._why_not = why_not
        self._expel = expel

    def deliver(self, messages: Sequence[Message]) -> Told:
        """Let the client handle some messages."""
        why = self._why_not()
        if why:
            self._line.call_soon(self._expel, self._work.number, NotAllowed(why))
            return self._nobody()
        number, offsets = self._work.number, [message.offset for message in messages]
        run = Run(number=number, partition=messages[0].partition, offsets=offsets)
        try:
            lines = b"".join([message.raw + b"\n" for message in messages])
            ran = self._line.ask(errands.RUN, run, Ran, lines)
        except Lost:
            if self._work.kind == "queue":  # which counts how often a message was handed out
                return Told(0, WorkerLost("the connection of the worker ended while it had the message"))
            return self._nobody()
        except MessageTooLarge as error:
            return Told(0, Reject(str(error)))
        except NotFound as error:  # it does not know of this worker (any more)
            self._line.call_soon(self._expel, number, error)
            return self._nobody()
        except HeliographError as error:
            logger.warning("a worker of '%s' takes nothing: %s", self._work.name, error)
            return self._nobody()
        if ran.done >= len(messages):
            return Told(len(messages))
        return Told(ran.done, None if ran.error is None else errands.error_of(ran.error))

    def _nobody(self) -> Told:
        time.sleep(GONE_S)
        return Told(0)

    def tell(self, gap: Gap) -> None:
        """Some messages will not come."""
        missing = Missing(
            number=self._work.number, partition=gap.partition, first=gap.first, next=gap.next, reason=gap.reason[:200]
        )
        self._line.tell(errands.GAP, missing)


class _Answering(_Elsewhere, Answering):
    """The handler of a worker that answers requests."""


class _Member:
    """A worker: what it may use at once, and its subscription once it has one."""

    def __init__(self, concurrency: int) -> None:
        self.concurrency = concurrency
        self.subscription: Subscription | None = None


class Places:
    """How many workers the clients of a hub may have yet. Used in the event loop."""

    def __init__(self) -> None:
        self._taken = 0

    def take(self) -> None:
        """One more."""
        if self._taken >= WORKERS_MAX:
            raise Busy(f"this hub has {WORKERS_MAX} workers of clients already; close some, or work at the hub itself")
        self._taken += 1

    def give_back(self, count: int = 1) -> None:
        """Some less."""
        self._taken -= count


class Crew:
    """All workers of one connection."""

    def __init__(self, conversation: Conversation, places: Places) -> None:
        self._conversation = conversation
        self._places = places
        self._station = conversation.shared.station
        self._line = Line(conversation)
        self._members: dict[int, _Member] = {}

    async def join(self, ask: Work) -> Joined:
        """One more worker."""
        self._check(ask)
        self._places.take()
        member = self._members[ask.number] = _Member(ask.concurrency)
        try:
            member.subscription = await self._conversation.run(self._subscribe, ask)
        except BaseException:
            self._drop(ask.number)
            raise
        if self._conversation.over.is_set() or self._members.get(ask.number) is not member:
            close_aside(member.subscription)
        worker = member.subscription.worker or ""
        logger.info("%s works for '%s' of '%s' as %s", self._conversation.session_peer, ask.name, ask.channel, worker)
        return Joined(worker=worker)

    def _drop(self, number: int) -> _Member | None:
        member = self._members.pop(number, None)
        if member is not None:
            self._places.give_back()
        return member

    def _check(self, ask: Work) -> None:
        check_name(ask.channel)
        check_name(ask.name, "subscription")
        why = self._why_not(ask)
        if why:
            raise NotAllowed(why)
        if ask.number in self._members:
            raise AlreadyExists(f"this connection has a worker {ask.number} already")
        if len(self._members) >= LINK_SUBSCRIPTIONS_MAX:
            raise Busy(f"a client has at most {LINK_SUBSCRIPTIONS_MAX} workers; connect once more for others")
        if sum(member.concurrency for member in self._members.values()) + ask.concurrency > LINK_WORKERS_MAX:
            raise Busy(f"a client handles at most {LINK_WORKERS_MAX} messages at once; connect once more for others")

    def _why_not(self, ask: Work) -> str:
        """What the rules of now have against a worker."""
        rules = self._conversation.storer.rules
        return rules.subscribing(ask.channel) or (rules.answering(ask.channel) if ask.answers else "")

    def _subscribe(self, ask: Work) -> Subscription:
        """In a thread: it touches the disk."""
        check_room(self._station.engine, ask.channel, ask.name)

        def why_not() -> str:
            return self._why_not(ask)

        handler: _Elsewhere
        if ask.answers:
            check_ownable(ask.channel)
            handler = _Answering(self._line, ask, why_not, self._expel)
            handler.answers = self._station.answers
        else:
            handler = _Elsewhere(self._line, ask, why_not, self._expel)
        settings: dict[str, Any] = {}
        if ask.kind == "queue":
            settings = {field: getattr(ask, field) for field in QueueSettings.__struct_fields__}
        return self._station.subscribe(
            ask.channel, handler, name=ask.name, group=ask.kind == "group", queue=ask.kind == "queue", start=ask.start,
            concurrency=ask.concurrency, retry=ask.retry, timeout_s=0.0, on_gap=handler.tell, **settings,
        )  # fmt: skip

    async def leave(self, ask: Leave) -> None:
        """A worker leaves, after the messages at hand."""
        member = self._drop(ask.number)
        if member is None:
            raise NotFound(f"this connection has no worker {ask.number}")
        if member.subscription is not None:
            subscription, timeout_s = member.subscription, ask.timeout_s
            await asyncio.wrap_future(aside(lambda: subscription.close(timeout_s=timeout_s), subscription.channel))

    def _expel(self, number: int, error: HeliographError) -> None:
        """It may not work here any more, or does not want to."""
        member = self._drop(number)
        if member is not None:
            ended = Ended(number=number, error=type(error).__name__, message=str(error))
            self._line.tell(errands.ENDED, ended)
            if member.subscription is not None:
                close_aside(member.subscription)

    def end(self) -> list[Future[None]]:
        """All leave at once: the connection is over."""
        members = [member for number in list(self._members) if (member := self._drop(number)) is not None]
        return [close_aside(member.subscription) for member in members if member.subscription is not None]


def check_room(engine: FilesEngine, channel: str, name: str) -> None:
    """Refuse to make one subscription more where clients could have made too many."""
    names = engine.positions.names(channel)
    if len(names) >= NAMES_MAX and name not in names:
        raise Busy(f"channel '{channel}' has {len(names)} subscriptions; forget some at the hub, or make it there")


def close_aside(subscription: Subscription | Queue) -> Future[None]:
    """Close something that may have to wait for a handler."""
    return aside(subscription.close, subscription.channel)


def aside(close: Callable[[], object], channel: str) -> Future[None]:
    """Close something in a thread of its own."""
    closed: Future[None] = Future()

    def run() -> None:
        try:
            close()
        except HeliographError as error:
            logger.warning("a worker of '%s' was not closed in order: %s", channel, error)
        finally:
            closed.set_result(None)

    threading.Thread(target=run, name="heliograph-leaving", daemon=True).start()
    return closed
