"""A hub as Spark sees it: what is there is asked for once, for all channels together, and looked up from then on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

import msgspec

from heliograph.clock import SYSTEM_CLOCK, from_us, to_us
from heliograph.engine.port import Bounds
from heliograph.errors import NotFound, ProtocolError
from heliograph.federation import ranges
from heliograph.federation.asking import FIND, Find, Found
from heliograph.limits import LINK_PATTERNS_MAX, PARTITIONS_MAX
from heliograph.log.pieces import Piece
from heliograph.spark.options import Channels
from heliograph.spark.store import Cutting, Spot

if TYPE_CHECKING:
    from concurrent.futures import Future

    from heliograph.client.inquirer import Inquirer

_OLDEST_US: Final = to_us(datetime.min.replace(tzinfo=UTC))
_LATEST_US: Final = to_us(datetime.max.replace(tzinfo=UTC))


class HubLife(NamedTuple):
    """What the hub said of a channel."""

    incarnation: str
    ends: list[Bounds]

    @property
    def partitions(self) -> int:
        """How many it has."""
        return len(self.ends)


class Hub:
    """The channels of a hub: a Store. ``keep``: somebody else closes the connection."""

    def __init__(self, line: Inquirer, *, keep: bool = False) -> None:
        self._line = line
        self._keep = keep
        self._known: dict[str, HubLife | None] = {}
        self._matching: dict[str, list[str]] = {}

    # -- channels -----------------------------------------------------------------------------------------------------

    def look(self, channels: Channels | None, more: Iterable[str] = ()) -> list[str]:
        """Which channels are meant: those that are named, there or not, and what matches. All are asked about now."""
        names = dict.fromkeys([*(() if channels is None else channels.names), *more])
        missing = [name for name in names if name not in self._known]
        if channels is None or channels.text in self._matching:
            self._survey(missing, [])
        else:
            self._matching[channels.text] = channels.among(self._survey(missing, channels.patterns))
        return list(dict.fromkeys([*(() if channels is None else self._matching[channels.text]), *names]))

    def _survey(self, names: Sequence[str], patterns: Sequence[str]) -> list[str]:
        """Ask about channels; those that are there."""
        there: list[str] = []
        self._known |= dict.fromkeys(names)
        for some in [names[at : at + LINK_PATTERNS_MAX] for at in range(0, max(1, len(names)), LINK_PATTERNS_MAX)]:
            more, after = bool(some or patterns), ""
            while more:
                ask = ranges.Survey(channels=list(some), patterns=list(patterns), after=after)
                found: ranges.Surveyed = self._ask(ranges.SURVEY, ask, ranges.Surveyed)
                for one in found.channels:
                    self._known[one.name] = HubLife(one.incarnation, [Bounds(*pair) for pair in one.bounds])
                    there.append(one.name)
                more, after = found.more and bool(found.channels), there[-1] if there else ""
            patterns = ()
        return there

    def among(self, channels: Channels) -> list[str]:
        """The channels that are meant and there. One that is named and not there is an error."""
        names = self.look(channels)
        for name in names:
            self.channel(name)
        return names

    def channel(self, name: str) -> HubLife:
        """What is known of a channel; NotFound if there is none."""
        found = self.find(name)
        if found is None:
            raise NotFound(f"there is no channel '{name}' at the hub {self._line.hub}")
        return found

    def find(self, name: str) -> HubLife | None:
        """The same; None if there is no such channel any more."""
        if name not in self._known:
            self._survey([name], [])
        return self._known[name]

    def bounds(self, channel: str, partition: int) -> Bounds:
        """What of a partition can be read."""
        return self.channel(channel).ends[partition]

    # -- places -------------------------------------------------------------------------------------------------------

    def moment_us(self, text: str) -> int:
        """A time, or an age such as ``-5m``, in µs since the epoch: by the clock that is here."""
        from heliograph.station.starts import moment_of

        return moment_of(SYSTEM_CLOCK, text)

    def offset_at(self, channel: str, partition: int, moment_us: int) -> int:
        """The first offset that is not older than a moment."""
        moment = from_us(min(max(moment_us, _OLDEST_US), _LATEST_US))
        ask = Find(channel=channel, start=moment.isoformat(), partition=partition)
        found: Found = self._ask(FIND, ask, Found)
        return found.places[0][1]

    def ids(self, spots: Sequence[Spot]) -> list[str]:
        """The ids of some messages; empty where there is none."""
        asked: list[tuple[list[Spot], Future[Any]]] = []
        for channel in dict.fromkeys(spot.channel for spot in spots):
            ours = [spot for spot in spots if spot.channel == channel and spot.offset >= 0]
            for some in (ours[at : at + PARTITIONS_MAX] for at in range(0, len(ours), PARTITIONS_MAX)):
                ask = ranges.Ids(channel=channel, places=[(spot.partition, spot.offset) for spot in some])
                asked.append((some, self._line.start(ranges.IDS, ask, ranges.IdsFound)))
        known: dict[Spot, str] = {}
        for some, future in asked:
            known |= zip(some, self._answer(ranges.IDS, future).ids, strict=True)
        return [known.get(spot, "") for spot in spots]

    def cut(self, asked: Sequence[Cutting]) -> list[list[Piece]]:
        """The pieces of some stretches: the hub is asked for all of them at once."""
        found: list[list[Piece]] = [[] for _ in asked]
        under_way = {number: self._cut(one, one.wish.first) for number, one in enumerate(asked)}
        while under_way:
            again: dict[int, Future[Any]] = {}
            for number, future in under_way.items():
                answer: ranges.Pieced = self._answer(ranges.PIECES, future)
                found[number] += [Piece(*piece) for piece in answer.pieces]
                most = asked[number].wish.most
                if answer.next < asked[number].wish.next and (most is None or len(found[number]) < most):
                    again[number] = self._cut(asked[number], answer.next)
            under_way = again
        return found

    def _cut(self, asked: Cutting, first: int) -> Future[Any]:
        wish = asked.wish
        ask = ranges.Pieces(
            channel=asked.channel, partition=asked.partition, first=first, next=wish.next, bytes=wish.bytes,
            count=min(wish.most or ranges.PIECES_MAX, ranges.PIECES_MAX), times_us=wish.times_us,
        )  # fmt: skip
        return self._line.start(ranges.PIECES, ask, ranges.Pieced)

    def schemas(self, channels: Sequence[str], type_name: str) -> list[dict[str, Any]]:
        """The newest schema of a type in each of some channels that knows it."""
        asks = [ranges.Schema(channel=channel, type=type_name) for channel in channels]
        futures = [self._line.start(ranges.SCHEMA, ask, ranges.SchemaFound) for ask in asks]
        answers: list[ranges.SchemaFound] = [self._answer(ranges.SCHEMA, future) for future in futures]
        return [answer.schema for answer in answers if answer.version]

    # -- asking -------------------------------------------------------------------------------------------------------

    def _ask(self, name: str, head: msgspec.Struct, kind: type[Any]) -> Any:
        return self._answer(name, self._line.start(name, head, kind))

    def _answer(self, name: str, future: Future[Any]) -> Any:
        try:
            return self._line.answer(future)[0]
        except NotFound as error:
            if name == FIND:
                raise
            raise too_old(self._line.hub, name) from error

    def close(self) -> None:
        """Leave, unless somebody else goes on."""
        if not self._keep:
            self._line.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def too_old(hub: str, name: str) -> ProtocolError:
    """A hub that does not know a request of those for Spark."""
    return ProtocolError(f"the hub {hub} does not know the request '{name}': it is older than this. Upgrade the hub")
