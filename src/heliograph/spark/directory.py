"""A station's directory as Spark sees it: read only, without a trace or a lock, and only what is on disk for sure."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from heliograph.config import Config, Storage
from heliograph.disk import SYSTEM_DISK, Disk
from heliograph.engine.files import FilesEngine
from heliograph.engine.port import Bounds
from heliograph.errors import NotFound
from heliograph.log import pieces, seek
from heliograph.log.channel import ChannelFile
from heliograph.log.head import Limit
from heliograph.log.pieces import Piece
from heliograph.spark.options import Channels
from heliograph.spark.store import Cutting, Spot
from heliograph.station.starts import moment_us


class Directory:
    """The channels of one station: a Store. Close it, or use it as a context manager."""

    def __init__(self, path: str, disk: Disk = SYSTEM_DISK, storage: Storage | None = None) -> None:
        config = Config() if storage is None else Config(storage=storage)
        self.engine = FilesEngine(Path(path), config, read_only=True, disk=disk)
        self.disk = self.engine.disk
        self.root = self.engine.root

    def look(self, channels: Channels | None, more: Iterable[str] = ()) -> list[str]:
        """Which channels are meant: those that are named, there or not, and what matches."""
        meant = [] if channels is None else channels.among(self.engine.channel_names())
        return list(dict.fromkeys([*meant, *more]))

    def among(self, channels: Channels) -> list[str]:
        """The channels that are meant and there. One that is named and not there is an error."""
        return [self.channel(name).name for name in self.look(channels)]

    def channel(self, name: str) -> ChannelFile:
        """channel.json."""
        return self.engine.describe(name)

    def find(self, name: str) -> ChannelFile | None:
        """channel.json; None if there is no such channel any more."""
        try:
            return self.engine.describe(name)
        except NotFound:
            return None

    def limit(self, channel: str, partition: int) -> Limit:
        """How far a partition is on disk."""
        return self.engine.durable_limit(channel, partition)

    def bounds(self, channel: str, partition: int) -> Bounds:
        """What of a partition can be read."""
        limit = self.limit(channel, partition)
        return Bounds(limit.first, limit.next)

    def log(self, channel: str, partition: int) -> seek.Log:
        """A partition for whoever reads its bytes, who goes no further than somebody found it to be on disk."""
        return self.engine.log(channel, partition)

    def moment_us(self, text: str) -> int:
        """A time, or an age such as ``-5m``, in µs since the epoch."""
        return moment_us(self.engine, text)

    def offset_at(self, channel: str, partition: int, moment_us: int) -> int:
        """The first offset that is not older than a moment."""
        return seek.offset_at(self.log(channel, partition), moment_us, self.disk)

    def id_at(self, channel: str, partition: int, offset: int) -> str:
        """The id of the message at an offset; empty if there is none."""
        with contextlib.suppress(NotFound):
            return seek.id_at(self.log(channel, partition), offset, self.disk)
        return ""

    def ids(self, spots: Sequence[Spot]) -> list[str]:
        """The ids of some messages; empty where there is none."""
        return [self.id_at(*spot) for spot in spots]

    def cut(self, asked: Sequence[Cutting]) -> list[list[Piece]]:
        """The pieces of some stretches. Of what is not there any more it is the one who reads it that is told."""
        return [self._cut(one) for one in asked]

    def _cut(self, asked: Cutting) -> list[Piece]:
        folder = self.log(asked.channel, asked.partition).place.directory
        try:
            return pieces.cut(folder, self.limit(asked.channel, asked.partition), asked.wish, self.disk)[0]
        except (NotFound, FileNotFoundError):
            return [Piece(asked.wish.first, asked.wish.next, 0)]

    def schemas(self, channels: Sequence[str], type_name: str) -> list[dict[str, Any]]:
        """The newest schema of a type in each of some channels that knows it."""
        found = (self.engine.schemas.versions(channel, type_name) for channel in channels)
        return [versions[-1].schema for versions in found if versions]

    def close(self) -> None:
        """Let go of its files."""
        self.engine.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
