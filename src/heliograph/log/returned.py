"""Own lines that came back: which incarnations of this station have lines in a partition that it did not append itself.

    channels/alerts/0/returned.json    ["k3f9q2"]

A line published here knows its offset, which helps where damage has eaten newlines, and the mark of an atomic batch
says which of its neighbours belong to it. Neither holds for a line that this station once published, lost, and got
back from another: it stands where it arrived. Such lines belong to incarnations that have ended, so naming those
tells them apart.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Final

import msgspec

from heliograph.disk import SYSTEM_DISK, Disk

FILE: Final = "returned.json"
_decode = msgspec.json.Decoder(list[str]).decode


def load(directory: Path) -> frozenset[str]:
    """The incarnations; hardly ever any."""
    with contextlib.suppress(FileNotFoundError, msgspec.MsgspecError, UnicodeDecodeError):
        return frozenset(_decode(SYSTEM_DISK.read_file(directory / FILE)))
    return frozenset()


def note(directory: Path, incarnation: str, disk: Disk) -> None:
    """Say, durably, that lines of an own incarnation that has ended are about to be appended.

    The caller has synced what it appended itself: half an atomic batch of that incarnation would be kept from now on.
    """
    known = load(directory)
    if incarnation not in known:
        disk.replace_file(directory / FILE, msgspec.json.encode(sorted({*known, incarnation})))
