"""Latest per key: of the messages of one key that sealed segments hold only the newest stays.

A message without a key stays. A tombstone (a key and no data) deletes what is older, and is deleted itself once it
has been there for a grace time. Offsets are line numbers for ever: what goes leaves an empty line. ::

    ├── compacted before ──┼── not yet ────────────┤ active segment
    first               cleaned               end of what is sealed

A round reads what was not compacted yet into a map from key to newest offset, as far as a bounded memory reaches,
then passes over all segments from the oldest on and writes those anew that hold something older. So whatever goes,
something newer of its key is in a sealed (hence synced) segment; and a tombstone goes after all that it deletes.
How far this has come stands in ``compact.json``, which may be lost: then everything is looked at again.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from heliograph.disk import Disk
from heliograph.limits import INDEX_STRIDE_BYTES
from heliograph.log import compress, index, indexing, segments, swap
from heliograph.log.index import Entry
from heliograph.log.indexing import Place, extend
from heliograph.log.keys import KEY_BYTES, keyed
from heliograph.log.retention import Sealed

STATE: Final = "compact.json"


class State(msgspec.Struct, frozen=True, kw_only=True):
    """compact.json: what need not be looked at again."""

    incarnation: str = ""
    cleaned: int = 0
    """Before this offset no sealed segment holds two messages of a key."""
    tombstone_us: int = 0
    """When the oldest tombstone that waits for its end was appended; 0: there is none."""
    skipped: list[int] = []
    """Segments that are damaged and were left alone."""


class Terms(NamedTuple):
    """When it is worth it, and what it may cost."""

    grace_us: int
    memory_bytes: int
    dirty_ratio: float = 0.0


class Compacted(NamedTuple):
    """What was taken out."""

    messages: int = 0
    tombstones: int = 0  # of these
    bytes: int = 0  # by which files became smaller
    segments: int = 0  # that were written anew

    def plus(self, other: Compacted) -> Compacted:
        return Compacted(*(mine + theirs for mine, theirs in zip(self, other, strict=True)))


class Stopped(Exception):
    """The station is being closed; what is done is done, the rest waits."""


class _Unsound(Exception):
    """The segment's bytes are not those that its index vouches for."""


def load_state(directory: Path, incarnation: str, end: int, disk: Disk) -> State:
    """What is known of an earlier run; nothing if that was in another life of the channel, or cannot be."""
    with contextlib.suppress(FileNotFoundError, msgspec.MsgspecError):
        found = msgspec.json.decode(disk.read_file(directory / STATE), type=State)
        if found.incarnation == incarnation and found.cleaned <= end:
            return found
    return State(incarnation=incarnation)


def due(state: State, sealed: Sequence[Sealed], terms: Terms, now_us: int, *, forced: bool = False) -> bool:
    """Whether it is worth reading everything: enough is new, or tombstones are long overdue.

    >>> sealed = [Sealed(0, 10, 600, 5), Sealed(10, 20, 400, 6)]
    >>> due(State(cleaned=10), sealed, Terms(grace_us=100, memory_bytes=1, dirty_ratio=0.5), now_us=10)
    False
    >>> due(State(cleaned=10, tombstone_us=5), sealed, Terms(100, 1, 0.5), now_us=131)
    True
    """
    dirty = sum([segment.bytes for segment in sealed if segment.next > state.cleaned])
    waiting_us = now_us - state.tombstone_us if state.tombstone_us else 0
    if forced:
        return dirty > 0 or waiting_us > terms.grace_us
    total = sum([segment.bytes for segment in sealed])
    return (dirty > 0 and dirty >= terms.dirty_ratio * total) or waiting_us > terms.grace_us + terms.grace_us // 4


def compact(
    place: Place,
    sealed: Sequence[Sealed],
    state: State,
    terms: Terms,
    now_us: int,
    disk: Disk,
    going: Callable[[], bool] = lambda: True,
) -> Compacted:
    """Compact the sealed segments of a partition. Upkeep is kept away by the caller; appenders are not disturbed."""
    return _Run(place, sealed, terms, now_us, disk, going).run(state)


class _Segment:
    """One sealed segment and the index entries that vouch for it."""

    def __init__(self, place: Place, sealed: Sealed, disk: Disk) -> None:
        directory, self.base = place.directory, sealed.base
        plain, stored = (segments.path_of(directory, self.base, suffix) for suffix in segments.FORMS)
        self.compressed = stored.exists()
        if self.compressed and plain.exists():  # a crash came between compressing and removing
            if not compress.same_lines(directory, self.base, disk):
                raise _Unsound
            disk.unlink(plain)
            disk.sync_directory(directory)
        self._reader = segments.open_segment(directory, self.base, disk)
        self.size = self._reader.size()
        with contextlib.suppress(FileNotFoundError):
            path = segments.path_of(directory, self.base, segments.INDEX)
            self.entries = index.chain(disk.read_file(path), self.base)
            if self.entries and self._sound(sealed):
                return
        self.entries = indexing.build_index(self._reader, place, disk)
        if not self._sound(sealed):
            self.close()
            raise _Unsound

    def _sound(self, sealed: Sealed) -> bool:
        last = self.entries[-1] if self.entries else None
        return last is not None and (last.end, last.next) == (self.size, sealed.next)

    @property
    def blank(self) -> bool:
        """Whether every line is empty."""
        return self.size == sum([entry.lines for entry in self.entries])

    def stretches(self) -> Iterator[tuple[Entry, bytes]]:
        """Each index entry with its bytes, which are what it says."""
        crc = 0
        for entry in self.entries:
            data = self._reader.read(entry.position, entry.length)
            crc = extend(crc, data)
            if crc != entry.crc or len(data) != entry.length or data.count(b"\n") != entry.lines:
                raise _Unsound
            yield entry, data

    def close(self) -> None:
        self._reader.close()


