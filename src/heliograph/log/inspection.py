"""Looking at every byte of a segment: are its lines, its index and its frames what they say they are?

Nothing is written here. A segment is walked in stretches. Where the index is sound (an unbroken chain over the
whole segment that ends where the next one begins) a stretch is an index entry, so that damage in one cannot
shift the offsets of another; otherwise stretches end behind intact lines, which carry their own offsets.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from heliograph.disk import Disk
from heliograph.limits import COPY_BYTES
from heliograph.log import compress, index, lines, segments, swap
from heliograph.log.compress import Frames, walk_frames
from heliograph.log.head import Fields
from heliograph.log.index import Entry
from heliograph.log.indexing import Place, event_times, extend

Tell = Callable[[int, int], None]
_CLUE: Final = b',"batch":"'


class Damage(NamedTuple):
    """Offsets whose lines are gone, and how many bytes stand in their place."""

    first: int
    next: int
    bytes: int
    reason: str


class Stretch(NamedTuple):
    """Some consecutive lines of a segment, checked one by one."""

    position: int
    data: bytes
    first: int
    found: lines.Sorted | None  # None: every line is intact or blank, and as many as expected
    next: int
    entry: Entry | None


@dataclass
class Segment:
    """What a look at one segment found. Empty lists of words mean that all is well."""

    base: int
    following: int
    compressed: bool = False
    size: int = 0
    next: int = 0
    lines: int = 0
    blank: int = 0
    damage: list[Damage] = field(default_factory=list)
    index: list[str] = field(default_factory=list)
    index_numbers: bool = False  # whether the index counts correctly
    index_times: bool = True  # whether its times are worth keeping
    frames: list[str] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    head: list[str] = field(default_factory=list)
    batches: list[str] = field(default_factory=list)

    @property
    def sound(self) -> bool:
        return not (self.damage or self.index or self.frames or self.names or self.head or self.batches)


# -- frames of compressed segments ---------------------------------------------------------------------------


class _KnownFrames(compress.CompressedSegment):
    """A compressed segment read by frames that were found by walking the file, whatever the derived file says."""

    def __init__(self, directory: Path, base: int, disk: Disk, frames: Frames) -> None:
        self._found = frames
        super().__init__(directory, base, disk)

    def _load(self, path: Path) -> Frames:  # noqa: ARG002 - the derived file is what must not be trusted
        return self._found


def open_reader(place: Place, base: int, disk: Disk, entries: list[Entry]) -> segments.SegmentReader:
    """A reader that trusts nothing derived."""
    if segments.path_of(place.directory, base, segments.COMPRESSED).exists():
        return _KnownFrames(place.directory, base, disk, walk_frames(place.directory, base, disk, entries))
    return segments.PlainSegment(place.directory, base, disk)


def _check_frames(state: Segment, reader: _KnownFrames, place: Place, disk: Disk) -> None:
    if segments.path_of(place.directory, state.base, segments.NEXT_INDEX).exists():
        return  # it is being replaced: whoever does, or opens the directory next, sees to them
    path = segments.path_of(place.directory, state.base, segments.FRAMES)
    try:
        known = disk.read_file(path)
    except FileNotFoundError:
        state.frames.append("is missing")
        return
    if known != compress.encode_frames(reader._frames):
        state.frames.append("does not say where the frames are")


# -- walking the lines -----------------------------------------------------------------------------------------


def load_entries(place: Place, base: int, disk: Disk) -> tuple[list[Entry], int]:
    """The unbroken chain at the beginning of an index, and how many entries the file has."""
    try:
        data = disk.read_file(segments.path_of(place.directory, base, segments.INDEX))
        if segments.path_of(place.directory, base, segments.NEXT_INDEX).exists():
            with contextlib.closing(segments.open_segment(place.directory, base, disk)) as segment:
                data = swap.coming_index(place.directory, base, segment.size(), disk) or data
    except FileNotFoundError:
        return [], -1
    return index.chain(data, base), -(-len(data) // index.SIZE)


def stretches(
    reader: segments.SegmentReader, size: int, place: Place, spans: list[Entry] | None, following: int
) -> Iterator[Stretch]:
    """Walk a segment up to ``size``; by these index entries if they are sound, else by intact lines."""
    if spans is None:
        yield from _by_lines(reader, size, place, following)
        return
    position, first = 0, reader.base
    for entry in spans:
        data = reader.read(entry.position, entry.length)
        yield _sorted(entry.position, data, first, place, entry.next, entry)
        position, first = entry.end, entry.next
    if position < size:  # the active segment: lines that no entry covers yet
        yield _sorted(position, reader.read(position, size - position), first, place, following, None)


def _by_lines(reader: segments.SegmentReader, size: int, place: Place, following: int) -> Iterator[Stretch]:
    position, first, left = 0, reader.base, b""
    while position + len(left) < size:
        at = position + len(left)
        more = reader.read(at, min(COPY_BYTES, size - at))
        if not more:
            break
        left += more
        end = _behind_intact(left) if at + len(more) < size else 0
        if end:
            stretch = _sorted(position, left[:end], first, place, None, None)
            yield stretch
            position, first, left = position + end, stretch.next, left[end:]
    if left:
        yield _sorted(position, left, first, place, max(following, first), None)


def _behind_intact(data: bytes) -> int:
    """Where the last intact line of some bytes ends; 0 if there is none."""
    end = data.rfind(b"\n") + 1
    while end:
        start = data.rfind(b"\n", 0, end - 1) + 1
        if lines.intact(data[start : end - 1]):
            return end
        end = start
    return 0


def _sorted(position: int, data: bytes, first: int, place: Place, expected: int | None, entry: Entry | None) -> Stretch:
    pieces = data.split(b"\n")
    if not pieces.pop() and all(lines.intact(piece) or not piece.strip(b" ") for piece in pieces):
        following = first + len(pieces)
        if expected is None or expected == following:
            return Stretch(position, data, first, None, following, entry)
    found = lines.sort_out(data, first, place.home(), expected)
    return Stretch(position, data, first, found, found.next, entry)


# -- judging ---------------------------------------------------------------------------------------------------


class _Judge:
    """Collects what a walk over one segment finds."""

    def __init__(self, state: Segment, place: Place, head: Fields | None) -> None:
        self.state = state
        self._home = place.home()
        self._head = head
        self._crc = 0  # of the bytes so far
        self._claimed = 0  # what the index says it should be
        self._peak_us = 0
        self._batch = (0, 0)
        self._batch_end = 0
        self._batch_clue = b""

    def take(self, stretch: Stretch) -> None:
        state, data = self.state, stretch.data
        if self._head is not None:
            self._check_synced(stretch)
        self._crc = extend(self._crc, data)
        if stretch.entry is not None:
            claimed_before, self._claimed = self._claimed, stretch.entry.crc
            if extend(claimed_before, data) != stretch.entry.crc:
                self._mismatch(stretch)
            else:
                self._check_times(stretch.entry, data)
        total = stretch.next - stretch.first
        intact = total
        if stretch.found is not None:
            intact = len(stretch.found.lines)
            gone = stretch.found.missing
            total -= sum([after - first for first, after, _ in gone])
            state.damage += [
                Damage(first, after, len(bad), "checksum" if bad else "missing") for first, after, bad in gone
            ]
        else:
            intact -= sum([not piece.strip(b" ") for piece in data.split(b"\n")[:-1]])
        state.lines += intact
        state.blank += total - intact
        state.next = stretch.next
        if _CLUE in data or self._batch_end > stretch.first:
            self._check_batches(stretch)

    def _mismatch(self, stretch: Stretch) -> None:
        if stretch.found is None or not stretch.found.missing:
            self.state.index.append(
                f"entry for offset {stretch.first} does not match the bytes, whose lines are intact"
            )

    def _check_times(self, entry: Entry, data: bytes) -> None:
        low, high = event_times(data)
        if not high:
            return
        self._peak_us = max(self._peak_us, high)
        if entry.min_us > low or entry.max_us < high or entry.peak_us < self._peak_us:
            self.state.index_times = False
            self.state.index.append(f"entry for offset {entry.first} has wrong times")

    def _check_synced(self, stretch: Stretch) -> None:
        head = self._head
        assert head is not None
        at = head.synced - stretch.position
        if not 0 < at <= len(stretch.data) or self.state.damage or stretch.found is not None:
            return
        part = stretch.data[:at]
        if extend(self._crc, part) != head.synced_crc or stretch.first + part.count(b"\n") != head.synced_next:
            self.state.head.append("what it says is synced does not match the segment")

    def _check_batches(self, stretch: Stretch) -> None:
        """A batch is one write: within one segment, its lines next to each other, each with the same mark."""
        found = stretch.found
        numbered = enumerate(stretch.data.split(b"\n"), stretch.first) if found is None else found.lines
        for offset, line in numbered:
            if offset < self._batch_end:
                if self._batch_clue not in line and line.strip(b" "):
                    self._complain(self._batch)
                    self._batch_end = 0
            elif _CLUE in line:
                self._begin_batch(offset, line)

    def _begin_batch(self, offset: int, line: bytes) -> None:
        own, mark = self._home.native(line), lines.batch_of(line)
        if own is None or mark is None or own.offset != offset:
            return  # a payload's own word, or a batch of another log
        if not self.state.base <= mark[0] <= offset < sum(mark) <= self.state.following:
            self._complain(mark)
            return
        self._batch, self._batch_end = mark, sum(mark)
        self._batch_clue = b',"batch":"%d/%d","origin":"' % mark

    def _complain(self, mark: tuple[int, int]) -> None:
        text = f"the batch of {mark[1]} at offset {mark[0]} is not whole"
        if text not in self.state.batches:
            self.state.batches.append(text)

    def finish(self) -> None:
        state, head = self.state, self._head
        if state.next < state.following:
            state.damage.append(Damage(state.next, state.following, 0, "missing"))
            state.next = state.following
        elif state.next > state.following:
            state.names.append(f"ends at offset {state.next}, but the next one begins at {state.following}")
        if head is not None and not state.damage and self._crc != head.crc:
            state.head.append("its checksum is not that of the segment")


def _why_unsound(entries: list[Entry], count: int, size: int, following: int) -> str | None:
    if count < 0:
        return "is missing"
    if len(entries) != count:
        return f"is broken behind entry {len(entries)}"
    end = entries[-1].end if entries else 0
    if end != size:
        return f"covers {end} bytes of {size}"
    if entries and entries[-1].next != following:
        return f"counts up to offset {entries[-1].next} instead of {following}"
    return None


def inspect(
    place: Place, base: int, following: int, disk: Disk, head: Fields | None = None, tell: Tell | None = None
) -> Segment:
    """Look at one segment. ``following`` is where the next begins; ``head`` is given for the active segment."""
    state = Segment(base, following, next=base)
    entries, count = load_entries(place, base, disk)
    reader = open_reader(place, base, disk, entries)
    with contextlib.closing(reader):
        if isinstance(reader, _KnownFrames):
            state.compressed = True
            _check_frames(state, reader, place, disk)
        state.size = reader.size()
        if head is not None:
            why = _active_unsound(state, entries, head)
        else:
            why = _why_unsound(entries, count, state.size, following)
        if why is not None:
            state.index.append(why)
        state.index_numbers = why is None
        if head is not None:
            entries = entries[: head.index_count]
        judge = _Judge(state, place, head)
        for stretch in stretches(reader, state.size, place, entries if why is None else None, following):
            judge.take(stretch)
            if tell is not None:
                tell(stretch.position + len(stretch.data), state.size)
        judge.finish()
    return state


def _active_unsound(state: Segment, entries: list[Entry], head: Fields) -> str | None:
    if state.size < head.written:
        state.head.append(f"says {head.written} bytes are written, the segment has {state.size}")
    state.size = min(state.size, head.written)
    last = entries[head.index_count - 1] if 0 < head.index_count <= len(entries) else None
    if head.index_count > len(entries):
        return f"has {len(entries)} entries of {head.index_count}"
    if (last.end if last else 0) != head.open_position or (last.next if last else head.base) != head.open_first:
        return "does not end where the head says"
    return None
