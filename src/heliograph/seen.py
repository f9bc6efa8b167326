"""Which messages a log holds: per origin and its partition, the sequences already appended, as intervals.

Sequences are dense, so a log that heard everything of an origin needs one interval, however long it is. Nothing
here reads or writes anything: sets in, sets out.

As JSON a set of sequences is a list of half-open intervals, ``[[0, 40], [42, 43]]``; a seen-set is an object of
origins, each an object of partitions: ``{"host2.k3f9q2": {"0": [[0, 40]]}}``.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping
from math import inf
from typing import Final

_ADDED_MAX: Final = 256
"""So many intervals are added one by one, each of which moves what lies behind it; more are merged, in one walk."""
SEQUENCE_MAX: Final = 2**63 - 1
"""No interval ends beyond this, so that every number fits a signed word wherever it travels."""

Key = tuple[str, int]
"""An origin (``station.incarnation``) and one of its partitions."""


class IntervalSet:
    """A set of numbers, kept as sorted, disjoint, half-open intervals that do not touch.

    >>> seen = IntervalSet([(0, 3), (5, 6)])
    >>> seen.add(3, 5)
    >>> seen, 5 in seen, 6 in seen, seen.count
    (IntervalSet([(0, 6)]), True, False, 6)
    """

    __slots__ = ("_bounds",)

    def __init__(self, intervals: Iterable[tuple[int, int]] = ()) -> None:
        # first, next, first, next …, strictly increasing. Machine words: a set may be in many pieces.
        self._bounds = array("q")
        for first, following in intervals:
            self.add(first, following)

    def add(self, first: int, following: int) -> None:
        """Add ``first`` to ``following - 1``.

        Found by bisection; what comes at or behind the end, as nearly everything does, moves nothing.
        """
        if first >= following:
            return
        if first < 0 or following > SEQUENCE_MAX:
            raise ValueError(f"{first} to {following} is not a range of sequences")
        bounds = self._bounds
        if bounds and first == bounds[-1]:
            bounds[-1] = following
            return
        left, right = bisect_left(bounds, first), bisect_right(bounds, following)
        bounds[left:right] = array("q", [first] * (left % 2 == 0) + [following] * (right % 2 == 0))

    def remove(self, first: int, following: int) -> None:
        """Take ``first`` to ``following - 1`` out, as far as they are in."""
        if first >= following:
            return
        bounds = self._bounds
        left, right = bisect_left(bounds, first), bisect_right(bounds, following)
        bounds[left:right] = array("q", [first] * (left % 2) + [following] * (right % 2))

    def update(self, other: IntervalSet) -> None:
        """Add everything of another set."""
        if len(other) > _ADDED_MAX and other._bounds[0] <= self.end:
            self._bounds = self.union(other)._bounds
            return
        for first, following in other:
            self.add(first, following)

    def __contains__(self, number: int) -> bool:
        return bisect_right(self._bounds, number) % 2 == 1

    def gaps(self, first: int, following: int) -> IntervalSet:
        """What is not in, of ``first`` to ``following - 1``.

        >>> IntervalSet([(0, 3), (4, 9)]).gaps(0, 12)
        IntervalSet([(3, 4), (9, 12)])
        """
        return IntervalSet([(first, following)]).difference(self) if first < following else IntervalSet()

    def difference(self, other: IntervalSet) -> IntervalSet:
        """What is in this set and not in the other. Of a large other one only a part is looked at, if that will do."""
        if not self._bounds:
            return IntervalSet()
        return self._merged(other.between(self._bounds[0], self.end), lambda here, there: here and not there)

    def between(self, first: int, following: int) -> IntervalSet:
        """What is in, of ``first`` to ``following - 1``; found by bisection.

        >>> IntervalSet([(0, 3), (4, 9), (12, 15)]).between(2, 13)
        IntervalSet([(2, 3), (4, 9), (12, 13)])
        """
        bounds, result = self._bounds, IntervalSet()
        if first >= following:
            return result
        left, right = bisect_right(bounds, first), bisect_left(bounds, following)
        result._bounds = array("q", [first] * (left % 2)) + bounds[left:right] + array("q", [following] * (right % 2))
        return result

    def union(self, other: IntervalSet) -> IntervalSet:
        """What is in either."""
        return self._merged(other, lambda here, there: here or there)

    def _merged(self, other: IntervalSet, wanted: Callable[[bool, bool], bool]) -> IntervalSet:
        """One walk along the bounds of both: whether a number is in changes only there."""
        ours, theirs = self._bounds, other._bounds
        at = beside = 0
        inside = False
        merged = array("q")
        while at < len(ours) or beside < len(theirs):
            bound = min(
                ours[at] if at < len(ours) else SEQUENCE_MAX, theirs[beside] if beside < len(theirs) else SEQUENCE_MAX
            )
            at += at < len(ours) and ours[at] == bound
            beside += beside < len(theirs) and theirs[beside] == bound
            if wanted(at % 2 == 1, beside % 2 == 1) is not inside:
                merged.append(bound)
                inside = not inside
        result = IntervalSet()
        result._bounds = merged
        return result

    @property
    def count(self) -> int:
        """How many numbers are in."""
        return sum(self._bounds[1::2]) - sum(self._bounds[::2])

    @property
    def end(self) -> int:
        """One more than the largest number; 0 of an empty set."""
        return self._bounds[-1] if self._bounds else 0

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """The intervals, in order."""
        return iter(list(zip(self._bounds[::2], self._bounds[1::2], strict=True)))

    def __len__(self) -> int:
        """How many intervals there are."""
        return len(self._bounds) // 2

    def __eq__(self, other: object) -> bool:
        return isinstance(other, IntervalSet) and self._bounds == other._bounds

    __hash__ = None  # type: ignore[assignment]  # it changes

    def __repr__(self) -> str:
        return f"IntervalSet({list(self)})"

    def copy(self) -> IntervalSet:
        """Another set of the same numbers."""
        result = IntervalSet()
        result._bounds = self._bounds[:]
        return result

    def to_json(self) -> list[list[int]]:
        """What to write down: a list of pairs."""
        return [[first, following] for first, following in self]

    @classmethod
    def from_json(cls, value: object) -> IntervalSet:
        """The set that ``to_json`` told; ValueError if it is no such thing. In order, so that reading is linear."""
        if not isinstance(value, list):  # a wrong document, not a wrong argument
            raise ValueError("a set of sequences is a list of intervals")  # noqa: TRY004
        result = cls()
        bounds = result._bounds
        last = -1
        for interval in value:
            if not isinstance(interval, list) or len(interval) != 2 or not all(type(end) is int for end in interval):
                raise ValueError("an interval is a list of two numbers")
            if not last < interval[0] < interval[1] <= SEQUENCE_MAX:
                raise ValueError("intervals are disjoint, apart and in order")
            bounds.extend(interval)
            last = interval[1]
        return result


class SeenSet:
    """Sets of sequences by origin and origin's partition. Empty ones are as good as not there.

    >>> here, there = SeenSet(), SeenSet()
    >>> here.add("host1.k3f9q2", 0, 0, 10); there.add("host1.k3f9q2", 0, 0, 7)
    >>> here.difference(there).to_json()
    {'host1.k3f9q2': {'0': [[7, 10]]}}
    """

    __slots__ = ("_sets",)

    def __init__(self, sets: Mapping[Key, IntervalSet] | None = None) -> None:
        self._sets: dict[Key, IntervalSet] = {key: found.copy() for key, found in (sets or {}).items() if found}

    def add(self, origin: str, partition: int, first: int, following: int) -> None:
        """Add the sequences ``first`` to ``following - 1`` of one of an origin's partitions."""
        self.of(origin, partition).add(first, following)

    def remove(self, origin: str, partition: int, first: int, following: int) -> None:
        """Take them out, as far as they are in."""
        self.of(origin, partition).remove(first, following)

    def of(self, origin: str, partition: int) -> IntervalSet:
        """The set of one of an origin's partitions, to look at or to add to."""
        found = self._sets.get((origin, partition))
        if found is None:
            found = self._sets[origin, partition] = IntervalSet()
        return found

    def has(self, origin: str, partition: int, sequence: int) -> bool:
        """Whether one message was seen."""
        found = self._sets.get((origin, partition))
        return found is not None and sequence in found

    def keys(self) -> Iterable[Key]:
        """Origins and their partitions, in no order."""
        return self._sets.keys()

    def __contains__(self, key: Key) -> bool:
        return key in self._sets

    def end(self, origin: str, partition: int) -> int:
        """One more than the highest sequence that was seen; 0 if none was."""
        found = self._sets.get((origin, partition))
        return 0 if found is None else found.end

    def gaps(self, origin: str, partition: int, first: int, following: int) -> IntervalSet:
        """What was not seen, of the sequences ``first`` to ``following - 1``."""
        found = self._sets.get((origin, partition))
        if found is None or found.end <= first:  # as nearly everything that comes
            return IntervalSet([(first, following)])
        return found.gaps(first, following)

    def update(self, other: SeenSet) -> None:
        """Add everything of another seen-set."""
        for (origin, partition), found in other:
            self.of(origin, partition).update(found)

    def union(self, other: SeenSet) -> SeenSet:
        """What either has seen."""
        result = self.copy()
        result.update(other)
        return result

    def difference(self, other: SeenSet) -> SeenSet:
        """What this one has seen and the other has not: what to send there."""
        nothing = IntervalSet()
        return SeenSet({key: found.difference(other._sets.get(key, nothing)) for key, found in self})

    @property
    def count(self) -> int:
        """How many messages were seen."""
        return sum([found.count for found in self._sets.values()])

    def __iter__(self) -> Iterator[tuple[Key, IntervalSet]]:
        """Origins, partitions and their sets, in order."""
        return iter([(key, self._sets[key]) for key in sorted(self._sets) if self._sets[key]])

    @property
    def pieces(self) -> int:
        """How many intervals there are, of all."""
        return sum([len(found) for found in self._sets.values()])

    def __len__(self) -> int:
        """How many partitions of origins there are."""
        return sum([1 for found in self._sets.values() if found])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SeenSet) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]  # it changes

    def __repr__(self) -> str:
        return f"SeenSet({dict(iter(self))})"

    def copy(self) -> SeenSet:
        """Another seen-set of the same messages."""
        return SeenSet(self._sets)

    def to_json(self) -> dict[str, dict[str, list[list[int]]]]:
        """What to write down, or to send."""
        result: dict[str, dict[str, list[list[int]]]] = {}
        for (origin, partition), found in self:
            result.setdefault(origin, {})[str(partition)] = found.to_json()
        return result

    @classmethod
    def from_json(cls, value: object, partitions_max: float = inf) -> SeenSet:
        """The seen-set that ``to_json`` told; ValueError if it is no such thing, or one of more partitions."""
        if not isinstance(value, dict):
            raise ValueError("a seen-set is an object of origins")  # noqa: TRY004
        result = cls()
        for origin, partitions in value.items():
            if not isinstance(origin, str) or not isinstance(partitions, dict):
                raise ValueError("an origin is an object of partitions")  # noqa: TRY004
            for partition, intervals in partitions.items():
                if not isinstance(partition, str) or not (partition.isascii() and partition.isdecimal()):
                    raise ValueError("a partition is a number")
                if int(partition) >= partitions_max:
                    raise ValueError(f"a channel has no partition {partition}")
                result._sets[origin, int(partition)] = IntervalSet.from_json(intervals)
        return result
