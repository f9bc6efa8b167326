"""What a session tells whoever runs it. Each says what is to be done about it, if anything."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from heliograph.errors import ProtocolError
from heliograph.federation.frames import Hello, Welcome
from heliograph.federation.packing import unpack
from heliograph.federation.resume import Ends
from heliograph.seen import SeenSet


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """Something happened."""


class Greeted(Event, frozen=True, kw_only=True):
    """The other side said who it is. Call ``accept`` or ``refuse``."""

    hello: Hello
    protocol: int


class Established(Event, frozen=True, kw_only=True):
    """Both sides have welcomed each other. Open a stream for every channel that ``offers`` names."""

    welcome: Welcome


class Allowed(Event, frozen=True, kw_only=True):
    """The other side changed what it allows. If what may be relayed changed, shut the streams and open them again."""

    welcome: Welcome


class Wanting(Event, frozen=True, kw_only=True):
    """The other side changed what it wants. Look again which channels ``offers`` names."""


class Denied(Event, frozen=True, kw_only=True):
    """The other side wanted what its rules do not allow, and was told. Audit it."""

    channel: str
    reason: str


class Opened(Event, frozen=True, kw_only=True):
    """The other side begins to send a channel. Compare the ends, then call ``receiving.resume``, or ``park``."""

    stream: int
    channel: str
    partitions: int
    ends: Ends


class Arrived(Event, frozen=True, kw_only=True):
    """Lines arrived. Store them, then call ``receiving.acknowledge``."""

    stream: int
    channel: str
    partition: int
    first: int
    count: int
    size: int
    packed: bool
    body: bytes

    @property
    def next(self) -> int:
        """The offset behind the last line, at the sender: what to acknowledge."""
        return self.first + self.count

    def stored(self) -> tuple[bytes, Sequence[int]]:
        """The lines that are there, in one piece, and the offset of each at the sender; blank ones are left out.

        Unpacks; may run in another thread. ProtocolError if there are not as many lines as were said: call
        ``session.fail`` with it.
        """
        lines = unpack(self.body, self.size) if self.packed else bytes(self.body)
        if not lines.endswith(b"\n") or lines.count(b"\n") != self.count:
            raise ProtocolError(f"a BATCH of {self.count} lines has another number of them")
        if b"\n\n" not in lines and not lines.startswith(b"\n"):
            return lines, range(self.first, self.next)
        split = lines.split(b"\n")
        there = [at for at in range(self.count) if split[at]]
        return b"".join([split[at] + b"\n" for at in there]), [self.first + at for at in there]


class Gapped(Event, frozen=True, kw_only=True):
    """The other side will never send these. Store that before anything that arrives later is acknowledged."""

    stream: int
    channel: str
    gaps: SeenSet
    reason: str
    never: bool
    """There are no such messages, anywhere."""


class Ended(Event, frozen=True, kw_only=True):
    """The other side stopped sending a channel, or was parked. What was not acknowledged comes again some day."""

    stream: int
    channel: str
    reason: str


class Resumed(Event, frozen=True, kw_only=True):
    """The other side says what it has. Compare the ends, then call ``sending.begin`` with the offsets to begin at."""

    stream: int
    channel: str
    origin: str
    """The other side's own origin in this channel: leave out what carries it."""
    seen: SeenSet
    ends: Ends


class Acked(Event, frozen=True, kw_only=True):
    """Everything before ``position`` is stored there or refused. Keep the refused ones, then save the position."""

    stream: int
    channel: str
    partition: int
    position: int
    refused: Sequence[tuple[int, str]]


class Parked(Event, frozen=True, kw_only=True):
    """The other side does not allow this: raise an alarm, and audit it. ``stream`` is 0 if we wanted to be sent it."""

    stream: int
    channel: str
    reason: str


class Unparked(Event, frozen=True, kw_only=True):
    """The other side allows it now: open the channel again if ``offers`` names it."""

    channel: str


class Called(Event, frozen=True, kw_only=True):
    """A request. Answer it with ``calls.reply`` or ``calls.fail``."""

    call: int
    name: str
    body: memoryview


class Replied(Event, frozen=True, kw_only=True):
    """The answer to a request: a result, or the name of an error and its message."""

    call: int
    error: str
    message: str
    body: memoryview


class Closed(Event, frozen=True, kw_only=True):
    """The session is over. Send what is outgoing, then close the socket; nothing else will come."""

    code: str
    """``bye``, ``lost``, ``refused`` (by either side) or ``protocol`` (the other side broke it)."""
    reason: str
    refusal: str = ""
    """Why it was refused, in one word: a code of docs/protocol.md."""
    upgrade: str = ""
