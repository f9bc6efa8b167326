"""Who may append arrivals to a channel, and knows what it holds: one process at a time, under ``seen/CHANNEL.lock``.

The lock's file says who appended last. A process that finds itself there knows that nobody else did, and that what it
remembers is still all there is; any other reads what was appended since.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from heliograph import limits
from heliograph.disk import explaining
from heliograph.engine.knowledge import Checkpoints, Knowledge, Outdated
from heliograph.errors import HeliographError, StorageError
from heliograph.log.locks import FileLock
from heliograph.names import check_name

if TYPE_CHECKING:
    from heliograph.engine.files import FilesEngine

logger = logging.getLogger("heliograph.engine")


class _State:
    """One channel, as this process has it."""

    def __init__(self, lock_path: Path) -> None:
        self.lock_path = lock_path
        self.mutex = threading.Lock()
        self.known: Knowledge | None = None
        self.doubtful = False  # something failed between an append and its mark


class KnownChannels:
    """The channels whose arrivals this process knows."""

    def __init__(self, engine: FilesEngine) -> None:
        self._engine = engine
        self.checkpoints = Checkpoints(engine)
        self._token = f"process {os.getpid()} {os.urandom(8).hex()}"
        self._states: dict[str, _State] = {}

    def __contains__(self, channel: str) -> bool:
        return channel in self._states

    def lock_path(self, channel: str) -> Path:
        """Where the lock of a channel is."""
        return self.checkpoints.root / f"{check_name(channel)}.lock"

    @contextlib.contextmanager
    def known(self, channel: str, *, appending: bool = False) -> Iterator[Knowledge]:
        """Hold the channel's arrivals lock, knowing everything that its log holds."""
        if self._engine.read_only:
            yield self._learnt(channel, None)
            return
        self._engine.check_writable()
        state = self._states.get(channel)
        if state is None:
            state = self._states.setdefault(channel, _State(self.lock_path(channel)))
        with state.mutex, self._locked(channel, state.lock_path) as lock:
            mine = lock.noted() == self._token
            if state.known is None or state.doubtful or not mine:
                state.known = self._learnt(channel, state.known)
            if appending and not mine:
                self._sign(lock)
            state.doubtful = True
            yield state.known
            state.doubtful = False

    @contextlib.contextmanager
    def _locked(self, channel: str, path: Path) -> Iterator[FileLock]:
        engine = self._engine
        with explaining(f"cannot take the arrivals lock of channel '{channel}'"):
            try:
                lock = FileLock(path, engine.disk)
            except FileNotFoundError:  # the first arrival of all
                path.parent.mkdir(exist_ok=True)
                engine.disk.sync_directory(engine.root)
                lock = FileLock(path, engine.disk)
        try:
            lock.exclusive_unnoted(engine.clock, engine.config.publishing.busy_timeout_s)
            yield lock
        finally:
            lock.release()

    def _sign(self, lock: FileLock) -> None:
        """Say who appends, before it does: whoever finds another name looks at the log first."""
        lock.note(self._token)
        if lock.noted() not in (self._token, ""):
            raise StorageError(f"{lock.path} cannot be written. Nothing was stored; 'helio doctor' checks the disk.")

    def _learnt(self, channel: str, known: Knowledge | None) -> Knowledge:
        """What there is to know: from what was known before, or from the checkpoint, and from the log."""
        file = self._engine.describe(channel)
        if known is None or (known.incarnation, known.created) != (file.incarnation, file.created):
            known = self.checkpoints.load(channel, file)
        self.checkpoints.catch_up(channel, known)
        if known.unsaved_bytes > limits.SEEN_SAVE_BYTES and not self._engine.read_only:
            self.save(channel, known)
        return known

    def save(self, channel: str, known: Knowledge) -> None:
        """Now and then, so that there is not too much to read after a restart. What fails is tried again later."""
        try:
            self.checkpoints.save(channel, known)
        except (HeliographError, OSError, Outdated) as error:
            logger.warning("cannot write down what channel '%s' has seen: %s", channel, error)
            known.unsaved_bytes = 0

    def forget(self, channel: str) -> None:
        """Know nothing any more: the next who asks reads the checkpoint and the log."""
        state = self._states.get(channel)
        if state is not None:
            with state.mutex:
                state.known = None

    def close(self) -> None:
        """Write down what is known and not yet written; nothing is lost if that fails."""
        for channel, state in list(self._states.items()):
            known = state.known
            if known is not None and known.saved != known.covered and not state.doubtful:
                with contextlib.suppress(HeliographError, OSError, Outdated), self.known(channel) as found:
                    self.checkpoints.save(channel, found)
