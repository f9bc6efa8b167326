"""Room behind the last line of a busy segment: bytes that are there before a line comes to stand in them.

Syncing what was appended writes the line, and then the file's new length and its new blocks, each where it belongs.
Syncing what was overwritten writes the line: that takes two thirds of the time for a message, and half for a hundred.
So whoever appends durably to a segment that has grown lays room behind what it wrote, with the same sync. It also lets
the kernel begin to write at once, and does what else is to be done before it waits for the rest. Whoever does not sync
lays room, too, and has it as memory: a line is then copied there, which takes a tenth of a call of the system. What is
in such memory is the file's and outlives the process, as what is written does::

    {"specversion":"1.0", … ,"crc":"9a1c03f7"}\\n\\r\\r\\r\\r\\r … \\r
    ─────────────────── written ────────────────▶             ▲
                                                 ─── room ────▶ the file's length, which is the head's word ROOM

Room is carriage returns. They are white space to JSON, a terminal shows nothing of them, and no line has any. Nothing
may be read behind ``written``, so nobody sees them but who looks at the file while it is written. Room is laid, filled
and taken away under the append lock; it is gone when its segment is sealed, and when nobody publishes any more.

It is of use where a file system overwrites in place. Others write elsewhere what is overwritten, which spares nothing.
"""

from __future__ import annotations

import sys
from typing import Final

from heliograph.limits import ROOM_AFTER_BYTES, ROOM_APPEND_BYTES_MAX, ROOM_BYTES_MIN
from heliograph.log.head import STORES_IN_ORDER

FILL: Final = b"\r"
IN_PLACE: Final = frozenset({"ext2", "ext3", "ext4", "xfs"})
"""File systems that overwrite in place."""
MAPPED: Final = frozenset({"ext4"})
"""Those on which memory that is a file's can be written to whatever happens: where blocks may be shared with a copy
(xfs, btrfs), such a write needs a new one, and a full disk then kills the process."""

_cloth = memoryview(b"")


def of_use(file_system: str, *, always: bool) -> bool:
    """Whether to lay room on such a file system: for those who sync, and for those who only write."""
    return file_system in IN_PLACE if always else file_system in MAPPED and STORES_IN_ORDER


def begins(most: int) -> int:
    """From how many written bytes on a segment is given room: never if it may have none."""
    return ROOM_AFTER_BYTES if most else sys.maxsize


def wanted(written: int, appended: int, most: int, segment_bytes: int) -> int:
    """How much room to lay behind what is written, when so much was just appended; 0 is none.

    As much as there is already, hence none for what is small. And none for whoever appends much at once: that would
    be filled at once, and everything written twice for nothing.

    >>> wanted(1_000_000, 350, most=1 << 20, segment_bytes=64 << 20), wanted(40_000, 350, 1 << 20, 64 << 20)
    (1000000, 0)
    >>> wanted(64 << 20, 350, 1 << 20, (64 << 20) + 20_000), wanted(1_000_000, 2_000_000, 1 << 20, 64 << 20)
    (20000, 0)
    """
    if written < ROOM_AFTER_BYTES or appended > ROOM_APPEND_BYTES_MAX:
        return 0
    size = min(written, most, segment_bytes - written)
    return size if size >= ROOM_BYTES_MIN else 0


def cloth(size: int) -> memoryview:
    """So much room. The largest one that was ever asked for is kept: it is the same for all."""
    global _cloth
    if len(_cloth) < size:
        _cloth = memoryview(FILL * size)
    return _cloth[:size]


def nothing_else(behind: bytes) -> bool:
    """Whether bytes are nothing but room.

    >>> nothing_else(b""), nothing_else(b"\\r\\r"), nothing_else(b"\\r\\n")
    (True, True, False)
    """
    return not behind.strip(FILL)
