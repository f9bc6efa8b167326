"""Reading without subscribing: an iterator over a range of a log."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from typing import Any

from heliograph.disk import explaining
from heliograph.engine.files import FilesEngine
from heliograph.engine.port import Batch
from heliograph.errors import Damaged, NotFound
from heliograph.filters import Sieve
from heliograph.limits import WAIT_SLICE_S
from heliograph.log.cursor import LogCut
from heliograph.message import Gap, Message, decode_line, id_time_us, is_text

logger = logging.getLogger("heliograph.read")
OnGap = Callable[[Gap], Any]


class MessageRange:
    """The messages of a range of offsets, fetched a batch at a time. Belongs to one thread at a time."""

    def __init__(
        self,
        engine: FilesEngine,
        channel: str,
        partition: int,
        first: int,
        last: int | None,
        on_gap: OnGap | None,
        sieve: Sieve | None = None,
    ) -> None:
        self._engine = engine
        self._channel = channel
        self._partition = partition
        self._last = last
        self._on_gap = on_gap
        self._cursor = engine.cursor(channel, partition, first, sieve)
        self._dry = False

    @property
    def offset(self) -> int:
        """The next offset to be fetched."""
        return self._cursor.offset

    @property
    def done(self) -> bool:
        """Whether everything in the range was fetched."""
        return self._last is not None and (self._dry or self._cursor.offset >= self._last)

    def next(self, timeout_s: float) -> list[Message]:
        """Some more messages; none if nothing came within the time, or the range holds no more."""
        try:
            with explaining(f"cannot read channel '{self._channel}'"):
                batch = self._cursor.pull()
        except LogCut as cut:
            self._tell(cut.offset, cut.before, str(cut))
            return []
        if batch is None:
            self._dry = True
            if self._last is None and timeout_s > 0:
                self._engine.wait(self._channel, self._partition, self._cursor.offset, timeout_s)
            return []
        messages = batch.messages
        if batch.problems:
            messages = self._with_problems(batch)
        if self._last is not None and batch.next > self._last:
            messages = [message for message in messages if message.offset < self._last]
        return messages

    def _with_problems(self, batch: Batch) -> list[Message]:
        """Payloads that do not fit their type come as plain data; what cannot be read at all is told."""
        messages = list(batch.messages)
        for problem in batch.problems:
            if problem.kind == "mismatch":
                messages.append(decode_line(problem.line, problem.offset, self._partition, None))
            elif self._last is None or problem.offset < self._last:  # a batch may reach beyond the range
                self._tell(problem.offset, problem.next, problem.reason)
        return sorted(messages, key=lambda message: message.offset)

    def _tell(self, first: int, after: int, reason: str) -> None:
        after = after if self._last is None else min(after, self._last)
        gap = Gap(self._channel, self._partition, first, after, reason)
        logger.warning("'%s' offsets %d to %d cannot be read: %s", gap.channel, gap.first, gap.next - 1, gap.reason)
        if self._on_gap is not None:
            self._on_gap(gap)

    def close(self) -> None:
        """Free its files."""
        self._cursor.close()

    def __iter__(self) -> Iterator[Message]:
        try:
            while not self.done:
                yield from self.next(WAIT_SLICE_S)
        finally:
            self.close()


def message_at(engine: FilesEngine, channel: str, partition: int, offset: int) -> Message | None:
    """One message by its place; None if there is none (any more)."""
    return next(iter(MessageRange(engine, channel, partition, offset, offset + 1, None)), None)


def find(engine: FilesEngine, message_id: str, channel: str | None = None) -> Iterator[Message]:
    """Messages by their id, one of each partition that has it, of one channel or of all.

    A UUIDv7 says when it was made: around that time first, then everywhere.
    """
    places = _places(engine, channel) if is_text(message_id) else []
    made_us = id_time_us(message_id)
    for moment_us in (made_us, None) if made_us is not None else (None,):
        found = False
        for name, number in places:
            message = None
            with _unless_gone(channel):
                offset = engine.find_id(name, number, message_id, moment_us)
                message = None if offset is None else message_at(engine, name, number, offset)
            if message is not None:
                found = True
                yield message
        if found:
            return


def _places(engine: FilesEngine, channel: str | None) -> list[tuple[str, int]]:
    places: list[tuple[str, int]] = []
    for name in engine.channel_names() if channel is None else [channel]:
        with _unless_gone(channel):
            for number in range(engine.describe(name).partitions):
                engine.settle(name, number)
                places.append((name, number))
    return places


def _unless_gone(channel: str | None) -> contextlib.AbstractContextManager[None]:
    """Of all channels those may go that are deleted meanwhile, as those of replies often are; not one that is named."""
    return LeavingOut() if channel is None else contextlib.nullcontext()


class LeavingOut(contextlib.AbstractContextManager[None]):
    """Where all there is is looked at, what was deleted meanwhile is left out; and, with a word, what is damaged."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if isinstance(error, Damaged):
            logger.error("%s", error)
        return isinstance(error, NotFound | FileNotFoundError | Damaged)
