"""The state of a work queue: one SQLite file beside its position, subscriptions/images/resize/queue.sqlite3.

    partition   number, next, incarnation, time_us, anchor, anchor_id
    pending     partition, offset, deliveries, token, worker, until_us, letter_us

``next`` is the first offset that was never handed out. A message below it that is not pending is acknowledged; so
the file holds what is on its way, and not what is done, nor what waits in the log. A pending message either is leased
(``token``: until ``until_us`` of the monotonic clock, which all processes of one boot share and nobody can step) or
waits to be handed out again (no token: from ``until_us`` of the wall clock on, which survives a boot). ``letter_us``
says that a dead letter was begun. After a boot nobody holds a lease any more. ``anchor_id`` is the id of the message
before the offset ``anchor``, noted now and then, to recognise a log that is not the one it was.

The write-ahead log is synced when it is copied back, not with every commit: SIGKILL loses nothing, a power cut may
lose acknowledgements, which is a redelivery. What must not be lost is written in a durable turn.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
import time
import weakref
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from heliograph.errors import Busy, Damaged, DiskFull, Forked, NotFound, StorageError
from heliograph.limits import BUSY_PAUSE_S

FILE: Final = "queue.sqlite3"
FORMAT: Final = 1
_LOOKS: Final = 5
"""How often a reader looks at a file that it cannot read yet."""
_COPY_WAIT_S: Final = 5.0
"""How long a copy waits for a process that has the file to itself for a moment."""

_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS meta (name TEXT PRIMARY KEY, value NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS partition (
    number INTEGER PRIMARY KEY, next INTEGER NOT NULL, incarnation TEXT NOT NULL, time_us INTEGER NOT NULL,
    anchor INTEGER NOT NULL, anchor_id TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS pending (
    partition INTEGER NOT NULL, offset INTEGER NOT NULL, deliveries INTEGER NOT NULL, token INTEGER, worker TEXT,
    until_us INTEGER NOT NULL, letter_us INTEGER NOT NULL, PRIMARY KEY (partition, offset)) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS leased ON pending (until_us) WHERE token IS NOT NULL;
CREATE INDEX IF NOT EXISTS waiting ON pending (until_us) WHERE token IS NULL;
"""


class Key(NamedTuple):
    """A lease of a message: whoever has another token for it has lost it."""

    partition: int
    offset: int
    token: int


class Pending(NamedTuple):
    """A message that was handed out and is not acknowledged. ``until_us`` as the top of the module says."""

    partition: int
    offset: int
    deliveries: int
    token: int | None
    worker: str | None
    until_us: int
    letter_us: int


class Progress(NamedTuple):
    """How far a partition was handed out."""

    number: int
    next: int
    incarnation: str
    time_us: int
    anchor: int = 0
    anchor_id: str = ""


class Tally(NamedTuple):
    """Pending messages by what they wait for."""

    in_flight: int
    delayed: int
    visible: int


_PENDING: Final = "partition, offset, deliveries, token, worker, until_us, letter_us"


