"""Which channels are synced, in which directions, and what the other side may do here meanwhile. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from heliograph.config import Config, Link
from heliograph.federation.rules import EVERYTHING, Names, Rules
from heliograph.federation.syncing import Side
from heliograph.patterns import is_pattern


class Target(NamedTuple):
    """Channels of some names and patterns, and which sides are to get what they lack."""

    channels: tuple[str, ...]
    sides: tuple[Side, ...] = ("here", "there")


def of_link(link: Link) -> list[Target]:
    """What a link says: all of ``sync`` to both sides, the others the way they go."""
    return [Target(link.sync), Target(link.subscribe, ("here",)), Target(link.publish, ("there",))]


def meant(targets: Iterable[Target], known: Iterable[str]) -> dict[str, tuple[Side, ...]]:
    """The channels, named or among those that one of the sides has, and the sides of each.

    >>> meant([Target(("alerts",)), Target(("sensors.>",), ("here",))], ["sensors.kitchen", "other"])
    {'alerts': ('here', 'there'), 'sensors.kitchen': ('here',)}
    """
    found: dict[str, set[Side]] = {}
    known = sorted(set(known))
    for target in [target for target in targets if target.sides]:
        names = Names(target.channels)
        named = [text for text in target.channels if not is_pattern(text)]
        for channel in [*named, *(one for one in known if one in names)]:
            found.setdefault(channel, set()).update(target.sides)
    return {channel: tuple(sorted(found[channel])) for channel in sorted(found)}


def rules_for(config: Config, address: str, peer: str, channel: str) -> Rules:
    """What a hub may do here in a channel while the two are synced.

    Whoever owns this directory asked for it; but if the hub is a peer of this station as well, it may do here what its
    rule allows, and what a link to it asks for.
    """
    rule = next((one for one in config.hub.peers if one.name == peer), None)
    if rule is None:
        return Rules(peer, [channel], [channel], [EVERYTHING])
    links = [link for link in config.links if link.hub == address]
    gets = any(channel in Names((*link.subscribe, *link.sync)) for link in links)
    sends = any(channel in Names((*link.publish, *link.sync)) for link in links)
    return Rules(
        peer, [channel] if gets else rule.publish, [channel] if sends else rule.subscribe,
        [EVERYTHING] if gets else rule.relay,
    )  # fmt: skip
