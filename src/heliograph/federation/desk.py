"""Answers the requests of one connection: in order where that matters, and with a bound on what waits.

Publishing is one after the other, so that what a client sends in order is stored in order. Reading may wait for news
without holding a thread.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from concurrent.futures import wait
from typing import TYPE_CHECKING, Any, Final

import msgspec

from heliograph.errors import Busy, HeliographError, MessageTooLarge, NotFound, StationClosed, StorageError
from heliograph.federation import asking, errands
from heliograph.federation.asking import CHANNELS, FIND, PUBLISH, READ, WAIT_S
from heliograph.federation.batches import ABORT, COMMIT, STAGE, Abort, Commit, Stage
from heliograph.federation.comparing import COMPARE, FETCH, STORE
from heliograph.federation.counter import Counter
from heliograph.federation.crew import CLOSE_S, Crew, Places
from heliograph.federation.discreet import discreet
from heliograph.federation.events import Called
from heliograph.federation.exchange import Exchange
from heliograph.federation.inquiries import Inquiries
from heliograph.federation.librarian import Librarian
from heliograph.federation.pulling import Pulling
from heliograph.federation.storeroom import Storeroom
from heliograph.federation.together import Outcome, Together

if TYPE_CHECKING:
    from heliograph.federation.conversation import Conversation

logger = logging.getLogger("heliograph.links")
WAITING_BYTES_MAX: Final = 32 << 20
"""How much one connection may ask to publish before anything of it is stored."""
WATCHED_MAX: Final = 256
"""Of how many channels one connection hears at once; of others within a second."""
LOOK_S: Final = 1.0
TOGETHER_BYTES_MAX: Final = 4 << 20
"""How much is published at once, unless a single request is larger."""
_ERRANDS: Final[dict[str, type[msgspec.Struct]]] = {
    errands.WORK: errands.Work, errands.PULL: errands.Pull, errands.RECEIVE: errands.Receive,
    errands.SETTLE: errands.Settle, errands.LEAVE: errands.Leave, errands.REQUEST: errands.Request,
    errands.ANSWER: errands.Answer,
}  # fmt: skip


class Desk:
    """The requests of one connection."""

    def __init__(self, line: Conversation, counter: Counter, places: Places, storeroom: Storeroom) -> None:
        self._line = line
        self._counter = counter
        self._exchange = Exchange(line.shared.station)
        self._loop = asyncio.get_running_loop()
        self._publishing: deque[Called] = deque()
        self._busy = False
        self._together = Together(line.shared.station, counter)
        self._waiting_bytes = 0
        self._librarian = Librarian(line.shared.station)
        self._fetching = asyncio.Lock()  # each looks through a log: one at a time
        self._watched: set[str] = set()
        self._bells: dict[str, set[asyncio.Event]] = {}
        self._crew = Crew(line, places)
        self._pulling = Pulling(line, places)
        self._inquiries = Inquiries(line, counter)
        self._storeroom = storeroom
        self._committing = asyncio.Lock()  # one at a time: other connections want their turn
        self._kept_back = ""

    def asked(self, event: Called) -> None:
        """A request came."""
        if event.name in (PUBLISH, STORE, STAGE):
            if self._publishing and self._waiting_bytes + len(event.body) > WAITING_BYTES_MAX:
                self._fail(event.call, Busy(f"{self._waiting_bytes} bytes wait for the hub's disk; try again"))
                return
            self._publishing.append(event)
            self._waiting_bytes += len(event.body)
            if not self._busy:
                self._busy = True
                self._line.spawn(self._publish_all())
        else:
            self._line.spawn(self._answer(event.call, self._other(event)))

    def on_news(self, channel: str) -> None:
        """A channel grew, was made, or is gone."""
        for bell in self._bells.get(channel, ()):
            bell.set()

    def end(self) -> Callable[[], None]:
        """Its workers leave; what is left to do in a thread."""
        leaving = [*self._crew.end(), *self._pulling.end()]

        def close() -> None:
            for channel in self._watched:
                self._line.shared.news.unwatch(channel)
            wait(leaving, CLOSE_S)

        return close

    # -- answers --------------------------------------------------------------------------------------------------

    async def _publish_all(self) -> None:
        while self._publishing and not self._line.over.is_set():
            if self._publishing[0].name != PUBLISH:
                event = self._publishing.popleft()
                self._waiting_bytes -= len(event.body)
                await self._answer(event.call, (self._store if event.name == STORE else self._stage)(event))
            else:
                await self._publish_together()
        self._busy = False

    async def _publish_together(self) -> None:
        """Whatever waits is stored together, and answered together."""
        calls, asked = self._next()
        outcomes = await self._line.run(self._together.publish, asked, self._line.storer.rules)
        count = sum(len(one.places) for one in outcomes if isinstance(one, asking.Published))
        await self._line.storer.pay(count, sum(len(lines) for _, lines in asked))
        for call, outcome in zip(calls, outcomes, strict=True):
            await self._answer(call, _come(outcome))

    async def _store(self, event: Called) -> bytes:
        stored, size = await self._line.run(self._exchange.store, event.body, self._line.storer.rules)
        await self._line.storer.pay(stored.appended, size)
        return asking.encode(stored)

    async def _stage(self, event: Called) -> bytes:
        ask, lines = asking.decode(event.body, Stage)
        staged, count = await self._line.run(self._storeroom.stage, ask, lines, self._line.storer.rules)
        await self._line.storer.pay(count, len(lines))
        return asking.encode(staged)

    async def _batch(self, event: Called) -> bytes:
        """What becomes of a batch that was laid aside."""
        async with self._committing, self._storeroom.turns:
            if self._line.over.is_set():
                raise StationClosed("the connection is over")
            rules = self._line.storer.rules
            if event.name == COMMIT:
                commit, _ = asking.decode(event.body, Commit)
                return asking.encode(await self._line.run(self._storeroom.commit, commit, rules))
            abort, _ = asking.decode(event.body, Abort)
            await self._line.run(self._storeroom.abort, abort, rules)
            return asking.encode(errands.Nothing())

    def _next(self) -> tuple[list[int], list[tuple[asking.Publish, bytes]]]:
        """The requests that are carried out together."""
        calls: list[int] = []
        asked: list[tuple[asking.Publish, bytes]] = []
        size = 0
        while self._publishing and (not asked or size + len(self._publishing[0].body) <= TOGETHER_BYTES_MAX):
            if self._publishing[0].name != PUBLISH:
                break
            event = self._publishing.popleft()
            self._waiting_bytes -= len(event.body)
            try:
                asked.append(asking.decode(event.body, asking.Publish))
            except HeliographError as error:
                self._fail(event.call, error)
            else:
                calls.append(event.call)
                size += len(event.body)
        return calls, asked

    async def _other(self, event: Called) -> bytes:
        rules = self._line.storer.rules
        if event.name == FIND:
            find, _ = asking.decode(event.body, asking.Find)
            return asking.encode(await self._line.run(self._counter.find, find, rules))
        if event.name == READ:
            read, _ = asking.decode(event.body, asking.Read)
            return await self._read(read)
        if event.name == COMPARE:
            return await self._line.run(self._exchange.compare, event.body, rules)
        if event.name == FETCH:
            async with self._fetching:
                return await self._line.run(self._exchange.fetch, event.body, rules, self._line.session.body_bytes_max)
        if self._librarian.serves(event.name):
            room = self._line.session.body_bytes_max
            async with self._fetching:
                return await self._line.run(self._librarian.answer, event.name, event.body, rules, room)
        if event.name == CHANNELS:
            which, _ = asking.decode(event.body, asking.Which)
            return asking.encode(await self._line.run(self._counter.channels, which, rules))
        if event.name in (COMMIT, ABORT):
            return await self._batch(event)
        return await self._errand(event)

    async def _errand(self, event: Called) -> bytes:
        """What workers, and those who ask and answer, want."""
        kind = _ERRANDS.get(event.name)
        if kind is None:
            raise NotFound(f"there is no request {event.name!r} here")
        ask, lines = asking.decode(event.body, kind)
        match ask:
            case errands.Work():
                return asking.encode(await self._crew.join(ask))
            case errands.Pull():
                return asking.encode(await self._pulling.join(ask))
            case errands.Receive():
                return asking.encode(*await self._pulling.receive(ask))
            case errands.Settle():
                await self._pulling.settle(ask)
            case errands.Leave():
                if not await self._pulling.leave(ask.number):
                    await self._crew.leave(ask)
            case errands.Request():
                return asking.encode(*await self._inquiries.ask(ask, lines))
            case errands.Answer():
                return asking.encode(await self._inquiries.answer(ask, lines))
        return asking.encode(errands.Nothing())

    async def _read(self, ask: asking.Read) -> bytes:
        until = self._loop.time() + min(ask.wait_s, WAIT_S)
        room = self._line.session.body_bytes_max - 64 * 1024  # beside the lines there is what is said of them
        bell = asyncio.Event()
        bells = self._bells.setdefault(ask.channel, set())
        bells.add(bell)
        try:
            while not self._line.over.is_set():
                bell.clear()  # before looking: what comes meanwhile rings it again
                found = await self._line.run(self._counter.read, ask, self._line.storer.rules, room)
                left = until - self._loop.time()
                if found is not None:
                    return asking.encode(*found)
                if left <= 0:
                    break
                await self._wait(bell, left if self._watch(ask.channel) else min(left, LOOK_S))
        finally:
            bells.discard(bell)
            if not bells:
                self._bells.pop(ask.channel, None)
        return asking.encode(asking.Page(incarnation=ask.incarnation))

    async def _wait(self, bell: asyncio.Event, seconds: float) -> None:
        """Until it rings, or the connection is over."""
        waits = [self._loop.create_task(one.wait()) for one in (bell, self._line.over)]
        await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        for task in waits:
            task.cancel()

    def _watch(self, channel: str) -> bool:
        """Hear of a channel from now on, which begins with a ring; False if there are too many already."""
        if channel not in self._watched and len(self._watched) < WATCHED_MAX:
            self._watched.add(channel)
            self._line.shared.news.watch(channel)
        return channel in self._watched

    async def _answer(self, call: int, work: Any) -> None:
        """Reply with what comes of it."""
        try:
            body: bytes = await work
        except StationClosed:
            return  # the connection ends, and the client asks again elsewhere
        except HeliographError as error:
            self._fail(call, error)
        except OSError as error:
            self._keep(error)
            self._fail(call, StorageError(f"the hub's disk: {error.strerror or type(error).__name__}"))
        else:
            try:
                self._say(lambda: self._line.session.calls.reply(call, body))
            except MessageTooLarge as error:  # a reply that another station takes, and this client does not
                self._fail(call, error)

    def _fail(self, call: int, error: HeliographError) -> None:
        told = discreet(error, self._line.shared.station.path)
        if told != str(error):
            self._keep(error)
        self._say(lambda: self._line.session.calls.fail(call, asking.name_of(error), told))

    def _keep(self, error: Exception) -> None:
        """What the client is not told in full is in the log here; once, however often it asks again."""
        if str(error) != self._kept_back:
            self._kept_back = str(error)
            level = logging.INFO if isinstance(error, NotFound) else logging.WARNING  # a channel may be made later
            logger.log(level, "a request of %s failed: %s", self._line.session_peer, error)

    def _say(self, reply: Callable[[], None]) -> None:
        if not self._line.over.is_set():
            reply()
            self._line.flush()


async def _come(outcome: Outcome) -> bytes:
    """What became of something that was published."""
    if isinstance(outcome, Exception):
        raise outcome
    return asking.encode(outcome)
