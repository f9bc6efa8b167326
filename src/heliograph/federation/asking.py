"""What clients without a log ask of a hub, and its answers: the bodies of CALL and REPLY (docs/protocol.md).

A body is one line of JSON, and behind it lines of a log. Pure: both ends use it.
"""

from __future__ import annotations

from typing import Annotated, Final, TypeVar

import msgspec
from msgspec import Meta

from heliograph import errors
from heliograph.errors import HeliographError, ProtocolError
from heliograph.federation.frames import Buffer, Name, Number, Partition
from heliograph.limits import PARTITIONS_MAX

PUBLISH: Final = "publish"
FIND: Final = "find"
READ: Final = "read"
CHANNELS: Final = "channels"

PAGE_BYTES: Final = 256 * 1024
"""How much a client asks for at once."""
WAIT_S: Final = 20.0
"""The longest that a request waits for something new."""


class Publish(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Append the events that follow, one a line: all of them or none."""

    channel: Name
    again_s: Annotated[float, Meta(ge=0)] | None = None
    """So many seconds ago it was asked for the first time, and no answer came: look whether they are there."""


class Published(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where each event is: partition and offset. They are durable."""

    places: list[tuple[Partition, Number]]
    duplicate: bool = False
    """They were there already."""


class Find(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where a channel's messages are from ``start`` to ``end``: words, offsets, times or ages, as everywhere."""

    channel: Name
    start: str | Number = "first"
    end: str | Number | None = None
    partition: Partition | None = None


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """By partition, the offset to begin at and the one to end before."""

    incarnation: str
    places: list[tuple[Partition, Number, Number]]


class Place(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How far a client has come in a partition."""

    partition: Partition
    offset: Number
    id: str = ""
    """Of the message before the offset: the hub sees whether its log is still the same."""
    awaits: bool = False
    """Nothing was had: the client was asked to begin here when the log ended before it."""


class Read(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Lines from some places on, as many as fit."""

    channel: Name
    places: Annotated[list[Place], Meta(max_length=PARTITIONS_MAX)] = []
    incarnation: str = ""
    """The channel's, as an answer said it; empty: there was no such channel yet."""
    age_s: Annotated[float, Meta(ge=0)] = 0.0
    """How long ago the places were had: if the log is another one, what was appended since then is new."""
    bytes: Number = PAGE_BYTES
    wait_s: Annotated[float, Meta(ge=0)] = 0.0
    """If there is nothing, wait so long for something."""
    others: bool = False
    """Read the partitions that are not named, too, from their beginning: the channel may have grown."""


class Run(msgspec.Struct, frozen=True, array_like=True):
    """Consecutive lines of a partition; blank ones hold nothing (any more)."""

    partition: Partition
    first: Number
    count: Number


class Lack(msgspec.Struct, frozen=True, array_like=True):
    """Offsets that will not come."""

    partition: Partition
    first: Number
    next: Number
    reason: str


class Page(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What was read; its lines follow, run after run."""

    incarnation: str = ""
    runs: list[Run] = []
    lacks: list[Lack] = []
    next: list[tuple[Partition, Number]] = []
    """Where to go on, of partitions where that changed."""


class Which(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Channels that a pattern means; all without one."""

    pattern: str = ""


class Channels(msgspec.Struct, frozen=True, kw_only=True):
    """The channels that the client may read."""

    names: list[str]


_T = TypeVar("_T", bound=msgspec.Struct)
_encode = msgspec.json.Encoder().encode


def encode(head: msgspec.Struct, lines: bytes = b"") -> bytes:
    """A body.

    >>> encode(Publish(channel="alerts"), b'{"id":"1"}')
    b'{"channel":"alerts"}\\n{"id":"1"}'
    """
    return b"%b\n%b" % (_encode(head), lines)


def decode(body: Buffer, kind: type[_T]) -> tuple[_T, bytes]:
    """What a body says, and the lines behind it.

    >>> decode(b'{"channel":"alerts"}\\n{"id":"1"}', Publish)
    (Publish(channel='alerts', again_s=None), b'{"id":"1"}')
    """
    head, _, lines = bytes(body).partition(b"\n")
    try:
        return msgspec.json.decode(head, type=kind), lines
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(f"the body of a request does not fit {kind.__name__}: {error}") from None


_TOLD: Final = {
    kind.__name__: kind
    for kind in (
        errors.AlreadyExists, errors.Busy, errors.ConfigError, errors.Damaged, errors.DiskFull, errors.Fenced,
        errors.InvalidMessage, errors.InvalidName, errors.LeaseLost, errors.MessageTooLarge,
        errors.NotAllowed, errors.NotFound, errors.OutcomeUnknown, errors.PayloadMismatch, errors.ProtocolError,
        errors.ReadOnly, errors.ReplyTimeout, errors.SchemaConflict, errors.StorageError, errors.SubscriptionBusy,
    )
}  # fmt: skip


def error_of(name: str, message: str) -> HeliographError:
    """The error that the other side replied, as ours.

    >>> error_of("NotFound", "there is no channel 'alerts'")
    NotFound("there is no channel 'alerts'")
    """
    kind = _TOLD.get(name)
    return HeliographError(f"{name}: {message}") if kind is None else kind(message)


def name_of(error: HeliographError) -> str:
    """What to call an error so that the other side knows it."""
    known = (kind.__name__ for kind in type(error).__mro__ if kind.__name__ in _TOLD)
    return next(known, type(error).__name__)
