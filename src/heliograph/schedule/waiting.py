"""Messages that wait, in the order they are due. Nothing is kept in memory but a page at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from heliograph.clock import from_us
from heliograph.errors import AlreadyExists
from heliograph.limits import SCHEDULE_MOVE_BYTES_MAX, SCHEDULE_MOVE_MAX, SCHEDULE_PAGE, SCHEDULE_RETRY_S_MAX
from heliograph.message import Receipt
from heliograph.schedule.database import Database

if TYPE_CHECKING:
    import sqlite3

_FIELDS: Final = "id, channel, asked_us, key, moving, error, due_us, seq"
ORDER: Final = "due_us, asked_us, seq"
"""What failed together is tried again together, and comes in the order it was due."""


class Scheduled(Receipt, frozen=True, gc=False, kw_only=True):
    """A message that waits until it is due. It has no place in its channel's log yet: its offset is -1.

    ``moving``: it is on its way and cannot be cancelled any more. ``error``: why it could not be delivered; it
    is tried again.
    """

    due: datetime
    key: str | None = None
    moving: bool = False
    error: str = ""


class Entry(NamedTuple):
    """A message to be stored: its body is the publisher's part of its line."""

    id: str
    channel: str
    key: str | None
    due_us: int
    time_us: int
    body: bytes


class Row(NamedTuple):
    """A message on its way."""

    seq: int
    id: str
    channel: str
    key: str | None
    time_us: int
    body: bytes
    attempts: int


class Record(msgspec.Struct, frozen=True):
    """Where a channel's partitions ended before messages were sent on their way to it."""

    channel: str
    incarnation: str
    ends: list[int]


def receipt(entry: Entry) -> Scheduled:
    """What the publisher of a message gets."""
    return Scheduled(entry.id, entry.channel, -1, -1, due=from_us(entry.due_us), key=entry.key)


def insert(connection: sqlite3.Connection, entries: Iterable[Entry], *, ignore: bool = False) -> None:
    """Store messages, within a transaction."""
    connection.executemany(
        f"INSERT {'OR IGNORE ' if ignore else ''}INTO waiting (id, channel, key, due_us, asked_us, time_us, body) "
        "VALUES (?1, ?2, ?3, ?4, ?4, ?5, ?6)",
        entries,
    )


