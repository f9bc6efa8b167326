"""One connection: a session, a socket, and the calls to the disk, which run in threads.

The event loop never waits for the disk. What is read and not sent, sent and not acknowledged, arrived and not stored
is bounded by the session's windows; what else a peer may ask for is bounded here.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Collection, Coroutine, Iterable
from datetime import datetime
from typing import Any, Final, TypeVar

import picows

from heliograph.errors import HeliographError, ProtocolError, StationClosed
from heliograph.federation import again, events, sockets
from heliograph.federation.alarms import Alarms, Troubles
from heliograph.federation.fragments import Fragments
from heliograph.federation.frames import Wanted, Welcome
from heliograph.federation.incoming import Storer
from heliograph.federation.moving import Moving
from heliograph.federation.outgoing import SOCKET_BYTES_MAX, Sender
from heliograph.federation.owner import Owner
from heliograph.federation.peerfile import directory_of
from heliograph.federation.questions import Questions
from heliograph.federation.quota import Quota
from heliograph.federation.rules import Rules
from heliograph.federation.session import Session
from heliograph.federation.showing import since_now
from heliograph.federation.terms import Shared
from heliograph.federation.tlsfiles import Peer

logger = logging.getLogger("heliograph.links")
_T = TypeVar("_T")

UNSENT_BYTES_MAX: Final = 128 << 20
"""A peer that does not read what it asked for is dropped."""
CONGESTED_BYTES: Final = 64 * 1024
"""The line is slow if so much waits for it: then packing may help."""
_STORED: Final = {events.Arrived}
TASKS_MAX: Final = 20_000
"""A peer that has more under way at once is dropped: all its channels may be, and some more."""
FAREWELL_S: Final = 2.0
"""How long the last words may take."""


class Ending(Exception):
    """The process ends, and has no threads any more: nothing is to be tried again."""


class Conversation(picows.WSListener):
    """One connection with one peer, from its first byte to its last."""

    session: Session  # these four are there once the peer is known
    sender: Sender
    storer: Storer
    questions: Questions
    _transport: picows.WSTransport
    _fragments: Fragments

    def __init__(self, shared: Shared, owner: Owner) -> None:
        super().__init__()
        self.shared = shared
        self._owner = owner
        self._loop = asyncio.get_running_loop()
        self.over = asyncio.Event()
        self.finished = asyncio.Event()
        self.closed: events.Closed | None = None
        self.peer: Peer | None = None
        self.established_at: float | None = None
        self.ended_at: float | None = None
        self.since: datetime | None = None
        self.heard_at = self._loop.time()
        self.alarms = Alarms(self)
        self._troubles = troubles = Troubles(self)
        self.complain, self.settled, self.forgotten = troubles.complain, troubles.settled, troubles.forgotten
        self.descriptor = -1
        self.address = ""
        self._tasks: set[asyncio.Task[None]] = set()
        self._welcome: Welcome | None = None
        self._ticking: asyncio.TimerHandle | None = None

    # -- the socket -----------------------------------------------------------------------------------------------

    def on_ws_connected(self, transport: picows.WSTransport) -> None:
        """TLS and WebSocket are there; now who is it?"""
        self._transport = transport
        under = transport.underlying_transport
        under.set_write_buffer_limits(SOCKET_BYTES_MAX)
        self.descriptor = under.get_extra_info("socket").fileno()
        self.address = sockets.written(under.get_extra_info("peername"))
        try:
            terms = self._owner.identify(under.get_extra_info("ssl_object"))
        except HeliographError as error:
            self._close(events.Closed(code="refused", reason=str(error), refusal="certificate"))
            return
        self.peer = terms.peer
        self._fragments, self._moving = Fragments(terms.ours.frame_bytes), Moving(under)
        self.session = Session(terms.ours, terms.rules, clock=self._loop.time)
        directory = directory_of(self.shared.station.path, terms.kind, terms.peer.name)
        self.sender = Sender(self, directory, terms.compress)
        self.storer = Storer(self, terms.rules, terms.quota)
        self.questions = Questions(self.session.calls, self.flush)
        self.flush()
        self._tick()

    def on_ws_frame(self, transport: picows.WSTransport, frame: picows.WSFrame) -> None:
        """Something arrived."""
        self.heard_at = self._loop.time()
        if self.over.is_set():
            return
        kind = frame.msg_type
        if kind == picows.WSMsgType.CLOSE:
            transport.disconnect()
        elif kind in (picows.WSMsgType.BINARY, picows.WSMsgType.CONTINUATION):
            try:
                whole = self._fragments.whole(frame)
            except ProtocolError as error:
                self.fail(error)
                return
            if whole is not None:
                self._step(self.session.receive(whole))
        elif kind == picows.WSMsgType.TEXT:
            self.fail(ProtocolError("a frame of text; frames are binary"))

    def on_ws_disconnected(self, transport: picows.WSTransport) -> None:  # noqa: ARG002 - picows calls it so
        """The connection is gone."""
        self.drop("the connection was lost")

    def pause_writing(self) -> None:
        """The socket has enough; the sender looks how much itself."""

    def resume_writing(self) -> None:
        """The socket wants more."""
        if self.peer is not None and not self.over.is_set():
            self.sender.pump()
            self.flush()

    def probe(self) -> None:
        """Ask whether anybody is there."""
        self._transport.send_ping(b"")

    def unsent(self) -> int:
        """Bytes that wait for the socket."""
        return self._transport.underlying_transport.get_write_buffer_size()

    def congested(self) -> bool:
        """Whether the line is slow: much waits for it, here or in the kernel, which takes a whole window by itself."""
        return self.unsent() + sockets.queued(self.descriptor) > CONGESTED_BYTES

    # -- steps ----------------------------------------------------------------------------------------------------

    def _step(self, happened: Iterable[events.Event]) -> None:
        """Carry out what the session says, and send what it would like to."""
        kinds = set()
        for event in happened:
            self._carry_out(event)
            kinds.add(event.__class__)
        if kinds != _STORED:  # else there is nothing to send, and a thread wants its turn to store
            self.sender.sweep()
            self.sender.pump()
            self.flush()

    def flush(self) -> None:
        """Send what the session would like to."""
        if self.over.is_set():
            return
        for head, body in self.session.outgoing():
            self._transport.send(picows.WSMsgType.BINARY, b"".join((head, body)) if len(body) else head)
        if self.unsent() > UNSENT_BYTES_MAX:
            self.drop("the other side does not read")

    def _carry_out(self, event: events.Event) -> None:
        match event:
            case events.Arrived() | events.Gapped():
                self.storer.arrived(event)
            case events.Acked():
                self.sender.acked(event)
            case events.Opened():
                self.spawn(self.storer.resume(event))
            case events.Resumed():
                self.spawn(self.sender.start(event))
            case events.Ended():
                self.storer.ended(event.channel)
            case events.Denied() | events.Parked():
                self.alarm(event.channel, event.reason, ours=isinstance(event, events.Parked))
            case events.Called():
                self._owner.called(self, event)
            case events.Replied():
                self.questions.answered(event)
            case events.Closed():
                self.flush()
                self._close(event)
            case _:
                self._agree(event)

    def _agree(self, event: events.Event) -> None:
        """What both sides are to each other: it begins, or changed."""
        match event:
            case events.Greeted():
                self.spawn(self._greeted())
            case events.Established():
                self.established_at = self._loop.time()
                self.since = since_now(self.shared.station.engine)
                self._welcome = event.welcome
                self._owner.established(self)
                self.spawn(self._look())
                self._loop.call_soon(self._tick)  # from now on hearts beat
            case events.Wanting():
                self._owner.wanting(self)
                self.spawn(self._look())
            case events.Unparked():
                self.alarms.calm()
                self.spawn(self._look())
            case events.Allowed() if event.welcome != self._welcome:
                before, self._welcome = self._welcome, event.welcome
                if before is None or before.relay != event.welcome.relay:
                    self.sender.reopen_all()
                self._owner.allowed(self)

    async def _greeted(self) -> None:
        """Whether the other side may stay: whoever has all the connections knows."""
        why = await self._owner.admit(self)
        if why is not None:
            self.refuse(*why)
        elif not self.over.is_set():
            self._step(self.session.accept())

    async def _look(self) -> None:
        """Open what is to be sent."""
        self.offer(await self.run(self.shared.station.engine.channel_names))

    def offer(self, channels: Iterable[str], there: Collection[str] | None = None) -> None:
        """Open those of some channels that the other side is to be sent; take those that are ``there``, now."""
        if self.peer is not None and not self.over.is_set():
            self.sender.offer(channels, there)
            self.storer.found(there or ())

    def send_again(self, asked: again.Asked) -> None:
        """Send once more what somebody asked for."""
        if self.established_at is not None and not self.over.is_set():
            self.sender.send_again(asked)

    def on_news(self, channel: str, ends: dict[int, int] | None) -> None:
        """A channel grew; None: it is gone."""
        if self.peer is not None and not self.over.is_set():
            self.sender.on_news(channel, ends)

    def allow(self, rules: Rules, push: tuple[str, ...] | None, quota: Quota) -> None:
        """Other rules from now on."""
        if self.peer is None or self.over.is_set():
            return
        self.storer.rules = rules
        if quota.rates != self.storer.quota.rates:
            self.storer.quota = quota
        self._step(self.session.allow(rules, push))
        self.alarms.calm()

    def want(self, wants: tuple[Wanted, ...]) -> None:
        """Ask for other channels from now on."""
        if self.peer is not None and not self.over.is_set():
            self._step(self.session.want(wants))

    # -- alarms, time and the end ---------------------------------------------------------------------------------

    def alarm(self, channel: str, reason: str, *, ours: bool) -> None:
        """Something stands still until a person changes something. ``ours``: it is what we would like to do."""
        self.alarms.sound(channel, reason, ours=ours)

    @property
    def error(self) -> str:
        """What does not work now; empty when all is well."""
        return self._troubles.error

    def _tick(self) -> None:
        if self.over.is_set():
            return
        if self._ticking is not None:
            self._ticking.cancel()
        self.session.heard(self._moving.still_s())
        self._step(self.session.tick())
        pause = max(0.05, self.session.deadline() - self._loop.time())
        self._ticking = self._loop.call_later(min(pause, self.session.heartbeat.interval_s), self._tick)

    def refuse(self, code: str, message: str) -> None:
        """Tell the other side why it may not stay."""
        if self.peer is not None and not self.over.is_set():
            self._step(self.session.refuse(code, message))

    def fail(self, error: ProtocolError) -> None:
        """The other side broke the protocol."""
        if not self.over.is_set():
            self._step(self.session.fail(error))

    def bye(self, reason: str) -> None:
        """End in order."""
        if self.peer is None:
            self.drop(reason)
        elif not self.over.is_set():
            self._step(self.session.bye(reason))

    def drop(self, reason: str) -> None:
        """End without a word."""
        self._close(events.Closed(code="lost", reason=reason))

    def _close(self, event: events.Closed) -> None:
        """Once: whoever came first says why."""
        if self.over.is_set():
            return
        self.closed = event
        self.ended_at = self._loop.time()
        self.over.set()
        if self._ticking is not None:
            self._ticking.cancel()
        if self.peer is not None:
            self.questions.close(event.reason)
        self._transport.disconnect()
        self._loop.call_later(FAREWELL_S, self._transport.disconnect, False)
        self._loop.create_task(self._finish())

    async def _finish(self) -> None:
        """Wait for what is at the disk, save positions, let go."""
        for close in (self.storer.close, self.sender.close) if self.peer is not None else (lambda: None,):
            close()
            while self._tasks:
                await asyncio.wait(list(self._tasks))
        self.finished.set()

    # -- threads --------------------------------------------------------------------------------------------------

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Do something beside; what it raises ends the connection, and another one is made."""
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        if len(self._tasks) > TASKS_MAX:
            self.drop("the other side asks for too much at once")
        return task

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is None or isinstance(error, StationClosed | Ending):
            return
        known = isinstance(error, HeliographError)
        logger.error("the link with %s is made again: %s", self.session_peer, error, exc_info=None if known else error)
        self.drop(f"{type(error).__name__}: {error}")

    async def run(self, function: Callable[..., _T], *arguments: Any) -> _T:
        """Call something in a thread."""
        return await self.start(function, *arguments)

    def start(self, function: Callable[..., _T], *arguments: Any) -> asyncio.Future[_T]:
        """Have something called in a thread, from now on; to be awaited."""
        try:
            return self.shared.workers.run(function, *arguments)
        except RuntimeError:  # they are closed
            future: asyncio.Future[_T] = self._loop.create_future()
            future.set_exception(Ending())
            return future

    async def pause(self, seconds: float) -> None:
        """Wait, unless the connection ends."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.over.wait(), seconds)

    # -- what is seen ---------------------------------------------------------------------------------------------

    @property
    def session_peer(self) -> str:
        """The other side's name."""
        return "" if self.peer is None else self.peer.name

    @property
    def age_s(self) -> float:
        """How long it was, or has been, established."""
        if self.established_at is None:
            return 0.0
        return (self._loop.time() if self.ended_at is None else self.ended_at) - self.established_at

    def in_flight(self) -> int:
        """Bytes on their way in either direction."""
        return self.sender.flying() + self.session.receiving.waiting

    def channels(self) -> list[str]:
        """The channels that are sent or arrive."""
        return sorted({*self.session.sending.channels, *self.session.receiving.channels})
