"""Sizes and durations as people write them: ``64MiB``, ``10MB``, ``250ms``, ``7d``."""

from __future__ import annotations

import re
from collections.abc import Mapping

KIB, MIB, GIB = 2**10, 2**20, 2**30

# Largest first, powers of 1024 before powers of 1000: the order in which a value is written.
SIZES: Mapping[str, int] = {
    "TiB": 1024 * GIB, "GiB": GIB, "MiB": MIB, "KiB": KIB,
    "TB": 1000**4, "GB": 1000**3, "MB": 1000**2, "kB": 1000, "B": 1,
}  # fmt: skip
DURATIONS_MS: Mapping[str, int] = {
    "w": 604_800_000, "d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1_000, "ms": 1,
}  # fmt: skip

_DIGITS_MAX = 30
"""More are nobody's size or duration, and beyond what a float or int() takes."""
_QUANTITY = re.compile(r"([0-9][0-9_]*(?:\.[0-9]+)?)\s*([A-Za-z]*)")


def parse_size(text: str) -> int | float:
    """The bytes that a text means.

    >>> parse_size("64MiB"), parse_size("10 MB"), parse_size("4096")
    (67108864, 10000000, 4096)
    """
    return _whole(_parse(text, SIZES, 1, 'size; write bytes, or something like "64MiB" or "64MB"'))


def parse_duration(text: str, unit: str) -> int | float:
    """The duration that a text means, in ``unit`` (``"s"`` or ``"ms"``); a bare number is in that unit.

    >>> parse_duration("7d", "s"), parse_duration("250ms", "s"), parse_duration("1.5s", "ms")
    (604800, 0.25, 1500)
    """
    base = DURATIONS_MS[unit]
    wanted = 'duration; write a number, or something like "250ms", "10s", "30m", "12h" or "7d"'
    return _whole(_parse(text, DURATIONS_MS, base, wanted) / base)


def _parse(text: str, units: Mapping[str, int], bare: int, wanted: str) -> float:
    match = _QUANTITY.fullmatch(text.strip())
    folded = {name.lower(): size for name, size in units.items()} | {"": bare}
    if match is None or match[2].lower() not in folded or len(match[1]) > _DIGITS_MAX:
        raise ValueError(f"not a {wanted}")
    # An int stays one, so that large sizes are exact.
    number = float(match[1]) if "." in match[1] else int(match[1])
    return number * folded[match[2].lower()]


def _whole(number: float) -> int | float:
    return int(number) if number == int(number) else number


def human_size(size: int) -> int | str:
    """The shortest way to write a size that reads back as the same.

    >>> human_size(67108864), human_size(10_000_000), human_size(4097)
    ('64MiB', '10MB', 4097)
    """
    for name, unit in SIZES.items():
        if size and unit > 1 and size % unit == 0:
            return f"{size // unit}{name}"
    return size


def human_duration(value: float, unit: str) -> float | str:
    """The shortest way to write a duration that reads back as the same.

    >>> human_duration(604800, "s"), human_duration(0.25, "s"), human_duration(100, "ms")
    ('7d', '250ms', '100ms')
    """
    milliseconds = value * DURATIONS_MS[unit]
    for name, size in DURATIONS_MS.items():
        if value and name != "w" and milliseconds % size == 0:
            return f"{int(milliseconds // size)}{name}"
    return value