class Waiting:
    """The table of waiting messages."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def add(self, entries: Iterable[Entry]) -> None:
        """Store these: all or none, on disk when it returns."""
        try:
            with self._database.writing() as connection:
                insert(connection, entries)
        except AlreadyExists as error:
            raise AlreadyExists(
                "a message with this id waits already, so nothing was scheduled; cancel that one, or leave the id out"
            ) from error

    def cancel(self, message_id: str) -> bool:
        """Forget a message, unless it is on its way already; whether that was done."""
        with self._database.writing() as connection:
            return connection.execute("DELETE FROM waiting WHERE id = ? AND moving = 0", (message_id,)).rowcount == 1

    # -- looking ----------------------------------------------------------------------------------------------------

    def each(self, channel: str | None = None) -> Iterator[Scheduled]:
        """In the order they are due, a page at a time: what is scheduled meanwhile may or may not be among them."""
        only, names = ("channel = ? AND", [channel]) if channel is not None else ("", [])
        after = (-1, -1, -1)
        while True:
            with self._database.reading() as connection:
                page = connection.execute(
                    f"SELECT {_FIELDS} FROM waiting WHERE {only} ({ORDER}) > (?, ?, ?) ORDER BY {ORDER} LIMIT ?",
                    (*names, *after, SCHEDULE_PAGE),
                ).fetchall()
            for row in page:
                yield _scheduled(row)
            if len(page) < SCHEDULE_PAGE:
                return
            _, _, asked_us, *_, due_us, seq = page[-1]
            after = (due_us, asked_us, seq)

    def find(self, message_id: str) -> tuple[Scheduled, bytes] | None:
        """One message and its envelope, as far as it is known."""
        with self._database.reading() as connection:
            row = connection.execute(f"SELECT {_FIELDS}, body FROM waiting WHERE id = ?", (message_id,)).fetchone()
        return None if row is None else (_scheduled(row[:-1]), row[-1] + b"}")

    def count(self, channel: str | None = None) -> int:
        """How many wait."""
        with self._database.reading() as connection:
            if channel is None:
                return int(connection.execute("SELECT count(*) FROM waiting").fetchone()[0])
            return int(connection.execute("SELECT count(*) FROM waiting WHERE channel = ?", (channel,)).fetchone()[0])

    def failed(self) -> int:
        """How many of them could not be delivered when they were due, so far."""
        with self._database.reading() as connection:
            return int(connection.execute("SELECT count(*) FROM waiting WHERE error <> ''").fetchone()[0])

    def next_us(self) -> int | None:
        """When there is something to do next: a message is due, or one on its way is to be looked after."""
        with self._database.reading() as connection:
            return connection.execute(  # type: ignore[no-any-return]
                "SELECT min(at) FROM (SELECT min(due_us) AS at FROM waiting UNION ALL SELECT min(look_us) FROM moving)"
            ).fetchone()[0]

    # -- on their way -------------------------------------------------------------------------------------------------

    def send(self, now_us: int, record_of: Callable[[str], Record], held: Mapping[str, int] | None = None) -> list[Row]:
        """Mark what is due as being on its way, with where each channel ends now. In order; a bounded number.

        Nothing overtakes what could not be delivered: it waits as long as that, as ``held`` says by channel.
        """
        with self._database.writing() as connection:
            busy = {**(held or {}), **dict(connection.execute("SELECT channel, look_us FROM moving").fetchall())}
            due = connection.execute(
                "SELECT seq, id, channel, key, time_us, body, attempts FROM waiting "
                f"WHERE due_us <= ? AND moving = 0 ORDER BY {ORDER} LIMIT ?",
                (now_us, SCHEDULE_MOVE_MAX),
            )
            rows: list[Row] = []
            size = 0
            for row in map(Row._make, due):
                size += len(row.body)
                if rows and size > SCHEDULE_MOVE_BYTES_MAX:
                    break
                rows.append(row)
            due.close()
            rows = _hold_back(connection, rows, busy, now_us)
            for record in map(record_of, dict.fromkeys(row.channel for row in rows)):
                connection.execute(
                    "INSERT INTO moving VALUES (?, ?, ?, ?)",
                    (record.channel, record.incarnation, msgspec.json.encode(record.ends).decode(), now_us),
                )
            connection.executemany("UPDATE waiting SET moving = 1 WHERE seq = ?", [(row.seq,) for row in rows])
        return rows

    def on_their_way(self, now_us: int) -> list[Record]:
        """The channels to which messages were on their way when somebody died or failed."""
        with self._database.reading() as connection:
            found = connection.execute(
                "SELECT channel, incarnation, ends FROM moving WHERE look_us <= ? ORDER BY channel", (now_us,)
            ).fetchall()
        return [Record(channel, incarnation, msgspec.json.decode(ends)) for channel, incarnation, ends in found]

    def sent_to(self, channel: str) -> list[Row]:
        """The messages on their way to a channel."""
        with self._database.reading() as connection:
            rows = connection.execute(
                "SELECT seq, id, channel, key, time_us, body, attempts FROM waiting "
                "WHERE channel = ? AND moving = 1 ORDER BY asked_us, seq",
                (channel,),
            ).fetchall()
        return list(map(Row._make, rows))

    def arrived(self, rows: Sequence[Row], back: Sequence[Row] = (), error: str = "", until_us: int = 0) -> None:
        """These are in their channels, durably: forget them. The others wait again, until then if they failed."""
        with self._database.writing() as connection:
            connection.executemany("DELETE FROM waiting WHERE seq = ?", [(row.seq,) for row in rows])
            if error:
                _postpone(connection, back, error, until_us)
            else:
                connection.executemany(
                    "UPDATE waiting SET moving = 0, due_us = asked_us WHERE seq = ?", [(row.seq,) for row in back]
                )
            names = dict.fromkeys(row.channel for row in (*rows, *back))
            connection.executemany("DELETE FROM moving WHERE channel = ?", [(name,) for name in names])

    def try_again(self) -> None:
        """What failed, and what waits behind it, is due when it was asked for, not when somebody meant to try next."""
        if self.failed():  # asking locks nobody out
            with self._database.writing() as connection:
                connection.execute("UPDATE waiting SET due_us = asked_us WHERE error <> '' AND moving = 0")

    def forget_record(self, channel: str) -> None:
        """Nothing is on its way to this channel."""
        with self._database.writing() as connection:
            connection.execute("DELETE FROM moving WHERE channel = ?", (channel,))

    def look_later(self, rows: Sequence[Row], error: str, now_us: int) -> None:
        """Whether these have arrived cannot be told now: they stay on their way, with the reason."""
        until_us = again_us(rows, now_us)
        with self._database.writing() as connection:
            connection.executemany(
                "UPDATE waiting SET error = ?, attempts = attempts + 1, due_us = ? WHERE seq = ?",
                [(error, until_us, row.seq) for row in rows],
            )
            for name in dict.fromkeys(row.channel for row in rows):
                connection.execute("UPDATE moving SET look_us = ? WHERE channel = ?", (until_us, name))


def _hold_back(connection: sqlite3.Connection, rows: Sequence[Row], busy: Mapping[str, int], now_us: int) -> list[Row]:
    """Let those of busy channels wait as long as what is before them; the others."""
    for name in dict.fromkeys(row.channel for row in rows if row.channel in busy):
        behind = [row for row in rows if row.channel == name]
        until_us = max(busy[name], now_us + pause_us(0))
        _postpone(connection, behind, "messages before it are not delivered yet", until_us)
    return [row for row in rows if row.channel not in busy]


def _postpone(connection: sqlite3.Connection, rows: Sequence[Row], error: str, until_us: int) -> None:
    """All to the same moment: then they come in the order they were due, and published."""
    connection.executemany(
        "UPDATE waiting SET moving = 0, error = ?, attempts = attempts + 1, due_us = ? WHERE seq = ?",
        [(error, until_us, row.seq) for row in rows],
    )


def again_us(rows: Sequence[Row], now_us: int) -> int:
    """When to try messages again that failed together."""
    return now_us + pause_us(max((row.attempts for row in rows), default=0))


def pause_us(attempts: int) -> int:
    """How long to wait before the next attempt: a second, doubled each time up to a limit.

    >>> pause_us(0), pause_us(3), pause_us(100)
    (1000000, 8000000, 60000000)
    """
    return int(min(2.0 ** min(attempts, 30), SCHEDULE_RETRY_S_MAX) * 1e6)


def _scheduled(row: tuple[str, str, int, str | None, int, str, int, int]) -> Scheduled:
    message_id, channel, asked_us, key, moving, error, _, _ = row
    return Scheduled(message_id, channel, -1, -1, due=from_us(asked_us), key=key, moving=bool(moving), error=error)
