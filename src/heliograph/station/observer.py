"""Looking at a station from outside: channels, partitions and subscriptions as they are now."""

from __future__ import annotations

import contextlib

from heliograph.clock import from_us
from heliograph.engine.files import FilesEngine
from heliograph.errors import NotFound
from heliograph.log import segments
from heliograph.log.head import FENCED
from heliograph.names import DEAD_LETTER, REPLY, check_name
from heliograph.station.info import ChannelInfo, SubscriptionInfo
from heliograph.station.reader import message_at
from heliograph.station.stats import ChannelStats, Meters, PartitionStats


class Observer:
    """Describes what an engine holds; changes nothing."""

    def __init__(self, engine: FilesEngine) -> None:
        self._engine = engine

    def channels(self, replies: bool = False) -> list[ChannelInfo]:
        """Every channel, those of replies if asked for; one that is deleted meanwhile is left out."""
        found: list[ChannelInfo] = []
        for name in self._names(replies):
            with contextlib.suppress(NotFound):
                found.append(self.channel(name))
        return found

    def _names(self, replies: bool = False) -> list[str]:
        return [name for name in self._engine.channel_names() if replies or not name.startswith(REPLY)]

    def channel(self, name: str) -> ChannelInfo:
        """One channel."""
        file = self._engine.describe(name)
        parts = self._partitions(name, file.partitions)
        return ChannelInfo(
            name=name, incarnation=file.incarnation, partitions=file.partitions, first=parts[0].first,
            next=parts[0].next, messages=sum([part.messages for part in parts]),
            bytes=sum([part.bytes for part in parts]), segments=sum([part.segments for part in parts]),
            created=file.created, settings=file.settings, fenced=any(part.fenced for part in parts),
        )  # fmt: skip

    def _partitions(self, name: str, count: int) -> list[PartitionStats]:
        return [self._partition(name, number) for number in range(count)]

    def _partition(self, name: str, number: int) -> PartitionStats:
        engine = self._engine
        fields = engine.head_fields(name, number)
        directory = engine.directory.place(name, number, engine.name).directory
        bases = segments.bases(directory, engine.disk)
        return PartitionStats(
            partition=number, first=fields.first, next=fields.next, messages=fields.next - fields.first,
            bytes=sum([segments.stored_bytes(directory, base, engine.disk) for base in bases]), segments=len(bases),
            unsynced_bytes=fields.written - fields.synced, fenced=bool(fields.flags & FENCED),
        )  # fmt: skip

    def channel_stats(self, meters: Meters) -> list[ChannelStats]:
        """The numbers of every channel."""
        found: list[ChannelStats] = []
        names = self._names()
        for name in names:
            with contextlib.suppress(NotFound):
                dead = self._waiting_in(name + DEAD_LETTER) if name + DEAD_LETTER in names else 0
                found.append(self._channel_stats(name, dead, meters))
        return found

    def _channel_stats(self, name: str, dead_letters: int, meters: Meters) -> ChannelStats:
        parts = self._partitions(name, self._engine.describe(name).partitions)
        meter = meters.of(name)
        return ChannelStats(
            channel=name, published=meter.published, published_bytes=meter.bytes, publish_rate=meter.publish_rate(),
            refused=meter.refused, publish_latency=meter.latency.stats(),
            messages=sum([part.messages for part in parts]), bytes=sum([part.bytes for part in parts]),
            growth_rate=meter.growth_rate(sum([part.next for part in parts])), dead_letters=dead_letters,
            partitions=parts,
        )  # fmt: skip

    def _waiting_in(self, channel: str) -> int:
        bounds = self._engine.bounds(channel)
        return bounds.next - bounds.first

    def subscriptions(self, channel: str | None = None) -> list[SubscriptionInfo]:
        """Every durable subscription, live or not."""
        self._engine.check_open()
        if channel is not None:
            check_name(channel)
        known = self._engine.positions.all()
        return [self._subscription(name, own) for name, own in known if channel is None or name == channel]

    def _subscription(self, channel: str, name: str, partition: int = 0) -> SubscriptionInfo:
        engine = self._engine
        position = engine.positions.load(channel, name, partition)
        offset, lag, lag_s = (position.offset if position else 0), 0, None
        with contextlib.suppress(NotFound):
            bounds = engine.bounds(channel, partition)
            lag = max(0, bounds.next - max(offset, bounds.first))
            lag_s = self._age_s(channel, max(offset, bounds.first)) if lag else 0.0
        return SubscriptionInfo(
            channel=channel, name=name, partition=partition, offset=offset, lag=lag, lag_s=lag_s,
            live=engine.positions.live(channel, name), saved=from_us(position.time_us) if position else None,
        )  # fmt: skip

    def _age_s(self, channel: str, offset: int) -> float | None:
        waiting = message_at(self._engine, channel, 0, offset)
        if waiting is None:
            return None
        return max(0.0, self._engine.clock.time_ns() / 1e9 - waiting.time.timestamp())
