"""Lines that are alike, as most lines of an origin are: hundreds of them checked at once, instead of one by one.

Those of one length are a table of bytes. One of them is looked at closely, and tells which of its bytes may be others
(``likeness.py``); the rest is a few calls of numpy for the whole table. Where lengths vary that is done with what is
around the payloads (``wrapping.py``).

Nothing is believed that was not looked at: what does not fit is left to whoever looks at each line.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from typing import Final, NamedTuple, Self, TypeVar

import numpy as np

from heliograph.engine.foreign import TAIL, Run, lines_of
from heliograph.engine.likeness import Bytes, Kind, Mask, Numbers, Place, Said
from heliograph.engine.wrapping import Wrapping

TOGETHER_MIN: Final = 64
"""So many lines at least are checked together: for fewer the calls cost more than they spare."""
APART_MIN: Final = 256
"""So many of one length that follow each other are a table; of fewer, only what is around the payloads is."""
LENGTH_MAX: Final = 4096
"""Where lines are longer, what is spared does not count."""
_SCRATCH_BYTES: Final = 1 << 20
"""What each thread keeps for ever."""
_KINDS_MAX: Final = 256
"""How many kinds of lines are remembered."""
_TRIES: Final = 3
"""How many kinds the lines of one length may be of."""
_WRAPPINGS_MAX: Final = 2
"""How many kinds of envelopes are looked for among lines that come together: with more, each by itself is quicker."""
_PROBED: Final = 8
"""So many lines tell whether it is worth looking for one."""
_NEWLINE: Final = ord("\n")
_T = TypeVar("_T")


class Cut:
    """Some text, and where its lines are."""

    __slots__ = ("_bytes", "_lines", "data", "lengths", "starts")

    def __init__(self, data: bytes) -> None:
        self._hold(data)
        ends = np.equal(self._bytes, _NEWLINE, out=_scratch(len(data))).nonzero()[0]
        self.starts: Numbers = np.zeros(len(ends), np.int64)
        self.starts[1:] = ends[:-1] + 1
        self.lengths: Numbers = ends + 1 - self.starts

    def _hold(self, data: bytes) -> None:
        self.data = data
        self._bytes: Bytes = np.frombuffer(data, np.uint8)
        self._lines: list[bytes] | None = None

    @classmethod
    def of(cls, data: bytes, cuts: Sequence[Cut]) -> Self:
        """Some texts as one."""
        made = cls(b"")
        made._hold(data)
        made.lengths = np.concatenate([cut.lengths for cut in cuts])
        made.starts = np.cumsum(made.lengths) - made.lengths
        return made

    @property
    def lines(self) -> list[bytes]:
        """The lines one by one, each with its newline."""
        if self._lines is None:
            self._lines = lines_of(self.data)
        return self._lines

    @property
    def even(self) -> bool:
        """Whether many lines of one length follow each other."""
        return len(self._borders) * TOGETHER_MIN <= len(self.lengths)

    @property
    def _borders(self) -> Numbers:
        """Which lines are not as long as the one before."""
        borders: Numbers = (self.lengths[1:] != self.lengths[:-1]).nonzero()[0] + 1
        return borders

    @property
    def blank(self) -> bool:
        """Whether a line has nothing in it."""
        return bool((self.lengths == 1).any())

    def tables(self) -> Iterator[tuple[Numbers, Bytes]]:
        """Many lines of one length that follow each other, by number and one in each row. Nothing is copied."""
        every = np.arange(len(self.lengths))
        for at, end in pairwise([0, *self._borders.tolist(), len(every)]):
            first, length = int(self.starts[at]), int(self.lengths[at])
            if end - at >= APART_MIN and length <= LENGTH_MAX:
                yield every[at:end], self._bytes[first : first + (end - at) * length].reshape(-1, length)

    def around(self, numbers: Numbers, head: int, tail: int) -> Bytes:
        """How some lines begin and end, so much of each, one in each row."""
        table: Bytes = np.empty((len(numbers), head + tail), np.uint8)
        starts = self.starts[numbers]
        table[:, :head] = self._windows(head)[starts]
        table[:, head:] = self._windows(tail)[starts + self.lengths[numbers] - tail]
        return table

    def _windows(self, length: int) -> Bytes:
        """So much of the text, from each place of it."""
        return np.ndarray((len(self._bytes) - length + 1, length), np.uint8, self._bytes, 0, (1, 1))


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


_kinds: dict[tuple[object, ...], Kind] = {}
_wrappings: dict[tuple[object, ...], Wrapping] = {}


def _kind_of(channel: str, line: bytes, *, known: bool) -> Kind | None:
    """The kind that a line may be of, as far as that is known; else the one that it is of."""
    tail = TAIL.search(line)
    key = None if tail is None else (channel, len(line), tail[1])
    return _remembered(_kinds, key, known, partial(Kind.of, channel, line))


def _wrapping_of(channel: str, line: bytes, *, known: bool) -> Wrapping | None:
    """The same for what is around its payload."""
    tail = TAIL.search(line)
    key = None if tail is None else (channel, line.find(b',"data":'), tail[1], len(tail[3]))
    return _remembered(_wrappings, key, known, partial(Wrapping.of, channel, line))


def _look_of(line: bytes) -> tuple[object, ...]:
    """What differs between lines that are wrapped differently, at a glance: where the payload begins, and the end."""
    end = line.rfind(b',"origin":')
    return line.find(b',"data":'), len(line) - end, line[end : line.rfind(b',"originseq":')]


def _remembered(
    memory: dict[tuple[object, ...], _T], key: tuple[object, ...] | None, known: bool, make: Callable[[], _T | None]
) -> _T | None:
    found = memory.get(key) if known and key is not None else None
    if found is None and key is not None:
        found = make()
        if found is not None:
            if len(memory) >= _KINDS_MAX:
                memory.clear()
            memory[key] = found
    return found


def look(channel: str, cut: Cut, bytes_max: int) -> Like | None:
    """What the lines of a text say that are alike; None if most are not, or one is too long."""
    if not len(cut.lengths) or int(cut.lengths.max()) > bytes_max + 1:
        return None
    looking = _Looking(channel, cut)
    if cut.even:
        for numbers, table in cut.tables():
            looking.at(numbers, table)
    looking.around()
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
                self._note(kind.place, numbers, said)
                return
            fits = kind.fitting(table)
            said = kind.said(table[fits]) if np.count_nonzero(fits) >= TOGETHER_MIN else None
            if said is not None:
                self._note(kind.place, numbers[fits], said)
                numbers, table = numbers[~fits], table[~fits]
                if len(numbers) < TOGETHER_MIN:
                    return

    def around(self) -> None:
        """Look at what is left, if most of it seems to be of one kind: around the payloads, and at these."""
        left = self._rest.nonzero()[0]
        for _ in range(_WRAPPINGS_MAX):
            typical = self._typical(left) if len(left) >= TOGETHER_MIN else None
            if typical is None:
                return
            for known in (True, False):
                wrapping = _wrapping_of(self._channel, self._cut.lines[typical], known=known)
                alike = left[:0] if wrapping is None else self._around(wrapping, left)
                if typical in alike:
                    break
            if len(alike) == len(left) or 2 * len(alike) < len(left):
                return
            left = np.setdiff1d(left, alike, assume_unique=True)

    def _typical(self, numbers: Numbers) -> int | None:
        """Which line is wrapped like most, by a look at a few of them; None if they are too different."""
        few: list[int] = numbers[:: -(-len(numbers) // _PROBED)].tolist()
        looks = [_look_of(self._cut.lines[number]) for number in few]
        usual = max(looks, key=looks.count)
        return few[looks.index(usual)] if 2 * looks.count(usual) > len(looks) else None

    def _around(self, wrapping: Wrapping, numbers: Numbers) -> Numbers:
        """Look at those around whose payloads there is what is around another's; which these are."""
        numbers = numbers[self._cut.lengths[numbers] > wrapping.head + wrapping.tail]
        if not len(numbers):
            return numbers
        table = self._cut.around(numbers, wrapping.head, wrapping.tail)
        for choose in (None, wrapping.marked, wrapping.kind.fitting):
            if choose is not None:
                fits = choose(table)
                numbers, table = numbers[fits], table[fits]
            said = wrapping.said(table, self._lines(numbers)) if len(numbers) >= TOGETHER_MIN else None
            if said is not None:
                self._note(wrapping.kind.place, numbers, said)
                break
        return numbers

    def _lines(self, numbers: Numbers) -> list[bytes]:
        every = self._cut.lines
        return every if len(numbers) == len(every) else [every[number] for number in numbers.tolist()]

    def _note(self, place: Place, numbers: Numbers, said: Said) -> None:
        self._which[numbers] = self._places.setdefault(place, len(self._places))
        self._sequences[numbers] = said.sequences
        self._times += (said.min_us, said.max_us)
        self._rest[numbers] = False

    def found(self) -> Like | None:
        """All of it, if it is worth something."""
        others = self._rest.nonzero()[0]
        if len(others) * 2 > len(self._rest):
            return None
        rest = self._lines(others) if len(others) else []
        return Like(list(self._places), self._which, self._sequences, min(self._times), max(self._times), rest, others)
