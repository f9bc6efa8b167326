"""Who may append arrivals to a channel, and knows what it holds: one process at a time, under ``seen/CHANNEL.lock``.

The lock's file says who appended last. A process that finds itself there knows that nobody else did, and that what it
remembers is still all there is; any other reads what was appended since. If that is much, it is read before the lock is
taken, in a thread of its own (``learning.py``), so that nobody waits for the lock meanwhile::

    lock ──little is unread──▶ read it ──▶ go on
      └────much is unread──▶ unlock ──▶ have it read ──▶ lock, and read the rest
"""

from __future__ import annotations

import _thread
import contextlib
import logging
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from heliograph import limits
from heliograph.disk import explaining
from heliograph.engine.knowledge import Checkpoints, Knowledge, Outdated
from heliograph.engine.learning import AT_ONCE, Learner
from heliograph.errors import Busy, HeliographError, StorageError
from heliograph.log.channel import ChannelFile
from heliograph.log.locks import FileLock
from heliograph.log.news import held_lock
from heliograph.names import check_name

if TYPE_CHECKING:
    from heliograph.engine.files import FilesEngine

logger = logging.getLogger("heliograph.engine")
LOCKS_OPEN_MAX: Final = 64
"""Of so many channels the lock stays open when it is free; of others it is opened each time."""
_TURNS_MAX: Final = 3
"""How often what was appended meanwhile is read without the lock, too; then it has to be read under it."""


class _State:
    """One channel, as this process has it."""

    def __init__(self, lock_path: Path) -> None:
        self.lock_path = lock_path
        self.mutex = threading.Lock()
        self.known: Knowledge | None = None
        self.doubtful = False  # something failed between an append and its mark
        self.learner: Learner | None = None  # reads what is too much to be read under the lock
        self.lock: FileLock | None = None  # kept open between two who take it
        self.resting: _thread.LockType | None = None  # whoever frees it ends the rest of whoever has the channel


