"""The lines of a log: how one is finished under the lock, checked, and told from damage.

A message's body is encoded outside the lock. What only the lock knows is spliced on under it::

    {"specversion":"1.0", … ,"data":{…}                          the body, without its closing brace
    ,"batch":"40/3"                                              only in an atomic batch: first offset / count
    ,"origin":"host2.k3f9q2","originseq":"0/41"                  station.incarnation, partition/offset
    ,"crc":"9a1c03f7"}\\n                                        crc32c of every byte of the line before it
"""

from __future__ import annotations

import re
from binascii import hexlify
from collections.abc import Sequence
from itertools import repeat
from struct import pack
from typing import Final, NamedTuple

import google_crc32c
import msgspec

_encode_numbers = msgspec.json.Encoder().encode
_join = b"".join
_extend = google_crc32c.extend
_value = google_crc32c.value

TAIL_BYTES_MAX: Final = 256 + 120
"""What splicing adds to a body at the most: origin, its sequence, batch, checksum."""

LOST: Final = b"!"
"""Stands for a line that damage took, where offsets have to be counted by newlines: neither blank nor intact."""

_CRC_AT: Final = -18  # -len(',"crc":"9a1c03f7"}')
_ORIGIN: Final = re.compile(rb',"origin":"([^"\\]*)\.([0-9a-z]+)","originseq":"(\d+)/(\d+)"$')
_BATCH: Final = re.compile(rb',"batch":"(\d+)/(\d+)"$')
_ID_AND_MICROSECONDS: Final = 36 + 6
_ENDINGS: Final = [b'%03d"' % number for number in range(1000)]


class Form:
    """A line with holes, for a publisher whose messages differ in little: filled in one step under the lock.

    ``body`` has holes for id, microseconds, and data or all that comes after the channel. ``lines`` have one more for
    the offset, and the place of the partition they are for.
    """

    __slots__ = ("body", "bytes", "fitted", "lines", "room")

    def __init__(self, body: bytes) -> None:
        self.body = body
        self.room = len(body) + 36 + TAIL_BYTES_MAX  # bytes that a line has beside its data, at the most
        # Of a body beside what fills the last hole; a % in a name is written twice in a form.
        self.bytes = len(body) - body.count(b"%%") + _ID_AND_MICROSECONDS - len(b"%b%06d%b")
        self.lines: dict[bytes, bytes] = {}
        self.fitted = (b"", b"")  # the place that was asked for last, and its line; threads share them, hence in one

    def line(self, place: bytes) -> bytes:
        """The line for a partition, made when it is first asked for."""
        made = self.lines.get(place)
        if made is None:
            made = self.lines[place] = b'%b%b%%d"' % (self.body, place.replace(b"%", b"%%"))
        self.fitted = (place, made)
        return made


Column = bytes | Sequence[bytes]
"""What all messages of a batch have in one place of their bodies, or what each has there."""


def put_together(columns: Sequence[Column], count: int) -> list[bytes]:
    """The texts of a batch, each of one piece from every column."""
    rows = zip(*[repeat(column, count) if isinstance(column, bytes) else column for column in columns], strict=True)
    return list(map(_join, rows))


def bytes_in(columns: Sequence[Column], count: int) -> int:
    """How many bytes they are together."""
    return sum([len(one) * count if isinstance(one, bytes) else sum(map(len, one)) for one in columns])


def longest_in(columns: Sequence[Column]) -> int:
    """How many bytes one of them may have at the most."""
    return sum([len(one) if isinstance(one, bytes) else max(map(len, one)) for one in columns])


def decimals(numbers: range) -> list[bytes]:
    """Numbers as text, all of them in one step.

    >>> decimals(range(9, 12))
    [b'9', b'10', b'11']
    """
    return _encode_numbers(list(numbers))[1:-1].split(b",") if numbers else []


def _quoted_numbers(first: int, count: int) -> tuple[bytes, list[bytes]]:
    """Numbers that follow each other, each with a quote behind it: how all of them begin, and how each ends."""
    thousands, rest = divmod(first, 1000)
    if thousands and rest + count <= 1000:
        return b"%d" % thousands, _ENDINGS[rest : rest + count]
    return b"", [number + b'"' for number in decimals(range(first, first + count))]


def fill(columns: Sequence[Column], count: int, place: bytes, first: int) -> bytes:
    """Finish an atomic batch of bodies that lie in columns: every step is one for all of them, hence so cheap."""
    begin, ends = _quoted_numbers(first, count)
    texts = put_together([*columns, b"%b%b%b" % (batch_mark(first, count), place, begin), ends], count)
    crcs = hexlify(pack(f">{count}I", *map(_value, texts)), b"#", 4)
    seals = (b',"crc":"%b"}\n' % crcs.replace(b"#", b'"}\n#,"crc":"')).split(b"#")
    pieces = texts + seals
    pieces[::2], pieces[1::2] = texts, seals
    return b"".join(pieces)


def batch_mark(first: int, count: int) -> bytes:
    """What every line of an atomic batch says of it; a batch of one needs no mark."""
    return b',"batch":"%d/%d"' % (first, count) if count > 1 else b""


def origin_place(origin: bytes, partition: int) -> bytes:
    """What every line of a partition says of its origin, up to the offset."""
    return b',"origin":"%b","originseq":"%d/' % (origin, partition)


