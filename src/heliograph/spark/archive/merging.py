"""Merging small files of the archive: those of a channel, a life and a date become as few as their size allows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from heliograph.spark.archive import manifest as manifests
from heliograph.spark.archive.manifest import File, Manifest, Range
from heliograph.spark.archive.writing import StagedFile, as_kept

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Merged(NamedTuple):
    """How many files there were, and are."""

    before: int
    after: int


def groups(files: Sequence[File], file_bytes: int) -> Iterator[list[File]]:
    """Which files become one: those of the same life and date that are small, at most ``file_bytes`` together.

    One that has half of that already stays as it is: it would be written again and again for the sake of a few rows.

    >>> def file(name, size): return File(
    ...     name=name, date="2026-11-16", life=0, rows=1, bytes=size, times_us=(0, 0), ranges={0: Range(0, 1)})
    >>> found = groups([file("a", 10), file("b", 20), file("c", 90), file("d", 5), file("e", 80)], 100)
    >>> [[one.name for one in group] for group in found]
    [['a', 'b', 'd']]
    """
    by_day: dict[tuple[int, str], list[File]] = {}
    for file in sorted(files, key=lambda one: (one.life, one.date, min(one.ranges.items()))):
        if file.bytes < file_bytes / 2:
            by_day.setdefault((file.life, file.date), []).append(file)
    for day in by_day.values():
        group: list[File] = []
        for file in day:
            if group and sum(one.bytes for one in group) + file.bytes > file_bytes:
                if len(group) > 1:
                    yield group
                group = []
            group.append(file)
        if len(group) > 1:
            yield group


def merge(spark: SparkSession, root: Path, channel: str, file_bytes: int) -> Merged:
    """Merge what is small of a channel. The caller holds the archive."""
    manifest = manifests.load(root, channel)
    wanted = list(groups(manifest.files, file_bytes))
    if not wanted:
        return Merged(len(manifest.files), len(manifest.files))
    rows = [(msgspec.json.encode(group).decode(),) for group in wanted]
    table = spark.createDataFrame(rows, "text STRING").repartition(len(rows), "text")
    told = table.mapInArrow(_Merging(str(root), channel), "text STRING").collect()
    made = [msgspec.json.decode(row["text"], type=File) for row in told]
    gone = {file.name for group in wanted for file in group}
    files = [file for file in manifest.files if file.name not in gone] + made
    new: Manifest = msgspec.structs.replace(manifest, files=files)
    manifests.save(root, new)
    manifests.settle(root, new)
    return Merged(len(manifest.files), len(files))


class _Merging:
    """For ``mapInArrow``: a row for each group, and one for the file that became of it."""

    def __init__(self, root: str, channel: str) -> None:
        self._root = root
        self._channel = channel

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            groups = [msgspec.json.decode(text, type=list[File]) for text in batch["text"].to_pylist()]
            made = [msgspec.json.encode(merged(Path(self._root), self._channel, group)).decode() for group in groups]
            yield pa.RecordBatch.from_pydict({"text": made}, pa.schema([("text", pa.string())]))


def merged(root: Path, channel: str, group: list[File]) -> File:
    """In a task: one file of several, in the order of their offsets."""
    first = group[0]
    partition, start = min((number, range.first) for number, range in first.ranges.items())
    staged = StagedFile(root, channel, partition, first.date, start)
    for file in group:
        with pq.ParquetFile(manifests.find_file(root, channel, file)) as source:
            for number in range(source.num_row_groups):
                staged.add(as_kept(source.read_row_group(number)))
    told = staged.finish()
    ranges: dict[int, Range] = {}
    for file in group:
        for number, one in file.ranges.items():
            known = ranges.get(number, one)
            ranges[number] = Range(min(known.first, one.first), max(known.next, one.next))
    return File(
        name=told["name"], date=first.date, life=first.life, rows=told["rows"], bytes=told["bytes"],
        times_us=(min(one.times_us[0] for one in group), max(one.times_us[1] for one in group)), ranges=ranges,
    )  # fmt: skip
