"""Times on the command line: ``250ms``, ``10s``, ``1h``, and moments."""

from __future__ import annotations

import math
from datetime import datetime
from typing import Any, Final

import click

from heliograph.config.units import parse_duration
from heliograph.errors import InvalidMessage

_SECONDS_MAX: Final = 365 * 86_400.0
"""Longer than anybody waits; far longer, and the clock of the machine cannot count it."""


class Number(click.FloatRange):
    """A number in a range; what compares with nothing (nan) is in none."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The number that a text means."""
        found: float = super().convert(value, param, ctx)
        if math.isnan(found):
            self.fail(f"{value!r} is not a number.", param, ctx)
        return found


def pause(shortest: float, longest: float = _SECONDS_MAX) -> Number:
    """Seconds between two looks, or until somebody gives up."""
    return Number(min=shortest, max=longest)


def duration(_: click.Context, __: click.Parameter, given: str | None) -> float | None:
    """Seconds, from a number or a number with a unit."""
    if given is None:
        return None
    try:
        return float(parse_duration(given, "s"))
    except ValueError as error:
        raise click.BadParameter(f"{given!r} is {error}") from None


def moment(_: click.Context, __: click.Parameter, given: str | None) -> datetime | None:
    """A time; without a zone it is UTC."""
    from heliograph.message import parse_time

    if given is None:
        return None
    try:
        return parse_time(given)
    except InvalidMessage as error:
        raise click.BadParameter(str(error)) from None
