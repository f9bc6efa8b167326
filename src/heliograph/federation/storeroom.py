"""What peers lay aside here and have published together, the side of the disk. Synchronous; in whichever thread.

    spark/staged/hub.PEER.QUERY/BATCH/NAME.lines    messages, checked and written anew as those of PUBLISH
    spark/staged/hub.PEER.QUERY/BATCH/NAME.json     {"crc":…,"sections":[…]}: what the hub itself says of them

A peer names files of its own, and nothing else that it says of them is believed. How a batch is published, and
finished by others if somebody dies, says staging/publishing.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import google_crc32c
import msgspec

from heliograph.disk import SYSTEM_DISK, explaining
from heliograph.errors import Busy, Damaged, HeliographError, InvalidMessage, MessageTooLarge, NotFound
from heliograph.federation.accepting import Accepted
from heliograph.federation.asking import Publish
from heliograph.federation.batches import Abort, Commit, Committed, File, Stage, Staged, own_query
from heliograph.federation.counter import Counter, insist
from heliograph.federation.rules import Rules
from heliograph.log.lines import TAIL_BYTES_MAX
from heliograph.message import Draft
from heliograph.names import check_name, check_ownable
from heliograph.staging.files import (
    FOLDER,
    PRODUCER_BYTES_MAX,
    STAGED,
    SUFFIX,
    Section,
    folder,
    make_folder,
    size_of,
    taken,
)
from heliograph.staging.publishing import Publishing, load, tidy
from heliograph.staging.queries import HUB, owner

if TYPE_CHECKING:
    from heliograph.station import Station

logger = logging.getLogger("heliograph.links")
STEP_S: Final = 2.0
"""How long one request publishes; then it is answered, and asked again."""
LOCK_S: Final = 0.5
"""How long a request waits for another that publishes the same query."""
COMMITS_MAX: Final = 4
TIDY_S: Final = 5.0
QUERIES_MAX: Final = 1_000
"""How many queries of one peer are remembered, each for ever."""
SLIP: Final = ".json"
LOCK: Final = ".lock"


class Slip(msgspec.Struct, frozen=True):
    """NAME.json."""

    crc: int
    sections: list[Section]


_slip: Final = msgspec.json.Decoder(Slip).decode


class Storeroom:
    """What the peers of one hub laid aside."""

    def __init__(self, station: Station, counter: Counter) -> None:
        self._station = station
        self._root = station.path
        self._counter = counter
        self.room = Room(station.path, station.config.hub.staged_bytes_max)
        self.turns = asyncio.Semaphore(COMMITS_MAX)
        """For whoever awaits a commit: the others need threads, too."""
        self._tidying = threading.Lock()
        self._bytes_max = station.config.messages.max_bytes - TAIL_BYTES_MAX - PRODUCER_BYTES_MAX

    @explaining("cannot lay messages aside")
    def stage(self, ask: Stage, lines: bytes, rules: Rules) -> tuple[Staged, int]:
        """Lay events aside, and how many they are. They are durable when it returns."""
        query = own_query(rules.peer, ask)
        insist(rules.publishing(check_ownable(ask.channel)))
        partitions = self._partitions(ask.channel)
        if not lines:
            return Staged(), 0
        events = self._counter.check(Publish(channel=ask.channel), lines, rules)
        self._check_sizes(ask.channel, events)
        sections, data = self._sections(f"{query}/{ask.batch}/{ask.name}{SUFFIX}", ask.channel, partitions, events)
        slip = Slip(google_crc32c.value(data), sections)
        self.room.take(rules.peer, taken(len(data)) + taken(0))
        self._write(make_folder(self._root, query, ask.batch), check_name(ask.name, "file"), data, slip)
        return Staged(crc=slip.crc), len(events)

    def _partitions(self, channel: str) -> int:
        """How many a channel has, or will have: it is not made before something is published."""
        try:
            return self._station.engine.partition_count(channel)
        except NotFound:
            if not self._station.engine.makes(channel):
                raise
            return self._station.config.storage.partitions

    def _check_sizes(self, channel: str, events: list[Accepted]) -> None:
        largest = max(len(event.body) for event in events)
        if largest > self._bytes_max:
            raise MessageTooLarge(
                f"a message for '{channel}' has {largest} bytes; messages.max_bytes of the hub leaves "
                f"{self._bytes_max}. Publish a reference to the data instead, or raise the limit there"
            )

    def _sections(
        self, file: str, channel: str, partitions: int, events: list[Accepted]
    ) -> tuple[list[Section], bytes]:
        """Events by partition, as they lie in a file."""
        drafts = [Draft(key=event.key) for event in events]
        places = self._station.publisher.partitioner.many_among(partitions, channel, drafts, None)
        sections: list[Section] = []
        pieces: list[bytes] = []
        position = 0
        for partition, found in places.items():
            chosen = [events[at] for at in found]
            piece = b"\n".join([*(one.body for one in chosen), b""])
            times = [one.time_us for one in chosen]
            crc = google_crc32c.value(piece)
            sections.append(
                Section(file, channel, partition, len(chosen), position, len(piece), crc, (min(times), max(times)))
            )
            pieces.append(piece)
            position += len(piece)
        return sections, b"".join(pieces)

    def _write(self, directory: Path, name: str, data: bytes, slip: Slip) -> None:
        """The slip comes last: without it nothing is there."""
        path = directory / f"{name}{SUFFIX}"
        try:
            with contextlib.suppress(FileNotFoundError):
                SYSTEM_DISK.unlink(directory / f"{name}{SLIP}")
            fd = SYSTEM_DISK.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            try:
                SYSTEM_DISK.write_all(fd, data)
                SYSTEM_DISK.fdatasync(fd)
            finally:
                SYSTEM_DISK.close(fd)
            SYSTEM_DISK.replace_file(directory / f"{name}{SLIP}", msgspec.json.encode(slip) + b"\n")
        except OSError:
            with contextlib.suppress(OSError):
                SYSTEM_DISK.unlink(path)
            raise

    # -- publishing -----------------------------------------------------------------------------------------------

    @explaining("cannot publish what was laid aside")
    def commit(self, ask: Commit, rules: Rules) -> Committed:
        """Publish a batch, or a part of it, unless that was done before."""
        query = own_query(rules.peer, ask)
        if not ask.files and load(self._root, query) is None:
            return Committed(done=True)
        self._admit(query, rules.peer)
        until = time.monotonic() + STEP_S
        try:
            publishing = Publishing(self._root, query, station=self._station, wait_s=LOCK_S)
        except Busy:  # another connection is at it
            return Committed(done=False, waiting=True)
        with publishing:
            done = publishing.publish(
                ask.batch, lambda: self._found(query, ask, rules), lambda: time.monotonic() >= until
            )
            newest = publishing.newest()
        if done:
            self.room.forget(rules.peer)
        return Committed(done=done, newest=newest)

    def _admit(self, query: str, peer: str) -> None:
        """Refuse one query more if there are too many: something of each stays."""
        above = self._root / FOLDER
        if (above / f"{query}{LOCK}").exists():
            return
        names = SYSTEM_DISK.listdir(above) if above.is_dir() else []
        known = sum(name.endswith(LOCK) and owner(name.removesuffix(LOCK)) == peer for name in names)
        if known >= QUERIES_MAX:
            raise Busy(
                f"the hub remembers {known} queries of {peer}, and no more. Those that will not come back are to be "
                f"removed there: {FOLDER}/{HUB}{peer}.QUERY.json and .lock"
            )

    def _found(self, query: str, ask: Commit, rules: Rules) -> list[Section]:
        """All sections of a batch, if everything that belongs to it is there and may be published."""
        if len({file.name for file in ask.files}) < len(ask.files):
            raise InvalidMessage(f"batch {ask.batch} names a file twice: its messages would be there twice")
        sections = [section for file in ask.files for section in self._of(query, ask.batch, file)]
        for channel in sorted({section.channel for section in sections}):
            insist(rules.publishing(channel))
        return sections

    def _of(self, query: str, batch: str, file: File) -> list[Section]:
        directory, name = folder(self._root, query, batch), check_name(file.name, "file")
        try:
            slip = _slip(SYSTEM_DISK.read_file(directory / f"{name}{SLIP}"))
            size = SYSTEM_DISK.stat(directory / f"{name}{SUFFIX}").st_size
        except (FileNotFoundError, NotADirectoryError, msgspec.MsgspecError):
            slip = None
        if slip is None or slip.crc != file.crc:
            raise NotFound(
                f"{name} of batch {batch} is not laid aside here as it was when that was answered: it was dropped, "
                "or swept after a day. Nothing of the batch is published; run it again"
            )
        if size != sum(section.length for section in slip.sections):
            raise Damaged(f"{directory / name}{SUFFIX} has {size} bytes, not those that it was written with")
        return slip.sections

    @explaining("cannot remove what was laid aside")
    def abort(self, ask: Abort, rules: Rules) -> None:
        """Remove what is laid aside for a batch, unless it has happened."""
        query = own_query(rules.peer, ask)
        if not folder(self._root, query, ask.batch).is_dir():
            return
        self._admit(query, rules.peer)
        with Publishing(self._root, query, station=self._station, wait_s=LOCK_S) as publishing:
            publishing.drop(ask.batch)
        self.room.forget(rules.peer)

    def tidy(self) -> None:
        """Now and then: finish what was begun, by peers that may not come back, and sweep what they left."""
        if not self._tidying.acquire(blocking=False):
            return
        until = time.monotonic() + TIDY_S
        try:
            for query, batch, size in tidy(self._root, self._station, lambda: time.monotonic() >= until):
                self.room.forget(owner(query))
                self._station.engine.audit.write(
                    "staged-swept", peer=owner(query), query=query, batch=batch, bytes=size
                )
        except HeliographError as error:
            logger.warning("%s", error)
        finally:
            self._tidying.release()


class Room:
    """How much each peer has laid aside."""

    def __init__(self, root: Path, bytes_max: int) -> None:
        self._root = root
        self.bytes_max = bytes_max
        self._taken: dict[str, int] = {}
        self._locks: dict[str, threading.Lock] = {}  # one for each: to look may take a while

    def take(self, peer: str, size: int) -> None:
        """So much more. Busy if that is too much."""
        with self._lock(peer):
            before = self._taken.get(peer)
            if before is None or before + size > self.bytes_max:  # something may have gone since
                before = self._look(peer)
            if before + size > self.bytes_max:
                self._taken[peer] = before
                raise Busy(
                    f"{peer} has laid {before} bytes aside that are not published, and hub.staged_bytes_max is "
                    f"{self.bytes_max}. Publish or drop some of it first, or raise the limit"
                )
            self._taken[peer] = before + size

    def forget(self, peer: str) -> None:
        """Some of it may be gone: look again next time."""
        with self._lock(peer):
            self._taken.pop(peer, None)

    def _lock(self, peer: str) -> threading.Lock:
        return self._locks.setdefault(peer, threading.Lock())

    def _look(self, peer: str) -> int:
        above = self._root / FOLDER / STAGED
        names = SYSTEM_DISK.listdir(above) if above.is_dir() else []
        return sum(size_of(above / name) for name in names if owner(name) == peer)
