"""A channel's directory: its description, its birth, its new lives and its end.

    channels/alerts/channel.json    {"format":1,"name":"alerts","incarnation":"k3f9q2","partitions":1, …}
    channels/alerts/0/              one directory per partition, see partition.py

A channel is built aside and renamed into place, so two processes racing to create it end with one. A partition that
is added later is built aside, too, and there before channel.json names it: until then nobody writes to it. A channel
is deleted by marking its heads under the lock (appenders look after locking), renaming it to ``trash/`` and
removing that; recovery empties the trash.
"""

from __future__ import annotations

import contextlib
import errno
import os
from datetime import datetime
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from heliograph.clock import Clock, from_us
from heliograph.disk import Disk, explain
from heliograph.errors import ConfigError, Damaged, NotFound, StorageError, UnsupportedFormat
from heliograph.limits import PARTITIONS_MAX
from heliograph.log.head import Fields, Head
from heliograph.log.segments import path_of
from heliograph.names import is_name

FORMAT: Final = 1
NEW: Final = ".new-"  # names what is being built aside
_ALPHABET: Final = "0123456789abcdefghjkmnpqrstvwxyz"


class ChannelSettings(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """What a channel may have differently from its station; None takes the station's setting."""

    segment_bytes: int | None = None
    segment_age_s: float | None = None
    retention_bytes: int | None = None
    retention_age_s: float | None = None
    retention_once_read: bool | None = None
    retention_archived: bool | None = None
    retention_compact: bool | None = None
    tombstone_grace_s: float | None = None
    holdback_bytes: int | None = None
    compress: bool | None = None


class ChannelFile(msgspec.Struct, frozen=True, kw_only=True):
    """channel.json."""

    format: int = FORMAT
    name: str
    incarnation: str
    partitions: int = 1
    created: datetime
    settings: ChannelSettings = ChannelSettings()


class Identity(NamedTuple):
    """What a channel tells its partitions; read again whenever the head's generation moves."""

    origin: bytes  # station.incarnation
    segment_bytes: int
    segment_age_us: int


REPLIES: Final = ChannelSettings(retention_age_s=300.0, segment_bytes=4 * 1024 * 1024)
"""Channels of replies: those are read at once; what is older was read, or nobody waits for it."""

_CHANNEL: Final = ".channel"
_LOOKS: Final = 8
"""How often a channel has to come and go meanwhile until one that is whole is taken for damaged."""
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(ChannelFile).decode


def new_incarnation() -> str:
    """A fresh life: thirty random bits, readable aloud."""
    return "".join([_ALPHABET[byte % len(_ALPHABET)] for byte in os.urandom(6)])


def channel_path(root: Path, name: str) -> Path:
    return root / "channels" / name


def load(root: Path, name: str, disk: Disk) -> ChannelFile:
    path = channel_path(root, name) / "channel.json"
    try:
        found = _decode(_read(root, name, path, disk))
    except OSError as error:
        raise explain(error, f"cannot read {path}") from error
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise Damaged(
            f"{path} cannot be read ({error}). Restore it from a backup, or run 'helio verify --repair'."
        ) from None
    if found.format > FORMAT:
        raise UnsupportedFormat(f"{path} has format {found.format}; this Heliograph knows {FORMAT}. Upgrade it.")
    return found


def _read(root: Path, name: str, path: Path, disk: Disk) -> bytes:
    """channel.json, which comes and goes with partition 0, by one renaming: perhaps between two looks."""
    for _ in range(_LOOKS):
        try:
            return disk.read_file(path)
        except FileNotFoundError:
            if not (path.parent / "0").is_dir():
                raise no_channel(root, name) from None
    raise Damaged(f"{path} is missing. Restore it from a backup, or run 'helio verify --repair'.")


def no_channel(root: Path, name: str) -> NotFound:
    return NotFound(f"there is no channel '{name}' in {root}; publishing to it or 'helio channels create' makes it")


def save(root: Path, file: ChannelFile, disk: Disk) -> None:
    data = msgspec.json.format(_encode(file), indent=1) + b"\n"
    disk.replace_file(channel_path(root, file.name) / "channel.json", data)


def names(root: Path, disk: Disk) -> list[str]:
    """What is there, whether it is whole or not; not what others have put among it (lost+found, a file)."""
    try:
        return list(filter(is_name, disk.directories(root / "channels")))
    except FileNotFoundError:
        return []


def somebodys(root: Path, disk: Disk) -> bool:
    """Whether a directory is a station's, though the file may be missing that says whose."""
    with contextlib.suppress(NotADirectoryError):  # whoever opens it says so
        return (root / "station.json").exists() or bool(names(root, disk))
    return False


def check_nobodys(root: Path, disk: Disk, now_us: int) -> None:
    """A directory without station.json may become a new station's, unless it holds channels.

    Their messages say by whom they were published. A station of another name would not know its own, and one of the
    same name could not tell a copy: what is written into the file by hand fits no directory, so that its channels get
    new lives.
    """
    if names(root, disk):
        text = f'{{"name": "NAME", "created": "{from_us(now_us):%Y-%m-%dT%H:%M:%SZ}"}}'
        raise Damaged(
            f"{root / 'station.json'} is missing, which says whose the channels beside it are. "
            f"Restore it from a backup, or write {text} into it, with the station's name."
        )


def check_partitions(count: int) -> int:
    """How many partitions a channel may have."""
    if type(count) is not int or not 1 <= count <= PARTITIONS_MAX:
        raise ConfigError(f"{count!r} partitions: a channel has 1 to {PARTITIONS_MAX}")
    return count


def create(
    root: Path, name: str, settings: ChannelSettings, disk: Disk, clock: Clock, boot: bytes, *, partitions: int = 1
) -> bool:
    """Make the channel; False if it is there already (perhaps since a moment ago)."""
    now_us = clock.time_ns() // 1000
    file = ChannelFile(
        name=name, incarnation=new_incarnation(), partitions=check_partitions(partitions), created=from_us(now_us),
        settings=settings,
    )  # fmt: skip
    built = root / "channels" / f"{NEW}{name}-{os.getpid()}-{os.urandom(4).hex()}"
    target = channel_path(root, name)
    try:
        built.mkdir()  # not its parents: in place of a station that was moved away, messages would be lost to it
        for number in range(partitions):
            _make_partition(built / str(number), disk, boot, now_us)
        data = msgspec.json.format(_encode(file), indent=1) + b"\n"
        disk.replace_file(built / "channel.json", data)
        disk.rename(built, target)
        disk.sync_directory(target.parent)
    except OSError as error:
        with contextlib.suppress(OSError):
            disk.remove_tree(built)
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST) or (target / "channel.json").exists():
            return False  # though it may be deleted again by now
        if not built.parent.exists():
            raise StorageError(
                f"cannot create channel '{name}': {root} was moved or deleted meanwhile. Open it where it is now."
            ) from error
        raise explain(error, f"cannot create channel '{name}'") from error
    return True


