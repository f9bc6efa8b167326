"""The head of a log: where it ends, in memory shared by every process.

The file is 4096 bytes, written once with zeros (a sparse page on a full disk would be SIGBUS), never truncated
and never replaced while a station is open::

    0    8s  magic b"HELIOHD1"
    8   16s  boot id, and
    24   Q   inode of this file: if either differs, nothing below is trusted
    64   Q   sequence: odd while the fields are being written
    72       the fields in the order of ``Fields``, 8 bytes each: first what every append moves
    208  I   crc32c of the fields (0 where the machine does not need it, see below)
    512  Q   news wanted until (monotonic ns): a reader in some process waits
    520  Q   lock wanted: 1 if a process waits for the append lock to append once, 2 if it wants a turn, 3 if it
             would rather hand its messages in (tray.py), or when (monotonic ns) the holder's own turn ends
    528  Q   process id of the lock's holder, 0 when it was given back: a process that finds another one here
             after getting the lock knows that the holder died, and looks at the end of the log
    536  Q   the time of change (ns) that the directory had when it was last looked through and in order
    544  Q   the length of the active segment's file, if room was laid behind what is written (room.py), else 0 or
             less than that. Written and read under the append lock only
    552  Q   process id of the lock's holder while it takes messages from the tray, else 0
    1024     16 pairs of Q, places where readers say that they wait (news.py): whose it is, and until when

The fields are written under the append lock only. They are read without it: the sequence detects a tear where
stores become visible in order (x86), the checksum where they do not (ARM). An append that comes alone moves the first
three and leaves the rest to whoever frees the lock (Partition.append_one).
"""

from __future__ import annotations

import errno
import mmap
import os
import struct
from pathlib import Path
from typing import Final, NamedTuple

import google_crc32c

from heliograph.disk import Disk
from heliograph.limits import HEAD_READ_TRIES

SIZE: Final = 4096
MAGIC: Final = b"HELIOHD1"
FENCED: Final = 1
DELETED: Final = 2

_IDENTITY: Final = struct.Struct("<8s16sQ")
_FIELDS: Final = struct.Struct("@17Q")  # of this machine, as the rest of the memory it shares
_MOVING: Final = struct.Struct("@3Q")
_AT: Final = 64
FIELDS_AT: Final = _AT + 8
_SUM_AT: Final = FIELDS_AT + _FIELDS.size
_END: Final = _SUM_AT + 4
STORES_IN_ORDER: Final = os.uname().machine in ("x86_64", "amd64", "i686")
NEWS_WANTED: Final = 512 // 8
LOCK_WANTED: Final = 520 // 8
LOCK_HOLDER: Final = 528 // 8
LOOKED_THROUGH: Final = 536 // 8
ROOM: Final = 544 // 8
SERVED_BY: Final = 552 // 8
NEWS_PLACES: Final = 1024 // 8
NEWS_PLACES_END: Final = NEWS_PLACES + 2 * 16
INODE: Final = 24 // 8
SEQUENCE: Final = _AT // 8
STATE: Final = (_SUM_AT - 8) // 8

_crc = google_crc32c.value


class Limit(NamedTuple):
    """How far readers may go, with what is needed to check it."""

    first: int  # smallest offset that is left
    next: int  # the offset after the last that may be read
    base: int  # the active segment,
    end: int  # how many of its bytes,
    crc: int  # and their checksum
    append_us: int
    state: int = 0


class Fields(NamedTuple):
    """What the head says, in the order in which it is stored."""

    # moved by every append
    next: int = 0  # the offset that the next message gets
    written: int = 0  # bytes of the active segment that are written
    crc: int = 0  # crc32c of the active segment up to `written`
    # up to date whenever the lock is free
    append_us: int = 0  # time of the last append; never goes back
    peak_us: int = 0  # largest event time in the log so far
    open_first: int = 0  # the index entry being collected: its first offset,
    open_position: int = 0  # its place in the segment,
    open_min_us: int = 0  # its smallest
    open_max_us: int = 0  # and largest event time
    index_count: int = 0  # entries in the active segment's index
    base: int = 0  # first offset of the active segment, which is its name
    synced: int = 0  # bytes of it that are known to be on disk
    synced_next: int = 0  # the offset that belongs to `synced`
    synced_crc: int = 0  # crc32c of the active segment up to `synced`
    first: int = 0  # the smallest offset that retention has left
    created_us: int = 0  # when the active segment was begun
    state: int = 0  # generation (counts changes of channel.json) * 256 + flags

    @property
    def flags(self) -> int:
        """FENCED, DELETED."""
        return self.state & 0xFF

    @property
    def generation(self) -> int:
        return self.state >> 8

    def limit(self, *, synced: bool) -> Limit:
        """How far readers may go."""
        following, end, crc = (
            (self.synced_next, self.synced, self.synced_crc) if synced else (self.next, self.written, self.crc)
        )
        return Limit(self.first, following, self.base, end, crc, self.append_us, self.state)


def _word(field: str) -> int:
    return FIELDS_AT // 8 + Fields._fields.index(field)


