"""Messages that are laid aside, where no reader looks, until all of a batch are published.

    spark/staged/QUERY/BATCH/NAME.lines     bodies: envelopes without their closing brace, each with a newline
    spark/staged/QUERY/BATCH/NAME.sums      derived: the crc32c of each body and its newline, in four bytes

A file holds messages for several channels and partitions, section by section. It is synced before anybody relies on it.
How the bodies of a section begin may be said with the section instead, if they begin alike: it need not be written,
synced and read for each. Checksums take longest when lines are finished: many make them at the same time, and one need
not.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

import google_crc32c
import msgspec

from heliograph.disk import SYSTEM_DISK, make_below
from heliograph.errors import Damaged, NotFound
from heliograph.log.beginnings import Beginning, Run
from heliograph.log.stamping import SUM_BYTES

FOLDER: Final = "spark"
STAGED: Final = "staged"
SUFFIX: Final = ".lines"
SUMS: Final = ".sums"
_TRIES: Final = 8
PRODUCER_BYTES_MAX: Final = 300
"""What a message has beside its body when it is published: who numbered it, and how."""


class Section(msgspec.Struct, frozen=True):
    """Messages for one partition, somewhere in a staged file."""

    file: str
    channel: str
    partition: int
    count: int
    position: int
    length: int
    crc: int
    times_us: tuple[int, int]
    # Where in NAME.sums its checksums are, and the crc32c of those; in a record without this name they are others.
    sums: tuple[int, int] | None = msgspec.field(default=None, name="line_sums")
    begin: Beginning | None = None  # how each body begins, if that is not in the file

    def runs(self) -> list[Run]:
        """How its bodies begin; nothing if the file says that."""
        return [] if self.begin is None else [Run(self.begin, self.count)]

    def size(self) -> int:
        """How many bytes its bodies have."""
        return self.length + sum(run.size() for run in self.runs())


class Swept(NamedTuple):
    """A batch that nobody will publish any more."""

    query: str
    batch: str
    size: int


def folder(root: Path, query: str, batch: str) -> Path:
    """Where the messages of a batch are laid aside."""
    return root / FOLDER / STAGED / query / batch


def make_folder(root: Path, query: str, batch: str) -> Path:
    """The same, made so that its name survives."""
    found = folder(root, query, batch)
    if not found.exists():
        for turn in range(_TRIES):
            try:
                make_below(root, found)
                break
            except FileNotFoundError:  # somebody removed the one above, which was empty
                if turn == _TRIES - 1:
                    raise
        for above in found.parents[: len(found.relative_to(root).parts)]:
            SYSTEM_DISK.sync_directory(above)
    return found


def check_laid(root: Path, sections: Iterable[Section]) -> None:
    """NotFound if something of a batch is not there: it must not happen, or it could never be published as a whole."""
    ends: dict[str, int] = {}
    for section in sections:
        ends[section.file] = max(ends.get(section.file, 0), section.position + section.length)
    for file, end in ends.items():
        path = root / FOLDER / STAGED / file
        size = -1
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            size = SYSTEM_DISK.stat(path).st_size
        if size < end:
            raise NotFound(
                f"{path} is not there as it was laid aside: another run of the same query dropped it, it was swept "
                "after a day, or its task ran where this directory is another one. Nothing of the batch is published; "
                "run it again"
            )


def read(root: Path, section: Section) -> bytes:
    """The bodies of a section. Damaged if they are not what was laid aside."""
    path = root / FOLDER / STAGED / section.file
    try:
        data = _read_once(path, section.length, section.position)
    except FileNotFoundError:
        raise lost(root, section, "gone") from None
    if len(data) != section.length or google_crc32c.value(data) != section.crc:
        raise lost(root, section, "damaged")
    return data


def read_sums(root: Path, section: Section) -> bytes:
    """The checksums of its bodies; nothing if they are not there, or not as they were made."""
    if section.sums is None:
        return b""
    position, crc = section.sums
    path = (root / FOLDER / STAGED / section.file).with_suffix(SUMS)
    with contextlib.suppress(OSError):
        sums = _read_once(path, SUM_BYTES * section.count, position)
        if len(sums) == SUM_BYTES * section.count and google_crc32c.value(sums) == crc:
            return sums
    return b""


def _read_once(path: Path, length: int, position: int) -> bytes:
    """Read what nobody will read again soon: its memory serves for what is written next."""
    fd = SYSTEM_DISK.open(path, os.O_RDONLY)
    try:
        data = SYSTEM_DISK.read_range(fd, length, position)
        SYSTEM_DISK.uncache(fd, length, position)
        return data
    finally:
        SYSTEM_DISK.close(fd)


def lost(root: Path, section: Section, how: str) -> Damaged:
    """What was laid aside and has happened is not there."""
    path = root / FOLDER / STAGED / section.file
    query = Path(section.file).parts[0]
    return Damaged(
        f"{path} is {how}, though the batch it belongs to is not published as a whole. Put it back from a copy; or, to "
        f"give up what is left of the batch, remove {FOLDER}/{query}.json from the station's directory, and see what "
        f"of it is in '{section.channel}' before you write it again"
    )


def sweep(root: Path, older_than_s: float, keep: frozenset[str]) -> list[Swept]:
    """Remove what was laid aside long ago and nobody will publish; what that was.

    ``keep``: batches (``QUERY/BATCH``) that stay, and queries of which all do.
    """
    removed = []
    before = time.time() - older_than_s
    for batch in sorted((root / FOLDER / STAGED).glob("*/*")):
        query = batch.parent.name
        with contextlib.suppress(OSError):
            if keep.isdisjoint((query, f"{query}/{batch.name}")) and batch.stat().st_mtime < before:
                found = Swept(query, batch.name, size_of(batch))
                SYSTEM_DISK.remove_tree(batch)
                removed.append(found)
                SYSTEM_DISK.rmdir(batch.parent)  # unless there is more
    return removed


def size_of(directory: Path) -> int:
    """How many bytes files take, in a directory and below; a small one takes a block all the same."""
    size = 0
    for above, _, names in os.walk(directory):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                size += taken(os.stat(os.path.join(above, name)).st_size)
    return size


def taken(size: int) -> int:
    """What a file of that size takes."""
    return max(4096, size)


def discard(root: Path, query: str, batch: str) -> None:
    """Remove what was laid aside for a batch."""
    with contextlib.suppress(OSError):
        SYSTEM_DISK.remove_tree(folder(root, query, batch))
    with contextlib.suppress(OSError):
        SYSTEM_DISK.rmdir(folder(root, query, batch).parent)


def discard_through(root: Path, query: str, batch: str) -> None:
    """Remove what was laid aside for a batch, and for those with smaller numbers: they came before, or never will."""
    for other in sorted((root / FOLDER / STAGED / query).glob("*")):
        if other.name.isdecimal() and int(other.name) < int(batch):
            discard(root, query, other.name)
    discard(root, query, batch)
