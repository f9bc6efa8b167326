"""What one connection asks to publish while the disk is busy shares an append; in order, each with its own outcome."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from heliograph.errors import Busy, HeliographError
from heliograph.federation.asking import Publish, Published
from heliograph.log.held import ChannelGone, Evicted

if TYPE_CHECKING:
    from heliograph.engine.files import FilesEngine
    from heliograph.federation.accepting import Accepted
    from heliograph.federation.counter import Counter
    from heliograph.federation.rules import Rules
    from heliograph.log.tickets import Ticket
    from heliograph.station import Station
    from heliograph.station.publisher import Publisher

Outcome = Published | HeliographError | OSError


class _Sent(NamedTuple):
    """On its way to the disk: which of the requests, where to, and what."""

    at: int
    channel: str
    partition: int
    events: list[Accepted]
    ticket: Ticket


class Together:
    """Publishes several requests. Belongs to one thread at a time."""

    def __init__(self, station: Station, counter: Counter) -> None:
        self._engine = station.engine
        self._publisher = station.publisher
        self._counter = counter

    def publish(self, asked: Sequence[tuple[Publish, bytes]], rules: Rules) -> list[Outcome]:
        """Append what was asked for, in order; what became of each. It is durable when this returns."""
        flight = _Flight(self._engine, self._publisher, self._counter)
        outcomes: dict[int, Outcome] = {}
        for at, (ask, lines) in enumerate(asked):
            try:
                if ask.again_s is not None or len(asked) == 1:
                    outcomes |= flight.land()  # what it looks for may be among those
                    outcomes[at] = self._counter.publish(ask, lines, rules)
                    continue
                events = self._counter.check(ask, lines, rules)
                places = self._counter.places(ask.channel, events)
                if len(places) > 1 or not flight.send(at, ask.channel, next(iter(places)), events):
                    # it queues behind those that were sent
                    outcomes[at] = Published(places=self._counter.append(ask.channel, events))
            except (HeliographError, OSError) as error:
                outcomes[at] = error
        outcomes |= flight.land()
        return [outcomes[at] for at in range(len(asked))]


class _Flight:
    """What was handed to the committer and is not durable yet."""

    def __init__(self, engine: FilesEngine, publisher: Publisher, counter: Counter) -> None:
        self._engine = engine
        self._publisher = publisher
        self._counter = counter
        self._sent: list[_Sent] = []
        self._left = 0
        self._changed = threading.Condition()

    def send(self, at: int, channel: str, partition: int, events: list[Accepted]) -> bool:
        """Let it be appended with others; False if there is no room."""
        ticket = self._counter.ticket(events, self._resolved)
        with self._changed:
            self._left += 1
        try:
            self._engine.submit(channel, partition, ticket)
        except BaseException as error:
            with self._changed:
                self._left -= 1
            if isinstance(error, Busy | Evicted | ChannelGone):
                return False
            raise
        self._sent.append(_Sent(at, channel, partition, events, ticket))
        return True

    def _resolved(self, tickets: list[Ticket]) -> None:
        """Called by the committing thread."""
        with self._changed:
            self._left -= len(tickets)
            self._changed.notify_all()

    def land(self) -> dict[int, Outcome]:
        """Wait for all; what became of them."""
        with self._changed:
            self._changed.wait_for(lambda: not self._left)
        sent, self._sent = self._sent, []
        return {one.at: self._outcome(one) for one in sent}

    def _outcome(self, one: _Sent) -> Outcome:
        error = one.ticket.error
        try:
            if isinstance(error, Evicted | ChannelGone):  # closed for room, or deleted, before it was appended
                return Published(places=self._counter.append(one.channel, one.events))
        except (HeliographError, OSError) as failed:
            return failed
        self._publisher.settled(one.channel, [one.ticket])
        if error is None:
            first = one.ticket.first
            return Published(places=[(one.partition, first + number) for number in range(len(one.events))])
        if isinstance(error, HeliographError | OSError):
            return error
        raise error
