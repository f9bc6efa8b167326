"""What a task does: reads its split and yields record batches, with no lock and without a trace.

Every chunk is checked against the checksums of the log, whatever is asked for: that takes a hundredth of the time of
decoding it.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from heliograph.disk import SYSTEM_DISK, Disk
from heliograph.errors import Incomplete, NotFound
from heliograph.limits import SPARK_PIECE_BYTES
from heliograph.log.cursor import Chunk, LogCursor, LogCut, Missing
from heliograph.spark.appends import appends
from heliograph.spark.columns import Wanted
from heliograph.spark.directory import Directory
from heliograph.spark.memory import keep_freed_memory
from heliograph.spark.rows import Piece, Place, to_batch
from heliograph.spark.splits import Split, Stretch

logger = logging.getLogger("heliograph.spark")
_ENDED = "the log ends before it"
_ANOTHER = "the channel was deleted, or lives anew"


class Task:
    """Reads one split."""

    def __init__(self, path: str, wanted: Wanted, *, fail_on_gap: bool, disk: Disk = SYSTEM_DISK) -> None:
        self._path = path
        self._wanted = wanted
        self._fail_on_gap = fail_on_gap
        self._disk = disk

    def read(self, split: Split) -> Iterator[pa.RecordBatch]:
        """The messages of a split."""
        keep_freed_memory()
        place = Place(split.channel, split.partition)
        if split.told is not None:
            yield from self._missing(place, [split.told])
            return
        with Directory(self._path, self._disk) as directory:
            if not _lives(directory, split):
                yield from self._missing(place, [Missing(*one, _ANOTHER) for one in split.stretches])
                return
            wanted = self._wanted
            if "appended" in wanted.names:
                wanted = wanted._replace(appends=appends(directory, split))
            for stretch in split.stretches:
                for piece in _pieces(directory, place, stretch):
                    if isinstance(piece, Missing):
                        yield from self._missing(place, [piece])
                        continue
                    batch, malformed = to_batch(piece, place, wanted)
                    if batch.num_rows:
                        yield batch
                    if malformed:
                        gaps = [Missing(one.offset, one.offset + 1, one.reason) for one in malformed]
                        yield from self._missing(place, gaps)
            if not _lives(directory, split):  # what was read may have been another's: a task that is tried again knows
                raise Incomplete(f"channel '{split.channel}' was deleted, or got a new life, while it was read")

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


def _lives(directory: Directory, split: Split) -> bool:
    file = directory.find(split.channel)
    return file is not None and file.incarnation == split.incarnation


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
                yield Missing(cursor.offset, stretch.next, _ENDED)
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
    while len(text) > 2 * SPARK_PIECE_BYTES:  # a large atomic batch is one chunk
        end = text.find(b"\n", SPARK_PIECE_BYTES) + 1
        yield Piece(first, text[:end])
        first += text.count(b"\n", 0, end)
        text = text[end:]
    if text:
        yield Piece(first, text)


def _sorted_out(chunk: Chunk, stretch: Stretch) -> Iterator[Piece | Missing]:
    """A chunk with damage: the lines that are intact, and what is not."""
    lines = [(offset, line) for offset, line in chunk.numbered or () if offset < stretch.next]
    if lines:
        offsets = np.array([offset for offset, _ in lines], np.int64)
        yield Piece(chunk.first, b"".join([line + b"\n" for _, line in lines]), offsets)
    for gap in chunk.missing:
        if gap.first < stretch.next:
            yield gap._replace(next=min(gap.next, stretch.next))
