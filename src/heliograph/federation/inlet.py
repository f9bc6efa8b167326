"""One channel as it arrives from one peer, the side of the disk. Synchronous; one call at a time.

Nothing is acknowledged but what is on disk: batches that wait are appended together, synced once, and then told.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from heliograph.engine.foreign import Batch
from heliograph.engine.knowledge import Outdated
from heliograph.engine.relayed import Arrival
from heliograph.errors import Busy, HeliographError, NotFound, ProtocolError
from heliograph.federation.events import Arrived, Gapped
from heliograph.federation.frames import Ends
from heliograph.federation.lives import Lives
from heliograph.federation.packing import unpack
from heliograph.federation.rules import Rules
from heliograph.seen import SeenSet

if TYPE_CHECKING:
    from heliograph.station import Station

_TRIES: Final = 8


class NotAllowed(HeliographError):
    """The peer may not send this. Nothing was stored."""


class Standing(NamedTuple):
    """What this station has of a channel."""

    origin: str
    seen: SeenSet
    gaps: SeenSet
    ends: Ends


class Stored(NamedTuple):
    """What to acknowledge: by stream and partition, up to where, and what was refused. And how much it was."""

    acks: dict[tuple[int, int], tuple[int, list[tuple[int, str]]]]
    messages: int
    size: int
    refused: int


class Inlet:
    """A channel from a peer."""

    def __init__(self, station: Station, channel: str) -> None:
        self._engine = station.engine
        self._channel = channel
        self._lives = Lives(station, channel)

    def standing(self, theirs: Ends) -> Standing:
        """What is here, once the other side said how far it is. NotFound if there is no such channel and may not be."""
        with contextlib.suppress(NotFound):
            self._lives.doubted(theirs)
            relayed = self._engine.relayed
            return Standing(
                self._lives.origin(), relayed.seen(self._channel), relayed.gaps(self._channel), self._lives.ends()
            )
        if not self._engine.config.storage.auto_create:
            self._engine.describe(self._channel)
        return Standing("", SeenSet(), SeenSet(), {})

    def store(self, items: Sequence[Arrived | Gapped], rules: Rules) -> Stored:
        """Append what arrived, sync once; what to acknowledge. NotAllowed and ProtocolError: nothing of it is."""
        bodies = {at: _Body(item) for at, item in enumerate(items) if isinstance(item, Arrived)}
        for item in items:
            if isinstance(item, Gapped):
                self._gap(item, rules)
        for _ in range(_TRIES):
            arrivals = [(body, self._append(body, rules)) for body in bodies.values()]
            with contextlib.suppress(Outdated):
                for _, arrival in reversed(arrivals):  # the last one's sync is the others', too
                    self._engine.relayed.confirm(arrival)
                return _stored(arrivals)
        raise Busy(f"channel '{self._channel}' begins a new life all the time; try again")

    def _append(self, body: _Body, rules: Rules) -> Arrival:
        def check(batch: Batch) -> None:
            for origin in {run.origin for run in batch.runs}:
                why = rules.sending(origin)
                if why:
                    raise NotAllowed(why)

        if not body.lines:
            return Arrival(channel=self._channel)
        return self._engine.relayed.append(self._channel, body.lines, check)

    def _gap(self, item: Gapped, rules: Rules) -> None:
        self._engine.ensure(self._channel)
        for (origin, partition), found in item.gaps:
            if not rules.sending(origin):
                for first, following in found:
                    self._engine.relayed.gap(self._channel, origin, partition, first, following)


class _Body:
    """The lines of a batch, and which of its offsets each is."""

    __slots__ = ("_offsets", "arrived", "lines")

    def __init__(self, arrived: Arrived) -> None:
        self.arrived = arrived
        data = unpack(arrived.body, arrived.size) if arrived.packed else bytes(arrived.body)
        if data.count(b"\n") != arrived.count or data[-1:] != b"\n":
            raise ProtocolError(f"a BATCH of {arrived.count} lines has another number of them")
        self.lines: bytes | list[bytes] = data
        self._offsets: list[int] | None = None
        if data.startswith(b"\n") or b"\n\n" in data:
            numbered = [(at, line) for at, line in enumerate(data.split(b"\n")) if line]
            self.lines = [line for _, line in numbered]
            self._offsets = [arrived.first + at for at, _ in numbered]

    def offset(self, at: int) -> int:
        return self.arrived.first + at if self._offsets is None else self._offsets[at]


def _stored(arrivals: list[tuple[_Body, Arrival]]) -> Stored:
    acks: dict[tuple[int, int], tuple[int, list[tuple[int, str]]]] = {}
    messages = size = refused = 0
    for body, arrival in arrivals:
        arrived = body.arrived
        place = (arrived.stream, arrived.partition)
        told = acks[place][1] if place in acks else []
        told += [(body.offset(at), why) for at, why in arrival.refused]
        acks[place] = (arrived.next, told)
        messages += arrived.count
        size += arrived.size
        refused += len(arrival.refused)
    return Stored(acks, messages, size, refused)
