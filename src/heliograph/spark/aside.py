"""Where tasks lay messages aside and the driver publishes them: in a directory, or at a hub."""

from __future__ import annotations

import contextlib
import os
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, Protocol

import pyarrow as pa

from heliograph.errors import Busy, InvalidName, Unreachable
from heliograph.limits import SPARK_HUB_S
from heliograph.names import DEAD_LETTER
from heliograph.spark.bodies import Encoder, borders
from heliograph.spark.checking import content
from heliograph.spark.directory import Directory
from heliograph.spark.memory import keep_freed_memory
from heliograph.spark.options import WriteOptions
from heliograph.spark.remote import Remote
from heliograph.spark.staging import Settings, Stage, by_channel, portions
from heliograph.staging.publishing import drop_batch, publish_batch, tidy
from heliograph.staging.queries import ALONE

if TYPE_CHECKING:
    from heliograph.client.staging import Staging
    from heliograph.federation.batches import File

CALL_BYTES: Final = 1024 * 1024
"""How much is sent to a hub at once, unless one message is larger."""


class Aside(Protocol):
    """One place. A query is None for a batch that comes once. What ``lay`` returns is for ``publish``."""

    def prepare(self) -> None:
        """Raise what is in the way, as far as that is known before a task runs."""

    def lay(self, query: str | None, batch: str, task: str, rows: Iterator[pa.RecordBatch]) -> list[Any]:
        """In a task: lay rows aside."""

    def publish(self, query: str | None, batch: str, laid: list[Any]) -> int | None:
        """In the driver: publish what all tasks laid aside, unless that was done before; the query's newest batch."""

    def drop(self, query: str | None, batch: str) -> None:
        """In the driver: remove what tasks laid aside."""

    def tidy(self) -> None:
        """Now and then, in the driver: look after what others left."""


def aside(options: WriteOptions) -> Aside:
    """The place that the options name."""
    return InDirectory(options) if options.hub is None else AtHub(options, options.hub)


class InDirectory:
    """The data directory of a station, which all tasks and the driver reach."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options
        self._path = options.path
        self._settings = Settings()

    def prepare(self) -> None:
        """Whether there is such a directory, and what its settings say."""
        Directory(self._path).close()
        self._settings = Settings.load(self._path)

    def lay(self, query: str | None, batch: str, task: str, rows: Iterator[pa.RecordBatch]) -> list[Any]:
        """Write a file."""
        keep_freed_memory()
        return Stage(self._options, query or ALONE, batch, task, self._settings).write(rows)

    def publish(self, query: str | None, batch: str, laid: list[Any]) -> int | None:
        """Write a record, and append what it names."""
        keep_freed_memory()
        return publish_batch(self._path, query, batch, laid)

    def drop(self, query: str | None, batch: str) -> None:
        """Remove the files."""
        drop_batch(self._path, query, batch)

    def tidy(self) -> None:
        """Finish what dead drivers began, remove what dead tasks left."""
        tidy(self._path)


class AtHub:
    """A hub, which does on its disk what a driver does in a directory."""

    def __init__(self, options: WriteOptions, hub: Remote) -> None:
        self._options = options
        self._hub = hub

    def prepare(self) -> None:
        """Whether the hub is there, and lets us publish to the channel that the options name."""
        with self._hub.connect() as client:
            if self._options.channel is not None:
                client.staging().check(no_letters(self._options.channel))

    def lay(self, query: str | None, batch: str, task: str, rows: Iterator[pa.RecordBatch]) -> list[Any]:
        """Send it, some at a time; the hub checks it and knows its partitions."""
        found = portions(rows)
        first = next(found, None)
        if first is None:
            return []
        with self._hub.connect(SPARK_HUB_S) as client:
            staging = client.staging()
            encoder = Encoder(client.name, self._options, staging.bytes_max())
            sending = _Sending(staging, encoder, query or ALONE, batch, f"{task}-{os.urandom(4).hex()}")
            for portion in chain([first], found):
                for channel, some in by_channel(portion, self._options.channel):
                    sending.send(channel, some)
            return list(sending.files)

    def publish(self, query: str | None, batch: str, laid: list[Any]) -> int | None:
        """Ask for it until it is done."""
        with self._hub.connect(SPARK_HUB_S) as client:
            return client.staging().commit(batch, laid, query=query or ALONE)

    def drop(self, query: str | None, batch: str) -> None:
        """Ask for it; what stays the hub sweeps."""
        with contextlib.suppress(Busy, Unreachable), self._hub.connect() as client:
            client.staging().abort(batch, query=query or ALONE)

    def tidy(self) -> None:
        """The hub does that by itself."""


class _Sending:
    """One try of one task."""

    def __init__(self, staging: Staging, encoder: Encoder, query: str, batch: str, name: str) -> None:
        self._staging = staging
        self._encoder = encoder
        self._query = query
        self._batch = batch
        self._name = name
        self._size = min(CALL_BYTES, staging.bytes_max())
        self.files: list[File] = []

    def send(self, channel: str, rows: pa.Table) -> None:
        """Lay rows aside that go to one channel."""
        lines = self._encoder.events(no_letters(channel), rows)
        data = memoryview(content(lines))
        for begin, end in cuts(borders(lines), self._size):
            name = f"{self._name}-{len(self.files)}"
            events = bytes(data[begin : end - 1])  # the last one needs no newline
            self.files.append(self._staging.stage(self._batch, name, channel, events, query=self._query))


def no_letters(channel: str) -> str:
    """The channel, unless it holds dead letters, which only the hub's own station may write."""
    if channel.endswith(DEAD_LETTER):
        raise InvalidName(
            f"'{channel}': dead letters cannot be written through a hub, whose own subscribers replay them. Write them "
            "with option 'path', where that station is, or to a channel with another name"
        )
    return channel


def cuts(borders: Sequence[int], size: int) -> Iterator[tuple[int, int]]:
    """Where to cut texts that stand behind each other so that pieces have about a size at most, and at least one text.

    >>> list(cuts([0, 4, 8, 30, 31, 32], 10))
    [(0, 8), (8, 30), (30, 32)]
    """
    at = 0
    while at < len(borders) - 1:
        end = max(at + 1, bisect_right(borders, borders[at] + size) - 1)
        yield borders[at], borders[end]
        at = end
