"""Lines that were first published elsewhere: read and checked in bulk, and why one of them cannot be stored.

A thousand lines are checked with a few calls of C: one that decodes each, one that sums each up, and one comparison of
their ends with what the ends of consecutive lines of one origin must be. Only if something does not fit they are
looked at one by one. A thousand at a time, for they are looked at several times, while the processor still has them.
"""

from __future__ import annotations

import functools
import re
import struct
from collections.abc import Iterator, Sequence
from datetime import datetime
from io import BytesIO
from itertools import chain
from operator import attrgetter, itemgetter
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple, Self

import google_crc32c
import msgspec

from heliograph import limits
from heliograph.clock import to_us
from heliograph.engine.origins import station_of
from heliograph.errors import InvalidMessage
from heliograph.log.lines import intact
from heliograph.message import time_us
from heliograph.seen import IntervalSet

if TYPE_CHECKING:
    from heliograph.engine.alike import Cut, Like

_value = google_crc32c.value
_CRC_BYTES: Final = len(b',"crc":"9a1c03f7"}\n')
TAIL: Final = re.compile(
    rb',"origin":"([^"\\\n]{1,255})","originseq":"(%b)/(0|[1-9][0-9]{0,17})","crc":"[0-9a-f]{8}"\}\n'
    % limits.PARTITION_DIGITS
)
TOGETHER_BYTES_MIN, TOGETHER_BYTES_MAX = 32 * 1024, 4 << 20
"""In so much it is worth looking for lines that are alike; of more, where each is takes too much room."""
_FEW: Final = 8  # where not more lines than this come together, each is asked what it says
_LOW: Final = range(4)
_DIGITS: Final = [b"".join([b"%d" % digit * 10**place for digit in range(10)]) * 10 ** (3 - place) for place in _LOW]
"""The last digits of 0 to 9,999; their last but one; and so on."""
UNREADABLE: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


class Envelope(msgspec.Struct, gc=False):
    """What is looked at. Attributes that readers decode have to have their types; the payload is skipped."""

    id: Annotated[str, msgspec.Meta(min_length=1, max_length=limits.ID_CHARS_MAX)]
    source: str
    type: str
    time: Annotated[datetime, msgspec.Meta(tz=True)]
    channel: str
    partitionkey: Annotated[str, msgspec.Meta(max_length=limits.KEY_BYTES_MAX)] | None = None
    correlationid: str | None = None
    traceparent: str | None = None
    subject: str | None = None
    data_base64: bytes | None = None


decode = msgspec.json.Decoder(Envelope).decode
_time_of = attrgetter("time")
_channel_of = attrgetter("channel")
without_crc = itemgetter(slice(-_CRC_BYTES))


class Piece:
    """Lines that arrived together, each with its newline."""

    __slots__ = ("_cut", "_lines", "_sought", "data", "single")

    def __init__(self, data: bytes, lines: Sequence[bytes] | None = None, *, single: bool = True) -> None:
        self.data = data
        self.single = single  # whether no line holds another newline
        self._lines = lines
        self._cut: Cut | None = None
        self._sought = lines is not None and len(lines) == 1  # there is nothing to look for

    @classmethod
    def of(cls, pieces: Sequence[Piece]) -> Self:
        """Several as one."""
        whole = cls(b"".join([piece.data for piece in pieces]))
        alike, cuts = together(), [piece.cut for piece in pieces]
        if alike is not None:
            whole._cut, whole._sought = alike.Cut.of(whole.data, cuts), True
        return whole

    @property
    def lines(self) -> Sequence[bytes]:
        """The same, one by one."""
        if self._lines is None:
            self._lines = lines_of(self.data) if self._cut is None else self._cut.lines
        return self._lines

    @property
    def cut(self) -> Cut | None:
        """Where they are, if they are many and there is somebody who looks at many at once."""
        if not self._sought and self.single and TOGETHER_BYTES_MIN <= len(self.data) <= TOGETHER_BYTES_MAX:
            alike, self._sought = together(), True
            self._cut = None if alike is None else alike.Cut(self.data)
        return self._cut

    @property
    def count(self) -> int:
        """How many they are."""
        return len(self.lines) if self._lines is not None or self.cut is None else len(self.cut.lengths)

    def without_blanks(self) -> Piece:
        """Those that are no blank lines: these stand for what was left out."""
        if not (b"\n" in self.lines if self.cut is None else self.cut.blank):
            return self
        there = [line for line in self.lines if line != b"\n"]
        return Piece(b"".join(there), there)


