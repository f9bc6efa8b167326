"""From stored bytes to messages: decoded once per process, however many subscribe."""

from __future__ import annotations

import threading
import weakref
from collections import deque

import msgspec

from heliograph.disk import Disk
from heliograph.engine.port import Batch, Problem
from heliograph.errors import InvalidMessage
from heliograph.limits import SHARED_BATCHES
from heliograph.log.cursor import Chunk, Log, LogCursor, LogCut
from heliograph.message import Message, PayloadDecoder, decode_line, decode_lines


def to_batch(chunk: Chunk, partition: int, payload_decoder: PayloadDecoder | None) -> Batch:
    """Decode a chunk in one call; only if that fails line by line."""
    if chunk.numbered is None:
        messages = decode_lines(chunk.data, chunk.first, chunk.next, partition, payload_decoder)
        if messages is not None and not chunk.missing:
            return Batch(chunk.first, chunk.next, messages, [], chunk.append_us, chunk.place)
    return line_by_line(chunk, partition, payload_decoder)


def line_by_line(chunk: Chunk, partition: int, payload_decoder: PayloadDecoder | None) -> Batch:
    """Decode each line by itself, and say what is wrong with those that cannot be."""
    problems = [Problem(gap.first, gap.next, "missing", gap.reason, b"") for gap in chunk.missing]
    numbered = chunk.numbered
    if numbered is None:
        numbered = list(enumerate(chunk.data.split(b"\n")[:-1], chunk.first))
    messages: list[Message] = []
    for offset, line in numbered:
        if not line.strip(b" "):
            continue  # redacted or compacted away
        try:
            messages.append(decode_line(line, offset, partition, payload_decoder))
        except InvalidMessage as error:
            problems.append(Problem(offset, offset + 1, "mismatch", str(error), line))
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            problems.append(Problem(offset, offset + 1, "undecodable", str(error), line))
    problems.sort(key=lambda problem: problem.offset)
    _as_one(messages)
    return Batch(chunk.first, chunk.next, messages, problems, chunk.append_us, chunk.place)


def _as_one(messages: list[Message]) -> None:
    """What is rare about one of them is known of all, as if they had been decoded together."""
    expiring = any(message.lines.expiring for message in messages)
    addressed = any(message.lines.addressed for message in messages)
    if expiring or addressed:
        for message in messages:
            message.lines.expiring, message.lines.addressed = expiring, addressed


class SharedBatches:
    """The batches of one partition that its subscribers decode for each other.

    A batch stays as long as somebody works on it. Where several subscribe, the last ones stay a little longer:
    threads take turns every few milliseconds, so one is some batches ahead of the next. Where one subscribes,
    nothing stays: its next batch then reuses the same memory, which is still in the CPU's cache.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: weakref.WeakValueDictionary[int, Batch] = weakref.WeakValueDictionary()
        self._recent: deque[Batch] = deque(maxlen=SHARED_BATCHES)
        self._readers: weakref.WeakSet[Cursor] = weakref.WeakSet()

    def join(self, cursor: Cursor) -> None:
        """One more reads here."""
        self._readers.add(cursor)

    def leave(self, cursor: Cursor) -> None:
        """One less reads here."""
        self._readers.discard(cursor)
        if len(self._readers) < 2:
            self._recent.clear()

    def pull(self, cursor: LogCursor, partition: int, payload_decoder: PayloadDecoder | None) -> Batch | None:
        """The batch at the cursor, from another subscriber if possible."""
        batch = self._known.get(cursor.offset)
        if batch is None:
            with self._lock:  # decoding holds the interpreter anyway; waiting for it saves doing it twice
                batch = self._known.get(cursor.offset)
                if batch is None:
                    return self._read(cursor, partition, payload_decoder)
        cursor.skip(batch.next, batch.place)
        return batch

    def _read(self, cursor: LogCursor, partition: int, payload_decoder: PayloadDecoder | None) -> Batch | None:
        try:
            chunk = cursor.read()
        except LogCut:  # what others decoded of those offsets is not there any more
            self._known.clear()
            self._recent.clear()
            raise
        if chunk is None:
            self._recent.clear()  # at the end of the log: whoever is behind reads for itself
            return None
        batch = to_batch(chunk, partition, payload_decoder)
        if len(self._readers) > 1 and not batch.problems:
            self._known[batch.first] = batch
            self._recent.append(batch)
        return batch

    def clear(self) -> None:
        with self._lock:
            self._known.clear()
            self._recent.clear()


class Cursor:
    """Pulls batches of one partition. Belongs to one thread."""

    def __init__(
        self, log: Log, offset: int, disk: Disk, shared: SharedBatches, payloads: PayloadDecoder | None
    ) -> None:
        self._cursor = LogCursor(log, offset, disk)
        self._partition = log.place.number
        self._shared = shared
        self._payloads = payloads
        shared.join(self)

    @property
    def offset(self) -> int:
        """The next offset to be read."""
        return self._cursor.offset

    def pull(self) -> Batch | None:
        """What comes next, None when there is nothing new."""
        return self._shared.pull(self._cursor, self._partition, self._payloads)

    def seek(self, offset: int) -> None:
        """Continue somewhere else."""
        self._cursor.seek(offset)

    def close(self) -> None:
        """Free its files."""
        self._cursor.close()
        self._shared.leave(self)
