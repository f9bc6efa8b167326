"""Reading a log: verified chunks of stored bytes, in order, at constant cost whatever the history.

A chunk ends at an index entry or at the limit given by the head; both name the segment's checksum up to there,
so a chunk of a thousand lines is checked in one pass. If it does not match, the segment is opened anew (it may
have been redacted, compressed, compacted or repaired meanwhile); if it still does not, each line's own checksum
decides and what is damaged is reported as missing.
"""

from __future__ import annotations

import contextlib
import itertools
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, Protocol

import google_crc32c

from heliograph.disk import Disk
from heliograph.errors import Damaged, HeliographError
from heliograph.limits import CHUNK_BYTES, INDEX_STRIDE_BYTES
from heliograph.log import compactstate, index, indexing, lines, lost, segments, swap
from heliograph.log.head import Limit

_extend = google_crc32c.extend
DAMAGED = "damaged on disk"
CHUNK_ENTRIES_MAX = CHUNK_BYTES // INDEX_STRIDE_BYTES + 1
READ_AHEAD_ENTRIES = 4 * CHUNK_ENTRIES_MAX
LOOKS = 8
"""How often files are opened anew that others replace meanwhile."""


class LogCut(HeliographError):
    """What was read is not in the log any more: a repair cut it off, and the log goes on at an earlier offset."""

    def __init__(self, offset: int, before: int) -> None:
        super().__init__(
            f"the log was repaired after a failed sync and goes on at offset {offset}: "
            f"what was read between there and offset {before} was never on disk for sure, and is lost"
        )
        self.offset = offset
        self.before = before


class Missing(NamedTuple):
    """Offsets that cannot be read any more."""

    first: int
    next: int
    reason: str


class Chunk(NamedTuple):
    """Stored lines and the offsets they cover."""

    first: int
    next: int
    data: bytes  # whole lines, newline-terminated; an empty or blank line carries no message
    numbered: list[tuple[int, bytes]] | None  # after damage: the intact lines with their offsets
    missing: list[Missing]
    append_us: int
    place: tuple[int, int, int]  # file (its inode), position and checksum after it


class Log(Protocol):
    """What a cursor asks of a partition."""

    @property
    def place(self) -> indexing.Place: ...
    @property
    def limit(self) -> Callable[[], Limit]: ...


class _Place(NamedTuple):
    """Where a cursor stands in its segment, and the segment's checksum up to there."""

    position: int
    crc: int


class _Checkpoint(NamedTuple):
    """A place whose checksum is known."""

    end: int
    next: int
    crc: int
    append_us: int


