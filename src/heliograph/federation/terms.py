"""What a connection is made of: what all have in common, and what one is for."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from heliograph.federation import packing
from heliograph.federation.newsroom import Newsroom
from heliograph.federation.quota import Quota
from heliograph.federation.rules import Rules
from heliograph.federation.session import Ours
from heliograph.federation.tlsfiles import Peer
from heliograph.federation.workers import Workers
from heliograph.station.links import LinkKind

if TYPE_CHECKING:
    from heliograph.station import Station


class Shared(NamedTuple):
    """What all connections of a station have in common."""

    station: Station
    workers: Workers
    news: Newsroom


class Terms(NamedTuple):
    """What one connection is for."""

    kind: LinkKind
    peer: Peer
    ours: Ours
    rules: Rules
    quota: Quota
    compress: packing.Mode
