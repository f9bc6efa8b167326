"""Where a stream begins: pure decisions about what each side has.

A sender begins, in each partition, at the earlier of its own position and the first message that the receiver lacks.
In steady state these are the same; they differ when a receiver lost something it had acknowledged (a restored
backup), when a sender lost its positions, and when the receiver heard the same messages from somebody else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final, NamedTuple

import msgspec

from heliograph.federation import frames
from heliograph.limits import LINK_HEADER_BYTES_MAX
from heliograph.seen import IntervalSet, Key, SeenSet

SET_BYTES_MAX: Final = LINK_HEADER_BYTES_MAX // 4
"""How many bytes of a header one set may have: there are two, and other things."""
_INTERVAL_BYTES: Final = 44

Ends = Mapping[Key, tuple[int, str]]
"""The highest sequence of each origin's partition, and the id of its message."""
Places = Mapping[int, int]
"""By partition: an offset."""
Locate = Callable[[SeenSet], tuple[Places, SeenSet]]
"""The first offset in each partition of this log that holds one of these messages; and those that it holds no more."""


class Plan(NamedTuple):
    """Where to begin, what is still to be sent, and what will never come."""

    starts: dict[int, int]
    lacking: SeenSet
    gone: SeenSet


def plan(
    *,
    own: str,
    have: SeenSet,
    covered: SeenSet,
    positions: Places,
    firsts: Places,
    locate: Locate | None,
    passes: Callable[[str], bool] = lambda _: True,
) -> Plan:
    """Where to begin in each partition.

    ``own``: this channel's origin now; its messages are where their sequences say. (Those of an older incarnation may
    have been lost here and have come back, to another place.)
    ``have``: what this log holds, or held.
    ``covered``: what the receiver has, and what this side will never send it, because it refused that, or wanted
    nothing from before its start. (Not what others told it will never come: this side may have it.)
    ``positions``: how far it has acknowledged. ``firsts``: the first offset that is left of each partition.
    ``locate``: finds messages of other origins. ``passes``: whether messages of an origin are sent at all.

    >>> have, there = SeenSet(), SeenSet()
    >>> have.add("host1.k3f9q2", 0, 0, 100); there.add("host1.k3f9q2", 0, 0, 40)
    >>> plan(own="host1.k3f9q2", have=have, covered=there, positions={0: 70}, firsts={0: 0}, locate=None).starts
    {0: 40}
    """
    passing = SeenSet({key: found for key, found in have if passes(key[0])})
    lacking = passing.difference(covered)
    foreign, gone = SeenSet(), SeenSet()
    starts = dict(positions)
    for (origin, partition), sequences in lacking:
        if origin != own or partition not in firsts:
            foreign.of(origin, partition).update(sequences)
            continue
        left = sequences.difference(IntervalSet([(0, firsts[partition])]))
        gone.of(origin, partition).update(sequences.difference(left))
        if left:
            first = next(iter(left))[0]
            starts[partition] = min(starts.get(partition, first), first)
    for partition, first in firsts.items():  # also what was trimmed before anybody took note of what it was
        gone.of(own, partition).update(covered.gaps(own, partition, 0, first))
    if len(foreign) and locate is not None:
        places, missing = locate(foreign)
        gone.update(missing)
        for partition, offset in places.items():
            starts[partition] = min(starts.get(partition, offset), offset)
    starts = {partition: max(starts.get(partition, first), first) for partition, first in firsts.items()}
    return Plan(starts, lacking.difference(gone), gone)


class Doubt(NamedTuple):
    """A message that the other side has under a sequence of ours: is it the same one?"""

    origin: str
    partition: int
    sequence: int
    id: str


class Compared(NamedTuple):
    """What the ends of two logs say about each other (rule 3 of the links)."""

    beyond: list[Doubt]
    """The other side has more of our own origin than we do: we were restored from a backup, or cloned."""
    different: list[Doubt]
    """The same sequence is another message there."""
    unsure: list[Doubt]
    """Ours goes on: look up whether our message of this sequence has this id."""


def compare(station: str, ours: Ends, theirs: Ends) -> Compared:
    """Compare the highest sequences and their ids.

    >>> compare("a", {("a.k", 0): (5, "x")}, {("a.k", 0): (7, "y")}).beyond
    [Doubt(origin='a.k', partition=0, sequence=7, id='y')]
    """
    result = Compared([], [], [])
    for key, (sequence, message) in ours.items():
        if key not in theirs:
            continue
        there = Doubt(*key, *theirs[key])
        if there.sequence == sequence and there.id != message:
            result.different.append(there)
        elif there.sequence > sequence and key[0].rpartition(".")[0] == station:
            result.beyond.append(there)
        elif there.sequence < sequence:
            result.unsure.append(there)
    return result


def fitting(seen: SeenSet, budget: int = SET_BYTES_MAX) -> SeenSet:
    """As much of a set as fits a frame, from the beginning of each partition. A part is always safe to tell:
    what it leaves out is sent once more, recognised and not stored.
    """
    parts = list(seen)
    if sum([_cost(key, len(found)) for key, found in parts]) <= budget:
        return seen
    each = max(1, (budget - sum([_cost(key, 0) for key, _ in parts])) // _INTERVAL_BYTES // len(parts))
    kept: dict[tuple[str, int], IntervalSet] = {}
    for key, found in parts:
        budget -= _cost(key, min(each, len(found)))
        if budget < 0:
            break
        kept[key] = IntervalSet(list(found)[:each])
    return SeenSet(kept)


def portions(seen: SeenSet, budget: int = SET_BYTES_MAX) -> Iterator[SeenSet]:
    """All of a set, in parts that fit a frame each."""
    portion, room = SeenSet(), budget
    for key, found in seen:
        room -= _cost(key, 0)
        for interval in found:
            room -= _INTERVAL_BYTES
            if room < 0 and len(portion):
                yield portion
                portion, room = SeenSet(), budget - _cost(key, 1)
            portion.add(*key, *interval)
    if len(portion):
        yield portion


def fitting_ends(ends: Ends, budget: int = SET_BYTES_MAX) -> frames.Ends:
    """As many ends as fit a frame, the first ones, as they are sent.

    Those whose id is none that a frame may name are left out: a log may hold longer ones.
    """
    result: frames.Ends = {}
    for (origin, partition), (sequence, message) in ends.items():
        if not 0 < len(message) <= frames.NAME_CHARS_MAX:
            continue
        budget -= _cost((origin, partition), 1) + len(msgspec.json.encode(message))
        if budget < 0:
            break
        result.setdefault(origin, {})[str(partition)] = (sequence, message)
    return result


def ends_from(said: frames.Ends) -> Ends:
    """The ends that were sent; ValueError if they are none."""
    result: dict[Key, tuple[int, str]] = {}
    for origin, partitions in said.items():
        for partition, end in partitions.items():
            if not (partition.isascii() and partition.isdecimal()):
                raise ValueError("a partition is a number")
            result[origin, int(partition)] = end
    return result


def _cost(key: tuple[str, int], intervals: int) -> int:
    """Bytes of JSON, at most."""
    return len(key[0]) + 20 + _INTERVAL_BYTES * intervals
