"""The SQLite file of the schedule: its layout, its connections, and its errors as ours.

A commit is on disk when it returns (WAL, ``synchronous=FULL``). A connection belongs to one thread at a time; a forked
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
    StationClosed,
    StorageError,
    UnsupportedFormat,
)

if TYPE_CHECKING:
    import sqlite3

FILE: Final = "schedule.sqlite3"
VERSION: Final = 1
_RETRY_S: Final = 0.01
_IDLE_MAX: Final = 4

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
CREATE INDEX waiting_order ON waiting (due_us, asked_us);
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
        self._connections: set[sqlite3.Connection] = set()
        self._set_free()
        self._closed = False
        self._names_kept = False
        _databases.add(self)

    def _set_free(self) -> None:
        self._idle: list[sqlite3.Connection] = []
        self._in_use = 0
        self._changed = threading.Condition(threading.Lock())
        self._writer = threading.Lock()  # SQLite lets waiting threads sleep and look again, this wakes them

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
                with self._connection() as connection:
                    yield connection

    @contextlib.contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """A transaction: when this block ends it is on disk, all of it or nothing."""
        if not self._writer.acquire(timeout=self._timeout_s):
            raise Busy(f"other threads have been writing to {self.path} for more than {self._timeout_s:g} s; try again")
        try:
            with _as_ours(self.path), self._connection() as connection:
                self._keep_names()
                connection.execute("BEGIN IMMEDIATE")
                try:
                    yield connection
                    connection.execute("COMMIT")
                except BaseException:
                    if connection.in_transaction:
                        connection.execute("ROLLBACK")
                    raise
        finally:
            self._writer.release()

    def _keep_names(self) -> None:
        """Before the first commit: what is in a file whose name a power cut takes back is not on disk."""
        if not self._names_kept:
            self._disk.sync_directory(self.directory)
            self._disk.sync_directory(self.directory.parent)
            self._names_kept = True

    def copy_to(self, path: Path) -> None:
        """A copy as of now, in one file."""
        import sqlite3

        with self.reading() as connection, contextlib.closing(sqlite3.connect(path)) as copy:
            connection.backup(copy)
            copy.execute("PRAGMA journal_mode = DELETE")

    def close(self) -> None:
        """Close the connections, once nobody is at work with them; whoever comes later gets StationClosed."""
        with self._changed:
            self._closed = True
            self._changed.wait_for(lambda: self._in_use == 0)
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()
        self._connections.clear()

    # -- connecting -----------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        with self._changed:
            if self._closed:
                raise StationClosed("the station is closed")
            self._in_use += 1
            connection = self._idle.pop() if self._idle else None
        try:
            if connection is None:
                connection = self._open()
            yield connection
        finally:
            self._give_back(connection)

    def _give_back(self, connection: sqlite3.Connection | None) -> None:
        with self._changed:
            self._in_use -= 1
            kept = len(self._idle) < _IDLE_MAX
            if connection is not None and kept:
                self._idle.append(connection)
            self._changed.notify_all()
        if connection is not None and not kept:
            self._connections.discard(connection)
            connection.close()

    def _open(self) -> sqlite3.Connection:
        import sqlite3

        self.directory.mkdir(exist_ok=True)
        connection = sqlite3.connect(
            self.path, timeout=self._timeout_s, isolation_level=None, check_same_thread=False, cached_statements=32
        )
        try:
            self._set_up(connection)
        except BaseException:
            connection.close()
            raise
        self._connections.add(connection)
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
            with contextlib.suppress(sqlite3.OperationalError):  # 0.1.0 had another index, which is only slower
                connection.execute("CREATE INDEX IF NOT EXISTS waiting_order ON waiting (due_us, asked_us)")
                connection.execute("DROP INDEX IF EXISTS waiting_due")
            return
        connection.execute("BEGIN IMMEDIATE")
        if _version(connection) == 0:  # nobody was quicker
            for statement in _LAYOUT.split(";\n"):
                connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {VERSION}")
        connection.execute("COMMIT")
        self._known_version(connection)

    def _known_version(self, connection: sqlite3.Connection) -> int:
        if (found := _version(connection)) > VERSION:
            raise UnsupportedFormat(f"{self.path} has format {found}, written by a newer Heliograph; upgrade")
        return found

    def _open_without_trace(self) -> sqlite3.Connection:
        """Without a journal the file is all there is. With one, its index is used, and neither is written."""
        import sqlite3

        journal, index = (self.path.with_name(FILE + suffix) for suffix in ("-wal", "-shm"))
        if journal.exists() and not index.exists():
            raise ReadOnly(f"{journal} has no index, so reading it would write one; open without read_only=True once")
        how = "readonly_shm=1" if journal.exists() else "immutable=1"
        uri = f"{self.path.absolute().as_uri()}?mode=ro&{how}"
        connection = sqlite3.connect(uri, timeout=self._timeout_s, uri=True)
        try:
            if self._known_version(connection) == VERSION:
                return connection
        except BaseException:
            connection.close()
            raise
        connection.close()  # whoever made the file was killed, or had no room, before anything was in it
        nothing = sqlite3.connect(":memory:")
        nothing.executescript(_LAYOUT)
        return nothing

    def abandon(self) -> None:
        """In a forked child: whatever SQLite would do with these, even closing, could harm the parent's."""
        import ctypes

        for connection in self._connections:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection))
        self._set_free()


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
