"""How far channels are archived, for retention, which may wait for that.

``DATA/archived/CHANNEL.json`` is written by the archive pipeline, after what it says has become true.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from heliograph.disk import SYSTEM_DISK, explaining

if TYPE_CHECKING:
    from heliograph.engine.files import FilesEngine

DIRECTORY: Final = "archived"
READER: Final = "archive"
"""What retention calls it, beside the names of subscriptions."""


class Archived(msgspec.Struct, frozen=True, kw_only=True):
    """How far a channel is archived, and where."""

    archive: str
    incarnation: str
    positions: dict[str, int]
    time: float


_decode: Final = msgspec.json.Decoder(Archived).decode


def save(root: Path, channel: str, archived: Archived) -> None:
    """Write it down, durably."""
    with explaining(f"cannot note that '{channel}' is archived"):
        (root / DIRECTORY).mkdir(exist_ok=True)
        SYSTEM_DISK.replace_file(root / DIRECTORY / f"{channel}.json", msgspec.json.encode(archived) + b"\n")


def load(root: Path, channel: str) -> Archived | None:
    """What is known of a channel; None if it was never archived."""
    with contextlib.suppress(FileNotFoundError, msgspec.MsgspecError, UnicodeDecodeError):
        return _decode(SYSTEM_DISK.read_file(root / DIRECTORY / f"{channel}.json"))
    return None


def positions(engine: FilesEngine, channel: str, incarnation: str, partition: int, first: int) -> dict[str, int]:
    """How far the archive has come in a partition, for retention: ``first`` if it was not archived in this life."""
    found = load(engine.root, channel)
    if found is None or found.incarnation != incarnation:
        return {READER: first}
    return {READER: found.positions.get(str(partition), first)}
