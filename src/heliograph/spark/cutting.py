"""Where the attributes of many stored lines are, found for all of them at once and without decoding any.

A line is written in one order and without spaces (see docs/format.md)::

    {"specversion":"1.0","id":"…","source":"…","type":"…","time":"…","channel":"…"      always
    ,"partitionkey":"…","correlationid":"…","traceparent":"…","subject":"…"             if the publisher set them
    ,"producer":"…","producerseq":"…"                                                   of a numbered publisher
    ,"data":…                                                                           any JSON
    ,"producer":"…","producerseq":"…"                                                   if numbered after encoding
    ,"atomic":"…","batch":"…"                                                           of what belongs together
    ,"origin":"…","originseq":"…","crc":"…"}                                            always

So the quotes of a line, counted from its beginning and from its end, are the borders of its values. That is assumed
of no line: between any two values the bytes must be exactly those that stand there in this order, and no value may
hold an escape. A line that differs (headers, bytes, another order, something foreign) is *odd* and is decoded by
itself. numpy compares eight bytes of every line in one step; nothing is done per line in Python.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np

PADDING: Final = b'"' * 128
"""Stands behind the last line: whoever looks beyond the end of a broken line finds quotes, and no border that fits."""

NEWLINE: Final = 10
_SPACE: Final = 32
_QUOTE: Final = 34
_BACKSLASH: Final = 92
BEGIN: Final = b'{"specversion":"1.0","id":"'
_VERSION_AT: Final = len('{"specversion":"')
_FIXED: Final = tuple((name, b'","%b":"' % name.encode()) for name in ("source", "type", "time", "channel"))
_OPTIONAL: Final = tuple(
    (name, b'","%b":"' % name.encode())
    for name in ("partitionkey", "correlationid", "traceparent", "subject", "producer", "producerseq")
)
_DATA: Final = b'","data":'
_CRC: Final = b'","crc":"'
_CRC_AT: Final = len('","crc":"9a1c03f7"}')
_ORIGINSEQ: Final = b'","originseq":"'
_ORIGIN: Final = b',"origin":"'
_TAIL: Final = tuple((name, b',"%b":"' % name.encode()) for name in ("batch", "atomic", "producerseq", "producer"))
_TAIL_QUOTES: Final = 4 * (3 + len(_TAIL))
"""So many may be looked at from the end of a line; a whole one has more."""
TIME_CHARS: Final = len("2026-11-15T20:30:01.123456Z")
HEAD: Final = frozenset({"specversion", "id", *(name for name, _ in _FIXED), *(name for name, _ in _OPTIONAL)})
BEHIND: Final = frozenset({"data", "atomic", "batch", "origin", "originseq", "crc"})
"""Attributes for which the end of a line must be looked at."""

Numbers = np.ndarray[Any, np.dtype[np.int64]]
Mask = np.ndarray[Any, np.dtype[np.bool_]]


class Span(NamedTuple):
    """Where one attribute begins and ends in each line; ``there`` says in which, None in all."""

    start: Numbers
    end: Numbers
    there: Mask | None = None


class Cut(NamedTuple):
    """Some lines and where their attributes are. Blank lines are left out."""

    text: bytes
    starts: Numbers
    ends: Numbers  # where the newline is
    numbers: Numbers  # which line of the text it is: its offset, counted from the first
    odd: Mask  # lines to be decoded by themselves: the spans say nothing of them
    spans: dict[str, Span]


def cut(text: bytes, *, behind: bool = True) -> Cut:
    """Find the attributes of all lines of a text that ends with a newline and PADDING.

    ``behind`` says whether data and what follows it is wanted: without that, half of the work is left out.
    """
    return _Cutter(text).cut(behind=behind)


class _Cutter:
    """One look at one text."""

    def __init__(self, text: bytes) -> None:
        self._text = text
        self._bytes = np.frombuffer(text, np.uint8)
        self._words = words_of(text)
        # Quotes and newlines together: the quotes of a line are those between two newlines.
        self._quotes = np.flatnonzero((self._bytes == _QUOTE) | (self._bytes == NEWLINE))
        self._spans: dict[str, Span] = {}

    def cut(self, *, behind: bool) -> Cut:
        closing = np.flatnonzero(self._bytes[self._quotes] == NEWLINE) - 1  # the number of a line's last quote,
        opening = np.append(0, closing[:-1] + 2)  # and of its first
        ends = self._quotes[closing + 1]
        starts = np.append(0, ends[:-1] + 1)
        numbers = np.arange(len(ends))
        filled = self._filled(starts, ends)
        if filled is not None:
            starts, ends, numbers = starts[filled], ends[filled], numbers[filled]
            opening, closing = opening[filled], closing[filled]
        if not len(starts):  # blank lines only
            return Cut(self._text, starts, ends, numbers, np.zeros(0, np.bool_), {})
        fits, data = self._head(starts, opening)
        limit = ends
        if behind:
            behind_fits, limit = self._tail(ends, closing)
            fits &= behind_fits
            self._spans["data"] = Span(data, limit)
        fits &= data < limit
        self._refuse_escapes(fits, ends, data, limit)
        return Cut(self._text, starts, ends, numbers, ~fits, self._spans)

    def _filled(self, starts: Numbers, ends: Numbers) -> Mask | None:
        """Which lines are not blank; None if none is."""
        suspects = (starts == ends) | (self._bytes[starts] == _SPACE)
        if not suspects.any():
            return None
        for at in np.flatnonzero(suspects):
            suspects[at] = not self._text[starts[at] : ends[at]].strip(b" ")
        filled: Mask = ~suspects
        return filled

    def _are(self, at: Numbers, literal: bytes) -> Mask:
        return are(self._words, at, literal)

    def _head(self, starts: Numbers, opening: Numbers) -> tuple[Mask, Numbers]:
        """What stands before the data; where that begins."""
        fits = self._are(starts, BEGIN)
        quotes, turn = self._quotes, opening + 7  # the quote behind the id
        close = quotes[turn]
        self._spans["specversion"] = Span(starts + _VERSION_AT, starts + _VERSION_AT + len("1.0"))
        self._spans["id"] = Span(starts + len(BEGIN), close)
        for name, literal in _FIXED:
            fits &= self._are(close, literal)
            turn += 4
            start, close = close + len(literal), quotes[turn]
            self._spans[name] = Span(start, close)
        time = self._spans["time"]
        fits &= (time.end - time.start == TIME_CHARS) & (self._bytes[time.end - 1] == ord("Z"))
        return self._optional(fits, turn, close)

    def _optional(self, fits: Mask, turn: Numbers, close: Numbers) -> tuple[Mask, Numbers]:
        """Attributes that some lines have, each in its order."""
        more = ~self._are(close, _DATA)
        for name, literal in _OPTIONAL:
            if not more.any():
                break
            there = more & self._are(close, literal)
            if not there.any():
                continue
            turn = turn + 4 * there
            start, close = close + len(literal), np.where(there, self._quotes[turn], close)
            self._spans[name] = Span(start, close, there)
            more = more & ~(there & self._are(close, _DATA))
        return fits & ~more, close + len(_DATA)

    def _tail(self, ends: Numbers, closing: Numbers) -> tuple[Mask, Numbers]:
        """What stands behind the data; where that ends. Quotes are counted from the end of the line."""
        quotes = self._quotes
        closing = np.maximum(
            closing, _TAIL_QUOTES
        )  # of a text that begins with a broken line: not counted from its end
        fits = self._are(ends - _CRC_AT, _CRC) & (
            self._words[ends - 8] >> np.uint64(48) == _word(b'\0\0\0\0\0\0"}', 0) >> 48
        )
        fits &= quotes[closing - 4] == ends - _CRC_AT
        between, before = quotes[closing - 8], quotes[closing - 9]
        fits &= self._are(between, _ORIGINSEQ)
        limit = before - len(_ORIGIN) + 1
        fits &= self._are(limit, _ORIGIN)
        self._spans["crc"] = Span(ends - _CRC_AT + len(_CRC), ends - len('"}'))
        self._spans["originseq"] = Span(between + len(_ORIGINSEQ), ends - _CRC_AT)
        self._spans["origin"] = Span(before + 1, between)
        closing = closing - 12  # the quote before the comma, if what stands there ends with one
        for name, literal in _TAIL:
            near = quotes[closing] == limit - 1
            if not near.any():
                break
            start = quotes[closing - 1] + 1
            there = near & self._are(start - len(literal), literal)
            if there.any():
                fits &= self._note(name, Span(start, limit - 1, there))
                limit = np.where(there, start - len(literal), limit)
                closing = closing - 4 * there
        return fits, limit

    def _note(self, name: str, span: Span) -> Mask | bool:
        """Keep where an attribute is that others have before their data; which lines do not have it twice."""
        before, there = self._spans.get(name), span.there
        if before is None or before.there is None or there is None:
            self._spans[name] = span
            return True
        starts, ends = np.where(there, span.start, before.start), np.where(there, span.end, before.end)
        self._spans[name] = Span(starts, ends, there | before.there)
        once: Mask = ~(there & before.there)
        return once

    def _refuse_escapes(self, fits: Mask, ends: Numbers, data: Numbers, limit: Numbers) -> None:
        """A value with an escape is not what its bytes say; inside of data escapes are as good as any."""
        if b"\\" not in self._text:
            return
        places = np.flatnonzero(self._bytes == _BACKSLASH)
        rows = np.searchsorted(ends, places)
        fits[rows[(places < data[rows]) | (places >= limit[rows])]] = False


def words_of(text: bytes) -> Numbers:
    """Every eight bytes of a text, wherever they begin."""
    return np.ndarray((len(text) - 7,), dtype="<u8", buffer=text, strides=(1,))


def steps(length: int) -> list[int]:
    """Where to look at eight bytes so that all of so many are looked at.

    >>> steps(8), steps(16), steps(27)
    ([0], [0, 8], [0, 8, 16, 19])
    """
    return [*range(0, length - 8, 8), length - 8]


def are(words: Numbers, at: Numbers, literal: bytes) -> Mask:
    """Whether these bytes, eight or more, stand at each place."""
    fits: Mask = words[at] == _word(literal, 0)
    for step in steps(len(literal))[1:]:
        fits &= words[step:][at] == _word(literal, step)
    return fits


def _word(literal: bytes, at: int) -> int:
    return int.from_bytes(literal[at : at + 8], "little")
