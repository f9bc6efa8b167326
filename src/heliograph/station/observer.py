"""Looking at a station from outside: channels, partitions and subscriptions as they are now."""

from __future__ import annotations

from pathlib import Path

from heliograph.clock import from_us
from heliograph.engine.files import FilesEngine
from heliograph.log import segments
from heliograph.log.census import Census
from heliograph.log.channel import no_channel
from heliograph.log.head import FENCED
from heliograph.names import DEAD_LETTER, REPLY, check_name
from heliograph.station.info import ChannelInfo, GroupInfo, GroupPartition, PartitionStats, SubscriptionInfo
from heliograph.station.reader import LeavingOut, message_at
from heliograph.station.stats import ChannelStats, Meters


class Observer:
    """Describes what an engine holds; changes nothing."""

    def __init__(self, engine: FilesEngine) -> None:
        self._engine = engine
        self._census = Census(engine.disk)

    def channels(self, replies: bool = False) -> list[ChannelInfo]:
        """Every channel, those of replies if asked for; one that is deleted meanwhile is left out."""
        found: list[ChannelInfo] = []
        for name in self._names(replies):
            with LeavingOut():
                found.append(self.channel(name))
        return found

    def _names(self, replies: bool = False) -> list[str]:
        return [name for name in self._engine.channel_names() if replies or not name.startswith(REPLY)]

    def channel(self, name: str) -> ChannelInfo:
        """One channel."""
        file = self._engine.describe(name)
        parts = self._partitions(name, file.partitions)
        return ChannelInfo(
            name=name, incarnation=file.incarnation, partitions=file.partitions,
            first=sum([part.first for part in parts]), next=sum([part.next for part in parts]),
            messages=sum([part.messages for part in parts]), parts=parts,
            bytes=sum([part.bytes for part in parts]), segments=sum([part.segments for part in parts]),
            created=file.created, settings=file.settings, fenced=any(part.fenced for part in parts),
        )  # fmt: skip

    def _partitions(self, name: str, count: int) -> list[PartitionStats]:
        return [self._partition(name, number) for number in range(count)]

    def _partition(self, name: str, number: int) -> PartitionStats:
        engine = self._engine
        engine.drop_closed(name, number)  # or who only looks would see the channel that was there before this one
        fields = engine.head_fields(name, number)
        directory = self._directory(name, number)
        try:
            bases = segments.bases(directory, engine.disk)
            sealed = [base for base in bases if base < fields.base]
            stored = sum([segments.stored_bytes(directory, base, engine.disk) for base in sealed]) + fields.written
        except FileNotFoundError:  # deleted in this moment
            raise no_channel(engine.root, name) from None
        return PartitionStats(
            partition=number, first=fields.first, next=fields.next, messages=fields.next - fields.first,
            bytes=stored, segments=len(bases),
            unsynced_bytes=fields.written - fields.synced, fenced=bool(fields.flags & FENCED),
        )  # fmt: skip

    def channel_stats(self, meters: Meters) -> list[ChannelStats]:
        """The numbers of every channel."""
        found: list[ChannelStats] = []
        names = self._names()
        for name in names:
            with LeavingOut():
                dead = self._waiting_in(name + DEAD_LETTER) if name + DEAD_LETTER in names else 0
                found.append(self._channel_stats(name, dead, meters))
        self._census.keep(names)
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
        """Letters that are left: what was replayed or purged has left blank lines."""
        with LeavingOut():
            return sum([
                self._census.messages(self._directory(channel, number), self._engine.head_fields(channel, number))
                for number in range(self._engine.describe(channel).partitions)
            ])  # fmt: skip
        return 0

    def _directory(self, channel: str, number: int) -> Path:
        return self._engine.directory.place(channel, number, self._engine.name).directory

    def subscriptions(self, channel: str | None = None) -> list[SubscriptionInfo]:
        """Every durable subscription, live or not: each of its partitions."""
        self._engine.check_open()
        if channel is not None:
            check_name(channel)
        known = self._engine.positions.all()
        return [
            self._subscription(name, own, number)
            for name, own in known
            if channel is None or name == channel
            for number in range(self._count(name))
        ]

    def groups(self, channel: str | None = None) -> list[GroupInfo]:
        """Every group, with its workers and what each holds."""
        found: dict[tuple[str, str], list[SubscriptionInfo]] = {}
        for info in self.subscriptions(channel):
            if info.kind == "group":
                found.setdefault((info.channel, info.name), []).append(info)
        return [self._group(channel, name, parts) for (channel, name), parts in found.items()]

    def _group(self, channel: str, name: str, parts: list[SubscriptionInfo]) -> GroupInfo:
        members = self._engine.positions.members(channel, name)
        workers = {number: member.worker for member in members for number in member.partitions}
        return GroupInfo(
            channel=channel, name=name, members=members, lag=sum([part.lag for part in parts]),
            partitions=[
                GroupPartition(
                    partition=part.partition, worker=workers.get(part.partition), offset=part.offset, lag=part.lag,
                    lag_s=part.lag_s,
                )
                for part in parts
            ],
        )  # fmt: skip

    def _count(self, channel: str) -> int:
        with LeavingOut():
            return self._engine.describe(channel).partitions
        return 1  # its channel is gone, its position is not

    def _subscription(self, channel: str, name: str, partition: int) -> SubscriptionInfo:
        engine = self._engine
        position = engine.positions.load(channel, name, partition)
        offset, lag, lag_s = (position.offset if position else 0), 0, None
        with LeavingOut():
            bounds = engine.bounds(channel, partition)
            lag = max(0, bounds.next - max(offset, bounds.first))
            lag_s = self._age_s(channel, partition, max(offset, bounds.first)) if lag else 0.0
        return SubscriptionInfo(
            channel=channel, name=name, partition=partition, offset=offset, lag=lag, lag_s=lag_s,
            live=engine.positions.live(channel, name), saved=from_us(position.time_us) if position else None,
            kind=engine.positions.kind(channel, name),
        )  # fmt: skip

    def _age_s(self, channel: str, partition: int, offset: int) -> float | None:
        waiting = message_at(self._engine, channel, partition, offset)
        if waiting is None:
            return None
        return max(0.0, self._engine.clock.time_ns() / 1e9 - waiting.time.timestamp())
