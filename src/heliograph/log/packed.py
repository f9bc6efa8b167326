"""Messages of a numbered publisher that were encoded elsewhere and lie behind each other, on their way to the disk.

Where a line will stand is known for sure under the lock only. Whoever has many to append foresees it, and has the next
lines finished while the present ones are written. If somebody else came between, they are finished anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from operator import add
from typing import Any, NamedTuple

from heliograph.log.beginnings import Run, part_of
from heliograph.log.stamping import SUM_BYTES, NumberForm, borders_of, can_together, one_by_one, sums_of, together
from heliograph.log.tickets import Ticket


class Spot(NamedTuple):
    """What bodies become lines by: the number of the first, and where it stands in which log."""

    form: NumberForm
    number: int
    place: bytes
    first: int


class Packed:
    """Bodies, each with a newline behind it; perhaps with their checksums, as `sums_of` makes them.

    ``runs``: how they begin, if that is not in the data.
    """

    __slots__ = ("_borders", "_made", "_runs", "_sums", "data")

    def __init__(self, data: bytes, sums: bytes = b"", runs: Sequence[Run] = ()) -> None:
        self.data = data
        self._borders: Any = borders_of(data)
        self._sums = sums
        self._runs = runs
        self._made: tuple[Spot, bytes] | None = None

    @classmethod
    def of(cls, bodies: Sequence[bytes]) -> Packed:
        """Bodies that lie apart.

        >>> Packed.of([b'{"data":1', b'{"data":2']).data
        b'{"data":1\\n{"data":2\\n'
        """
        return cls(b"".join([body + b"\n" for body in bodies]))

    def __len__(self) -> int:
        return len(self._borders)

    def part(self, begin: int, end: int) -> Packed:
        """Some of them.

        >>> Packed(b"1\\n22\\n3\\n").part(1, 3).data
        b'22\\n3\\n'
        """
        if (begin, end) == (0, len(self)):
            return self
        start = self._borders[begin - 1] if begin else 0
        sums = self._sums[SUM_BYTES * begin : SUM_BYTES * end]
        return Packed(self.data[start : self._borders[end - 1]], sums, part_of(self._runs, begin, end))

    def size(self) -> int:
        """How many bytes they have."""
        return len(self.data) + sum(run.size() for run in self._runs)

    def prepare(self, spot: Spot) -> None:
        """Make the lines that they will be if that is the spot. In whichever thread, before anybody appends them."""
        self._made = (spot, self._finished(spot))

    def lines(self, spot: Spot) -> bytes:
        """What is written."""
        made, self._made = self._made, None
        return made[1] if made is not None and made[0] == spot else self._finished(spot)

    def _finished(self, spot: Spot) -> bytes:
        if not can_together(len(self)):
            return one_by_one(self._whole(), *spot)
        if not self._sums:
            self._sums = sums_of(self.data, self._runs)
        return together(self.data, self._borders, self._sums, self._runs, *spot)

    def _whole(self) -> list[bytes]:
        bodies = self.data.split(b"\n")[:-1]
        if not self._runs:
            return bodies
        return list(map(add, chain.from_iterable(run.texts() for run in self._runs), bodies))


class EncodedTicket(Ticket):
    """An atomic batch of bodies, numbered from ``number`` on."""

    __slots__ = ("form", "number", "packed")

    def __init__(self, packed: Packed, form: NumberForm, number: int, now_us: int, *, passing: bool = False) -> None:
        super().__init__((), (), now_us, atomic=True)
        self.passing = passing
        self.packed = packed
        self.count = len(packed)
        self.form = form
        self.number = number
        self.size = packed.size() + (len(form.before + form.behind) - 1) * self.count

    def lines(self, place: bytes, first: int) -> bytes:
        return self.packed.lines(Spot(self.form, self.number, place, first))
