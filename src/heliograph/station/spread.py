"""Reading all partitions of a channel as one.

Until the end (``follow=False``) they are merged by event time: of the next messages of all partitions the one with
the smallest (time, partition, offset) comes first. Within a partition the order is always that of the offsets,
whatever the times say. While following, whatever comes first comes first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heapreplace
from typing import TYPE_CHECKING, Any

from heliograph.limits import WAIT_SLICE_S
from heliograph.station.reader import MessageRange
from heliograph.station.starts import Start, partitions_for, resolve

if TYPE_CHECKING:
    from datetime import datetime

    from heliograph.engine.files import FilesEngine
    from heliograph.filters import Sieve
    from heliograph.message import Gap, Message

OnGap = Callable[["Gap"], Any]


def open_range(
    engine: FilesEngine,
    channel: str,
    start: Start,
    end: Start | None,
    partition: int | None,
    *,
    follow: bool,
    on_gap: OnGap | None,
    sieve: Sieve | None = None,
) -> MessageRange | MergedRange | FollowedRange:
    """The messages from start to end, of one partition or of all."""
    numbers = partitions_for(engine, channel, partition, start, end)
    for number in numbers:
        engine.settle(channel, number)
    starts = {number: resolve(engine, channel, start, number) for number in numbers}
    if end is None and follow:
        if partition is None:
            return FollowedRange(engine, channel, starts, on_gap, sieve)
        return MessageRange(engine, channel, partition, starts[partition], None, on_gap, sieve)
    ranges = []
    for number, first in starts.items():
        last = engine.bounds(channel, number).next if end is None else resolve(engine, channel, end, number)
        ranges.append(MessageRange(engine, channel, number, first, last, on_gap, sieve))
    return ranges[0] if len(ranges) == 1 else MergedRange(ranges)


class MergedRange:
    """Ranges of several partitions in one order, fetched a batch at a time. Belongs to one thread at a time."""

    def __init__(self, ranges: list[MessageRange]) -> None:
        self._ranges = ranges
        self._waiting: dict[MessageRange, Iterator[Message]] = {}
        self._heads: list[tuple[datetime, int, int, Message, MessageRange]] = []
        self._empty = list(ranges)

    @property
    def done(self) -> bool:
        """Whether everything in the ranges was fetched."""
        return not self._heads and not self._empty

    def next(self, timeout_s: float) -> list[Message]:
        """Some more messages; none if the ranges hold no more."""
        for one in self._empty:
            self._refill(one, timeout_s)
        self._empty.clear()
        heapify(self._heads)
        messages: list[Message] = []
        heads = self._heads
        while heads and not self._empty:  # until some partition must be read again to know what comes next
            *_, message, source = heads[0]
            messages.append(message)
            following = next(self._waiting[source], None)
            if following is None:
                heappop(heads)
                self._empty.append(source)
            else:
                heapreplace(heads, _head(following, source))
        return messages

    def _refill(self, one: MessageRange, timeout_s: float) -> None:
        while not one.done:
            found = iter(one.next(timeout_s))
            message = next(found, None)
            if message is not None:
                self._waiting[one] = found
                self._heads.append(_head(message, one))
                return

    def close(self) -> None:
        """Free the files."""
        for one in self._ranges:
            one.close()

    def __iter__(self) -> Iterator[Message]:
        try:
            while not self.done:
                yield from self.next(WAIT_SLICE_S)
        finally:
            self.close()


def _head(message: Message, source: MessageRange) -> tuple[datetime, int, int, Message, MessageRange]:
    return message.time, message.partition, message.offset, message, source


class FollowedRange:
    """All partitions of a channel without an end, also those that are added. Belongs to one thread at a time."""

    done = False

    def __init__(
        self, engine: FilesEngine, channel: str, starts: dict[int, int], on_gap: OnGap | None, sieve: Sieve | None
    ) -> None:
        self._engine = engine
        self._channel = channel
        self._on_gap = on_gap
        self._sieve = sieve
        self._ranges = [self._open(number, first) for number, first in starts.items()]
        self._turn = 0

    def _open(self, number: int, first: int) -> MessageRange:
        return MessageRange(self._engine, self._channel, number, first, None, self._on_gap, self._sieve)

    def next(self, timeout_s: float) -> list[Message]:
        """Some more messages of one partition; none if nothing came within the time."""
        for number in range(len(self._ranges), self._engine.partition_count(self._channel)):
            self._ranges.append(self._open(number, 0))
        for _ in self._ranges:
            self._turn = (self._turn + 1) % len(self._ranges)
            messages = self._ranges[self._turn].next(0)
            if messages:
                return messages
        offsets = {number: one.offset for number, one in enumerate(self._ranges)}
        self._engine.wait_any(self._channel, offsets, timeout_s)
        return []

    def close(self) -> None:
        """Free the files."""
        for one in self._ranges:
            one.close()

    def __iter__(self) -> Iterator[Message]:
        try:
            while True:
                yield from self.next(WAIT_SLICE_S)
        finally:
            self.close()
