"""Two sessions against each other, every step by hand."""

from __future__ import annotations

from typing import Any, TypeVar

from heliograph.federation import events, frames
from heliograph.federation.frames import Header, Wanted
from heliograph.federation.rules import Rules
from heliograph.federation.session import Ours, Session
from heliograph.seen import SeenSet

E = TypeVar("E", bound=events.Event)
LINE = b"x" * 99 + b"\n"


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def ours(name: str, **more: Any) -> Ours:
    return Ours(name=name, station=f"{name}-id", instance="1", software="heliograph 0.1.0", **more)


class Pair:
    """A client that sends, and a hub that receives, unless it is said otherwise."""

    def __init__(
        self, *, client: dict[str, Any] | None = None, hub: dict[str, Any] | None = None, **rules: Any
    ) -> None:
        self.clock = Clock()
        client = {"push": ("alerts", "sensors.>"), **(client or {})}
        self.client = Session(
            ours("client", **client), Rules("hub", publish=["commands.>"], relay=[">"]), clock=self.clock
        )
        rules = {"publish": ["alerts", "sensors.>"], "subscribe": ["commands.>"], **rules}
        self.hub = Session(ours("hub", **(hub or {})), Rules("client", **rules), clock=self.clock)
        self.heard: dict[Session, list[events.Event]] = {self.client: [], self.hub: []}

    def flow(self) -> Pair:
        """Carry frames to and fro until there are none."""
        moved = True
        while moved:
            moved = False
            for sender, receiver in ((self.client, self.hub), (self.hub, self.client)):
                for head, body in sender.outgoing():
                    moved = True
                    self.note(receiver, receive(receiver, bytes(head) + bytes(body)))
        return self

    def note(self, session: Session, happened: list[events.Event]) -> None:
        self.heard[session] += happened
        if any(isinstance(event, events.Greeted) for event in happened):
            self.note(session, session.accept())

    def take(self, session: Session, kind: type[E]) -> list[E]:
        """Events of a kind, once."""
        found = [event for event in self.heard[session] if isinstance(event, kind)]
        self.heard[session] = [event for event in self.heard[session] if not isinstance(event, kind)]
        return found

    def stream(self, channel: str = "alerts", end: int = 1_000_000) -> int:
        """A stream from client to hub that flows."""
        number = self.client.sending.open(channel, 1, {})
        self.flow()
        (opened,) = self.take(self.hub, events.Opened)
        self.hub.receiving.resume(opened.stream, "hub.k3f9q2", SeenSet(), {})
        self.flow()
        self.take(self.client, events.Resumed)
        self.client.sending.begin(number, {0: 0})
        self.client.sending.news(number, 0, end)
        return number

    def send(self, most: int = 1_000_000) -> int:
        """Read and send as long as the windows allow; how many lines."""
        sent = 0
        for _ in range(most):
            read = self.client.sending.next_read()
            if read is None:
                break
            count = max(1, read.bytes // len(LINE))
            self.client.sending.send(read.stream, read.partition, read.offset, count, LINE * count)
            sent += count
        return sent


def receive(session: Session, frame: bytes) -> list[events.Event]:
    """As a socket does it, which reads the next frame to the same place."""
    place = bytearray(frame)
    happened = session.receive(memoryview(place))
    place[:] = bytes(len(place))
    return happened


def said(session: Session) -> list[Header]:
    """What a session would like to send."""
    return [frames.decode(bytes(head) + bytes(body), 1 << 30)[0] for head, body in session.outgoing()]


def tell(session: Session, header: Header, body: bytes = b"") -> list[events.Event]:
    """Hand a session a frame."""
    head, rest = frames.encode(header, body)
    return receive(session, head + bytes(rest))


WANT_ALL = (Wanted("commands.>", "new"),)
