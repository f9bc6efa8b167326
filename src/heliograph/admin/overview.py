"""A station at a glance: two looks at the directory, and what happened between them.

A look is taken from the files alone, so it shows what all processes do, and rates are differences of offsets between
two looks. Whoever adds another kind of reader (``SOURCES``) or another number (``look``, ``compare``) adds it to the
screen, the table and the JSON of ``helio top``.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from typing import Final

import msgspec

from heliograph.clock import from_us
from heliograph.errors import HeliographError
from heliograph.log.channel import ChannelSettings
from heliograph.names import DEAD_LETTER
from heliograph.station import Station
from heliograph.station.info import PartitionStats


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """How far a reader has come in one partition. ``kind``: plain, group or queue."""

    kind: str
    channel: str
    name: str
    partition: int
    offset: int
    lag: int
    lag_s: float | None
    live: bool
    workers: int = 1


class Look(msgspec.Struct, frozen=True, kw_only=True):
    """A station at one moment."""

    station: str
    path: str
    time: datetime
    at_s: float
    channels: dict[str, list[PartitionStats]]
    dead_letters: dict[str, int]
    standings: list[Standing]
    troubles: list[str] = []


class PartitionView(msgspec.Struct, frozen=True, kw_only=True):
    """One partition, and how fast it grows."""

    partition: int
    first: int
    next: int
    bytes: int
    segments: int
    rate: float | None
    fenced: bool


class ReaderView(msgspec.Struct, frozen=True, kw_only=True):
    """A reader of a channel, over all partitions. ``rate``: messages a second that it has done."""

    kind: str
    name: str
    live: bool
    workers: int
    offset: int | None
    lag: int
    lag_s: float | None
    rate: float | None


class ChannelView(msgspec.Struct, frozen=True, kw_only=True):
    """A channel: what it holds, how fast it grows, who is how far behind. Rates are None after one look only."""

    name: str
    messages: int
    bytes: int
    segments: int
    rate: float | None
    byte_rate: float | None
    lag: int
    lag_s: float | None
    live: int
    dead_letters: int
    dead_rate: float | None
    fenced: bool
    partitions: list[PartitionView]
    readers: list[ReaderView]


class View(msgspec.Struct, frozen=True, kw_only=True):
    """What is shown: one look, and the rates since the one before it."""

    station: str
    path: str
    time: datetime
    seconds: float | None
    rate: float | None
    messages: int
    bytes: int
    lag: int
    dead_letters: int
    channels: list[ChannelView]
    troubles: list[str]


# -- looking ------------------------------------------------------------------------------------------------------


def _subscriptions(station: Station) -> Iterator[Standing]:
    """Plain ones, groups and queues; the workers of one are counted once."""
    workers = {(one.channel, one.name): sum(worker.live for worker in one.workers) for one in station.queues()}
    for info in station.subscriptions():
        own = (info.channel, info.name)
        if own not in workers:
            members = station.engine.positions.members(*own) if info.kind == "group" else [info] * info.live
            workers[own] = len(members)
        yield Standing(
            kind=info.kind, channel=info.channel, name=info.name, partition=info.partition, offset=info.offset,
            lag=info.lag, lag_s=info.lag_s, live=info.live, workers=workers[own],
        )  # fmt: skip


SOURCES: Final[tuple[Callable[[Station], Iterable[Standing]], ...]] = (_subscriptions,)


def look(station: Station) -> Look:
    """Look at everything once. What cannot be read is told and left out."""
    standings: list[Standing] = []
    troubles: list[str] = []
    for source in SOURCES:
        try:
            standings += source(station)
        except HeliographError as error:
            troubles.append(str(error))
    found = station.stats().channels
    clock = station.engine.clock
    return Look(
        station=station.name, path=str(station.path), time=from_us(clock.time_ns() // 1000), at_s=clock.monotonic(),
        channels={one.channel: one.partitions for one in found},
        dead_letters={one.channel: one.dead_letters for one in found}, standings=standings, troubles=troubles,
    )  # fmt: skip


# -- comparing ----------------------------------------------------------------------------------------------------


def compare(before: Look | None, now: Look) -> View:
    """What is, and what changed since the look before."""
    seconds = now.at_s - before.at_s if before is not None and now.at_s > before.at_s else None
    compared = _Comparison(before, now, seconds)
    channels = [compared.channel(name) for name in sorted(now.channels)]
    return View(
        station=now.station, path=now.path, time=now.time, seconds=seconds, rate=_sum(one.rate for one in channels),
        messages=sum(one.messages for one in channels), bytes=sum(one.bytes for one in channels),
        lag=sum(reader.lag for one in channels for reader in one.readers),
        dead_letters=sum(one.dead_letters for one in channels), channels=channels, troubles=now.troubles,
    )  # fmt: skip


class _Comparison:
    """Two looks, side by side."""

    def __init__(self, before: Look | None, now: Look, seconds: float | None) -> None:
        self._before = before
        self._now = now
        self._seconds = seconds
        self._old = {_key(one): one for one in before.standings} if before is not None else {}
        self._readers: dict[str, dict[tuple[str, str], list[Standing]]] = {}
        for one in now.standings:
            self._readers.setdefault(one.channel, {}).setdefault((one.kind, one.name), []).append(one)

    def _rate(self, was: int | None, now: int) -> float | None:
        """None if there is nothing to compare with: a first look, or a channel that was made anew since."""
        if self._seconds is None or was is None or now < was:
            return None
        return (now - was) / self._seconds

    def _was(self, channel: str) -> Mapping[int, PartitionStats]:
        found = self._before.channels.get(channel, []) if self._before is not None else []
        return {one.partition: one for one in found}

    def channel(self, name: str) -> ChannelView:
        was, parts = self._was(name), self._now.channels[name]
        partitions = [self._partition(was.get(one.partition), one) for one in parts]
        readers = [self._reader(found) for found in self._readers.get(name, {}).values()]
        dead = self._now.channels.get(name + DEAD_LETTER, [])
        dead_was = self._was(name + DEAD_LETTER)
        stored = sum(one.bytes for one in parts)
        return ChannelView(
            name=name, messages=sum(one.messages for one in parts), bytes=stored,
            segments=sum(one.segments for one in parts), rate=_sum(one.rate for one in partitions),
            byte_rate=self._rate(sum(one.bytes for one in was.values()) if was else None, stored),
            lag=max((one.lag for one in readers), default=0),
            lag_s=max((one.lag_s for one in readers if one.lag_s is not None), default=None),
            live=sum(one.live for one in readers), dead_letters=self._now.dead_letters.get(name, 0),
            dead_rate=_sum(self._partition(dead_was.get(one.partition), one).rate for one in dead),
            fenced=any(one.fenced for one in parts), partitions=partitions, readers=readers,
        )  # fmt: skip

    def _partition(self, was: PartitionStats | None, now: PartitionStats) -> PartitionView:
        return PartitionView(
            partition=now.partition, first=now.first, next=now.next, bytes=now.bytes, segments=now.segments,
            rate=self._rate(was.next if was is not None else None, now.next), fenced=now.fenced,
        )  # fmt: skip

    def _reader(self, found: list[Standing]) -> ReaderView:
        """One reader, its partitions taken together."""
        first = found[0]
        rates = [
            self._rate(self._old[_key(one)].offset if _key(one) in self._old else None, one.offset) for one in found
        ]
        return ReaderView(
            kind=first.kind, name=first.name, live=any(one.live for one in found), workers=first.workers,
            offset=first.offset if len(found) == 1 else None, lag=sum(one.lag for one in found),
            lag_s=max((one.lag_s for one in found if one.lag_s is not None), default=None), rate=_sum(rates),
        )  # fmt: skip


def _key(one: Standing) -> tuple[str, str, str, int]:
    return one.kind, one.channel, one.name, one.partition


def _sum(rates: Iterable[float | None]) -> float | None:
    """Together; None if none is known."""
    known = [rate for rate in rates if rate is not None]
    return sum(known) if known else None


# -- choosing -----------------------------------------------------------------------------------------------------

SORTS: Final[dict[str, Callable[[ChannelView], float]]] = {
    "rate": lambda one: one.rate or 0.0,
    "messages": lambda one: one.messages,
    "size": lambda one: one.bytes,
    "lag": lambda one: one.lag,
    "behind": lambda one: one.lag_s or 0.0,
    "dead": lambda one: one.dead_letters,
}
"""What rows are sorted by, largest first; ``name`` is the other way round."""

ORDERS: Final = ("name", *SORTS)


def rows(
    view: View, *, contains: str = "", sort: str = "name", reverse: bool = False, dead: bool = False
) -> list[ChannelView]:
    """The channels to show, in order. Dead letters are a number of their channel unless they are asked for."""
    counted = set() if dead else {one.name + DEAD_LETTER for one in view.channels}
    found = [one for one in view.channels if contains.lower() in one.name.lower() and one.name not in counted]
    key = SORTS.get(sort)
    if key is None:
        return found[::-1] if reverse else found
    return sorted(found, key=key, reverse=not reverse)


class Watching:
    """Looks again and again, each time with the rates since the last. Safe to call from any thread."""

    def __init__(self, station: Station) -> None:
        self._station = station
        self._before: Look | None = None
        self._lock = threading.Lock()

    def view(self) -> View:
        """Everything as it is now."""
        with self._lock:
            now = look(self._station)
            view = compare(self._before, now)
            self._before = now
            return view

    def settings(self, channel: str) -> ChannelSettings | None:
        """What holds for a channel, its own or the station's; None if it is gone."""
        with self._lock:
            try:
                return self._station.engine.settings(self._station.engine.describe(channel))
            except HeliographError:
                return None

    def finish(self) -> None:
        """Wait until nobody looks any more."""
        with self._lock:
            self._before = None
