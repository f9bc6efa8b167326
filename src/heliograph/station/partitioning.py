"""Which partition a message goes to.

With a key: ``crc32(key as UTF-8) % partitions`` (the CRC-32 of zlib and gzip; librdkafka calls it the ``consistent``
partitioner), so that one key's messages stay in order. Without: one partition after the other, so that all get the
same share.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import count
from typing import Any, TypeAlias
from zlib import crc32

from heliograph.engine.files import FilesEngine
from heliograph.message import Draft

Places: TypeAlias = dict[int, Sequence[int]]
"""By partition, the indexes of the messages of a batch that go there."""


def partition_of(key: str, partitions: int) -> int:
    """The partition of a key.

    >>> [partition_of(key, 8) for key in ("cpu", "disk", "größe", "")]
    [6, 2, 1, 0]
    """
    return crc32(key.encode()) % partitions


class Partitioner:
    """Chooses partitions for the messages of one process."""

    def __init__(self, engine: FilesEngine) -> None:
        self._engine = engine
        self._turns: dict[str, count[int]] = {}

    def choose(self, channel: str, key: str | None) -> int:
        """Where a message goes now; the channel is made if that is allowed."""
        return self.among(self._engine.partition_count_or_new(channel), channel, key)

    def choose_many(self, channel: str, batch: list[Any], key: str | None) -> Places:
        """Where the messages of a batch go; the channel is made if that is allowed."""
        return self.many_among(self._engine.partition_count_or_new(channel), channel, batch, key)

    def many_among(self, partitions: int, channel: str, batch: list[Any], key: str | None) -> Places:
        """The indexes of a batch's messages by partition. One partition unless their keys differ."""
        if partitions == 1 or not any(isinstance(item, Draft) and item.key is not None for item in batch):
            return {self.among(partitions, channel, key): range(len(batch))}
        keyless = self.among(partitions, channel, key)
        found: dict[int, list[int]] = {}
        for at, item in enumerate(batch):
            own = item.key if isinstance(item, Draft) else None
            found.setdefault(keyless if own is None else partition_of(own, partitions), []).append(at)
        return dict(found)

    def among(self, partitions: int, channel: str, key: str | None) -> int:
        """Which of so many partitions."""
        if partitions == 1:
            return 0
        if key is not None:
            return partition_of(key, partitions)
        turns = self._turns.get(channel)
        if turns is None:  # processes that all begin with the first would favour it
            turns = self._turns.setdefault(channel, count(random.randrange(partitions)))
        return next(turns) % partitions
