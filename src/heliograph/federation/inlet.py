"""One channel as it arrives from one peer, the side of the disk. Synchronous; one call at a time.

Nothing is acknowledged but what is on disk: batches that wait are appended together, synced once, and then told.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from heliograph.engine.foreign import Piece, split, together
from heliograph.engine.knowledge import Outdated
from heliograph.engine.relayed import Arrival
from heliograph.errors import Busy, NotFound, ProtocolError
from heliograph.federation import peerfile
from heliograph.federation.events import Arrived, Gapped
from heliograph.federation.lives import Lives
from heliograph.federation.packing import unpack
from heliograph.federation.permitted import WITHIN_BOUNDS, senders
from heliograph.federation.resume import Ends
from heliograph.federation.rules import Rules
from heliograph.seen import SeenSet

if TYPE_CHECKING:
    from heliograph.station import Station

ALONE_BYTES_MAX: Final = 16 * 1024
"""A batch that comes alone, and is not larger, is synced as soon as it is written: nothing waits to be appended."""
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


class Deleted(Exception):
    """The channel was deleted here since the stream began: what was acknowledged is gone, and has to come first."""


class Inlet:
    """A channel from a peer."""

    def __init__(self, station: Station, channel: str, peer: str) -> None:
        self._station = station
        self._engine = station.engine
        self._peer = peer
        self._channel = channel
        self._lives = Lives(station, channel)
        self._life = ""  # of the channel, as it was known last
        self._made: datetime | None = None  # when it was created; it keeps that in all its lives

    def standing(self, theirs: Ends, rules: Rules) -> Standing:
        """What is here, once the other side said how far it is. NotFound if there is no such channel and may not be.

        Nothing is told of origins that it may not send: a channel may be fed by thousands.
        """
        together()  # whoever looks at what arrives comes now, before there is something to be looked at
        with contextlib.suppress(NotFound):
            self._lives.doubted(self._peer, theirs, peerfile.acknowledged(self._station, self._peer, self._channel))
            seen = {key: found for key, found in self._engine.relayed.seen(self._channel) if not rules.sending(key[0])}
            ends = {key: end for key, end in self._lives.ends().items() if not rules.sending(key[0])}
            self._life, self._made = self._engine.incarnation(self._channel), self._created()
            return Standing(self._lives.origin(), SeenSet(seen), ends)
        if not self._engine.makes(self._channel):
            self._engine.describe(self._channel)
        return Standing("", SeenSet(), {})

    def store(
        self,
        items: Sequence[Arrived | Gapped],
        rules: Rules,
        written: Callable[[str], None] = lambda _: None,
        life: str = "",
    ) -> Stored:
        """Append what arrived, sync once; what to acknowledge. NotAllowed and ProtocolError: nothing of it is.

        ``written`` is called right before a sync, with the life in which it was appended: what comes next may be
        appended meanwhile, in that ``life`` alone. Outdated if that is over: then wait for what comes before. Any
        earlier, and whoever appends next would have the interpreter before the sync has begun. Deleted: it begins anew.
        NotFound: there is no such channel, and none is to be made.
        """
        try:
            return self._store(items, rules, written, life)
        except NotFound:
            if not self._engine.makes(self._channel):
                raise
            raise Busy(f"channel '{self._channel}' is being deleted") from None

    def _store(
        self, items: Sequence[Arrived | Gapped], rules: Rules, written: Callable[[str], None], life: str
    ) -> Stored:
        stacks: dict[tuple[int, int], _Stack] = {}
        alone = len(items) == 1 and not life
        for item in items:
            if isinstance(item, Gapped):
                self._gap(item, rules)
            else:
                alone = alone and item.size <= ALONE_BYTES_MAX
                stacks.setdefault((item.stream, item.partition), _Stack()).add(item)
        for _ in range(_TRIES):
            try:
                arrivals = [(place, stack, self._append(stack, rules, life, alone)) for place, stack in stacks.items()]
            except Outdated:
                if life:
                    raise
                self._look_again()
                continue
            with contextlib.suppress(Outdated):
                for _, _, arrival in reversed(arrivals):  # the last one's sync is the others', too
                    self._engine.relayed.confirm(arrival, partial(written, arrivals[-1][2].incarnation))
                return Stored(
                    {place: (stack.next, stack.refused(arrival)) for place, stack, arrival in arrivals},
                    messages=sum([stack.count for stack in stacks.values()]),
                    size=sum([stack.size for stack in stacks.values()]),
                )
        raise Busy(f"channel '{self._channel}' begins a new life all the time; try again")

    def _append(self, stack: _Stack, rules: Rules, life: str, alone: bool) -> Arrival:
        with WITHIN_BOUNDS:
            arrival = self._engine.relayed.append(
                self._channel, stack.pieces, senders(rules), life or self._life or None, durable=alone
            )
        if not self._life and arrival.incarnation:
            self._life, self._made = arrival.incarnation, self._created()
        return arrival

    def _look_again(self) -> None:
        """Another life began: of the same channel, after a repair or a restore, or of one that was made since."""
        self._engine.ensure(self._channel)  # NotFound if it is gone and not to be made
        if self._made is not None and self._created() != self._made:
            raise Deleted
        self._life = self._engine.incarnation(self._channel)

    def _created(self) -> datetime:
        return self._engine.describe(self._channel).created

    def _gap(self, item: Gapped, rules: Rules) -> None:
        self._engine.ensure(self._channel)
        own = self._lives.origin()
        believed = SeenSet({key: found for key, found in item.gaps if key[0] != own and not rules.sending(key[0])})
        if len(believed):
            with WITHIN_BOUNDS:
                self._engine.relayed.note_gaps(self._channel, believed, never=item.never)


class _Stack:
    """Batches of one partition that are appended together: four cost little more than one."""

    def __init__(self) -> None:
        self._batches: list[tuple[int, Piece]] = []  # the first offset of each, and its lines
        self.pieces: list[Piece] = []
        self.count = 0
        self.size = 0
        self.next = 0

    def add(self, arrived: Arrived) -> None:
        """One batch more. ProtocolError if it has not as many lines as it says."""
        data = unpack(arrived.body, arrived.size) if arrived.packed else arrived.body
        piece = split(data)
        if piece.count != arrived.count or len(piece.data) != len(data):
            raise ProtocolError(f"a BATCH of {arrived.count} lines has another number of them")
        there = piece.without_blanks()
        self._batches.append((arrived.first, piece))
        self.pieces.append(there)
        self.count += there.count  # messages: of those that were left out there is nothing to be paid
        self.size += arrived.size
        self.next = arrived.next

    def refused(self, arrival: Arrival) -> list[tuple[int, str]]:
        """What was refused, by its offset at the sender."""
        if not arrival.refused:
            return []
        offsets = [first + at for first, piece in self._batches for at, line in enumerate(piece.lines) if line != b"\n"]
        return [(offsets[at], why) for at, why in arrival.refused]
