"""Which task reads what: stretches of partitions, cut where the index has an entry, of about the same size.

A split is told in offsets, and whoever reads it finds their places by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from pyspark.sql.datasource import InputPartition

from heliograph.limits import SPARK_TASKS_MIN
from heliograph.log.cursor import Missing
from heliograph.log.pieces import Piece, Wish
from heliograph.spark.filters import Conditions
from heliograph.spark.store import Cutting, Store


class Stretch(NamedTuple):
    """Offsets from ``first`` to ``next - 1``."""

    first: int
    next: int


class Split(InputPartition):
    """What one task reads: stretches of one partition, in order."""

    def __init__(
        self,
        channel: str,
        partition: int,
        incarnation: str,
        stretches: tuple[Stretch, ...],
        told: Missing | None = None,
        size: int = 0,
    ) -> None:
        super().__init__((channel, partition, incarnation, stretches))
        self.channel = channel
        self.partition = partition
        self.incarnation = incarnation
        self.stretches = stretches
        self.told = told  # what is known to be missing before anything is read
        self.size = size  # how many bytes it has, about


class Shared(InputPartition):
    """What one task reads, if there are very many splits: several of them, one after the other."""

    def __init__(self, splits: tuple[Split, ...]) -> None:
        super().__init__(tuple(split.value for split in splits))
        self.splits = splits


class Ask(NamedTuple):
    """A stretch of a partition that somebody wants."""

    channel: str
    partition: int
    incarnation: str
    stretch: Stretch

    def cutting(self, size: int, most: int | None = None) -> Cutting:
        """The same, for whoever cuts it into pieces."""
        return Cutting(self.channel, self.partition, Wish(*self.stretch, size, None, most))


def plan(store: Store, asks: Sequence[Ask], conditions: Conditions, split_bytes: int) -> list[Split]:
    """The splits for some stretches, without what cannot fulfil the conditions."""
    low, high = conditions.time_us
    times_us = None if conditions.any_time else (low, high)
    wanted: list[Ask] = []
    for ask in asks:
        first = max(ask.stretch.first, conditions.offset.low)
        following = min(ask.stretch.next, conditions.offset.high + 1)
        if first < following and conditions.allow(ask.channel, ask.partition):
            wanted.append(ask._replace(stretch=Stretch(first, following)))
    cuttings = [ask.cutting(split_bytes) for ask in wanted]
    found = store.cut([one._replace(wish=one.wish._replace(times_us=times_us)) for one in cuttings])
    return [split for ask, pieces in zip(wanted, found, strict=True) for split in _splits(ask, pieces, split_bytes)]


def _splits(ask: Ask, pieces: Sequence[Piece], split_bytes: int) -> list[Split]:
    """Pieces together until they are enough for a task."""
    splits: list[Split] = []
    stretches: list[Stretch] = []
    size = 0

    def finish() -> None:
        nonlocal size
        if stretches:
            splits.append(Split(ask.channel, ask.partition, ask.incarnation, tuple(stretches), None, size))
        stretches.clear()
        size = 0

    for piece in pieces:
        if stretches and stretches[-1].next == piece.first:
            stretches[-1] = Stretch(stretches[-1].first, piece.next)
        else:
            stretches.append(Stretch(piece.first, piece.next))
        size += piece.bytes
        if size >= split_bytes:
            finish()
    finish()
    return splits


def shared(splits: Sequence[InputPartition], split_bytes: int) -> list[InputPartition]:
    """The same in fewer tasks, if there are very many: those of thousands of channels with a few messages each."""
    each = -(-len(splits) // SPARK_TASKS_MIN)
    found: list[InputPartition] = []
    small: list[Split] = []

    def finish() -> None:
        found.extend(small if len(small) < 2 else [Shared(tuple(small))])
        small.clear()

    for split in splits:
        if not isinstance(split, Split) or each < 2:  # a file of the archive is a task of its own
            found.append(split)
            continue
        if len(small) == each or sum(one.size for one in small) + split.size > split_bytes:
            finish()
        small.append(split)
    finish()
    return found


def sizes(store: Store, asks: Sequence[Ask]) -> list[int]:
    """How many bytes some stretches have, about."""
    return [sum(piece.bytes for piece in pieces) for pieces in store.cut([ask.cutting(_EVERYTHING) for ask in asks])]


def ends(store: Store, asks: Sequence[Ask], shares: Sequence[int]) -> list[int]:
    """Up to which offset each has about so many bytes: whole pieces of the index, one at least."""
    asked = [ask.cutting(max(1, share), 1) for ask, share in zip(asks, shares, strict=True)]
    return [pieces[0].next if pieces else ask.stretch.first for ask, pieces in zip(asks, store.cut(asked), strict=True)]


_EVERYTHING = 1 << 62
