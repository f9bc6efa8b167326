"""What clients without a log ask for, the side of the disk. Synchronous; in whichever thread.

Nothing is remembered between two requests: a client says itself how far it has come.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Final

import google_crc32c

from heliograph.engine.port import Position
from heliograph.errors import InvalidMessage, MessageTooLarge, NotAllowed, NotFound
from heliograph.federation import portions
from heliograph.federation.accepting import Accepted, accept
from heliograph.federation.asking import Channels, Find, Found, Lack, Page, Place, Publish, Published, Read, Run, Which
from heliograph.federation.rules import Rules
from heliograph.limits import BATCH_BYTES_MAX, BATCH_MESSAGES_MAX
from heliograph.log.cursor import Chunk, LogCursor, LogCut
from heliograph.log.lines import TAIL_BYTES_MAX
from heliograph.log.seek import appended_since
from heliograph.log.tickets import Ticket
from heliograph.message import Draft
from heliograph.names import REPLY, check_name, check_ownable
from heliograph.patterns import Pattern
from heliograph.station.partitioning import Places
from heliograph.station.starts import partitions_for, resolve

if TYPE_CHECKING:
    from heliograph.station import Station

_crc = google_crc32c.value
SLACK_S: Final = 60.0
"""How much longer ago than a client says something may have been: the hub's clock may have been set."""
_ID_AT: Final = len(b'{"specversion":"1.0","id":"')
_LACKS_MAX: Final = 100


