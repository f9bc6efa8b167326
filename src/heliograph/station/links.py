"""What is to be seen of a station's links, from any process that has its directory open.

Whoever runs the links holds ``DATA/links/lock`` and writes ``DATA/links/state.json``, once a second while something
changes. Without a holder the file says how it was.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Collection, Iterable, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

import msgspec

from heliograph.disk import Disk
from heliograph.log.locks import FileLock
from heliograph.names import REPLY
from heliograph.patterns import Pattern, is_pattern

if TYPE_CHECKING:
    from heliograph.config import Config
    from heliograph.engine.files import FilesEngine

logger = logging.getLogger("heliograph.links")
LinkKind = Literal["hub", "peer", "client"]
LinkState = Literal["up", "connecting", "waiting", "refused", "absent", "stopped"]

DIRECTORY: Final = "links"
STATE_FILE: Final = "state.json"
CONFIGURED_FILE: Final = "configured.json"
LOCK_FILE: Final = "lock"
ADDRESS_FILE: Final = "address"
WANTED_FILE: Final = "wanted"
_TOLD_MAX: Final = 3
LAST_FILE: Final = "last-here"


class LinkSync(msgspec.Struct, frozen=True, kw_only=True):
    """The last time that the channels of a link's ``sync`` were compared."""

    time: datetime
    """When that was done."""
    channels: int = 0
    """How many there were."""
    fetched: int = 0
    """How many messages this station lacked and got."""
    sent: int = 0
    """How many the other one lacked and got."""
    left: dict[str, str] = {}
    """Channels that are not equal all the same, and why."""
    error: str = ""
    """What went wrong; it is done again half a minute later, or with the next connection."""


class LinkInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One link as it is now: to a hub that this station dials, or from a peer that dials this one."""

    name: str
    """The other station, by its certificate; empty before a hub was reached for the first time."""
    kind: LinkKind
    """``hub``: this station dials it. ``peer``: it dials this station. ``client``: so does it, and keeps no log."""
    address: str
    state: LinkState
    """``up``; ``connecting``; ``waiting`` until the next try; ``refused`` by one side, also waiting; ``absent``:
    a peer that is not here; ``stopped``: no process runs the links."""
    since: datetime
    """When this state began."""
    channels: list[str] = []
    """The channels that are sent or arrive now."""
    lag_messages: int = 0
    """How many messages the other side has not acknowledged yet."""
    lag_s: float = 0.0
    """How long the oldest of them has been waiting."""
    in_flight_bytes: int = 0
    """What is on its way in either direction and not acknowledged."""
    round_trip_ms: float = 0.0
    reconnects: int = 0
    """How often the link was made again since the links were started."""
    refused: int = 0
    """How many messages the other side refused since then; they are among the dead letters."""
    parked: dict[str, str] = {}
    """Channels that stand still, and why."""
    waiting: list[str] = []
    """Channels that are to be sent and do not flow: they are parked, or one of the sides looks what it has of them."""
    certificate_days_left: float | None = None
    """Of the other side's certificate."""
    error: str = ""
    """What went wrong last; empty when all is well."""
    held_bytes: int = 0
    """What retention would have deleted by now, and keeps because the other side does not have it."""
    synced: LinkSync | None = None
    """How the last sync went, of a link to a hub that has one configured."""


class LifetimeInfo(msgspec.Struct, frozen=True, kw_only=True):
    """How long one of a station's TLS files is still good."""

    what: str
    """``certificate``, ``ca`` or ``crl``."""
    name: str
    """Whose it is."""
    path: str
    """Its file."""
    fingerprint: str
    """SHA-256; of a revocation list its number."""
    not_after: datetime
    """When it ends."""
    days_left: float
    """Until then; negative once it has ended."""
    status: Literal["ok", "warn", "bad"]
    """``warn``: it ends soon. ``bad``: it has ended, or has not begun."""


class LinksState(msgspec.Struct, frozen=True, kw_only=True):
    """state.json."""

    pid: int
    time: datetime
    links: list[LinkInfo] = []
    certificates: list[LifetimeInfo] = []
    """The station's own certificate, CAs and revocation lists."""


_decode = msgspec.json.Decoder(LinksState).decode
_encode = msgspec.json.Encoder().encode


def save(root: Path, state: LinksState, disk: Disk) -> None:
    """Write the file. It is looked at, not relied on: nothing is synced."""
    path = root / DIRECTORY / STATE_FILE
    temporary = path.with_name(f"{STATE_FILE}.tmp-{os.getpid()}")
    fd = disk.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        disk.write_all(fd, _encode(state) + b"\n")
    finally:
        disk.close(fd)
    disk.rename(temporary, path)


