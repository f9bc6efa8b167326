"""Publishing: envelopes are encoded outside the lock, appended, counted, and answered with a receipt."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from itertools import count, repeat
from typing import Any

import google_crc32c
import msgspec
import uuid_utils

from heliograph import context
from heliograph.arguments import check_seconds
from heliograph.engine.producers import Epoch
from heliograph.errors import HeliographError
from heliograph.log.tickets import Ticket
from heliograph.message import (
    HeaderValue,
    Receipt,
    attributes,
    template,
    time_us,
)
from heliograph.payloads import batch_of
from heliograph.station.partitioning import Places
from heliograph.station.shortcut import Shortcut

_crc = google_crc32c.value
service_name = context.service_name
_uuid7 = uuid_utils.uuid7


class Publisher(Shortcut):
    """Encodes envelopes and hands them to the engine."""

    def append(self, channel: str, partition: int, ticket: Ticket, wait: float | None = None) -> int:
        """Append what was prepared, from this thread; the first offset."""
        meter = self._meters.of(channel)
        try:
            first = self._engine.append(channel, partition, ticket, self._patience_s(wait))
        except HeliographError:
            meter.refused += 1
            raise
        meter.published += ticket.count
        meter.bytes += ticket.size
        return first

    def _patience_s(self, wait: float | None) -> float:
        """How long to wait when too much is waiting for the disk already."""
        return self._wait_s if wait is None else check_seconds("wait", wait)

    def publish(
        self, channel: str, data: Any, type_name: str | None, key: str | None,
        headers: Mapping[str, HeaderValue] | None, correlation_id: str | None, subject: str | None,
        message_id: str | None, wait: float | None,
    ) -> Receipt:  # fmt: skip
        """Publish one message from this thread."""
        try:
            route = self._routes[channel, type_name, service_name()]
        except (KeyError, TypeError):
            route = self._route(channel, type_name)
        meter = route.meter
        started_ns = self._monotonic_ns()
        now_us = self._time_ns() // 1000
        try:
            body, own_id = self._body(
                route, channel, data, type_name, key, headers, correlation_id, subject, message_id, now_us
            )
            ticket = Ticket((body,), (_crc(body),), now_us)
            partition = self.partitioner.choose(channel, key)
            offset = self._engine.append(channel, partition, ticket, self._patience_s(wait))
        except HeliographError:
            meter.refused += 1
            raise
        meter.published += 1
        meter.bytes += len(body)
        meter.latency.add((self._monotonic_ns() - started_ns) // 1000)
        return Receipt(own_id, channel, partition, offset)

    def publish_many(
        self, channel: str, payloads: Iterable[Any], type_name: str | None, key: str | None,
        headers: Mapping[str, HeaderValue] | None, correlation_id: str | None, wait: float | None,
    ) -> list[Receipt]:  # fmt: skip
        """Publish an atomic batch from this thread."""
        started_ns = self._monotonic_ns()
        meter = self._route(channel, type_name).meter
        batch = batch_of(payloads)
        try:
            ticket, ids = self.prepare_many(channel, batch, type_name, key, headers, correlation_id)
            if not ids:
                return []
            places = self.partitioner.choose_many(channel, batch, key)
            if len(places) > 1:
                receipts = self.append_over(channel, places, ticket, ids)
                meter.latency.add((self._monotonic_ns() - started_ns) // 1000)
                return receipts
            partition = next(iter(places))
            first = self._engine.append(channel, partition, ticket, self._patience_s(wait))
        except HeliographError:
            meter.refused += 1
            raise
        meter.published += len(ids)
        meter.bytes += ticket.size
        meter.latency.add((self._monotonic_ns() - started_ns) // 1000)
        return list(map(Receipt, ids, repeat(channel), repeat(partition), count(first)))

    def append_over(
        self, channel: str, places: Places, ticket: Ticket, ids: list[str],
        epoch: Epoch | None = None,
    ) -> list[Receipt]:  # fmt: skip
        """A batch whose keys lead to several partitions: one atomic step."""
        parts = [(channel, partition, [ticket.bodies[at] for at in found]) for partition, found in places.items()]
        firsts = self._engine.steps.carry_out(parts, epoch=epoch)
        receipts: dict[int, Receipt] = {}
        for (partition, found), first in zip(places.items(), firsts, strict=True):
            receipts |= {at: Receipt(ids[at], channel, partition, first + n) for n, at in enumerate(found)}
        self.count(channel, ticket.bodies)
        return [receipts[at] for at in range(len(ids))]

    def count(self, channel: str, bodies: Sequence[bytes]) -> None:
        """Count what was appended as part of an atomic step."""
        meter = self._meters.of(channel)
        meter.published += len(bodies)
        meter.bytes += sum(map(len, bodies))

    def settled(self, channel: str, tickets: list[Ticket]) -> None:
        """Count what another thread committed: of one channel, with one outcome."""
        meter = self._meters.of(channel)
        if tickets[0].error is not None:
            meter.refused += len(tickets)
            return
        meter.published += sum([ticket.count for ticket in tickets])
        meter.bytes += sum([ticket.size for ticket in tickets])
        meter.latency.add(self._time_ns() // 1000 - tickets[0].now_us)

    def publish_own(
        self, channel: str, type_name: str, payload: Any, key: str | None,
        headers: Mapping[str, HeaderValue] | None = None,
    ) -> Receipt:  # fmt: skip
        """A message of our own, such as a dead letter: no limit of size, no reserved name."""
        now_us = self._engine.clock.time_ns() // 1000
        body, message_id = self._own_body(channel, type_name, payload, key, headers, now_us)
        first = self._engine.append(channel, 0, Ticket((body,), (_crc(body),), now_us), 60.0)
        return Receipt(message_id, channel, 0, first)

    def publish_all_own(self, channel: str, type_name: str, messages: Iterable[tuple[Any, str | None]]) -> int:
        """Messages of our own, payloads and keys, with one append; the offset behind the last."""
        now_us = self._engine.clock.time_ns() // 1000
        bodies = [self._own_body(channel, type_name, payload, key, None, now_us)[0] for payload, key in messages]
        ticket = Ticket(bodies, list(map(_crc, bodies)), now_us)
        return self._engine.append(channel, 0, ticket, 60.0) + len(bodies)

    def _own_body(
        self, channel: str, type_name: str, payload: Any, key: str | None,
        headers: Mapping[str, HeaderValue] | None, now_us: int,
    ) -> tuple[bytes, str]:  # fmt: skip
        message_id = str(_uuid7())
        stamp = self._timestamps.format(now_us)
        begin = template(channel, type_name, self._source()) % (message_id.encode(), stamp)
        body = begin + attributes(key, None, None, None, headers) + b',"data":' + msgspec.json.encode(payload)
        return body, message_id

    def republish(self, channel: str, bodies: list[bytes], moments: list[datetime]) -> None:
        """Append envelopes that were encoded before (import, replay, schedule): their ids, times and headers stay.

        To each partition at once; after a crash some partitions may have theirs. Who must know looks for the ids.
        """
        now_us = self._engine.clock.time_ns() // 1000
        partitions = self._engine.partition_count_or_new(channel)
        places: dict[int, list[int]] = {}
        for at, body in enumerate(bodies):
            key = _key_in(body) if partitions > 1 else None
            places.setdefault(self.partitioner.among(partitions, channel, key), []).append(at)
        for partition, found in places.items():
            own = [bodies[at] for at in found]
            ticket = Ticket(own, list(map(_crc, own)), now_us)
            known = [time_us(moments[at]) for at in found]
            ticket.min_us, ticket.max_us = min(known, default=now_us), max(known, default=now_us)
            self._engine.append(channel, partition, ticket, 60.0)


class _Keyed(msgspec.Struct):
    partitionkey: str | None = None


_decode_key = msgspec.json.Decoder(_Keyed).decode


def _key_in(body: bytes) -> str | None:
    return _decode_key(body + b"}").partitionkey
