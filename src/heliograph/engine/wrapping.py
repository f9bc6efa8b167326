"""What is around the payloads of lines that are alike but for these: looked at together, and the payloads, too.

A line begins and ends like the one before it, whatever it carries, however long that is. The beginnings are a table of
bytes, and the ends are; of which one line tells what may differ (``likeness.py``)::

    {"specversion":"1.0","id":"0192…", … ,"data":   {"load":17}   ,"origin":"host2.k3f9q2", … ,"crc":"9a1c03f7"}
    ─────────────────── head ────────────────────   ─ payload ─   ──────────────────── tail ─────────────────────

The payloads, with commas between them, are one array of JSON. It has as many values as there are lines, and each is as
long as the payload of its line, if and only if each payload is one value: of one that were a part of a value, or more
than one, the value would be longer or shorter. Nor is there room for white space, since the lengths add up.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from operator import itemgetter
from typing import Final, NamedTuple, Self

import google_crc32c
import msgspec

from heliograph.engine.foreign import UNREADABLE, without_crc
from heliograph.engine.likeness import Bytes, Kind, Mask, Said, payload_of, sums_in

_values_of = msgspec.json.Decoder(list[msgspec.Raw]).decode
_crc: Final = google_crc32c.value
_MARK: Final = len(',"data":')


class Wrapping(NamedTuple):
    """What some lines have in common, but for their payloads. In tables of them heads and tails follow each other."""

    kind: Kind  # of lines without their payloads
    head: int  # how many bytes are before the payload
    tail: int  # and behind it

    @classmethod
    def of(cls, channel: str, line: bytes) -> Self | None:
        """What is around the payload of a line; None if it has none, or is like no other."""
        kind, payload = Kind.of(channel, line), payload_of(line)
        if kind is None or payload is None or kind.time.columns.stop > payload.start:
            return None
        return cls(kind.without(payload), payload.start, len(line) - payload.stop)

    def marked(self, table: Bytes) -> Mask:
        """Where it may be, by a few bytes on both sides of the payload: that is quicker where several are mixed."""
        marks = slice(self.head - _MARK, self.head + _MARK)
        marked: Mask = (table[:, marks] == self.kind.form.low[marks]).all(axis=1)
        return marked

    def said(self, table: Bytes, lines: Sequence[bytes]) -> Said | None:
        """What lines say if all are messages wrapped like this, with the right checksums; else None."""
        differ = self.kind.form.differ(table)
        if differ is None:
            return None
        sums = struct.pack(f">{len(lines)}I", *map(_crc, map(without_crc, lines)))
        if sums.hex().encode() != sums_in(table).tobytes() or not self._carry_values(lines):
            return None
        return self.kind.read(table, differ)

    def _carry_values(self, lines: Sequence[bytes]) -> bool:
        """Whether each payload is one value."""
        payloads = list(map(itemgetter(slice(self.head, -self.tail)), lines))
        text = b"[%b]" % b",".join(payloads)
        try:
            if not text.isascii():
                text.decode()
            return list(map(len, _values_of(text))) == list(map(len, payloads))
        except UNREADABLE:
            return False
