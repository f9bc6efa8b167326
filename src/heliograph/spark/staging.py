"""Tasks that write to a directory: they lay messages aside in a file until the driver publishes all of a batch.

The file is synced before what is where goes to the driver with the task's result: the driver's record relies on it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple, Self

import google_crc32c
import pyarrow as pa
import pyarrow.compute as pc

from heliograph import config as configs
from heliograph.config import Messages, Storage
from heliograph.delivery.deadletter import DEAD_LETTER_TYPE
from heliograph.disk import SYSTEM_DISK, explaining
from heliograph.errors import InvalidMessage, InvalidName
from heliograph.limits import SPARK_APPEND_BYTES
from heliograph.log.beginnings import Run
from heliograph.log.stamping import sums_of
from heliograph.names import DEAD_LETTER, check_name, check_ownable, check_publishable
from heliograph.spark.bodies import Encoder, partitions_of
from heliograph.spark.checking import content
from heliograph.spark.directory import Directory
from heliograph.spark.options import WriteOptions
from heliograph.staging.files import SUFFIX, SUMS, Section, folder, make_folder

ENVELOPE_BYTES: Final = 200
"""About what a message has beside its payload."""


def portions(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Rows, as many at once as are written at once."""
    for batch in batches:
        _check_texts(batch)
        schema = usual_schema(batch.schema)
        # Beside what is in the rows each becomes an envelope: many small rows are a lot, too.
        step = max(1, batch.num_rows * SPARK_APPEND_BYTES // max(1, batch.nbytes + batch.num_rows * ENVELOPE_BYTES))
        for at in range(0, batch.num_rows, step):
            rows = pa.Table.from_batches([batch.slice(at, step)])
            yield rows if schema == batch.schema else rows.cast(schema)


def usual_schema(schema: pa.Schema) -> pa.Schema:
    """The same in the types that everything behind here knows: Spark has others where a session's settings say so."""
    return pa.schema([_usual(field) for field in schema])


def _usual(field: pa.Field) -> pa.Field:
    kind = field.type
    if pa.types.is_large_string(kind):  # spark.sql.execution.arrow.useLargeVarTypes
        kind = pa.string()
    elif pa.types.is_large_binary(kind):
        kind = pa.binary()
    elif pa.types.is_timestamp(kind) and kind.tz is not None:
        # Python does not know all of Spark's zones, and of those that it does the seconds of long ago would get lost.
        kind = pa.timestamp(kind.unit, "UTC")
    elif pa.types.is_struct(kind):
        kind = pa.struct([_usual(kind.field(at)) for at in range(kind.num_fields)])
    elif pa.types.is_list(kind):
        kind = pa.list_(_usual(kind.value_field))
    elif pa.types.is_map(kind):
        kind = pa.map_(_usual(kind.key_field), _usual(kind.item_field))
    return field.with_type(kind)


def _check_texts(batch: pa.RecordBatch) -> None:
    """Refuse bytes that Spark took for text, from a file in Latin-1 for example: no reader could decode the message."""
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        try:
            column.validate(full=True)
        except pa.ArrowInvalid as error:
            raise InvalidMessage(
                f"column '{name}' holds text that is not UTF-8 ({error}). Convert it with decode(…, charset) or "
                "make_valid_utf8(…), or publish it as column 'bytes'"
            ) from None


def by_channel(rows: pa.Table, otherwise: str | None) -> Iterator[tuple[str, pa.Table]]:
    """Rows by where they go: what their column says, else ``otherwise``."""
    if "channel" not in rows.column_names:
        yield check_name(otherwise), rows
        return
    names = pc.coalesce(rows["channel"].cast(pa.string()), pa.scalar(otherwise, pa.string()))
    for name in pc.unique(names).to_pylist():
        if name is None:
            raise InvalidName("column 'channel' is null in a row, and there is no option 'channel': where to?")
        yield check_name(name), rows.filter(pc.fill_null(pc.equal(names, name), False))


def _letters(rows: pa.Table, kind: str | None) -> bool:
    """Whether all rows are dead letters: a pipeline may give messages up, too."""
    kinds = pc.unique(rows["type"]).to_pylist() if "type" in rows.column_names else [None]
    return {one or kind for one in kinds} == {DEAD_LETTER_TYPE}


class Settings(NamedTuple):
    """What of the station's configuration tasks need, which may run where it is not."""

    storage: Storage = Storage()
    messages: Messages = Messages()

    @classmethod
    def load(cls, path: str) -> Self:
        """Those of a station's directory."""
        config = configs.load(None, data_dir=path)
        return cls(config.storage, config.messages)


class Stage:
    """One try of one task."""

    def __init__(self, options: WriteOptions, query: str, batch: str, name: str, settings: Settings) -> None:
        self._options = options
        self._directory = Directory(options.path, storage=settings.storage)
        self._encoder = Encoder(self._directory.engine.name, options, settings.messages.max_bytes)
        self._place = (self._directory.root, query, batch)
        self._folder = folder(*self._place)
        self._name = f"{name}-{os.urandom(4).hex()}{SUFFIX}"
        self._fd = self._sums_fd = -1
        self._position = self._sums_position = 0
        self._sections: list[Section] = []
        self._counts: dict[str, int] = {}
        self._turn = int.from_bytes(os.urandom(4), "little")

    @explaining("cannot lay messages aside")
    def write(self, batches: Iterator[pa.RecordBatch]) -> list[Section]:
        """Lay all rows aside; where they are."""
        try:
            for portion in portions(batches):
                for channel, rows in by_channel(portion, self._options.channel):
                    self._write_channel(channel, rows)
            if self._fd >= 0:
                SYSTEM_DISK.fdatasync(self._fd)
                SYSTEM_DISK.sync_directory(self._folder)
            return self._sections
        except BaseException:
            self._discard()
            raise
        finally:
            self._close()

    def _write_channel(self, channel: str, rows: pa.Table) -> None:
        if channel.endswith(DEAD_LETTER) and _letters(rows, self._options.type):
            self._write_part(channel, 0, rows)  # where all who look for them look
            return
        check_publishable(channel)
        count = self._partitions(channel)
        self._turn += 1
        if count == 1 or "key" not in rows.column_names:
            self._write_part(channel, self._turn % count, rows)
            return
        places = pc.fill_null(partitions_of(rows["key"], count), self._turn % count)
        for number in pc.unique(places).to_pylist():
            self._write_part(channel, number, rows.filter(pc.equal(places, number)))

    def _partitions(self, channel: str) -> int:
        if channel not in self._counts:
            file = self._directory.find(channel)
            self._counts[channel] = self._new_partitions(channel) if file is None else file.partitions
        return self._counts[channel]

    def _new_partitions(self, channel: str) -> int:
        """How many a channel will have that is made when the batch is published; an error if it is not made."""
        engine = self._directory.engine
        if engine.makes(channel):
            return engine.config.storage.partitions
        check_ownable(channel)
        return self._directory.channel(channel).partitions

    def _write_part(self, channel: str, partition: int, rows: pa.Table) -> None:
        bodies = self._encoder.bodies(channel, rows)
        data = content(bodies.texts)
        sums = sums_of(data, [] if bodies.begin is None else [Run(bodies.begin, len(rows))])
        if self._fd < 0:
            make_folder(*self._place)
            path, flags = self._folder / self._name, os.O_WRONLY | os.O_CREAT | os.O_EXCL
            self._fd = SYSTEM_DISK.open(path, flags)
            self._sums_fd = SYSTEM_DISK.open(path.with_suffix(SUMS), flags)
        SYSTEM_DISK.write_all(self._fd, data)
        SYSTEM_DISK.start_sync(self._fd, self._position, len(data))  # or the task waits for all of it at its end
        SYSTEM_DISK.write_all(self._sums_fd, sums)
        self._sections.append(
            Section(
                str(Path(self._folder.parent.name, self._folder.name, self._name)),
                channel,
                partition,
                len(rows),
                self._position,
                len(data),
                google_crc32c.value(data),
                bodies.times_us,
                (self._sums_position, google_crc32c.value(sums)),
                bodies.begin,
            )
        )
        self._position += len(data)
        self._sums_position += len(sums)

    def _close(self) -> None:
        for fd in (self._fd, self._sums_fd):
            if fd >= 0:
                SYSTEM_DISK.close(fd)
        self._fd = self._sums_fd = -1
        self._directory.close()

    def _discard(self) -> None:
        path = self._folder / self._name
        for one in (path, path.with_suffix(SUMS)):
            with contextlib.suppress(OSError):
                SYSTEM_DISK.unlink(one)
