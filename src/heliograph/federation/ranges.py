"""What those ask a hub who share out a channel among many readers, and its answers (docs/protocol.md).

One plans: ``survey``, ``ids``, ``pieces``, ``schema``. The others fetch, each its own: ``lines``. Nothing is remembered
between two requests. A channel that is not there is no error, so ``NotFound`` means a hub that is older. Pure.
"""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from heliograph.federation.asking import PAGE_BYTES
from heliograph.federation.frames import Name, Number, Partition, Text
from heliograph.limits import LINK_PATTERNS_MAX, PARTITIONS_MAX

SURVEY: Final = "survey"
IDS: Final = "ids"
PIECES: Final = "pieces"
LINES: Final = "lines"
SCHEMA: Final = "schema"

PIECES_MAX: Final = 10_000
"""Most pieces in one answer."""
Moment = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]


class Survey(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where do channels begin and end, as far as they are durable?"""

    channels: Annotated[list[Name], Meta(max_length=LINK_PATTERNS_MAX)] = []
    patterns: Annotated[list[Name], Meta(max_length=LINK_PATTERNS_MAX)] = []
    after: Text = ""
    """The last channel that was told of: go on behind it."""


class There(msgspec.Struct, frozen=True, array_like=True):
    """A channel: its life, and first and next offset of each partition."""

    name: str
    incarnation: str
    bounds: list[tuple[Number, Number]]


class Surveyed(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Those that are there, in the order of their names."""

    channels: list[There] = []
    more: bool = False


class Ids(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The ids of some messages: partition and offset of each."""

    channel: Name
    places: Annotated[list[tuple[Partition, Number]], Meta(max_length=PARTITIONS_MAX)]


class IdsFound(msgspec.Struct, frozen=True, kw_only=True):
    """One for each; empty if there is none, or not any more."""

    ids: list[str]


class Pieces(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Cut a stretch of a partition into pieces of so many bytes, about; those without any time between are left out."""

    channel: Name
    partition: Partition
    first: Number
    next: Number
    bytes: Annotated[int, Meta(ge=1, le=2**63 - 1)]
    count: Annotated[int, Meta(ge=1, le=PIECES_MAX)] = PIECES_MAX
    times_us: tuple[Moment, Moment] | None = None


class Pieced(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """First offset, next offset and bytes of each; and where to go on."""

    pieces: list[tuple[Number, Number, Number]] = []
    next: Number


class Lines(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Stored lines between two offsets of one life of a channel, as many as fit."""

    channel: Name
    partition: Partition
    incarnation: Text
    first: Number
    next: Number
    bytes: Number = PAGE_BYTES
    appends: bool = False
    """Whether it is to be told when they were appended."""


class Lined(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What was read; its lines follow, run after run. Nothing if the channel has another life, or none (empty)."""

    incarnation: str = ""
    runs: list[tuple[Number, Number]] = []
    """First offset and count; blank lines hold nothing."""
    lacks: list[tuple[Number, Number, str]] = []
    """First offset, next offset and reason: these will not come."""
    next: Number = 0
    """Where to go on; where it was begun if the log ends there."""
    appends: list[tuple[Number, Number]] = []
    """Offset and time, in µs since 1970, of the lines of which the log knows when they were appended."""


class Schema(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The newest schema of a type."""

    channel: Name
    type: Text


class SchemaFound(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Its version and the schema; 0 if the channel does not know the type."""

    version: Number = 0
    schema: dict[str, Any] = {}