class _Verdict:
    """Which lines of a segment go, given the newest offset of each key."""

    def __init__(self, newest: dict[bytes, int], end: int, terms: Terms, now_us: int, *, bury: bool) -> None:
        self._newest = newest
        self._end = end
        self._grace_us, self._now_us = terms.grace_us, now_us
        self._bury = bury  # whether tombstones may go: only when nothing that they delete may be left
        self.messages = self.tombstones = 0
        self.oldest_us = 0  # tombstone that stays and waits

    def doomed(self, entry: Entry, data: bytes) -> set[int]:
        if entry.length == entry.lines:
            return set()  # all of it is empty
        found: set[int] = set()
        for offset, key, tombstone in keyed(data, entry.first):
            if offset >= self._end:
                break
            if self._newest.get(key, -1) > offset:
                found.add(offset)
            elif tombstone and self._bury:
                if self._now_us - entry.append_us > self._grace_us:
                    found.add(offset)
                    self.tombstones += 1
                else:
                    self.oldest_us = min(self.oldest_us or entry.append_us, entry.append_us)
        self.messages += len(found)
        return found


class _Run:
    """Rounds until all that is sealed is compacted."""

    def __init__(
        self,
        place: Place,
        sealed: Sequence[Sealed],
        terms: Terms,
        now_us: int,
        disk: Disk,
        going: Callable[[], bool],
    ) -> None:
        self._place = place
        self._directory = place.directory
        self._sealed = sealed
        self._terms = terms
        self._now_us = now_us
        self._disk = disk
        self._going = going
        self._skipped: set[int] = set()
        self._tombstone_us = 0

    def run(self, state: State) -> Compacted:
        swap.settle(self._directory, self._disk)
        self._clear_leftovers()
        end = self._sealed[-1].next
        cleaned = min([state.cleaned, *self._mended(state.skipped)])
        total = Compacted()
        while True:
            newest, cleaned = self._newest(cleaned)
            total = total.plus(self._pass(newest, cleaned))
            fresh = State(
                incarnation=state.incarnation, cleaned=cleaned, tombstone_us=self._tombstone_us,
                skipped=sorted(self._skipped),
            )  # fmt: skip
            self._disk.replace_file(self._directory / STATE, msgspec.json.encode(fresh))
            if cleaned >= end:
                return total

    def _clear_leftovers(self) -> None:
        """What was written aside by somebody who did not live to put it in its place; nobody does so now."""
        names = [f"{sealed.base:020d}{suffix}.tmp-" for sealed in self._sealed for suffix in segments.FORMS]
        for name in self._disk.listdir(self._directory):
            if ".tmp-" in name and name.startswith(tuple(names)):
                with contextlib.suppress(FileNotFoundError):
                    self._disk.unlink(self._directory / name)

    def _mended(self, skipped: Sequence[int]) -> list[int]:
        """Segments that were damaged and are not any more: from there on everything is to be looked at again."""
        found: list[int] = []
        for sealed in self._sealed:
            if sealed.base in skipped:
                with contextlib.suppress(_Unsound), contextlib.closing(self._open(sealed)) as segment:
                    for _ in segment.stretches():
                        self._check_going()
                    found.append(sealed.base)
        return found

    def _open(self, sealed: Sealed) -> _Segment:
        return _Segment(self._place, sealed, self._disk)

    def _check_going(self) -> None:
        if not self._going():
            raise Stopped

    def _newest(self, cleaned: int) -> tuple[dict[bytes, int], int]:
        """The newest offset of each key from ``cleaned`` on, and how far the memory reached."""
        newest: dict[bytes, int] = {}
        room = max(1, self._terms.memory_bytes // KEY_BYTES)
        for sealed in self._sealed:
            if sealed.next <= cleaned:
                continue
            with contextlib.suppress(_Unsound), contextlib.closing(self._open(sealed)) as segment:
                for entry, data in segment.stretches():
                    self._check_going()
                    for offset, key, _ in keyed(data, entry.first):
                        if offset < cleaned:
                            continue
                        if len(newest) >= room and key not in newest:
                            return newest, offset
                        newest[key] = offset
        return newest, self._sealed[-1].next

    def _pass(self, newest: dict[bytes, int], end: int) -> Compacted:
        """Take out of all segments, the oldest first, what is older than the map says."""
        total = Compacted()
        self._tombstone_us = 0
        self._skipped.clear()
        for sealed in self._sealed:
            if sealed.base >= end:
                break
            try:
                with contextlib.closing(self._open(sealed)) as segment:
                    total = total.plus(self._clean(segment, newest, end))
            except _Unsound:
                self._skipped.add(sealed.base)
        return total

    def _verdict(self, newest: dict[bytes, int], end: int) -> _Verdict:
        return _Verdict(newest, end, self._terms, self._now_us, bury=not self._skipped)

    def _clean(self, segment: _Segment, newest: dict[bytes, int], end: int) -> Compacted:
        verdict = self._verdict(newest, end)
        done = Compacted()
        if not segment.blank and self._any_doomed(segment, verdict):
            verdict = self._verdict(newest, end)
            done = self._rewrite(segment, verdict)
        if verdict.oldest_us:
            self._tombstone_us = min(self._tombstone_us or verdict.oldest_us, verdict.oldest_us)
        return done

    def _any_doomed(self, segment: _Segment, verdict: _Verdict) -> bool:
        for entry, data in segment.stretches():
            self._check_going()
            if verdict.doomed(entry, data):
                return True
        return False

    # -- writing a segment anew --------------------------------------------------------------------------------

    def _rewrite(self, segment: _Segment, verdict: _Verdict) -> Compacted:
        directory, base, disk = self._directory, segment.base, self._disk
        suffix = segments.COMPRESSED if segment.compressed else segments.PLAIN
        before = segments.stored_bytes(directory, base, disk)
        plain = f"{segments.path_of(directory, base)}.tmp-{os.getpid()}"
        ready = f"{segments.path_of(directory, base, suffix)}.tmp-{os.getpid()}"
        frames: compress.Frames = []
        try:
            entries = self._write_lines(segment, verdict, plain)
            if segment.compressed:
                with contextlib.closing(segments.PlainSegment(directory, base, disk, Path(plain))) as reader:
                    frames = compress.write_frames(reader, entries, ready, disk)
                disk.unlink(plain)
            swap.replace(directory, base, suffix, ready, entries, disk)
        except Exception:
            for half in {plain, ready}:
                with contextlib.suppress(OSError):
                    disk.unlink(half)
            raise
        if frames:
            path = segments.path_of(directory, base, segments.FRAMES)
            disk.replace_file(path, compress.encode_frames(frames), sync_names=False)
        saved = before - segments.stored_bytes(directory, base, disk)
        return Compacted(verdict.messages, verdict.tombstones, saved, 1)

    def _write_lines(self, segment: _Segment, verdict: _Verdict, path: str) -> list[Entry]:
        entries = _Entries()
        fd = self._disk.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        try:
            for entry, data in segment.stretches():
                self._check_going()
                left = _without(data, entry.first, verdict.doomed(entry, data))
                self._disk.write_all(fd, left)
                entries.add(entry, left)
            self._disk.fdatasync(fd)
        finally:
            self._disk.close(fd)
        return entries.done()


def _without(data: bytes, first: int, doomed: set[int]) -> bytes:
    """The lines with an empty one for each that goes, and for each that was blank."""
    lines = enumerate(data.split(b"\n"), first)
    return b"\n".join([b"" if offset in doomed or not line.strip(b" ") else line for offset, line in lines])


class _Entries:
    """Index entries of a shortened segment: neighbours are put together until they have the usual size."""

    def __init__(self) -> None:
        self._done: list[Entry] = []
        self._open: Entry | None = None
        self._crc = 0

    def add(self, old: Entry, data: bytes) -> None:
        """What is left of the lines of an old entry. Its times stay: they bound those that are left."""
        self._crc = extend(self._crc, data)
        into = self._open
        if into is None:
            position = self._done[-1].end if self._done else 0
            self._open = old._replace(position=position, length=len(data), crc=self._crc)
        else:
            times = [us for us in (into.min_us, old.min_us) if us]
            self._open = into._replace(
                append_us=old.append_us, min_us=min(times, default=0), max_us=max(into.max_us, old.max_us),
                peak_us=old.peak_us, lines=into.lines + old.lines, length=into.length + len(data), crc=self._crc,
            )  # fmt: skip
        assert self._open is not None
        if self._open.length >= INDEX_STRIDE_BYTES:
            self._done.append(self._open)
            self._open = None

    def done(self) -> list[Entry]:
        if self._open is not None:
            self._done.append(self._open)
            self._open = None
        return self._done


def blank_beginning(place: Place, sealed: Sequence[Sealed], disk: Disk) -> list[Sealed]:
    """The oldest segments of which nothing is left but empty lines."""
    found: list[Sealed] = []
    for one in sealed:
        try:
            with contextlib.closing(_Segment(place, one, disk)) as segment:
                if not segment.blank:
                    break
                for _ in segment.stretches():
                    pass
        except _Unsound:
            break
        found.append(one)
    return found