class Turn:
    """What may be done within one transaction."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._execute = connection.execute
        self._executemany = connection.executemany

    def meta(self, name: str) -> str | None:
        row = self._execute("SELECT value FROM meta WHERE name = ?", (name,)).fetchone()
        return None if row is None else str(row[0])

    def set_meta(self, name: str, value: str) -> None:
        self._execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (name, value))

    def want_room(self) -> None:
        """Somebody found as many messages in flight as are allowed, and waits."""
        self.set_meta("full", "1")

    def room_wanted(self) -> bool:
        """Whether somebody waits for room; asking takes the wish away."""
        return self._execute("DELETE FROM meta WHERE name = 'full'").rowcount > 0

    def progress(self) -> dict[int, Progress]:
        columns = "number, next, incarnation, time_us, anchor, anchor_id"
        rows = self._execute(f"SELECT {columns} FROM partition ORDER BY number")
        return {row[0]: Progress(*row) for row in rows}

    def begin(self, progress: Progress) -> None:
        """Say where a partition stands, whatever was known of it."""
        self._execute("INSERT OR REPLACE INTO partition VALUES (?, ?, ?, ?, ?, ?)", progress)

    def advance(self, partition: int, following: int, time_us: int) -> None:
        self._execute("UPDATE partition SET next = ?, time_us = ? WHERE number = ?", (following, time_us, partition))

    def anchor(self, partition: int, offset: int, message_id: str, life: str) -> None:
        """Note an id of the log that the partition's row is about; of another one it would say nothing."""
        statement = "UPDATE partition SET anchor = ?, anchor_id = ? WHERE number = ? AND next >= ? AND incarnation = ?"
        self._execute(statement, (offset, message_id, partition, offset, life))

    def in_flight(self, mono_us: int) -> int:
        found = self._execute("SELECT count(*) FROM pending WHERE token IS NOT NULL AND until_us > ?", (mono_us,))
        return int(found.fetchone()[0])

    def due(self, mono_us: int, wall_us: int, limit: int) -> list[Pending]:
        """What may be handed out again: leases that ran out, then what was given back."""
        expired = self._some("token IS NOT NULL", mono_us, limit)
        return expired + self._some("token IS NULL", wall_us, limit - len(expired))

    def _some(self, which: str, until_us: int, limit: int) -> list[Pending]:
        if limit <= 0:
            return []
        query = f"SELECT {_PENDING} FROM pending WHERE {which} AND until_us <= ? ORDER BY until_us LIMIT ?"
        return [Pending(*row) for row in self._execute(query, (until_us, limit))]

    def next_due(self) -> tuple[int | None, int | None]:
        """When the first lease runs out (monotonic), and when the first delay is over (wall clock)."""
        leased = self._execute("SELECT min(until_us) FROM pending WHERE token IS NOT NULL").fetchone()[0]
        waiting = self._execute("SELECT min(until_us) FROM pending WHERE token IS NULL").fetchone()[0]
        return leased, waiting

    def lease(self, messages: Iterable[Pending]) -> None:
        self._executemany("INSERT OR REPLACE INTO pending VALUES (?, ?, ?, ?, ?, ?, ?)", messages)

    def requeue(self, places: Iterable[tuple[int, int]]) -> int:
        """Make messages visible that are done, as if they had never been handed out; how many."""
        statement = (
            "INSERT OR IGNORE INTO pending SELECT ?, ?, 0, NULL, NULL, 0, 0 "
            "WHERE EXISTS (SELECT 1 FROM partition WHERE number = ? AND next > ?)"
        )
        return sum(self._execute(statement, (*place, *place)).rowcount for place in places)

    def finish(self, keys: Iterable[Key]) -> list[Key]:
        """Acknowledge; which of the leases were lost meanwhile."""
        statement = "DELETE FROM pending WHERE partition = ? AND offset = ? AND token = ?"
        return [key for key in keys if not self._execute(statement, key).rowcount]

    def put_back(self, key: Key, due_us: int, *, counts: bool) -> bool:
        """Let it be handed out again, from a moment of the wall clock on; False if the lease was lost."""
        statement = (
            "UPDATE pending SET token = NULL, worker = NULL, until_us = ?, deliveries = deliveries - ? "
            "WHERE partition = ? AND offset = ? AND token = ?"
        )
        return self._execute(statement, (due_us, 0 if counts else 1, *key)).rowcount > 0

    def extend(self, keys: Iterable[Key], until_us: int) -> list[Key]:
        """Keep leases; which of them were lost meanwhile."""
        statement = "UPDATE pending SET until_us = ? WHERE partition = ? AND offset = ? AND token = ?"
        return [key for key in keys if not self._execute(statement, (until_us, *key)).rowcount]

    def begin_letter(self, key: Key, now_us: int, until_us: int) -> bool:
        """A dead letter will be written, and the lease kept for it; False if the lease was lost."""
        statement = (
            "UPDATE pending SET letter_us = ?, until_us = max(until_us, ?) "
            "WHERE partition = ? AND offset = ? AND token = ?"
        )
        return self._execute(statement, (now_us, until_us, *key)).rowcount > 0

    def workers(self) -> dict[str, int]:
        """Who holds leases, and how many."""
        rows = self._execute("SELECT worker, count(*) FROM pending WHERE token IS NOT NULL GROUP BY worker")
        return {row[0]: row[1] for row in rows}

    def release(self, worker: str | None = None, place: tuple[int, int] | None = None) -> int:
        """Take leases away: a worker's, that of one message, or all. They are visible at once; how many there were."""
        statement = "UPDATE pending SET token = NULL, worker = NULL, until_us = 0 WHERE token IS NOT NULL"
        if place is not None:
            return self._execute(f"{statement} AND partition = ? AND offset = ?", place).rowcount
        if worker is not None:
            return self._execute(f"{statement} AND worker = ?", (worker,)).rowcount
        return self._execute(statement).rowcount

    def forget_from(self, partition: int, offset: int) -> int:
        """Forget what is pending at the offset and beyond."""
        statement = "DELETE FROM pending WHERE partition = ? AND offset >= ?"
        return self._execute(statement, (partition, offset)).rowcount

    def oldest(self, partition: int) -> int | None:
        """The smallest offset that is pending."""
        found = self._execute("SELECT min(offset) FROM pending WHERE partition = ?", (partition,)).fetchone()[0]
        return None if found is None else int(found)

    def tally(self, mono_us: int, wall_us: int) -> Tally:
        query = "SELECT count(*) FROM pending WHERE token IS NULL AND until_us > ?"
        leased, delayed = self.in_flight(mono_us), self._execute(query, (wall_us,)).fetchone()[0]
        return Tally(leased, delayed, sum(self.undone().values()) - leased - delayed)

    def undone(self) -> dict[int, int]:
        """How many messages of each partition were handed out once and are not done."""
        return dict(self._execute("SELECT partition, count(*) FROM pending GROUP BY partition").fetchall())

    def pending(self, limit: int) -> list[Pending]:
        query = f"SELECT {_PENDING} FROM pending ORDER BY partition, offset LIMIT ?"
        return [Pending(*row) for row in self._execute(query, (limit,))]


