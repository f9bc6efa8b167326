"""From stored bytes to messages: decoded once per process, however many subscribe."""

from __future__ import annotations

import _thread
import contextlib
import threading
import weakref
from collections import deque
from collections.abc import Callable

import msgspec

from heliograph.disk import Disk
from heliograph.engine.port import Batch, Problem
from heliograph.errors import InvalidMessage
from heliograph.limits import SHARED_BATCHES, SHARED_BATCHES_AT_END
from heliograph.log.cursor import Chunk, Log, LogCursor, LogCut
from heliograph.log.head import Head
from heliograph.message import Message, PayloadDecoder, decode_line, decode_lines

Payloads = Callable[[], PayloadDecoder | None]
"""How payloads are decoded at the moment: types may be registered while somebody reads."""


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
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
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


class _Decoding:
    """A batch that one subscriber decodes, and others wait for: that one, whatever is decoded after it."""

    __slots__ = ("batch", "done")

    def __init__(self) -> None:
        self.batch: Batch | None = None
        self.done = _thread.allocate_lock()
        self.done.acquire()

    def wait(self) -> Batch | None:
        """The batch; None if it cannot be shared, or there is none."""
        with self.done:
            return self.batch


class SharedBatches:
    """The batches of one partition that its subscribers decode for each other.

    A batch stays as long as somebody works on it. Where several subscribe, it also stays until the others have it,
    unless they are too far behind: threads take turns every few milliseconds, so one is many batches ahead of the
    next, which goes through what is decoded several times as fast and catches up. Where one subscribes, nothing
    stays: its next batch then reuses the same memory, which is still in the CPU's cache.
    """

    def __init__(self, head: Head | None = None) -> None:
        self._head = head
        self._generation = -1  # the head's, when something was decoded
        # Reentrant: the garbage collector may close a reader that was forgotten, in any step of any thread.
        self._lock = threading.RLock()
        self._decoding: dict[int, _Decoding] = {}
        self._known: weakref.WeakValueDictionary[int, Batch] = weakref.WeakValueDictionary()
        self._recent: deque[Batch] = deque()
        self._readers: tuple[weakref.ref[Cursor], ...] = ()  # never changed, only replaced
        self._life = 0  # another one whenever the log was changed under what was decoded, or a type registered

    def join(self, cursor: Cursor) -> None:
        """One more reads here."""
        with self._lock:
            self._readers = (*[one for one in self._readers if one() is not None], weakref.ref(cursor))

    def leave(self, cursor: Cursor) -> None:
        """One less reads here."""
        with self._lock:
            self._readers = tuple([one for one in self._readers if one() not in (None, cursor)])
            if len(self._readers) < 2:
                self._recent.clear()

    def pull(self, cursor: LogCursor, partition: int, payloads: Payloads) -> Batch | None:
        """The batch at the cursor, from another subscriber if possible."""
        if len(self._readers) == 1:
            return self._read(cursor, partition, payloads)
        self._look()
        offset = cursor.offset
        batch = self._known.get(offset)
        if batch is None:
            with self._lock:
                batch, other, own = self._known.get(offset), self._decoding.get(offset), None
                if batch is None and other is None:
                    own = self._decoding[offset] = _Decoding()
            if own is not None:
                return self._decode(own, cursor, partition, payloads)
            if batch is None and other is not None:
                batch = other.wait()  # decoding holds the interpreter anyway; waiting for it saves doing it twice
            if batch is None:
                return self._read(cursor, partition, payloads)
        cursor.skip(batch.next, batch.place)
        return batch

    def _look(self) -> None:
        """Forget everything if another process changed the log under it: what was redacted is given to nobody."""
        if self._head is None:
            return
        with contextlib.suppress(ValueError):  # closed for room
            generation = self._head.state() >> 8
            if generation != self._generation:
                self.clear()
                self._generation = generation

    def _decode(self, own: _Decoding, cursor: LogCursor, partition: int, payloads: Payloads) -> Batch | None:
        """Decode for all who want the same now."""
        offset, life = cursor.offset, self._life
        try:
            batch = self._read(cursor, partition, payloads)
            if batch is not None and not batch.problems and life == self._life:
                own.batch = batch
            return batch
        finally:
            with self._lock:
                if self._decoding.get(offset) is own:
                    del self._decoding[offset]
            own.done.release()

    def _read(self, cursor: LogCursor, partition: int, payloads: Payloads) -> Batch | None:
        life = self._life
        try:
            chunk = cursor.read()
        except LogCut:  # what others decoded of those offsets is not there any more
            self.clear()
            raise
        if chunk is None:
            with self._lock:  # at the end of the log: who is far behind reads for itself
                self._let_go(SHARED_BATCHES_AT_END)
            return None
        batch = to_batch(chunk, partition, payloads())
        if len(self._readers) == 1 and not self._recent:
            return batch
        with self._lock:
            if len(self._offsets()) < 2:
                self._recent.clear()
            elif not batch.problems and life == self._life:
                self._known[batch.first] = batch
                self._recent.append(batch)
                self._let_go(SHARED_BATCHES)
        return batch

    def _offsets(self) -> list[int]:
        """Where the readers are."""
        return [cursor.offset for one in self._readers if (cursor := one()) is not None]

    def _let_go(self, count_max: int) -> None:
        """Keep no more than so many batches, and none that every reader has who is not too far behind."""
        recent = self._recent
        while len(recent) > count_max:
            recent.popleft()
        if recent:
            oldest, newest = recent[0].first, recent[-1].next
            wanted = min([offset for offset in self._offsets() if offset >= oldest], default=newest)
            while recent and recent[0].next <= wanted:
                recent.popleft()

    def clear(self) -> None:
        """Forget everything, and what is being decoded just now."""
        with self._lock:
            self._life += 1
            self._decoding.clear()
            self._known.clear()
            self._recent.clear()


class Cursor:
    """Pulls batches of one partition. Belongs to one thread."""

    def __init__(self, log: Log, offset: int, disk: Disk, shared: SharedBatches, payloads: Payloads) -> None:
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