class LogCursor:
    """Reads one partition from an offset on. Belongs to one thread."""

    def __init__(self, log: Log, offset: int, disk: Disk) -> None:
        self.offset = offset
        self._log = log
        self._directory: Path = log.place.directory
        self._disk = disk
        self._segment: segments.SegmentReader | None = None
        self._index: index.IndexFile | None = None
        self._place = _Place(0, 0)
        self._sealed_size = -1
        self._lost = False
        self._repaired: list[lost.Range] = []  # of the segment: lines that were damaged, and are blank now
        self._ahead: deque[index.Entry] = deque()

    def seek(self, offset: int) -> None:
        """Continue somewhere else."""
        if offset != self.offset:
            self.offset = offset
            self.close()

    def skip(self, offset: int, place: tuple[int, int, int]) -> None:
        """Continue where another cursor of this log stood after reading: its file, position and checksum."""
        self.offset = offset
        self._place = _Place(*place[1:])
        self._lost = self._lost or self._segment is None or self._segment.inode != place[0]

    def pass_over(self, line: bytes, base: int) -> None:
        """Continue behind the next line, which its reader has from its writer; it stands in the segment ``base``."""
        self.offset += 1
        self._place = _Place(self._place.position + len(line), _extend(self._place.crc, line))
        self._lost = self._lost or self._segment is None or self._segment.base != base

    def read(self) -> Chunk | None:
        """The next chunk, None when there is nothing new. Raises LogCut once if some of what was read is gone."""
        limit = self._log.limit()
        if self._shortened(limit):
            self._leave_cut()
        if self.offset >= limit.next:
            return None
        if self.offset < limit.first:
            return self._trimmed(limit.first)
        try:
            return self._read(limit)
        except FileNotFoundError:  # retention or compression was quicker: look again
            self.close()
            limit = self._log.limit()
            if self.offset < limit.first:
                return self._trimmed(limit.first)
            try:
                return self._read(limit)
            except FileNotFoundError:
                return self._lacking()

    def _shortened(self, limit: Limit) -> bool:
        """Whether the file ends before what was read of it. Only a repair does that; others put a new one in place."""
        segment, position = self._segment, self._place.position
        if segment is None or self._lost or (segment.base == limit.base and position <= limit.end):
            return False
        return segment.size() < position

    def _leave_cut(self) -> None:
        """Continue where the log goes on, after a word about it."""
        assert self._segment is not None
        later = [base for base in segments.bases(self._directory, self._disk) if base > self._segment.base]
        cut = LogCut(later[0] if later else self._segment.base, self.offset)
        self.seek(cut.offset)
        raise cut

    def _trimmed(self, first: int) -> Chunk:
        gap = Missing(self.offset, first, "deleted by retention before it was read")
        missing = [] if compactstate.held_nothing(self._directory, self.offset, first, self._disk) else [gap]
        self.seek(first)
        return Chunk(gap.first, gap.next, b"", None, missing, 0, (-1, 0, 0))

    def _read(self, limit: Limit) -> Chunk:
        if self._segment is None or self._lost:
            self._locate(limit)
        goal = self._goal(limit)
        if goal is None:  # the end of a sealed segment
            self._locate(limit)
            goal = self._goal(limit)
        if goal is None:
            return self._lacking()
        data, crc = self._take(goal)
        if not self._fits(goal, data, crc):
            return self._doubt()
        return self._advance(goal, data)

    def _lacking(self) -> Chunk:
        """No segment holds the offset: one was shortened or is gone. Go on with the next."""
        later = [base for base in segments.bases(self._directory, self._disk) if base > self.offset]
        if not later:
            raise Damaged(f"{self._directory}: no segment holds offset {self.offset}; run 'helio verify'")
        gap = Missing(self.offset, later[0], DAMAGED)
        self.seek(gap.next)
        return Chunk(gap.first, gap.next, b"", None, [gap], 0, (-1, 0, 0))

    def _take(self, goal: _Checkpoint) -> tuple[bytes, int]:
        assert self._segment is not None
        length = goal.end - self._place.position
        data = self._segment.read(self._place.position, length) if length > 0 else b""
        return data, _extend(self._place.crc, data)

    def _fits(self, goal: _Checkpoint, data: bytes, crc: int) -> bool:
        return crc == goal.crc and len(data) == goal.end - self._place.position

    def _advance(self, goal: _Checkpoint, data: bytes) -> Chunk:
        numbered, gone = lost.told(self._repaired, data, self.offset, goal.next)
        return self._leave(goal, data, numbered, gone)

    def _leave(
        self, goal: _Checkpoint, data: bytes, numbered: list[tuple[int, bytes]] | None, gone: list[lost.Range]
    ) -> Chunk:
        assert self._segment is not None
        place = (self._segment.inode, goal.end, goal.crc)
        missing = [Missing(low, high, DAMAGED) for low, high in gone]
        chunk = Chunk(self.offset, goal.next, data, numbered, missing, goal.append_us, place)
        self._place = _Place(goal.end, goal.crc)
        self.offset = goal.next
        return chunk

    # -- where to read ----------------------------------------------------------------------------------------

    def _goal(self, limit: Limit) -> _Checkpoint | None:
        """How far the next chunk goes; None at the end of a sealed segment."""
        assert self._segment is not None and self._index is not None
        position = self._place.position
        if self._segment.base == limit.base:
            end = _Checkpoint(limit.end, limit.next, limit.crc, limit.append_us)
        else:
            sealed = self._sealed_end()
            if sealed is None or position >= sealed.end:
                return None
            end = sealed
        if end.end - position <= CHUNK_BYTES:
            return end
        return self._entry_goal(position, end)

    def _entry_goal(self, position: int, end: _Checkpoint) -> _Checkpoint:
        """The last index entry within a chunk's reach, or the first behind the position if it is larger."""
        best: index.Entry | None = None
        for entry in self._entries_behind(position):
            if entry.end > end.end or (best is not None and entry.end > position + CHUNK_BYTES):
                break
            best = entry
        return _Checkpoint(best.end, best.next, best.crc, best.append_us) if best is not None else end

    def _entries_behind(self, position: int) -> list[index.Entry]:
        """Index entries that end behind a position, enough for a chunk; read ahead, for reading goes forwards."""
        assert self._index is not None
        ahead = self._ahead
        if ahead and ahead[0].position <= position:
            while ahead and ahead[0].end <= position:
                ahead.popleft()
            if ahead and ahead[-1].end >= position + CHUNK_BYTES:
                return list(itertools.islice(ahead, CHUNK_ENTRIES_MAX))
        self._index.refresh()
        number = self._index.last_where(lambda entry: entry.end <= position)
        self._ahead = deque(self._index.entries(number + 1, READ_AHEAD_ENTRIES))
        return list(itertools.islice(self._ahead, CHUNK_ENTRIES_MAX))

    def _sealed_end(self) -> _Checkpoint | None:
        assert self._segment is not None and self._index is not None
        if self._sealed_size < 0:
            self._sealed_size = self._segment.size()
            self._index.refresh()
        last = self._index.entry(self._index.count - 1) if self._index.count else None
        if last is None or last.end != self._sealed_size:
            if not self._sealed_size:
                return None
            last = self._rebuild_index()[-1]
        return _Checkpoint(last.end, last.next, last.crc, last.append_us)

    def _locate(self, limit: Limit) -> None:
        """Open the segment that holds the offset, at the line of the offset."""
        base = self.offset
        try:  # who comes from the end of the segment before it knows the name
            self._open(base, sealed=base < limit.base)
        except FileNotFoundError:
            base = limit.base
            if self.offset < base:
                base = segments.holding(self._directory, self.offset, self._disk)
            if base < 0:
                raise FileNotFoundError(f"{self._directory} holds nothing before offset {self.offset}") from None
            self._open(base, sealed=base < limit.base)
        self._repaired = lost.load(self._directory, base, self._disk)
        self._place = self._find(base)
        self._lost = False

    def _open(self, base: int, *, sealed: bool) -> None:
        """Open a segment with the index that belongs to it: whoever compacts replaces one after the other."""
        path, calm = segments.path_of(self._directory, base, segments.INDEX), 0
        for _ in range(LOOKS):
            self.close()
            self._segment = segments.open_segment(self._directory, base, self._disk)
            self._sealed_size = -1
            with contextlib.suppress(FileNotFoundError):
                self._index = index.IndexFile(path, base, self._disk)
                if not sealed or self._covered():
                    return
            coming = swap.coming_index(self._directory, base, self._segment.size(), self._disk)
            if coming is not None:
                self._close_index()
                self._index = index.MemoryIndex(coming, base)
                return
            calm = calm + 1 if segments.in_place(self._segment, self._disk) else 0
            if calm > 1:  # nobody is changing anything: the index is wrong, or there is none
                break
        self._rebuild_index()

    def _covered(self) -> bool:
        """Whether the index ends where the sealed segment does."""
        assert self._segment is not None and self._index is not None
        last = self._index.entry(self._index.count - 1) if self._index.count else None
        return (last.end if last else 0) == self._segment.size()

    def _find(self, base: int) -> _Place:
        """Byte place of the line numbered ``offset``: an index entry, then newlines counted from there."""
        assert self._segment is not None and self._index is not None
        before, entry = self._entries_around()
        start = _Place(before.end, before.crc) if before else _Place(0, 0)
        skip = self.offset - (before.next if before else base)
        if skip <= 0:
            return start
        rest = max(0, self._segment.size() - start.position)
        data = self._segment.read(start.position, entry.length if entry else rest)
        if data.count(b"\n") < skip or (entry and data.count(b"\n") != entry.lines):
            return _Place(start.position, start.crc ^ 1)  # damaged: a checksum that cannot match makes it doubted
        at = -1
        for _ in range(skip):
            at = data.find(b"\n", at + 1)
        return _Place(start.position + at + 1, _extend(start.crc, data[: at + 1]))

    def _entries_around(self) -> tuple[index.Entry | None, index.Entry | None]:
        """The last index entry wholly before the offset, and the one that holds it."""
        assert self._index is not None
        self._index.refresh()
        number = self._index.last_where(lambda entry: entry.next <= self.offset)
        before = self._index.entry(number) if number >= 0 else None
        return before, self._index.entry(number + 1)

    def _rebuild_index(self) -> list[index.Entry]:
        """Make the index of a sealed segment again; in memory only where the directory cannot be written."""
        assert self._segment is not None
        entries = indexing.build_index(self._segment, self._log.place, self._disk)
        path = segments.path_of(self._directory, self._segment.base, segments.INDEX)
        self._close_index()
        data = b"".join(index.encode(entry) for entry in entries)
        self._index = index.MemoryIndex(data, self._segment.base)
        with contextlib.suppress(OSError):
            if segments.in_place(self._segment, self._disk):  # else it is the index of another file by now
                self._disk.replace_file(path, data, sync_names=False)
                self._index = index.IndexFile(path, self._segment.base, self._disk)
        return entries

    # -- damage -----------------------------------------------------------------------------------------------

    def _doubt(self) -> Chunk:
        """The checksum does not match: look from scratch until nobody changes anything, then line by line.

        What was the active segment may have been sealed and replaced since, so the limit is asked for anew.
        """
        goal: _Checkpoint | None = None
        for _ in range(LOOKS):
            limit = self._log.limit()
            self._locate(limit)
            goal = self._goal(limit)
            if goal is None:
                return self._lacking()
            data, crc = self._take(goal)
            if self._fits(goal, data, crc):
                return self._advance(goal, data)
            assert self._segment is not None
            if segments.in_place(self._segment, self._disk) and self._log.limit().base == limit.base:
                break
        assert goal is not None
        return self._by_lines(goal)

    def _by_lines(self, goal: _Checkpoint) -> Chunk:
        """What is intact, line by line. Damage must not cost more than itself: one index entry is looked at alone."""
        assert self._segment is not None
        before, entry = self._entries_around()
        if entry is not None and entry.end <= goal.end:
            goal = _Checkpoint(entry.end, entry.next, entry.crc, entry.append_us)
        start, first = (before.end, before.next) if before else (0, self._segment.base)
        data = self._segment.read(start, goal.end - start)
        found = lines.sort_out(data, first, self._log.place.home(), goal.next)
        wanted = [(offset, line) for offset, line in found.lines if self.offset <= offset < goal.next]
        known = {offset for offset, _ in found.lines}
        others = [b"!" if offset in known else b"" for offset in range(first, found.next)]
        gone = lost.united([*(one[:2] for one in found.missing), *lost.among(self._repaired, others, first)])
        return self._leave(
            goal, data, wanted, [(max(low, self.offset), high) for low, high in gone if high > self.offset]
        )

    def close(self) -> None:
        """Free the files. The cursor can go on: it opens them again."""
        if self._segment is not None:
            self._segment.close()
            self._segment = None
        self._close_index()
        self._ahead.clear()

    def _close_index(self) -> None:
        if self._index is not None:
            self._index.close()
            self._index = None
