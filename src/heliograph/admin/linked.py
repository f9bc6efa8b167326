"""The links of a station as ``helio links`` shows them, whether or not a process runs them now.

What runs says how it is in ``DATA/links/state.json``. What does not is known from the configuration, and how far
behind it is from the log and from what the other side has acknowledged last (``DATA/links/KIND/PEER/CHANNEL.json``).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from heliograph.clock import from_us
from heliograph.errors import NotFound
from heliograph.federation import peerfile
from heliograph.federation.burden import burdened
from heliograph.federation.rules import Names
from heliograph.log.cursor import LogCursor
from heliograph.station import links
from heliograph.station.holding import held_for_links
from heliograph.station.links import LifetimeInfo, LinkInfo
from heliograph.station.reader import message_at

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


class Remembered(NamedTuple):
    """What is known here about a channel at a peer."""

    kind: links.LinkKind
    peer: str
    channel: str
    memory: peerfile.Memory


def look(station: Station) -> LinksView:
    """Every link that runs, has run or is configured."""
    running = links.running(station.path, station.engine.disk)
    found = station.links()
    found += [link for link in _configured(station) if not any(_same(link, other) for other in found)]
    now = from_us(station.engine.clock.time_ns() // 1000)
    lagging = [_lagging(station, link) if link.state != "up" or link.parked else link for link in found]
    return LinksView(
        station=station.name, path=str(station.path), running=running,
        links=burdened(lagging, held_for_links(station.engine)),
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
        yield LinkInfo(name="", kind="hub", address=link.hub, state="stopped", since=since)
    for peer in station.config.hub.peers if station.config.hub.listen else ():
        yield LinkInfo(name=peer.name, kind="peer", address="", state="stopped", since=since)


# -- lag ----------------------------------------------------------------------------------------------------


def remembered(station: Station) -> Iterator[Remembered]:
    """What every peer, hub or not, has acknowledged of which channel."""
    disk = station.engine.disk
    for kind in peerfile.KINDS:
        for peer in _names(station, kind):
            directory = peerfile.directory_of(station.path, kind, peer)
            for file in sorted(disk.listdir(directory)):
                channel = file.removesuffix(".json")
                if channel != file and (memory := peerfile.load(directory, channel, disk)) is not None:
                    yield Remembered(kind, peer, channel, memory)


def _names(station: Station, kind: str) -> list[str]:
    with contextlib.suppress(FileNotFoundError):
        return sorted(station.engine.disk.listdir(station.path / links.DIRECTORY / kind))
    return []


def _lagging(station: Station, link: LinkInfo) -> LinkInfo:
    """The link with its lag by the log: of what stands still nobody keeps count."""
    positions = {
        one.channel: one.memory for one in remembered(station) if (one.kind, one.peer) == (link.kind, link.name)
    }
    up = link.state == "up"
    waiting = [
        place for channel in {*positions, *_to_send(station, link)} if not up or channel in link.parked
        for place in _waiting(station, channel, positions.get(channel))
    ]  # fmt: skip
    messages, age_s = (link.lag_messages, link.lag_s) if up else (0, 0.0)
    if waiting:
        now_s = station.engine.clock.time_ns() / 1e9
        age_s = max(age_s, now_s - min([_appended_s(station, place) or now_s for place in waiting]))
        messages += sum([place.next - place.first for place in waiting])
    return msgspec.structs.replace(link, lag_messages=messages, lag_s=round(age_s, 3))


def _to_send(station: Station, link: LinkInfo) -> list[str]:
    """The channels that the configuration wants to be sent to a hub."""
    patterns = [text for one in station.config.links if one.hub == link.address for text in one.publish]
    wanted = Names(patterns if link.kind == "hub" else ())
    return [channel for channel in station.engine.channel_names() if channel in wanted]


class _Place(NamedTuple):
    channel: str
    partition: int
    first: int
    next: int


def _waiting(station: Station, channel: str, memory: peerfile.Memory | None) -> Iterator[_Place]:
    """What the other side has not acknowledged of a channel, by partition."""
    engine = station.engine
    with contextlib.suppress(NotFound):
        known = memory is not None and memory.incarnation == engine.incarnation(channel)
        for number in range(engine.describe(channel).partitions):
            bounds = engine.bounds(channel, number)
            position = memory.positions.get(number, 0) if memory is not None and known else 0
            first = max(position, bounds.first)
            if bounds.next > first:
                yield _Place(channel, number, first, bounds.next)


def _appended_s(station: Station, place: _Place) -> float | None:
    """When the first of it was published; if whoever did has a clock that is ahead, when it came here at the latest."""
    engine = station.engine
    message = message_at(engine, place.channel, place.partition, place.first)
    with contextlib.closing(LogCursor(engine.log(place.channel, place.partition), place.first, engine.disk)) as cursor:
        chunk = cursor.read()
    found = [message.time.timestamp()] if message is not None else []
    return min([*found, chunk.append_us / 1e6]) if chunk is not None else None
