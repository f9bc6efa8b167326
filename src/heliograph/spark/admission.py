"""How much of what is there a micro-batch takes: each partition its share of what may be read at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from heliograph.spark.archive.together import ends as ends_of
from heliograph.spark.archive.together import sizes
from heliograph.spark.splits import Ask
from heliograph.spark.store import Store


class Allowance(NamedTuple):
    """The most that a micro-batch may take; None is no bound."""

    messages: int | None = None
    bytes: int | None = None


def admitted(store: Store, asks: list[Ask], allowance: Allowance) -> list[int]:
    """Up to which offset each of the stretches is taken. Something is always taken, or a stream would stand still."""
    ends = [ask.stretch.next for ask in asks]
    if allowance.bytes is not None:
        ends = _by_bytes(store, asks, allowance.bytes)
    if allowance.messages is not None:
        counts = {at: end - asks[at].stretch.first for at, end in enumerate(ends)}
        taken = shares(counts, allowance.messages)
        ends = [ask.stretch.first + taken[at] for at, ask in enumerate(asks)]
    return ends


def shares(counts: Mapping[int, int], most: int) -> dict[int, int]:
    """What each gets of ``most``, in proportion to what it has.

    >>> shares({0: 10, 1: 90, 2: 0}, 10), shares({0: 5, 1: 5}, 100), shares({0: 1000, 1: 1}, 1)
    ({0: 1, 1: 9, 2: 0}, {0: 5, 1: 5}, {0: 1, 1: 0})
    """
    total = sum(counts.values())
    if total <= most:
        return dict(counts)
    taken = {one: count * most // total for one, count in counts.items()}
    left = most - sum(taken.values())
    for one in sorted(counts, key=lambda one: -(counts[one] * most % total)):
        if left and taken[one] < counts[one]:
            taken[one] += 1
            left -= 1
    return taken


def _by_bytes(store: Store, asks: list[Ask], most: int) -> list[int]:
    """Whole pieces of the index, the last of which may be more than was left."""
    taken = shares(dict(enumerate(sizes(store, asks))), most)
    return ends_of(store, asks, list(taken.values()))
