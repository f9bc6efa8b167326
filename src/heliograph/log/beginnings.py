"""How bodies begin that were made at once: all alike, but for the ends of their ids, which count on.

    {"specversion":"1.0","id":"019a8f6e-…-8c3d0000002f","source":"host2","type":"…","time":"…","channel":"alerts"
    before ───────────────────────────────────┘ number └─────────────────────────────────────────── behind

Of a short message that is more than half. So whoever lays many aside does it once for all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final

import google_crc32c
import msgspec

from heliograph.log.tables import HEXADECIMAL, added, alike, needed, rows, tools, write_hexadecimal

_value = google_crc32c.value
_DIGITS: Final = 8
_BITS: Final = 4
_FEW: Final = 2
"""So many digits at once are looked up in a table."""


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
        write_hexadecimal(table, len(before), self._numbers())
        return rows(table)

    def sums(self) -> list[int]:
        """The checksum of each beginning."""
        if tools() is None:
            return [_value(text) for text in self.texts()]
        np = needed().np
        before = self.begin.before.encode()
        zeros = before + b"0" * _DIGITS + self.begin.behind.encode()
        found = np.full(self.count, _value(zeros), "u4")
        left = self._numbers()
        for end in range(len(before) + _DIGITS, len(before), -_FEW):
            found ^= added(zeros, end - _FEW, end, HEXADECIMAL)[left & ((1 << _BITS * _FEW) - 1)]
            left = left >> _BITS * _FEW
        made: list[int] = found.tolist()
        return made

    def _numbers(self) -> Any:
        return needed().np.arange(self.begin.number, self.begin.number + self.count)


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
