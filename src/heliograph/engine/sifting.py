"""From stored bytes to the messages a filter wants; the payloads of the others are never decoded."""

from __future__ import annotations

from itertools import compress

import msgspec

from heliograph.disk import Disk
from heliograph.engine.batches import Payloads, line_by_line, to_batch
from heliograph.engine.port import Batch
from heliograph.filters import Sieve
from heliograph.log.cursor import Chunk, Log, LogCursor
from heliograph.message import PayloadDecoder, decode_lines


def sift(chunk: Chunk, partition: int, payloads: PayloadDecoder | None, sieve: Sieve) -> Batch:
    """Decode what the filter wants of a chunk: in bulk, or line by line if any of it needs a closer look."""
    if chunk.numbered is None and not chunk.missing:
        try:
            rows = sieve.rows(chunk.data)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            rows = []
        if len(rows) == chunk.next - chunk.first:
            return _in_bulk(chunk, partition, payloads, sieve.wanted(rows), rows[-1].id)
    return _line_by_line(chunk, partition, payloads, sieve)


def _in_bulk(chunk: Chunk, partition: int, payloads: PayloadDecoder | None, wanted: list[bool], last_id: str) -> Batch:
    count = sum(wanted)
    if count == len(wanted):
        return to_batch(chunk, partition, payloads)
    offsets = compress(range(chunk.first, chunk.next), wanted)
    kept = dict(zip(offsets, compress(chunk.data.split(b"\n"), wanted), strict=True))
    if not kept:
        batch = Batch(chunk.first, chunk.next, [], [], chunk.append_us, chunk.place)
    else:
        joined = b"\n".join(kept.values()) + b"\n"
        messages = decode_lines(joined, chunk.first, chunk.next, partition, payloads, kept)
        if messages is not None:
            batch = Batch(chunk.first, chunk.next, messages, [], chunk.append_us, chunk.place)
        else:
            batch = line_by_line(chunk._replace(numbered=list(kept.items())), partition, payloads)
    batch.filtered, batch.last_id = len(wanted) - count, last_id
    return batch


def _line_by_line(chunk: Chunk, partition: int, payloads: PayloadDecoder | None, sieve: Sieve) -> Batch:
    numbered = chunk.numbered
    if numbered is None:
        numbered = list(enumerate(chunk.data.split(b"\n")[:-1], chunk.first))
    there = [(offset, line) for offset, line in numbered if line.strip(b" ")]
    kept = [(offset, line) for offset, line in there if _wanted(sieve, line)]
    batch = line_by_line(chunk._replace(numbered=kept), partition, payloads)
    batch.filtered = len(there) - len(kept)
    return batch


def _wanted(sieve: Sieve, line: bytes) -> bool:
    """What is no envelope is wanted: whoever reads is to know of it."""
    try:
        return sieve.wanted([sieve.row(line)])[0]
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return True


class SiftingCursor:
    """Pulls what a filter wants of one partition. Belongs to one thread."""

    def __init__(self, log: Log, offset: int, disk: Disk, payloads: Payloads, sieve: Sieve) -> None:
        self._cursor = LogCursor(log, offset, disk)
        self._partition = log.place.number
        self._payloads = payloads
        self._sieve = sieve

    @property
    def offset(self) -> int:
        """The next offset to be read."""
        return self._cursor.offset

    def pull(self) -> Batch | None:
        """What comes next, perhaps without a message in it; None when there is nothing new."""
        chunk = self._cursor.read()
        return None if chunk is None else sift(chunk, self._partition, self._payloads(), self._sieve)

    def seek(self, offset: int) -> None:
        """Continue somewhere else."""
        self._cursor.seek(offset)

    def close(self) -> None:
        """Free its files."""
        self._cursor.close()