class QueueStore:
    """The file of one queue. One connection for all threads of a process, which take turns."""

    def __init__(self, path: Path, *, timeout_s: float, read_only: bool = False) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._durable = False
        with _explaining(path):
            self._connection = _reading(path) if read_only else _writing(path, timeout_s)
        _stores.add(self)

    @contextlib.contextmanager
    def turn(self, *, durable: bool = False) -> Iterator[Turn]:
        """One transaction: all of it is kept, or nothing. ``durable``: through a power cut, too."""
        self._check()
        with _explaining(self.path), self._lock:
            connection = self._connection
            if durable != self._durable:
                connection.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
                self._durable = durable
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield Turn(connection)
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise

    @contextlib.contextmanager
    def look(self) -> Iterator[Turn]:
        """One view of it all, that holds up nobody."""
        self._check()
        with _explaining(self.path), self._lock:
            self._connection.execute("BEGIN")
            try:
                yield Turn(self._connection)
            finally:
                self._connection.execute("ROLLBACK")

    def _check(self) -> None:
        if os.getpid() != self._pid:
            raise Forked("this queue was opened before fork(); open the station again in the child process")

    def close(self) -> None:
        """Let go of the file; the last one to do so leaves it alone, without its log."""
        _stores.discard(self)
        with self._lock, contextlib.suppress(sqlite3.Error):
            self._connection.close()


def _writing(path: Path, timeout_s: float) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=timeout_s, isolation_level=None, check_same_thread=False)
    try:
        _keep_log(connection, timeout_s)
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute("BEGIN IMMEDIATE")
        for statement in _SCHEMA.split(";"):
            connection.execute(statement)
        Turn(connection).set_meta("format", str(FORMAT))
        connection.execute("COMMIT")
    except BaseException:
        connection.close()
        raise
    return connection