_FIRST: Final = _word("first")
_BASE: Final = _word("base")
_APPEND_US: Final = _word("append_us")
_WRITTEN: Final = (_word("next"), _word("written"), _word("crc"))
_SYNCED: Final = (_word("synced_next"), _word("synced"), _word("synced_crc"))


def _seal(mapped: mmap.mmap) -> None:
    mapped[_SUM_AT:_END] = _crc(mapped[FIELDS_AT:_SUM_AT]).to_bytes(4, "little")


def _pack_and_seal(mapped: mmap.mmap, at: int, following: int, written: int, crc: int) -> None:
    _MOVING.pack_into(mapped, at, following, written, crc)
    _seal(mapped)


pack_moving = _MOVING.pack_into if STORES_IN_ORDER else _pack_and_seal
"""Write what every append moves. The sequence is made odd before, and even afterwards: packing writes zeros first."""


class TornHead(Exception):
    """The fields cannot be read: their writer died in the middle, or is very slow."""


class Head:
    """One mapped head file."""

    __slots__ = ("map", "path", "words")

    def __init__(self, path: Path, disk: Disk, *, writable: bool = True) -> None:
        self.path = path
        fd = disk.open(path, os.O_RDWR if writable else os.O_RDONLY)
        try:
            if disk.fstat(fd).st_size < SIZE:
                raise TornHead(f"{path} is shorter than {SIZE} bytes")
            access = mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ
            self.map = mmap.mmap(fd, SIZE, access=access)
        finally:
            disk.close(fd)
        self.words = memoryview(self.map).cast("Q")

    @staticmethod
    def create(path: Path, disk: Disk, boot: bytes, fields: Fields) -> None:
        """Write a head file anew, in place if there is one: its inode may be mapped elsewhere."""
        fd = disk.open(path, os.O_RDWR | os.O_CREAT)
        try:
            identity = _IDENTITY.pack(MAGIC, boot, disk.fstat(fd).st_ino)
            packed = _FIELDS.pack(*fields)
            page = identity.ljust(FIELDS_AT, b"\0") + packed + _crc(packed).to_bytes(4, "little")
            if disk.pwrite(fd, page.ljust(SIZE, b"\0"), 0) != SIZE:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        finally:
            disk.close(fd)

    def trusted(self, boot: bytes, disk: Disk) -> bool:
        """Whether this head was written since the last boot, in this very file."""
        magic, wrote_boot, inode = _IDENTITY.unpack_from(self.map, 0)
        return bool(magic == MAGIC and wrote_boot == boot and inode == disk.stat(self.path).st_ino)

    @staticmethod
    def copied(path: Path, disk: Disk) -> bool:
        """Whether the file is a copy of the head that was written here, or elsewhere."""
        try:
            fd = disk.open(path, os.O_RDONLY)
        except FileNotFoundError:
            return False
        try:
            data = disk.pread(fd, _IDENTITY.size, 0)
            if len(data) < _IDENTITY.size:
                return False
            magic, _, inode = _IDENTITY.unpack(data)
            return bool(magic == MAGIC and inode != disk.fstat(fd).st_ino)
        finally:
            disk.close(fd)

    def load(self) -> Fields:
        """Read a consistent set of fields."""
        words, mapped = self.words, self.map
        for _ in range(HEAD_READ_TRIES):
            before = words[SEQUENCE]
            data = mapped[FIELDS_AT:_END]
            if before & 1 or before != words[SEQUENCE]:
                continue
            if STORES_IN_ORDER or _crc(data[:-4]) == int.from_bytes(data[-4:], "little"):
                return Fields._make(_FIELDS.unpack_from(data))
        raise TornHead(f"{self.path} stays inconsistent: its writer died in the middle of an update")

    def limit(self, *, synced: bool) -> Limit | None:
        """How far readers may go, in as few steps as possible; None if a writer is met: then ``load`` has to tell."""
        words = self.words
        before = words[SEQUENCE]
        if before & 1 or not STORES_IN_ORDER:
            return None
        following, end, crc = _SYNCED if synced else _WRITTEN
        found = Limit(
            words[_FIRST], words[following], words[_BASE], words[end], words[crc], words[_APPEND_US], words[STATE]
        )
        return found if before == words[SEQUENCE] else None

    def last_append(self) -> tuple[int, int] | None:
        """The last line and when it was appended; None while somebody holds the lock, who may not have said it yet."""
        before = self.words[SEQUENCE]
        try:
            fields = self.load()
        except TornHead:
            return None
        if self.words[LOCK_HOLDER] or self.words[SEQUENCE] != before:  # in this order: who frees it stores first
            return None
        return fields.next - 1, fields.append_us

    def state(self) -> int:
        """The last field as it stands, though the head be torn."""
        return self.words[STATE]

    def store(self, *fields: int) -> None:
        """Write the fields. Only with the append lock held."""
        words = self.words
        sequence = words[SEQUENCE] | 1  # a dead writer may have left it odd
        words[SEQUENCE] = sequence
        _FIELDS.pack_into(self.map, FIELDS_AT, *fields)
        if not STORES_IN_ORDER:
            _seal(self.map)
        words[SEQUENCE] = sequence + 1

    def close(self) -> None:
        self.words.release()
        self.map.close()