class Run(NamedTuple):
    """Consecutive lines of a batch that are consecutive at their origin, too."""

    origin: str
    partition: int
    first: int
    next: int
    at: int  # which line of the batch is the first


class Batch(NamedTuple):
    """Lines that can be stored as they are."""

    data: bytes  # each with its newline
    total: int  # how many they are
    runs: list[Run]
    min_us: int  # smallest event time
    max_us: int  # and largest
    envelopes: list[Envelope] | None  # if somebody decoded them

    def decoded(self) -> list[Envelope]:
        """What each line says."""
        return list(map(decode, split(self.data).lines)) if self.envelopes is None else self.envelopes

    def ids(self, numbers: Sequence[int]) -> list[str]:
        """The ids of some of the messages."""
        if self.envelopes is None and all(at == self.total - 1 for at in numbers):
            return [decode(self.data[self.data.rfind(b"\n", 0, -1) + 1 :]).id] * len(numbers)
        envelopes = self.decoded()
        return [envelopes[at].id for at in numbers]

    def part(self, numbers: Sequence[int]) -> Batch:
        """Some of the lines; the runs are those of all."""
        every, said = split(self.data).lines, self.decoded()
        lines, envelopes = [every[at] for at in numbers], [said[at] for at in numbers]
        times = list(map(_time_of, envelopes))
        return Batch(b"".join(lines), len(lines), self.runs, to_us(min(times)), to_us(max(times)), envelopes)


@functools.cache
def together() -> ModuleType | None:
    """Who looks at many lines at once, if numpy is there: it comes with the hub, and need not."""
    try:
        from heliograph.engine import alike
    except ImportError:
        return None
    return alike


def split(data: bytes) -> Piece:
    """Lines in one piece; the last may lack its newline.

    >>> split(b"one\\ntwo").lines
    [b'one\\n', b'two\\n']
    """
    whole = data if not data or data.endswith(b"\n") else data + b"\n"
    return Piece(whole, [whole] if 0 <= whole.find(b"\n") == len(whole) - 1 else None)  # who comes alone is waited for


def lines_of(data: bytes) -> list[bytes]:
    """Lines one by one, each with its newline."""
    return BytesIO(data).readlines()  # a third of the time of bytes.split


def piece_of(lines: Sequence[bytes]) -> Piece:
    """Lines that somebody has one by one, without their newlines."""
    ended = [line + b"\n" for line in lines]
    data = b"".join(ended)
    return Piece(data, ended, single=data.count(b"\n") == len(lines))


def merged(batches: Sequence[Batch]) -> Batch:
    """Several as one."""
    if len(batches) == 1:
        return batches[0]
    runs: list[Run] = []
    count = 0
    for batch in batches:
        for run in batch.runs:
            moved = run._replace(at=run.at + count)
            if runs and runs[-1].next == run.first and runs[-1][:2] == run[:2]:
                moved = runs.pop()._replace(next=run.next)
            runs.append(moved)
        count += batch.total
    decoded = [batch.envelopes for batch in batches if batch.envelopes is not None]
    return Batch(
        b"".join([batch.data for batch in batches]), count, runs,
        min([batch.min_us for batch in batches]), max([batch.max_us for batch in batches]),
        list(chain.from_iterable(decoded)) if len(decoded) == len(batches) else None,
    )  # fmt: skip


