"""What is due goes to its channel: nothing is lost, nothing is doubled, whoever is killed in between.

    send ─▶ append ─▶ sync ─▶ arrived
      │        └── it failed, or somebody died: look ─▶ arrived, or waiting again

*Send* marks the messages and notes, in the same transaction, where each channel ends. Whatever happens after that,
whether a message has arrived is found out by looking for its very bytes in the log from there on. So there is
one way back from every failure, and it is the same as the way back from a crash.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from datetime import datetime

from heliograph.clock import from_us
from heliograph.delivery.deadletter import describe
from heliograph.engine.files import FilesEngine
from heliograph.errors import HeliographError, NotFound, StationClosed
from heliograph.limits import SCHEDULE_RETRY_S_MAX
from heliograph.log.cursor import LogCursor
from heliograph.log.partition import Partition
from heliograph.schedule.waiting import Record, Row, Waiting, again_us

logger = logging.getLogger("heliograph.schedule")
Append = Callable[[str, list[bytes], list[datetime]], object]
"""``(channel, bodies, event times)``: appends envelopes to a channel, making it if that is allowed."""

EVER_US = 1 << 62
"""Later than any time."""

_ID = b'{"specversion":"1.0","id":"'


class Mover:
    """Moves messages. Only the holder of the dispatcher's lease may."""

    def __init__(self, engine: FilesEngine, waiting: Waiting, append: Append) -> None:
        self._engine = engine
        self._waiting = waiting
        self._append = append
        self._held: dict[str, int] = {}
        """Channels that took nothing, and when they are tried again: nothing shall overtake what failed."""

    def move(self, now_us: int) -> int:
        """Move what is due, up to a bound; how many messages were taken up."""
        next_us = self._waiting.next_us()
        if next_us is None or next_us > now_us:  # asking locks nobody out
            return 0
        latest_us = now_us + int(SCHEDULE_RETRY_S_MAX * 1e6)  # beyond that the clock was stepped back
        self._held = {name: us for name, us in self._held.items() if now_us < us <= latest_us}
        rows = self._waiting.send(now_us, self._record_of, self._held)
        if not rows:
            return 0
        arrived: list[Row] = []
        failed: dict[str, Exception] = {}
        for channel in dict.fromkeys(row.channel for row in rows):
            group = [row for row in rows if row.channel == channel]
            try:
                self._carry(channel, group)
                arrived += group
            except StationClosed:
                raise
            except (HeliographError, OSError) as error:
                failed[channel] = error
        if arrived:
            self._waiting.arrived(arrived)
        for record in self._waiting.on_their_way(now_us) if failed else ():
            self._look(record, failed.get(record.channel), now_us)
        return len(rows)

    def resume(self, now_us: int, *, everything: bool = False) -> None:
        """Look after what was on its way when somebody died or failed; everything, or what is to be looked at now."""
        for record in self._waiting.on_their_way(EVER_US if everything else now_us):
            self._look(record, None, now_us)

    def take_over(self, now_us: int) -> None:
        """Whoever moved messages before died or left: what it failed to move goes first, which only it knew."""
        self.resume(now_us, everything=True)
        self._waiting.try_again()

    # -- there ------------------------------------------------------------------------------------------------------

    def _record_of(self, channel: str) -> Record:
        try:
            file = self._engine.describe(channel)
            ends = [self._engine.limit(channel, number, synced=False).next for number in range(file.partitions)]
        except StationClosed:
            raise
        except (HeliographError, OSError):  # not there, or in trouble, which appending meets, too
            return Record(channel, "", [])
        return Record(channel, file.incarnation, ends)

    def _carry(self, channel: str, rows: list[Row]) -> None:
        self._append(channel, [row.body for row in rows], [from_us(row.time_us) for row in rows])
        if self._engine.config.storage.durability != "always":
            self._each_partition(channel, Partition.sync)

    def _each_partition(self, channel: str, action: Callable[[Partition], None]) -> None:
        for number in range(self._engine.describe(channel).partitions):
            self._engine.write(channel, number, action)

    # -- and back -----------------------------------------------------------------------------------------------------

    def _look(self, record: Record, error: Exception | None, now_us: int) -> None:
        """Find out which messages arrived; the others wait again, with what went wrong."""
        channel, rows = record.channel, self._waiting.sent_to(record.channel)
        reason = "" if error is None else describe(error)
        try:
            known = self._in_log(record, rows)
        except StationClosed:
            raise
        except (HeliographError, OSError) as trouble:
            logger.warning("scheduled messages for '%s' are on their way: %s", channel, describe(trouble))
            self._waiting.look_later(rows, describe(trouble), now_us)
            return
        if not rows:
            self._waiting.forget_record(channel)
            return
        arrived = [row for row in rows if row.id in known]
        back = [row for row in rows if row.id not in known]
        if back and reason:
            logger.warning("%d scheduled messages for '%s' could not be delivered: %s", len(back), channel, reason)
            self._held[channel] = again_us(back, now_us)
        self._waiting.arrived(arrived, back, reason, self._held.get(channel, now_us))

    def _in_log(self, record: Record, rows: list[Row]) -> set[str]:
        """Which of these are in the channel, behind where it ended before they were sent."""
        found: set[str] = set()
        with contextlib.suppress(NotFound):  # gone, and with it what was in it
            self._each_partition(record.channel, Partition.settle)  # a killed process may have told nobody
            file = self._engine.describe(record.channel)
            ends = record.ends if file.incarnation == record.incarnation else []
            bodies = {row.id.encode(): row.body for row in rows}
            for number in range(file.partitions):
                found |= self._scan(record.channel, number, ends[number] if number < len(ends) else 0, bodies)
        return found

    def _scan(self, channel: str, number: int, start: int, bodies: dict[bytes, bytes]) -> set[str]:
        found: set[str] = set()
        end = self._engine.limit(channel, number).next
        cursor = LogCursor(self._engine.log(channel, number), start, self._engine.disk)
        with contextlib.closing(cursor):
            while cursor.offset < end and (chunk := cursor.read()) is not None:
                whole = chunk.data.split(b"\n") if chunk.numbered is None else [line for _, line in chunk.numbered]
                for line in whole:
                    if line.startswith(_ID):
                        message_id = line[len(_ID) : line.index(b'"', len(_ID))]
                        body = bodies.get(message_id)
                        if body is not None and line.startswith(body):
                            found.add(message_id.decode())
        return found
