"""Making index entries from lines alone, and checking those that there are.

An index made from the lines alone vouches for none that is damaged: an entry that holds one gets a checksum that
its bytes do not have, so that readers look at each of its lines.
"""

from __future__ import annotations

import contextlib
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

import google_crc32c
import msgspec

from heliograph.clock import to_us
from heliograph.disk import Disk
from heliograph.limits import COPY_BYTES, INDEX_STRIDE_BYTES
from heliograph.log import index, lines, returned, segments
from heliograph.log.index import Entry

extend = google_crc32c.extend


class _Times(msgspec.Struct):
    time: datetime | None = None


_times_of_lines = msgspec.json.Decoder(_Times)


class Place(NamedTuple):
    """Which partition: where its files are, and whose lines count themselves."""

    directory: Path
    station: str
    number: int
    quarantine: Path

    def home(self) -> lines.Home:
        """Which lines count themselves. Reads a file that is there only if own lines came back from elsewhere."""
        return lines.Home(self.station, self.number, returned.load(self.directory))


def event_times(data: bytes) -> tuple[int, int]:
    """Smallest and largest event time of some lines in µs; (0, 0) if none can be read."""
    moments: list[int] = []
    try:
        moments = [to_us(one.time) for one in _times_of_lines.decode_lines(data) if one.time]
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        for line in data.split(b"\n"):
            with contextlib.suppress(msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                if (time := _times_of_lines.decode(line).time) is not None:
                    moments.append(to_us(time))
    return (min(moments), max(moments)) if moments else (0, 0)


class IndexBuilder:
    """Cuts lines into index entries; used wherever an index is made from the lines alone."""

    def __init__(self, place: Place, base: int, entries: list[Entry], peak_us: int, append_us: int) -> None:
        self._home = place.home()
        self.entries = entries
        last = entries[-1] if entries else None
        self.first = last.next if last else base
        self.position = last.end if last else 0
        self.crc = last.crc if last else 0
        self.peak_us = max(peak_us, last.peak_us if last else 0)
        self.append_us = max(append_us, last.append_us if last else 0)

    def add(self, data: bytes, following: int | None = None) -> None:
        """One entry for whole lines that follow what was added before; ``following`` if the next offset is known."""
        low, high = event_times(data)
        crc, after = self.checked(data, following)
        self.crc = crc
        self.peak_us = max(self.peak_us, high)
        self.append_us = max(self.append_us, high)
        self.entries.append(
            Entry(
                self.first, self.position, self.append_us, low, high, self.peak_us, after - self.first, len(data), crc
            )
        )
        self.first = after
        self.position += len(data)

    def checked(self, data: bytes, following: int | None = None) -> tuple[int, int]:
        """The checksum of the segment up to the end of some lines, if all of them are intact, and the next offset."""
        crc = extend(self.crc, data)
        found = lines.sort_out(data, self.first, self._home, following)
        return crc ^ 1 if found.missing else crc, found.next

    def add_all(self, data: bytes) -> bytes:
        """Entries of the usual size; returns what is left over for the next one.

        Each ends with an intact line: only that is sure to know its offset.
        """
        start = 0
        while len(data) - start >= INDEX_STRIDE_BYTES:
            stop = data.find(b"\n", start + INDEX_STRIDE_BYTES - 1) + 1
            while stop and not lines.intact(data[data.rfind(b"\n", start, stop - 1) + 1 : stop - 1]):
                stop = data.find(b"\n", stop) + 1
            if not stop:
                break
            self.add(data[start:stop])
            start = stop
        return data[start:]


def build_index(segment: segments.SegmentReader, place: Place, disk: Disk) -> list[Entry]:
    """Index entries of a sealed segment from its lines alone."""
    following = [base for base in segments.bases(place.directory, disk) if base > segment.base]
    peak_us, append_us = last_peak(place.directory, segment.base, disk)
    builder = IndexBuilder(place, segment.base, [], peak_us, append_us)
    left, position, size = b"", 0, segment.size()
    while position < size:
        data = segment.read(position, COPY_BYTES)
        if not data:
            break
        position += len(data)
        left = builder.add_all(left + data)
    if left:
        builder.add(left, following[0] if following else None)
    return builder.entries


def last_peak(directory: Path, before: int, disk: Disk) -> tuple[int, int]:
    """Largest event time and last append time in the segments before ``before``, from the newest index."""
    for base in reversed([base for base in segments.bases(directory, disk) if base < before]):
        with contextlib.suppress(FileNotFoundError):
            entries = index.chain(disk.read_file(segments.path_of(directory, base, segments.INDEX)), base)
            if entries:
                return entries[-1].peak_us, entries[-1].append_us
    return 0, 0


def verified_entries(directory: Path, base: int, disk: Disk) -> list[Entry]:
    """The entries of an index that agree with the segment's bytes, from its start."""
    try:
        entries = index.chain(disk.read_file(segments.path_of(directory, base, segments.INDEX)), base)
    except FileNotFoundError:
        return []
    reader = segments.open_segment(directory, base, disk)
    try:
        crc, good, size = 0, 0, reader.size()
        while good < len(entries):
            stop = good + 1  # take entries together: one read and one pass per mebibyte
            while stop < len(entries) and entries[stop].end - entries[good].position <= COPY_BYTES:
                stop += 1
            low, high = entries[good].position, entries[stop - 1].end
            if high > size or (crc := extend(crc, reader.read(low, high - low))) != entries[stop - 1].crc:
                return entries[:good] + _one_by_one(entries[good:stop], reader, entries[good - 1].crc if good else 0)
            good = stop
        return entries
    finally:
        reader.close()


def _one_by_one(entries: list[Entry], reader: segments.SegmentReader, crc: int) -> list[Entry]:
    good: list[Entry] = []
    for entry in entries:
        crc = extend(crc, reader.read(entry.position, entry.length))
        if crc != entry.crc:
            break
        good.append(entry)
    return good
