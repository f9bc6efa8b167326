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

from heliograph.engine.files import FilesEngine
from heliograph.errors import HeliographError, NotFound, StationClosed
from heliograph.limits import WAIT_SLICE_S
from heliograph.log.channel import REPLIES, new_incarnation
from heliograph.log.locks import FileLock
from heliograph.message import Message
from heliograph.names import REPLY, is_mailbox
from heliograph.station.reader import MessageRange

logger = logging.getLogger("heliograph.requests")


class Listener:
    """Receives replies of a channel in a thread of its own and hands them over."""

    def __init__(
        self, engine: FilesEngine, channel: str, take: Callable[[list[Message]], None], offset: int = 0
    ) -> None:
        self._engine = engine
        self.channel = channel
        self._take = take
        self._offset = offset
        self._closing = False
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
        """Listen no more."""
        self._closing = True
        while self._thread.is_alive() and self._thread is not threading.current_thread():
            self._engine.wake(self.channel)
            self._thread.join(0.01)


class Mailbox(Listener):
    """The channel of replies of this process."""

    def __init__(self, engine: FilesEngine, take: Callable[[list[Message]], None]) -> None:
        self._lock = _new_lock(engine)
        channel = self._lock.path.stem
        try:
            engine.create(channel, REPLIES, partitions=1)
            super().__init__(engine, channel, take)
        except BaseException:
            self._remove(engine, channel)
            raise

    def close(self) -> None:
        """Listen no more, and leave nothing behind."""
        super().close()
        self._remove(self._engine, self.channel)

    def _remove(self, engine: FilesEngine, channel: str) -> None:
        try:
            remove(engine, channel)
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
    known = {name for name in engine.channel_names() if is_mailbox(name)}
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
