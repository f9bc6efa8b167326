"""Lines that damage took and a repair made blank: whoever comes to them later is told all the same.

00000000000000000000.lost    [[40,41],[77,80]]: first and next offset of each range, beside the segment of that name

Other lines are blank because somebody redacted or compacted them, which is no loss. A line that is back, because an
intact segment was put in place again, is not lost, whatever stands here.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec

from heliograph.disk import Disk
from heliograph.errors import Damaged
from heliograph.log import segments

logger = logging.getLogger("heliograph.read")
Range = tuple[int, int]
_decode: Final = msgspec.json.Decoder(list[Range]).decode


def load(directory: Path, base: int, disk: Disk) -> list[Range]:
    """Which offsets of a segment a repair made blank. A damaged list is worth a word, and stops no reader."""
    try:
        return _read(segments.path_of(directory, base, segments.LOST), base, disk)
    except Damaged as error:
        logger.error("%s: nobody is told of lines that were lost there before", error)
        return []


def note(directory: Path, base: int, ranges: Iterable[Range], disk: Disk) -> None:
    """Add some, before their lines are made blank. Damaged, if the list is: it is not written over."""
    path = segments.path_of(directory, base, segments.LOST)
    known = _read(path, base, disk)
    found = united([*known, *ranges])
    if found != known:
        disk.replace_file(path, msgspec.json.encode(found) + b"\n")


def damaged(directory: Path, disk: Disk) -> Iterator[Path]:
    """The lists of a partition that cannot be read."""
    for name in sorted(disk.listdir(directory)):
        path = directory / name
        if path.suffix == segments.LOST and path.stem.isdigit():
            try:
                _read(path, int(path.stem), disk)
            except Damaged:
                yield path


def _read(path: Path, base: int, disk: Disk) -> list[Range]:
    try:
        found = _decode(disk.read_file(path))
    except FileNotFoundError:
        return []
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise Damaged(f"{path} cannot be read ({error}); 'helio verify --repair' sets it aside") from None
    if found != united(found) or (found and found[0][0] < base):
        raise Damaged(f"{path} holds no ranges of its segment; 'helio verify --repair' sets it aside")
    return found


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
