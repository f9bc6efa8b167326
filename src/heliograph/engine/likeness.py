"""One line, and which of its bytes may be others without making it less of a message.

That may be bytes within a string, unless they end it; digits of a number; digits of a time that stays one. All others
have to be the same::

    ,"time":"2026-11-15T20:30:01.123456Z","channel":"alerts","data":{"load":17,"host":"web-1"}, …
                           5~ 5~ ~~~~~~                                     9~         #####

So of many lines, a table of bytes, it is enough to know the least and the most in each column. What differs is little,
and the checksums of all follow from that of one, for CRC-32C is linear: a byte that is another changes the sum by what
depends on the two bytes and on how far they are from the end, and on nothing else.
"""

from __future__ import annotations

import functools
import re
from typing import Any, Final, NamedTuple, Self

import google_crc32c
import numpy as np

from heliograph.engine.foreign import TAIL, decode, why_not
from heliograph.message import time_us

Bytes = np.ndarray[Any, np.dtype[np.uint8]]
Mask = np.ndarray[Any, np.dtype[np.bool_]]
Numbers = np.ndarray[Any, np.dtype[np.int64]]
Sums = np.ndarray[Any, np.dtype[np.uint32]]
Place = tuple[str, int]
"""An origin and one of its partitions."""

_QUOTE, _BACKSLASH = b'"\\'
_SEAL: Final = len(b',"crc":"9a1c03f7"}\n')
_SUM: Final = slice(-len(b'9a1c03f7"}\n'), -len(b'"}\n'))
_AS_ONE: Final = 32
"""How many rows of a table are looked at as one: where each is, the beginnings take most of the time."""
_value = google_crc32c.value

_TOKEN: Final = re.compile(rb'("[^"\\]*(?:\\.[^"\\]*)*")|(-?[0-9][0-9.eE+-]*)|([{}\[\],])')
_NUMBER: Final = re.compile(rb"-?(0|[1-9][0-9]*)(?:\.([0-9]+))?")
_NUMBER_CHARS_MAX: Final = 40
_TIME: Final = re.compile(rb'"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{6}Z"')
_HOUR: Final = len("2026-11-15T20:")
_WEIGHTS: Final = [600_000_000, 60_000_000, 0, 10_000_000, 1_000_000, 0, 100_000, 10_000, 1_000, 100, 10, 1]
"""What one more in each place behind the hour adds to a time, in microseconds."""
_STAY: Final = frozenset({b"specversion", b"channel", b"data_base64", b"origin", b"originseq", b"crc"})
"""Attributes that are not to be others, or not by any text."""


class Said(NamedTuple):
    """What lines of one kind say."""

    sequences: Numbers
    min_us: int
    max_us: int


class Number(NamedTuple):
    """Where a number stands in a line, of which some digits may be others."""

    columns: slice
    weights: Numbers
    base: int  # what it is with nothing in those places

    @classmethod
    def at(cls, line: bytes, first: int, weights: list[int], value: int) -> Self:
        """The number that a line says, with what one more in each place adds to it."""
        columns = slice(first, first + len(weights))
        nothing = sum(byte * weight for byte, weight in zip(line[columns], weights, strict=True))
        return cls(columns, np.array(weights, np.int64), value - nothing)

    def read(self, table: Bytes) -> Numbers:
        """What it is in each line."""
        found: Numbers = table[:, self.columns] @ self.weights + self.base
        return found

    def moved(self, columns: int) -> Self:
        """The same number in tables that begin elsewhere."""
        span = slice(self.columns.start + columns, self.columns.stop + columns)
        return self._replace(columns=span)


