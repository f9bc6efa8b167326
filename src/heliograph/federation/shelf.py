"""One channel as two stations compare it, the side of the disk: what is here, some of it, and more of it.

Both ends use it: the hub for what it is asked, the other one for what it asks. Synchronous; in whichever thread.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

from heliograph.engine.foreign import TAIL
from heliograph.engine.origins import station_of
from heliograph.engine.relayed import Arrival
from heliograph.errors import NotFound
from heliograph.federation import peerfile
from heliograph.federation.comparing import both
from heliograph.federation.lives import Lives
from heliograph.federation.permitted import WITHIN_BOUNDS, senders
from heliograph.federation.resume import Ends
from heliograph.federation.rules import Rules
from heliograph.limits import LINK_REASON_CHARS_MAX
from heliograph.log.cursor import Chunk, LogCursor, LogCut
from heliograph.log.lines import Home
from heliograph.seen import SEQUENCE_MAX, SeenSet

if TYPE_CHECKING:
    from heliograph.station import Station

LOOK_BYTES: Final = 64 << 20
"""How much of a log is looked at for one answer."""
PIECE_BYTES: Final = 64 * 1024
RANGES_MAX: Final = 2048
"""After how many ranges an answer ends, so that what is said of the lines does not take their place."""


class Picked(NamedTuple):
    """Lines that were looked for, and where to go on; nowhere, if everything was looked at."""

    incarnation: str
    lines: bytes
    next: list[tuple[int, int]]
    found: SeenSet
    never: SeenSet
    refused: list[tuple[str, int, int, str]]


class Shelf:
    """A channel of this station."""

    def __init__(self, station: Station, channel: str) -> None:
        self._station = station
        self._engine = station.engine
        self._channel = channel
        self._lives = Lives(station, channel)

    # -- what is here ---------------------------------------------------------------------------------------------

    def ends(self) -> Ends:
        """How far each origin is here."""
        return self._lives.ends()

    def doubt(self, peer: str, theirs: Ends) -> None:
        """The other side said how far it is. If it knows other messages under our sequences, begin a new life."""
        self._lives.doubted(peer, theirs, peerfile.acknowledged(self._station, peer, self._channel))

    def seen(self) -> SeenSet:
        """What this log holds or held; nothing if there is no such channel."""
        with contextlib.suppress(NotFound):
            return self._engine.relayed.seen(self._channel)
        return SeenSet()

    def own(self) -> SeenSet:
        """What was published here in the present life, or is no message. Of what was trimmed or redacted nothing may be
        known but that: while nothing has arrived, nobody writes down what is seen."""
        engine, found = self._engine, SeenSet()
        with contextlib.suppress(NotFound):
            origin = self._lives.origin()
            for number in range(engine.partition_count(self._channel)):
                if end := engine.limit(self._channel, number, synced=False).next:
                    found.add(origin, number, 0, end)
        return found

    # -- some of it -----------------------------------------------------------------------------------------------

    def pick(
        self, wanted: SeenSet, incarnation: str = "", places: Iterable[tuple[int, int]] = (), *, size: int,
        line_bytes_max: int, look: bool = False,
    ) -> Picked:  # fmt: skip
        """Look for messages, from the places on that the last look ended at. ``look``: only say which are there.

        ``size``: about so many bytes of lines, or a single one of at most ``line_bytes_max``. Whoever goes on does not
        want any more what it was told of.
        """
        engine, places = self._engine, list(places)
        try:
            count, life = engine.partition_count(self._channel), engine.incarnation(self._channel)
        except NotFound:
            return Picked("", b"", [], SeenSet(), SeenSet(), [])
        picking = _Picking(self._station, self._channel, wanted, size, line_bytes_max, look=look)
        if not places or incarnation != life:
            picking.never = both(wanted, engine.relayed.never(self._channel))
            places = self._begin(wanted, count, f"{engine.name}.{life}")
        following = [picking.scan(number, offset) for number, offset in places if number < count]
        return Picked(
            life, b"".join(picking.lines), [place for place in following if place is not None], picking.found,
            picking.never, picking.refused,
        )  # fmt: skip

    def _begin(self, wanted: SeenSet, count: int, own: str) -> list[tuple[int, int]]:
        """Messages of our own are where their sequences say; for those of others the whole log is looked at."""
        if any(origin != own for (origin, _), _ in wanted):
            return [(number, 0) for number in range(count)]
        return [(number, next(iter(found))[0]) for (_, number), found in wanted if number < count]

    def never(self, wanted: SeenSet) -> SeenSet:
        """Which sequences were given to no message, as far as the log shows that."""
        never = SeenSet()
        life, places = "", list[tuple[int, int]]()
        while len(wanted):
            picked = self.pick(wanted, life, places, size=1, line_bytes_max=SEQUENCE_MAX, look=True)
            never.update(picked.never)
            if not picked.next:
                break
            wanted = wanted.difference(picked.never).difference(picked.found)
            life, places = picked.incarnation, picked.next
        return never

    # -- more of it -----------------------------------------------------------------------------------------------

    def put(self, lines: bytes, rules: Rules) -> Arrival:
        """Append what is not here yet; durable when it returns. NotAllowed: nothing of it is."""
        with WITHIN_BOUNDS:
            return self._engine.relayed.arrive(self._channel, lines, senders(rules))

    def note(self, told: SeenSet, rules: Rules, *, never: bool) -> None:
        """What the other side has no more; or, ``never``, what was no message at all.

        Believed of whomever the other side may speak for, but never about our own life.
        """
        own = self._lives.origin()
        believed = SeenSet(
            {key: found for key, found in told if station_of(key[0]) and key[0] != own and not rules.sending(key[0])}
        )
        if len(believed):
            self._engine.ensure(self._channel)
            with WITHIN_BOUNDS:
                self._engine.relayed.note_gaps(self._channel, believed, never=never)


class _Entry(NamedTuple):
    """A message in the log."""

    offset: int
    origin: bytes
    partition: bytes
    sequence: int
    line: bytes


class _Picking:
    """One look for messages."""

    def __init__(
        self, station: Station, channel: str, wanted: SeenSet, size: int, line_bytes_max: int, *, look: bool
    ) -> None:
        self._engine = station.engine
        self._channel = channel
        self._wanted = {(origin.encode(), b"%d" % number): found for (origin, number), found in wanted}
        self._own = [(key, found) for key, found in wanted if station_of(key[0]) == station.name]
        self._room = size
        self._line_bytes_max = line_bytes_max
        self._look = look
        self._budget = LOOK_BYTES
        self.lines: list[bytes] = []
        self.found, self.never = SeenSet(), SeenSet()
        self.refused: list[tuple[str, int, int, str]] = []

    def scan(self, number: int, offset: int) -> tuple[int, int] | None:
        """Look at a partition from an offset on; where to go on, or None at its end."""
        log = self._engine.log(self._channel, number)
        home = log.place.home()
        with contextlib.closing(LogCursor(log, max(offset, log.limit().first), self._engine.disk)) as cursor:
            while not self._full:
                with contextlib.suppress(LogCut):  # it goes on at an earlier offset, in another life
                    chunk = cursor.read()
                    if chunk is None:
                        return None
                    following = self._read(number, home, chunk)
                    if self.lines:
                        self._engine.make_durable(self._channel, number, following)
                    if following != chunk.next:
                        return number, following
            return number, cursor.offset

    def _read(self, number: int, home: Home, chunk: Chunk) -> int:
        """Look at a chunk, as long as there is room; the offset to go on at."""
        for piece in _pieces(chunk):
            self._budget -= len(piece.data)
            entries = _entries(piece)
            self._look_for_strangers(number, home, entries)
            following = self._take(entries, piece.next)
            if following != piece.next or self._full:
                return following
        return chunk.next

    @property
    def _full(self) -> bool:
        return self._room <= 0 or self._budget <= 0 or self._ranges >= RANGES_MAX

    @property
    def _ranges(self) -> int:
        return len(self.refused) + sum([len(found) for told in (self.found, self.never) for _, found in told])

    def _take(self, entries: list[_Entry], end: int) -> int:
        """What is wanted of a chunk; the offset to go on at."""
        for offset, origin, partition, sequence, line in entries:
            wanted = self._wanted.get((origin, partition))
            if wanted is None or sequence not in wanted:
                continue
            if len(line) >= self._line_bytes_max:
                reason = f"it has {len(line)} bytes, the other side takes {self._line_bytes_max} at once"
                self.refused.append((origin.decode(), int(partition), sequence, reason[:LINK_REASON_CHARS_MAX]))
            elif self._look:
                self.found.add(origin.decode(), int(partition), sequence, sequence + 1)
            elif len(line) >= self._room and (self.lines or self._ranges):
                self._room = 0
                return offset
            else:
                self.lines += (line, b"\n")
                self._room -= len(line) + 1
        return end

    def _look_for_strangers(self, number: int, home: Home, entries: list[_Entry]) -> None:
        """What was published here is where its sequence says. If another line is there, no message ever was."""
        for (origin, partition), wanted in self._own:
            if partition != number or origin.rpartition(".")[2] in home.returned:
                continue
            ours = (origin.encode(), b"%d" % number)
            for entry in entries:
                if entry.offset in wanted and entry[1:4] != (*ours, entry.offset):
                    self.never.add(origin, number, entry.offset, entry.offset + 1)


def _pieces(chunk: Chunk) -> Iterator[Chunk]:
    """A chunk is as large as what was appended at once: looked at little by little, for an answer may be full soon."""
    first, data, at = chunk.first, chunk.data, 0
    while chunk.numbered is None and len(data) - at > PIECE_BYTES:
        end = data.rfind(b"\n", at, at + PIECE_BYTES) + 1 or data.find(b"\n", at + PIECE_BYTES) + 1
        piece, at = data[at:end], end
        count = piece.count(b"\n")
        yield chunk._replace(first=first, next=first + count, data=piece)
        first += count
    yield chunk._replace(first=first, data=data[at:])


def _entries(chunk: Chunk) -> list[_Entry]:
    """The messages of a chunk; a blank or damaged line is none."""
    if chunk.numbered is None:
        lines = chunk.data.split(b"\n")[:-1]
        tails = TAIL.findall(chunk.data)
        if len(tails) == len(lines):
            return [
                _Entry(offset, origin, partition, int(sequence), line)
                for offset, line, (origin, partition, sequence) in zip(
                    range(chunk.first, chunk.next), lines, tails, strict=True
                )
            ]
    numbered = enumerate(lines, chunk.first) if chunk.numbered is None else chunk.numbered
    found = [(offset, line, TAIL.search(line + b"\n")) for offset, line in numbered]
    return [
        _Entry(offset, tail[1], tail[2], int(tail[3]), line) for offset, line, tail in found if tail is not None
    ]  # fmt: skip
