"""Where a message is and how it came there: ``helio trace``. Everything is read from one station's files.

A message keeps the origin and sequence of where it was published, whatever it passes, so that copies are recognised.
A log says when it got one; what the peers have acknowledged says which of them have it for sure.
"""

from __future__ import annotations

import contextlib
from datetime import datetime
from typing import TYPE_CHECKING, Literal

import msgspec

from heliograph.clock import from_us
from heliograph.errors import NotFound
from heliograph.federation.behind import Remembered, remembered
from heliograph.federation.rules import Names, Rules
from heliograph.message import Message
from heliograph.station.links import LinkKind
from heliograph.station.reader import find

if TYPE_CHECKING:
    from heliograph.station import Station

Handed = Literal["acknowledged", "waiting", "not sent", "came from there"]


class Onward(msgspec.Struct, frozen=True, kw_only=True):
    """A copy at another station, as far as this one knows."""

    station: str
    kind: LinkKind
    state: Handed
    """``acknowledged``: it is durable there. ``waiting`` to be sent, or for the acknowledgement. ``not sent``: it was
    refused (see the dead letters), or is from before the link's start. ``came from there``: it is older there."""


class Copy(msgspec.Struct, frozen=True, kw_only=True):
    """A message in a log of one station."""

    station: str
    channel: str
    partition: int
    offset: int
    appended: datetime | None
    """When this log got it, at the latest: the index notes a time for every 16 KiB. None if it does not say."""
    published: datetime
    origin: str
    """The station where it was published."""
    incarnation: str
    origin_partition: int
    origin_offset: int
    own: bool
    """Whether that is this station."""
    through: list[str]
    """If not: the peers and hubs that may have brought it, by the rules of the configuration; without one, all that
    were ever here."""
    onward: list[Onward]


def trace(station: Station, message_id: str, channel: str | None = None) -> list[Copy]:
    """Every copy of a message in the logs of a station, in the order in which they got there."""
    known = list(remembered(station))
    found = [_copy(station, message, known) for message in find(station.engine, message_id, channel)]
    return sorted(found, key=lambda copy: (copy.appended or copy.published, copy.channel))


def _copy(station: Station, message: Message, known: list[Remembered]) -> Copy:
    origin, _, incarnation = message.origin.rpartition(".")
    partition, _, offset = message.originseq.partition("/")
    own = origin == station.name
    through = [] if own else _through(station, message, known)
    return Copy(
        station=station.name, channel=message.channel, partition=message.partition, offset=message.offset,
        appended=_appended(station, message), published=message.time, origin=origin, incarnation=incarnation,
        origin_partition=int(partition), origin_offset=int(offset), own=own, through=through,
        onward=[
            Onward(station=one.peer, kind=one.kind, state=_handed(station, one, message, origin))
            for one in known if one.channel == message.channel
        ],
    )  # fmt: skip


def _appended(station: Station, message: Message) -> datetime | None:
    found = station.engine.appended_by_us(message.channel, message.partition, message.offset)
    return None if found is None else from_us(found)


def _through(station: Station, message: Message, known: list[Remembered]) -> list[str]:
    channel, origin = message.channel, message.origin
    if not station.config.hub.peers and not station.config.links:
        names = sorted({one.peer for one in known})
        return [name for name in names if name == origin.rpartition(".")[0]] or names
    found = [
        peer.name for peer in station.config.hub.peers
        if not Rules(peer.name, peer.publish, (), peer.relay).sending(origin) and channel in Names(peer.publish)
    ]  # fmt: skip
    return found + [link.hub for link in station.config.links if channel in Names(link.subscribe)]


def _handed(station: Station, one: Remembered, message: Message, origin: str) -> Handed:
    partition, _, sequence = message.originseq.partition("/")
    if one.peer == origin:
        return "came from there"
    if one.memory.spared.has(message.origin, int(partition), int(sequence)):
        return "not sent"
    with contextlib.suppress(NotFound):
        if one.memory.incarnation == station.engine.incarnation(message.channel):
            return "acknowledged" if one.memory.positions.get(message.partition, 0) > message.offset else "waiting"
    return "waiting"