class Form(NamedTuple):
    """What bytes in a row may be."""

    low: Bytes  # the least that each may be
    high: Bytes  # and the most
    text: Mask  # which of them are in a string: they may be anything from low to high that does not end it

    def without(self, span: slice) -> Form:
        """The same of what is left if some are taken out."""
        kept: Mask = np.ones(len(self.low), np.bool_)
        kept[span] = False
        return Form(self.low[kept], self.high[kept], self.text[kept])

    def differ(self, table: Bytes) -> Mask | None:
        """In which columns rows differ, if all are of this form; else None."""
        least, most = _over_all(np.minimum, table), _over_all(np.maximum, table)
        if _any((least < self.low) | (most > self.high)):
            return None
        doubtful = (self.text & (least <= _BACKSLASH) & ((most >= _BACKSLASH) | (least <= _QUOTE))).nonzero()[0]
        if len(doubtful):
            inside = table[:, doubtful]
            if _any((inside == _QUOTE) | (inside == _BACKSLASH)):
                return None
        differ: Mask = least != most
        return differ

    def fitting(self, table: Bytes) -> Mask:
        """Which rows are of this form."""
        ends = ((table == _QUOTE) | (table == _BACKSLASH)) & self.text
        fits: Mask = ((table >= self.low) & (table <= self.high) & ~ends).all(axis=1)
        return fits


class Kind(NamedTuple):
    """What some lines have in common."""

    form: Form
    place: Place
    sequence: Number
    time: Number

    @classmethod
    def of(cls, channel: str, line: bytes) -> Self | None:
        """The kind of a line; None if it is no message, or like no other."""
        tail = TAIL.search(line)
        values = _values(line) if why_not(channel, line[:-1], len(line)) is None else None
        if tail is None or values is None:
            return None
        room = _Room(line)
        time = Number.at(line, 0, [], time_us(decode(line).time))
        for name, at, value in values:
            if value[:1] != b'"':
                room.number(at, value)
            elif name == b"time":
                if _TIME.fullmatch(value):
                    room.time(at + 1)
                    time = Number.at(line, at + 1 + _HOUR, _WEIGHTS, time.base)
            elif name not in _STAY and b"\\" not in value:
                room.string(at + 1, at + len(value) - 1)
        room.digits(*tail.span(3))
        room.low[_SUM], room.high[_SUM] = ord("0"), ord("f")
        powers = [10**power for power in range(len(tail[3]) - 1, -1, -1)]
        sequence = Number.at(line, tail.start(3), powers, int(tail[3]))
        form = Form(room.low, room.high, room.text)
        return cls(form, (tail[1].decode(), int(tail[2])), sequence, time)

    def said(self, table: Bytes) -> Said | None:
        """What lines say if all are messages of a kind, with the right checksums; else None."""
        differ = self.form.differ(table)
        if differ is None or _sums(table, differ.nonzero()[0]).tobytes() != sums_in(table).tobytes():
            return None
        return self.read(table, differ)

    def read(self, table: Bytes, differ: Mask) -> Said:
        """What they say, by where they differ."""
        times = self.time.read(table if _any(differ[self.time.columns]) else table[:1])
        return Said(self.sequence.read(table), int(times.min()), int(times.max()))

    def without(self, span: slice) -> Self:
        """The same for lines without some of their bytes, which are behind the time and before the sequence."""
        return self._replace(form=self.form.without(span), sequence=self.sequence.moved(span.start - span.stop))

    def fitting(self, table: Bytes) -> Mask:
        """Which lines are of a kind, but for their checksums."""
        return self.form.fitting(table)


def sums_in(table: Bytes) -> Bytes:
    """The checksums that lines say, by their ends."""
    return table[:, _SUM]


class _Room:
    """How far the bytes of a line may be others."""

    def __init__(self, line: bytes) -> None:
        self.low: Bytes = np.frombuffer(line, np.uint8).copy()
        self.high = self.low.copy()
        self.text: Mask = np.zeros(len(line), np.bool_)

    def string(self, first: int, following: int) -> None:
        """A string without escapes: any other character of ASCII that needs none will do."""
        span = slice(first, following)
        plain = (self.low[span] >= ord(" ")) & (self.low[span] <= ord("~"))
        self.low[span][plain], self.high[span][plain] = ord(" "), ord("~")
        self.text[span] = plain

    def number(self, at: int, value: bytes) -> None:
        """A number of as many digits; not one so large that it may be none."""
        found = _NUMBER.fullmatch(value) if len(value) <= _NUMBER_CHARS_MAX else None
        if found is not None:
            self.digits(at + found.start(1), at + found.end(1))
            if found[2] is not None:
                self._any_digits(at + found.start(2), at + found.end(2))

    def digits(self, first: int, following: int) -> None:
        """A whole number: with others behind it, the first digit is no zero."""
        self._any_digits(first, following)
        if following - first > 1:
            self.low[first] = ord("1")

    def time(self, at: int) -> None:
        """A time of the same hour: such a one it is whatever the digits say."""
        for tens in (at + 14, at + 17):  # of minutes, of seconds
            self._any_digits(tens, tens + 2)
            self.high[tens] = ord("5")
        self._any_digits(at + 20, at + 26)

    def _any_digits(self, first: int, following: int) -> None:
        self.low[first:following], self.high[first:following] = ord("0"), ord("9")


