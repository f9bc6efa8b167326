"""What a task does: reads its split and yields record batches; of a directory with no lock and without a trace.

Every chunk is checked against the checksums of the log, whatever is asked for: that takes a hundredth of the time of
decoding it.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import NamedTuple, Protocol

import numpy as np
import pyarrow as pa

from heliograph.disk import SYSTEM_DISK, Disk
from heliograph.errors import Incomplete, NotFound
from heliograph.limits import SPARK_PIECE_BYTES
from heliograph.log.cursor import Chunk, LogCursor, LogCut, Missing
from heliograph.spark.appends import Appends, appends
from heliograph.spark.columns import Wanted
from heliograph.spark.directory import Directory
from heliograph.spark.memory import keep_freed_memory
from heliograph.spark.rows import Piece, Place, to_batch
from heliograph.spark.splits import Split, Stretch

logger = logging.getLogger("heliograph.spark")
ENDED = "the log ends before it"
_ANOTHER = "the channel was deleted, or lives anew"


class Lines(Protocol):
    """The lines of one split, wherever they are."""

    def lives(self) -> bool:
        """Whether the channel is the one that it was when the split was planned."""

    def pieces(self, stretch: Stretch) -> Iterator[Piece | Missing]:
        """The lines of a stretch in handy pieces, and what is missing between them, in order."""

    def appends(self) -> Appends | None:
        """When lines were appended, as far as that is known."""


class Source(Protocol):
    """Where tasks find their lines."""

    def open(self, split: Split) -> AbstractContextManager[Lines]:
        """Those of a split."""


class Task:
    """Reads one split."""

    def __init__(self, source: Source, wanted: Wanted, *, fail_on_gap: bool) -> None:
        self._source = source
        self._wanted = wanted
        self._fail_on_gap = fail_on_gap

    def read(self, split: Split) -> Iterator[pa.RecordBatch]:
        """The messages of a split."""
        keep_freed_memory()
        place = Place(split.channel, split.partition)
        if split.told is not None:
            yield from self._missing(place, [split.told])
            return
        with self._source.open(split) as lines:
            if not lines.lives():
                yield from self._missing(place, [Missing(*one, _ANOTHER) for one in split.stretches])
                return
            wanted = self._wanted
            if "appended" in wanted.names:
                wanted = wanted._replace(appends=lines.appends())
            for stretch in split.stretches:
                for piece in lines.pieces(stretch):
                    if isinstance(piece, Missing):
                        yield from self._missing(place, [piece])
                        continue
                    batch, malformed = to_batch(piece, place, wanted)
                    if batch.num_rows:
                        yield batch
                    if malformed:
                        gaps = [Missing(one.offset, one.offset + 1, one.reason) for one in malformed]
                        yield from self._missing(place, gaps)
            if not lines.lives():  # what was read may have been another's: a task that is tried again knows
                raise changed(split)

    def _missing(self, place: Place, gaps: list[Missing]) -> Iterator[pa.RecordBatch]:
        """An error, or rows that stand for what is not there."""
        if not gaps:
            return
        told = "; ".join(f"offsets {gap.first} to {gap.next - 1}: {gap.reason}" for gap in gaps[:3])
        told = f"channel '{place.channel}', partition {place.partition}, {told}"
        if len(gaps) > 3:
            told += f"; and {len(gaps) - 3} more"
        if self._fail_on_gap:
            raise Incomplete(
                f"{told}. With option failOnGap=false the rest is read, and column 'gap' tells what is missing."
            )
        logger.warning("left out: %s", told)
        schema = self._wanted.schema
        if "gap" in schema.names:
            rows = [
                {
                    "channel": place.channel, "partition": place.partition, "offset": gap.first,
                    "gap": {"next": gap.next, "reason": gap.reason},
                }
                for gap in gaps
            ]  # fmt: skip
            columns = [pa.array([row.get(field.name) for row in rows], field.type) for field in schema]
            yield pa.RecordBatch.from_arrays(columns, schema=schema)


def changed(split: Split) -> Incomplete:
    """What to raise in the middle of a task."""
    return Incomplete(f"channel '{split.channel}' was deleted, or got a new life, while it was read")


class Stored(NamedTuple):
    """The lines of a directory."""

    path: str
    disk: Disk = SYSTEM_DISK

    @contextlib.contextmanager
    def open(self, split: Split) -> Iterator[Lines]:
        """Those of a split."""
        with Directory(self.path, self.disk) as directory:
            yield _StoredLines(directory, split)


class _StoredLines(NamedTuple):
    """Those of one split."""

    directory: Directory
    split: Split

    def lives(self) -> bool:
        """Whether the channel is the one that it was when the split was planned."""
        file = self.directory.find(self.split.channel)
        return file is not None and file.incarnation == self.split.incarnation

    def pieces(self, stretch: Stretch) -> Iterator[Piece | Missing]:
        """The lines of a stretch."""
        return _pieces(self.directory, Place(self.split.channel, self.split.partition), stretch)

    def appends(self) -> Appends:
        """When lines were appended, as the index tells."""
        return appends(self.directory, self.split)


def _pieces(directory: Directory, place: Place, stretch: Stretch) -> Iterator[Piece | Missing]:
    """The lines of a stretch in handy pieces, and what is missing between them, in order."""
    cursor = LogCursor(directory.log(*place), stretch.first, directory.disk)
    parts: list[Chunk] = []
    size = 0
    with contextlib.closing(cursor):
        while cursor.offset < stretch.next:
            try:
                chunk = cursor.read()
            except (LogCut, NotFound):
                chunk = None
            if chunk is None:
                yield from _joined(parts, stretch)
                yield Missing(cursor.offset, stretch.next, ENDED)
                return
            if chunk.data and chunk.numbered is None and not chunk.missing:
                parts.append(chunk)
                size += len(chunk.data)
                if size < SPARK_PIECE_BYTES:
                    continue
                yield from _joined(parts, stretch)
            else:
                yield from _joined(parts, stretch)
                yield from _sorted_out(chunk, stretch)
            parts, size = [], 0
    yield from _joined(parts, stretch)


def _joined(parts: list[Chunk], stretch: Stretch) -> Iterator[Piece]:
    """Chunks behind each other as pieces of a handy size; what is beyond the stretch is left out."""
    if not parts:
        return
    text = parts[0].data if len(parts) == 1 else b"".join([part.data for part in parts])
    first, following = parts[0].first, parts[-1].next
    if following > stretch.next:
        newlines = np.flatnonzero(np.frombuffer(text, np.uint8) == ord("\n"))
        text = text[: newlines[stretch.next - first - 1] + 1]
    yield from handy(first, text)


def handy(first: int, text: bytes) -> Iterator[Piece]:
    """Lines behind each other, a large atomic batch for example, as pieces of a handy size."""
    at = 0
    while len(text) - at > 2 * SPARK_PIECE_BYTES:
        end = text.find(b"\n", at + SPARK_PIECE_BYTES) + 1
        yield Piece(first, text[at:end])
        first += text.count(b"\n", at, end)
        at = end
    if at < len(text):
        yield Piece(first, text[at:])


def _sorted_out(chunk: Chunk, stretch: Stretch) -> Iterator[Piece | Missing]:
    """A chunk with damage: the lines that are intact, and what is not."""
    lines = [(offset, line) for offset, line in chunk.numbered or () if offset < stretch.next]
    if lines:
        offsets = np.array([offset for offset, _ in lines], np.int64)
        yield Piece(chunk.first, b"".join([line + b"\n" for _, line in lines]), offsets)
    for gap in chunk.missing:
        if gap.first < stretch.next:
            yield gap._replace(next=min(gap.next, stretch.next))
