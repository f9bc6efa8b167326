"""Where to begin: the words ``first`` and ``new``, an offset, or a time. The same words everywhere."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Final

from heliograph.clock import Clock, to_us
from heliograph.config import units
from heliograph.engine.files import FilesEngine
from heliograph.errors import ConfigError
from heliograph.message import parse_time

Start = str | int | datetime
OFFSET_MAX: Final = 2**63 - 1
OFFSET_DIGITS_MAX: Final = len(str(OFFSET_MAX))
_AGO: Final = re.compile(r"-\d+(\.\d+)?(ms|s|m|h|d)", re.ASCII)


def resolve(engine: FilesEngine, channel: str, start: Start, partition: int = 0) -> int:
    """The offset that a start word means for a channel, now."""
    bounds = engine.bounds(channel, partition)
    if isinstance(start, bool):
        raise ConfigError(f"{start!r} is not a start: {ALLOWED}")
    if isinstance(start, int) or (isinstance(start, str) and is_offset(start)):
        offset = offset_of(start)
        if offset < 0:
            raise ConfigError(f"offset {offset} is negative; offsets begin at 0")
        return offset
    if start == "first":
        return bounds.first
    if start == "new":
        return bounds.next
    return engine.offset_at(channel, partition, moment_us(engine, start))


def offset_of(start: str | int) -> int:
    """The offset that is said. No log is so long as the largest, which files, databases and frames have room for."""
    if isinstance(start, str):
        digits = start.lstrip("0")
        start = int(digits or "0") if len(digits) <= OFFSET_DIGITS_MAX else OFFSET_MAX  # Python reads only so many
    return min(start, OFFSET_MAX)


def partitions_for(engine: FilesEngine, channel: str, partition: int | None, *starts: Start | None) -> range:
    """The partitions that are meant: one, or all. An offset means a place in one partition only."""
    if partition is not None:
        number = engine.check_partition(channel, partition)
        return range(number, number + 1)
    count = engine.describe(channel).partitions
    for start in starts:
        if count > 1 and is_offset(start):
            raise ConfigError(
                f"offset {start} needs a partition: channel '{channel}' has {count}. Say which one, or use 'first', "
                "'new', a time or an age, which mean something for all of them"
            )
    return range(count)


def is_offset(start: Start | None) -> bool:
    """Whether a start is an offset."""
    if isinstance(start, str):
        return start.isascii() and start.isdecimal()
    return isinstance(start, int) and not isinstance(start, bool)


ALLOWED: Final = "use 'first', 'new', an offset, a time (2026-11-15T20:30:01Z) or an age (-5m)"


def moment_us(engine: FilesEngine, start: Start) -> int:
    """A time, or an age such as ``-5m``, in µs since the epoch, by the station's clock."""
    return moment_of(engine.clock, start)


def moment_of(clock: Clock, start: Start) -> int:
    """The same, by any clock."""
    if isinstance(start, datetime):
        return to_us(start)
    if not isinstance(start, str):
        raise ConfigError(f"{start!r} is not a start: {ALLOWED}")
    try:
        if _AGO.fullmatch(start):
            return clock.time_ns() // 1000 - int(units.parse_duration(start[1:], "s") * 1e6)
        return to_us(parse_time(start))
    except (ValueError, OverflowError):  # InvalidMessage is one; an age may have more digits than a number can
        raise ConfigError(f"{start!r} is not a start: {ALLOWED}") from None


def check_word(start: Start, clock: Clock, *, several: bool = False) -> None:
    """Refuse what is no start whatever the channel; or for ``several`` channels, though none may be there yet."""
    if several and (isinstance(start, int) or is_offset(start)):
        raise ConfigError(f"{start!r} is an offset, which belongs to one channel; use 'first', 'new' or a time")
    if start not in ("first", "new") and not is_offset(start):
        moment_of(clock, start)
