"""What numpy does for the texts of many lines at once: digits as columns of a table of bytes, checksums by their sums.

CRC-32C is linear. That of two texts behind each other is the first one's, carried on over the second one's length, xor
the second one's; and that of a text with digits is that of one with zeros for them, xor what each digit adds at its
place. So checksums of texts that differ in a few digits are looked up, all in one step for each few digits.

numpy and Arrow come with Spark, and not with the log.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import google_crc32c

if TYPE_CHECKING:
    import numpy as np

    Borders = np.ndarray[Any, np.dtype[np.int32]]
    Numbers = np.ndarray[Any, np.dtype[np.int64]]
    Sums = np.ndarray[Any, np.dtype[np.uint32]]
    Table = np.ndarray[Any, np.dtype[np.uint8]]

_value = google_crc32c.value
_extend = google_crc32c.extend
DECIMAL: Final = b"0123456789"
HEXADECIMAL: Final = b"0123456789abcdef"


class Tools(NamedTuple):
    """Both libraries."""

    np: Any
    pa: Any
    join: Any


@functools.cache
def tools() -> Tools | None:
    """What there is: both, or nothing."""
    try:
        import numpy as np
        import pyarrow as pa
        import pyarrow.compute as pc
    except ImportError:
        return None
    return Tools(np, pa, pc.binary_join_element_wise)


def needed() -> Tools:
    """The same for those who looked before."""
    found = tools()
    assert found is not None, "asked for by those who looked"
    return found


def texts(borders: Borders, data: bytes | Table) -> Any:
    """Texts that lie behind each other, as Arrow has them; it copies nothing."""
    pa = needed().pa
    return pa.BinaryArray.from_buffers(pa.binary(), len(borders) - 1, [None, pa.py_buffer(borders), pa.py_buffer(data)])


def rows(table: Table) -> Any:
    """The rows of a table as texts."""
    count, width = table.shape
    return texts(needed().np.arange(0, (count + 1) * width, width, dtype="i4"), table)


def alike(text: bytes, count: int) -> Table:
    """A table whose rows are all the same."""
    np = needed().np
    table: Table = np.empty((count, len(text)), "u1")
    table[:] = np.frombuffer(text, "u1")
    return table


def column(table: Table, at: int, width: int) -> Any:
    """Some bytes of each row as one number: stored in one step."""
    return needed().np.ndarray(len(table), f"u{width}", table, at, table.strides[0])


def write_hexadecimal(table: Table, at: int, numbers: Sums) -> None:
    """Write the eight digits of a number into each row of a table, from a column on."""
    halves = numbers.astype(">u4").view(">u2").reshape(-1, 2)
    column(table, at, 8)[:] = hexadecimals()[halves].view("u8").ravel()


@functools.cache
def hexadecimals() -> Any:
    """The four digits of every number of two bytes."""
    return needed().np.frombuffer(b"".join(b"%04x" % number for number in range(1 << 16)), "u4")


@functools.lru_cache(maxsize=64)
def added(behind: int, width: int, digits: bytes = DECIMAL) -> Sums:
    """What each number of so many digits, with so many bytes behind it, adds to the checksum of a text of zeros there.

    Whatever else the text holds, and zero bytes of a difference before the digits, do not matter.
    """
    found: Sums = needed().np.zeros(1, "u4")
    for place in range(behind + width, behind, -1):
        zeros = b"0" * place
        one = [_value(b"%c%b" % (digit, zeros[1:])) ^ _value(zeros) for digit in digits]
        found = (found[:, None] ^ needed().np.array(one, "u4")).ravel()
    return found


def carried(sums: Sums, length: int) -> Sums:
    """Checksums of texts behind which so many zero bytes stand, without what those add by themselves."""
    np = needed().np
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
        needed().np.array([_extend(byte << 8 * at, zeros) ^ alone for byte in range(256)], "u4") for at in range(4)
    )
