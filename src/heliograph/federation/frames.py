"""The wire format: one WebSocket binary message is one frame (docs/protocol.md).

    at   size
    0    1      kind
    1    4      length of the header, little-endian
    5    …      header: a JSON object, its members as in the struct of that kind
    …    rest   body: only of BATCH, CALL and REPLY

Unknown members of a header are ignored, so that later versions can say more. Whatever else does not fit is a
ProtocolError, found before anything of the size that a frame claims is allocated.
"""

from __future__ import annotations

import struct
from typing import Annotated, Any, Final, TypeAlias

import msgspec
from msgspec import Meta

from heliograph.errors import ProtocolError
from heliograph.limits import (
    BATCH_LINES_MAX,
    LINK_FRAME_BYTES_MIN,
    LINK_HEADER_BYTES_MAX,
    LINK_PATTERNS_MAX,
    LINK_REASON_CHARS_MAX,
    LINK_REFUSED_MAX,
    LINK_TEXT_CHARS_MAX,
    PARTITIONS_MAX,
)

Buffer: TypeAlias = bytes | bytearray | memoryview
Frame: TypeAlias = tuple[bytes, Buffer]
"""A frame to send: what comes before its body, and the body as it was handed in, not copied."""

Number: TypeAlias = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Partition: TypeAlias = Annotated[int, Meta(ge=0, lt=PARTITIONS_MAX)]
NAME_CHARS_MAX: Final = 255
Name: TypeAlias = Annotated[str, Meta(min_length=1, max_length=NAME_CHARS_MAX)]
Text: TypeAlias = Annotated[str, Meta(max_length=LINK_TEXT_CHARS_MAX)]
Reason: TypeAlias = Annotated[str, Meta(max_length=LINK_REASON_CHARS_MAX)]
Patterns: TypeAlias = Annotated[list[Name], Meta(max_length=LINK_PATTERNS_MAX)]
Intervals: TypeAlias = dict[str, dict[str, list[list[int]]]]
"""A seen-set as JSON: {"host2.k3f9q2": {"0": [[0, 40]]}}."""
Ends: TypeAlias = dict[str, dict[str, tuple[Number, Name]]]
"""The highest sequence of each origin's partition and the id of its message: {"host2.k3f9q2": {"0": [39, "0192…"]}}."""

_PREFIX: Final = struct.Struct("<BI")


