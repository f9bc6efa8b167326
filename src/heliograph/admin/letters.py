"""Reading dead letters: one by one, by reference, and grouped by what went wrong."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

import msgspec

from heliograph.admin.where import Where
from heliograph.errors import ConfigError, InvalidMessage, NotFound
from heliograph.message import Message, parse_time
from heliograph.names import DEAD_LETTER, check_name
from heliograph.station import Station
from heliograph.station.reader import message_at


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True):
    """A message whose handler gave up, and why. ``id`` and ``offset`` are the letter's own."""

    id: str
    offset: int
    channel: str
    partition: int
    original_offset: int
    incarnation: str
    subscription: str
    reason: str
    error: str
    error_type: str
    traceback: str
    attempts: int
    failed_at: datetime
    original: dict[str, Any] | None
    original_base64: str | None
    group: str | None = None
    queue: str | None = None
    worker: str | None = None
    peer: str | None = None
    """Who refused it, if that was the other end of a link."""

    @property
    def original_id(self) -> str | None:
        """The original's id."""
        return self._text("id")

    @property
    def type(self) -> str | None:
        """The original's type."""
        return self._text("type")

    @property
    def key(self) -> str | None:
        """The original's partition key."""
        return self._text("partitionkey")

    @property
    def kind(self) -> str:
        """What gave it up: a ``plain`` subscription, a ``group`` or a ``queue``."""
        return "group" if self.group else "queue" if self.queue else "plain"

    @property
    def replays(self) -> int:
        """How often the original had been replayed before it failed this time."""
        count = (self.original or {}).get("replaycount", 0)
        return count if isinstance(count, int) else 0

    @property
    def replayable(self) -> bool:
        """Whether the original can be published again."""
        return self.original is not None

    def _text(self, name: str) -> str | None:
        value = (self.original or {}).get(name)
        return value if isinstance(value, str) else None

    def record(self) -> dict[str, Any]:
        """What conditions see: the letter's fields, and beside them those of the original."""
        own = {name: getattr(self, name) for name in self.__struct_fields__}
        return {**(self.original or {}), **own}


class DeadGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Letters of one channel that failed for the same reason, in the same subscription.

    ``workers`` (of a group or a queue) gave them up after up to ``attempts`` calls of the handler, or deliveries.
    """

    channel: str
    reason: str
    error_type: str
    subscription: str
    kind: str
    count: int
    first: datetime
    last: datetime
    attempts: int
    workers: list[str]
    replayed: int


def original_channel(channel: str) -> str:
    """The channel whose letters are meant: both its name and that of its dead letters are understood."""
    return check_name(channel).removesuffix(DEAD_LETTER)


def to_letter(message: Message) -> DeadLetter:
    """A stored letter. One that is not ours has the reason ``unknown`` and cannot be replayed."""
    data: Mapping[str, Any] = message.data if isinstance(message.data, Mapping) else {}
    original = data.get("original")
    failed_at = message.time
    with contextlib.suppress(InvalidMessage, TypeError):
        failed_at = parse_time(data.get("failed_at", message.time))
    return DeadLetter(
        id=message.id,
        offset=message.offset,
        channel=original_channel(message.channel),
        partition=_whole(data, "partition"),
        original_offset=_whole(data, "offset"),
        incarnation=_string(data, "incarnation"),
        subscription=_string(data, "subscription"),
        reason=_string(data, "reason") or "unknown",
        error=_string(data, "error"),
        error_type=_string(data, "error_type"),
        traceback=_string(data, "traceback"),
        attempts=_whole(data, "attempts"),
        failed_at=failed_at,
        original=original if isinstance(original, dict) else None,
        original_base64=_string(data, "original_base64") or None,
        group=_string(data, "group") or None,
        queue=_string(data, "queue") or None,
        worker=_string(data, "worker") or None,
        peer=_string(data, "peer") or None,
    )


def _string(data: Mapping[str, Any], name: str) -> str:
    value = data.get(name)
    return value if isinstance(value, str) else ""


def _whole(data: Mapping[str, Any], name: str) -> int:
    value = data.get(name)
    return value if isinstance(value, int) else 0


def each(station: Station, channel: str | None, where: Where | None) -> Iterator[tuple[DeadLetter, Message]]:
    """The letters of a channel (or of all) as of now, with the messages that they are."""
    for name in dead_channels(station, channel):
        with contextlib.suppress(NotFound):  # deleted meanwhile
            for message in station.read(name):
                letter = to_letter(message)
                if not where or where.fits(letter.record()):
                    yield letter, message


def dead_channels(station: Station, channel: str | None) -> list[str]:
    """The channels of dead letters that there are: of one channel, which must be there, or of all."""
    names = station.engine.channel_names()
    if channel is None:
        return [name for name in names if name.endswith(DEAD_LETTER)]
    original = original_channel(channel)
    if original + DEAD_LETTER in names:
        return [original + DEAD_LETTER]
    if original not in names:
        raise NotFound(f"there is no channel '{original}' in {station.path}")
    return []


def letters(station: Station, channel: str | None = None, where: Where | None = None) -> Iterator[DeadLetter]:
    """The dead letters of a channel, or of all channels, oldest first."""
    for letter, _ in each(station, channel, where):
        yield letter


def find(station: Station, reference: str | int, channel: str | None = None) -> DeadLetter:
    """A letter by its id, its original's id, or (with the channel) its offset among the dead letters."""
    names = dead_channels(station, channel)
    if isinstance(reference, int):
        if channel is None:
            raise ConfigError("an offset alone does not say which letter: name the channel, too")
        message = message_at(station.engine, names[0], 0, reference) if names else None
        if message is not None:
            return to_letter(message)
    else:
        for name in names:
            message = station.get(reference, name)
            if message is not None:
                return to_letter(message)
        for letter, _ in each(station, channel, None):
            if letter.original_id == reference:
                return letter
    raise NotFound(f"there is no dead letter {reference!r}" + (f" of channel '{channel}'" if channel else ""))


def summary(station: Station, channel: str | None = None, where: Where | None = None) -> list[DeadGroup]:
    """How many letters there are, by channel, reason, kind of error and subscription; most first."""
    groups: dict[tuple[str, ...], DeadGroup] = {}
    for letter, _ in each(station, channel, where):
        key = (letter.channel, letter.reason, letter.error_type, letter.subscription, letter.kind)
        known = groups.get(key)
        groups[key] = _joined(letter, known or _empty(letter))
    return sorted(groups.values(), key=lambda group: (group.channel, -group.count, group.reason, group.error_type))


def _empty(letter: DeadLetter) -> DeadGroup:
    """The group that a letter belongs to, before it is counted."""
    return DeadGroup(
        channel=letter.channel, reason=letter.reason, error_type=letter.error_type, subscription=letter.subscription,
        kind=letter.kind, count=0, first=letter.failed_at, last=letter.failed_at, attempts=0, workers=[], replayed=0,
    )  # fmt: skip


def _joined(letter: DeadLetter, group: DeadGroup) -> DeadGroup:
    """The group with one letter more."""
    return msgspec.structs.replace(
        group,
        count=group.count + 1,
        first=min(group.first, letter.failed_at),
        last=max(group.last, letter.failed_at),
        attempts=max(group.attempts, letter.attempts),
        workers=sorted({*group.workers, letter.worker}) if letter.worker else group.workers,
        replayed=group.replayed + bool(letter.replays),
    )
