"""Latest per key: of the messages of one key that sealed segments hold only the newest stays.

A message without a key stays. A tombstone (a key and no data) deletes what is older, and is deleted itself once it
has been there for a grace time. Offsets are line numbers for ever: what goes leaves an empty line. ::

    ├── compacted before ──┼── not yet ────────────┤ active segment
    first               cleaned               end of what is sealed

A round reads what was not compacted yet into a map from key to newest offset, as far as a bounded memory reaches,
then passes over all segments from the oldest on and writes those anew that hold something older. So whatever goes,
something newer of its key is in a sealed (hence synced) segment; and a tombstone goes after all that it deletes.
How far this has come stands in ``compact.json`` (see ``compactstate.py``).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from heliograph.disk import Disk
from heliograph.log import retention, segments, swap
from heliograph.log.compactstate import STATE, State, load, save
from heliograph.log.index import Entry
from heliograph.log.indexing import Place
from heliograph.log.keys import KEY_BYTES, keyed
from heliograph.log.partition import Partition
from heliograph.log.retention import Sealed
from heliograph.log.shorten import Doomed, SealedSegment, Unsound, shorten


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
            state = msgspec.structs.replace(
                state, cleaned=cleaned, tombstone_us=self._tombstone_us, skipped=sorted(self._skipped)
            )
            save(self._directory, state, self._disk)
            if cleaned >= end:
                return total

    def _clear_leftovers(self) -> None:
        """What was written aside by somebody who did not live to put it in its place; nobody does so now."""
        ours = (*segments.FORMS, segments.NEXT_INDEX)
        names = (f"{STATE}.tmp-", *(f"{one.base:020d}{suffix}.tmp-" for one in self._sealed for suffix in ours))
        for name in self._disk.listdir(self._directory):
            if ".tmp-" in name and name.startswith(names):
                with contextlib.suppress(FileNotFoundError):
                    self._disk.unlink(self._directory / name)

    def _mended(self, skipped: Sequence[int]) -> list[int]:
        """Segments that were damaged and are not any more: from there on everything is to be looked at again."""
        found: list[int] = []
        for sealed in self._sealed:
            if sealed.base in skipped:
                with contextlib.suppress(Unsound), contextlib.closing(self._open(sealed)) as segment:
                    for _ in segment.stretches():
                        self._check_going()
                    found.append(sealed.base)
        return found

    def _open(self, sealed: Sealed) -> SealedSegment:
        return SealedSegment(self._place, sealed, self._disk)

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
            with contextlib.suppress(Unsound), contextlib.closing(self._open(sealed)) as segment:
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
            except Unsound:
                self._skipped.add(sealed.base)
        return total

    def _verdict(self, newest: dict[bytes, int], end: int) -> _Verdict:
        return _Verdict(newest, end, self._terms, self._now_us, bury=not self._skipped)

    def _clean(self, segment: SealedSegment, newest: dict[bytes, int], end: int) -> Compacted:
        verdict = self._verdict(newest, end)
        done = Compacted()
        if not segment.blank and self._any_doomed(segment, verdict):
            verdict = self._verdict(newest, end)
            saved = shorten(segment, self._interruptible(verdict.doomed), self._directory, self._disk)
            done = Compacted(verdict.messages, verdict.tombstones, saved, 1)
        if verdict.oldest_us:
            self._tombstone_us = min(self._tombstone_us or verdict.oldest_us, verdict.oldest_us)
        return done

    def _interruptible(self, doomed: Doomed) -> Doomed:
        def check_first(entry: Entry, data: bytes) -> set[int]:
            self._check_going()
            return doomed(entry, data)

        return check_first

    def _any_doomed(self, segment: SealedSegment, verdict: _Verdict) -> bool:
        doomed = self._interruptible(verdict.doomed)
        return any(doomed(entry, data) for entry, data in segment.stretches())


# -- the beginning of the log ----------------------------------------------------------------------------------------


def drop_blank_beginning(partition: Partition, sealed: Sequence[Sealed], disk: Disk) -> int | None:
    """Delete the oldest segments if they hold nothing any more; the new beginning of the log, if it moves.

    Nobody misses anything there, so it is written down first that no reader need be told of a gap.
    """
    directory = partition.place.directory
    gone = _blank_beginning(partition.place, sealed, disk)
    if not gone:
        return None
    state = load(directory, disk)
    begin, end = state.emptied
    begin = begin if end == gone[0].base else gone[0].base
    save(directory, msgspec.structs.replace(state, emptied=(begin, gone[-1].next)), disk)
    retention.delete(partition, gone, disk)
    return gone[-1].next


def _blank_beginning(place: Place, sealed: Sequence[Sealed], disk: Disk) -> list[Sealed]:
    found: list[Sealed] = []
    for one in sealed:
        try:
            with contextlib.closing(SealedSegment(place, one, disk)) as segment:
                if not segment.blank:
                    break
                for _ in segment.stretches():
                    pass
        except Unsound:
            break
        found.append(one)
    return found
