"""Finding a place in a log: by time through the index, by id through the time in it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any, NamedTuple

import msgspec

from heliograph.clock import to_us
from heliograph.disk import Disk
from heliograph.limits import CHUNK_BYTES
from heliograph.log import index, segments
from heliograph.log.cursor import LogCursor
from heliograph.log.head import Limit
from heliograph.log.indexing import Place

_ID_SLACK_US = 5_000_000  # an id and its message's time are taken a moment apart


class _Brief(msgspec.Struct):
    time: datetime
    id: str = ""


class _Named(msgspec.Struct):
    id: Any = ""


_brief = msgspec.json.Decoder(_Brief)
_named = msgspec.json.Decoder(_Named)


class Log(NamedTuple):
    """A partition to search."""

    place: Place
    limit: Callable[[], Limit]


def offset_at(log: Log, moment_us: int, disk: Disk) -> int:
    """The first offset whose event time is not before the moment; the end if there is none."""
    limit = log.limit()
    start = _first_entry(log.place, disk, limit, lambda entry: entry.peak_us < moment_us)
    cursor = LogCursor(log, max(start, limit.first), disk)
    with contextlib.closing(cursor):
        while (chunk := cursor.read()) is not None:
            for offset, line in (
                enumerate(chunk.data.split(b"\n")[:-1], chunk.first) if chunk.numbered is None else chunk.numbered
            ):
                with contextlib.suppress(msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                    if line.strip(b" ") and to_us(_brief.decode(line).time) >= moment_us:
                        return offset
    return limit.next


def appended_since(log: Log, moment_us: int, disk: Disk) -> int:
    """An offset before which everything was appended before the moment."""
    return _first_entry(log.place, disk, log.limit(), lambda entry: entry.append_us < moment_us)


def _first_entry(place: Place, disk: Disk, limit: Limit, before: Callable[[index.Entry], bool]) -> int:
    """First offset of the first index entry for which the monotone condition fails."""
    known = [base for base in segments.bases_known(place.directory, disk) if base <= limit.next]
    low, high = 0, len(known)
    best = limit.first
    while low < high:  # segments: the last entry of each says how far it goes
        middle = (low + high) // 2
        last = _last_entry(place, known[middle], disk)
        if last is not None and before(last):
            best = max(best, last.next)
            low = middle + 1
        else:
            high = middle
    if low < len(known):
        with (
            contextlib.suppress(FileNotFoundError),
            contextlib.closing(_index(place, known[low], disk)) as file,
        ):
            number = file.last_where(before)
            entry = file.entry(number) if number >= 0 else None
            best = max(best, entry.next if entry else known[low])
    return min(best, limit.next)


def _index(place: Place, base: int, disk: Disk) -> index.IndexFile:
    return index.IndexFile(segments.path_of(place.directory, base, segments.INDEX), base, disk)


def _last_entry(place: Place, base: int, disk: Disk) -> index.Entry | None:
    with contextlib.suppress(FileNotFoundError), contextlib.closing(_index(place, base, disk)) as file:
        return file.entry(file.count - 1) if file.count else None
    return None


def find_id(log: Log, message_id: str, made_us: int | None, disk: Disk) -> int | None:
    """The offset of a message, looked for around the time that its id says; everywhere if that is None."""
    pattern = b'"id":' + msgspec.json.encode(message_id)
    if made_us is not None:
        # Most are appended when they are made; those that came from elsewhere have at least the time of then.
        for begin in (appended_since, offset_at):
            start = begin(log, made_us - _ID_SLACK_US, disk)
            found = _scan(log, start, pattern, message_id, disk, stop_after_us=made_us + _ID_SLACK_US)
            if found is not None:
                return found
        return None
    return _scan(log, log.limit().first, pattern, message_id, disk, stop_after_us=None)


def _scan(log: Log, start: int, pattern: bytes, message_id: str, disk: Disk, stop_after_us: int | None) -> int | None:
    cursor = LogCursor(log, start, disk)
    end = log.limit().next  # looking up to an end that a busy publisher moves would never end
    with contextlib.closing(cursor):
        while cursor.offset < end and (chunk := cursor.read()) is not None:
            if pattern in chunk.data:
                for offset, line in _numbered(chunk.data, chunk.first, chunk.numbered):
                    with contextlib.suppress(msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                        if pattern in line and _brief.decode(line).id == message_id:
                            return offset
            if (
                stop_after_us is not None
                and chunk.append_us > stop_after_us + 60_000_000
                and len(chunk.data) >= CHUNK_BYTES // 2
            ):
                return None
    return None


def _numbered(data: bytes, first: int, numbered: list[tuple[int, bytes]] | None) -> Iterator[tuple[int, bytes]]:
    if numbered is not None:
        yield from numbered
    else:
        yield from enumerate(data.split(b"\n")[:-1], first)


def line_at(log: Log, offset: int, disk: Disk) -> bytes | None:
    """The stored line at an offset, blank if it was removed; None if it was trimmed, or cannot be read."""
    with contextlib.closing(LogCursor(log, offset, disk)) as cursor:
        chunk = cursor.read()
    if chunk is None or chunk.first != offset:
        return None
    if chunk.numbered is not None:
        return dict(chunk.numbered).get(offset)
    return chunk.data.partition(b"\n")[0]


def id_at(log: Log, offset: int, disk: Disk) -> str:
    """The id of the message at an offset; empty if there is none."""
    line = line_at(log, offset, disk) if offset >= 0 else None
    try:
        return str(_named.decode(line or b"null").id)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return ""
