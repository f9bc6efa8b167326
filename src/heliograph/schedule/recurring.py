"""Schedules that publish again and again.

A firing is a waiting message like any other. It is made in the transaction that moves the schedule to its next
firing, so a crash neither doubles nor loses one; its id is made of the schedule's name and the time it was due.
"""

from __future__ import annotations

import logging
from datetime import datetime
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from heliograph.clock import from_us
from heliograph.errors import ConfigError
from heliograph.limits import SCHEDULE_RETRY_S_MAX
from heliograph.message import Timestamps
from heliograph.schedule import cron as crons
from heliograph.schedule.database import Database
from heliograph.schedule.waiting import Entry, insert

if TYPE_CHECKING:
    import sqlite3

logger = logging.getLogger("heliograph.schedule")
_fields = msgspec.json.Decoder(dict[str, msgspec.Raw])
_COLUMNS = "name, channel, key, cron, timezone, missed, ttl_us, body, next_us, last_us, error"


class Schedule(msgspec.Struct, frozen=True, kw_only=True):
    """A recurring schedule: what it publishes where, and when."""

    name: str
    channel: str
    cron: str
    timezone: str
    missed: str
    """What becomes of firings missed while nobody ran: "one" message for all, "all" of them, or "skip"."""
    next: datetime | None
    """When it fires next; None if never."""
    last: datetime | None
    """The last firing that was published."""
    error: str
    """Why it cannot fire, or an empty string."""


class Plan(NamedTuple):
    """A recurring schedule as it is stored. The body is that of its first message; id and times are filled in."""

    name: str
    channel: str
    key: str | None
    cron: str
    timezone: str
    missed: str
    ttl_us: int | None
    body: bytes
    next_us: int | None
    last_us: int | None = None
    error: str = ""

    def entry(self, due_us: int) -> Entry:
        """The message of one firing."""
        stamps = Timestamps()
        stamp = stamps.format(due_us).decode()
        message_id = firing_id(self.name, due_us)
        fields = _fields.decode(self.body + b"}")
        fields["id"], fields["time"] = _raw(message_id), _raw(stamp)
        if self.ttl_us is not None:
            fields["expires"] = _raw(stamps.format(due_us + self.ttl_us).decode())
        body = msgspec.json.encode(fields).removesuffix(b"}")
        return Entry(message_id, self.channel, self.key, due_us, due_us, body)

    def shown(self) -> Schedule:
        """For people."""
        following, last = (None if us is None else from_us(us) for us in (self.next_us, self.last_us))
        return Schedule(
            name=self.name, channel=self.channel, cron=self.cron, timezone=self.timezone, missed=self.missed,
            next=following, last=last, error=self.error,
        )  # fmt: skip


def firing_id(name: str, due_us: int) -> str:
    """The id of a firing's message.

    >>> firing_id("nightly", 1_794_787_200_000_000)
    'nightly@2026-11-16T00:00:00Z'
    """
    return f"{name}@{from_us(due_us).isoformat().replace('+00:00', 'Z')}"


def _raw(value: str) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(value))


class Recurring:
    """The table of recurring schedules."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def put(self, plan: Plan) -> Plan:
        """Make or change a schedule. One that fires at the same times as before goes on where it was."""
        with self._database.writing() as connection:
            before = _one(connection, plan.name)
            if before is not None:
                plan = plan._replace(last_us=before.last_us)
                if (before.cron, before.timezone) == (plan.cron, plan.timezone):
                    plan = plan._replace(next_us=before.next_us)
            _store(connection, plan)
        return plan

    def remove(self, name: str) -> bool:
        """Fire no more; whether there was one."""
        with self._database.writing() as connection:
            return connection.execute("DELETE FROM recurring WHERE name = ?", (name,)).rowcount == 1

    def all(self) -> list[Plan]:
        """Every schedule, by name."""
        with self._database.reading() as connection:
            return list(map(Plan._make, connection.execute(f"SELECT {_COLUMNS} FROM recurring ORDER BY name")))

    def next_us(self) -> int | None:
        """When one of them fires next."""
        with self._database.reading() as connection:
            return connection.execute("SELECT min(next_us) FROM recurring").fetchone()[0]  # type: ignore[no-any-return]

    def fire(self, now_us: int) -> int:
        """Make the messages of all firings that are due, and move on; how many schedules fired."""
        if (self.next_us() or now_us + 1) > now_us:
            return 0
        with self._database.writing() as connection:
            due = connection.execute(f"SELECT {_COLUMNS} FROM recurring WHERE next_us <= ?", (now_us,)).fetchall()
            for plan in map(Plan._make, due):
                _fire(connection, plan, now_us)
        return len(due)


def _fire(connection: sqlite3.Connection, plan: Plan, now_us: int) -> None:
    assert plan.next_us is not None
    try:
        due_us, next_us = crons.firings(plan.cron, plan.timezone, plan.missed, plan.next_us, now_us)
    except ConfigError as error:  # its time zone is gone
        logger.error("schedule '%s' cannot fire: %s", plan.name, error)
        _store(connection, plan._replace(next_us=now_us + int(SCHEDULE_RETRY_S_MAX * 1e6), error=str(error)))
        return
    insert(connection, [plan.entry(moment_us) for moment_us in due_us], ignore=True)
    _store(connection, plan._replace(next_us=next_us, last_us=due_us[-1] if due_us else plan.last_us, error=""))


def _one(connection: sqlite3.Connection, name: str) -> Plan | None:
    row = connection.execute(f"SELECT {_COLUMNS} FROM recurring WHERE name = ?", (name,)).fetchone()
    return None if row is None else Plan._make(row)


def _store(connection: sqlite3.Connection, plan: Plan) -> None:
    connection.execute(f"INSERT OR REPLACE INTO recurring ({_COLUMNS}) VALUES (?,?,?,?,?,?,?,?,?,?,?)", plan)
