"""The protocol of one connection, without the connection: docs/protocol.md as a state machine.

Both ends run the same one. Whoever has the socket hands in frames (``receive``), the passing of time (``tick``) and
facts (``sending``, ``receiving``, ``calls``), carries out the events it gets back, and sends what is ``outgoing``
after each of these. ``receive`` never raises: an end that breaks the protocol is told so, and Closed comes back.

    hello ──HELLO──▶ greeted ──accept──▶ accepted ──WELCOME──▶ established ──BYE──▶ closed
      └────────────────┴── refuse, REFUSED, ProtocolError, silence ──┴───────────────▶ closed
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from heliograph.config.federated import is_start
from heliograph.errors import InvalidName, MessageTooLarge, ProtocolError
from heliograph.federation import frames
from heliograph.federation.calls import Calls
from heliograph.federation.events import Allowed, Closed, Denied, Established, Event, Greeted, Wanting
from heliograph.federation.frames import Buffer, Frame, Header, Wanted
from heliograph.federation.heartbeat import Heartbeat, Pulse
from heliograph.federation.receiving import Receiving
from heliograph.federation.rules import Names, Rules
from heliograph.federation.sending import Sending
from heliograph.limits import (
    LINK_FRAME_BYTES_MIN,
    LINK_HANDSHAKE_S,
    LINK_HEADER_BYTES_MAX,
    LINK_HELLO_BYTES_MAX,
    LINK_PATTERNS_MAX,
    LINK_TEXT_CHARS_MAX,
)

PROTOCOL: Final = (1, 1)
"""The oldest and the newest version of the protocol that this code speaks."""

FRAME_SLACK_BYTES: Final = LINK_HEADER_BYTES_MAX + 64
"""What a frame has beside its body, at most."""


class Ours(msgspec.Struct, frozen=True, kw_only=True):
    """What this side is, and how it behaves."""

    name: str
    station: str
    instance: str
    software: str = ""
    push: tuple[str, ...] = ()
    """Channels that this side sends without being asked: a link's ``publish``."""
    push_start: str = "first"
    keep: tuple[str, ...] = ()
    """Channels that are not among them, though they are named."""
    wants: tuple[Wanted, ...] = ()
    """Channels that this side asks for: a link's ``subscribe``."""
    heartbeat_s: float = 15.0
    window_bytes: int = 4 << 20
    """How much of one channel may be on its way to this side."""
    budget_bytes: int = 64 << 20
    """How much of all channels together."""
    frame_bytes: int = 16 << 20
    """The largest frame that this side accepts."""
    zstd: bool = True
    ephemeral: bool = False
    protocol: tuple[int, int] = PROTOCOL