def _make_partition(directory: Path, disk: Disk, boot: bytes, now_us: int) -> None:
    directory.mkdir()
    disk.close(disk.open(path_of(directory, 0), os.O_CREAT | os.O_WRONLY))
    Head.create(directory / "head", disk, boot, Fields(created_us=now_us))
    disk.sync_directory(directory)


def add_partitions(root: Path, file: ChannelFile, count: int, disk: Disk, clock: Clock, boot: bytes) -> None:
    """Make the directories that channel.json does not name yet, durably. The caller holds partition 0's lock.

    One that is there was left by a process that died before it could name it: complete, since it was renamed into
    place, and empty, since nobody was told of it.
    """
    path = channel_path(root, file.name)
    for number in range(file.partitions, count):
        if not (path / str(number)).exists():
            built = path / f"{NEW}{number}-{os.urandom(4).hex()}"
            _make_partition(built, disk, boot, clock.time_ns() // 1000)
            disk.rename(built, path / str(number))
    disk.sync_directory(path)


def move_to_trash(root: Path, path: Path, disk: Disk) -> Path:
    """Take a directory out of the way in one step; where it is then, for ``empty``.

    Of a channel it tells there that the deletion is not finished: what belongs to the channel goes first.
    """
    trash = root / "trash"
    trash.mkdir(exist_ok=True)
    grave = trash / f"{path.name}-{os.urandom(6).hex()}{_CHANNEL if path.parent == root / 'channels' else ''}"
    disk.rename(path, grave)
    disk.sync_directory(path.parent)
    return grave


def empty(grave: Path, disk: Disk) -> None:
    """Remove what was moved to the trash."""
    with contextlib.suppress(OSError):  # recovery empties the trash
        disk.remove_tree(grave)


def buried(root: Path, disk: Disk) -> tuple[list[Path], set[str]]:
    """What lies in the trash, and the names of the channels among it."""
    try:
        found = disk.directories(root / "trash")
    except FileNotFoundError:
        found = []
    names = {entry.removesuffix(_CHANNEL).rpartition("-")[0] for entry in found if entry.endswith(_CHANNEL)}
    return [root / "trash" / entry for entry in found], names
