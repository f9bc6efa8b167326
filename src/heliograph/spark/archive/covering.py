"""What of a channel is in the archive, and where: for whoever reads archive and log as one table (``includeArchive``).

The border is the archive's position in each partition: what is below comes from files, what is not from the log, so
there is neither overlap nor gap, whatever is archived or deleted meanwhile.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Final

from pyspark.sql.datasource import InputPartition

from heliograph.errors import ConfigError
from heliograph.log.cursor import Missing
from heliograph.message import RESERVED
from heliograph.spark.archive import manifest as manifests
from heliograph.spark.archive.manifest import DEFAULT, File, Life, Manifest, Range
from heliograph.spark.columns import ASKED, TYPES
from heliograph.spark.directory import Directory
from heliograph.spark.filters import Between, Conditions
from heliograph.station import archived

_SLACK_US: Final = 5_000_000


class FileSplit(InputPartition):
    """What one task reads of the archive: some messages of one file."""

    def __init__(self, root: str, channel: str, file: File, ranges: dict[int, Range]) -> None:
        super().__init__((channel, file.name))
        self.root = root
        self.channel = channel
        self.file = file
        self.ranges = ranges


class Archive:
    """What is archived of a station's channels, as it is now."""

    def __init__(self, station: Path, root: Path | None) -> None:
        self._station = station
        self._root = root
        self._known: dict[str, tuple[Manifest, int, Life | None]] = {}

    def root(self, channel: str) -> Path:
        """Where a channel is archived: there, or else where the archive pipeline put it."""
        if self._root is not None:
            return self._root
        found = archived.load(self._station, channel)
        own = self._station / DEFAULT
        if found is None or (not Path(found.archive).is_dir() and channel in manifests.channels(own)):
            return own  # the station's directory was moved, and its archive with it
        return Path(found.archive)

    def _of(self, directory: Directory, channel: str) -> tuple[Manifest, int, Life | None]:
        """The manifest of a channel, and the life in it that the log goes on with."""
        if channel not in self._known:
            root = self.root(channel)
            manifest = manifests.load(root, channel)
            file = directory.find(channel)
            if file is not None:
                manifests.check_there(root, manifest, archived.load(self._station, channel), file.incarnation)

            def id_at(partition: int, offset: int) -> str:
                return directory.id_at(channel, partition, offset)

            life = None if file is None else manifests.current(manifest, file.incarnation, id_at)
            self._known[channel] = (manifest, len(manifest.lives) - 1, life)
        return self._known[channel]

    def covered(self, directory: Directory, channel: str, partition: int) -> Range:
        """Which offsets of a partition are archived."""
        _, _, life = self._of(directory, channel)
        if life is None or partition not in life.reached:
            return Range(0, 0)
        return Range(life.firsts[partition], life.reached[partition].offset)

    def first(self, directory: Directory, channel: str, partition: int) -> int | None:
        """Where the archive of a partition begins, with anything in it yet or not; None if it was never archived."""
        _, _, life = self._of(directory, channel)
        return None if life is None else life.firsts.get(partition)

    def splits(
        self, directory: Directory, channel: str, partition: int, asked: Range, conditions: Conditions
    ) -> tuple[list[FileSplit], list[Missing]]:
        """Where messages between two offsets are, and which of them could not be archived."""
        manifest, number, _ = self._of(directory, channel)
        if not conditions.allow(channel, partition):
            return [], []
        low = max(asked.first, conditions.offset.low)
        high = min(asked.next, conditions.offset.high + 1)
        root = self.root(channel)
        found: list[FileSplit] = []
        for file in manifest.files:
            range = file.ranges.get(partition)
            if file.life != number or range is None or max(low, range.first) >= min(high, range.next):
                continue
            if _fits(file, conditions.time_us):
                found.append(FileSplit(str(root), channel, file, {partition: Range(low, high)}))
        holes = [
            Missing(max(low, hole.range.first), min(high, hole.range.next), hole.reason)
            for hole in manifest.holes
            if (hole.life, hole.partition) == (number, partition)
            and max(low, hole.range.first) < min(high, hole.range.next)
        ]
        return found, holes

    def sizes(self, directory: Directory, channel: str, partition: int, asked: Range) -> list[tuple[Range, int]]:
        """Pieces of a stretch in order, and how many bytes each has, about: cut where files begin."""
        found, _ = self.splits(directory, channel, partition, asked, Conditions())
        cuts = sorted({asked.first, asked.next, *(max(asked.first, one.file.ranges[partition].first) for one in found)})
        pieces = [Range(*pair) for pair in itertools.pairwise(cuts)]
        sizes = {piece.first: 0 for piece in pieces}
        for one in found:
            sizes[max(asked.first, one.file.ranges[partition].first)] += one.file.bytes
        return [(piece, sizes[piece.first]) for piece in pieces]

    def offset_at(self, directory: Directory, channel: str, partition: int, moment_us: int) -> int | None:
        """The first archived offset that is not older; None if all are."""
        import pyarrow as pa
        import pyarrow.compute as pc
        import pyarrow.parquet as pq

        covered = self.covered(directory, channel, partition)
        found, _ = self.splits(directory, channel, partition, covered, Conditions(time_us=Between(low=moment_us)))
        best: int | None = None
        for split in sorted(found, key=lambda one: one.file.ranges[partition].first):
            if best is not None and split.file.ranges[partition].first >= best:
                break
            rows = pq.read_table(path_of(split), columns=["partition", "offset", "time"])
            fits = pc.and_(
                pc.equal(rows["partition"], partition), pc.greater_equal(rows["time"].cast(pa.int64()), moment_us)
            )
            first = pc.min(rows.filter(fits)["offset"]).as_py()
            if first is not None:
                best = first if best is None else min(best, first)
        return best


def _fits(file: File, times: Between) -> bool:
    low, high = file.times_us
    return high >= times.low and low <= times.high + _SLACK_US


def path_of(split: FileSplit) -> Path:
    """Where its file is now."""
    return manifests.find_file(Path(split.root), split.channel, split.file)


def check_wanted(names: list[str]) -> None:
    """Refuse columns that the archive does not keep: they would be null without a word."""
    for name in names:
        if name == "raw" or (name in RESERVED and name not in TYPES and name not in ASKED):
            raise ConfigError(f"column '{name}' is not kept in the archive; read without it, or without includeArchive")
