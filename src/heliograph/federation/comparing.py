"""What two stations ask of each other to have the same messages: the bodies of three requests (docs/protocol.md).

``compare``: what has the other side? ``fetch``: some of it, please. ``store``: here is what you lack. Nothing is
remembered between two requests, and each may be asked again after a cut: what is there already is recognised. Pure.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from heliograph.engine.foreign import TAIL
from heliograph.errors import ProtocolError
from heliograph.federation import resume
from heliograph.federation.frames import Ends, Intervals, Name, Number, Partition, Patterns, Reason, Text
from heliograph.limits import PARTITIONS_MAX
from heliograph.seen import IntervalSet, SeenSet

COMPARE: Final = "compare"
FETCH: Final = "fetch"
STORE: Final = "store"

PAGE_BYTES: Final = 256 * 1024
"""How many bytes of lines are asked for, or sent, at once: little enough for a line that is slow or often cut."""
SETS_BYTES: Final = 192 * 1024
"""How many bytes what is said of lines may have, beside many of them."""
HEAD_BYTES: Final = 1024
"""And beside a single one."""

Place = tuple[Partition, Number]
Identity = tuple[Name, Partition, Number]


class Compare(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What has the other side seen of a channel?"""

    channel: Name
    ends: Ends = {}
    """How far this side is: whether one of the two was restored from a backup."""
    after: Identity | None = None
    """Where the part of the set that came last went on."""


class Holding(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a side has seen, or a part of it, and what the other may do about it."""

    seen: Intervals = {}
    after: Identity | None = None
    """There is more: ask again with this."""
    ends: Ends = {}
    own: Intervals = {}
    """What it gave a sequence itself, in the channel's present life: it had that, though nobody may remember."""
    publish: Text = ""
    """Why the other side may not store anything here; empty: it may."""
    subscribe: Text = ""
    """Why it may not fetch anything."""
    relay: Patterns = []
    """Stations whose messages it may store here; its own always."""


class Fetch(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Send some messages of a channel, as many as fit."""

    channel: Name
    wanted: Intervals
    incarnation: str = ""
    """As the last answer said it: in another life offsets mean something else, and all is looked at anew."""
    places: Annotated[list[Place], Meta(max_length=PARTITIONS_MAX)] = []
    """Where the last answer said to go on; none: begin."""
    bytes: Number = PAGE_BYTES
    look: bool = False
    """Only say which are there."""


class Fetched(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The lines that follow; and where to go on: nowhere, if everything was looked at."""

    incarnation: str
    next: list[Place] = []
    found: Intervals = {}
    """With ``look``: what is there."""
    never: Intervals = {}
    """Sequences that were given to no message."""
    refused: list[tuple[Name, Partition, Number, Reason]] = []
    """Messages that are there and cannot be sent."""


class Store(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Append the lines that follow, as they are, each only once."""

    channel: Name
    gaps: Intervals = {}
    """Messages that this side had, and has no more."""
    never: Intervals = {}
    """Sequences that were given to no message."""


class Stored(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What became of the lines; all but the refused ones are durable."""

    appended: Number = 0
    duplicates: Number = 0
    refused: list[tuple[Number, Reason]] = []
    """Which line, and why it cannot be stored."""


# -- sets ---------------------------------------------------------------------------------------------------


def set_of(said: Intervals) -> SeenSet:
    """The set that the other side said; ProtocolError if it is none.

    >>> set_of({"host1.k": {"0": [[0, 3]]}}).count
    3
    """
    try:
        return SeenSet.from_json(said, PARTITIONS_MAX)
    except ValueError as error:
        raise ProtocolError(f"a set in a request is not valid: {error}") from None


def part_of(seen: SeenSet, after: Identity | None) -> tuple[SeenSet, Identity | None]:
    """As much of a set as fits an answer, from some place on; and the place to go on at, if that was not all.

    >>> seen = SeenSet()
    >>> seen.add("a.k", 0, 0, 3); seen.add("b.k", 0, 5, 9)
    >>> part_of(seen, ("a.k", 0, 1))
    (SeenSet({('a.k', 0): IntervalSet([(1, 3)]), ('b.k', 0): IntervalSet([(5, 9)])}), None)
    """
    if after is not None:
        before = IntervalSet([(0, after[2])]) if after[2] else IntervalSet()
        seen = SeenSet(
            {key: found if key > after[:2] else found.difference(before) for key, found in seen if key >= after[:2]}
        )
    part = next(resume.portions(seen), SeenSet())
    if part.count == seen.count:
        return part, None
    key, found = list(part)[-1]
    return part, (*key, found.end)


def both(one: SeenSet, other: SeenSet) -> SeenSet:
    """What is in both sets."""
    return one.difference(one.difference(other))


def only(seen: SeenSet, origins: set[str]) -> SeenSet:
    """What is of some origins."""
    return SeenSet({key: found for key, found in seen if key[0] in origins})


def identities_in(lines: bytes) -> list[tuple[str, int, int]]:
    """Who each of some stored lines is, as far as it says so as a stored line does.

    >>> identities_in(b'{"id":"1","origin":"host1.k","originseq":"0/7","crc":"00000000"}\\n')
    [('host1.k', 0, 7)]
    """
    return [
        (origin.decode("ascii", "replace"), int(partition), int(sequence))
        for origin, partition, sequence in TAIL.findall(lines)
    ]
