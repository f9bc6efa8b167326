"""Positions and leases of subscriptions, as files.

subscriptions/alerts/worker-1/0.json   {"incarnation":"k3f9q2","offset":42,"id":"0192…","time_us":…}
subscriptions/alerts/worker-1/lock     held by the live subscriber; the kernel frees a dead one's at once
subscriptions/alerts/worker-1/kind.json  {"kind":"group"}; a plain subscription has none
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from typing import NoReturn

import msgspec

from heliograph.disk import Disk, explain, make_below
from heliograph.engine import kinds, queueworkers
from heliograph.engine.members import live_members
from heliograph.engine.port import Kind, MemberInfo, Position
from heliograph.errors import Damaged, SubscriptionBusy
from heliograph.log import channel as channels
from heliograph.log.locks import FileLock
from heliograph.names import is_name

_decode = msgspec.json.Decoder(Position).decode

LOOKED_AT_S = 1.0
"""Who looks whether a lease is free holds its lock, shared, for an instant: whoever wants it then tries again."""


def taken(lock: FileLock) -> bool:
    """Take a lock that others may be looking at; False if somebody holds it."""
    until = time.monotonic() + LOOKED_AT_S
    while not lock.try_exclusive():
        if not lock.free() or time.monotonic() > until:
            return False
        time.sleep(0.001)
    return True


class Positions:
    """The subscriptions directory of one station."""

    def __init__(self, root: Path, disk: Disk) -> None:
        self._root = root
        self._disk = disk

    def directory(self, channel: str, subscription: str) -> Path:
        return self._root / "subscriptions" / channel / subscription

    def load(self, channel: str, subscription: str, partition: int) -> Position | None:
        path = self.directory(channel, subscription) / f"{partition}.json"
        try:
            return _decode(self._disk.read_file(path))
        except FileNotFoundError:
            return None
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise Damaged(
                f"{path} cannot be read ({error}). Set the position with "
                f"'helio subscriptions seek {channel} {subscription} --to …'."
            ) from None

    def save(self, channel: str, subscription: str, partition: int, position: Position) -> None:
        directory = self.directory(channel, subscription)
        path = directory / f"{partition}.json"
        data = msgspec.json.encode(position) + b"\n"
        try:
            if path.exists():
                self._disk.replace_file(path, data, sync_names=False)
            else:  # the names on the way to it, too: a subscription that is forgotten would begin at "new" again
                make_below(self._root, directory)
                self._disk.replace_file(path, data)
                self._disk.sync_directory(directory.parent)
                self._disk.sync_directory(directory.parent.parent)
        except OSError as error:
            raise explain(error, f"cannot save the position of '{subscription}' on '{channel}'") from error

    def begun(self, channel: str, subscription: str) -> bool:
        """Whether it has a position, hence gets what is published from now on. The name may be anything."""
        if subscription not in self.names(channel):
            return False
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            entries = self._disk.listdir(self.directory(channel, subscription))
            return any(entry.endswith(".json") and entry.removesuffix(".json").isdigit() for entry in entries)
        return False

    def kind(self, channel: str, subscription: str) -> Kind:
        """What it is; a subscription that has not said so is a plain one."""
        return kinds.kind(self.directory(channel, subscription), self._disk)

    def claim_kind(self, channel: str, subscription: str, kind: Kind) -> None:
        """Say what it is if it is new; refuse if it is something else. The caller holds its lease."""
        directory = self.directory(channel, subscription)
        kinds.check(directory, kind, self._disk)
        if kind != self.kind(channel, subscription):
            kinds.save(directory, {"kind": kind}, self._disk)

    def forget(self, channel: str, subscription: str) -> None:
        """Remove a subscription; the caller holds its lease."""
        directory = self.directory(channel, subscription)
        if directory.exists():
            channels.empty(channels.move_to_trash(self._root, directory, self._disk), self._disk)
            with contextlib.suppress(OSError):
                self._disk.rmdir(directory.parent)

    def forget_channel(self, channel: str) -> None:
        directory = self._root / "subscriptions" / channel
        if directory.exists():
            channels.empty(channels.move_to_trash(self._root, directory, self._disk), self._disk)

    def names(self, channel: str) -> list[str]:
        with contextlib.suppress(FileNotFoundError):
            return list(filter(is_name, self._disk.directories(self._root / "subscriptions" / channel)))
        return []

    def all(self) -> list[tuple[str, str]]:
        """Channel and name of every subscription."""
        with contextlib.suppress(FileNotFoundError):
            channels_with = self._disk.directories(self._root / "subscriptions")
            return [(channel, name) for channel in filter(is_name, channels_with) for name in self.names(channel)]
        return []

    def lease(self, channel: str, subscription: str) -> FileLock:
        """Become the live subscriber of that name, or raise SubscriptionBusy."""
        directory = self.directory(channel, subscription)
        while True:
            try:
                make_below(self._root, directory)
                lock = FileLock(directory / "lock", self._disk)
            except (FileNotFoundError, FileExistsError):  # forgotten by another process in this moment
                continue
            except OSError as error:
                raise explain(error, f"cannot lock subscription '{subscription}' of '{channel}'") from error
            if not taken(lock):
                holder = lock.noted() or "another process"
                workers = ", ".join(info.worker for info in live_members(directory, self._disk))
                lock.release()
                self._busy(channel, subscription, f"workers {workers}" if workers else holder)
            if lock.in_place():
                lock.note(f"process {os.getpid()}")
                return lock
            lock.release()

    def share(self, channel: str, subscription: str) -> FileLock:
        """The lease as every worker of a group holds it: together; SubscriptionBusy if somebody holds it alone."""
        directory = self.directory(channel, subscription)
        until = time.monotonic() + LOOKED_AT_S
        while True:
            try:
                make_below(self._root, directory)
                lock = FileLock(directory / "lock", self._disk)
            except (FileNotFoundError, FileExistsError):  # as above
                continue
            if lock.try_shared() and lock.in_place():
                return lock
            holder = lock.noted() or "another process"
            lock.release()
            if time.monotonic() > until:
                self._busy(channel, subscription, holder)
            time.sleep(0.001)

    def _busy(self, channel: str, subscription: str, holder: str) -> NoReturn:
        raise SubscriptionBusy(
            f"subscription '{subscription}' of '{channel}' is live already ({holder}). "
            "Close that one first, or subscribe under another name."
        )

    def members(self, channel: str, subscription: str) -> list[MemberInfo]:
        """The live workers of a group."""
        return live_members(self.directory(channel, subscription), self._disk)

    def live(self, channel: str, subscription: str) -> bool:
        """Whether somebody holds the lease now: alone, or as a worker of a group or a queue."""
        return (
            self._held(channel, subscription)
            or bool(self.members(channel, subscription))
            or bool(queueworkers.living(self.directory(channel, subscription), self._disk))
        )

    def _held(self, channel: str, subscription: str) -> bool:
        try:
            lock = FileLock(self.directory(channel, subscription) / "lock", self._disk, create=False)
        except FileNotFoundError:
            return False
        try:
            return not lock.free()
        finally:
            lock.release()
