"""From stored bytes to what one peer is sent: pure, and without work per line in the usual case.

A line ends with its origin (``,"origin":"host2.k3f9q2","originseq":"0/41","crc":"9a1c03f7"}``). If all lines of a piece
have the origin of the first at the same place, counted from their ends, then they are of that one: what follows it is
too short to hold another. Otherwise each line is looked at; a payload may hold such words, too, so the last one counts.
"""

from __future__ import annotations

from collections.abc import Callable
from io import BytesIO
from operator import itemgetter
from typing import Final, NamedTuple

from heliograph.limits import BATCH_LINES_MAX
from heliograph.seen import SeenSet

_ORIGIN: Final = b',"origin":"'
Passes = Callable[[bytes], bool]
"""Whether the lines of an origin are for the other side."""


class Portion(NamedTuple):
    """What was read: lines from ``first`` on; no ``body`` if there is nothing to send before ``next``."""

    first: int
    lines: int
    body: bytes
    next: int
    gaps: SeenSet | None = None
    """What was published here at these offsets, and is not there any more."""


class Sifted(NamedTuple):
    """Lines for the other side, a blank one for each that is not; and which held nothing here."""

    body: bytes
    empty: list[int]
    """Which lines were blank before."""

    @property
    def nothing(self) -> bool:
        """Whether there is nothing to send."""
        return self.body.startswith(b"\n") and not self.body.strip(b"\n")


def cut(data: bytes, size: int) -> tuple[int, list[bytes]]:
    """How many bytes of stored lines fit, and these lines: at least one, at most ``size`` bytes if there are more.

    >>> cut(b"aa\\nbb\\ncc\\n", 7), cut(b"aa\\nbb\\n", 1), cut(b"aa\\nbb\\n", 100)
    ((6, [b'aa\\n', b'bb\\n']), (3, [b'aa\\n']), (6, [b'aa\\n', b'bb\\n']))
    """
    end = len(data) if len(data) <= size else data.rfind(b"\n", 0, size) + 1
    if end == 0:
        end = data.find(b"\n") + 1
    lines = BytesIO(data[:end]).readlines()  # a third of the time of bytes.split
    if len(lines) > BATCH_LINES_MAX:
        del lines[BATCH_LINES_MAX:]
        end = sum(map(len, lines))
    return end, lines


def sift(data: bytes, lines: list[bytes], passes: Passes) -> Sifted:
    """What of some lines, in one piece and one by one, is for the other side.

    >>> line = b'{"id":"1","origin":"host1.k","originseq":"0/0","crc":"00000000"}\\n'
    >>> sift(line, [line], lambda origin: origin == b"host1.k").body == line
    True
    >>> sift(line + b"\\n", [line, b"\\n"], lambda origin: False)
    Sifted(body=b'\\n\\n', empty=[1])
    """
    origin = _origin_of(lines[0])
    clue = b'%b%b","originseq":"' % (_ORIGIN, origin)
    begin = lines[0].rfind(clue) - len(lines[0])
    end = begin + len(clue)
    if end < 0 and set(map(itemgetter(slice(begin, end)), lines)) == {clue}:
        return Sifted(data if passes(origin) else b"\n" * len(lines), [])
    return sift_lines(lines, passes)


def sift_lines(lines: list[bytes], passes: Passes) -> Sifted:
    """The same, line by line."""
    empty = []
    for at, line in enumerate(lines):
        if not line.strip(b" \n"):
            empty.append(at)
            lines[at] = b"\n"
        elif not passes(_origin_of(line)):
            lines[at] = b"\n"
    return Sifted(b"".join(lines), empty)


def _origin_of(line: bytes) -> bytes:
    at = line.rfind(_ORIGIN) + len(_ORIGIN)
    return line[at : line.find(b'"', at)] if at >= len(_ORIGIN) else b""
