"""Time, so that tests can replace it.

The wall clock may step backwards; nothing that must be ordered relies on it. The monotonic clock is shared by
all processes of one boot, which the head file relies on.
"""

from __future__ import annotations

import os
import time
from datetime import UTC, datetime, timedelta

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Clock:
    """The system's clocks. Builtins are used as they are: a call costs one attribute lookup."""

    time_ns = staticmethod(time.time_ns)
    monotonic_ns = staticmethod(time.monotonic_ns)
    monotonic = staticmethod(time.monotonic)
    sleep = staticmethod(time.sleep)
    give_way = staticmethod(getattr(os, "sched_yield", int))  # let others run that have no core, where that can be said


SYSTEM_CLOCK = Clock()


def from_us(us: int) -> datetime:
    """A UTC datetime from microseconds since the epoch, exactly.

    >>> from_us(1_000_001).isoformat()
    '1970-01-01T00:00:01.000001+00:00'
    """
    return _EPOCH + timedelta(microseconds=us)


def to_us(moment: datetime) -> int:
    """Microseconds since the epoch, exactly; a naive datetime is taken as UTC.

    >>> to_us(from_us(1_700_000_000_123_456))
    1700000000123456
    """
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return (moment - _EPOCH) // timedelta(microseconds=1)
