"""Replacing a sealed segment and its index, which are two files, so that nobody is led astray between the two.

    BASE.index.next    the index of a segment that is about to take the place of BASE.jsonl or BASE.jsonl.zst

    the segment aside, synced ─▶ BASE.index.next ─▶ the segment renamed (─▶ its table of frames) ─▶ BASE.index.next
    becomes BASE.index

The renaming of the segment decides: before it BASE.index belongs to the segment, after it BASE.index.next does.
Which of the two is told by the length that an index names, for what is put in place is always shorter. A reader
that has the old files open goes on with them. Names are synced after each step, so a crash leaves a pair that fits.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path

from heliograph.disk import Disk
from heliograph.log import index, segments
from heliograph.log.index import Entry


def replace(
    directory: Path, base: int, suffix: str, temporary: str, entries: Sequence[Entry], frames: bytes, disk: Disk
) -> None:
    """Put a synced, shorter file in the place of a sealed segment, and these entries in that of its index."""
    coming = segments.path_of(directory, base, segments.NEXT_INDEX)
    disk.replace_file(coming, b"".join(index.encode(entry) for entry in entries))
    disk.rename(temporary, segments.path_of(directory, base, suffix))
    disk.sync_directory(directory)
    if frames:
        disk.replace_file(segments.path_of(directory, base, segments.FRAMES), frames, sync_names=False)
    disk.rename(coming, segments.path_of(directory, base, segments.INDEX))


def coming_index(directory: Path, base: int, size: int, disk: Disk) -> bytes | None:
    """The index that is not yet in its place though its segment is: one of a segment of this size."""
    try:
        data = disk.read_file(segments.path_of(directory, base, segments.NEXT_INDEX))
    except FileNotFoundError:
        return None
    entries = index.chain(data, base)
    whole = len(entries) * index.SIZE == len(data)
    return data if whole and entries and entries[-1].end == size else None


def settle(directory: Path, disk: Disk) -> None:
    """Finish (or forget) what somebody did not live to finish. Alone in the directory, or with upkeep kept away."""
    for name in disk.listdir(directory):
        if not name.endswith(segments.NEXT_INDEX) or not name[:20].isdecimal():
            continue
        base = int(name[:20])
        with contextlib.suppress(FileNotFoundError):
            if coming_index(directory, base, _size(directory, base, disk), disk) is None:
                disk.unlink(directory / name)
            else:
                disk.rename(directory / name, segments.path_of(directory, base, segments.INDEX))
            disk.sync_directory(directory)


def _size(directory: Path, base: int, disk: Disk) -> int:
    try:
        segment = segments.open_segment(directory, base, disk)  # which sees to its table of frames
    except FileNotFoundError:
        return -1
    with contextlib.closing(segment):
        return segment.size()