def read_all(channel: str, pieces: Sequence[Piece], bytes_max: int) -> tuple[Batch | None, list[tuple[int, str]]]:
    """What can be stored of some pieces, if anything; and which lines cannot be, and why."""
    if len(pieces) > 1 and all(piece.cut is not None and piece.cut.even for piece in pieces):  # the more, the better
        batch = _read_alike(channel, Piece.of(pieces), bytes_max)
        if batch is not None:
            return batch, []
    batches: list[Batch] = []
    refused: list[tuple[int, str]] = []
    before = 0
    for piece in pieces:
        batch = read(channel, piece, bytes_max)
        if batch is None:  # look which do not fit, and leave them out
            reasons = [why_not(channel, line[:-1], bytes_max) for line in piece.lines]
            refused += [(before + at, why) for at, why in enumerate(reasons) if why is not None]
            left = [line for line, why in zip(piece.lines, reasons, strict=True) if why is None]
            batch = read(channel, Piece(b"".join(left), left), bytes_max)
            assert (batch is None) == (not left), "lines that fit one by one fit together"
        if batch is not None:
            batches.append(batch)
        before += piece.count
    return merged(batches) if batches else None, refused


def read(channel: str, piece: Piece, bytes_max: int) -> Batch | None:
    """Lines as a batch; None if there is none, or if one of them cannot be stored: see ``why_not``."""
    return _read_alike(channel, piece, bytes_max) or _read(channel, piece, bytes_max)


def _read_alike(channel: str, piece: Piece, bytes_max: int) -> Batch | None:
    """The same of lines most of which are alike; else None."""
    cut = piece.cut
    alike = None if cut is None else together()  # who is not needed is not asked for
    like: Like | None = None if alike is None else alike.look(channel, cut, bytes_max)
    if like is None:
        return None
    times = [like.min_us, like.max_us]
    if like.rest:
        others = _read(channel, Piece(b"".join(like.rest), like.rest), bytes_max)
        if others is None:
            return None
        like.add(others.runs)
        times += (others.min_us, others.max_us)
    return Batch(piece.data, piece.count, list(like.runs()), min(times), max(times), None)


def _read_one(channel: str, line: bytes) -> Batch | None:
    """One line, in as few steps as possible: who comes alone is waited for."""
    tail = TAIL.search(line)
    try:
        if not line.isascii():
            line.decode()
        envelope = decode(line)
        made_us = time_us(envelope.time)
    except (*UNREADABLE, InvalidMessage):
        return None
    if tail is None or envelope.channel != channel or line[-11:-3] != b"%08x" % _value(line[:-_CRC_BYTES]):
        return None
    if not tail[1].isascii() or station_of(origin := tail[1].decode()) is None:
        return None
    first = int(tail[3])
    return Batch(line, 1, [Run(origin, int(tail[2]), first, first + 1, 0)], made_us, made_us, [envelope])


def _read(channel: str, piece: Piece, bytes_max: int) -> Batch | None:
    data, lines = piece.data, piece.lines
    if not piece.single or not lines or (len(data) > bytes_max + 1 and max(map(len, lines)) > bytes_max + 1):
        return None
    if len(lines) == 1:
        return _read_one(channel, data)
    try:
        if not data.isascii():
            data.decode()
        envelopes = list(map(decode, lines))  # not decode_lines, to which a newline within a message is a space
    except UNREADABLE:
        return None
    if set(map(_channel_of, envelopes)) != {channel}:
        return None
    crcs = list(map(_value, map(without_crc, lines)))
    runs = (_one_run(lines, crcs) if len(lines) > _FEW else None) or _runs(lines, data, crcs)
    if runs is None or None in {station_of(run.origin) for run in runs}:
        return None
    times = list(map(_time_of, envelopes))
    try:
        return Batch(data, len(lines), runs, time_us(min(times)), time_us(max(times)), envelopes)
    except InvalidMessage:
        return None


