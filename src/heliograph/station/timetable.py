"""Publishing later: between the station's API and its schedule.

Nothing of it costs a station that schedules nothing: no file, no thread, not even the import of sqlite3.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from heliograph.clock import to_us
from heliograph.errors import Busy, ConfigError, InvalidName, ReadOnly, StationClosed, StorageError, UnsupportedFormat
from heliograph.limits import NAME_BYTES_MAX
from heliograph.log.tickets import ColumnsTicket, Ticket
from heliograph.message import Draft, HeaderValue, Receipt, is_text
from heliograph.names import check_name
from heliograph.payloads import batch_of
from heliograph.schedule import times
from heliograph.station.publisher import Publisher

if TYPE_CHECKING:
    from pathlib import Path

    from heliograph.engine.files import FilesEngine
    from heliograph.schedule.database import Database
    from heliograph.schedule.dispatcher import Dispatcher
    from heliograph.schedule.recurring import Recurring, Schedule
    from heliograph.schedule.waiting import Entry, Scheduled, Waiting

logger = logging.getLogger("heliograph.schedule")
SCHEDULE_NAME_CHARS_MAX = 150
"""Longest name of a recurring schedule: with the time it is the id of a message."""


class Timetable:
    """What waits for its time in one station, and the dispatcher of this process."""

    def __init__(self, engine: FilesEngine, publisher: Publisher) -> None:
        self._engine = engine
        self._publisher = publisher
        self._lock = threading.Lock()
        self._database: Database | None = None
        self._dispatcher: Dispatcher | None = None
        self._closed = False
        self.look()

    def look(self) -> None:
        """Begin to dispatch if there is a schedule, which another process may have made in this moment."""
        if self._dispatcher is None and not self._engine.read_only and (self._engine.root / "schedule").is_dir():
            self._dispatching()

    def close(self) -> None:
        """Stop dispatching after the messages at hand."""
        with self._lock:
            self._closed = True
            dispatcher, database = self._dispatcher, self._database
        if dispatcher is not None:
            dispatcher.close()
        if database is not None:
            database.close()

    # -- publishing later -----------------------------------------------------------------------------------------

    def publish(
        self, channel: str, data: Any, type_name: str | None, key: str | None,
        headers: Mapping[str, HeaderValue] | None, correlation_id: str | None, subject: str | None,
        message_id: str | None, wait: float | None, deliver_at: datetime | None, delay: times.Span | None,
        ttl: times.Span | None,
    ) -> Receipt:  # fmt: skip
        """Publish one message that is not delivered at once, or not for ever."""
        now_us, lifetime = self._now_us(), times.ttl_of(ttl)
        if deliver_at is None and delay is None:
            headers = times.with_expiry(headers, lifetime, now_us)
            return self._publisher.publish(
                channel, data, type_name, key, headers, correlation_id, subject, message_id, wait
            )
        due_us = times.due_us(now_us, deliver_at, delay)
        headers = times.with_expiry(headers, lifetime, max(due_us, now_us))
        ticket, own_id = self._publisher.prepare(
            channel, data, type_name, key, headers, correlation_id, subject, message_id, _nobody
        )
        return self._add(channel, due_us, [own_id], [key], [ticket.now_us], [ticket.bodies[0]])[0]

    def publish_many(
        self, channel: str, payloads: Iterable[Any], type_name: str | None, key: str | None,
        headers: Mapping[str, HeaderValue] | None, correlation_id: str | None, wait: float | None,
        deliver_at: datetime | None, delay: times.Span | None, ttl: times.Span | None,
    ) -> list[Receipt]:  # fmt: skip
        """Publish a batch that is not delivered at once, or not for ever."""
        now_us, lifetime = self._now_us(), times.ttl_of(ttl)
        if deliver_at is None and delay is None:
            headers = times.with_expiry(headers, lifetime, now_us)
            return self._publisher.publish_many(channel, payloads, type_name, key, headers, correlation_id, wait)
        due_us = times.due_us(now_us, deliver_at, delay)
        headers = times.with_expiry(headers, lifetime, max(due_us, now_us))
        batch = batch_of(payloads)
        ticket, ids = self._publisher.prepare_many(channel, batch, type_name, key, headers, correlation_id)
        drafts = [item if isinstance(item, Draft) else None for item in batch]
        keys = [key if draft is None or draft.key is None else draft.key for draft in drafts]
        moments = [ticket.now_us if draft is None or draft.time is None else to_us(draft.time) for draft in drafts]
        return [*self._add(channel, due_us, ids, keys, moments, _bodies(ticket))]

    def _add(
        self, channel: str, due_us: int, ids: list[str], keys: list[str | None], moments: list[int], bodies: list[bytes]
    ) -> list[Scheduled]:
        from heliograph.schedule.waiting import Entry, receipt

        if not self._engine.config.storage.auto_create:
            self._engine.describe(channel)
        entries = [
            Entry(one, channel, key, due_us, moment, body)
            for one, key, moment, body in zip(ids, keys, moments, bodies, strict=True)
        ]
        if entries:
            self._store(entries)
        return [receipt(entry) for entry in entries]

    def _store(self, entries: list[Entry]) -> None:
        self._waiting().add(entries)
        self._dispatching().tell(entries[0].due_us)

    # -- what waits -------------------------------------------------------------------------------------------------

    def scheduled(self, channel: str | None) -> Iterator[Scheduled]:
        """Waiting messages in the order they are due."""
        self._engine.check_open()
        if channel is not None:
            check_name(channel)
        return self._waiting().each(channel) if self._exists() else iter(())

    def count(self, channel: str | None = None) -> int:
        """How many wait."""
        self._engine.check_open()
        return self._waiting().count(channel) if self._exists() else 0

    def failed(self) -> int:
        """How many of them could not be delivered when they were due."""
        return self._waiting().failed() if self._exists() else 0

    def numbers(self) -> tuple[int, int]:
        """How many wait, and how many of them have failed; -1 if that cannot be read."""
        try:
            return self.count(), self.failed()
        except (StorageError, ReadOnly, Busy, UnsupportedFormat) as error:
            logger.warning("the schedule cannot be counted: %s", error)
            return -1, -1

    def find(self, message_id: str) -> tuple[Scheduled, bytes] | None:
        """One waiting message, and its envelope."""
        self._engine.check_open()
        return self._waiting().find(message_id) if is_text(message_id) and self._exists() else None

    def cancel(self, message_id: str) -> bool:
        """Forget a waiting message, unless it is on its way; whether that was done."""
        self._engine.check_writable()
        return self._waiting().cancel(message_id) if is_text(message_id) and self._exists() else False

    def copy_to(self, path: Path) -> bool:
        """Copy the schedule into a file, as of now; False if there is none."""
        if self._exists():
            self._data().copy_to(path)
        return self._exists()

    # -- recurring --------------------------------------------------------------------------------------------------

    def schedule(
        self, name: str, channel: str, data: Any, cron: str, timezone: str, missed: str, type_name: str | None,
        key: str | None, headers: Mapping[str, HeaderValue] | None, correlation_id: str | None, subject: str | None,
        ttl: times.Span | None,
    ) -> Schedule:  # fmt: skip
        """Make or change a recurring schedule."""
        from heliograph.schedule import cron as crons
        from heliograph.schedule.recurring import Plan

        if len(check_name(name, "schedule")) > SCHEDULE_NAME_CHARS_MAX:
            raise InvalidName(f"a schedule's name has at most {SCHEDULE_NAME_CHARS_MAX} of {NAME_BYTES_MAX} characters")
        if missed not in crons.POLICIES:
            raise ConfigError(f"missed={missed!r}: use one of {', '.join(crons.POLICIES)}")
        now_us, lifetime = self._now_us(), times.ttl_of(ttl)
        next_us = crons.following(cron, timezone, now_us)
        if next_us is None:
            raise ConfigError(f"cron {cron!r} never fires")
        ticket, _ = self._publisher.prepare(
            channel, data, type_name, key, times.with_expiry(headers, lifetime, now_us), correlation_id, subject,
            "x" * SCHEDULE_NAME_CHARS_MAX, _nobody,
        )  # fmt: skip
        if not self._engine.config.storage.auto_create:
            self._engine.describe(channel)
        ttl_us = None if lifetime is None else lifetime // timedelta(microseconds=1)
        plan = self._recurring().put(
            Plan(name, channel, key, cron, timezone, missed, ttl_us, ticket.bodies[0], next_us)
        )
        self._dispatching().tell(plan.next_us or 0)
        self._engine.audit.write("scheduled", schedule=name, channel=channel, cron=cron, timezone=timezone)
        return plan.shown()

    def schedules(self) -> list[Schedule]:
        """Every recurring schedule."""
        self._engine.check_open()
        return [plan.shown() for plan in self._recurring().all()] if self._exists() else []

    def unschedule(self, name: str) -> bool:
        """Remove a recurring schedule; whether there was one."""
        self._engine.check_writable()
        check_name(name, "schedule")
        removed = self._recurring().remove(name) if self._exists() else False
        if removed:
            self._engine.audit.write("unscheduled", schedule=name)
        return removed

    # -- opened when needed -------------------------------------------------------------------------------------------

    def _now_us(self) -> int:
        return self._engine.clock.time_ns() // 1000

    def _exists(self) -> bool:
        return self._data().exists()

    def _data(self) -> Database:
        from heliograph.schedule.database import Database

        with self._lock:
            if self._database is None:
                engine = self._engine
                self._database = Database(
                    engine.root, engine.disk, engine.clock, read_only=engine.read_only,
                    timeout_s=engine.config.publishing.busy_timeout_s,
                )  # fmt: skip
            return self._database

    def _waiting(self) -> Waiting:
        from heliograph.schedule.waiting import Waiting

        return Waiting(self._data())

    def _recurring(self) -> Recurring:
        from heliograph.schedule.recurring import Recurring

        return Recurring(self._data())

    def _dispatching(self) -> Dispatcher:
        from heliograph.schedule.dispatcher import Dispatcher

        database = self._data()
        with self._lock:
            if self._closed:
                raise StationClosed("the station is closed")
            if self._dispatcher is None:
                self._dispatcher = Dispatcher(self._engine, database, self._publisher.republish)
            return self._dispatcher


def _nobody(_: list[Ticket]) -> None:
    """These tickets are never submitted: only their bodies are wanted."""


def _bodies(ticket: Ticket) -> list[bytes]:
    if isinstance(ticket, ColumnsTicket):
        return ticket.filled()
    return list(ticket.bodies)
