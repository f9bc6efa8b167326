"""Publishes what was laid aside for a batch, all of it and once, whatever dies when.

    spark/QUERY.json    {"batch":"7","done":false,"firsts":{"alerts":1001},"sections":[…]}
    spark/QUERY.lock    held while a batch is published

    nothing ──record written, not done──▶ happened ──everything appended──▶ record says done ──▶ staged files removed

With the first record, synced, the batch has happened: whoever comes next publishes what is left of it, from the
files that the record names, whatever else was laid aside for that batch since. The messages are those of a producer
whose id is the query's. Section after section gets the next numbers, a partition after the other, so the log itself
says how much of it is there. A batch that is done is recognised by its number, for ever; one that has a name instead,
as long as its name is among the last ones of its query.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Final, Self

import msgspec

from heliograph.clock import SYSTEM_CLOCK
from heliograph.disk import SYSTEM_DISK, explaining
from heliograph.errors import Damaged, HeliographError, OutcomeUnknown, StorageError
from heliograph.limits import SPARK_LOCK_S, SPARK_NAMES_MAX, SPARK_STAGED_S
from heliograph.log.locks import FileLock
from heliograph.names import check_name
from heliograph.staging.appending import publish_sections
from heliograph.staging.files import FOLDER, Section, Swept, check_laid, discard, discard_through, sweep
from heliograph.staging.queries import ALONE, is_numbered
from heliograph.station.producer import Producer
from heliograph.station.station import Station, open_station

logger = logging.getLogger("heliograph.staging")


class Record(msgspec.Struct, frozen=True, omit_defaults=True):
    """The last batch of a query."""

    batch: str
    done: bool
    firsts: dict[str, int] = {}  # the number of its first message in each channel
    sections: list[Section] = []
    before: list[str] = []  # the names of those before it, if batches have names

    def knows(self, batch: str, *, numbered: bool) -> bool:
        """Whether a batch has happened."""
        if numbered:
            return int(self.batch) >= int(batch)
        return batch == self.batch or batch in self.before


_decode: Final = msgspec.json.Decoder(Record).decode
Enough = Callable[[], bool]


def _never() -> bool:
    return False


def publish_batch(path: str, query: str | None, batch: str, sections: list[Section]) -> int | None:
    """Publish a batch of a query, unless that was done before; without a query a batch that comes once.

    The number of the newest batch of the query.
    """

    def found() -> list[Section]:
        check_laid(Path(path), sections)
        return sections

    with Publishing(path, query or ALONE) as publishing:
        publishing.publish(batch, found)
        return publishing.newest()


def drop_batch(path: str, query: str | None, batch: str) -> None:
    """A batch failed: remove what its tasks laid aside, unless it has happened."""
    with Publishing(path, query or ALONE) as publishing:
        publishing.drop(batch)


class Publishing:
    """One query's turn to publish. Busy if it was not had in time.

    ``station``: the one to publish with; without, one is opened.
    """

    def __init__(
        self, path: str | Path, query: str, *, station: Station | None = None, wait_s: float = SPARK_LOCK_S
    ) -> None:
        self.root = Path(path)
        self._query = check_name(query, "query")
        self._numbered = is_numbered(query)
        self._station = station
        lock = _lock(self.root, query)
        self._opened: Producer | None = None
        self._closing = contextlib.ExitStack()
        self._closing.callback(lock.release)
        try:
            lock.exclusive(SYSTEM_CLOCK, wait_s)
        except BaseException:
            lock.release()
            raise

    def publish(self, batch: str, sections: Callable[[], list[Section]], enough: Enough = _never) -> bool:
        """Publish a batch, unless that was done before; whether it is done by now.

        ``sections`` is asked for what belongs to it, if it has not happened. ``enough``: whether to go on another time.
        """
        try:
            return self._publish(batch, sections, enough)
        except Damaged:
            raise  # it says what to do
        except StorageError as error:
            if not self.under_way(batch):
                raise
            raise OutcomeUnknown(
                f"the batch has happened, and is not published as a whole ({error}): whoever publishes a batch here "
                "next publishes what is left of it. Start a stream again; do not write a table again, or its messages "
                "will be there twice"
            ) from error

    def _publish(self, batch: str, sections: Callable[[], list[Section]], enough: Enough) -> bool:
        record = self.finished(enough)
        if record is not None and not record.done:
            return False
        if record is None or not record.knows(batch, numbered=self._numbered):
            found = sections()
            if found:
                self.begin(batch, found)
                record = self.finished(enough)
                if record is not None and not record.done:
                    return False
        self._discard(batch)
        return True

    def newest(self) -> int | None:
        """The number of the last batch that has happened, if batches have numbers and there is one."""
        record = load(self.root, self._query) if self._numbered else None
        return None if record is None else int(record.batch)

    def drop(self, batch: str) -> None:
        """Remove what was laid aside for a batch, unless it has happened and is not yet published as a whole."""
        if not self.under_way(batch):
            discard(self.root, self._query, batch)

    def under_way(self, batch: str) -> bool:
        """Whether a batch has happened and is not yet published as a whole."""
        record = load(self.root, self._query)
        return record is not None and not record.done and record.batch == batch

    def begin(self, batch: str, sections: list[Section]) -> None:
        """From here on the batch has happened."""
        producer = self._producer()
        last = load(self.root, self._query)
        before = [] if last is None or self._numbered else [*last.before, last.batch][-SPARK_NAMES_MAX:]
        firsts = {channel: producer.last(channel) + 1 for channel in {one.channel for one in sections}}
        ordered = sorted(sections, key=lambda one: (one.channel, one.partition))  # else as the tasks have them
        _save(self.root, self._query, Record(batch, False, firsts, ordered, before))

    def finished(self, enough: Enough = _never) -> Record | None:
        """The last batch, after publishing what is left of it; not done, if it was enough before."""
        record = load(self.root, self._query)
        if record is None or record.done:
            return record
        producer = self._producer()
        record = self._renumbered(producer, record)
        with contextlib.closing(publish_sections(self.root, producer, record.sections, record.firsts)) as steps:
            for _ in steps:
                if enough():
                    return record
        done = Record(record.batch, True, before=record.before)
        _save(self.root, self._query, done)
        self._discard(record.batch)
        return done

    def _renumbered(self, producer: Producer, record: Record) -> Record:
        """A channel that was deleted, or restored, since the record was written has not the numbers before it."""
        firsts = {channel: min(first, producer.last(channel) + 1) for channel, first in record.firsts.items()}
        if firsts != record.firsts:
            record = msgspec.structs.replace(record, firsts=firsts)
            _save(self.root, self._query, record)
        return record

    def _discard(self, batch: str) -> None:
        (discard_through if self._numbered else discard)(self.root, self._query, batch)

    def _producer(self) -> Producer:
        """The query as a producer, opened when there is something to publish."""
        if self._opened is None:
            station = self._station or self._closing.enter_context(open_station(self.root))
            self._opened = self._closing.enter_context(station.producer(f"spark.{self._query}"))
        return self._opened

    def close(self) -> None:
        """Let others have their turn."""
        self._closing.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@explaining("cannot tidy up after batches that were laid aside")
def tidy(path: str | Path, station: Station | None = None, enough: Enough = _never) -> list[Swept]:
    """Finish what the dead began to publish, and remove what they laid aside long ago; what that was."""
    root = Path(path)
    keep: set[str] = set()
    for query in queries(root):
        try:
            record = load(root, query)
            if record is None or record.done:
                continue
            keep.add(f"{query}/{record.batch}")
            if _free(root, query) and not enough():
                with Publishing(path, query, station=station) as publishing:
                    publishing.finished(enough)
        except (HeliographError, OSError) as error:
            keep.add(query)
            logger.warning("what was laid aside for '%s' is not published: %s", query, error)
    return sweep(root, SPARK_STAGED_S, frozenset(keep))


# -- files ------------------------------------------------------------------------------------------------------------


def queries(root: Path) -> list[str]:
    """All that have published something."""
    return sorted(found.stem for found in (root / FOLDER).glob("*.json"))


def load(root: Path, query: str) -> Record | None:
    """The last batch of a query."""
    try:
        return _decode(SYSTEM_DISK.read_file(root / FOLDER / f"{query}.json"))
    except FileNotFoundError:
        return None
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise Damaged(
            f"{root / FOLDER / query}.json cannot be read ({error}): it says which batch of the query is published. "
            "Remove it only if the query begins anew, with another checkpoint."
        ) from None


def _lock(root: Path, query: str) -> FileLock:
    (root / FOLDER).mkdir(exist_ok=True)
    return FileLock(root / FOLDER / f"{query}.lock", SYSTEM_DISK)


def _free(root: Path, query: str) -> bool:
    lock = _lock(root, query)
    try:
        return lock.free()
    finally:
        lock.release()


def _save(root: Path, query: str, record: Record) -> None:
    SYSTEM_DISK.replace_file(root / FOLDER / f"{query}.json", msgspec.json.encode(record) + b"\n")
