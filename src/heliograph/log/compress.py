"""Sealed segments as zstd: independent frames of at most 1 MiB, cut at index entries.

    BASE.jsonl.zst   frame, frame, …: `zstdgrep` and `zstd -dc` read it as one file
    BASE.frames      derived, 32 bytes per frame: Q position, Q length (uncompressed), Q position, Q length (stored)

The index keeps its uncompressed positions. The compressed file is written aside, read back and compared, synced,
and renamed; only then is the plain one removed. If both exist the compressed one wins if it is whole.
"""

from __future__ import annotations

import bisect
import contextlib
import mmap
import os
import struct
import sys
from pathlib import Path
from typing import Any, Final

from heliograph.disk import Disk
from heliograph.errors import Damaged
from heliograph.limits import COPY_BYTES, FRAME_BYTES_MAX
from heliograph.log import index, segments
from heliograph.log.index import Entry

Frames = list[tuple[int, int, int, int]]
_FRAME: Final = struct.Struct("<4Q")
_MAGIC: Final = b"\x28\xb5\x2f\xfd"


def _zstd() -> Any:
    if sys.version_info >= (3, 14):
        from compression import zstd
    else:
        from backports import zstd
    return zstd


class CompressedSegment:
    """Reads a compressed segment by uncompressed positions; keeps the frame it used last."""

    def __init__(self, directory: Path, base: int, disk: Disk) -> None:
        self.base = base
        self._disk = disk
        self.path = segments.path_of(directory, base, segments.COMPRESSED)
        self._fd = disk.open(self.path, os.O_RDONLY)
        self.inode = disk.fstat(self._fd).st_ino
        try:
            self._frames = self._load(segments.path_of(directory, base, segments.FRAMES))
        except BaseException:
            disk.close(self._fd)
            raise
        self._starts = [frame[0] for frame in self._frames]
        self._cached: tuple[int, bytes] = (-1, b"")

    def _load(self, path: Path) -> Frames:
        with contextlib.suppress(FileNotFoundError):
            data = self._disk.read_file(path)
            if len(data) % _FRAME.size == 0:
                frames = list(_FRAME.iter_unpack(data))
                if frames and _chained(frames, self._disk.fstat(self._fd).st_size) and self._ends_with(frames[-1]):
                    return frames
        entries: list[Entry] = []
        with contextlib.suppress(FileNotFoundError):
            entries = index.chain(self._disk.read_file(path.with_suffix(segments.INDEX)), self.base)
        frames = _walk(self._fd, self._disk, entries)
        with contextlib.suppress(OSError):
            if segments.in_place(self, self._disk):  # else it is the table of another file by now
                self._disk.replace_file(path, encode_frames(frames), sync_names=False)
        return frames

    def _ends_with(self, frame: tuple[int, int, int, int]) -> bool:
        """Whether the last frame is as long as the table says: no other one follows to contradict it."""
        _, length, at, stored = frame
        try:
            found = _zstd().get_frame_info(self._disk.read_range(self._fd, min(stored, 18), at)).decompressed_size
        except _zstd().ZstdError:
            return True  # damaged: the table knows better
        return found is None or found == length

    def size(self) -> int:
        return self._frames[-1][0] + self._frames[-1][1] if self._frames else 0

    def read(self, position: int, length: int) -> bytes:
        parts: list[bytes] = []
        number = bisect.bisect_right(self._starts, position) - 1
        while length > 0 and 0 <= number < len(self._frames):
            data = self._frame(number)
            start = position - self._frames[number][0]
            piece = data[start : start + length]
            if not piece:
                break
            parts.append(piece)
            position, length, number = position + len(piece), length - len(piece), number + 1
        return b"".join(parts)

    def _frame(self, number: int) -> bytes:
        if self._cached[0] != number:
            _, length, at, stored = self._frames[number]
            data = self._decompressed(at, stored) or b""  # what is damaged reads as zeros: line checksums report it
            self._cached = (number, data.ljust(length, b"\0")[:length])
        return self._cached[1]

    def _decompressed(self, at: int, stored: int) -> bytes | None:
        try:
            found: bytes = _zstd().decompress(self._disk.read_range(self._fd, stored, at))
        except _zstd().ZstdError:
            return None
        return found

    def whole(self) -> bool:
        """Whether every frame can be read."""
        found = [(length, self._decompressed(at, stored)) for _, length, at, stored in self._frames]
        return all(data is not None and len(data) == length for length, data in found)

    def close(self) -> None:
        if self._fd >= 0:
            self._disk.close(self._fd)
            self._fd = -1


def _chained(frames: Frames, size: int) -> bool:
    """Whether each frame begins where the one before it ends, and the last where the file does."""
    position = at = 0
    for frame in frames:
        if (frame[0], frame[2]) != (position, at):
            return False
        position, at = position + frame[1], at + frame[3]
    return at == size


