"""When a message is due and when it expires: what callers say, as moments. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Final

from heliograph.clock import to_us
from heliograph.errors import InvalidMessage
from heliograph.expiry import NAME, Expiry
from heliograph.limits import SCHEDULE_AHEAD_DAYS_MAX

Span = timedelta | float
"""A duration: a timedelta, or seconds."""

_LONGEST: Final = timedelta(days=SCHEDULE_AHEAD_DAYS_MAX)
_US: Final = timedelta(microseconds=1)


def span(what: str, value: object) -> timedelta:
    """A duration that somebody gave.

    >>> span("delay", 1.5)
    datetime.timedelta(seconds=1, microseconds=500000)
    """
    if isinstance(value, timedelta):
        found = value
    elif isinstance(value, int | float) and not isinstance(value, bool):
        try:
            found = timedelta(seconds=value)
        except (OverflowError, ValueError):
            raise InvalidMessage(f"{what}={value!r} is no duration of at most ten years") from None
    else:
        raise InvalidMessage(f"{what} must be seconds or a timedelta, not {type(value).__name__}")
    if found > _LONGEST:
        raise InvalidMessage(f"{what} is {found}, more than ten years; seconds are meant, not milliseconds")
    return found


def due_us(now_us: int, deliver_at: object, delay: object) -> int:
    """When a message is due, in µs since the epoch. A moment that has passed means now; without a zone it is UTC."""
    if deliver_at is not None and delay is not None:
        raise InvalidMessage("give deliver_at or delay, not both")
    if delay is not None:
        wait = span("delay", delay)
        if wait < timedelta():
            raise InvalidMessage(f"delay is {wait.total_seconds():g} s; it must not be negative")
        return now_us + wait // _US
    if not isinstance(deliver_at, datetime):
        raise InvalidMessage(f"deliver_at must be a datetime, not {type(deliver_at).__name__}")
    moment_us = to_us(deliver_at)
    if moment_us > now_us + _LONGEST // _US:
        raise InvalidMessage(f"deliver_at is {deliver_at.isoformat()}, more than ten years from now")
    return max(moment_us, 0)


def ttl_of(value: object) -> timedelta | None:
    """How long a message is worth delivering; None for ever."""
    if value is None:
        return None
    found = span("ttl", value)
    if found <= timedelta():
        raise InvalidMessage(f"ttl is {found.total_seconds():g} s; a message must live for some time")
    return found


def with_expiry(headers: Mapping[str, Any] | None, ttl: timedelta | None, since_us: int) -> Mapping[str, Any] | None:
    """The headers of a message that expires when its time to live is over."""
    if ttl is None:
        return headers
    return {**(headers or {}), NAME: Expiry.after(since_us, ttl)}