def load(root: Path, disk: Disk) -> list[LinkInfo]:
    """Every link as its process last said; ``stopped`` if no process runs them."""
    directory = root / DIRECTORY
    try:
        state = _decode(disk.read_file(directory / STATE_FILE))
    except (FileNotFoundError, msgspec.MsgspecError, UnicodeDecodeError):
        return []
    if not running(root, disk):
        return [
            msgspec.structs.replace(link, state="stopped", since=max(link.since, state.time), in_flight_bytes=0)
            for link in state.links
        ]
    return state.links


def certificates(root: Path, disk: Disk, now: datetime) -> list[LifetimeInfo]:
    """The TLS files of whoever runs the links, or ran them last, and how long they are good from now on."""
    try:
        state = _decode(disk.read_file(root / DIRECTORY / STATE_FILE))
    except (FileNotFoundError, msgspec.MsgspecError, UnicodeDecodeError):
        return []
    found = []
    for one in state.certificates:
        left = (one.not_after - now) / timedelta(days=1)
        found.append(msgspec.structs.replace(one, days_left=round(left, 2), status="bad" if left < 0 else one.status))
    return found


class Configured(msgspec.Struct, kw_only=True):
    """configured.json: for whom retention waits, also in processes that do not have that configuration."""

    hubs: dict[str, list[str]] = {}
    """By address: what is sent there."""
    forget_after_s: float = 0.0
    """How long a peer is waited for that is not here; 0 is for ever."""
    peers: dict[str, list[str]] = {}
    """What each peer may be sent, if it asks for it."""


_configured = msgspec.json.Decoder(Configured).decode


def configured(config: Config) -> Configured:
    """What a configuration says."""
    return Configured(
        hubs={link.hub: list(link.publish) for link in config.links}, forget_after_s=config.hub.forget_after_s,
        peers={peer.name: list(peer.subscribe) for peer in config.hub.peers},
    )  # fmt: skip


def note_configured(root: Path, config: Config, disk: Disk) -> None:
    """Have all processes know what whoever runs the links does. Durable."""
    try:
        disk.replace_file(root / DIRECTORY / CONFIGURED_FILE, _encode(configured(config)) + b"\n")
    except OSError as error:
        logger.warning("what links send cannot be written down, so other processes may not wait for them: %s", error)


def forget_configured(root: Path, disk: Disk) -> None:
    """There are no links any more, unless somebody runs some."""
    path = root / DIRECTORY / CONFIGURED_FILE
    if path.exists() and not running(root, disk):
        disk.unlink(path)


def _waited_for(engine: FilesEngine) -> Configured:
    """What whoever runs the links says. If nobody does: that, and what is known here, for waiting loses nothing."""
    own = configured(engine.config)
    try:
        noted = _configured(engine.disk.read_file(engine.root / DIRECTORY / CONFIGURED_FILE))
    except (FileNotFoundError, msgspec.MsgspecError, UnicodeDecodeError):
        return own
    if running(engine.root, engine.disk):
        return noted
    for address, texts in own.hubs.items():
        noted.hubs[address] = [*noted.hubs.get(address, ()), *texts]
    for name, texts in own.peers.items():
        noted.peers[name] = [*noted.peers.get(name, ()), *texts]
    both = (own.forget_after_s, noted.forget_after_s)
    noted.forget_after_s = max(both) if all(both) else 0.0
    return noted


class _Kept(msgspec.Struct):
    incarnation: str
    positions: dict[str, int]
    time: datetime


_kept = msgspec.json.Decoder(_Kept).decode


def positions(engine: FilesEngine, channel: str, partition: int, first: int) -> dict[str, int]:
    """How far the other ends of links have come in a channel: for retention, which may wait for them.

    A hub counts as long as the configuration sends it the channel; one that was never reached stands at ``first``, as
    does one whose position is of a former life of the channel. A peer counts until the hub would forget it, in channels
    that it asked for when it was here last; of one that was made since it has had nothing.
    """
    waited_for = _waited_for(engine)
    found: dict[str, int] = {}
    hubs = {hub for hub, texts in waited_for.hubs.items() if _among(texts, channel)}
    reached: set[str] = set()
    now, patience = engine.clock.time_ns() / 1e9, waited_for.forget_after_s
    new_to = {name for name, texts in waited_for.peers.items() if _among(texts, channel)}
    kept = [*_all_kept(engine, "hub", channel), *_all_kept(engine, "peer", channel, new_to)]
    life = engine.incarnation(channel) if kept else ""
    for kind, name, memory, told in kept:
        position = (
            memory.positions.get(str(partition), 0) if memory is not None and memory.incarnation == life else first
        )
        saved_s = 0.0 if memory is None else memory.time.timestamp()
        if kind == "hub" and told in hubs:
            reached.add(told)  # two have one address for a moment, when one takes the other's place
            found[f"link to {name}"] = position
        elif kind == "peer" and told and (not patience or now - max(saved_s, float(told)) <= patience):
            found[f"link from {name}"] = position
    return found | {f"link to {address}": first for address in hubs - reached}


