"""Schemas of the types that are published to a channel, as files.

    channels/alerts/types/com.example.alert.v1/1.json   {"format":1,"type":…,"version":1,"created":…,"schema":…}
    channels/alerts/types/lock                          held while a version is added

Versions count from 1; a file is written once and never changed. A type whose name is no name of a file is found
under the SHA-256 of its name, with a ``~`` before it; the file says which type it is.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import msgspec

from heliograph.clock import Clock, from_us
from heliograph.disk import Disk
from heliograph.errors import Damaged, InvalidName, NotFound, UnsupportedFormat
from heliograph.log.channel import channel_path
from heliograph.log.locks import FileLock
from heliograph.names import check_name

FORMAT: Final = 1
FOLDER: Final = "types"
_VERSION: Final = re.compile(r"([1-9][0-9]{0,8})\.json")


class SchemaFile(msgspec.Struct, frozen=True, kw_only=True):
    """One version of a type's schema."""

    format: int = FORMAT
    type: str
    version: int
    created: datetime
    sha256: str
    schema: dict[str, Any]


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(SchemaFile).decode
Decide = Callable[[list[SchemaFile]], bool]


def folder_of(type_name: str) -> str:
    """The name of a type's directory, whatever is in the type's name.

    >>> folder_of("com.example.alert.v1"), folder_of("../alert.v1")
    ('com.example.alert.v1', '~...')
    """
    try:
        return check_name(type_name, "type")
    except InvalidName:
        import hashlib

        return "~" + hashlib.sha256(type_name.encode("utf-8", "surrogatepass")).hexdigest()


class Schemas:
    """The stored schemas of one station's channels."""

    def __init__(self, root: Path, disk: Disk, clock: Clock, busy_timeout_s: float) -> None:
        self._root = root
        self._disk = disk
        self._clock = clock
        self._busy_timeout_s = busy_timeout_s

    def folder(self, channel: str) -> Path:
        """Where a channel's types are."""
        return channel_path(self._root, check_name(channel)) / FOLDER

    def folders(self, channel: str) -> list[Path]:
        """The directory of every type of a channel."""
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            entries = self._disk.listdir(self.folder(channel))
            return [self.folder(channel) / entry for entry in sorted(entries) if entry != "lock"]
        return []

    def numbers(self, folder: Path) -> list[int]:
        """The versions in a type's directory, oldest first."""
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            found = [_VERSION.fullmatch(entry) for entry in self._disk.listdir(folder)]
            return sorted(int(match[1]) for match in found if match is not None)
        return []

    def load(self, path: Path) -> SchemaFile:
        """One file, if it is whole."""
        data = self._disk.read_file(path)
        try:
            found = _decode(data)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise _damaged(path, str(error)) from None
        if found.format > FORMAT:
            raise UnsupportedFormat(f"{path} has format {found.format}; this Heliograph knows {FORMAT}. Upgrade it.")
        if found.sha256 != _digest(found.schema):
            raise _damaged(path, "its schema does not have the checksum it names")
        return found

    def versions(self, channel: str, type_name: str) -> list[SchemaFile]:
        """Every version of a type, oldest first."""
        return self._versions(self.folder(channel) / folder_of(type_name))

    def _versions(self, folder: Path) -> list[SchemaFile]:
        found = []
        for number in self.numbers(folder):
            with contextlib.suppress(FileNotFoundError):  # the channel is being deleted
                found.append(self.load(folder / f"{number}.json"))
        return found

    def all(self, channel: str) -> list[SchemaFile]:
        """Every version of every type of a channel."""
        found = [version for folder in self.folders(channel) for version in self._versions(folder)]
        return sorted(found, key=lambda one: (one.type, one.version))

    def add(self, channel: str, type_name: str, schema: dict[str, Any], decide: Decide) -> SchemaFile | None:
        """Store the next version if ``decide`` says so, knowing all before it; two who race see each other's.

        Raises NotFound if the channel is not there, or is deleted meanwhile.
        """
        folder = self.folder(channel)
        try:
            self._make(folder)
            lock = FileLock(folder / "lock", self._disk)
            try:
                lock.exclusive(self._clock, self._busy_timeout_s)
                if not lock.in_place():
                    raise FileNotFoundError(folder)  # deleted while we waited, and perhaps made again
                before = self.versions(channel, type_name)
                if not decide(before):
                    return None
                number = max(self.numbers(folder / folder_of(type_name)), default=0) + 1
                made = SchemaFile(
                    type=type_name, version=number, created=from_us(self._clock.time_ns() // 1000),
                    sha256=_digest(schema), schema=schema,
                )  # fmt: skip
                self._write(folder / folder_of(type_name), made)
                return made
            finally:
                lock.release()
        except FileNotFoundError:
            raise NotFound(f"there is no channel '{channel}' in {self._root}") from None

    def _write(self, folder: Path, made: SchemaFile) -> None:
        self._make(folder)
        data = msgspec.json.format(_encode(made), indent=1) + b"\n"
        self._disk.replace_file(folder / f"{made.version}.json", data)

    def _make(self, folder: Path) -> None:
        """Make a directory that stays: its name is synced, also if another process made it a moment ago."""
        if folder.is_dir() and self.numbers(folder):
            return
        with contextlib.suppress(FileExistsError):
            self._disk.mkdir(folder)
        self._disk.sync_directory(folder.parent)


def _damaged(path: Path, why: str) -> Damaged:
    return Damaged(f"{path} cannot be used ({why}). 'helio verify --repair' sets it aside; a backup may have it.")


def _digest(schema: dict[str, Any]) -> str:
    from heliograph.schemas import digest  # here, because most stations never register a type

    return digest(schema)
