"""What compaction sees of a line: its key, and whether it is a tombstone. Payloads are not decoded."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from hashlib import blake2b
from typing import Final, NamedTuple

import msgspec

from heliograph.addressee import Addressee

_DIGEST_BYTES: Final = 16

KEY_BYTES: Final = 200
"""What one key costs in a map of keys to offsets, at the most: a short text, a number and their share of the table."""


class Keyed(NamedTuple):
    """A message that has a key."""

    offset: int
    key: bytes
    tombstone: bool


class _Brief(msgspec.Struct, gc=False):
    partitionkey: str | None = None
    data: msgspec.Raw = msgspec.Raw(b"null")
    data_base64: msgspec.Raw = msgspec.Raw(b"null")
    redrivefor: object = None


_brief = msgspec.json.Decoder(_Brief)


def keyed(data: bytes, first: int) -> Iterator[Keyed]:
    """The messages with a key among some lines, the first of which has the offset ``first``.

    >>> list(keyed(b'{"partitionkey":"a","data":1}\\n\\n{"data":2}\\n{"partitionkey":"a","data":null}\\n', 7))
    [Keyed(offset=7, key=b'a', tombstone=False), Keyed(offset=10, key=b'a', tombstone=True)]

    What was redriven for one subscription is an old message come again, not the newest of its key.
    """
    lines = [(offset, line) for offset, line in enumerate(data.split(b"\n"), first) if line.strip(b" ")]
    for (offset, _), brief in zip(lines, _decode(data, lines), strict=True):
        if brief is not None and brief.partitionkey is not None and not Addressee.read(brief.redrivefor):
            yield Keyed(offset, _short(brief.partitionkey), _is_null(brief.data) and _is_null(brief.data_base64))


def _decode(data: bytes, lines: list[tuple[int, bytes]]) -> list[_Brief | None]:
    """All at once if possible; None for what is no envelope (which has no key, hence stays)."""
    with contextlib.suppress(msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        found: list[_Brief | None] = _brief.decode_lines(data)  # type: ignore[assignment]
        if len(found) == len(lines):
            return found
    return [_decode_one(line) for _, line in lines]


def _decode_one(line: bytes) -> _Brief | None:
    try:
        return _brief.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def _is_null(raw: msgspec.Raw) -> bool:
    return bytes(raw) == b"null"


def _short(key: str) -> bytes:
    """The key itself if that is short, else its digest: keys of any length cost the same."""
    encoded = key.encode("utf-8", "surrogatepass")
    return encoded if len(encoded) < _DIGEST_BYTES else blake2b(encoded, digest_size=_DIGEST_BYTES).digest()
