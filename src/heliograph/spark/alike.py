"""Where id, source, type and time are in lines that are alike, which most lines of a channel are.

Lines with ids of one length, of one source and one type have these in the same places, counted from where each line
begins. So one line tells the places for all, and what remains is to compare: the bytes between the values, and the
values that are the same, eight bytes of every line in one step. Nothing is searched for, and nothing behind the
channel is looked at, unlike in `cutting`, which takes whatever is not alike.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple, Self

import numpy as np

from heliograph.spark.cutting import BEGIN, NEWLINE, TIME_CHARS, Cut, Mask, Numbers, Span, are, steps, words_of

KINDS_MAX: Final = 8
"""How many kinds of lines a text may have: looking at one more costs as much as not knowing any."""
_LINE: Final = re.compile(
    rb'\{"specversion":"1\.0","id":"([^"\\]{8,200})(","source":"([^"\\]*)","type":"([^"\\]*)","time":")[^"\\]{26}Z'
    rb'(","channel":"[^"\\]*")'
)
_NEXT: Final = tuple(
    int.from_bytes(text, "little")
    for text in (b',"data":', b',"partit', b',"correl', b',"tracep', b',"subjec', b',"produc')
)
"""What may stand behind the channel."""
_EACH: Final = 0x0101010101010101


class _Kind(NamedTuple):
    """What some lines have in common."""

    id_chars: int
    before_time: bytes
    source: tuple[int, int]  # counted from where the line begins, as all places
    type: tuple[int, int]
    time: int
    behind_time: bytes

    @classmethod
    def of(cls, text: bytes, start: int, end: int) -> Self | None:
        """The kind of a line; None if it is like no other."""
        found = _LINE.match(text, start, end)
        if found is None:
            return None
        places = [(found.start(group) - start, found.end(group) - start) for group in (3, 4)]
        time = found.end(2) - start
        return cls(len(found[1]), found[2], places[0], places[1], time, found[5])

    @property
    def chars(self) -> int:
        """How long a line is at least."""
        return self.time + TIME_CHARS + len(self.behind_time) + 8


def alike(text: bytes) -> Cut | None:
    """The attributes of all lines of a text that ends with a newline and PADDING; None if lines differ too much."""
    words = words_of(text)
    ends = np.flatnonzero(np.frombuffer(text, np.uint8) == NEWLINE)
    starts = np.append(0, ends[:-1] + 1)
    kinds: list[tuple[_Kind, Mask]] = []
    left = np.ones(len(ends), np.bool_)
    while left.any():
        at = int(left.argmax())
        kind = _Kind.of(text, int(starts[at]), int(ends[at]))
        if kind is None or len(kinds) == KINDS_MAX:
            return None
        fits = _fitting(words, starts, ends, kind)
        if not fits[at]:
            return None
        kinds.append((kind, fits))
        left &= ~fits
    odd = np.zeros(len(ends), np.bool_)
    return Cut(text, starts, ends, np.arange(len(ends)), odd, _spans(starts, kinds))


def _fitting(words: Numbers, starts: Numbers, ends: Numbers, kind: _Kind) -> Mask:
    """Which lines are of a kind."""
    fits: Mask = ends - starts >= kind.chars
    starts = np.where(fits, starts, 0)  # nobody looks beyond the end of the text
    fits &= are(words, starts, BEGIN)
    fits &= _plain(words[len(BEGIN) :], starts, kind.id_chars)
    fits &= are(words[len(BEGIN) + kind.id_chars :], starts, kind.before_time)
    fits &= are(words[kind.time + TIME_CHARS - 1 :], starts, b"Z" + kind.behind_time)
    following = words[kind.chars - 8 :][starts]
    known: Mask = following == _NEXT[0]
    for word in _NEXT[1:]:
        if known.all():
            break
        known |= following == word
    fits &= known
    return fits


def _plain(words: Numbers, at: Numbers, length: int) -> Mask:
    """Whether so many bytes from each place on, eight or more, are small letters, digits or hyphens, by their bits.

    No quote (0x22) is among them, which has none of the bits 0x40, 0x10, 0x08, and no backslash (0x5c), nor anything
    else that has not the bit 0x20.
    """
    each = np.full(len(at), 0xFFFF_FFFF_FFFF_FFFF, np.uint64)
    some = each.copy()
    for step in steps(length):
        found = words[step:][at]
        each &= found
        some &= (found >> np.uint64(2)) | found | (found << np.uint64(1))
    wanted = np.uint64(0x20 * _EACH), np.uint64(0x10 * _EACH)
    fits: Mask = (each & wanted[0] == wanted[0]) & (some & wanted[1] == wanted[1])
    return fits


def _spans(starts: Numbers, kinds: list[tuple[_Kind, Mask]]) -> dict[str, Span]:
    """Where the attributes are, by the places that each line's kind tells."""
    ids = len(BEGIN)
    places = [
        ((ids, ids + kind.id_chars), kind.source, kind.type, (kind.time, kind.time + TIME_CHARS)) for kind, _ in kinds
    ]
    found: dict[str, Span] = {}
    for number, name in enumerate(("id", "source", "type", "time")):
        begin, end = (_place([one[number][side] for one in places], kinds) for side in (0, 1))
        found[name] = Span(starts + begin, starts + end)
    return found


def _place(of_kinds: list[int], kinds: list[tuple[_Kind, Mask]]) -> Numbers | int:
    if len(set(of_kinds)) == 1:
        return of_kinds[0]
    found: Numbers = np.zeros(len(kinds[0][1]), np.int64)
    for place, (_, fits) in zip(of_kinds, kinds, strict=True):
        found[fits] = place
    return found
