"""Archive and log as one table: a station's directory that reaches back to what retention took long ago."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql.datasource import InputPartition

from heliograph.engine.port import Bounds
from heliograph.spark import splits
from heliograph.spark.archive.covering import Archive
from heliograph.spark.archive.manifest import Range
from heliograph.spark.directory import Directory
from heliograph.spark.filters import Conditions
from heliograph.spark.options import ReadOptions
from heliograph.spark.splits import Ask, Split, Stretch


class WithArchive(Directory):
    """The channels of a station, with what is archived of them."""

    def __init__(self, path: str, root: str | None) -> None:
        super().__init__(path)
        self.archive = Archive(self.root, None if root is None else Path(root))

    def bounds(self, channel: str, partition: int) -> Bounds:
        """What of a partition can be read."""
        bounds = super().bounds(channel, partition)
        covered = self.archive.covered(self, channel, partition)
        return bounds if covered.first >= covered.next else Bounds(min(covered.first, bounds.first), bounds.next)

    def offset_at(self, channel: str, partition: int, moment_us: int) -> int:
        """The first offset that is not older than a moment."""
        found = self.archive.offset_at(self, channel, partition, moment_us)
        if found is not None:
            return found
        return max(
            super().offset_at(channel, partition, moment_us), self.archive.covered(self, channel, partition).next
        )


def whole(options: ReadOptions) -> Directory:
    """What the options ask for: the log alone, or with the archive."""
    if options.archive is None:
        return Directory(options.path)
    return WithArchive(options.path, options.archive or None)


def plan(directory: Directory, ask: Ask, conditions: Conditions, split_bytes: int) -> list[InputPartition]:
    """What tasks read for a stretch: files of the archive up to its position, the log from there on."""
    planned: list[InputPartition] = []
    if isinstance(directory, WithArchive):
        old, ask = _parted(directory, ask)
        files, holes = directory.archive.splits(directory, ask.channel, ask.partition, old, conditions)
        planned += files
        planned += [Split(ask.channel, ask.partition, ask.incarnation, (), hole) for hole in holes]
    if ask.stretch.first < ask.stretch.next:
        planned += splits.plan(directory, ask, conditions, split_bytes)
    return planned


def size_of(directory: Directory, ask: Ask) -> list[tuple[Stretch, int]]:
    """The pieces that a stretch consists of, and how many bytes each has, about."""
    pieces: list[tuple[Stretch, int]] = []
    if isinstance(directory, WithArchive):
        old, ask = _parted(directory, ask)
        archived = directory.archive.sizes(directory, ask.channel, ask.partition, old)
        pieces = [(Stretch(*piece), size) for piece, size in archived]
    return pieces + (splits.size_of(directory, ask) if ask.stretch.first < ask.stretch.next else [])


def _parted(directory: WithArchive, ask: Ask) -> tuple[Range, Ask]:
    """The part of a stretch that is archived, and the rest of it."""
    covered = directory.archive.covered(directory, ask.channel, ask.partition)
    border = min(max(ask.stretch.first, covered.next), ask.stretch.next)
    return Range(ask.stretch.first, border), ask._replace(stretch=Stretch(border, ask.stretch.next))
