"""Lines of a numbered publisher that were encoded elsewhere: thousands of them finished at once.

    {"specversion":"1.0", … ,"data":{…}                     the body, as it was laid aside
    ,"producer":"spark.6f1e","producerseq":"1/1001"         the number,
    ,"batch":"40/3","origin":"host2.k3f9q2","originseq":"0/41","crc":"9a1c03f7"}     and the rest: see lines.py

All that comes behind a body differs in digits only. So the ends of many lines are a table of bytes in which numpy
writes one column after the other, and their checksums are made of those of the bodies: see tables.py. Bodies stay
where they are, behind each other, and Arrow puts an end behind each, and before it how it begins, if that was laid
aside once for many (see beginnings.py). Without numpy and Arrow, or for a few lines, `fill` makes the same of them
one by one.

Bodies are ended by newlines, and a line goes on with a comma there. So the newline becomes the comma, and what follows
it the end; what that changes in a checksum is the same for all.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Sequence
from io import BytesIO
from struct import pack
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import google_crc32c

from heliograph.log.beginnings import Run, columns_of, sums_of_beginnings
from heliograph.log.lines import batch_mark, decimals, fill
from heliograph.log.tables import added, carried, column, needed, rows, texts, tools, write_hexadecimal

if TYPE_CHECKING:
    from heliograph.log.tables import Borders, Sums, Table

_value = google_crc32c.value
_extend = google_crc32c.extend
_SEAL: Final = b',"crc":"00000000"}\n'
_SUM_AT: Final = -len(b'00000000"}\n')
SUM_BYTES: Final = 4
_WIDTHS: Final = (4, 2, 1)
"""So many digits at once are a part of a table: what numpy has numbers for."""
TOGETHER_MIN: Final = 500
"""So many lines at least are finished together: below that, making tables takes longer than it spares."""


class NumberForm(NamedTuple):
    """What a numbered publisher says in its lines: what stands before the number, and behind it."""

    before: bytes
    behind: bytes


def can_together(count: int) -> bool:
    """Whether so many lines are finished together."""
    return count >= TOGETHER_MIN and tools() is not None


def borders_of(data: bytes) -> Borders | list[int]:
    """Where each body ends, behind its newline.

    >>> [int(border) for border in borders_of(b"1\\n22\\n")]
    [2, 5]
    """
    found = tools()
    if found is None:
        return list(itertools.accumulate(len(body) + 1 for body in data.split(b"\n")[:-1]))
    borders: Borders = found.np.flatnonzero(found.np.frombuffer(data, "u1") == ord("\n")).astype("i4") + 1
    return borders


def sums_of(data: bytes, runs: Sequence[Run] = ()) -> bytes:
    """The checksum of each body and its newline, in four bytes, the lowest first."""
    lines = BytesIO(data)  # hands them out without anybody saying where they end: as quick as it gets
    sums = [*(map(_extend, sums_of_beginnings(runs), lines) if runs else map(_value, lines))]
    return pack(f"<{len(sums)}I", *sums)


def one_by_one(bodies: Sequence[bytes], form: NumberForm, number: int, place: bytes, first: int) -> bytes:
    """Finish bodies into lines."""
    numbers = decimals(range(number, number + len(bodies)))
    return fill([bodies, form.before, numbers, form.behind], len(bodies), place, first)


def together(
    data: bytes, borders: Borders, sums: bytes, runs: Sequence[Run], form: NumberForm, number: int, place: bytes,
    first: int,
) -> bytes:  # fmt: skip
    """The same, as many at a time as have numbers of the same length.

    It may be Arrow's own memory: to be written and checked, as bytes are, and not to be searched. A copy of so much
    takes as long as half the rest.
    """
    np, _, join = needed()
    count = len(borders)
    comma = form.before[:1]
    text = np.frombuffer(data, "u1").copy()
    text[borders - 1] = ord(comma)
    columns = [columns_of(runs)] if runs else []
    columns.append(texts(np.concatenate([np.zeros(1, "i4"), borders]), text))
    sums_of_bodies = np.frombuffer(sums, "<u4") ^ np.uint32(_value(b"\n") ^ _value(comma))
    between = form.behind + batch_mark(first, count) + place
    parts: list[bytes] = []
    for at, end in _stretches(count, number, first):
        ends = _ends((form.before[1:], between, b'"'), sums_of_bodies[at:end], number + at, first + at)
        made = join(*[one.slice(at, end - at) for one in columns], rows(ends), b"")
        parts.append(made.buffers()[2])
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _stretches(count: int, *numbers: int) -> Iterator[tuple[int, int]]:
    """Where to cut so that none of the numbers, counted on, gets another digit in between.

    >>> list(_stretches(200, 8, 97))
    [(0, 2), (2, 3), (3, 92), (92, 200)]
    """
    borders = {0, count}
    for one in numbers:
        borders |= {10**digits - one for digits in range(len(str(one)), len(str(one + count - 1)))}
    yield from itertools.pairwise(sorted(borders))


def _ends(texts: tuple[bytes, bytes, bytes], sums: Sums, number: int, first: int) -> Table:
    """What stands behind the bodies of a stretch: texts with the two numbers between them, and the checksums.

    The checksums of the bodies are given. Of numbers that count on only the last digits change for a while, and those
    are a part of a table, as is what they add to a checksum.
    """
    np = needed().np
    before, between, behind = texts
    lengths = [len(str(one)) for one in (number, first)]
    widths = [next(width for width in _WIDTHS if width <= length) for length in lengths]
    size = sum(lengths) + len(before + between + behind)
    places = [len(before) + lengths[0], size - len(behind)]  # where they end
    table: Table = np.empty((len(sums), size + len(_SEAL)), "u1")
    sums = carried(sums, size)
    for at, end in _alike(len(sums), (number, first), widths):
        starts = [(number + at) % 10 ** widths[0], (first + at) % 10 ** widths[1]]
        zeros = [
            b"%0*d" % (length, one + at - start)
            for length, one, start in zip(lengths, (number, first), starts, strict=True)
        ]
        line = before + zeros[0] + between + zeros[1] + behind
        some = table[at:end]
        some[:] = np.frombuffer(line + _SEAL, "u1")
        sums[at:end] ^= np.uint32(_value(line))
        for start, width, place in zip(starts, widths, places, strict=True):
            column(some, place - width, width)[:] = _digits(width)[start : start + end - at]
            sums[at:end] ^= added(size - place, width)[start : start + end - at]
    write_hexadecimal(table, size + len(_SEAL) + _SUM_AT, sums)
    return table


def _alike(count: int, numbers: Sequence[int], widths: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Where to cut so that of none of the numbers, counted on, other digits change than the last few.

    >>> list(_alike(20_000, [19_990, 123_000], [4, 4]))
    [(0, 10), (10, 7000), (7000, 10010), (10010, 17000), (17000, 20000)]
    """
    borders = {0, count}
    for one, width in zip(numbers, widths, strict=True):
        borders.update(range(-one % 10**width, count, 10**width))
    yield from itertools.pairwise(sorted(borders))


@functools.cache
def _digits(width: int) -> Any:
    """The texts of all numbers of so many digits, each as one number of so many bytes."""
    text = b"".join(b"%0*d" % (width, number) for number in range(10**width))
    return needed().np.frombuffer(text, f"u{width}")
