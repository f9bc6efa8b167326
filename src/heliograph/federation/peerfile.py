"""What a station remembers of one peer and one channel: ``DATA/links/KIND/PEER/CHANNEL.json``.

    {"incarnation":"k3f9q2","positions":{"0":41},"spared":{"host1.k3f9q2":{"0":[[17,18]]}},"time":"2026-11-16T05:30:00Z"}

``positions``: how far the peer has acknowledged, by partition. ``spared``: what it is never sent, because it refused
that, or wanted nothing from before its start. ``again``: of what it refused, what it is sent once more. A position may
be old: what the peer has already is recognised there.
"""

from __future__ import annotations

import contextlib
import logging
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from heliograph.disk import Disk, make_below
from heliograph.names import check_name
from heliograph.seen import SeenSet
from heliograph.station import links
from heliograph.station.links import LinkKind

if TYPE_CHECKING:
    from heliograph.station import Station

logger = logging.getLogger("heliograph.links")
KINDS: Final[tuple[LinkKind, ...]] = ("hub", "peer")
_SUFFIX: Final = ".json"
_FIRST: Final = "first-here"


class _Kept(msgspec.Struct, kw_only=True):
    incarnation: str
    positions: dict[str, int]
    spared: dict[str, dict[str, list[list[int]]]] = {}
    again: dict[str, dict[str, list[list[int]]]] = {}
    time: datetime


_decode = msgspec.json.Decoder(_Kept).decode
_encode = msgspec.json.Encoder().encode


class Memory(msgspec.Struct, kw_only=True):
    """One such file."""

    incarnation: str
    positions: dict[int, int]
    spared: SeenSet
    again: SeenSet = msgspec.field(default_factory=SeenSet)
    time: datetime


def directory_of(root: Path, kind: LinkKind, peer: str) -> Path:
    """Where the files of a peer are."""
    return root / links.DIRECTORY / kind / check_name(peer, "station")


def load(directory: Path, channel: str, disk: Disk) -> Memory | None:
    """What is remembered; None if there is nothing. What cannot be read means: send everything, it is recognised."""
    path = directory / (check_name(channel) + _SUFFIX)
    try:
        kept = _decode(disk.read_file(path))
        positions = {int(partition): offset for partition, offset in kept.positions.items()}
        return Memory(
            incarnation=kept.incarnation,
            positions=positions,
            spared=SeenSet.from_json(kept.spared),
            again=SeenSet.from_json(kept.again),
            time=kept.time,
        )
    except FileNotFoundError:
        return None
    except (msgspec.MsgspecError, ValueError) as error:
        logger.error("%s cannot be read (%s): channel '%s' is sent from its beginning", path, error, channel)
        return Memory(incarnation="", positions={}, spared=SeenSet(), time=datetime.fromtimestamp(0, UTC))


def acknowledged(station: Station, peer: str, channel: str) -> dict[int, int]:
    """How far a peer has acknowledged a channel, by partition, whoever dials whom."""
    found: dict[int, int] = {}
    for kind in KINDS:
        memory = load(directory_of(station.path, kind, peer), channel, station.engine.disk)
        for number, position in memory.positions.items() if memory is not None else ():
            found[number] = max(position, found.get(number, 0))
    return found


def encode(memory: Memory) -> bytes:
    """What is written down."""
    kept = _Kept(
        incarnation=memory.incarnation,
        positions={str(partition): offset for partition, offset in sorted(memory.positions.items())},
        spared=memory.spared.to_json(),
        again=memory.again.to_json(),
        time=memory.time,
    )
    return _encode(kept) + b"\n"


def save(directory: Path, channel: str, data: bytes, disk: Disk) -> None:
    """Durable when it returns."""
    _make(directory, disk)
    disk.replace_file(directory / (channel + _SUFFIX), data)


def _make(directory: Path, disk: Disk) -> None:
    if not directory.exists():
        make_below(directory.parents[2], directory)  # links, its kind, its name
        for made in (directory.parent, directory.parent.parent):
            disk.sync_directory(made)


def first_here(directory: Path, now: datetime, disk: Disk) -> datetime:
    """When the peer was connected for the first time: now, if nobody knows."""
    path = directory / _FIRST
    try:
        return datetime.fromisoformat(disk.read_file(path).decode())
    except (FileNotFoundError, ValueError):
        _make(directory, disk)
        disk.replace_file(path, now.isoformat().encode())
        return now


def here(directory: Path, disk: Disk) -> None:
    """The peer is, or was until now, connected."""
    _make(directory, disk)
    disk.replace_file(directory / links.LAST_FILE, b"", sync_names=False)


def note_wanted(directory: Path, wanted: list[str], disk: Disk) -> None:
    """Which channels a peer asks for: retention waits for it in no other."""
    if wanted != links.wanted(directory, disk):
        _make(directory, disk)
        disk.replace_file(directory / links.WANTED_FILE, _encode(wanted))


def note_address(directory: Path, address: str, disk: Disk) -> None:
    """By which address of the configuration a hub is dialled: retention waits for it as long as that is there.

    No other hub is dialled by it any more: what that one has does not say what this one has.
    """
    _make(directory, disk)
    disk.replace_file(directory / links.ADDRESS_FILE, address.encode())
    for other in disk.listdir(directory.parent):
        file = directory.parent / other / links.ADDRESS_FILE
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            if other != directory.name and disk.read_file(file) == address.encode():
                disk.unlink(file)
