"""Cron expressions: when a recurring schedule fires. Pure: moments in, moments out.

Expressions and summer time are CronSim's, which follows Debian's cron: an hour or minute that begins with ``*``
goes by elapsed time; a fixed time that a change of the clock skips fires right after the gap, one that comes
twice fires once.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, tzinfo
from typing import Literal, NamedTuple

from heliograph.clock import from_us, to_us
from heliograph.errors import ConfigError
from heliograph.limits import SCHEDULE_LATE_S, SCHEDULE_MOVE_MAX

Missed = Literal["one", "all", "skip"]
POLICIES = ("one", "all", "skip")


class Firings(NamedTuple):
    """Which firings to publish now, and when to look again; None if it never fires any more."""

    due_us: list[int]
    next_us: int | None


def zone(name: object) -> tzinfo:
    """A time zone by its IANA name. UTC needs no database."""
    if name == "UTC":
        return UTC
    from zoneinfo import ZoneInfo

    try:
        return ZoneInfo(str(name))
    except (KeyError, OSError, ValueError):  # not found, a directory, no path at all
        raise ConfigError(
            f"there is no timezone {name!r}: use an IANA name such as 'Europe/Zurich'. "
            "Systems without a database of zones need 'pip install tzdata'."
        ) from None


def following(cron: object, timezone: object, after_us: int) -> int | None:
    """The first firing after a moment; None if there is none within fifty years.

    >>> from_us(following("*/5 * * * *", "UTC", 0)).isoformat()
    '1970-01-01T00:05:00+00:00'
    """
    for moment in _walk(cron, timezone, after_us, reverse=False):
        if moment > after_us:  # in an hour that comes twice the first of them may be in the past
            return moment
    return None


def _last(cron: str, timezone: str, until_us: int) -> int | None:
    """The last firing that is not after a moment."""
    for moment in _walk(cron, timezone, until_us + 1_000_000, reverse=True):
        if moment <= until_us:
            return moment
    return None


def _walk(cron: object, timezone: object, start_us: int, *, reverse: bool) -> Iterator[int]:
    from cronsim import CronSim, CronSimError

    start = from_us(start_us // 1_000_000 * 1_000_000).astimezone(zone(timezone))
    try:
        for moment in CronSim(str(cron), start, reverse=reverse):
            yield to_us(moment)
    except (CronSimError, ValueError) as error:  # the latter: a number of more digits than int() takes
        raise ConfigError(
            f"cron {cron!r}: {str(error).lower()}; it has five fields (minute hour day month weekday), "
            "as in '*/5 * * * *'"
        ) from None
    except OverflowError:  # the year 10000
        return


def firings(cron: str, timezone: str, missed: str, next_us: int, now_us: int) -> Firings:
    """What is to be published of everything that was due from ``next_us`` to now.

    ``one``: the last of them. ``all``: each, a bounded number at a time. ``skip``: the last, unless it is late.
    """
    if missed == "all":
        found: list[int] = []
        at = next_us
        while at <= now_us and len(found) < SCHEDULE_MOVE_MAX:
            found.append(at)
            following_us = following(cron, timezone, at)
            if following_us is None:
                return Firings(found, None)
            at = following_us
        return Firings(found, at)
    last_us = max(_last(cron, timezone, now_us) or next_us, next_us)
    late = missed == "skip" and now_us - last_us > SCHEDULE_LATE_S * 1e6
    return Firings([] if late else [last_us], following(cron, timezone, max(now_us, last_us)))
