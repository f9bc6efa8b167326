"""Where a durable subscription begins in each partition, written down before anything is delivered.

The position of partition 0 is written last: once it is there, the subscription has begun, and a partition without a
position is one that was added since. All of its messages are new, whatever ``start`` said.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from heliograph.engine.port import Position

if TYPE_CHECKING:
    from heliograph.clock import Clock
    from heliograph.delivery.ports import Engine


def establish(engine: Engine, channel: str, name: str, start: Callable[[int], int], count: int, clock: Clock) -> None:
    """Give every partition a position. The caller makes sure that nobody else does so at the same time."""
    begun = engine.load_position(channel, name, 0) is not None
    for partition in reversed(range(count)):
        if engine.load_position(channel, name, partition) is None:
            life = engine.incarnation(channel)  # before the bounds: within one life a log never becomes shorter
            offset = engine.bounds(channel, partition).first if begun else start(partition)
            awaits = offset > engine.bounds(channel, partition).next
            position = Position(life, offset, "", clock.time_ns() // 1000, awaits)
            engine.save_position(channel, name, partition, position)
