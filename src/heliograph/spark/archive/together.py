"""Archive and log as one table: a station's directory that reaches back to what retention took long ago."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pyspark.sql.datasource import InputPartition

from heliograph.engine.port import Bounds
from heliograph.errors import NotFound
from heliograph.spark import splits
from heliograph.spark.archive.covering import Archive
from heliograph.spark.archive.manifest import Range
from heliograph.spark.directory import Directory
from heliograph.spark.filters import Conditions
from heliograph.spark.options import ReadOptions
from heliograph.spark.splits import Ask, Split, Stretch
from heliograph.spark.store import Store


class WithArchive(Directory):
    """The channels of a station, with what is archived of them."""

    def __init__(self, path: str, root: str | None) -> None:
        if root is not None and not Path(root).is_dir():
            raise NotFound(f"there is no archive {root}: includeArchive is true, for the station's own, or a directory")
        super().__init__(path)
        self.archive = Archive(self.root, None if root is None else Path(root))

    def bounds(self, channel: str, partition: int) -> Bounds:
        """What of a partition can be read."""
        bounds = super().bounds(channel, partition)
        # Deleted before anything was archived, but after the archive had begun: missing, not what nobody asked for.
        first = self.archive.first(self, channel, partition)
        return bounds if first is None else Bounds(min(first, bounds.first), bounds.next)

    def offset_at(self, channel: str, partition: int, moment_us: int) -> int:
        """The first offset that is not older than a moment."""
        found = self.archive.offset_at(self, channel, partition, moment_us)
        if found is not None:
            return found
        return max(
            super().offset_at(channel, partition, moment_us), self.archive.covered(self, channel, partition).next
        )


def whole(options: ReadOptions) -> Store:
    """What the options ask for: a hub, or a directory alone or with its archive."""
    if options.hub is not None:
        from heliograph.spark.hub import Hub

        return Hub(options.hub.inquire())
    if options.archive is None:
        return Directory(options.path)
    return WithArchive(options.path, options.archive or None)


def plan(store: Store, asks: Sequence[Ask], conditions: Conditions, split_bytes: int) -> list[InputPartition]:
    """What tasks read for some stretches: files of the archive up to its position, the log from there on."""
    planned: list[InputPartition] = []
    if isinstance(store, WithArchive):
        parted = [_parted(store, ask) for ask in asks]
        asks = [ask for before, _, rest in parted for ask in (before, rest)]
        for _, old, ask in parted:
            files, holes = store.archive.splits(store, ask.channel, ask.partition, old, conditions)
            planned += files
            planned += [Split(ask.channel, ask.partition, ask.incarnation, (), hole) for hole in holes]
    return planned + list[InputPartition](splits.plan(store, asks, conditions, split_bytes))


def sizes(store: Store, asks: Sequence[Ask]) -> list[int]:
    """How many bytes some stretches have, about."""
    if not isinstance(store, WithArchive):
        return splits.sizes(store, asks)
    parted = [_parted(store, ask) for ask in asks]
    return [
        sum(splits.sizes(store, [before, rest])) + sum(length for _, length in _archived(store, rest, old))
        for before, old, rest in parted
    ]


def ends(store: Store, asks: Sequence[Ask], shares: Sequence[int]) -> list[int]:
    """Up to which offset each has about so many bytes: whole files, or pieces of the index, one at least."""
    if not isinstance(store, WithArchive):
        return splits.ends(store, asks, shares)
    found: list[int] = []
    for ask, share in zip(asks, shares, strict=True):
        before, old, rest = _parted(store, ask)
        end, left = ask.stretch.first, share
        if before.stretch.first < before.stretch.next:
            (end,) = splits.ends(store, [before], [share])
            left -= sum(splits.sizes(store, [before]))
        if end < old.first:
            found.append(end)
            continue
        for piece, length in _archived(store, ask, old):
            if left <= 0 and end > ask.stretch.first:
                break
            end, left = piece.next, left - length
        if end == rest.stretch.first and (left > 0 or end == ask.stretch.first):
            (end,) = splits.ends(store, [rest], [left])
        found.append(end)
    return found


def _archived(store: WithArchive, ask: Ask, old: Range) -> list[tuple[Range, int]]:
    return store.archive.sizes(store, ask.channel, ask.partition, old)


def _parted(directory: WithArchive, ask: Ask) -> tuple[Ask, Range, Ask]:
    """A stretch in three: what the archive never had, what it has, and what it does not have yet.

    What came before its first message is the log's, which has it or tells that it is gone.
    """
    first, following = ask.stretch
    covered = directory.archive.covered(directory, ask.channel, ask.partition)
    begin = min(max(first, covered.first), following)
    border = min(max(begin, covered.next), following)
    before, rest = Stretch(first, begin), Stretch(border, following)
    return ask._replace(stretch=before), Range(begin, border), ask._replace(stretch=rest)
