"""Durable wildcard subscriptions, as files.

patterns/worker-1.json   {"pattern":"sensors.>","since_us":…}
patterns/worker-1.lock   held by the live subscriber; the kernel frees a dead one's at once

The file is written when every channel that was there has a position. From then on a matching channel without one
was made later, and is to be delivered from its first message.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import msgspec

from heliograph.disk import Disk, explain
from heliograph.engine.positions import taken
from heliograph.errors import Damaged, InvalidName, SubscriptionBusy
from heliograph.log.locks import FileLock
from heliograph.names import is_name
from heliograph.patterns import Pattern


class Wildcard(msgspec.Struct, frozen=True):
    """What a durable wildcard subscription hears, and since when."""

    pattern: str
    since_us: int


_decode = msgspec.json.Decoder(Wildcard).decode


class Wildcards:
    """The patterns directory of one station."""

    def __init__(self, root: Path, disk: Disk) -> None:
        self._directory = root / "patterns"
        self._disk = disk

    def load(self, name: str) -> Wildcard | None:
        path = self._directory / f"{name}.json"
        try:
            return _decode(self._disk.read_file(path))
        except FileNotFoundError:
            return None
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise Damaged(f"{path} cannot be read ({error}). Remove it and subscribe again.") from None

    def save(self, name: str, wildcard: Wildcard) -> None:
        try:
            self._disk.replace_file(self._directory / f"{name}.json", msgspec.json.encode(wildcard) + b"\n")
            self._disk.sync_directory(self._directory.parent)
        except OSError as error:
            raise explain(error, f"cannot save the pattern of '{name}'") from error

    def forget(self, name: str) -> None:
        """Remove a pattern; the caller holds its lease."""
        for path in (self._directory / f"{name}.json", self._directory / f"{name}.lock"):
            with contextlib.suppress(FileNotFoundError):
                self._disk.unlink(path)

    def names(self) -> list[str]:
        with contextlib.suppress(FileNotFoundError):
            entries = sorted(self._disk.listdir(self._directory))
            return [name for entry in entries if is_name(name := entry.removesuffix(".json")) and name != entry]
        return []

    def live(self, name: str) -> bool:
        """Whether somebody holds the lease now."""
        try:
            lock = FileLock(self._directory / f"{name}.lock", self._disk, create=False)
        except FileNotFoundError:
            return False
        try:
            return not lock.free()
        finally:
            lock.release()

    def hearing(self, channel: str) -> set[str]:
        """The names of the durable wildcards that match a channel."""
        found = set()
        for name in self.names():
            with contextlib.suppress(Damaged, InvalidName):
                wildcard = self.load(name)
                if wildcard is not None and Pattern(wildcard.pattern).matches(channel):
                    found.add(name)
        return found

    def lease(self, name: str) -> FileLock:
        """Become the live subscriber of that name, or raise SubscriptionBusy."""
        while True:
            try:
                self._directory.mkdir(exist_ok=True)
                lock = FileLock(self._directory / f"{name}.lock", self._disk)
            except OSError as error:
                raise explain(error, f"cannot lock wildcard subscription '{name}'") from error
            if not taken(lock):
                holder = lock.noted() or "another process"
                lock.release()
                raise SubscriptionBusy(
                    f"wildcard subscription '{name}' is live already ({holder}). "
                    "Close that one first, or subscribe under another name."
                )
            if lock.in_place():
                lock.note(f"process {os.getpid()}")
                return lock
            lock.release()  # forgotten in this moment
