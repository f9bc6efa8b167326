"""A connection as people see it."""

from __future__ import annotations

from datetime import datetime
from itertools import islice
from typing import TYPE_CHECKING

from heliograph.clock import from_us
from heliograph.federation.alarms import ALARMS_MAX
from heliograph.station.links import LinkInfo, LinkKind

if TYPE_CHECKING:
    from heliograph.engine.files import FilesEngine
    from heliograph.federation.conversation import Conversation


def now(engine: FilesEngine) -> datetime:
    """The wall clock's time."""
    return from_us(engine.clock.time_ns() // 1000)


def since_now(engine: FilesEngine) -> datetime:
    """The same, to the second."""
    return now(engine).replace(microsecond=0)


def shown(
    engine: FilesEngine, conversation: Conversation, kind: LinkKind, address: str, reconnects: int, refused: int = 0
) -> LinkInfo:
    """A connection that works. ``refused``: by the connections before it."""
    messages, seconds = conversation.sender.lag()
    return LinkInfo(
        name=conversation.session_peer, kind=kind, address=address, state="up",
        since=conversation.since or since_now(engine), channels=conversation.channels(), lag_messages=messages,
        lag_s=round(seconds, 3), in_flight_bytes=conversation.in_flight(),
        round_trip_ms=round(conversation.session.heartbeat.round_trip_s * 1000, 3), reconnects=reconnects,
        refused=refused + conversation.sender.refused, parked=conversation.alarms.parked(),
        waiting=list(islice(conversation.sender.waiting(), ALARMS_MAX)), error=conversation.error,
        certificate_days_left=None if conversation.peer is None else conversation.peer.days_left(now(engine)),
    )  # fmt: skip
