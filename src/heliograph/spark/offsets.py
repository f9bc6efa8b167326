"""Where to begin and to end: our words and Spark's, for all partitions or for each.

first, earliest                         the oldest message that is left
new, latest                             behind the newest
41                                      an offset
2026-11-15T20:30:01Z, -5m               the first message that is not older
{"alerts": {"0": 41, "1": "first"}}     each channel and partition by itself, with any of these; -2 and -1, which
                                        Spark writes for Kafka, mean earliest and latest
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from heliograph.clock import to_us
from heliograph.errors import ConfigError, InvalidMessage
from heliograph.message import parse_time
from heliograph.spark.store import Store
from heliograph.station.starts import ALLOWED, is_offset, offset_of

_WORDS: Final = {"earliest": "first", "latest": "new", -2: "first", -1: "new"}


class Places:
    """One of the options ``startingOffsets`` and ``endingOffsets``.

    >>> Places("startingOffsets", "newest", "first")
    Traceback (most recent call last):
    heliograph.errors.ConfigError: startingOffsets: 'newest' is not a start: use 'first', 'new', an offset, ...
    """

    def __init__(self, option: str, text: str, otherwise: str) -> None:
        self._option = option
        self._otherwise = otherwise  # for partitions that are not named
        self._said: Any = text.strip()
        if self._said.startswith("{"):
            try:
                self._said = msgspec.json.decode(self._said, type=dict[str, str | int | dict[str, str | int]])
            except msgspec.MsgspecError as error:
                raise ConfigError(
                    f'{option} is not understood ({error}): write {{"CHANNEL": {{"PARTITION": START}}}}, where START '
                    "is first, new, an offset or a time"
                ) from None
        for word in self._all():
            self._check(word)

    def _all(self) -> list[str | int]:
        if isinstance(self._said, str):
            return [self._said]
        found: list[str | int] = []
        for one in self._said.values():
            found += one.values() if isinstance(one, dict) else [one]
        return found

    def _check(self, word: str | int) -> None:
        word = _WORDS.get(word, word)
        if isinstance(word, int) or is_offset(word) or word in {"first", "new"} or word.startswith("-"):
            return
        try:
            parse_time(word)
        except InvalidMessage:
            raise ConfigError(f"{self._option}: {word!r} is not a start: {ALLOWED}") from None

    def check_channels(self, store: Store, names: list[str]) -> None:
        """Refuse channels and partitions that are not read: a slip would read others from where nobody wanted."""
        if not isinstance(self._said, dict):
            return
        for name, said in self._said.items():
            if name not in names:
                raise ConfigError(f"{self._option} names channel '{name}', which is not read")
            count = store.channel(name).partitions
            for number in said if isinstance(said, dict) else ():
                if number not in {str(one) for one in range(count)}:
                    raise ConfigError(f"{self._option}: channel '{name}' has no partition '{number}', {_those(count)}")

    def offset(self, store: Store, channel: str, partition: int) -> int:
        """The offset that is meant for a partition, now."""
        word = self._word(channel, partition)
        bounds = store.bounds(channel, partition)
        if word == "first":
            return bounds.first
        if word == "new":
            return bounds.next
        if isinstance(word, int) or is_offset(word):
            if str(word).startswith("-"):
                raise ConfigError(f"{self._option}: offset {word} is negative; offsets begin at 0")
            return offset_of(word)
        found = store.offset_at(channel, partition, store.moment_us(word))
        return min(found, bounds.next)

    def _word(self, channel: str, partition: int) -> str | int:
        said = self._said
        if isinstance(said, dict):
            said = said.get(channel, self._otherwise)
        if isinstance(said, dict):
            said = said.get(str(partition), self._otherwise)
        elif is_offset(str(said)):
            self._refuse_many(channel, partition)
        word = _WORDS.get(said, said)
        assert isinstance(word, str | int)
        return word

    def _refuse_many(self, channel: str, partition: int) -> None:
        if partition > 0:
            raise ConfigError(
                f"{self._option}: an offset belongs to one partition, and channel '{channel}' has several. Write "
                f'{{"{channel}": {{"{partition}": …}}}}, or use first, new or a time, which mean something for all'
            )


def _those(count: int) -> str:
    return "only 0" if count == 1 else f"only 0 to {count - 1}"


def time_us(value: Any) -> int | None:
    """A moment that Spark compares with, in µs; None if it is none."""
    from datetime import UTC, datetime

    if not isinstance(value, datetime):
        return None
    return to_us(value if value.tzinfo else value.replace(tzinfo=UTC))