def _one_run(lines: Sequence[bytes], crcs: list[int]) -> list[Run] | None:
    """The usual case: one origin, one after the other. Then all their ends are known from the first and the last."""
    begin, end = TAIL.search(lines[0]), TAIL.search(lines[-1])
    if not begin or not end or begin.group(1, 2) != end.group(1, 2):
        return None
    first, count = int(begin[3]), len(lines)
    if int(end[3]) != first + count - 1:
        return None
    sums = struct.pack(f">{count}I", *crcs).hex().encode()
    at = 0
    while at < count:
        number = first + at
        form = b',"origin":"%b","originseq":"%b/%d","crc":"00000000"}\n' % (begin[1], begin[2], number)
        more = min(count - at, 10 ** min(4, len(str(number))) - number % 10_000)  # four digits count
        end_of = itemgetter(slice(-len(form), None))
        if b"".join(map(end_of, lines[at : at + more])) != _ends(form, number, more, sums[8 * at :]):
            return None
        at += more
    return _named([(begin[1], begin[2], first, 0)], count)


def _ends(form: bytes, number: int, count: int, sums: bytes) -> bytearray:
    """The ends of consecutive lines, as long as the first one's: made by columns of digits, rather than by lines."""
    width, low = len(form), number % 10_000
    ends = bytearray(form * count)
    for place in range(min(4, len(str(number)))):
        ends[width - _CRC_BYTES - 2 - place :: width] = _DIGITS[place][low : low + count]
    for place in range(8):
        ends[width - 11 + place :: width] = sums[place : 8 * count : 8]
    return ends


def _runs(lines: Sequence[bytes], data: bytes, crcs: list[int]) -> list[Run] | None:
    """What each line says, where the lines of several origins are mixed or some are left out."""
    count, tails = len(lines), TAIL.findall(data)
    if len(tails) != count:
        return None
    if struct.pack(f">{count}I", *crcs).hex().encode() != b"".join([line[-11:-3] for line in lines]):
        return None
    starts: list[tuple[bytes, bytes, int, int]] = []
    before: tuple[bytes, bytes] = (b"", b"")
    expected = -1
    for at, (origin, partition, sequence) in enumerate(tails):
        number = int(sequence)
        if number != expected or before != (origin, partition):
            before = (origin, partition)
            starts.append((origin, partition, number, at))
        expected = number + 1
    return _named(starts, count)


def _named(starts: list[tuple[bytes, bytes, int, int]], count: int) -> list[Run] | None:
    runs: list[Run] = []
    for (origin, partition, first, at), stop in zip(starts, [*[one[3] for one in starts[1:]], count], strict=True):
        if not origin.isascii():
            return None
        runs.append(Run(origin.decode(), int(partition), first, first + stop - at, at))
    return runs


def why_not(channel: str, line: bytes, bytes_max: int) -> str | None:
    """Why a line cannot be stored; None if it can."""
    if len(line) > bytes_max:
        return f"it has {len(line)} bytes, messages.max_bytes is {bytes_max} here"
    if b"\n" in line or not intact(line):
        return "its checksum does not fit: it was damaged on its way, or made by something else"
    try:
        line.decode()
        envelope = decode(line)
        time_us(envelope.time)
    except (*UNREADABLE, InvalidMessage) as error:
        return f"it is no message: {error}"
    if envelope.channel != channel:
        return f"it belongs to channel {envelope.channel[:200]!r}, not to '{channel}'"
    tail = TAIL.search(line + b"\n")
    if tail is None or station_of(tail[1].decode()) is None:
        return "it does not end with the origin, sequence and checksum that a station gives it"
    return None


def numbers(fresh: list[tuple[Run, IntervalSet]]) -> Iterator[int]:
    """Which lines of a batch are new."""
    for run, wanted in fresh:
        for first, following in wanted:
            yield from range(run.at + first - run.first, run.at + following - run.first)
