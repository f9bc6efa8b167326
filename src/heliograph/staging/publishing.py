"""What the driver does: publishes what all tasks of a batch laid aside, all of it and once, whatever dies when.

    spark/QUERY.json    {"batch":"7","done":false,"firsts":{"alerts":1001},"sections":[…]}
    spark/QUERY.lock    held while a batch is published

    nothing ──record written, not done──▶ happened ──everything appended──▶ record says done ──▶ staged files removed

With the first record, synced, the batch has happened: whoever comes next publishes what is left of it, from the
files that the record names, whatever else was laid aside for that batch since. The messages are those of a producer
whose id is the query's. Section after section gets the next numbers, a partition after the other, so the log itself
says how much of it is there. A batch that is done is recognised by its number, for ever.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Final, Self

import google_crc32c
import msgspec

from heliograph.clock import SYSTEM_CLOCK
from heliograph.disk import SYSTEM_DISK, explaining
from heliograph.errors import Damaged, HeliographError
from heliograph.limits import BATCH_MESSAGES_MAX, SPARK_APPEND_BYTES, SPARK_LOCK_S, SPARK_STAGED_S
from heliograph.log.locks import FileLock
from heliograph.names import check_name
from heliograph.spark.staging import FOLDER, STAGED, Section, discard, sweep
from heliograph.station.producer import Producer
from heliograph.station.station import open_station

ALONE: Final = "batches"
"""The query that single batches belong to: one after the other, each with a name of its own."""


class Record(msgspec.Struct, frozen=True):
    """The last batch of a query."""

    batch: str
    done: bool
    firsts: dict[str, int] = {}  # the number of its first message in each channel
    sections: list[Section] = []


_decode: Final = msgspec.json.Decoder(Record).decode


def publish_batch(path: str, query: str | None, batch: str, sections: list[Section]) -> None:
    """Publish a batch of a query, unless that was done before; without a query a batch that comes once."""
    name = query or ALONE
    with Publishing(path, name) as publishing:
        record = publishing.finished()
        if query is not None and record is not None and int(record.batch) >= int(batch):
            discard(publishing.root, name, batch)
            return
        if sections:
            publishing.begin(batch, sections)
            publishing.finished()
        discard(publishing.root, name, batch)


def drop_batch(path: str, query: str | None, batch: str) -> None:
    """A batch failed: remove what its tasks laid aside, unless it has happened."""
    root = Path(path)
    record = _load(root, query or ALONE)
    if record is None or record.done or record.batch != batch:
        discard(root, query or ALONE, batch)


class Publishing:
    """One query's turn to publish."""

    def __init__(self, path: str, query: str) -> None:
        self.root = Path(path)
        self._query = check_name(query, "query")
        lock = _lock(self.root, query)
        self._opened: Producer | None = None
        self._closing = contextlib.ExitStack()
        self._closing.callback(lock.release)
        try:
            lock.exclusive(SYSTEM_CLOCK, SPARK_LOCK_S)
        except BaseException:
            lock.release()
            raise

    def begin(self, batch: str, sections: list[Section]) -> None:
        """From here on the batch has happened."""
        producer = self._producer()
        firsts = {channel: producer.last(channel) + 1 for channel in {one.channel for one in sections}}
        ordered = sorted(sections, key=lambda one: (one.channel, one.partition))  # else as the tasks have them
        _save(self.root, self._query, Record(batch, False, firsts, ordered))

    def finished(self) -> Record | None:
        """The last batch, after publishing what is left of it."""
        record = _load(self.root, self._query)
        if record is None or record.done:
            return record
        producer = self._producer()
        record = self._renumbered(producer, record)
        numbers = dict(record.firsts)
        for section in record.sections:
            self._publish(producer, section, numbers[section.channel])
            numbers[section.channel] += section.count
        done = Record(record.batch, True)
        _save(self.root, self._query, done)
        discard(self.root, self._query, record.batch)
        return done

    def _renumbered(self, producer: Producer, record: Record) -> Record:
        """A channel that was deleted, or restored, since the record was written has not the numbers before it."""
        firsts = {channel: min(first, producer.last(channel) + 1) for channel, first in record.firsts.items()}
        if firsts != record.firsts:
            record = msgspec.structs.replace(record, firsts=firsts)
            _save(self.root, self._query, record)
        return record

    def _publish(self, producer: Producer, section: Section, first: int) -> None:
        if first + section.count - 1 <= producer.last(section.channel):
            return
        lines = _read(self.root, section).split(b"\n")
        heads, payloads = lines[0:-1:2], lines[1::2]
        step = max(1, min(BATCH_MESSAGES_MAX, section.count * SPARK_APPEND_BYTES // max(1, section.length)))
        for at in range(0, section.count, step):
            producer.publish_encoded(
                section.channel, section.partition, heads[at : at + step], payloads[at : at + step],
                seq=first + at, times_us=section.times_us,
            )  # fmt: skip

    def _producer(self) -> Producer:
        """The query as a producer, opened when there is something to publish."""
        if self._opened is None:
            station = self._closing.enter_context(open_station(self.root))
            self._opened = self._closing.enter_context(station.producer(f"spark.{self._query}"))
        return self._opened

    def close(self) -> None:
        """Let others have their turn."""
        self._closing.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@explaining("cannot tidy up after Spark jobs")
def tidy(path: str) -> None:
    """Finish what dead drivers began to publish, and remove what dead tasks laid aside."""
    root = Path(path)
    keep: set[str] = set()
    for found in sorted((root / FOLDER).glob("*.json")):
        record = _load(root, found.stem)
        if record is None or record.done:
            continue
        keep.add(f"{found.stem}/{record.batch}")
        lock = _lock(root, found.stem)
        free = lock.free()
        lock.release()
        if free:
            with contextlib.suppress(HeliographError), Publishing(path, found.stem) as publishing:
                publishing.finished()
    sweep(root, SPARK_STAGED_S, frozenset(keep))


# -- files ------------------------------------------------------------------------------------------------------------


def _lock(root: Path, query: str) -> FileLock:
    (root / FOLDER).mkdir(exist_ok=True)
    return FileLock(root / FOLDER / f"{query}.lock", SYSTEM_DISK)


def _load(root: Path, query: str) -> Record | None:
    try:
        return _decode(SYSTEM_DISK.read_file(root / FOLDER / f"{query}.json"))
    except FileNotFoundError:
        return None
    except msgspec.MsgspecError as error:
        raise Damaged(
            f"{root / FOLDER / query}.json cannot be read ({error}): it says which batch of the query is published. "
            "Remove it only if the query begins anew, with another checkpoint."
        ) from None


def _save(root: Path, query: str, record: Record) -> None:
    SYSTEM_DISK.replace_file(root / FOLDER / f"{query}.json", msgspec.json.encode(record) + b"\n")


def _read(root: Path, section: Section) -> bytes:
    path = root / FOLDER / STAGED / section.file
    try:
        fd = SYSTEM_DISK.open(path, os.O_RDONLY)
    except FileNotFoundError:
        raise Damaged(f"{path} is gone, though the batch it belongs to is not published as a whole") from None
    try:
        data = SYSTEM_DISK.read_range(fd, section.length, section.position)
    finally:
        SYSTEM_DISK.close(fd)
    if len(data) != section.length or google_crc32c.value(data) != section.crc:
        raise Damaged(f"{path} is damaged, though the batch it belongs to is not published as a whole")
    return data
