"""The SQLite file of the schedule: its layout, its connections, and its errors as ours.

A commit is on disk when it returns (WAL, ``synchronous=FULL``). Each thread has a connection of its own; a forked
child uses none of its parent's. Whoever only reads leaves no trace.

    waiting      a message until it is due: the publisher's part of its line as it will be appended, and when.
                 ``due_us`` is when it is tried (again), ``asked_us`` what the caller said. ``moving`` is 1 from the
                 moment it is on its way to its channel: then it cannot be cancelled any more
    moving       one row for each channel that messages are on their way to: where its partitions ended before,
                 so that whoever comes after a crash looks from there which of them arrived
    recurring    a schedule that makes a waiting message at each of its firings
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn

from heliograph.clock import Clock
from heliograph.disk import Disk
from heliograph.errors import (
    AlreadyExists,
    Busy,
    Damaged,
    DiskFull,
    HeliographError,
    ReadOnly,
    StorageError,
    UnsupportedFormat,
)

if TYPE_CHECKING:
    import sqlite3

FILE: Final = "schedule.sqlite3"
VERSION: Final = 1
_RETRY_S: Final = 0.01

_LAYOUT: Final = """
CREATE TABLE waiting (
    seq INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    channel TEXT NOT NULL,
    key TEXT,
    due_us INTEGER NOT NULL,
    asked_us INTEGER NOT NULL,
    time_us INTEGER NOT NULL,
    body BLOB NOT NULL,
    moving INTEGER NOT NULL DEFAULT 0,
    attempts INTEGER NOT NULL DEFAULT 0,
    error TEXT NOT NULL DEFAULT ''
);
CREATE INDEX waiting_due ON waiting (due_us);
CREATE INDEX waiting_moving ON waiting (channel) WHERE moving = 1;
CREATE INDEX waiting_failed ON waiting (seq) WHERE error <> '';
CREATE TABLE moving (
    channel TEXT PRIMARY KEY,
    incarnation TEXT NOT NULL,
    ends TEXT NOT NULL,
    look_us INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE recurring (
    name TEXT PRIMARY KEY,
    channel TEXT NOT NULL,
    key TEXT,
    cron TEXT NOT NULL,
    timezone TEXT NOT NULL,
    missed TEXT NOT NULL,
    ttl_us INTEGER,
    body BLOB NOT NULL,
    next_us INTEGER,
    last_us INTEGER,
    error TEXT NOT NULL DEFAULT ''
) WITHOUT ROWID;
"""


class Database:
    """Connections to one station's schedule."""

    def __init__(self, root: Path, disk: Disk, clock: Clock, *, read_only: bool, timeout_s: float) -> None:
        self.directory = root / "schedule"
        self.path = self.directory / FILE
        self._disk = disk
        self._clock = clock
        self._read_only = read_only
        self._timeout_s = timeout_s
        self._local = threading.local()
        self._lock = threading.Lock()
        self._connections: list[sqlite3.Connection] = []
        _databases.add(self)

    def exists(self) -> bool:
        """Whether anything was ever scheduled here."""
        return self.path.exists()

    @contextlib.contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """A connection to ask, in one statement."""
        with _as_ours(self.path):
            if self._read_only:
                with contextlib.closing(self._open_without_trace()) as connection:
                    yield connection
            else:
                yield self._connection()

    @contextlib.contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """A transaction: when this block ends it is on disk, all of it or nothing."""
        with _as_ours(self.path):
            connection = self._connection()
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise

    def copy_to(self, path: Path) -> None:
        """A copy as of now, in one file."""
        import sqlite3

        with self.reading() as connection, contextlib.closing(sqlite3.connect(path)) as copy:
            connection.backup(copy)
            copy.execute("PRAGMA journal_mode = DELETE")

    def close(self) -> None:
        """Close the connections of all threads, none of which may be at work."""
        with self._lock:
            connections, self._connections = self._connections, []
        self._local = threading.local()
        for connection in connections:
            connection.close()

    # -- connecting -----------------------------------------------------------------------------------------------

    def _connection(self) -> sqlite3.Connection:
        found: sqlite3.Connection | None = getattr(self._local, "connection", None)
        if found is None:
            found = self._local.connection = self._open()
            with self._lock:
                self._connections.append(found)
        return found

    def _open(self) -> sqlite3.Connection:
        import sqlite3

        if not self.directory.is_dir():
            self.directory.mkdir(exist_ok=True)
            self._disk.sync_directory(self.directory.parent)
        new = not self.path.exists()
        connection = sqlite3.connect(
            self.path, timeout=self._timeout_s, isolation_level=None, check_same_thread=False, cached_statements=32
        )
        try:
            self._set_up(connection)
            if new:
                self._disk.sync_directory(self.directory)
        except BaseException:
            connection.close()
            raise
        return connection

    def _set_up(self, connection: sqlite3.Connection) -> None:
        import sqlite3

        until = self._clock.monotonic() + self._timeout_s
        while True:  # two that make it at once: SQLite does not wait for this
            try:
                connection.execute("PRAGMA journal_mode = WAL")
                break
            except sqlite3.OperationalError:
                if self._clock.monotonic() > until:
                    raise
            self._clock.sleep(_RETRY_S)
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA journal_size_limit = 16777216")  # what one huge batch made it grow to is given back
        if sys.platform == "darwin":
            connection.execute("PRAGMA fullfsync = 1")
        if _version(connection) == VERSION:
            return
        connection.execute("BEGIN IMMEDIATE")
        if _version(connection) == 0:  # nobody was quicker
            for statement in _LAYOUT.split(";\n"):
                connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {VERSION}")
        connection.execute("COMMIT")
        if (found := _version(connection)) > VERSION:
            raise UnsupportedFormat(f"{self.path} has format {found}, written by a newer Heliograph; upgrade")

    def _open_without_trace(self) -> sqlite3.Connection:
        """Without a journal the file is all there is. With one, its index is used, and neither is written."""
        import sqlite3

        journal, index = (self.path.with_name(FILE + suffix) for suffix in ("-wal", "-shm"))
        if journal.exists() and not index.exists():
            raise ReadOnly(f"{journal} has no index, so reading it would write one; open without read_only=True once")
        how = "readonly_shm=1" if journal.exists() else "immutable=1"
        return sqlite3.connect(f"{self.path.absolute().as_uri()}?mode=ro&{how}", timeout=self._timeout_s, uri=True)

    def abandon(self) -> None:
        """In a forked child: whatever SQLite would do with these, even closing, could harm the parent's."""
        import ctypes

        for connection in self._connections:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection))
        self._connections = []
        self._local = threading.local()


