"""Messages that a peer refused and is to be sent once more: replayed dead letters.

Whoever replays asks with a file, ``DATA/links/KIND/PEER/CHANNEL.again``, and whoever runs the links takes it: that may
be another process, and more may be asked for in that moment. So it gets another name first, ``CHANNEL.taken``, until it
is remembered elsewhere. The original line is sent from where it stands in the log.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

import msgspec

from heliograph.disk import Disk
from heliograph.federation import peerfile
from heliograph.names import check_name
from heliograph.seen import SeenSet
from heliograph.station import links

if TYPE_CHECKING:
    from heliograph.station import Station

SUFFIX: Final = ".again"
TAKEN: Final = ".taken"
Asked: TypeAlias = dict[Path, list[str]]


def possible(station: Station, peer: str, channel: str) -> bool:
    """Whether a peer was ever sent something of a channel, and is to be sent more of it."""
    return bool(_known(station, peer, channel))


def ask(station: Station, peer: str, channel: str, wanted: SeenSet) -> bool:
    """Have messages sent to a peer once more. False if that channel is not sent to it, or nothing ever was."""
    disk, known = station.engine.disk, _known(station, peer, channel)
    for directory in known:
        both = wanted.union(load(directory, channel, disk))
        disk.replace_file(directory / (check_name(channel) + SUFFIX), msgspec.json.encode(both.to_json()))
    if known:
        station.engine.channel_news.tell()  # whoever runs the links looks around
    return bool(known)


def _known(station: Station, peer: str, channel: str) -> list[Path]:
    """Where something is remembered of a peer and a channel that is sent to it, whoever dials whom."""
    sent = [kind for kind in peerfile.KINDS if links.sends(station.engine, kind, peer, channel)]
    found = [peerfile.directory_of(station.path, kind, peer) for kind in sent]
    return [directory for directory in found if peerfile.load(directory, channel, station.engine.disk) is not None]


def load(directory: Path, channel: str, disk: Disk, suffix: str = SUFFIX) -> SeenSet:
    """What was asked for."""
    with contextlib.suppress(FileNotFoundError, msgspec.MsgspecError, ValueError):
        return SeenSet.from_json(msgspec.json.decode(disk.read_file(directory / (check_name(channel) + suffix))))
    return SeenSet()


def take(directory: Path, channel: str, disk: Disk) -> Iterator[SeenSet]:
    """What was asked for, one after the other: each is to be remembered elsewhere before the next is taken."""
    taken, asked = [directory / (check_name(channel) + suffix) for suffix in (TAKEN, SUFFIX)]
    with contextlib.suppress(FileNotFoundError):
        for before in (taken, asked):  # whoever took the first may have died before it was remembered
            if before is asked:
                disk.rename(asked, taken)
            yield load(directory, channel, disk, TAKEN)
            with contextlib.suppress(FileNotFoundError):
                disk.unlink(taken)


def asked(root: Path, disk: Disk) -> Asked:
    """By the directory of a peer, the channels of which something was asked for: one look for all links."""
    found: Asked = {}
    for kind in peerfile.KINDS:
        above = root / links.DIRECTORY / kind
        for directory in [above / peer for peer in (disk.listdir(above) if above.is_dir() else [])]:
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):  # forgotten meanwhile, or no peer at all
                names = [name.removesuffix(SUFFIX) for name in disk.listdir(directory) if name.endswith(SUFFIX)]
                if names:
                    found[directory] = names
    return found