class KnownChannels:
    """The channels whose arrivals this process knows."""

    def __init__(self, engine: FilesEngine) -> None:
        self._engine = engine
        self.checkpoints = Checkpoints(engine)
        self._token = f"process {os.getpid()} {os.urandom(8).hex()}"
        self._states: dict[str, _State] = {}
        self._open: set[str] = set()  # channels whose locks are kept open
        self._closed = False
        self._room = threading.Semaphore(AT_ONCE)
        self.patience_s: float | None = None
        """How long whoever asks waits while a long log is read; then Busy. None: until it is."""

    def __contains__(self, channel: str) -> bool:
        return channel in self._states

    def lock_path(self, channel: str) -> Path:
        """Where the lock of a channel is."""
        return self.checkpoints.root / f"{check_name(channel)}.lock"

    @contextlib.contextmanager
    def known(self, channel: str, *, appending: bool = False) -> Iterator[Knowledge]:
        """Hold the channel's arrivals lock, knowing everything that its log holds."""
        if self._engine.read_only:
            yield self._caught_up(channel, self._before(channel, self._engine.describe(channel), None))
            return
        self._engine.check_writable()
        state = self._state(channel)
        while True:
            if (resting := state.resting) is not None:
                with contextlib.suppress(RuntimeError):  # another one comes in the same moment
                    resting.release()
            with state.mutex:
                lock = state.lock or self._open_lock(channel, state)
                try:
                    mine, learner = self._take(lock), None
                    if state.known is None or state.doubtful or not mine:
                        learner = self._learn(channel, state)
                    if learner is None:
                        assert state.known is not None
                        if appending and not mine:
                            self._sign(lock)
                        state.doubtful = True
                        yield state.known
                        state.doubtful = False
                        return
                finally:
                    self._give_back(channel, state, lock)
            if not learner.wait(self.patience_s):
                raise Busy(learner.says)

    def rest(self, channel: str, seconds: float) -> None:
        """Let others have the interpreter, unless somebody comes for the channel, which the caller has."""
        state = self._state(channel)
        state.resting = resting = held_lock()
        resting.acquire(timeout=seconds)
        state.resting = None

    def _state(self, channel: str) -> _State:
        state = self._states.get(channel)
        return state or self._states.setdefault(channel, _State(self.lock_path(channel)))

    def _learn(self, channel: str, state: _State) -> Learner | None:
        """Know everything; or, where that is much to read, who is at it."""
        learner = state.learner
        if learner is not None and not learner.over:
            return learner
        state.learner = None
        if learner is not None and learner.error is not None:
            raise learner.error
        file = self._engine.describe(channel)
        known = self._before(channel, file, learner.known if learner is not None else state.known)
        lines, turn = self.checkpoints.unread(channel, known, file), learner.turn + 1 if learner is not None else 1
        if lines > limits.SEEN_LOCKED_LINES and turn <= _TURNS_MAX:
            state.known, state.learner = (
                None,
                Learner(self.checkpoints, channel, known, lines, turn=turn, room=self._room),
            )
            return state.learner
        state.known = self._caught_up(channel, known)
        return None

    def _open_lock(self, channel: str, state: _State) -> FileLock:
        engine, path = self._engine, state.lock_path
        with explaining(f"cannot take the arrivals lock of channel '{channel}'"):
            try:
                return FileLock(path, engine.disk)
            except FileNotFoundError:  # the first arrival of all
                path.parent.mkdir(exist_ok=True)
                engine.disk.sync_directory(engine.root)
                return FileLock(path, engine.disk)

    def _take(self, lock: FileLock) -> bool:
        """Take the lock; whether nobody else did since we appended."""
        if not lock.try_exclusive():
            lock.exclusive_unnoted(self._engine.clock, self._engine.config.publishing.busy_timeout_s)
        return lock.noted() == self._token

    def _give_back(self, channel: str, state: _State, lock: FileLock) -> None:
        """Free the lock. Its file is there as long as this process has the directory open, so it may stay open."""
        if not self._closed and (state.lock is lock or len(self._open) < LOCKS_OPEN_MAX):
            self._open.add(channel)
            state.lock = lock
            lock.unlock()
        else:
            state.lock = None
            lock.release()

    def _sign(self, lock: FileLock) -> None:
        """Say who appends, before it does: whoever finds another name looks at the log first."""
        lock.note(self._token)
        if lock.noted() not in (self._token, ""):
            raise StorageError(f"{lock.path} cannot be written. Nothing was stored; 'helio doctor' checks the disk.")

    def _before(self, channel: str, file: ChannelFile, known: Knowledge | None) -> Knowledge:
        """What was known before, if that is about the channel as it is now; else what the checkpoint says."""
        return known if known is not None and known.same_life(file) else self.checkpoints.load(channel, file)

    def _caught_up(self, channel: str, known: Knowledge) -> Knowledge:
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

    def rebuild(self, channel: str, *, aside: Path | None) -> None:
        """Read the whole log, and write down what it holds. What was written down before is kept, or put ``aside``."""
        state = self._state(channel)
        with state.mutex:
            lock = state.lock or self._open_lock(channel, state)
            try:
                self._take(lock)
                state.known = state.learner = None
                if aside is not None:
                    with contextlib.suppress(FileNotFoundError):
                        aside.parent.mkdir(parents=True, exist_ok=True)
                        self._engine.disk.rename(self.checkpoints.path(channel), aside)
                known = Knowledge(self._engine.describe(channel), self._engine.name)
                self.checkpoints.catch_up(channel, known)
                self.checkpoints.save(channel, known)
                state.known, state.doubtful = known, False
            finally:
                self._give_back(channel, state, lock)

    def forget(self, channel: str) -> None:
        """Know nothing any more: the next who asks reads the checkpoint and the log."""
        state = self._states.get(channel)
        if state is not None:
            with state.mutex:
                state.known = state.learner = None

    def close(self) -> None:
        """Write down what is known and not yet written; nothing is lost if that fails."""
        self._closed = True
        for channel, state in list(self._states.items()):
            known, learner = state.known, state.learner
            if learner is not None:
                learner.stop()
            if known is not None and known.saved != known.covered and not state.doubtful:
                with contextlib.suppress(HeliographError, OSError, Outdated), self.known(channel) as found:
                    self.checkpoints.save(channel, found)
            if state.lock is not None and state.mutex.acquire(blocking=False):  # else whoever has it closes it
                try:
                    state.lock.release()
                    state.lock = None  # whoever comes later opens it again, and is told that the station is closed
                finally:
                    state.mutex.release()
