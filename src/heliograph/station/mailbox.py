"""The channel of replies of one station in one process, and the end of those whose process has died.

    channels/_reply.3k9…/          an ordinary channel, kept small by retention
    replies/_reply.3k9….lock       held by the process that asks; the kernel frees a dead one's at once

The lock is there before the channel, so a channel of replies without a held lock is nobody's.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Callable
from typing import Final

from heliograph.engine.files import FilesEngine
from heliograph.errors import HeliographError, NotFound, StationClosed
from heliograph.limits import WAIT_SLICE_S
from heliograph.log.channel import ChannelSettings, new_incarnation
from heliograph.log.locks import FileLock
from heliograph.message import Message
from heliograph.names import REPLY
from heliograph.station.reader import MessageRange

logger = logging.getLogger("heliograph.requests")
_SETTINGS: Final = ChannelSettings(retention_age_s=300.0, segment_bytes=4 * 1024 * 1024)
"""Replies are read at once; what is older was read, or nobody waits for it."""


class Mailbox:
    """Receives replies in a thread of its own and hands them over."""

    def __init__(self, engine: FilesEngine, take: Callable[[list[Message]], None]) -> None:
        self._engine = engine
        self._take = take
        self._lock = _new_lock(engine)
        self.channel = self._lock.path.stem
        self._closing = False
        self._offset = 0
        try:
            engine.create(self.channel, _SETTINGS, partitions=1)
        except BaseException:
            self._remove()
            raise
        self._thread = threading.Thread(target=self._listen, name="heliograph-replies", daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        while not self._closing:
            try:
                self._receive()
            except (StationClosed, NotFound):
                return  # whoever waits is told by the time, or by the end of the station
            except HeliographError as error:
                logger.error("replies cannot be read, trying again: %s", error)
                self._engine.clock.sleep(WAIT_SLICE_S)

    def _receive(self) -> None:
        replies = MessageRange(self._engine, self.channel, 0, self._offset, None, None)
        try:
            while not self._closing:
                messages = replies.next(WAIT_SLICE_S)
                if messages:
                    self._offset = messages[-1].offset + 1
                    self._take(messages)
        finally:
            replies.close()

    @property
    def alive(self) -> bool:
        """Whether it still listens: somebody may have deleted its channel."""
        return self._thread.is_alive()

    def close(self) -> None:
        """Listen no more, and leave nothing behind."""
        self._closing = True
        while self._thread.is_alive() and self._thread is not threading.current_thread():
            self._engine.wake(self.channel)
            self._thread.join(0.01)
        self._remove()

    def _remove(self) -> None:
        try:
            remove(self._engine, self.channel)
        finally:
            self._lock.release()


def _new_lock(engine: FilesEngine) -> FileLock:
    directory = engine.root / "replies"
    directory.mkdir(exist_ok=True)
    while True:
        name = REPLY + new_incarnation() + new_incarnation()
        lock = FileLock(directory / f"{name}.lock", engine.disk)
        if lock.try_exclusive() and lock.in_place():
            lock.note(f"process {os.getpid()}")
            return lock
        lock.release()  # swept away in this moment


def remove(engine: FilesEngine, channel: str) -> None:
    """Delete a channel of replies and its lock, which the caller holds or nobody does."""
    with contextlib.suppress(NotFound):
        engine.delete(channel)
    with contextlib.suppress(FileNotFoundError):
        engine.disk.unlink(engine.root / "replies" / f"{channel}.lock")


def sweep(engine: FilesEngine) -> list[str]:
    """Delete the channels of replies whose processes have died; their names."""
    known = {name for name in engine.channel_names() if name.startswith(REPLY)}
    with contextlib.suppress(FileNotFoundError):
        entries = engine.disk.listdir(engine.root / "replies")
        known |= {entry.removesuffix(".lock") for entry in entries if entry.startswith(REPLY)}
    return [name for name in sorted(known) if _sweep_one(engine, name)]


def _sweep_one(engine: FilesEngine, channel: str) -> bool:
    try:
        lock = FileLock(engine.root / "replies" / f"{channel}.lock", engine.disk, create=False)
    except FileNotFoundError:
        remove(engine, channel)  # restored from a backup: its process is another one's memory
        return True
    try:
        if not lock.try_exclusive():
            return False
        remove(engine, channel)
        return True
    finally:
        lock.release()