class Counter:
    """Serves requests of one station's clients."""

    def __init__(self, station: Station) -> None:
        self._station = station
        self._engine = station.engine
        self._body_bytes_max = station.config.messages.max_bytes - TAIL_BYTES_MAX

    # -- publishing -----------------------------------------------------------------------------------------------

    def publish(
        self, ask: Publish, lines: bytes, rules: Rules, added: Mapping[str, str] | None = None
    ) -> Published:  # fmt: skip
        """Append events: all of them, or none. They are durable when it returns. ``added``: headers of the hub's."""
        channel, events = ask.channel, self.check(ask, lines, rules, added)
        if ask.again_s is not None:
            there = self._look_for(channel, {event.id for event in events}, ask.again_s)
            if there.keys() >= {event.id for event in events}:
                return Published(places=[there[event.id] for event in events], duplicate=True)
        return Published(places=self.append(channel, events))

    def check(
        self, ask: Publish, lines: bytes, rules: Rules, added: Mapping[str, str] | None = None
    ) -> list[Accepted]:  # fmt: skip
        """The events of a request, if they are allowed and are some."""
        channel = check_ownable(ask.channel)
        insist(rules.publishing(channel))
        return self._accept(channel, lines, rules.peer, added)

    def publish_reply(self, channel: str, line: bytes, peer: str, added: Mapping[str, str], into: str) -> None:
        """Append the answer to a request of a channel to a channel of replies."""
        self.append(into, self._accept(channel, line, peer, added, into))

    def _accept(
        self, channel: str, lines: bytes, peer: str, added: Mapping[str, str] | None = None, into: str | None = None
    ) -> list[Accepted]:
        given = lines.split(b"\n")
        if not 0 < len(given) <= BATCH_MESSAGES_MAX:
            raise InvalidMessage(f"{len(given)} messages in one batch, at most {BATCH_MESSAGES_MAX} are allowed")
        found = []
        for at, line in enumerate(given):
            event = accept(line, channel, peer, self._station.payloads.decoder, added, into)
            if len(event.body) > self._body_bytes_max:
                raise MessageTooLarge(
                    f"message {at} for '{channel}' has about {len(event.body) + TAIL_BYTES_MAX} bytes; the hub's "
                    f"messages.max_bytes is {self._body_bytes_max + TAIL_BYTES_MAX}"
                )
            found.append(event)
        if sum(len(event.body) for event in found) > BATCH_BYTES_MAX:
            raise MessageTooLarge(f"at most {BATCH_BYTES_MAX} bytes fit one atomic append")
        return found

    def ticket(self, events: list[Accepted], callback: Callable[[list[Ticket]], None] | None = None) -> Ticket:
        """Some events, ready to be appended to one partition."""
        bodies = [event.body for event in events]
        ticket = Ticket(
            bodies, list(map(_crc, bodies)), self._engine.clock.time_ns() // 1000, atomic=len(bodies) > 1,
            callback=callback,
        )  # fmt: skip
        ticket.min_us = min(event.time_us for event in events)
        ticket.max_us = max(event.time_us for event in events)
        return ticket

    def places(self, channel: str, events: list[Accepted]) -> Places:
        """Which partitions they go to."""
        keys = [Draft(key=event.key) for event in events]
        return self._station.publisher.partitioner.choose_many(channel, keys, None)

    def append(self, channel: str, events: list[Accepted]) -> list[tuple[int, int]]:
        """Append events, all of them or none; where each is. They are durable when it returns."""
        publisher, ticket, places = self._station.publisher, self.ticket(events), self.places(channel, events)
        if len(places) > 1:
            receipts = publisher.append_over(channel, places, ticket, [event.id for event in events])
            return [(receipt.partition, receipt.offset) for receipt in receipts]
        partition = next(iter(places))
        first = publisher.append(channel, partition, ticket)
        return [(partition, first + at) for at in range(len(events))]

    def _look_for(self, channel: str, ids: set[str], age_s: float) -> dict[str, tuple[int, int]]:
        """Where messages are that may have been appended since."""
        since_us = self._since_us(age_s)
        wanted = {one.encode(): one for one in ids}
        found: dict[str, tuple[int, int]] = {}
        with contextlib.suppress(NotFound):  # then nothing of it is there
            for number in range(self._engine.partition_count(channel)):
                self._engine.barrier(channel, number)  # whoever wrote them may have died before its sync
                log = self._engine.log(channel, number)
                with contextlib.closing(
                    LogCursor(log, appended_since(log, since_us, self._engine.disk), self._engine.disk)
                ) as cursor:
                    end = log.limit().next
                    while cursor.offset < end and (chunk := cursor.read()) is not None:
                        for offset, line in _numbered(chunk):
                            one = wanted.get(line[_ID_AT : line.find(b'"', _ID_AT)])
                            if one is not None:
                                found[one] = (number, offset)
                    self._engine.make_durable(channel, number, cursor.offset)
        return found

    def _since_us(self, age_s: float) -> int:
        """So long ago, and a little more."""
        return max(0, int(self._engine.clock.time_ns() // 1000 - min(age_s + SLACK_S, 1e12) * 1e6))

    # -- reading --------------------------------------------------------------------------------------------------

    def find(self, ask: Find, rules: Rules) -> Found:
        """What a start and an end mean now."""
        channel, engine = check_name(ask.channel), self._engine
        insist(rules.subscribing(channel))
        life, places = engine.incarnation(channel), []
        for number in partitions_for(engine, channel, ask.partition, ask.start, ask.end):
            start = resolve(engine, channel, ask.start, number)  # first: only an offset can lie beyond the end
            end = engine.bounds(channel, number).next
            end = end if ask.end is None else min(end, resolve(engine, channel, ask.end, number))
            places.append((number, start, end))
        return Found(incarnation=life, places=places)

    def channels(self, ask: Which, rules: Rules) -> Channels:
        """Those that a client may read."""
        names = [name for name in self._engine.channel_names() if not rules.subscribing(name)]
        if not ask.pattern:
            return Channels(names=[name for name in names if not name.startswith(REPLY)])
        pattern = Pattern(ask.pattern)
        insist(rules.subscribing(ask.pattern))
        return Channels(names=[name for name in names if pattern.matches(name)])

    def read(self, ask: Read, rules: Rules, bytes_max: int) -> tuple[Page, bytes] | None:
        """Lines, and what will not come; None if there is nothing yet."""
        channel = check_name(ask.channel)
        insist(rules.subscribing(channel))
        try:
            count, incarnation = self._engine.partition_count(channel), self._engine.incarnation(channel)
        except NotFound:
            if ask.others:
                return None  # it may come
            raise
        page = _Reading(self._station, channel, min(ask.bytes, bytes_max), bytes_max)
        named = {place.partition for place in ask.places}
        places = [self._fit(ask, place, page) for place in ask.places if place.partition < count]
        for place in ask.places:
            if place.partition >= count and place.offset:  # of a life with more of them: should it come, it begins anew
                page.begin(place.partition, 0)
        if ask.others:
            places += [(number, 0) for number in range(count) if number not in named]
        for number, offset in places:
            page.read(number, offset)
        return page.result(incarnation)

    def _fit(self, ask: Read, place: Place, page: _Reading) -> tuple[int, int]:
        """Where to go on: somewhere else if the log is not the one it was, or was trimmed."""
        number, offset = place.partition, place.offset
        end = self._engine.bounds(ask.channel, number).next
        if offset <= end and ask.incarnation == self._engine.incarnation(ask.channel):
            return number, offset
        position = Position(ask.incarnation, offset, place.id, self._since_us(ask.age_s), place.awaits)
        target, gap = self._engine.fit_position(ask.channel, number, position)
        if target != offset:
            page.begin(number, target)
        if gap is not None:
            page.lack(number, gap.first, gap.next, gap.reason)
        return number, target


class _Reading:
    """A page as it is filled."""

    def __init__(self, station: Station, channel: str, size: int, line_bytes_max: int) -> None:
        self._engine = station.engine
        self._channel = channel
        self._left = size
        self._line_bytes_max = line_bytes_max
        self._runs: list[Run] = []
        self._lacks: list[Lack] = []
        self._pieces: list[bytes] = []
        self._next: dict[int, int] = {}

    def begin(self, number: int, offset: int) -> None:
        """Go on here, though there may be nothing yet: the place that was asked for means nothing in this log."""
        self._next[number] = offset

    def lack(self, number: int, first: int, following: int, reason: str) -> None:
        """These will not come."""
        self._lacks.append(Lack(number, first, following, reason[:200]))

    def result(self, incarnation: str) -> tuple[Page, bytes] | None:
        """The page, if there is anything in it."""
        if not self._next and not self._lacks:
            return None
        page = Page(incarnation=incarnation, runs=self._runs, lacks=self._lacks, next=list(self._next.items()))
        return page, b"".join(self._pieces)

    def read(self, number: int, offset: int) -> None:
        """Read on in a partition, as far as there is room."""
        log, disk = self._engine.log(self._channel, number), self._engine.disk
        with contextlib.closing(LogCursor(log, offset, disk)) as cursor:
            while self._left > 0 and len(self._lacks) < _LACKS_MAX:
                try:
                    chunk = cursor.read()
                except LogCut as cut:
                    self.lack(number, cut.offset, cut.before, str(cut))
                    self._next[number] = cut.offset
                    return
                if chunk is None:
                    return
                following = self._take(number, chunk)
                self._engine.make_durable(self._channel, number, following)
                self._next[number] = following
                if following != chunk.next:
                    return

    def _take(self, number: int, chunk: Chunk) -> int:
        """Lines of a chunk, as many as fit, and what is missing among them; up to which offset."""
        following = self._take_lines(number, chunk)
        for missing in chunk.missing:  # of what lies behind the next page tells
            if missing.first < following:
                self.lack(number, missing.first, min(missing.next, following), missing.reason)
        return following

    def _take_lines(self, number: int, chunk: Chunk) -> int:
        if chunk.numbered is not None:
            intact = dict(chunk.numbered)
            lines = [intact.get(offset, b"") for offset in range(chunk.first, chunk.next)] if intact else []
            data = b"".join([line + b"\n" for line in lines])
        else:
            data = chunk.data
        if not data:
            return chunk.next
        end, lines = portions.cut(data, min(self._left, self._line_bytes_max))
        if end > self._line_bytes_max:
            reason = f"it has {end} bytes, the client takes {self._line_bytes_max} at once"
            self.lack(number, chunk.first, chunk.first + 1, reason)
            return chunk.first + 1
        if end > self._left and self._pieces:
            self._left = 0
            return chunk.first
        self._runs.append(Run(number, chunk.first, len(lines)))
        self._pieces.append(data[:end])
        self._left -= end
        return chunk.first + len(lines)


def _numbered(chunk: Chunk) -> Iterator[tuple[int, bytes]]:
    if chunk.numbered is not None:
        return iter(chunk.numbered)
    return iter(enumerate(chunk.data.split(b"\n")[:-1], chunk.first))


def insist(why_not: str) -> None:
    """Refuse what is not allowed."""
    if why_not:
        raise NotAllowed(why_not)
