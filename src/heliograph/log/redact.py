"""Taking messages out of a log for good: their lines become blank, everything else stays where it is.

Offsets are line numbers for ever, so a redacted line is overwritten with spaces, in place: no byte of the
segment moves and readers in the middle are not disturbed. What is to be blanked is written down and synced
first (``redact.json`` in the partition), so that a crash in the middle is finished by the next to open it.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import msgspec

from heliograph.disk import Disk
from heliograph.log import index, indexing, lines, segments, swap
from heliograph.log.partition import Partition

INTENT = "redact.json"


class Intent(msgspec.Struct):
    """Offsets that are being blanked."""

    offsets: list[int]


def redact(partition: Partition, offsets: list[int], disk: Disk) -> None:
    """Blank the lines at these offsets. The active segment is sealed first if it holds one of them."""
    with partition.mutex, partition.locked():
        if any(offset >= partition.base for offset in offsets) and partition.written:
            partition.seal()
        finish(partition.place, disk)  # what somebody wrote down before and did not live to do
        disk.replace_file(partition.place.directory / INTENT, msgspec.json.encode(Intent(sorted(offsets))))
        finish(partition.place, disk)
        partition.next_generation()  # other processes forget what they decoded


def finish(place: indexing.Place, disk: Disk) -> bool:
    """Carry out a written intent; whether there was one. Alone in the partition, or under its lock."""
    path = place.directory / INTENT
    swap.settle(place.directory, disk)  # an index that waits for its place would not fit what is blanked here
    try:
        intent = msgspec.json.decode(disk.read_file(path), type=Intent)
    except FileNotFoundError:
        return False
    except (msgspec.MsgspecError, UnicodeDecodeError):
        intent = Intent([])  # replace_file is atomic: this is not ours
    known = segments.bases(place.directory, disk)
    by_segment: dict[int, list[int]] = {}
    for offset in intent.offsets:
        fitting = [base for base in known if base <= offset]
        if fitting:
            by_segment.setdefault(fitting[-1], []).append(offset)
    for base, wanted in by_segment.items():
        _blank(place, base, wanted, disk)
    disk.unlink(path)
    disk.sync_directory(place.directory)
    return True


def _blank(place: indexing.Place, base: int, offsets: list[int], disk: Disk) -> None:
    _clear_leftovers(place.directory, base, disk)
    was_compressed = segments.path_of(place.directory, base, segments.COMPRESSED).exists()
    if was_compressed:
        _decompress(place.directory, base, disk)
    spans = _spans(disk.read_file(segments.path_of(place.directory, base)), place, base, set(offsets), disk)
    fd = disk.open(segments.path_of(place.directory, base), os.O_WRONLY)
    try:
        for position, length in spans:
            disk.pwrite(fd, b" " * length, position)
        disk.fdatasync(fd)
    finally:
        disk.close(fd)
    entries = reindex(place, base, disk)
    if was_compressed:
        from heliograph.log.compress import compress_segment

        compress_segment(place.directory, base, entries, disk)


def _clear_leftovers(directory: Path, base: int, disk: Disk) -> None:
    """What a compression left that was killed holds the same lines; nobody compresses now."""
    for name in disk.listdir(directory):
        if name.startswith(f"{base:020d}{segments.PLAIN}") and ".tmp-" in name:
            with contextlib.suppress(FileNotFoundError):
                disk.unlink(directory / name)


def _spans(data: bytes, place: indexing.Place, base: int, offsets: set[int], disk: Disk) -> list[tuple[int, int]]:
    """Position and length of lines. Those that damage (or a crash while blanking) reached are taken whole."""
    later = [known for known in segments.bases(place.directory, disk) if known > base]
    found = lines.sort_out(data, base, place.home(), later[0] if later else None)
    stretches = [
        (first, following, piece) for first, following, damaged in found.missing for piece in damaged.split(b"\n")
    ]
    stretches += [(offset, offset + 1, line) for offset, line in found.lines]
    spans: list[tuple[int, int]] = []
    at = 0
    for first, following, piece in sorted(stretches, key=lambda one: one[0]):  # damaged ones first: as they lie there
        at = data.index(piece, at)  # from there on: something before it may hold the same bytes
        if piece and not offsets.isdisjoint(range(first, following)):
            spans.append((at, len(piece)))
        at += len(piece)
    return spans


def _decompress(directory: Path, base: int, disk: Disk) -> None:
    from heliograph.log.compress import CompressedSegment  # not when a partition is opened, which looks in here, too

    reader = CompressedSegment(directory, base, disk)
    plain = segments.path_of(directory, base)
    try:
        disk.replace_file(plain, reader.read(0, reader.size()))
    finally:
        reader.close()
    disk.unlink(segments.path_of(directory, base, segments.COMPRESSED))
    with contextlib.suppress(FileNotFoundError):
        disk.unlink(segments.path_of(directory, base, segments.FRAMES))


def reindex(place: indexing.Place, base: int, disk: Disk) -> list[index.Entry]:
    """Write a sealed segment's index anew, keeping the append times that the old one knows."""
    path = segments.path_of(place.directory, base, segments.INDEX)
    old: list[index.Entry] = []
    with contextlib.suppress(FileNotFoundError):
        old = index.chain(disk.read_file(path), base)
    segment = segments.open_segment(place.directory, base, disk)
    try:
        if old and old[-1].end == segment.size():
            entries, crc, home = [], 0, place.home()
            for entry in old:
                data = segment.read(entry.position, entry.length)
                found = lines.sort_out(data, entry.first, home, entry.next)
                # What is damaged stays damaged: a checksum that its bytes do not have makes readers look closer.
                crc = indexing.extend(crc, data) ^ (1 if found.missing else 0)
                entries.append(entry._replace(crc=crc))
        else:
            entries = indexing.build_index(segment, place, disk)
    finally:
        segment.close()
    disk.replace_file(path, b"".join(index.encode(entry) for entry in entries), sync_names=False)
    return entries
