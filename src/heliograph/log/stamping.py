"""Lines of a numbered publisher that were encoded elsewhere: thousands of them finished at once.

    {"specversion":"1.0", … ,"data":{…}                     the body, as it was laid aside
    ,"producer":"spark.6f1e","producerseq":"1/1001"         the number,
    ,"batch":"40/3","origin":"host2.k3f9q2","originseq":"0/41","crc":"9a1c03f7"}     and the rest: see lines.py

All that comes behind a body differs in digits only. So the ends of many lines are a table of bytes in which numpy
writes one column after the other. Their checksums, too: CRC-32C is linear, hence that of body and end is the body's,
carried on over so many bytes, xor the end's; and the end's is that of one with zeros for digits, xor what each digit
adds at its place. Without numpy, or for a few lines, `fill` makes the same of them one by one.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import google_crc32c

from heliograph.log.lines import batch_mark, decimals, fill
from heliograph.log.tickets import Ticket

if TYPE_CHECKING:
    import numpy as np

    Numbers = np.ndarray[Any, np.dtype[np.int64]]
    Sums = np.ndarray[Any, np.dtype[np.uint32]]
    Table = np.ndarray[Any, np.dtype[np.uint8]]

_value = google_crc32c.value
_extend = google_crc32c.extend
_SEAL: Final = b',"crc":"00000000"}\n'
_SUM_AT: Final = -len(b'00000000"}\n')
TOGETHER_MIN: Final = 500
"""So many lines at least are finished together: below that, making tables takes longer than it spares."""


class NumberForm(NamedTuple):
    """What a numbered publisher says in its lines: what stands before the number, and behind it."""

    before: bytes
    behind: bytes


class EncodedTicket(Ticket):
    """An atomic batch of bodies, numbered from ``number`` on."""

    __slots__ = ("form", "number")

    def __init__(self, bodies: Sequence[bytes], form: NumberForm, number: int, now_us: int) -> None:
        super().__init__(bodies, (), now_us, atomic=True)
        self.form = form
        self.number = number
        self.size += len(form.before + form.behind) * self.count

    def lines(self, place: bytes, first: int) -> bytes:
        if self.count >= TOGETHER_MIN and _numpy() is not None:
            return together(self.bodies, self.form, self.number, place, first)
        return one_by_one(self.bodies, self.form, self.number, place, first)


@functools.cache
def _numpy() -> Any:
    """Comes with what Spark needs, not with the log."""
    try:
        import numpy as np
    except ImportError:
        return None
    return np


def one_by_one(bodies: Sequence[bytes], form: NumberForm, number: int, place: bytes, first: int) -> bytes:
    """Finish bodies into lines."""
    numbers = decimals(range(number, number + len(bodies)))
    return fill([bodies, form.before, numbers, form.behind], len(bodies), place, first)


def together(bodies: Sequence[bytes], form: NumberForm, number: int, place: bytes, first: int) -> bytes:
    """The same, as many at a time as have numbers of the same length."""
    mark = batch_mark(first, len(bodies))
    parts: list[bytes] = []
    for at, end in _stretches(len(bodies), number, first):
        digits = (len(str(number + at)), len(str(first + at)))
        end_of = _End(form.before, form.behind + mark + place, b'"', digits)
        ends = end_of.lines(bodies[at:end], number + at, first + at)
        both = [b""] * (2 * (end - at))
        both[::2] = bodies[at:end]
        both[1::2] = ends
        parts += both
    return b"".join(parts)


def _stretches(count: int, *numbers: int) -> Iterator[tuple[int, int]]:
    """Where to cut so that none of the numbers, counted on, gets another digit in between.

    >>> list(_stretches(200, 8, 97))
    [(0, 2), (2, 3), (3, 92), (92, 200)]
    """
    borders = {0, count}
    for one in numbers:
        borders |= {10**digits - one for digits in range(len(str(one)), len(str(one + count - 1)))}
    yield from itertools.pairwise(sorted(borders))


class _End:
    """What stands behind the bodies of a stretch, up to the checksum: all the same but for two numbers."""

    def __init__(self, before: bytes, between: bytes, behind: bytes, digits: tuple[int, int]) -> None:
        self._zeros = before + b"0" * digits[0] + between + b"0" * digits[1] + behind
        self._places = (
            range(len(before), len(before) + digits[0]),
            range(len(self._zeros) - len(behind) - digits[1], len(self._zeros) - len(behind)),
        )

    def lines(self, bodies: Sequence[bytes], number: int, first: int) -> list[bytes]:
        """The ends of some lines, with their checksums."""
        np = _numpy()
        count = len(bodies)
        table: Table = np.empty((count, len(self._zeros) + len(_SEAL)), np.uint8)
        table[:] = np.frombuffer(self._zeros + _SEAL, np.uint8)
        sums = _carried(np.fromiter(map(_value, bodies), np.uint32, count), len(self._zeros))
        sums ^= np.uint32(_value(self._zeros))
        for places, start in zip(self._places, (number, first), strict=True):
            self._write_number(table, sums, places, np.arange(start, start + count))
        write_hexadecimal(table, table.shape[1] + _SUM_AT, sums)
        found: list[bytes] = table.view(f"S{table.shape[1]}").ravel().tolist()
        return found

    def _write_number(self, table: Table, sums: Sums, places: range, numbers: Numbers) -> None:
        """Write the digits, and what each adds to the checksum."""
        for at in reversed(places):
            numbers, digit = divmod(numbers, 10)
            table[:, at] += digit.astype("u1")
            sums ^= self._added(at)[digit]

    def _added(self, at: int) -> Sums:
        zeros, nothing = self._zeros, _value(self._zeros)
        found = [_value(b"%b%d%b" % (zeros[:at], digit, zeros[at + 1 :])) ^ nothing for digit in range(10)]
        made: Sums = _numpy().array(found, "u4")
        return made


def _carried(sums: Sums, length: int) -> Sums:
    """Checksums of texts behind which so many zero bytes stand, without what those add by themselves."""
    np = _numpy()
    tables = _carrying(length)
    found: Sums = tables[0][sums & np.uint32(255)]
    for at in (1, 2, 3):
        found ^= tables[at][(sums >> np.uint32(8 * at)) & np.uint32(255)]
    return found


@functools.lru_cache(maxsize=64)
def _carrying(length: int) -> tuple[Sums, ...]:
    """For each of the four bytes of a checksum what becomes of it."""
    zeros = bytes(length)
    alone = _value(zeros)
    return tuple(
        _numpy().array([_extend(byte << 8 * at, zeros) ^ alone for byte in range(256)], "u4") for at in range(4)
    )


def write_hexadecimal(table: Table, at: int, numbers: Sums | Numbers) -> None:
    """Write the eight digits of a number into each row of a table, from a column on."""
    digits = _numpy().frombuffer(b"0123456789abcdef", "u1")
    for place in range(8):
        table[:, at + place] = digits[(numbers >> (28 - 4 * place)) & 15]
