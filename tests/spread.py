"""Appending to a given partition, whatever the key."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import google_crc32c
import msgspec

from heliograph.admin.envelopes import body_of
from heliograph.clock import to_us
from heliograph.log.tickets import Ticket
from heliograph.message import Receipt, new_id
from heliograph.station import Station


def put(
    station: Station, channel: str, partition: int, data: Any, *, key: str | None = None, time: datetime | None = None
) -> Receipt:
    """Publish to this partition."""
    now_us = station.engine.clock.time_ns() // 1000
    said = {"id": new_id(), "source": station.name, "type": "t", "partitionkey": key, "time": time, "data": data}
    fields = {name: msgspec.Raw(msgspec.json.encode(value)) for name, value in said.items() if value is not None}
    body = body_of(fields, channel, now_us)
    ticket = Ticket((body.data,), (google_crc32c.value(body.data),), now_us)
    ticket.min_us = ticket.max_us = to_us(body.moment)
    offset = station.engine.append(channel, partition, ticket, 30.0)
    return Receipt(str(said["id"]), channel, partition, offset)


def fill(station: Station, channel: str, partitions: int, count: int) -> None:
    """Numbers 0 … count-1, one after the other into the next partition."""
    for number in range(count):
        put(station, channel, number % partitions, number)