def _values(line: bytes) -> list[tuple[bytes | None, int, bytes]] | None:
    """Strings and numbers of a message and where they are, with the name of the attribute if it is nothing more.

    None if an attribute is named twice, or in a way that does not tell which it is.
    """
    values: list[tuple[bytes | None, int, bytes]] = []
    names: set[bytes] = set()
    within: list[bytes] = []
    name, named = b"", True  # whether what comes next is a value
    for found in _TOKEN.finditer(line):
        if found[3]:
            if found[3] in b"{[":
                within.append(found[3])
            elif found[3] != b",":
                within.pop()
            named = found[3] in b"}]" or within[-1] == b"["
        elif not named:
            named = True
            if len(within) == 1:
                name = found[1][1:-1]
                if name in names or b"\\" in name:
                    return None
                names.add(name)
        else:
            values.append((name if len(within) == 1 else None, found.start(), found[0]))
    return values


def payload_of(line: bytes) -> slice | None:
    """Where the payload is in a message."""
    first = depth = 0
    for found in _TOKEN.finditer(line):
        if not first and depth == 1 and found[0] == b'"data"' and line[found.end() : found.end() + 1] == b":":
            first = found.end() + 1
        depth += (found[0] in (b"{", b"[")) - (found[0] in (b"}", b"]"))
        if first and (not depth or (depth == 1 and found[0] == b",")):
            return slice(first, found.start())
    return None


def _over_all(least_or_most: np.ufunc, table: Bytes) -> Bytes:
    """The least or the most of each column: some rows as one first."""
    count, length = table.shape
    some = count // _AS_ONE
    if not some or not table.flags.c_contiguous:
        return least_or_most.reduce(table)  # type: ignore[no-any-return]
    folded = least_or_most.reduce(table[: some * _AS_ONE].reshape(some, -1)).reshape(_AS_ONE, length)
    return least_or_most.reduce(np.concatenate([folded, table[some * _AS_ONE :]]))  # type: ignore[no-any-return]


def _any(mask: Mask) -> bool:
    """Whether any is true: quicker than numpy is with few, where a call is what it takes."""
    return b"\1" in mask.tobytes()


# -- checksums --------------------------------------------------------------------------------------------------------

_HEXADECIMAL: Final = np.frombuffer(b"".join([b"%02x" % byte for byte in range(256)]), np.uint16)


def _sums(table: Bytes, columns: Numbers) -> Bytes:
    """The checksums of lines, as they stand in them, by the columns in which they differ."""
    length = table.shape[1] - _SEAL
    columns = columns[columns < length]
    changed = table[:, columns] ^ table[0, columns]
    changes = _changes(1 << length.bit_length())[changed + 256 * (length - 1 - columns)]
    sums = np.bitwise_xor.reduce(changes, axis=1) ^ np.uint32(_value(table[0, :length].tobytes()))
    texts: Bytes = _HEXADECIMAL[sums.astype(">u4").view(np.uint8)].view(np.uint8)
    return texts.reshape(-1, 8)


@functools.cache
def _changes(places: int) -> Sums:
    """By what a sum changes if a byte does, by how many bytes are behind it, and by the difference."""
    nothing = _value(b"\0")
    one = np.array([_value(bytes([byte])) ^ nothing for byte in range(256)], np.uint32)
    found = np.empty((places, 256), np.uint32)
    found[0] = one
    for behind in range(1, places):
        before = found[behind - 1]
        found[behind] = one[before & 255] ^ (before >> 8)
    return found.ravel()
