"""Lines that are alike, as most lines of an origin are: hundreds of them checked at once, instead of one by one.

Those of one length are a table of bytes. One of them is looked at closely, and tells which of its bytes may be others
(``likeness.py``); the rest is a few calls of numpy for the whole table.

Nothing is believed that was not looked at: what does not fit is left to whoever looks at each line.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final, NamedTuple, Self

import numpy as np

from heliograph.engine.foreign import TAIL, Run
from heliograph.engine.likeness import Bytes, Kind, Mask, Numbers, Place, Said

TOGETHER_MIN: Final = 64
"""So many lines at least are checked together: for fewer the calls cost more than they spare."""
APART_MIN: Final = 256
"""So many that follow each other are a table of their own; fewer are put together with others of their length."""
LENGTH_MAX: Final = 4096
"""Where lines are longer, what is spared does not count."""
_SCRATCH_BYTES: Final = 1 << 20
"""What each thread keeps for ever."""
_PROBED: Final = 16
_KINDS_MAX: Final = 256
"""How many kinds of lines are remembered."""
_TRIES: Final = 3
"""How many kinds the lines of one length may be of."""
_NEWLINE: Final = ord("\n")


class Cut:
    """Some text, and where its lines are."""

    __slots__ = ("_bytes", "lengths", "starts")

    def __init__(self, data: bytes) -> None:
        self._bytes: Bytes = np.frombuffer(data, np.uint8)
        ends = np.equal(self._bytes, _NEWLINE, out=_scratch(len(data))).nonzero()[0]
        self.starts: Numbers = np.zeros(len(ends), np.int64)
        self.starts[1:] = ends[:-1] + 1
        self.lengths: Numbers = ends + 1 - self.starts

    @classmethod
    def of(cls, data: bytes, cuts: Sequence[Cut]) -> Self:
        """Some texts as one."""
        made = cls(b"")
        made._bytes = np.frombuffer(data, np.uint8)
        made.lengths = np.concatenate([cut.lengths for cut in cuts])
        made.starts = np.cumsum(made.lengths) - made.lengths
        return made

    @property
    def blank(self) -> bool:
        """Whether a line has nothing in it."""
        return bool((self.lengths == 1).any())

    def line(self, number: int) -> bytes:
        """One of the lines, with its newline."""
        start = self.starts[number]
        return self._bytes[start : start + self.lengths[number]].tobytes()

    def tables(self) -> Iterator[tuple[Numbers, Bytes]]:
        """Many lines of one length, by number and one in each row. Where many follow each other nothing is copied."""
        borders = (self.lengths[1:] != self.lengths[:-1]).nonzero()[0] + 1
        every = np.arange(len(self.lengths))
        few: Mask = np.ones(len(every), np.bool_)
        for at, end in pairwise([0, *borders.tolist(), len(every)]):
            first, length = int(self.starts[at]), int(self.lengths[at])
            if end - at >= APART_MIN and length <= LENGTH_MAX:
                few[at:end] = False
                yield every[at:end], self._bytes[first : first + (end - at) * length].reshape(-1, length)
        yield from self._gathered(few.nonzero()[0])

    def _gathered(self, numbers: Numbers) -> Iterator[tuple[Numbers, Bytes]]:
        """The same of lines that are mixed with others of other lengths."""
        lengths = self.lengths[numbers]
        numbers = numbers[np.argsort(lengths, kind="stable")]
        at = 0
        for length, count in enumerate(np.bincount(lengths[lengths <= LENGTH_MAX]).tolist()):
            if count >= TOGETHER_MIN:
                found = numbers[at : at + count]
                windows: Bytes = np.ndarray((len(self._bytes) - length + 1, length), np.uint8, self._bytes, 0, (1, 1))
                yield found, windows[self.starts[found]]
            at += count


def even(data: bytes) -> bool:
    """Whether lines of one length follow each other, by the first few of them: else they have to be looked at."""
    at = 0
    lengths: list[int] = []
    while len(lengths) < _PROBED and (end := data.find(b"\n", at) + 1):
        lengths.append(end - at)
        at = end
    return sum(one != other for one, other in pairwise(lengths)) <= _PROBED // 4


_room = threading.local()


def _scratch(size: int) -> Mask:
    """Where each byte of a text may be said yes or no to: to have that anew for each text takes longer than to say."""
    if size > _SCRATCH_BYTES:
        return np.empty(size, np.bool_)
    room: Mask | None = getattr(_room, "mask", None)
    if room is None:
        room = _room.mask = np.empty(_SCRATCH_BYTES, np.bool_)
    return room[:size]


class Like(NamedTuple):
    """What is known of the lines of a text."""

    places: list[Place]
    which: Numbers  # of each line, where it is from
    sequences: Numbers  # and its sequence there
    min_us: int
    max_us: int
    rest: list[bytes]  # those that have to be looked at: nothing is known of them
    others: Numbers  # which these are

    def add(self, runs: Sequence[Run]) -> None:
        """What became known of the rest."""
        for run in runs:
            place = run.origin, run.partition
            if place not in self.places:
                self.places.append(place)
            numbers = self.others[run.at : run.at + run.next - run.first]
            self.which[numbers] = self.places.index(place)
            self.sequences[numbers] = np.arange(run.first, run.next)

    def runs(self) -> Iterator[Run]:
        """The runs of all."""
        broken = self.sequences[1:] - self.sequences[:-1] != 1
        if len(self.places) > 1:
            broken |= self.which[1:] != self.which[:-1]
        for at, end in pairwise([0, *(broken.nonzero()[0] + 1).tolist(), len(self.sequences)]):
            first = int(self.sequences[at])
            origin, partition = self.places[self.which[at]]
            yield Run(origin, partition, first, first + end - at, at)


_kinds: dict[tuple[str, int, bytes], Kind] = {}


def _kind_of(channel: str, line: bytes, *, known: bool) -> Kind | None:
    """The kind that a line may be of, as far as that is known; else the one that it is of."""
    tail = TAIL.search(line)
    if tail is None:
        return None
    key = channel, len(line), tail[1]
    kind = _kinds.get(key) if known else None
    if kind is None:
        kind = Kind.of(channel, line)
        if kind is not None:
            if len(_kinds) >= _KINDS_MAX:
                _kinds.clear()
            _kinds[key] = kind
    return kind


def look(channel: str, cut: Cut, bytes_max: int) -> Like | None:
    """What the lines of a text say that are alike; None if most are not, or one is too long."""
    if not len(cut.lengths) or int(cut.lengths.max()) > bytes_max + 1:
        return None
    looking = _Looking(channel, cut)
    for numbers, table in cut.tables():
        looking.at(numbers, table)
    return looking.found()


class _Looking:
    """What is found, length by length."""

    def __init__(self, channel: str, cut: Cut) -> None:
        count = len(cut.lengths)
        self._channel = channel
        self._cut = cut
        self._places: dict[Place, int] = {}
        self._which: Numbers = np.zeros(count, np.int64)
        self._sequences: Numbers = np.zeros(count, np.int64)
        self._times: list[int] = []
        self._rest: Mask = np.ones(count, np.bool_)

    def at(self, numbers: Numbers, table: Bytes) -> None:
        """Look at some lines of one length."""
        for attempt in range(_TRIES):
            kind = _kind_of(self._channel, table[0].tobytes(), known=not attempt)
            if kind is None:
                return
            said = kind.said(table)
            if said is not None:
                self._note(kind, numbers, said)
                return
            fits = kind.fitting(table)
            said = kind.said(table[fits]) if np.count_nonzero(fits) >= TOGETHER_MIN else None
            if said is not None:
                self._note(kind, numbers[fits], said)
                numbers, table = numbers[~fits], table[~fits]
                if len(numbers) < TOGETHER_MIN:
                    return

    def _note(self, kind: Kind, numbers: Numbers, said: Said) -> None:
        self._which[numbers] = self._places.setdefault(kind.place, len(self._places))
        self._sequences[numbers] = said.sequences
        self._times += (said.min_us, said.max_us)
        self._rest[numbers] = False

    def found(self) -> Like | None:
        """All of it, if it is worth something."""
        others = self._rest.nonzero()[0]
        if len(others) * 2 > len(self._rest):
            return None
        rest = [self._cut.line(number) for number in others.tolist()]
        return Like(list(self._places), self._which, self._sequences, min(self._times), max(self._times), rest, others)