def _version(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


@contextlib.contextmanager
def _as_ours(path: Path) -> Iterator[None]:
    import sqlite3

    try:
        yield
    except sqlite3.Error as error:
        _translate(error, path)


def _translate(error: sqlite3.Error, path: Path) -> NoReturn:
    import sqlite3

    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    kinds: dict[int, type[HeliographError]] = {
        sqlite3.SQLITE_BUSY: Busy,
        sqlite3.SQLITE_LOCKED: Busy,
        sqlite3.SQLITE_FULL: DiskFull,
        sqlite3.SQLITE_READONLY: ReadOnly,
        sqlite3.SQLITE_CORRUPT: Damaged,
        sqlite3.SQLITE_NOTADB: Damaged,
        sqlite3.SQLITE_CONSTRAINT: AlreadyExists,
    }
    advice = {
        Busy: "Nothing was scheduled; try again.",
        DiskFull: "Free space; scheduling resumes by itself.",
        Damaged: "Set the file aside and restore it from a backup.",
    }
    kind = kinds.get(code, StorageError)
    raise kind(f"{path}: {error}. {advice.get(kind, 'Nothing was scheduled.')}") from error


_databases: weakref.WeakSet[Database] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for database in list(_databases):
        database.abandon()


os.register_at_fork(after_in_child=_after_fork_in_child)
