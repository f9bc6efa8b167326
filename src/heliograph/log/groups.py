"""What is appended together, and what a sync of it covers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from heliograph.errors import HeliographError
from heliograph.log.lines import stamp, stamp_batch

Guard = Callable[[], HeliographError | None]
"""Asked under the lock, right before the write: None, or why a group must not be written after all."""


class Group:
    """Bodies that get consecutive offsets; an atomic one survives a crash whole or not at all."""

    __slots__ = (
        "atomic", "bodies", "count", "crcs", "first", "guard", "max_us", "meanwhile", "min_us", "now_us", "passing",
        "refused",
    )  # fmt: skip

    def __init__(self, bodies: Sequence[bytes], crcs: Sequence[int], now_us: int, *, atomic: bool = False) -> None:
        self.bodies = bodies
        self.crcs = crcs
        self.count = len(bodies)
        self.now_us = self.min_us = self.max_us = now_us  # event times differ only where the publisher set them
        self.atomic = atomic
        self.first = -1
        self.guard: Guard | None = None
        self.refused: HeliographError | None = None
        self.passing = False  # much, and more to come: not kept in memory when it is synced, if it is written alone
        self.meanwhile: Callable[[], None] | None = None  # done while the disk is busy, if it is written alone

    def lines(self, place: bytes, first: int) -> bytes:
        """What is written: under the lock, where the place of the first is known."""
        finish = stamp_batch if self.atomic else stamp
        return finish(self.bodies, self.crcs, place, first)


class Relay(Group):
    """Finished lines that came from elsewhere: stored byte for byte, each ended by a newline."""

    __slots__ = ("data",)

    def __init__(self, data: bytes, count: int, min_us: int, max_us: int, now_us: int) -> None:
        super().__init__((), (), now_us)
        self.data = data
        self.count = count
        self.min_us, self.max_us = min_us, max_us

    def lines(self, place: bytes, first: int) -> bytes:  # noqa: ARG002 - they were given theirs at their origin
        """What is written."""
        return self.data


class Mark(NamedTuple):
    """What a sync that begins now will cover."""

    base: int
    written: int
    next: int
    crc: int
