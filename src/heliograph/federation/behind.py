"""How far behind links are that nobody keeps count of: those that are not up, and channels that stand still.

What is up counts for itself (``lag.py``). The rest is in the log, and in what the other side has acknowledged last
(``DATA/links/KIND/PEER/CHANNEL.json``); it is read there when somebody asks, in whichever process that is, and never in
the event loop of the links.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from heliograph.errors import HeliographError, InvalidName
from heliograph.federation import peerfile
from heliograph.federation.rules import Names
from heliograph.names import check_name
from heliograph.station import links
from heliograph.station.links import LinkInfo, LinkKind
from heliograph.station.reader import message_at

if TYPE_CHECKING:
    from heliograph.station import Station


class Remembered(NamedTuple):
    """What is known here about a channel at a peer."""

    kind: LinkKind
    peer: str
    channel: str
    memory: peerfile.Memory


def known(station: Station) -> list[LinkInfo]:
    """Every link that runs or has run, with its lag; whichever process runs them."""
    live = station.live_links
    found = links.load(station.path, station.engine.disk) if live is None else live()
    return lagging(station, found)


def lagging(station: Station, found: Iterable[LinkInfo]) -> list[LinkInfo]:
    """The links as whoever runs them says, with the lag of what stands still."""
    return [_lagging(station, link) if link.state != "up" or link.waiting else link for link in found]


def remembered(station: Station) -> Iterator[Remembered]:
    """What every peer, hub or not, has acknowledged of which channel."""
    for kind in peerfile.KINDS:
        for peer in filter(_is_name, _listed(station, kind)):
            yield from _of(station, kind, peer)


def _of(station: Station, kind: LinkKind, peer: str) -> Iterator[Remembered]:
    directory = peerfile.directory_of(station.path, kind, peer)
    for file in _listed(station, kind, peer):
        channel = file.removesuffix(".json")
        if (
            channel != file
            and _is_name(channel)
            and (memory := peerfile.load(directory, channel, station.engine.disk)) is not None
        ):
            yield Remembered(kind, peer, channel, memory)


def _is_name(text: str) -> bool:
    """Whether it may be one of ours: people and their programs leave other files everywhere."""
    try:
        return bool(check_name(text))
    except InvalidName:
        return False


def _listed(station: Station, *names: str) -> list[str]:
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        return sorted(station.engine.disk.listdir(station.path.joinpath(links.DIRECTORY, *names)))
    return []


def _lagging(station: Station, link: LinkInfo) -> LinkInfo:
    """The link with its lag by the log: of what stands still nobody keeps count."""
    positions = {one.channel: one.memory for one in _of(station, link.kind, link.name)} if link.name else {}
    up = link.state == "up"
    waiting = [
        place for channel in {*positions, *_to_send(station, link)} if not up or channel in link.waiting
        for place in _waiting(station, channel, positions.get(channel))
    ]  # fmt: skip
    messages, age_s = (link.lag_messages, link.lag_s) if up else (0, 0.0)
    if waiting:
        now_s = station.engine.clock.time_ns() / 1e9
        age_s = max(age_s, now_s - min([_appended_s(station, place) or now_s for place in waiting]))
        messages += sum([place.next - place.first for place in waiting])
    return msgspec.structs.replace(link, lag_messages=messages, lag_s=round(age_s, 3))


def _to_send(station: Station, link: LinkInfo) -> list[str]:
    """The channels that the configuration wants to be sent to a hub, or that a peer asked for and may be sent."""
    config, disk = station.config, station.engine.disk
    if link.kind == "hub":
        wanted = Names([text for one in config.links if one.hub == link.address for text in one.publish])
        return [channel for channel in station.engine.channel_names() if channel in wanted]
    asked = links.wanted(peerfile.directory_of(station.path, link.kind, link.name), disk) if link.name else None
    allowed = Names([text for one in config.hub.peers if one.name == link.name for text in one.subscribe])
    wanted = Names(asked or ())
    return [channel for channel in station.engine.channel_names() if channel in allowed and channel in wanted]


class _Place(NamedTuple):
    channel: str
    partition: int
    first: int
    next: int


def _waiting(station: Station, channel: str, memory: peerfile.Memory | None) -> Iterator[_Place]:
    """What the other side has not acknowledged of a channel, by partition; nothing if it is deleted meanwhile."""
    engine = station.engine
    with contextlib.suppress(HeliographError, FileNotFoundError):
        same = memory is not None and memory.incarnation == engine.incarnation(channel)
        for number in range(engine.describe(channel).partitions):
            bounds = engine.bounds(channel, number)
            position = memory.positions.get(number, 0) if memory is not None and same else 0
            first = max(position, bounds.first)
            if bounds.next > first:
                yield _Place(channel, number, first, bounds.next)


def _appended_s(station: Station, place: _Place) -> float | None:
    """When the first of it was published; if whoever did has a clock that is ahead, when it came here at the latest."""
    engine = station.engine
    with contextlib.suppress(HeliographError, FileNotFoundError):
        message = message_at(engine, place.channel, place.partition, place.first)
        came_us = engine.appended_by_us(place.channel, place.partition, place.first)
        found = [message.time.timestamp()] if message is not None else []
        return min([*found, came_us / 1e6]) if came_us is not None else None
    return None
