"""Lines that damage took and a repair made blank: whoever comes to them later is told all the same.

00000000000000000000.lost    [[40,41],[77,80]]: first and next offset of each range, beside the segment of that name

Other lines are blank because somebody redacted or compacted them, which is no loss. A line that is back, because an
intact segment was put in place again, is not lost, whatever stands here.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

import msgspec

from heliograph.disk import Disk
from heliograph.log import segments

Range = tuple[int, int]
_decode: Final = msgspec.json.Decoder(list[Range]).decode


def load(directory: Path, base: int, disk: Disk) -> list[Range]:
    """Which offsets of a segment a repair made blank."""
    with contextlib.suppress(FileNotFoundError, msgspec.MsgspecError):
        return _decode(disk.read_file(segments.path_of(directory, base, segments.LOST)))
    return []


def note(directory: Path, base: int, ranges: Iterable[Range], disk: Disk) -> None:
    """Add some, before their lines are made blank."""
    known = load(directory, base, disk)
    found = united([*known, *ranges])
    if found != known:
        disk.replace_file(segments.path_of(directory, base, segments.LOST), msgspec.json.encode(found) + b"\n")


def united(ranges: Iterable[Range]) -> list[Range]:
    """The same offsets in as few ranges as possible, in order.

    >>> united([(7, 9), (1, 2), (9, 10), (8, 9), (2, 2)])
    [(1, 2), (7, 10)]
    """
    found: list[Range] = []
    for first, following in sorted(ranges):
        if found and first <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], following))
        elif first < following:
            found.append((first, following))
    return found


def among(ranges: Sequence[Range], lines: Sequence[bytes], first: int) -> list[Range]:
    """Which of some lines, the first at that offset, are in the ranges, and blank.

    >>> among([(3, 6)], [b"a", b"", b"  ", b"b"], 3)
    [(4, 6)]
    """
    end = first + len(lines)
    wanted = [offset for low, high in ranges for offset in range(max(low, first), min(high, end))]
    return united((offset, offset + 1) for offset in wanted if not lines[offset - first].strip(b" "))


def told(
    ranges: Sequence[Range], data: bytes, first: int, following: int
) -> tuple[list[tuple[int, bytes]] | None, list[Range]]:
    """Lines with their offsets and which of them are lost, if any of the ranges is about them."""
    if not any(low < following and high > first for low, high in ranges):
        return None, []
    lines = data.split(b"\n")[:-1]
    return [(at, line) for at, line in enumerate(lines, first) if line.strip(b" ")], among(ranges, lines, first)
