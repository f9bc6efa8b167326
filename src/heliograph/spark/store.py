"""What planning asks of a station, be it a directory that is here or a hub that is asked."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Any, NamedTuple, Protocol, Self

from heliograph.engine.port import Bounds
from heliograph.log.pieces import Piece, Wish
from heliograph.spark.options import Channels


class Life(Protocol):
    """What is known of a channel."""

    @property
    def incarnation(self) -> str:
        """Which life it is."""

    @property
    def partitions(self) -> int:
        """How many it has."""


class Spot(NamedTuple):
    """The message at an offset."""

    channel: str
    partition: int
    offset: int


class Cutting(NamedTuple):
    """A stretch of a partition that is to be cut."""

    channel: str
    partition: int
    wish: Wish


class Store(Protocol):
    """The channels of one station, read only, and as far as they are on disk for sure."""

    def look(self, channels: Channels | None, more: Iterable[str] = ()) -> list[str]:
        """Which channels are meant: those that are named, there or not, and what matches. All are asked about now."""

    def among(self, channels: Channels) -> list[str]:
        """The channels that are meant and there. One that is named and not there is an error."""

    def channel(self, name: str) -> Life:
        """What is known of a channel; NotFound if there is none."""

    def find(self, name: str) -> Life | None:
        """The same; None if there is no such channel any more."""

    def bounds(self, channel: str, partition: int) -> Bounds:
        """What of a partition can be read."""

    def moment_us(self, text: str) -> int:
        """A time, or an age such as ``-5m``, in µs since the epoch."""

    def offset_at(self, channel: str, partition: int, moment_us: int) -> int:
        """The first offset that is not older than a moment."""

    def ids(self, spots: Sequence[Spot]) -> list[str]:
        """The ids of some messages; empty where there is none."""

    def cut(self, asked: Sequence[Cutting]) -> list[list[Piece]]:
        """The pieces of some stretches."""

    def schemas(self, channels: Sequence[str], type_name: str) -> list[dict[str, Any]]:
        """The newest schema of a type in each of some channels that knows it."""

    def close(self) -> None:
        """Let go of it."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