def stamp(bodies: Sequence[bytes], crcs: Sequence[int], place: bytes, first: int) -> bytes:
    """Finish bodies that stand for themselves into lines, the first at offset ``first``."""
    if len(bodies) == 1:
        tail = b'%b%d"' % (place, first)
        return b'%b%b,"crc":"%08x"}\n' % (bodies[0], tail, _extend(crcs[0], tail))
    return _finish(bodies, crcs, place, first)


def stamp_batch(bodies: Sequence[bytes], crcs: Sequence[int], place: bytes, first: int) -> bytes:
    """Finish the bodies of an atomic batch."""
    return stamp(bodies, crcs, batch_mark(first, len(bodies)) + place, first)


def _finish(bodies: Sequence[bytes], crcs: Sequence[int], place: bytes, first: int) -> bytes:
    lines: list[bytes] = []
    push = lines.append
    for body, crc in zip(bodies, crcs, strict=True):
        tail = b'%b%d"' % (place, first)
        push(b'%b%b,"crc":"%08x"}\n' % (body, tail, _extend(crc, tail)))
        first += 1
    return b"".join(lines)


def intact(line: bytes) -> bool:
    """Whether a line (without its newline) carries the checksum of its own bytes.

    >>> intact(stamp([b'{"id":"a"'], [_value(b'{"id":"a"')], b"", 7)[:-1])
    True
    >>> intact(b'{"id":"a"}')
    False
    """
    if line[_CRC_AT:-10] != b',"crc":"' or line[-2:] != b'"}':
        return False
    return line[-10:-2] == b"%08x" % _value(line[:_CRC_AT])


class Place(NamedTuple):
    """Where a line says it was first published."""

    station: str
    incarnation: str
    partition: int
    offset: int


def origin_of(line: bytes) -> Place | None:
    """The origin spliced onto an intact line."""
    found = _ORIGIN.search(line, max(0, len(line) - TAIL_BYTES_MAX), len(line) + _CRC_AT)
    if not found:
        return None
    station, incarnation, partition, offset = found.groups()
    return Place(station.decode("utf-8", "replace"), incarnation.decode(), int(partition), int(offset))


class Home(NamedTuple):
    """Which lines of a log were first published in it: they know their offset, and their batch marks are about it."""

    station: str
    partition: int
    returned: frozenset[str] = frozenset()  # own incarnations that ended, of which lines came back from elsewhere

    def native(self, line: bytes) -> Place | None:
        """The origin of an intact line if that is this very log; None of a line that came from elsewhere."""
        place = origin_of(line)
        if place is None or place.station != self.station or place.partition != self.partition:
            return None
        return None if place.incarnation in self.returned else place


def batch_of(line: bytes) -> tuple[int, int] | None:
    """First offset and count of the atomic batch that an intact line belongs to."""
    at = line.rfind(b',"origin":"', max(0, len(line) - TAIL_BYTES_MAX))
    found = _BATCH.search(line, 0, at) if at > 0 else None
    return (int(found[1]), int(found[2])) if found else None


class Sorted(NamedTuple):
    """A stretch of a log after its lines were checked one by one."""

    lines: list[tuple[int, bytes]]  # offset and intact line, in order; redacted lines are left out
    missing: list[tuple[int, int, bytes]]  # first, next, damaged bytes
    next: int  # the offset after the stretch
    whole: bool  # whether newlines alone still count the offsets correctly


def sort_out(data: bytes, first: int, home: Home, expected_next: int | None = None) -> Sorted:
    """Check every line of a stretch and give each intact one its offset.

    Damage may eat newlines or make new ones. Lines published here carry their own offset and set the count
    right again; otherwise a damaged piece is taken to be one line, and ``expected_next`` (from the index)
    corrects what follows the last piece.
    """
    lines: list[tuple[int, bytes]] = []
    missing: list[tuple[int, int, bytes]] = []
    offset, whole = first, True
    between: list[bytes] = []  # damaged and blank pieces since the last intact line
    pieces = data.split(b"\n")
    if not pieces[-1]:
        pieces.pop()
    for piece in pieces:
        if not piece.strip(b" ") or not intact(piece):
            between.append(piece)
            continue
        if between:
            counted = offset + len(between)
            place = home.native(piece)
            own = place.offset if place else counted
            actual = own if own >= offset else counted
            missing += _missing(between, offset, actual)
            whole = whole and actual == counted
            offset, between = actual, []
        lines.append((offset, piece))
        offset += 1
    counted = offset + len(between)
    actual = counted if expected_next is None else max(expected_next, offset)
    missing += _missing(between, offset, actual)
    return Sorted(lines, missing, actual, whole and actual == counted)


def _missing(pieces: list[bytes], first: int, following: int) -> list[tuple[int, int, bytes]]:
    """Which of the offsets between two intact lines are lost, given the pieces found there."""
    if len(pieces) == following - first:  # each piece is the line it stands for
        found: list[tuple[int, int, bytes]] = []
        for offset, piece in enumerate(pieces, first):
            if not piece.strip(b" "):
                continue
            if found and found[-1][1] == offset:
                start, _, before = found.pop()
                found.append((start, offset + 1, before + b"\n" + piece))
            else:
                found.append((offset, offset + 1, piece))
        return found
    damaged = [piece for piece in pieces if piece.strip(b" ")]
    if not damaged:  # blank lines of which some newlines were eaten, or made
        first = min(first + len(pieces), following)
    return [(first, following, b"\n".join(damaged))] if following > first or damaged else []
