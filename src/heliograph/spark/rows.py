"""From stored lines to Arrow: one record batch for some thousand lines, column by column."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from heliograph.spark.alike import alike
from heliograph.spark.columns import ATTRIBUTES, Wanted
from heliograph.spark.cutting import BEHIND, HEAD, PADDING, Cut, Mask, Numbers, Span, cut, words_of
from heliograph.spark.moments import possible
from heliograph.spark.odd import Odd, decode
from heliograph.spark.payload import typed

_raws: Final = msgspec.json.Decoder(list[msgspec.Raw])
_YEAR_1_US: Final = -62_135_596_800_000_000
"""Arrow knows earlier years, and nobody else does."""
_NULL: Final = int.from_bytes(b"null", "little")


class Place(NamedTuple):
    """Which partition the lines are from."""

    channel: str
    partition: int


class Malformed(NamedTuple):
    """A line that is intact and no message."""

    offset: int
    reason: str


class Piece(NamedTuple):
    """Some lines of a partition: whole lines behind each other, the first at ``first``, or each at its own offset."""

    first: int
    text: bytes
    offsets: Numbers | None = None  # where lines are missing between


def to_batch(piece: Piece, place: Place, wanted: Wanted) -> tuple[pa.RecordBatch, list[Malformed]]:
    """The messages among the lines, and what is none."""
    return _Rows(piece, place, wanted).batch()


class _Rows:
    """One piece on its way."""

    def __init__(self, piece: Piece, place: Place, wanted: Wanted) -> None:
        self._wanted = wanted
        self._place = place
        attributes = {ATTRIBUTES.get(name, name) for name in wanted.names}
        deep = not attributes <= _CERTAIN
        text = piece.text + PADDING
        self._cut = (None if deep else alike(text)) or cut(text, behind=deep)
        numbers = self._cut.numbers
        self._offsets = numbers + piece.first if piece.offsets is None else piece.offsets[numbers]
        self._count = len(numbers)
        self._every = pa.array(np.arange(0, 2 * self._count, 2))
        odd = self._cut.odd
        if not _utf8(piece.text) or (deep and not _whole(self._cut)):
            odd = np.ones(self._count, np.bool_)
        self._odd = odd
        self._times = None
        if "time" in wanted.names:
            self._times = self._read_times()
        else:
            self._check_times()
        self._decoded: dict[int, Odd] = {}
        self._malformed: list[int] = []

    def batch(self) -> tuple[pa.RecordBatch, list[Malformed]]:
        malformed = self._decode_odd()
        arrays = [self._column(field) for field in self._wanted.schema]
        batch = pa.RecordBatch.from_arrays(arrays, schema=self._wanted.schema)
        keep = self._kept()
        return (batch if keep is None else batch.filter(keep)), malformed

    def _read_times(self) -> pa.Array:
        """The times that were cut. If one of them cannot be, those that can are left."""
        kind = self._wanted.schema.field("time").type
        try:
            times = self._from("time").cast(kind)
            first = pc.min(times.cast(pa.int64())).as_py()
            if first is None or first >= _YEAR_1_US:
                return times
        except pa.ArrowInvalid:
            pass
        self._check_times()
        return self._from("time").cast(kind)

    def _check_times(self) -> None:
        """A line whose time cannot be is no message, whether its time is asked for or not: decoding it tells."""
        even = np.flatnonzero(~self._odd) if self._odd.any() else None
        if not self._count or (even is not None and not len(even)):
            return
        starts = self._cut.spans["time"].start
        fits = possible(words_of(self._cut.text), starts if even is None else starts[even])
        if not fits.all():
            wrong = np.flatnonzero(~fits)
            self._odd = self._odd.copy()
            self._odd[wrong if even is None else even[wrong]] = True

    def _decode_odd(self) -> list[Malformed]:
        found: list[Malformed] = []
        for at in np.flatnonzero(self._odd).tolist():
            line = self._cut.text[self._cut.starts[at] : self._cut.ends[at]]
            one = decode(line)
            if isinstance(one, str):
                found.append(Malformed(int(self._offsets[at]), one))
                self._malformed.append(at)
            else:
                self._decoded[at] = one
        return found

    def _kept(self) -> pa.Array | None:
        """Which rows stay; None if all do."""
        keep = None
        if self._wanted.payload_type is not None:
            keep = pc.fill_null(pc.equal(self._texts("type"), self._wanted.payload_type), False)
        if self._malformed:
            good = np.ones(self._count, np.bool_)
            good[self._malformed] = False
            keep = pa.array(good) if keep is None else pc.and_(keep, pa.array(good))
        return keep

    # -- columns ------------------------------------------------------------------------------------------------------

    def _column(self, field: pa.Field) -> pa.Array:
        name = field.name
        if name == "channel":
            return pa.repeat(pa.scalar(self._place.channel, pa.string()), self._count)
        if name == "partition":
            return pa.repeat(pa.scalar(self._place.partition, pa.int32()), self._count)
        if name == "offset":
            return pa.array(self._offsets, pa.int64())
        if name == "time":
            return self._mended(self._times, [one.time for one in self._decoded.values()])
        if name == "data":
            return self._data(field.type)
        if name == "headers":
            return self._headers(field.type)
        if name == "appended":
            told = self._wanted.appends
            return pa.nulls(self._count, field.type) if told is None else told.at(self._offsets, field.type)
        if name == "raw":
            return self._strings(Span(self._cut.starts, self._cut.ends), None)
        if name in _RARE:
            return self._rare([_RARE[name](one) for one in self._decoded.values()], field.type)
        return self._attribute(ATTRIBUTES.get(name, name), field.type)

    def _attribute(self, name: str, kind: pa.DataType) -> pa.Array:
        if name in HEAD | BEHIND and pa.types.is_string(kind):
            return self._texts(name)
        if pa.types.is_string(kind):
            return self._rare([one.text(name) for one in self._decoded.values()], kind)
        return self._rare([fitting(one.value(name), kind) for one in self._decoded.values()], kind)

    def _texts(self, name: str) -> pa.Array:
        return self._mended(self._from(name), [one.text(name) for one in self._decoded.values()])

    def _data(self, kind: pa.DataType) -> pa.Array:
        texts = self._mended(self._from("data", self._nulls()), [one.json() for one in self._decoded.values()])
        if pa.types.is_string(kind):
            return texts
        if self._wanted.payload_type is not None:  # others need not fit
            ours = pc.equal(self._texts("type"), self._wanted.payload_type)
            texts = pc.if_else(pc.fill_null(ours, False), texts, pa.scalar(None, pa.string()))
        return typed(texts, kind, self._name, fail=self._wanted.fail_on_mismatch)

    def _name(self, at: int) -> str:
        return f"{self._place.channel}/{self._place.partition} offset {self._offsets[at]}"

    def _nulls(self) -> Mask:
        """Where the payload is JSON's null, which is no text."""
        span = self._cut.spans.get("data")
        if span is None:
            return np.zeros(self._count, np.bool_)
        short: Mask = (span.end - span.start == 4) & ~self._odd
        if short.any():
            words = np.ndarray((len(self._cut.text) - 3,), "<u4", self._cut.text, strides=(1,))
            short[short] = words[span.start[short]] == _NULL
        return short

    def _headers(self, kind: pa.DataType) -> pa.Array:
        """Only odd lines have any: all others get an empty map."""
        sizes = np.zeros(self._count + 1, np.int32)
        keys: list[str] = []
        values: list[str] = []
        for at, one in self._decoded.items():
            headers = one.headers()
            sizes[at + 1] = len(headers)
            keys += headers.keys()
            values += headers.values()
        offsets = pa.array(np.cumsum(sizes, dtype=np.int32), pa.int32())
        return pa.MapArray.from_arrays(offsets, pa.array(keys, pa.string()), pa.array(values, pa.string()), type=kind)

    # -- making arrays ------------------------------------------------------------------------------------------------

    def _from(self, name: str, without: Mask | None = None) -> pa.Array:
        """What the cut found of an attribute; null for odd lines."""
        span = self._cut.spans.get(name)
        if span is None:
            return pa.nulls(self._count, pa.string())
        there = span.there
        if self._odd.any() or (without is not None and without.any()):
            gone = self._odd if without is None else self._odd | without
            there = ~gone if there is None else there & ~gone
        return self._strings(span, there)

    def _strings(self, span: Span, there: Mask | None) -> pa.Array:
        """Stretches of the text as strings: borders over the text as it is, every other of which is copied, in C."""
        borders = np.empty(2 * self._count, np.int32)
        borders[::2] = span.start if there is None else np.where(there, span.start, self._cut.starts)
        borders[1::2] = span.end if there is None else np.where(there, span.end, self._cut.starts)
        if not self._count:
            return pa.array([], pa.string())
        whole = pa.StringArray.from_buffers(len(borders) - 1, pa.py_buffer(borders), pa.py_buffer(self._cut.text))
        if there is None:
            return whole.take(self._every)
        return whole.take(pa.array(np.arange(0, len(borders), 2), mask=~there))

    def _mended(self, column: pa.Array, odd: list[Any]) -> pa.Array:
        """A column with the values of odd lines put in."""
        if not odd:
            return column
        places = np.zeros(self._count, np.bool_)
        places[list(self._decoded)] = True
        return pc.replace_with_mask(column, pa.array(places), pa.array(odd, column.type))

    def _rare(self, odd: list[Any], kind: pa.DataType) -> pa.Array:
        """A column that only odd lines have."""
        if not any(value is not None for value in odd):
            return pa.nulls(self._count, kind)
        values: list[Any] = [None] * self._count
        for at, value in zip(self._decoded, odd, strict=True):
            values[at] = value
        return pa.array(values, kind)


