"""compact.json: what compaction remembers. It may be lost: then everything is looked at again.

Apart from compaction itself, because readers ask it, too, and few directories are ever compacted.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Final

import msgspec

from heliograph.disk import Disk

STATE: Final = "compact.json"


class State(msgspec.Struct, frozen=True, kw_only=True):
    """compact.json: what need not be looked at again."""

    incarnation: str = ""
    cleaned: int = 0
    """Before this offset no sealed segment holds two messages of a key."""
    tombstone_us: int = 0
    """When the oldest tombstone that waits for its end was appended; 0: there is none."""
    skipped: list[int] = []
    """Segments that are damaged and were left alone."""
    emptied: tuple[int, int] = (0, 0)
    """Offsets, from and to, whose segments were deleted because they held nothing but empty lines."""


def load_state(directory: Path, incarnation: str, end: int, disk: Disk) -> State:
    """What is known of an earlier run; little if that was in another life of the channel, or cannot be."""
    found = load(directory, disk)
    if found.incarnation == incarnation and found.cleaned <= end:
        return found
    return State(incarnation=incarnation, emptied=found.emptied)


def load(directory: Path, disk: Disk) -> State:
    with contextlib.suppress(FileNotFoundError, msgspec.MsgspecError, UnicodeDecodeError):
        return msgspec.json.decode(disk.read_file(directory / STATE), type=State)
    return State()


def save(directory: Path, state: State, disk: Disk) -> None:
    disk.replace_file(directory / STATE, msgspec.json.encode(state))


def held_nothing(directory: Path, offset: int, first: int, disk: Disk) -> bool:
    """Whether what was deleted between an offset and the beginning of the log were empty lines only."""
    begin, end = load(directory, disk).emptied
    return begin <= offset and first <= end
