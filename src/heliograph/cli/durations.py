"""Times on the command line: ``250ms``, ``10s``, ``1h``, and moments."""

from __future__ import annotations

from datetime import datetime

import click

from heliograph.config.units import parse_duration
from heliograph.errors import InvalidMessage


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