_RARE: Final[dict[str, Callable[[Odd], Any]]] = {
    "bytes": lambda one: one.bytes,
    "expires": lambda one: one.expires(),
    "headers_json": lambda one: one.headers_json(),
    "gap": lambda _: None,
}
_CERTAIN: Final = frozenset(
    {"id", "source", "type", "time", "channel", "partition", "offset", "raw", "gap", "appended"}
)
"""Columns for which a line need not be known to its end: every line that is cut has them, and in one place."""


def fitting(value: Any, kind: pa.DataType) -> Any:
    """A header as a number or boolean; null if it is none."""
    if pa.types.is_boolean(kind):
        return value if isinstance(value, bool) else None
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    try:
        if pa.types.is_floating(kind):
            return float(value)
        return pa.scalar(int(value), kind).as_py() if int(value) == value else None
    except (pa.ArrowException, OverflowError):
        return None


def _utf8(text: bytes) -> bool:
    if text.isascii():
        return True
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


def _whole(found: Cut) -> bool:
    """Whether each stretch between ``"data":`` and what follows is one JSON value, and nothing more.

    Each is followed by a comma, so all of them are the members of one list: whatever else stood there, it would not
    be a list of as many.
    """
    span = found.spans.get("data")
    if span is None or found.odd.all():
        return True
    even = ~found.odd
    texts = np.empty(2 * int(even.sum()), np.int32)
    texts[::2], texts[1::2] = span.start[even], span.end[even] + 1
    stretches = pa.BinaryArray.from_buffers(
        pa.binary(), len(texts) - 1, [None, pa.py_buffer(texts), pa.py_buffer(found.text)]
    ).take(pa.array(np.arange(0, len(texts), 2)))
    members = memoryview(stretches.buffers()[2])[:-1]
    try:
        return len(_raws.decode(b"".join((b"[", members, b"]")))) == len(stretches)
    except msgspec.MsgspecError:
        return False
