"""Reading several channels as one: the messages of all channels that a pattern matches."""

from __future__ import annotations

import contextlib
import heapq
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from itertools import islice
from typing import Final

from heliograph.engine.files import FilesEngine
from heliograph.errors import ConfigError, NotFound
from heliograph.filters import Sieve
from heliograph.limits import WAIT_SLICE_S
from heliograph.message import Message
from heliograph.patterns import Pattern, is_pattern
from heliograph.station.reader import MessageRange
from heliograph.station.spread import FollowedRange, MergedRange, OnGap, open_range
from heliograph.station.starts import Start, check_word

OneChannel = MessageRange | MergedRange | FollowedRange
OpenRange = Callable[[str, Start], OneChannel]
_PIECE: Final = 256
_LOOK_S: Final = 0.1
"""How often all channels are looked at while nothing comes. A subscription is told at once."""


def open_any(
    engine: FilesEngine,
    channel: str,
    start: Start,
    end: Start | None,
    partition: int | None,
    *,
    follow: bool,
    on_gap: OnGap | None,
    sieve: Sieve | None,
) -> AnyRange:
    """The messages from start to end, of a channel or of all that a pattern matches."""
    if not is_pattern(channel):
        return open_range(engine, channel, start, end, partition, follow=follow, on_gap=on_gap, sieve=sieve)
    pattern = Pattern(channel)
    if partition is not None:
        raise ConfigError(f"'{channel}' is a pattern, and a partition belongs to one channel: name it, or read all")
    for limit in (start,) if end is None else (start, end):
        check_word(limit, engine.clock, several=True)
    forever = follow and end is None

    def open_one(name: str, at: Start) -> OneChannel:
        return open_range(engine, name, at, end, None, follow=forever, on_gap=on_gap, sieve=sieve)

    if forever:
        return FollowedChannels(engine, pattern, start, open_one)
    ranges = []
    for name in filter(pattern.matches, engine.channel_names()):
        with contextlib.suppress(NotFound):  # deleted in this moment
            ranges.append(open_one(name, start))
    return MergedChannels(ranges)


class MergedChannels:
    """What is there now, in the order of time; belongs to one thread at a time."""

    def __init__(self, ranges: Sequence[OneChannel]) -> None:
        self._ranges = ranges
        self._messages: Iterator[Message] = heapq.merge(*ranges, key=_time)
        self.done = False

    def next(self, timeout_s: float) -> list[Message]:
        """Some more messages; none if there are no more."""
        del timeout_s  # nothing to wait for
        piece = list(islice(self._messages, _PIECE))
        self.done = len(piece) < _PIECE
        return piece

    def close(self) -> None:
        """Free its files."""
        for one in self._ranges:
            one.close()

    def __iter__(self) -> Iterator[Message]:
        try:
            yield from self._messages
        finally:
            self.close()


class FollowedChannels:
    """What is there and what comes, also in channels made later. Belongs to one thread at a time."""

    done = False

    def __init__(self, engine: FilesEngine, pattern: Pattern, start: Start, open_range: OpenRange) -> None:
        self._engine = engine
        self._pattern = pattern
        self._open_range = open_range
        self._ranges: dict[str, OneChannel] = {}
        self._look_at = 0.0
        self._find(start)

    def _find(self, start: Start) -> None:
        self._look_at = time.monotonic() + WAIT_SLICE_S
        there = [name for name in self._engine.channel_names() if self._pattern.matches(name)]
        for name in [name for name in self._ranges if name not in there]:
            self._ranges.pop(name).close()
        for name in there:
            if name not in self._ranges:
                with contextlib.suppress(NotFound):  # deleted in this moment
                    self._ranges[name] = self._open_range(name, start)

    def next(self, timeout_s: float) -> list[Message]:
        """Some more messages, in the order of time as far as they are at hand; none if nothing came within the time."""
        until = time.monotonic() + timeout_s
        while True:
            if time.monotonic() >= self._look_at:
                self._find("first")
            found: list[Message] = []
            for name, one in list(self._ranges.items()):
                try:
                    found += one.next(0.0)
                except NotFound:  # deleted; another one of its name may be there already
                    self._ranges.pop(name).close()
                    self._look_at = 0.0
            if found or time.monotonic() >= until:
                return sorted(found, key=_time)
            time.sleep(_LOOK_S)

    def close(self) -> None:
        """Free its files."""
        for one in self._ranges.values():
            one.close()

    def __iter__(self) -> Iterator[Message]:
        try:
            while True:
                yield from self.next(WAIT_SLICE_S)
        finally:
            self.close()


AnyRange = OneChannel | MergedChannels | FollowedChannels


def _time(message: Message) -> datetime:
    return message.time
