"""How many partitions a channel has, asked before every message: remembered, and read again when it may have grown.

Growing moves the generation in the head of partition 0, a word of shared memory. Where this process does not have
that partition open, and in case of a head that cannot be trusted, channel.json is read again once a second.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

from heliograph.engine.partitions import OpenPartition, OpenPartitions
from heliograph.errors import StorageError
from heliograph.limits import WAIT_SLICE_S
from heliograph.log.head import DELETED


class _Known(NamedTuple):
    partitions: int
    entry: OpenPartition | None  # partition 0, as it was open then: a channel that is made anew has another
    generation: int | None
    until: float


class PartitionCounts:
    """The partition counts this process has asked for."""

    def __init__(self, opened: OpenPartitions, read: Callable[[str], int]) -> None:
        self._opened = opened
        self._read = read
        self._known: dict[str, _Known] = {}

    def count(self, channel: str) -> int:
        """The number as of now, or at most a second ago; NotFound if there is no such channel."""
        entry = self._opened.known.get((channel, 0))
        generation = _generation(entry)
        known = self._known.get(channel)
        same = known is not None and known.generation == generation is not None and known.entry is entry
        if known is not None and same and time.monotonic() < known.until:
            return known.partitions
        try:
            count = self._read(channel)  # after the generation: if it moves meanwhile, the next call reads again
        except StorageError:  # too many open files, say: what is open already can still be appended to
            if known is not None and entry is not None and (same or known.entry is None):
                return known.partitions
            raise
        except BaseException:
            self.forget(channel)
            raise
        self._known[channel] = _Known(count, entry, generation, time.monotonic() + WAIT_SLICE_S)
        return count

    def forget(self, channel: str) -> None:
        """Read it again next time."""
        self._known.pop(channel, None)


def _generation(entry: OpenPartition | None) -> int | None:
    """What moves when the channel grows; None if it was deleted, and may have been made anew with fewer."""
    head = None if entry is None else entry.log.head
    if head is None:
        return -1
    try:
        state = head.state()
    except ValueError:  # closed in this moment
        return -1
    return None if state & DELETED else state >> 8
