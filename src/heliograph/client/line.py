"""One connection of a client with a hub: a session, a socket, and the requests that wait for their answers."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

import msgspec
import picows

from heliograph.errors import HeliographError, NotFound, ProtocolError
from heliograph.federation import asking, events
from heliograph.federation.fragments import Fragments
from heliograph.federation.moving import Moving
from heliograph.federation.questions import Head, Lost, Questions
from heliograph.federation.rules import Rules
from heliograph.federation.session import Ours, Session
from heliograph.federation.tlsfiles import Peer, TlsFiles

_T = TypeVar("_T", bound=msgspec.Struct)


class Line(picows.WSListener):
    """From the first byte to the last."""

    _transport: picows.WSTransport
    _moving: Moving

    def __init__(self, ours: Ours, tls: TlsFiles, called: Callable[[Line, events.Called], None]) -> None:
        super().__init__()
        self._called = called
        self._loop = asyncio.get_running_loop()
        self._ours = ours
        self._tls = tls
        self._session: Session | None = None
        self._fragments = Fragments(ours.frame_bytes)
        self._questions: Questions | None = None
        self._ticking: asyncio.TimerHandle | None = None
        self.peer: Peer | None = None
        self.error: HeliographError | None = None
        """What is wrong with the hub's certificate."""
        self.closed: events.Closed | None = None
        self.up = asyncio.Event()
        """It works, or is over."""
        self.over = asyncio.Event()
        self.began = self._framed_at = self._loop.time()
        self._limits: set[asyncio.Timeout] = set()

    # -- the socket -----------------------------------------------------------------------------------------------

    def on_ws_connected(self, transport: picows.WSTransport) -> None:
        """TLS and WebSocket are there; is it a hub that we believe?"""
        self._transport = transport
        try:
            self.peer = self._tls.peer(transport.underlying_transport.get_extra_info("ssl_object"))
        except HeliographError as error:
            self.error = error
            self._end(events.Closed(code="refused", reason=str(error), refusal="certificate"))
            return
        self._session = Session(self._ours, Rules(self.peer.name), clock=self._loop.time)
        self._questions = Questions(self._session.calls, self._flush)
        self._moving = Moving(transport.underlying_transport)
        self._tick()

    def on_ws_frame(self, transport: picows.WSTransport, frame: picows.WSFrame) -> None:
        """Something arrived."""
        self._framed_at = self._loop.time()
        if self._session is None or self.over.is_set():
            return
        if frame.msg_type == picows.WSMsgType.CLOSE:
            transport.disconnect()
        elif frame.msg_type in (picows.WSMsgType.BINARY, picows.WSMsgType.CONTINUATION):
            try:
                whole = self._fragments.whole(frame)
            except ProtocolError as error:
                self._step(self._session.fail(error))
                return
            if whole is not None:
                self._step(self._session.receive(whole))

    def on_ws_disconnected(self, transport: picows.WSTransport) -> None:  # noqa: ARG002 - picows calls it so
        """The connection is gone."""
        self._end(events.Closed(code="lost", reason="the connection was lost"))

    # -- steps ----------------------------------------------------------------------------------------------------

    def _step(self, happened: Iterable[events.Event]) -> None:
        assert self._session is not None
        for event in happened:
            match event:
                case events.Greeted():
                    self._step(self._session.accept())
                case events.Established():
                    self.up.set()
                    self._loop.call_soon(self._tick)  # from now on hearts beat
                case events.Replied() if self._questions is not None:
                    self._questions.answered(event)
                case events.Called():
                    self._called(self, event)
                case events.Closed():
                    self._flush()
                    self._end(event)
                case _:
                    pass  # a client has no streams
        self._flush()

    def _flush(self) -> None:
        if self._session is None or self.over.is_set():
            return
        for head, body in self._session.outgoing():
            self._transport.send(picows.WSMsgType.BINARY, b"".join((head, body)) if len(body) else head)

    def _tick(self) -> None:
        if self._session is None or self.over.is_set():
            return
        if self._ticking is not None:
            self._ticking.cancel()
        still_s, often_s = self._moving.still_s(), self._session.heartbeat.interval_s
        self._session.heard(still_s)
        if still_s < often_s < self._loop.time() - self._framed_at:
            self._put_off(2 * often_s)
        self._step(self._session.tick())
        pause = max(0.05, self._session.deadline() - self._loop.time())
        self._ticking = self._loop.call_later(min(pause, often_s), self._tick)

    def _put_off(self, seconds: float) -> None:
        """A frame is on its way, a large one on a slow line: whoever waits for an answer waits for it."""
        for limit in self._limits:
            until = limit.when()
            if until is not None and not limit.expired():
                limit.reschedule(max(until, self._loop.time() + seconds))

    def _end(self, event: events.Closed) -> None:
        if self.over.is_set():
            return
        self.closed = event
        self.over.set()
        self.up.set()
        if self._ticking is not None:
            self._ticking.cancel()
        if self._questions is not None:
            self._questions.close(event.reason)
        self._transport.disconnect()

    # -- for the client -------------------------------------------------------------------------------------------

    @property
    def working(self) -> bool:
        """Whether something can be asked."""
        return self.up.is_set() and not self.over.is_set()

    @property
    def body_bytes_max(self) -> int:
        """The largest body that the hub takes."""
        return 0 if self._session is None else self._session.body_bytes_max

    async def ask(
        self, name: str, head: Head, kind: type[_T], lines: bytes = b"", turn: asyncio.Semaphore | None = None
    ) -> tuple[_T, bytes]:
        """Ask, when it is its turn, and wait for the answer; Lost if the connection ends first."""
        if not self.working or self._questions is None:
            raise Lost("the connection is over")
        return await self._questions.ask(name, head, kind, lines, turn)

    @contextlib.contextmanager
    def patient(self, limit: asyncio.Timeout) -> Iterator[None]:
        """Put a limit off as long as a frame is on its way: on a slow line a large answer takes its time."""
        self._limits.add(limit)
        try:
            yield
        finally:
            self._limits.discard(limit)

    def reply(self, call: int, head: msgspec.Struct) -> None:
        """Answer what the hub asked, if it is still there."""
        if self.working and self._session is not None:
            self._session.calls.reply(call, asking.encode(head))
            self._flush()

    def fail(self, call: int, error: HeliographError) -> None:
        """Answer what the hub asked with an error."""
        if self.working and self._session is not None:
            self._session.calls.fail(call, asking.name_of(error), str(error))
            self._flush()

    def bye(self) -> None:
        """End in order."""
        if self._session is not None and not self.over.is_set():
            self._step(self._session.bye("the client leaves"))


def nothing_here(line: Line, event: events.Called) -> None:
    """The answer of a client that has no workers."""
    line.fail(event.call, NotFound(f"there is no request {event.name!r} here"))


def text_of(closed: events.Closed | None) -> str:
    """Why a connection ended, in words."""
    return "" if closed is None else f"{closed.reason} {closed.upgrade}".strip()