def walk_frames(directory: Path, base: int, disk: Disk, entries: list[Entry]) -> Frames:
    """Where the frames of a compressed segment really are; a lost one keeps its place if the index knows it."""
    fd = disk.open(segments.path_of(directory, base, segments.COMPRESSED), os.O_RDONLY)
    try:
        return _walk(fd, disk, entries)
    finally:
        disk.close(fd)


def encode_frames(frames: Frames) -> bytes:
    return b"".join(_FRAME.pack(*frame) for frame in frames)


def _walk(fd: int, disk: Disk, entries: list[Entry]) -> Frames:
    if not disk.fstat(fd).st_size:
        return []
    with mmap.mmap(fd, 0, access=mmap.ACCESS_READ) as mapped:
        stored = _stored_frames(mapped)
    cuts = _cuts(entries)
    frames: Frames = []
    position = 0
    for number, (at, size, length) in enumerate(stored):
        if length < 0:
            length = cuts[number][1] - cuts[number][0] if len(cuts) == len(stored) else 0
        frames.append((position, length, at, size))
        position += length
    return frames


def _stored_frames(mapped: mmap.mmap) -> list[tuple[int, int, int]]:
    """Place, stored size and content size of every frame, from their headers alone; -1 for what is no frame."""
    zstd = _zstd()
    found: list[tuple[int, int, int]] = []
    with memoryview(mapped) as view:
        at = 0
        while at < len(view):
            size, length = _frame_at(zstd, view, at)
            if length < 0:
                behind = mapped.find(_MAGIC, at + 1)
                while behind > 0 and _frame_at(zstd, view, behind)[1] < 0:
                    behind = mapped.find(_MAGIC, behind + 1)
                size = (behind if behind > 0 else len(view)) - at
            found.append((at, size, length))
            at += size
    return found


def _frame_at(zstd: Any, view: memoryview, at: int) -> tuple[int, int]:
    with view[at:] as rest:
        try:
            size = zstd.get_frame_size(rest)
            length = zstd.get_frame_info(rest).decompressed_size
            return size, len(zstd.decompress(rest[:size])) if length is None else length
        except zstd.ZstdError:
            return 0, -1


def compress_segment(directory: Path, base: int, entries: list[Entry], disk: Disk, level: int = 3) -> int:
    """Compress a sealed segment whose index is verified; returns the bytes saved."""
    plain = segments.path_of(directory, base)
    target = segments.path_of(directory, base, segments.COMPRESSED)
    reader = segments.PlainSegment(directory, base, disk)
    temporary = f"{target}.tmp-{os.getpid()}"
    try:
        frames = write_frames(reader, entries, temporary, disk, level)
    except Exception:
        with contextlib.suppress(OSError):
            disk.unlink(temporary)
        raise
    finally:
        size = reader.size()
        reader.close()
    disk.replace_file(
        segments.path_of(directory, base, segments.FRAMES),
        encode_frames(frames),
        sync_names=False,
    )
    disk.rename(temporary, target)
    disk.sync_directory(directory)
    disk.unlink(plain)
    return size - disk.stat(target).st_size


def same_lines(directory: Path, base: int, disk: Disk) -> bool:
    """Whether the compressed form of a segment holds what the plain one does, byte for byte."""
    plain, compressed = segments.PlainSegment(directory, base, disk), CompressedSegment(directory, base, disk)
    with contextlib.closing(plain), contextlib.closing(compressed):
        size = plain.size()
        return compressed.size() == size and all(
            plain.read(at, COPY_BYTES) == compressed.read(at, COPY_BYTES) for at in range(0, size, COPY_BYTES)
        )


def write_frames(
    reader: segments.PlainSegment, entries: list[Entry], path: str, disk: Disk, level: int = 3
) -> list[tuple[int, int, int, int]]:
    """Write the lines of a segment as frames, each read back and compared; synced."""
    zstd = _zstd()
    frames: list[tuple[int, int, int, int]] = []
    fd = disk.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    try:
        at = 0
        for low, high in _cuts(entries):
            data = reader.read(low, high - low)
            stored = zstd.compress(data, level)
            disk.write_all(fd, stored)
            if disk.read_range(fd, len(stored), at) != stored or zstd.decompress(stored) != data:
                raise Damaged(f"{path} does not read back as it was written; the plain segment is kept")
            frames.append((low, high - low, at, len(stored)))
            at += len(stored)
        disk.fdatasync(fd)
    finally:
        disk.close(fd)
    return frames


def _cuts(entries: list[Entry]) -> list[tuple[int, int]]:
    """Byte ranges of whole entries, at most FRAME_BYTES_MAX each (a larger entry stands alone)."""
    cuts: list[tuple[int, int]] = []
    low = 0
    for entry in entries:
        if entry.end - low > FRAME_BYTES_MAX and entry.position > low:
            cuts.append((low, entry.position))
            low = entry.position
    if entries and entries[-1].end > low:
        cuts.append((low, entries[-1].end))
    return cuts
