"""The links of a station as ``helio links`` shows them, whether or not a process runs them now.

What runs, or has run, says how it is in ``DATA/links/state.json``; what never did is known from the configuration.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec

from heliograph.clock import from_us
from heliograph.federation import behind
from heliograph.federation.burden import burdened
from heliograph.station import links
from heliograph.station.holding import held_for_links
from heliograph.station.links import LifetimeInfo, LinkInfo

if TYPE_CHECKING:
    from heliograph.station import Station


class LinksView(msgspec.Struct, frozen=True, kw_only=True):
    """Every link of a station."""

    station: str
    path: str
    running: bool
    """Whether some process runs the links now."""
    links: list[LinkInfo]
    certificates: list[LifetimeInfo] = []
    """The station's own TLS files, as whoever runs the links has them."""


def look(station: Station) -> LinksView:
    """Every link that runs, has run or is configured."""
    running = links.running(station.path, station.engine.disk)
    found = behind.known(station)
    new = [link for link in _configured(station) if not any(_same(link, other) for other in found)]
    now = from_us(station.engine.clock.time_ns() // 1000)
    return LinksView(
        station=station.name, path=str(station.path), running=running,
        links=burdened([*found, *behind.lagging(station, new)], held_for_links(station.engine)),
        certificates=links.certificates(station.path, station.engine.disk, now),
    )  # fmt: skip


def is_down(link: LinkInfo) -> bool:
    """Whether somebody should look after it: it ought to be up and is not, or a channel of it stands still.

    A peer that is not connected is no fault of this station.
    """
    return bool(link.parked) or link.state not in ("up", "absent")


def _same(one: LinkInfo, other: LinkInfo) -> bool:
    return one.kind == other.kind and (one.address == other.address if one.kind == "hub" else one.name == other.name)


def _configured(station: Station) -> Iterator[LinkInfo]:
    """The links of the configuration, as long as nothing else is known of them."""
    since = from_us(station.engine.clock.time_ns() // 1000)
    for link in station.config.links:
        name = links.hub_at(station.path, link.hub, station.engine.disk)
        yield LinkInfo(name=name, kind="hub", address=link.hub, state="stopped", since=since)
    for peer in station.config.hub.peers if station.config.hub.listen else ():
        yield LinkInfo(name=peer.name, kind="peer", address="", state="stopped", since=since)