def _all_kept(
    engine: FilesEngine, kind: LinkKind, channel: str, new_to: Collection[str] = ()
) -> Iterator[tuple[LinkKind, str, _Kept | None, str]]:
    """What is remembered of a channel: of whom, what, and by which address it is dialled or when it was here last, if
    it wants it. ``new_to``: peers that it may be nothing of yet, and count if they asked for it.
    """
    directory, disk = engine.root / DIRECTORY / kind, engine.disk
    for name in disk.listdir(directory) if directory.is_dir() else ():
        kept: _Kept | None = None
        with contextlib.suppress(FileNotFoundError, NotADirectoryError, msgspec.MsgspecError, UnicodeDecodeError):
            kept = _kept(disk.read_file(directory / name / f"{channel}.json"))
        if kind == "peer" and (kept is not None or name in new_to):
            texts = wanted(directory / name, disk)
            unwanted = kept is None if texts is None else not _among(texts, channel)
            yield kind, name, kept, "" if unwanted else str(last_here(directory / name, disk))
        elif kept is not None:
            with contextlib.suppress(FileNotFoundError, UnicodeDecodeError):
                yield kind, name, kept, disk.read_file(directory / name / ADDRESS_FILE).decode()


def hub_at(root: Path, address: str, disk: Disk) -> str:
    """The name of the hub that was reached at an address last; empty if none ever was."""
    directory, names = root / DIRECTORY / "hub", list[str]()
    with contextlib.suppress(OSError):
        names = disk.listdir(directory)
    for name in names:
        with contextlib.suppress(OSError, UnicodeDecodeError):
            if disk.read_file(directory / name / ADDRESS_FILE).decode() == address:
                return name
    return ""


def sends(engine: FilesEngine, kind: LinkKind, name: str, channel: str) -> bool:
    """Whether the other end of a link is sent a channel, here or not: as whoever runs the links says, or ran them."""
    directory, disk, configured = engine.root / DIRECTORY / kind / name, engine.disk, _waited_for(engine)
    if channel.startswith(REPLY):
        return True  # whoever asked gets its replies, and nobody says so
    if kind == "peer":
        asked = wanted(directory, disk)
        texts = configured.peers.get(name, ())
        return _among(texts, channel) and (asked is None or _among(asked, channel))
    with contextlib.suppress(FileNotFoundError, NotADirectoryError, UnicodeDecodeError):
        return _among(configured.hubs.get(disk.read_file(directory / ADDRESS_FILE).decode(), ()), channel)
    return False


def last_here(directory: Path, disk: Disk) -> float:
    """When a peer was last connected, in seconds of the wall clock; 0 if nobody knows."""
    try:
        return disk.stat(directory / LAST_FILE).st_mtime
    except (FileNotFoundError, NotADirectoryError):
        return 0.0


def wanted(directory: Path, disk: Disk) -> list[str] | None:
    """Which channels a peer asked for last, names and patterns; None if nobody knows."""
    try:
        return msgspec.json.decode(disk.read_file(directory / WANTED_FILE), type=list[str])
    except (FileNotFoundError, NotADirectoryError, msgspec.MsgspecError):
        return None


def _among(texts: Iterable[str], channel: str) -> bool:
    return any(_means(text, channel) for text in texts)


def _means(text: str, channel: str) -> bool:
    return Pattern(text).matches(channel) if is_pattern(text) else text == channel


def linked(root: Path) -> bool:
    """Whether a directory's station has, or had, links."""
    return (root / DIRECTORY).is_dir()


def why_away(engine: FilesEngine, channel: str) -> str:
    """Which other ends of links do not get what is published to a channel now, in words; empty if all do."""
    if not linked(engine.root):
        return ""
    config, away = engine.config, []
    publish = {link.hub: link.publish for link in config.links}
    subscribe = {peer.name: peer.subscribe for peer in config.hub.peers}
    for link in load(engine.root, engine.disk):
        known = link.kind == "hub" or (engine.root / DIRECTORY / link.kind / link.name).is_dir()  # was here before
        wanted = publish.get(link.address, ()) if link.kind == "hub" else subscribe.get(link.name, ())
        if known and link.state != "up" and _among(wanted, channel):
            why = f": {link.error}" if link.error else ""
            away.append(f"the link {'to' if link.kind == 'hub' else 'from'} {link.name or link.address} is down{why}")
    return "; ".join(away[:_TOLD_MAX])


def running(root: Path, disk: Disk) -> bool:
    """Whether some process runs the links of a directory."""
    with contextlib.suppress(FileNotFoundError):
        lock = FileLock(root / DIRECTORY / LOCK_FILE, disk, create=False)
        try:
            return not lock.free()
        finally:
            lock.release()
    return False
