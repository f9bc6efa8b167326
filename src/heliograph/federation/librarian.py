"""Serves those who share out a channel among many readers (see ranges.py), the side of the disk. Synchronous."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from heliograph.errors import NotFound
from heliograph.federation import asking, portions, ranges
from heliograph.federation.counter import insist
from heliograph.federation.frames import Buffer
from heliograph.federation.rules import Rules
from heliograph.log import pieces, seek
from heliograph.log.appends import append_times
from heliograph.log.cursor import Chunk, LogCursor, LogCut
from heliograph.log.held import ChannelGone
from heliograph.log.pieces import Wish
from heliograph.names import check_name
from heliograph.patterns import Pattern

if TYPE_CHECKING:
    from heliograph.station import Station

PARTITIONS_MAX: Final = 1_000
"""After so many partitions a survey goes on with the next request."""
LOOKS_MAX: Final = 100_000
"""After so many entries of an index cutting goes on with the next request: some 1.5 GB of messages."""
LACKS_MAX: Final = 100
HEAD_BYTES: Final = 64 * 1024
"""Room for what is said of lines, beside them."""


class Librarian:
    """Serves requests of one station's clients."""

    def __init__(self, station: Station) -> None:
        self._engine = station.engine
        self._served: dict[str, tuple[type[Any], Callable[..., Any]]] = {
            ranges.SURVEY: (ranges.Survey, self.survey),
            ranges.IDS: (ranges.Ids, self.ids),
            ranges.PIECES: (ranges.Pieces, self.pieces),
            ranges.SCHEMA: (ranges.Schema, self.schema),
        }

    def serves(self, name: str) -> bool:
        """Whether a request is one of those."""
        return name in self._served or name == ranges.LINES

    def answer(self, name: str, body: Buffer, rules: Rules, body_bytes_max: int) -> bytes:
        """The answer to a request."""
        if name == ranges.LINES:
            lines, _ = asking.decode(body, ranges.Lines)
            return asking.encode(*self.lines(lines, rules, body_bytes_max - HEAD_BYTES))
        kind, serve = self._served[name]
        ask, _ = asking.decode(body, kind)
        return asking.encode(serve(ask, rules))

    def survey(self, ask: ranges.Survey, rules: Rules) -> ranges.Surveyed:
        """Which channels there are, and how far each is durable."""
        for name in ask.channels:
            insist(rules.subscribing(check_name(name)))
        for text in ask.patterns:
            insist(rules.subscribing(text))
        patterns = [Pattern(text) for text in ask.patterns]
        named = set(ask.channels)
        found: list[ranges.There] = []
        count = 0
        for name in self._engine.channel_names():
            if name <= ask.after or not (name in named or any(pattern.matches(name) for pattern in patterns)):
                continue
            if rules.subscribing(name):
                continue
            if count >= PARTITIONS_MAX:
                return ranges.Surveyed(channels=found, more=True)
            with contextlib.suppress(NotFound, ChannelGone):
                found.append(self._there(name))
                count += len(found[-1].bounds)
        return ranges.Surveyed(channels=found)

    def _there(self, name: str) -> ranges.There:
        engine = self._engine
        file = engine.describe(name)
        limits = [engine.durable_limit(name, number) for number in range(file.partitions)]
        return ranges.There(name, file.incarnation, [(limit.first, limit.next) for limit in limits])

    def ids(self, ask: ranges.Ids, rules: Rules) -> ranges.IdsFound:
        """The ids of messages at some offsets."""
        insist(rules.subscribing(check_name(ask.channel)))
        return ranges.IdsFound(ids=[self._id(ask.channel, *place) for place in ask.places])

    def _id(self, channel: str, number: int, offset: int) -> str:
        with contextlib.suppress(NotFound):
            return seek.id_at(self._engine.log(channel, number), offset, self._engine.disk)
        return ""

    def pieces(self, ask: ranges.Pieces, rules: Rules) -> ranges.Pieced:
        """A stretch in pieces. Of what is not there it is the one who reads it that is told."""
        insist(rules.subscribing(check_name(ask.channel)))
        wish = Wish(ask.first, max(ask.first, ask.next), ask.bytes, ask.times_us, ask.count, LOOKS_MAX)
        log = self._engine.log(ask.channel, ask.partition)
        try:
            found, following = pieces.cut(log.place.directory, log.limit(), wish, self._engine.disk)
        except (NotFound, FileNotFoundError):
            return ranges.Pieced(pieces=[(wish.first, wish.next, 0)], next=wish.next)
        return ranges.Pieced(pieces=[(one.first, one.next, one.bytes) for one in found], next=following)

    def schema(self, ask: ranges.Schema, rules: Rules) -> ranges.SchemaFound:
        """The newest schema of a type."""
        insist(rules.subscribing(check_name(ask.channel)))
        versions = self._engine.schemas.versions(ask.channel, ask.type)
        if not versions:
            return ranges.SchemaFound()
        return ranges.SchemaFound(version=versions[-1].version, schema=versions[-1].schema)

    def lines(self, ask: ranges.Lines, rules: Rules, bytes_max: int) -> tuple[ranges.Lined, bytes]:
        """Lines, and what will not come: all of one life of the channel."""
        insist(rules.subscribing(check_name(ask.channel)))
        life = self._life(ask.channel)
        if life != ask.incarnation:
            return ranges.Lined(incarnation=life, next=ask.first), b""
        page = _Page(ask, bytes_max)
        appends: list[tuple[int, int]] = []
        try:
            self._fill(page, ask)
            appends = self._appends(ask, page.next) if ask.appends else []
        except (FileNotFoundError, NotFound, ChannelGone):  # its files are gone, as those of a life that ended are
            if self._life(ask.channel) == life:
                raise
        after = self._life(ask.channel)
        if after != life:  # what was read may be of either
            return ranges.Lined(incarnation=after, next=ask.first), b""
        return page.result(life, appends)

    def _fill(self, page: _Page, ask: ranges.Lines) -> None:
        engine = self._engine
        cursor = LogCursor(engine.log(ask.channel, ask.partition), ask.first, engine.disk)
        with contextlib.closing(cursor), contextlib.suppress(NotFound, LogCut):
            while page.room and (chunk := cursor.read()) is not None:
                page.take(chunk)
        engine.make_durable(ask.channel, ask.partition, page.next)

    def _appends(self, ask: ranges.Lines, following: int) -> list[tuple[int, int]]:
        log = self._engine.log(ask.channel, ask.partition)
        with contextlib.suppress(NotFound, FileNotFoundError):
            last = self._engine.last_append(ask.channel, ask.partition)
            return append_times(log.place.directory, last, ask.first, following, self._engine.disk)
        return []

    def _life(self, channel: str) -> str:
        try:
            return self._engine.incarnation(channel)
        except NotFound:
            return ""


