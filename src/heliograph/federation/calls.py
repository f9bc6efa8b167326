"""Requests and replies over a link: publish and read for clients without a log, groups and queues of a hub.

Each side numbers its own requests 1, 2, 3 …, and has a bounded number of them under way.
"""

from __future__ import annotations

from heliograph.errors import Busy, ProtocolError
from heliograph.federation import frames
from heliograph.federation.events import Called, Event, Replied
from heliograph.federation.frames import Buffer
from heliograph.federation.sending import Say
from heliograph.limits import LINK_CALLS_MAX, LINK_TEXT_CHARS_MAX


class Calls:
    """The requests of both sides that have no answer yet."""

    def __init__(self, say: Say) -> None:
        self._say = say
        self._last = 0
        self._asked: set[int] = set()
        self._theirs = 0
        self._open: set[int] = set()

    def call(self, name: str, body: Buffer = b"") -> int:
        """Ask; the number that Replied will have. Busy if too many wait for an answer."""
        if len(self._asked) >= LINK_CALLS_MAX:
            raise Busy(f"{LINK_CALLS_MAX} requests on this link wait for their replies; try again when some came")
        self._say(frames.Call(call=self._last + 1, name=name), body)  # unless it is too large
        self._last += 1
        self._asked.add(self._last)
        return self._last

    def reply(self, call: int, body: Buffer = b"") -> None:
        """Answer a request, if its link is still there."""
        self._answer(frames.Reply(call=call), body)

    def fail(self, call: int, error: str, message: str) -> None:
        """Answer a request with an error."""
        self._answer(frames.Reply(call=call, error=error or "Error", message=message[:LINK_TEXT_CHARS_MAX]), b"")

    def _answer(self, reply: frames.Reply, body: Buffer) -> None:
        if reply.call not in self._open:
            raise ValueError(f"request {reply.call} was not asked, or was answered before")
        self._say(reply, body)
        self._open.discard(reply.call)

    def on_call(self, said: frames.Call, body: memoryview) -> list[Event]:
        """The other side asks."""
        if said.call != self._theirs + 1:
            raise ProtocolError(f"request {said.call} comes after {self._theirs}")
        if len(self._open) >= LINK_CALLS_MAX:
            raise ProtocolError(f"more than {LINK_CALLS_MAX} requests are open")
        self._theirs = said.call
        self._open.add(said.call)
        return [Called(call=said.call, name=said.name, body=memoryview(bytes(body)))]

    def on_reply(self, said: frames.Reply, body: memoryview) -> list[Event]:
        """The other side answers."""
        if said.call not in self._asked:
            raise ProtocolError(f"a REPLY to request {said.call}, which is not open")
        self._asked.discard(said.call)
        return [Replied(call=said.call, error=said.error, message=said.message, body=memoryview(bytes(body)))]

    @property
    def idle(self) -> bool:
        """Whether nobody waits for an answer."""
        return not (self._asked or self._open)
