"""Origins: the station and the life of a channel in which a message was published."""

from __future__ import annotations

import re
from typing import Final

from heliograph.errors import InvalidName
from heliograph.names import check_name

_INCARNATION: Final = re.compile(r"[0-9a-z]{1,32}")
_origins: dict[str, str | None] = {}


def station_of(origin: str) -> str | None:
    """The station of an origin; None if the text is no origin.

    >>> station_of("sensors.host2.k3f9q2"), station_of("../../x.k3f9q2"), station_of("host2")
    ('sensors.host2', None, None)
    """
    if origin in _origins:
        return _origins[origin]
    station, dot, incarnation = origin.rpartition(".")
    found: str | None = None
    if dot and _INCARNATION.fullmatch(incarnation):
        try:
            found = check_name(station, "station")
        except InvalidName:
            found = None
    if len(_origins) > 10_000:  # whoever sends garbage must not fill the memory
        _origins.clear()
    _origins[origin] = found
    return found