class Header(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What all headers have in common."""


class Hello(Header, frozen=True, kw_only=True):
    """Both sides first: who this is and what it speaks. Its layout never changes."""

    protocol: tuple[Number, Number]
    """The oldest and the newest version of the protocol that this side speaks."""
    name: Name
    """The station's name; that of its certificate."""
    station: Name
    """The station's id: one data directory for ever; a random one of an ephemeral client."""
    instance: Name
    """The process's id: a new one whenever it starts."""
    software: Text = ""
    frame: Number = LINK_FRAME_BYTES_MIN
    """The largest frame that this side accepts."""
    zstd: bool = False
    """Whether packed bodies are understood."""
    ephemeral: bool = False
    """Keeps no log: nobody remembers how far it has come."""


class Welcome(Header, frozen=True, kw_only=True):
    """The other side may stay, and may do this: it is told so that it can say what is missing."""

    protocol: Number
    publish: Patterns = []
    subscribe: Patterns = []
    relay: Patterns = []


class Refused(Header, frozen=True, kw_only=True):
    """The other side may not stay. Its layout never changes."""

    code: Name
    message: Text
    upgrade: Text = ""
    """Which side has to be upgraded, and to what."""


class Wanted(msgspec.Struct, frozen=True, omit_defaults=True):
    """A subscription: the channels of a name or pattern, from a start on."""

    channels: Name
    start: Annotated[str, Meta(max_length=64)] = "first"


class Want(Header, frozen=True, kw_only=True):
    """What this side would like to be sent; each WANT replaces the one before."""

    subscribe: Annotated[list[Wanted], Meta(max_length=LINK_PATTERNS_MAX)] = []


class Open(Header, frozen=True, kw_only=True):
    """Sender: a stream of one channel begins. Streams are numbered 1, 2, 3 … by their sender."""

    stream: Number
    channel: Name
    partitions: Annotated[int, Meta(ge=1, le=PARTITIONS_MAX)]
    ends: Ends = {}


class Resume(Header, frozen=True, kw_only=True):
    """Receiver: what it has of this channel, and how many bytes may be on their way."""

    stream: Number
    window: Number
    origin: Annotated[str, Meta(max_length=255)] = ""
    """The receiver's own origin in this channel now. It has all of that, so it need not be sent back."""
    seen: Intervals = {}
    """Of origins that the sender may send; or a part of it."""
    ends: Ends = {}


class Batch(Header, frozen=True, kw_only=True, gc=False):
    """Sender: ``count`` lines of a partition beginning at offset ``first``; a blank line is an offset left out."""

    stream: Number
    partition: Partition
    first: Number
    count: Annotated[int, Meta(ge=1, le=BATCH_LINES_MAX)]
    size: Number
    """Bytes of the lines, unpacked: what counts for the window."""
    packed: bool = False
    """The body is one zstd frame."""


class Ack(Header, frozen=True, kw_only=True):
    """Receiver: everything before ``next`` is durable, or was refused."""

    stream: Number
    partition: Partition
    next: Number
    refused: Annotated[list[tuple[Number, Reason]], Meta(max_length=LINK_REFUSED_MAX)] = []


class Gap(Header, frozen=True, kw_only=True):
    """Sender: these sequences will never come."""

    stream: Number
    gaps: Intervals
    reason: Text = ""
    never: bool = False
    """They were given to no message: as good as seen."""


class Park(Header, frozen=True, kw_only=True):
    """Not allowed: the stream is over (``stream``), or a subscription is not served (``stream`` 0)."""

    stream: Number = 0
    channel: Name
    reason: Text


class Unpark(Header, frozen=True, kw_only=True):
    """What was parked may be opened again; or ``withdrawn``: whoever was parked does not ask for it any more."""

    channel: Name
    withdrawn: bool = False


class Window(Header, frozen=True, kw_only=True):
    """Receiver: from now on this many bytes of the stream may be on their way."""

    stream: Number
    bytes: Number


class Shut(Header, frozen=True, kw_only=True):
    """Sender: the stream is over; another one of the same channel may follow."""

    stream: Number
    reason: Text = ""


class Ping(Header, frozen=True, kw_only=True):
    """Are you there?"""

    nonce: Number


class Pong(Header, frozen=True, kw_only=True):
    """I am."""

    nonce: Number


class Call(Header, frozen=True, kw_only=True):
    """A request, its arguments in the body."""

    call: Number
    name: Name


class Reply(Header, frozen=True, kw_only=True):
    """The answer to a request: a result in the body, or an error."""

    call: Number
    error: Text = ""
    """Name of the error; empty if all is well."""
    message: Text = ""


class Bye(Header, frozen=True, kw_only=True):
    """The last frame of this side."""

    reason: Text = ""


KINDS: Final[dict[int, type[Header]]] = {
    0x01: Hello, 0x02: Welcome, 0x03: Refused, 0x04: Bye,
    0x10: Want, 0x11: Open, 0x12: Resume, 0x13: Batch, 0x14: Ack, 0x15: Gap, 0x16: Park, 0x17: Unpark,
    0x18: Window, 0x19: Shut,
    0x20: Ping, 0x21: Pong,
    0x30: Call, 0x31: Reply,
}  # fmt: skip
_NUMBERS: Final = {cls: number for number, cls in KINDS.items()}
_DECODERS: Final[dict[int, Any]] = {number: msgspec.json.Decoder(cls).decode for number, cls in KINDS.items()}
_WITH_BODY: Final = frozenset({Batch, Call, Reply})
_encode = msgspec.json.Encoder().encode


def encode(header: Header, body: Buffer = b"") -> Frame:
    """A frame in two parts, so that nobody copies the body before the socket does.

    >>> head, body = encode(Ping(nonce=7))
    >>> head.hex(" ", 1), bytes(body)
    ('20 0b 00 00 00 7b 22 6e 6f 6e 63 65 22 3a 37 7d', b'')
    """
    said = _encode(header)
    if len(said) > LINK_HEADER_BYTES_MAX:
        raise ProtocolError(f"a header of {len(said)} bytes is larger than {LINK_HEADER_BYTES_MAX}")
    return _PREFIX.pack(_NUMBERS[type(header)], len(said)) + said, body


def decode(frame: Buffer, limit: int) -> tuple[Header, memoryview]:
    """Header and body of a frame of at most ``limit`` bytes; the body is a view into the frame.

    >>> decode(bytes.fromhex("20 0b 00 00 00 7b 22 6e 6f 6e 63 65 22 3a 37 7d"), 1000)[0]
    Ping(nonce=7)
    >>> decode(b"GET / HTTP/1.1", 1000)
    Traceback (most recent call last):
    heliograph.errors.ProtocolError: there is no kind of frame 0x47
    """
    view = memoryview(frame)
    if len(view) < _PREFIX.size:
        raise ProtocolError(f"a frame of {len(view)} bytes is too short to be one")
    if len(view) > limit:
        raise ProtocolError(f"a frame of {len(view)} bytes is larger than {limit}, which was agreed on")
    kind, length = _PREFIX.unpack_from(view)
    decoder = _DECODERS.get(kind)
    if decoder is None:
        raise ProtocolError(f"there is no kind of frame 0x{kind:02x}")
    if length > min(LINK_HEADER_BYTES_MAX, len(view) - _PREFIX.size):
        raise ProtocolError(f"a header of {length} bytes does not fit its frame of {len(view)} bytes")
    body = view[_PREFIX.size + length :]
    try:
        header: Header = decoder(view[_PREFIX.size : _PREFIX.size + length])
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise ProtocolError(f"the header of a {KINDS[kind].__name__.upper()} is not valid: {error}") from None
    _check_body(header, body, limit)
    return header, body


def _check_body(header: Header, body: memoryview, limit: int) -> None:
    if isinstance(header, Batch):
        if header.size > limit:  # a few packed bytes may be any number of them
            raise ProtocolError(f"a BATCH of {header.size} bytes is larger than {limit}, which was agreed on")
        if header.size < header.count or (len(body) != header.size and not header.packed):
            raise ProtocolError(f"a BATCH of {header.size} bytes in {header.count} lines has a body of {len(body)}")
        if not len(body) or not (header.packed or body[-1] == 0x0A):
            raise ProtocolError("a BATCH does not end with the end of a line")
    elif len(body) and type(header) not in _WITH_BODY:
        raise ProtocolError(f"a {type(header).__name__.upper()} has no body")
