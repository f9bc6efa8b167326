"""One channel as it arrives from one peer, the side of the disk. Synchronous; one call at a time.

Nothing is acknowledged but what is on disk: batches that wait are appended together, synced once, and then told.
"""

from __future__ import annotations

import contextlib
from bisect import bisect_right
from collections.abc import Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Final, NamedTuple

from heliograph.engine.knowledge import Outdated
from heliograph.engine.relayed import Arrival
from heliograph.errors import Busy, NotFound, ProtocolError
from heliograph.federation import peerfile
from heliograph.federation.events import Arrived, Gapped
from heliograph.federation.lives import Lives
from heliograph.federation.packing import unpack
from heliograph.federation.permitted import senders, within_bounds
from heliograph.federation.resume import Ends
from heliograph.federation.rules import Rules
from heliograph.seen import SeenSet

if TYPE_CHECKING:
    from heliograph.station import Station

_TRIES: Final = 8


class Standing(NamedTuple):
    """What this station has of a channel."""

    origin: str
    seen: SeenSet
    ends: Ends


class Stored(NamedTuple):
    """What to acknowledge: by stream and partition, up to where, and what was refused. And how much it was."""

    acks: dict[tuple[int, int], tuple[int, list[tuple[int, str]]]]
    messages: int
    size: int


class Inlet:
    """A channel from a peer."""

    def __init__(self, station: Station, channel: str, peer: str) -> None:
        self._station = station
        self._engine = station.engine
        self._peer = peer
        self._channel = channel
        self._lives = Lives(station, channel)

    def standing(self, theirs: Ends) -> Standing:
        """What is here, once the other side said how far it is. NotFound if there is no such channel and may not be."""
        with contextlib.suppress(NotFound):
            self._lives.doubted(theirs, peerfile.acknowledged(self._station, self._peer, self._channel))
            relayed = self._engine.relayed
            return Standing(self._lives.origin(), relayed.seen(self._channel), self._lives.ends())
        if not self._engine.makes(self._channel):
            self._engine.describe(self._channel)
        return Standing("", SeenSet(), {})

    def store(self, items: Sequence[Arrived | Gapped], rules: Rules) -> Stored:
        """Append what arrived, sync once; what to acknowledge. NotAllowed and ProtocolError: nothing of it is."""
        stacks: dict[tuple[int, int], _Stack] = {}
        for item in items:
            if isinstance(item, Gapped):
                self._gap(item, rules)
            else:
                stacks.setdefault((item.stream, item.partition), _Stack()).add(item)
        for _ in range(_TRIES):
            arrivals = [(place, stack, self._append(stack, rules)) for place, stack in stacks.items()]
            with contextlib.suppress(Outdated):
                for _, _, arrival in reversed(arrivals):  # the last one's sync is the others', too
                    self._engine.relayed.confirm(arrival)
                return Stored(
                    {place: (stack.next, stack.refused(arrival)) for place, stack, arrival in arrivals},
                    messages=sum([stack.count for stack in stacks.values()]),
                    size=sum([stack.size for stack in stacks.values()]),
                )
        raise Busy(f"channel '{self._channel}' begins a new life all the time; try again")

    def _append(self, stack: _Stack, rules: Rules) -> Arrival:
        lines = stack.lines()
        if not lines:
            return Arrival(channel=self._channel)
        with within_bounds():
            return self._engine.relayed.append(self._channel, lines, senders(rules))

    def _gap(self, item: Gapped, rules: Rules) -> None:
        self._engine.ensure(self._channel)
        own = self._lives.origin()
        believed = SeenSet({key: found for key, found in item.gaps if key[0] != own and not rules.sending(key[0])})
        if len(believed):
            with within_bounds():
                self._engine.relayed.note_gaps(self._channel, believed, never=item.never)


class _Stack:
    """Batches of one partition that are appended together: a thousand lines cost little more than ten."""

    def __init__(self) -> None:
        self._bodies: list[bytes] = []
        self._firsts: list[tuple[int, int]] = []  # of each batch: which line of the stack, and which offset, is first
        self.count = 0
        self.size = 0
        self.next = 0

    def add(self, arrived: Arrived) -> None:
        """One batch more. ProtocolError if it has not as many lines as it says."""
        data = unpack(arrived.body, arrived.size) if arrived.packed else bytes(arrived.body)
        if data.count(b"\n") != arrived.count or data[-1:] != b"\n":
            raise ProtocolError(f"a BATCH of {arrived.count} lines has another number of them")
        self._firsts.append((self.count, arrived.first))
        self._bodies.append(data)
        self.count += arrived.count
        self.size += arrived.size
        self.next = arrived.next

    def lines(self) -> bytes | list[bytes]:
        """All of them, without those that were left out."""
        data = self._bodies[0] if len(self._bodies) == 1 else b"".join(self._bodies)
        self._bodies = [data]
        if not data.startswith(b"\n") and b"\n\n" not in data:
            return data
        return [line for line in data.split(b"\n") if line]

    def refused(self, arrival: Arrival) -> list[tuple[int, str]]:
        """What was refused, by its offset at the sender."""
        if not arrival.refused:
            return []
        numbers = [at for at, line in enumerate(self._bodies[0].split(b"\n")) if line]
        return [(self._offset(numbers[at]), why) for at, why in arrival.refused]

    def _offset(self, number: int) -> int:
        at = bisect_right(self._firsts, number, key=itemgetter(0)) - 1
        line, offset = self._firsts[at]
        return offset + number - line
