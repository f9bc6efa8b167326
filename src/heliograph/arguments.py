"""What callers hand over, looked at while they are still there to hear what is wrong with it.

Without this, text for seconds or one thing for a list of them is found out deep inside, or long after.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from datetime import timedelta
from typing import Any, TypeVar

from heliograph.errors import InvalidArgument

_T = TypeVar("_T")


def check_seconds(what: str, value: object) -> float:
    """A duration, in seconds.

    >>> check_seconds("timeout", timedelta(minutes=1))
    60.0
    >>> check_seconds("timeout", "soon")
    Traceback (most recent call last):
    heliograph.errors.InvalidArgument: timeout is 'soon'; use a number of seconds, or a timedelta
    """
    number = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(number, bool) or not isinstance(number, int | float) or math.isnan(number):
        raise InvalidArgument(f"{what} is {value!r}; use a number of seconds, or a timedelta")
    return float(number)


def check_number(what: str, value: object) -> None:
    """Any number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidArgument(f"{what} is {value!r}; use a number")


def check_whole(what: str, value: object) -> int:
    """A whole number."""
    if not isinstance(value, int):
        raise InvalidArgument(f"{what} is {value!r}; use a whole number")
    return value


def check_callable(what: str, value: object) -> None:
    """A function, or None for none."""
    if value is not None and not callable(value):
        raise InvalidArgument(f"{what} is {value!r}, which cannot be called")


def check_many(what: str, values: object, kind: type[_T]) -> list[_T]:
    """Several things of one kind.

    >>> check_many("jobs", 5, str)
    Traceback (most recent call last):
    heliograph.errors.InvalidArgument: jobs is 5; use a list of str
    """
    found: list[Any] = list(values) if isinstance(values, Iterable) and not isinstance(values, str | bytes) else [None]
    if not all(isinstance(one, kind) for one in found):
        raise InvalidArgument(f"{what} is {values!r}; use a list of {kind.__name__}")
    return found
