"""For whom retention waits: subscriptions, the other ends of links, the archive; and what it keeps for links."""

from __future__ import annotations

from typing import TYPE_CHECKING

from heliograph.log import retention
from heliograph.log.retention import Rules
from heliograph.station import archived, links

if TYPE_CHECKING:
    from heliograph.engine.files import FilesEngine
    from heliograph.log.channel import ChannelFile


def rules_of(engine: FilesEngine, file: ChannelFile) -> Rules:
    """When segments of a channel go."""
    settings = engine.settings(file)
    return Rules(
        settings.retention_bytes or 0, int((settings.retention_age_s or 0) * 1e6),
        bool(settings.retention_once_read), settings.holdback_bytes or 0,
    )  # fmt: skip


def positions_of(engine: FilesEngine, file: ChannelFile, number: int, first: int) -> dict[str, int]:
    """How far everybody has come in a partition that retention may wait for."""
    channel = file.name
    positions = {
        subscription: 0 if position is None else position.offset
        for subscription in engine.positions.names(channel)
        if (position := engine.positions.load(channel, subscription, number)) is not None
        # Without a position there, but in partition 0: the partition was added and it has not seen it yet.
        or engine.positions.load(channel, subscription, 0) is not None
    }
    for wildcard in engine.wildcards.hearing(channel) - positions.keys():
        positions[wildcard] = first  # it has not noticed this channel yet
    positions |= links.positions(engine, channel, number, first)
    if engine.settings(file).retention_archived:
        positions |= archived.positions(engine, channel, file.incarnation, number, first)
    return positions


def held_for_links(engine: FilesEngine) -> dict[str, int]:
    """By link, as ``links.positions`` calls it: how many bytes would be deleted by now, were it not for links."""
    found: dict[str, int] = {}
    for name in engine.channel_names():
        file = engine.describe(name)
        rules = rules_of(engine, file)
        if rules.bytes_max or rules.age_us or rules.once_read:
            for number in range(file.partitions):
                for link, size in _held(engine, file, number, rules).items():
                    found[link] = found.get(link, 0) + size
    return found


def _held(engine: FilesEngine, file: ChannelFile, number: int, rules: Rules) -> dict[str, int]:
    name = file.name
    fields = engine.head_fields(name, number)
    waiting = links.positions(engine, name, number, fields.first)
    if not waiting:
        return {}
    directory = engine.directory.place(name, number, engine.name).directory
    sealed = retention.survey(directory, fields.base, engine.disk)
    positions = positions_of(engine, file, number, fields.first)
    now_us = engine.clock.time_ns() // 1000
    return retention.held(sealed, fields.written, rules, positions, waiting, now_us)