class _Page:
    """An answer as it is filled."""

    def __init__(self, ask: ranges.Lines, bytes_max: int) -> None:
        self._end = ask.next
        self._left = max(1, min(ask.bytes, bytes_max))
        # More than was asked for, if a chunk ends there: whoever goes on inside one reads it again.
        self._most = min(2 * self._left, bytes_max)
        self._bytes_max = bytes_max
        self._runs: list[tuple[int, int]] = []
        self._lacks: list[tuple[int, int, str]] = []
        self._parts: list[bytes] = []
        self.next = ask.first
        self._over = False

    @property
    def room(self) -> bool:
        """Whether it takes more."""
        return not self._over and self.next < self._end and self._left > 0 and len(self._lacks) < LACKS_MAX

    def result(self, incarnation: str, appends: list[tuple[int, int]]) -> tuple[ranges.Lined, bytes]:
        """All of it."""
        head = ranges.Lined(
            incarnation=incarnation, runs=self._runs, lacks=self._lacks, next=self.next, appends=appends
        )
        return head, b"".join(self._parts)

    def take(self, chunk: Chunk) -> None:
        """What was read next, as far as it is asked for and fits."""
        data = chunk.data if chunk.numbered is None else _with_blanks(chunk)
        following = min(chunk.next, self._end)
        if data and following < chunk.next:
            data = b"\n".join([*data.split(b"\n", following - chunk.first)[:-1], b""])
        if len(data) > self._most:
            end, lines = portions.cut(data, self._left)
            data, following, self._over = data[:end], chunk.first + len(lines), True
            if end > self._left and (self._parts or end > self._bytes_max):
                self._refuse(chunk.first, end)
                return
        for gap in chunk.missing:
            self._lack(gap.first, min(gap.next, following), gap.reason)
        if data:
            self._run(chunk.first, following - chunk.first)
            self._parts.append(data)
            self._left -= len(data)
            self._most -= len(data)
        self.next = following

    def _refuse(self, offset: int, size: int) -> None:
        """A line that does not fit this answer, or none."""
        if size > self._bytes_max:
            self._lack(offset, offset + 1, f"it has {size} bytes, the client takes {self._bytes_max} at once")
            self.next = offset + 1

    def _run(self, first: int, count: int) -> None:
        if self._runs and sum(self._runs[-1]) == first:
            first, count = self._runs[-1][0], self._runs.pop()[1] + count
        self._runs.append((first, count))

    def _lack(self, first: int, following: int, reason: str) -> None:
        if first < following:
            self._lacks.append((first, following, reason[:200]))


def _with_blanks(chunk: Chunk) -> bytes:
    """The intact lines of a damaged chunk, and a blank one for each other."""
    intact = dict(chunk.numbered or ())
    return b"".join([intact.get(offset, b"") + b"\n" for offset in range(chunk.first, chunk.next)]) if intact else b""
