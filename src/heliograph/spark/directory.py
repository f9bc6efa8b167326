"""A station's directory as Spark sees it: read only, without a trace or a lock, and only what is on disk for sure."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Self

from heliograph.config import Config
from heliograph.disk import SYSTEM_DISK, Disk
from heliograph.engine.files import FilesEngine
from heliograph.engine.port import Bounds
from heliograph.errors import NotFound
from heliograph.log import seek
from heliograph.log.channel import ChannelFile
from heliograph.log.held import Limit
from heliograph.spark.options import Channels


class Directory:
    """The channels of one station. Close it, or use it as a context manager."""

    def __init__(self, path: str, disk: Disk = SYSTEM_DISK) -> None:
        self.engine = FilesEngine(Path(path), Config(), read_only=True, disk=disk)
        self.disk = self.engine.disk
        self.root = self.engine.root

    def among(self, channels: Channels) -> list[str]:
        """The channels that are meant and there. One that is named and not there is an error."""
        there = self.engine.channel_names()
        return [self.engine.describe(name).name for name in channels.among(there)]

    def find(self, channel: str) -> ChannelFile | None:
        """channel.json; None if there is no such channel any more."""
        try:
            return self.engine.describe(channel)
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

    def offset_at(self, channel: str, partition: int, moment_us: int) -> int:
        """The first offset that is not older than a moment."""
        return seek.offset_at(self.log(channel, partition), moment_us, self.disk)

    def id_at(self, channel: str, partition: int, offset: int) -> str:
        """The id of the message at an offset; empty if there is none."""
        import msgspec

        line = seek.line_at(self.log(channel, partition), offset, self.disk) if offset >= 0 else None
        try:
            found = msgspec.json.decode(line or b"null")
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return ""
        return str(found.get("id", "")) if isinstance(found, dict) else ""

    def close(self) -> None:
        """Let go of its files."""
        self.engine.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
