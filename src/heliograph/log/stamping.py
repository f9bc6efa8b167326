"""Lines of a numbered publisher that were encoded elsewhere: thousands of them finished at once.

    {"specversion":"1.0", … ,"data":{…}                     the body, as it was laid aside
    ,"producer":"spark.6f1e","producerseq":"1/1001"         the number,
    ,"batch":"40/3","origin":"host2.k3f9q2","originseq":"0/41","crc":"9a1c03f7"}     and the rest: see lines.py

All that comes behind a body differs in digits only. So the ends of many lines are a table of bytes in which numpy
writes one column after the other. Their checksums, too: CRC-32C is linear, hence that of body and end is the body's,
carried on over so many bytes, xor the end's; and the end's is that of one with zeros for digits, xor what each digit
adds at its place. Bodies stay where they are, behind each other, and Arrow puts an end behind each. Without numpy and
Arrow, or for a few lines, `fill` makes the same of them one by one.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Sequence
from struct import pack
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import google_crc32c

from heliograph.log.lines import batch_mark, decimals, fill

if TYPE_CHECKING:
    import numpy as np

    Borders = np.ndarray[Any, np.dtype[np.int32]]
    Numbers = np.ndarray[Any, np.dtype[np.int64]]
    Sums = np.ndarray[Any, np.dtype[np.uint32]]
    Table = np.ndarray[Any, np.dtype[np.uint8]]

_value = google_crc32c.value
_extend = google_crc32c.extend
_SEAL: Final = b',"crc":"00000000"}'
_SUM_AT: Final = -len(b'00000000"}')
SUM_BYTES: Final = 4
TOGETHER_MIN: Final = 500
"""So many lines at least are finished together: below that, making tables takes longer than it spares."""


class NumberForm(NamedTuple):
    """What a numbered publisher says in its lines: what stands before the number, and behind it."""

    before: bytes
    behind: bytes


class _Tools(NamedTuple):
    np: Any
    pa: Any
    join: Any


@functools.cache
def _tools() -> _Tools | None:
    """What comes with Spark, and not with the log."""
    try:
        import numpy as np
        import pyarrow as pa
        import pyarrow.compute as pc
    except ImportError:
        return None
    return _Tools(np, pa, pc.binary_join_element_wise)


def can_together(count: int) -> bool:
    """Whether so many lines are finished together."""
    return count >= TOGETHER_MIN and _tools() is not None


def borders_of(data: bytes) -> Borders | list[int]:
    """Where each body ends, behind its newline.

    >>> [int(border) for border in borders_of(b"1\\n22\\n")]
    [2, 5]
    """
    tools = _tools()
    if tools is None:
        return list(itertools.accumulate(len(body) + 1 for body in data.split(b"\n")[:-1]))
    found: Borders = tools.np.flatnonzero(tools.np.frombuffer(data, "u1") == ord("\n")).astype("i4") + 1
    return found


def sums_of(data: bytes, borders: Borders | list[int]) -> bytes:
    """The checksum of each body, in four bytes, the lowest first."""
    ends: list[int] = borders if isinstance(borders, list) else borders.tolist()
    sums = [_value(data[start : end - 1]) for start, end in zip([0, *ends], ends, strict=False)]
    return pack(f"<{len(sums)}I", *sums)


def _numpy() -> Any:
    tools = _tools()
    assert tools is not None, "asked for by those who looked"
    return tools.np


def one_by_one(bodies: Sequence[bytes], form: NumberForm, number: int, place: bytes, first: int) -> bytes:
    """Finish bodies into lines."""
    numbers = decimals(range(number, number + len(bodies)))
    return fill([bodies, form.before, numbers, form.behind], len(bodies), place, first)


def together(
    data: bytes, borders: Borders, sums: bytes, form: NumberForm, number: int, place: bytes, first: int
) -> bytes:
    """The same, as many at a time as have numbers of the same length."""
    count = len(borders)
    sums_of_bodies = _numpy().frombuffer(sums, "<u4")
    mark = batch_mark(first, count)
    parts: list[bytes] = []
    for at, end in _stretches(count, number, first):
        digits = (len(str(number + at)), len(str(first + at)))
        end_of = _End(form.before, form.behind + mark + place, b'"', digits)
        ends = end_of.table(sums_of_bodies[at:end], number + at, first + at)
        parts.append(_put_behind(data, borders[at - 1] if at else 0, borders[at:end], ends))
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _put_behind(data: bytes, start: int, borders: Borders, ends: Table) -> bytes:
    """Each end behind its body.

    A newline belongs to what follows it, where it ends the line before; hence one piece more, of the last newline.
    """
    tools = _tools()
    assert tools is not None
    np, pa, join = tools
    count, width = ends.shape
    pieces = np.empty(count + 2, "i4")
    pieces[0] = start
    np.subtract(borders, 1, out=pieces[1:-1])
    pieces[-1] = borders[-1]
    rows = np.arange(0, (count + 2) * width, width, dtype="i4")
    rows[-1] = rows[-2]
    made = join(_texts(pa, count + 1, pieces, data), _texts(pa, count + 1, rows, ends), b"")
    return bytes(made.buffers()[2])


def _texts(pa: Any, count: int, borders: Borders, data: bytes | Table) -> Any:
    return pa.BinaryArray.from_buffers(pa.binary(), count, [None, pa.py_buffer(borders), pa.py_buffer(data)])


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

    def table(self, sums: Sums, number: int, first: int) -> Table:
        """The ends of some lines, with their checksums; those of their bodies are given."""
        np = _numpy()
        table: Table = np.empty((len(sums), len(self._zeros) + len(_SEAL)), "u1")
        table[:] = np.frombuffer(self._zeros + _SEAL, "u1")
        sums = _carried(sums, len(self._zeros))
        sums ^= np.uint32(_value(self._zeros))
        for places, start in zip(self._places, (number, first), strict=True):
            self._write_number(table, sums, places, np.arange(start, start + len(sums)))
        write_hexadecimal(table, table.shape[1] + _SUM_AT, sums)
        return table

    def _write_number(self, table: Table, sums: Sums, places: range, numbers: Numbers) -> None:
        """Write the digits, a few at a time, and what they add to the checksum."""
        end = places.stop
        while end > places.start:
            width = next(width for width in (4, 2, 1) if width <= end - places.start)
            left = numbers // 10**width
            few = numbers - left * 10**width
            _column(table, end - width, width)[:] = _digits(width)[few]
            sums ^= self._added(end - width, end)[few]
            numbers, end = left, end - width

    def _added(self, at: int, end: int) -> Sums:
        """What each number of so many digits adds to the checksum."""
        found: Sums = _numpy().zeros(1, "u4")
        for place in range(at, end):
            found = (found[:, None] ^ self._added_by_one(place)).ravel()
        return found

    def _added_by_one(self, at: int) -> Sums:
        zeros, nothing = self._zeros, _value(self._zeros)
        found = [_value(b"%b%d%b" % (zeros[:at], digit, zeros[at + 1 :])) ^ nothing for digit in range(10)]
        made: Sums = _numpy().array(found, "u4")
        return made


def _column(table: Table, at: int, width: int) -> Any:
    """Some bytes of each row as one number: stored in one step."""
    return _numpy().ndarray(len(table), f"u{width}", table, at, table.strides[0])


@functools.cache
def _digits(width: int) -> Any:
    """The texts of all numbers of so many digits, each as one number of so many bytes."""
    text = b"".join(b"%0*d" % (width, number) for number in range(10**width))
    return _numpy().frombuffer(text, f"u{width}")


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
    halves = numbers.astype(">u4").view(">u2").reshape(-1, 2)
    _column(table, at, 8)[:] = _hexadecimals()[halves].view("u8").ravel()


@functools.cache
def _hexadecimals() -> Any:
    """The four digits of every number of two bytes."""
    return _numpy().frombuffer(b"".join(b"%04x" % number for number in range(1 << 16)), "u4")
