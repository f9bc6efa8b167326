"""Dead letters that are there already: asked by whoever may have written one before it died."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from heliograph.clock import from_us
from heliograph.delivery.deadletter import DeadLetterIdentity, identity_of

if TYPE_CHECKING:
    from heliograph.station.station import Station


def recent_letters(station: Station, channel: str, since_us: int) -> Iterator[DeadLetterIdentity]:
    """The letters in a channel of dead letters since a moment, also one whose writer died before its sync."""
    for number in range(station.engine.partition_count(channel)):
        station.engine.barrier(channel, number)
    for message in station.read(channel, start=from_us(since_us)):
        identity = identity_of(message.data)
        if identity is not None:
            yield identity