class Session:
    """One end of one connection.

    >>> host = Ours(name="host1", station="s1", instance="i1", push=("alerts",))
    >>> session = Session(host, Rules("hub1"), clock=lambda: 0.0)
    >>> frames.decode(session.outgoing()[0][0], 1 << 20)[0].name
    'host1'
    """

    def __init__(self, ours: Ours, rules: Rules, *, clock: Callable[[], float]) -> None:
        self._ours = ours
        self._rules = self._told = rules
        self._clock = clock
        self._out: list[Frame] = []
        self._push = Names(ours.push, ours.keep)
        self._relay = Names()
        self._wants = ours.wants
        self.wanted: list[tuple[Wanted, Names]] = []  # what the other side wants, if it has a meaning
        self.denied: dict[str, str] = {}  # what of it is not allowed, and why
        self._unserved: dict[str, str] = {}  # what this side wants and does not get, and why
        self._accepted = self._welcomed = self.closed = False
        self._began = clock()
        self._frame_bytes = max(ours.frame_bytes, LINK_FRAME_BYTES_MIN)
        self.heartbeat = Heartbeat(ours.heartbeat_s, clock)
        self.theirs: frames.Hello | None = None
        """Who the other side says it is."""
        self.welcome: frames.Welcome | None = None
        """What the other side allows."""
        self.sending = Sending(self._say)
        self.receiving = Receiving(self._say, rules, window=ours.window_bytes, budget=ours.budget_bytes)
        self.calls = Calls(self._say)
        self._handlers = self._table()
        self._say(
            frames.Hello(
                protocol=ours.protocol, name=ours.name, station=ours.station, instance=ours.instance,
                software=ours.software, frame=self._frame_bytes, zstd=ours.zstd, ephemeral=ours.ephemeral,
            ),
            b"",
        )  # fmt: skip

    # -- for whoever has the socket -------------------------------------------------------------------------

    def outgoing(self) -> list[Frame]:
        """What to send now, in order; each frame in two parts."""
        out, self._out = self._out, []
        return out

    def receive(self, frame: Buffer) -> list[Event]:
        """A frame arrived; what follows from it, which holds copies: the frame may be overwritten then."""
        if self.closed:
            return []
        self.heartbeat.heard()
        try:
            header, body = frames.decode(frame, self._frame_bytes if self.theirs else LINK_HELLO_BYTES_MAX)
            return self._handle(header, body)
        except ProtocolError as error:
            return self.fail(error)

    def heard(self, ago_s: float = 0.0) -> None:
        """Bytes moved that are no whole frame yet: on a slow line a large one takes longer than three heartbeats."""
        self.heartbeat.heard(ago_s)

    def tick(self) -> list[Event]:
        """Time passed: call it at ``deadline`` at the latest."""
        if self.closed:
            return []
        if not self.established and self._clock() - self._began >= LINK_HANDSHAKE_S:
            return self._close("lost", f"no agreement within {LINK_HANDSHAKE_S:.0f} s")
        pulse = self.heartbeat.look()
        if pulse is Pulse.GONE:
            return self._close("lost", f"nothing was heard for {self.heartbeat.silent_s:.1f} s")
        if pulse is Pulse.PING and self.established:
            self._say(frames.Ping(nonce=self.heartbeat.ping()), b"")
        return []

    def deadline(self) -> float:
        """When to call ``tick``, by the clock."""
        if self.established:
            return self.heartbeat.deadline()
        return self._began + LINK_HANDSHAKE_S

    def accept(self) -> list[Event]:
        """After Greeted: the other side may stay."""
        if self.closed or self._accepted or self.theirs is None:
            return []
        self._accepted = True
        self._say_welcome()
        return self._established_now()

    def _say_welcome(self) -> None:
        rules = self._told = self._rules
        said = frames.Welcome(
            protocol=self.protocol, publish=list(rules.publish.texts[:LINK_PATTERNS_MAX]),
            subscribe=list(rules.subscribe.texts[:LINK_PATTERNS_MAX]),
            relay=list(rules.relay.texts[:LINK_PATTERNS_MAX]),
        )  # fmt: skip
        self._say(said, b"")

    def refuse(self, code: str, message: str, upgrade: str = "") -> list[Event]:
        """The other side may not stay: tell it why."""
        if self.closed:
            return []
        said, advice = message[:LINK_TEXT_CHARS_MAX], upgrade[:LINK_TEXT_CHARS_MAX]
        self._say(frames.Refused(code=code, message=said, upgrade=advice), b"")
        return self._close("refused", message, code, upgrade)

    def fail(self, error: ProtocolError) -> list[Event]:
        """The other side broke the protocol: tell it, and close."""
        if self.closed:
            return []
        self._say(frames.Refused(code="protocol", message=str(error)[:LINK_TEXT_CHARS_MAX]), b"")
        return self._close("protocol", str(error))

    def bye(self, reason: str) -> list[Event]:
        """Close in order. What is not acknowledged is sent again by the next session."""
        if self.closed:
            return []
        self._say(frames.Bye(reason=reason[:LINK_TEXT_CHARS_MAX]), b"")
        return self._close("bye", reason)

    def allow(self, rules: Rules, push: Sequence[str] | None = None) -> list[Event]:
        """Other rules from now on. Then look again which channels ``offers`` names."""
        self._rules = rules
        if push is not None:
            self._push = Names(push, self._ours.keep)
        if self.established:
            self._say_welcome()
        found = self.receiving.allow(rules)
        denied, self.denied = self.denied, {}
        for wanted in [wanted for wanted in denied if not rules.subscribing(wanted)]:
            self._say(frames.Unpark(channel=wanted), b"")
        for one, _ in self.wanted:
            found += self._check(one.channels)
        self._let_go("not allowed any more, or not wanted")
        return [*found, Wanting()]

    def want(self, wants: Sequence[Wanted]) -> list[Event]:
        """Ask for other channels from now on, and take no others."""
        self._wants = tuple(wants)
        self._unserved = {}
        if self.established:
            self._say(frames.Want(subscribe=list(self._wants)), b"")
        return self.receiving.let_go(Names([one.channels for one in self._wants]))

    def offers(self, channel: str) -> str | None:
        """Where a stream of this channel begins for a new peer; None if it is not to be sent at all."""
        if channel in self._push:
            return self._ours.push_start
        for one, meant in self.wanted:
            if channel in meant and not self._rules.subscribing(channel):
                return one.start
        return None

    def parked(self) -> dict[str, str]:
        """What stands still now, whichever side does not allow it, and why."""
        return {**self.denied, **self.receiving.parked, **self._unserved, **self.sending.parked}

    def relays(self, origin: str) -> bool:
        """Whether the other side takes messages of an origin from here: our own, and what it allows us to relay."""
        station = origin.rpartition(".")[0]
        return station == self._ours.name or station in self._relay

    @property
    def established(self) -> bool:
        """Whether both sides have welcomed each other."""
        return self._accepted and self._welcomed and not self.closed

    @property
    def protocol(self) -> int:
        """The version of the protocol that both sides speak."""
        return min(self._ours.protocol[1], self.theirs.protocol[1]) if self.theirs else self._ours.protocol[1]

    @property
    def body_bytes_max(self) -> int:
        """The largest body that the other side accepts; longer lines are too large for it."""
        frame = max(self.theirs.frame, LINK_FRAME_BYTES_MIN) if self.theirs else LINK_FRAME_BYTES_MIN
        return frame - FRAME_SLACK_BYTES

    @property
    def packs(self) -> bool:
        """Whether bodies may be packed."""
        return self._ours.zstd and self.theirs is not None and self.theirs.zstd

    # -- the table ------------------------------------------------------------------------------------------

    def _table(self) -> dict[type[Header], Callable[..., list[Event]]]:
        """What is done with each kind of frame once the session is established."""
        sending, receiving = self.sending, self.receiving
        return {
            frames.Want: self._on_want,
            frames.Open: receiving.on_open,
            frames.Gap: receiving.on_gap,
            frames.Shut: receiving.on_shut,
            frames.Resume: sending.on_resume,
            frames.Ack: sending.on_ack,
            frames.Window: sending.on_window,
            frames.Park: self._on_park,
            frames.Unpark: self._on_unpark,
            frames.Ping: self._on_ping,
            frames.Pong: self._on_pong,
        }

    def _handle(self, header: Header, body: memoryview) -> list[Event]:
        if isinstance(header, frames.Batch) and self.established:  # nearly all, so it is asked for first
            return self.receiving.on_batch(header, body)
        if isinstance(header, frames.Refused):
            return self._close("refused", header.message, header.code, header.upgrade)
        if isinstance(header, frames.Bye):
            return self._close("bye", header.reason)
        if isinstance(header, frames.Hello):
            return self._on_hello(header)
        if isinstance(header, frames.Welcome):
            return self._on_welcome(header)
        if not self.established:
            raise ProtocolError(f"a {type(header).__name__.upper()} before both sides have welcomed each other")
        if isinstance(header, frames.Call):
            return self.calls.on_call(header, body)
        if isinstance(header, frames.Reply):
            return self.calls.on_reply(header, body)
        if self.theirs is not None and self.theirs.ephemeral and isinstance(header, frames.Open | frames.Want):
            raise ProtocolError("a side without a log uses requests; it neither opens streams nor wants them")
        return self._handlers[type(header)](header)

    def _on_hello(self, said: frames.Hello) -> list[Event]:
        if self.theirs is not None:
            raise ProtocolError("a second HELLO")
        ours = self._ours
        old, new = ours.protocol
        if said.protocol[1] < old or new < said.protocol[0]:
            here, there = f"{ours.name} ({ours.software})", f"{said.name} ({said.software})"
            behind = there if said.protocol[1] < old else here
            message = (
                f"{here} speaks versions {old} to {new} of the protocol, "
                f"{there} versions {said.protocol[0]} to {said.protocol[1]}"
            )
            needed = max(old, said.protocol[0])
            return self.refuse("version", message, f"upgrade {behind} to a Heliograph that speaks version {needed}")
        if said.name != self._rules.peer:
            return self.refuse(
                "name",
                f"the certificate says '{self._rules.peer}' and the station '{said.name}': they must be the same",
            )
        self.theirs = said
        return [Greeted(hello=said, protocol=self.protocol)]

    def _on_welcome(self, said: frames.Welcome) -> list[Event]:
        if self.theirs is None or (self._welcomed and not self.established):
            raise ProtocolError("a WELCOME that is not awaited")
        if said.protocol != self.protocol:
            raise ProtocolError(f"a WELCOME to version {said.protocol} of the protocol instead of {self.protocol}")
        try:
            self._relay = Names(said.relay)
        except InvalidName as error:
            raise ProtocolError(f"a WELCOME that is not valid: {error}") from None
        again, self._welcomed = self._welcomed, True
        self.welcome = said
        return [Allowed(welcome=said)] if again else self._established_now()

    def _established_now(self) -> list[Event]:
        if not self.established or self.welcome is None:
            return []
        if self._told is not self._rules:  # it was welcomed, and could not be told of others yet
            self._say_welcome()
        if self._wants:
            self._say(frames.Want(subscribe=list(self._wants)), b"")
        return [Established(welcome=self.welcome)]

    def _on_want(self, said: frames.Want) -> list[Event]:
        self.wanted = []
        self.denied = {}
        found: list[Event] = []
        for one in said.subscribe:
            if not is_start(one.start):
                raise ProtocolError(f"a WANT starts with {one.start!r}: neither first, new nor a time with its zone")
            found += self._check(one.channels)
            with contextlib.suppress(InvalidName):  # such a one is denied above
                self.wanted.append((one, Names([one.channels])))
        self._let_go("not wanted any more")
        return [*found, Wanting()]

    def _let_go(self, why: str) -> None:
        """Send no more of what is not to be sent, and ask no more for what of it is parked."""
        for channel, stream in list(self.sending.channels.items()):
            if self.offers(channel) is None:
                self.sending.shut(stream, why)
        self.sending.withdraw([channel for channel in self.sending.parked if self.offers(channel) is None])

    def _on_park(self, said: frames.Park) -> list[Event]:
        if said.stream == 0:
            if all(said.channel != one.channels for one in self._wants):
                return []  # it was wanted when that was said
            self._unserved[said.channel] = said.reason
        return self.sending.on_park(said)

    def _on_unpark(self, said: frames.Unpark) -> list[Event]:
        if said.withdrawn:
            self.receiving.parked.pop(said.channel, None)
            return []
        self._unserved.pop(said.channel, None)
        return self.sending.on_unpark(said)

    def _check(self, wanted: str) -> list[Event]:
        """Deny what is wanted and not allowed."""
        reason = self._rules.subscribing(wanted)
        if not reason or wanted in self.denied:
            return []
        self.denied[wanted] = reason
        self._say(frames.Park(channel=wanted, reason=reason[:LINK_TEXT_CHARS_MAX]), b"")
        return [Denied(channel=wanted, reason=reason)]

    def _on_ping(self, said: frames.Ping) -> list[Event]:
        self._say(frames.Pong(nonce=said.nonce), b"")
        return []

    def _on_pong(self, said: frames.Pong) -> list[Event]:
        if not self.heartbeat.pong(said.nonce):
            raise ProtocolError("a PONG that is not awaited")
        return []

    def _close(self, code: str, reason: str, refusal: str = "", upgrade: str = "") -> list[Event]:
        self.closed = True
        return [Closed(code=code, reason=reason, refusal=refusal, upgrade=upgrade)]

    def _say(self, header: Header, body: Buffer) -> None:
        if len(body) > self.body_bytes_max:
            raise MessageTooLarge(f"{len(body)} bytes; the other end of this link takes {self.body_bytes_max} at once")
        if not self.closed:
            self._out.append(frames.encode(header, body))
