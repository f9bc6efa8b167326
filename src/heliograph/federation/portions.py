"""From stored bytes to what one peer is sent: pure, and without work per line in the usual case.

A line ends with its origin (``,"origin":"host2.k3f9q2","originseq":…``). If a piece has as many origins as lines, and
as often that of its first line, then all its lines are of that one. A payload may hold such words, too: then there are
more origins than lines, and each line's last one counts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from heliograph.limits import BATCH_LINES_MAX

_ORIGIN: Final = b',"origin":"'
Passes = Callable[[bytes], bool]
"""Whether the lines of an origin are for the other side."""


class Sifted(NamedTuple):
    """Lines for the other side, a blank one for each that is not; and which held nothing here."""

    body: bytes
    empty: list[int]
    """Which lines were blank before."""

    @property
    def nothing(self) -> bool:
        """Whether there is nothing to send."""
        return not self.body.strip(b"\n")


def cut(data: bytes, size: int) -> tuple[int, int]:
    """How many bytes and lines of stored lines fit: at least one line, at most ``size`` bytes if there are more.

    >>> cut(b"aa\\nbb\\ncc\\n", 7), cut(b"aa\\nbb\\n", 1), cut(b"aa\\nbb\\n", 100)
    ((6, 2), (3, 1), (6, 2))
    """
    end = len(data) if len(data) <= size else data.rfind(b"\n", 0, size) + 1
    if end == 0:
        end = data.find(b"\n") + 1
    count = data.count(b"\n", 0, end)
    if count > BATCH_LINES_MAX:
        lines = data[:end].split(b"\n", BATCH_LINES_MAX)
        return end - len(lines[-1]), BATCH_LINES_MAX
    return end, count


def sift(data: bytes, count: int, passes: Passes) -> Sifted:
    """What of some lines is for the other side.

    >>> line = b'{"id":"1","origin":"host1.k","originseq":"0/0","crc":"00000000"}\\n'
    >>> sift(line * 2, 2, lambda origin: origin == b"host1.k").body == line * 2
    True
    >>> sift(line + b"\\n", 2, lambda origin: False)
    Sifted(body=b'\\n\\n', empty=[1])
    """
    origin = _origin_of(data[: data.find(b"\n")])
    clue = b'%b%b","originseq":"' % (_ORIGIN, origin)
    if data.count(clue) == count == data.count(_ORIGIN):
        return Sifted(data if passes(origin) else b"\n" * count, [])
    lines = data.split(b"\n")
    lines.pop()
    return sift_lines(lines, passes)


def sift_lines(lines: list[bytes], passes: Passes) -> Sifted:
    """The same, line by line."""
    empty = []
    for at, line in enumerate(lines):
        if not line.strip(b" "):
            empty.append(at)
            lines[at] = b""
        elif not passes(_origin_of(line)):
            lines[at] = b""
    return Sifted(b"\n".join([*lines, b""]), empty)


def _origin_of(line: bytes) -> bytes:
    at = line.rfind(_ORIGIN) + len(_ORIGIN)
    return line[at : line.find(b'"', at)] if at >= len(_ORIGIN) else b""