def _keep_log(connection: sqlite3.Connection, timeout_s: float) -> None:
    """Have changes written to a log of their own. Where two make the file at once SQLite does not wait: do so here."""
    for left in reversed(range(1 + int(timeout_s / BUSY_PAUSE_S))):
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if not left or error.sqlite_errorname != "SQLITE_BUSY":
                raise
        time.sleep(BUSY_PAUSE_S)


def _reading(path: Path) -> sqlite3.Connection:
    """Open without a trace. A worker may just be making the file, or coming or going with its log: look again."""
    for _ in range(_LOOKS - 1):
        with contextlib.suppress(sqlite3.OperationalError):
            return _look_into(path)
        time.sleep(BUSY_PAUSE_S)
    try:
        return _look_into(path)
    except sqlite3.OperationalError as error:
        if "no such table" in str(error):
            raise NotFound(f"{path} is only being made; ask again in a moment") from error
        raise


def _look_into(path: Path) -> sqlite3.Connection:
    """A reader of a write-ahead log makes files of its own unless they are there already."""
    log, shared = Path(f"{path}-wal"), Path(f"{path}-shm")
    alone = not log.exists() or not shared.exists()
    uri = f"{path.absolute().as_uri()}?mode=ro{'&immutable=1' if alone else ''}"
    connection = sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False)
    try:
        connection.execute("SELECT count(*) FROM meta")
    except BaseException:
        connection.close()
        raise
    return connection


@contextlib.contextmanager
def copied(source: Path, target: Path, *, read_only: bool) -> Iterator[Turn]:
    """Copy a queue's state, in use or not, into one file; what is done in this turn is done to the copy."""
    with _explaining(source):
        connection = _reading(source) if read_only else sqlite3.connect(
            f"{source.absolute().as_uri()}?mode=rw", uri=True, isolation_level=None, timeout=_COPY_WAIT_S
        )  # fmt: skip
        with contextlib.closing(connection), contextlib.closing(sqlite3.connect(target, isolation_level=None)) as copy:
            connection.backup(copy)
            copy.execute("PRAGMA journal_mode = DELETE")
            found = _checked(copy)
            if found is not None:
                raise sqlite3.DatabaseError(found)
            copy.execute("BEGIN")
            yield Turn(copy)
            copy.execute("COMMIT")


def wrong_with(path: Path) -> str | None:
    """What is wrong with a queue's state; None if nothing is. NotFound if nothing is in it. Leaves no trace."""
    try:
        with contextlib.closing(_reading(path)) as connection:
            return _checked(connection)
    except sqlite3.Error as error:
        return str(error)


def _checked(connection: sqlite3.Connection) -> str | None:
    found = str(connection.execute("PRAGMA quick_check(1)").fetchone()[0])
    return None if found == "ok" else found


@contextlib.contextmanager
def _explaining(path: Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        raise _explain(error, path) from error


def _explain(error: sqlite3.Error, path: Path) -> StorageError | Busy:
    code = getattr(error, "sqlite_errorname", "") or ""
    if code.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
        return Busy(f"{path} has been locked for too long by another process. Is one stopped or in a debugger?")
    if code == "SQLITE_FULL":
        return DiskFull(f"cannot write {path}: no space left. Free space; the queue goes on by itself.")
    if code.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB")):
        return Damaged(
            f"{path} cannot be read ({error}). Move it away while no worker is live: the queue then goes on at its "
            "saved position, and what was acknowledged beyond that is delivered again."
        )
    return StorageError(f"cannot use {path}: {error}. 'helio doctor' checks the disk.")


_stores: weakref.WeakSet[QueueStore] = weakref.WeakSet()
_inherited: list[sqlite3.Connection] = []


def _after_fork_in_child() -> None:
    """SQLite forbids even to close a connection that was opened before the fork: it is kept, and never used."""
    _inherited.extend([store._connection for store in _stores])


os.register_at_fork(after_in_child=_after_fork_in_child)
