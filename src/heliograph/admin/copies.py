"""The copies in a backup's directory: what is kept, what is added to, what is written beside the older one.

Nothing that the manifest before names is changed here, but by adding to its end, until the next one is written.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path

import google_crc32c
import msgspec

from heliograph.admin import manifest
from heliograph.admin.manifest import File, Manifest, Part
from heliograph.disk import Disk
from heliograph.errors import WrongStation
from heliograph.limits import COPY_BYTES

_extend, _crc = google_crc32c.extend, google_crc32c.value
Read = Callable[[int, int], bytes]


class Source(msgspec.Struct, frozen=True):
    """A file that may be long: how to read it, what it adds up to, and what its beginnings add up to."""

    read: Read
    length: int
    crc: int = 0
    crc_at: Callable[[int], int | None] = lambda _: None
    content: tuple[int, int] | None = None  # of a compressed segment; then `crc` is not known beforehand


class Copies:
    """The directory of a backup while it is written."""

    def __init__(self, target: Path, disk: Disk, advance: Callable[[int], None]) -> None:
        self._target = target
        self._disk = disk
        self._advance = advance
        self._touched: set[Path] = set()
        self._before: dict[str, File] = {}
        self._parts_before: list[Part] = []
        self._in_use: set[str] = set()
        self.files: dict[str, File] = {}
        self.damaged: list[str] = []
        self.copied_files = self.copied_bytes = self.removed_files = 0

    def load_previous(self, station: str) -> bool:
        """Find out what is there already; whether there is anything."""
        if not (self._target / manifest.NAME).exists():
            return False
        before = manifest.load(self._target, self._disk)
        if before.station != station:
            raise WrongStation(f"{self._target} is the backup of station '{before.station}', not '{station}'")
        self._before = {file.path: file for file in before.files}
        self._in_use = {file.stored for file in before.files}
        self._parts_before = before.parts
        return True

    def keep(self, channel: str) -> list[Part]:
        """Keep a channel as it was copied before; which messages that are, by partition. None if it never was."""
        for path, file in self._before.items():
            if path.startswith(f"channels/{channel}/") or path == f"seen/{channel}.json":
                self.files[path] = file
        return [part for part in self._parts_before if part.channel == channel]

    def commit(self, described: Manifest) -> None:
        """Make the copies durable, then the manifest that names them; then remove what it does not name."""
        for directory in sorted(self._touched, reverse=True):
            self._disk.sync_directory(directory)
        manifest.save(self._target, described, self._disk)
        self._remove_old({file.stored for file in described.files})

    def _kept(self, path: str, source: Source) -> bool:
        """Whether the backup has this very file already; then it stays."""
        known = self._before.get(path)
        if known is None or known.length != source.length or known.content != source.content:
            return False
        if source.content is None and known.crc != source.crc:
            return False
        if not self._is_stored(known):
            return False
        self.files[path] = known
        return True

    def _stored(self, file: File) -> bytes | None:
        with contextlib.suppress(FileNotFoundError):
            return self._disk.read_file(self._target / file.stored)[: file.length]
        return None

    def _is_stored(self, file: File) -> bool:
        with contextlib.suppress(FileNotFoundError):
            return self._disk.stat(self._target / file.stored).st_size >= file.length
        return False

    def _name_for(self, path: str, crc: int) -> str:
        """A name that nothing in the backup before uses."""
        name, number = path, 0
        while name in self._in_use:
            name, number = f"{path}~{crc:08x}" + (f"-{number}" if number else ""), number + 1
        return name

    def put(self, path: str, data: bytes) -> None:
        """Copy a small file, unless these very bytes are there: the checksum of an index is always the same."""
        known = self._before.get(path)
        if known is not None and known.length == len(data) and self._stored(known) == data:
            self.files[path] = known
            return
        crc = _crc(data)
        stored = self._name_for(path, crc)
        place = self._target / stored
        place.parent.mkdir(parents=True, exist_ok=True)
        self._disk.replace_file(place, data, sync_names=False)
        self._note(File(path=path, stored=stored, length=len(data), crc=crc), len(data))

    def _note(self, file: File, copied: int) -> None:
        self.files[file.path] = file
        self.copied_files += 1
        self.copied_bytes += copied
        directory = (self._target / file.stored).parent
        self._touched.update([directory, *[up for up in directory.parents if self._target in (up, *up.parents)]])

    def copy(self, path: str, source: Source) -> None:
        """Copy a file that may be long, or only what was added to it since the last time."""
        if self._kept(path, source):
            self._advance(source.length)
            return
        stored, start, crc = self._where(path, source)
        self._advance(start)
        place = self._target / stored
        place.parent.mkdir(parents=True, exist_ok=True)
        at = start
        fd = self._disk.open(place, os.O_WRONLY | os.O_CREAT)
        try:
            self._disk.ftruncate(fd, start)  # what an interrupted run added
            self._disk.lseek(fd, start, os.SEEK_SET)
            while at < source.length and (data := source.read(at, min(COPY_BYTES, source.length - at))):
                self._disk.write_all(fd, data)
                crc, at = _extend(crc, data), at + len(data)
                self._advance(len(data))
            self._disk.fdatasync(fd)
        finally:
            self._disk.close(fd)
        if source.content is None and (crc != source.crc or at != source.length):
            self.damaged.append(path)
        self._note(File(path=path, stored=stored, length=at, crc=crc, content=source.content), at - start)

    def _where(self, path: str, source: Source) -> tuple[str, int, int]:
        """Under which name, from which byte on, and with which checksum up to there."""
        known = self._before.get(path)
        may_grow = known is not None and source.content is None and known.length <= source.length
        if known is not None and may_grow and self._is_stored(known) and source.crc_at(known.length) == known.crc:
            return known.stored, known.length, known.crc
        return self._name_for(path, source.crc), 0, 0

    def _remove_old(self, stored: set[str]) -> None:
        """Remove what the manifest does not name any more: deleted, trimmed, redacted, compressed since."""
        for part in sorted(os.listdir(self._target)):
            path = self._target / part
            if part.split("~")[0] not in manifest.PARTS:
                continue
            if path.is_dir():
                self._remove_below(path, stored)
            elif part not in stored:
                self._remove(path)

    def _remove_below(self, directory: Path, stored: set[str]) -> None:
        for entry in os.listdir(directory):
            path = directory / entry
            if path.is_dir():
                self._remove_below(path, stored)
            elif path.relative_to(self._target).as_posix() not in stored:
                self._remove(path)
        if not os.listdir(directory):
            self._disk.rmdir(directory)

    def _remove(self, path: Path) -> None:
        self._disk.unlink(path)
        self.removed_files += 1
