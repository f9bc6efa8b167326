"""What a partition asks of those who have it."""

from __future__ import annotations

from typing import Protocol

from heliograph.log import recovery
from heliograph.log.channel import Identity


class Owner(Protocol):
    """What a partition asks of its channel."""

    def identity(self) -> Identity: ...
    def lost(self, partition: int, report: recovery.Recovered) -> None: ...


class Sleeper(Protocol):
    """Whoever syncs what was written, later: asleep while nothing is, and to be woken by whoever is about to write."""

    asleep: bool

    def wake(self) -> None: ...
