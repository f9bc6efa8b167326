"""Whether what stands where a time belongs can be one, for many lines at once and without reading any.

    2026-11-15T20:30:01.123456Z
    0       8       16            eight bytes from each of these places, and from the 19th

Lines that follow each other mostly have the same minute, which is looked at only where it changes.
"""

from __future__ import annotations

from calendar import isleap
from typing import Any, Final

import numpy as np

from heliograph.spark.cutting import Mask, Numbers

_Words = np.ndarray[Any, np.dtype[np.uint64]]


def _word(text: bytes) -> np.uint64:
    return np.uint64(int.from_bytes(text, "little"))


_DAY: Final = _word(b"0000-00-")
_MINUTE: Final = _word(b"00T00:00")
_SECOND: Final = _word(b":00.0000")
_FRACTION: Final = _word(b".000000Z")
_HIGH: Final = _word(b"\xf0" * 8)
_TEN: Final = _word(b"\x06" * 8)  # with this added, what is ten or more has a high bit
_SIXTY: Final = _word(b"\0\x0a" + b"\0" * 6)  # and with this seconds that begin with a six
_DAYS: Final = np.array([0, 31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31, *[0] * 147])  # of a month, by its number


def possible(words: Numbers, at: Numbers) -> Mask:
    """Which of the times of 27 characters at some places of a text can be one; ``words`` are those of the text."""
    day, minute = words[at].view(np.uint64), words[8:][at].view(np.uint64)
    second, fraction = words[16:][at].view(np.uint64) ^ _SECOND, words[19:][at].view(np.uint64) ^ _FRACTION
    fits = _digits(second, _word(b"\xff\0\0\xff\0\0\0\0")) & _digits(fraction, _word(b"\xff\0\0\0\0\0\0\xff"))
    fits &= ((second + _SIXTY) & _HIGH) == 0
    changes = np.flatnonzero((day[1:] != day[:-1]) | (minute[1:] != minute[:-1])) + 1
    firsts = np.append(0, changes) if len(at) else changes
    same = np.diff(np.append(firsts, len(at)))
    found: Mask = fits & np.repeat(_minutes(day[firsts] ^ _DAY, minute[firsts] ^ _MINUTE), same)
    return found


def _digits(digits: _Words, signs: np.uint64) -> Mask:
    """Whether there are digits, less what they are made of, and nothing where the signs are."""
    found: Mask = (((digits + _TEN) | digits) & _HIGH | digits & signs) == 0
    return found


def _minutes(day: _Words, minute: _Words) -> Mask:
    """Whether days and minutes, less the digits and signs that they are made of, are in the calendar."""
    fits = _digits(day, _word(b"\0\0\0\0\xff\0\0\xff")) & _digits(minute, _word(b"\0\0\xff\0\0\xff\0\0"))
    months, days = _number(day, 5), _number(minute, 0)
    fits &= (days > 0) & (days <= _DAYS[np.minimum(months, len(_DAYS) - 1)])
    fits &= (_number(minute, 3) < 24) & (_number(minute, 6) < 60)
    fits &= (day & _word(b"\xff\xff\xff\xff\0\0\0\0")) != 0  # there is no year 0
    leaping = np.flatnonzero((months == 2) & (days == 29) & fits)
    years = _number(day[leaping], 0) * 100 + _number(day[leaping], 2)
    fits[leaping] = [isleap(year) for year in years.tolist()]
    return fits


def _number(digits: _Words, byte: int) -> Numbers:
    """Two digits as a number."""
    tens, ones = ((digits >> np.uint64(8 * at)) & np.uint64(0xFF) for at in (byte, byte + 1))
    return (tens * np.uint64(10) + ones).astype(np.int64)
