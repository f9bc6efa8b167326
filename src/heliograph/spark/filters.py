"""What of a ``where`` is known before a line is read: channels, partitions, offsets, and times through the index.

Spark applies every filter itself as well. What is found here only leaves out what cannot fit.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from heliograph.spark.offsets import time_us

_LAST = 2**62


class Between(NamedTuple):
    """Numbers from ``low`` to ``high``, both included."""

    low: int = 0
    high: int = _LAST

    def narrowed(self, filter_: Filter, value: int) -> Between:
        """What is left of it under one more condition."""
        low, high = self
        if isinstance(filter_, EqualTo | EqualNullSafe | GreaterThan | GreaterThanOrEqual):
            low = max(low, value + isinstance(filter_, GreaterThan))
        if isinstance(filter_, EqualTo | EqualNullSafe | LessThan | LessThanOrEqual):
            high = min(high, value - isinstance(filter_, LessThan))
        return Between(low, high)


class Conditions(NamedTuple):
    """What a line must fulfil at least."""

    channels: frozenset[str] | None = None
    partitions: frozenset[int] | None = None
    offset: Between = Between()
    time_us: Between = Between()

    @property
    def any_time(self) -> bool:
        """Whether every time will do."""
        return self.time_us == Between()

    def allow(self, channel: str, partition: int) -> bool:
        """Whether lines of a partition can fulfil them."""
        return (self.channels is None or channel in self.channels) and (
            self.partitions is None or partition in self.partitions
        )


def conditions(filters: Iterable[Filter]) -> Conditions:
    """What can be told from filters that all must hold.

    >>> conditions([EqualTo(("channel",), "alerts"), GreaterThan(("offset",), 41), LessThan(("id",), "x")])
    Conditions(channels=frozenset({'alerts'}), partitions=None, offset=Between(low=42, high=...
    """
    found = Conditions()
    for one in filters:
        attribute = getattr(one, "attribute", ())
        value = getattr(one, "value", None)
        if attribute == ("channel",):
            found = found._replace(channels=_narrowed(found.channels, one, value, str))
        elif attribute == ("partition",):
            found = found._replace(partitions=_narrowed(found.partitions, one, value, int))
        elif attribute == ("offset",) and isinstance(value, int):
            found = found._replace(offset=found.offset.narrowed(one, value))
        elif attribute == ("time",) and (moment := time_us(value)) is not None:
            found = found._replace(time_us=found.time_us.narrowed(one, moment))
    return found


def _narrowed(known: frozenset[Any] | None, filter_: Filter, value: Any, kind: type) -> frozenset[Any] | None:
    if isinstance(filter_, EqualTo | EqualNullSafe) and isinstance(value, kind):
        named = frozenset([value])
    elif isinstance(filter_, In) and all(isinstance(one, kind) for one in value):
        named = frozenset(value)
    else:
        return known
    return named if known is None else known & named
