"""How bodies begin that were made at once: all alike, but for the ends of their ids, which count on.

    {"specversion":"1.0","id":"019a8f6e-…-8c3d0000002f","source":"host2","type":"…","time":"…","channel":"alerts"
    before ───────────────────────────────────┘ number └─────────────────────────────────────────── behind

Of a short message that is more than half. So whoever lays many aside does it once for all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final

import google_crc32c
import msgspec

from heliograph.log.tables import HEXADECIMAL, added, alike, column, hexadecimals, needed, rows, tools

_value = google_crc32c.value
_DIGITS: Final = 8
_LOW: Final = 4
"""So many digits are looked up in a table,"""
_LOW_BITS: Final = 16
"""and so many bits they have."""


class Beginning(msgspec.Struct, frozen=True):
    """What stands before the last eight hexadecimal digits of the ids, what these are in the first, what comes next."""

    before: str
    number: int
    behind: str

    def __len__(self) -> int:
        """How many bytes each has."""
        return len(self.before.encode()) + _DIGITS + len(self.behind.encode())


@dataclass(frozen=True, slots=True)
class Run:
    """So many bodies that begin alike."""

    begin: Beginning
    count: int

    def part(self, begin: int, end: int) -> Run:
        """Some of them; none if they are beyond it."""
        begin, end = max(0, begin), min(self.count, end)
        return Run(msgspec.structs.replace(self.begin, number=self.begin.number + begin), max(0, end - begin))

    def size(self) -> int:
        """How many bytes all beginnings have."""
        return len(self.begin) * self.count

    def texts(self) -> list[bytes]:
        """The beginning of each.

        >>> Run(Beginning('{"id":"a', 255, '"'), 2).texts()
        [b'{"id":"a000000ff"', b'{"id":"a00000100"']
        """
        before, behind = self.begin.before.encode(), self.begin.behind.encode()
        numbers = range(self.begin.number, self.begin.number + self.count)
        return [b"%b%08x%b" % (before, number, behind) for number in numbers]

    def column(self) -> Any:
        """The same as Arrow has it."""
        before, behind = self.begin.before.encode(), self.begin.behind.encode()
        table = alike(before + bytes(_DIGITS) + behind, self.count)
        for at, end, high, low in self._stretches():
            column(table[at:end], len(before), _LOW)[:] = hexadecimals()[high]
            column(table[at:end], len(before) + _LOW, _LOW)[:] = hexadecimals()[low : low + end - at]
        return rows(table)

    def sums(self) -> Sequence[int]:
        """The checksum of each beginning."""
        if tools() is None:
            return [_value(text) for text in self.texts()]
        before, behind = self.begin.before.encode(), self.begin.behind.encode()
        sums = needed().np.empty(self.count, "u4")
        for at, end, high, low in self._stretches():
            sums[at:end] = _value(b"%b%04x0000%b" % (before, high, behind))
            sums[at:end] ^= added(len(behind), _LOW, HEXADECIMAL)[low : low + end - at]
        made: list[int] = sums.tolist()
        return made

    def _stretches(self) -> Iterator[tuple[int, int, int, int]]:
        """Where only the last digits change: from where to where, the first digits, and the last ones to begin with."""
        first, following = self.begin.number, self.begin.number + self.count
        for high in range(first >> _LOW_BITS, (following - 1 >> _LOW_BITS) + 1):
            begin, end = max(first, high << _LOW_BITS), min(following, high + 1 << _LOW_BITS)
            yield begin - first, end - first, high, begin - (high << _LOW_BITS)


def part_of(runs: Sequence[Run], begin: int, end: int) -> list[Run]:
    """Of the bodies of some runs those from one to another.

    >>> runs = [Run(Beginning("", 7, ""), 3), Run(Beginning("", 0, ""), 9)]
    >>> [(run.begin.number, run.count) for run in part_of(runs, 2, 5)]
    [(9, 1), (0, 2)]
    """
    found = []
    at = 0
    for run in runs:
        found.append(run.part(begin - at, end - at))
        at += run.count
    return [run for run in found if run.count]


def columns_of(runs: Sequence[Run]) -> Any:
    """The beginnings of all bodies of some runs, as Arrow has them."""
    columns = [run.column() for run in runs]
    return columns[0] if len(columns) == 1 else needed().pa.concat_arrays(columns)


def sums_of_beginnings(runs: Iterable[Run]) -> Iterable[int]:
    """Their checksums."""
    return chain.from_iterable(run.sums() for run in runs)
