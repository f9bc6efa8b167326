"""Makes a channel of two stations equal: compare what both have seen, fetch what is lacking here, send what is there.

    compare ──▶ fetch, page by page ──▶ send, page by page ──▶ compare again … until neither lacks what it can have

Every page is durable before the next one is asked for, and what a side has is recognised there. So it may be cut or
killed anywhere, run beside links and other syncs, and be run again: it goes on with what is still lacking.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import msgspec

from heliograph.engine.origins import station_of
from heliograph.errors import NotAllowed, NotFound, ProtocolError
from heliograph.federation import resume
from heliograph.federation.asking import CHANNELS, Channels
from heliograph.federation.comparing import (
    COMPARE,
    FETCH,
    HEAD_BYTES,
    PAGE_BYTES,
    STORE,
    Compare,
    Fetch,
    Fetched,
    Holding,
    Identity,
    Store,
    Stored,
    both,
    identities_in,
    only,
    set_of,
)
from heliograph.federation.resume import ends_from, fitting_ends
from heliograph.federation.rules import Rules
from heliograph.federation.shelf import Picked, Shelf
from heliograph.seen import SeenSet

if TYPE_CHECKING:
    from heliograph.station import Station

TURNS_MAX: Final = 8
"""How often two stations are compared: more is published all the time, and what comes later is not lacking."""

Side = Literal["here", "there"]
Why = Literal["not allowed", "gone", "refused"]


class Way(NamedTuple):
    """How the other side is reached, and how the disk is."""

    peer: str
    ask: Callable[[str, msgspec.Struct, type[Any], bytes], Awaitable[tuple[Any, bytes]]]
    run: Callable[..., Awaitable[Any]]
    """Calls something in a thread."""
    body_bytes_max: Callable[[], int]


class Lacking(msgspec.Struct, frozen=True, kw_only=True):
    """How many messages of an origin the two sides lacked when they were compared."""

    origin: str
    here: int = 0
    there: int = 0


class Left(msgspec.Struct, frozen=True, kw_only=True):
    """What a side lacks all the same."""

    side: Side
    origin: str
    messages: int
    why: Why
    """``not allowed`` by the rules of one side; ``gone``: trimmed, compacted or redacted where it was; ``refused``:
    something is wrong with the message, or with the channel."""
    reason: str


class Synced(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a channel."""

    channel: str
    lacking: list[Lacking]
    fetched: int = 0
    """How many messages were appended here."""
    sent: int = 0
    """How many were appended there."""
    left: list[Left] = []

    @property
    def equal(self) -> bool:
        """Whether neither side lacks what was asked for."""
        return not self.left


class Syncing:
    """One channel, once. ``rules``: what the other side may do here. ``dry_run``: only look."""

    def __init__(
        self, station: Station, way: Way, channel: str, rules: Rules, *, sides: tuple[Side, ...] = ("here", "there"),
        dry_run: bool = False, progress: Callable[[int, int], None] | None = None,
    ) -> None:  # fmt: skip
        self._station = station
        self._way = way
        self._channel = channel
        self._rules = rules
        self._sides = sides
        self._dry_run = dry_run
        self._progress = progress
        self._shelf = Shelf(station, channel)
        self._lacking: dict[Side, dict[str, int]] = {"here": {}, "there": {}}
        self._settled: dict[Side, SeenSet] = {"here": SeenSet(), "there": SeenSet()}
        self._left: dict[tuple[Side, str, Why, str], SeenSet] = {}
        self._denied = ""
        self._moved: dict[Side, int] = {"here": 0, "there": 0}
        self._turn = self._done = self._total = 0

    async def run(self) -> Synced:
        """Compare and exchange until neither side lacks what it can have."""
        try:
            await self._run()
        except NotAllowed as error:  # the other side says nothing of this channel
            self._denied = f"{error} (rules of {self._way.peer})"
        return self._report()

    async def _run(self) -> None:
        for turn in range(1 if self._dry_run else TURNS_MAX):
            holding, here, there = await self._compare()
            lacks: dict[Side, SeenSet] = {
                "here": there.difference(here).difference(await self._way.run(self._shelf.own)),
                "there": here.difference(there).difference(self._own(holding)),
            }
            self._turn = turn
            self._count(lacks)
            self._left = {
                key: both(found, lacks[key[0]]) for key, found in self._left.items()
            }  # unless it came otherwise
            wanted = {side: self._allowed(side, lacks[side], holding) for side in self._sides}
            if not any(len(one) for one in wanted.values()):
                break
            self._total += sum([one.count for one in wanted.values()])
            for side, found in wanted.items():
                await self._give(side, found)

    def _count(self, lacks: dict[Side, SeenSet], sign: int = 1) -> None:
        """What is lacking the first time is told in the end."""
        for side in self._sides if self._turn == 0 else ():
            for (origin, _), found in lacks.get(side, SeenSet()):
                self._lacking[side][origin] = self._lacking[side].get(origin, 0) + sign * found.count

    def _report(self) -> Synced:
        here, there = self._lacking["here"], self._lacking["there"]
        lacking = [
            Lacking(origin=origin, here=here.get(origin, 0), there=there.get(origin, 0))
            for origin in sorted({*here, *there}) if here.get(origin) or there.get(origin)
        ]  # fmt: skip
        left = [
            Left(side=side, origin=origin, messages=self._left[side, origin, why, reason].count, why=why, reason=reason)
            for side, origin, why, reason in sorted(self._left) if len(self._left[side, origin, why, reason])
        ]  # fmt: skip
        if self._denied:
            left += [
                Left(side=side, origin="", messages=0, why="not allowed", reason=self._denied) for side in self._sides
            ]
        return Synced(
            channel=self._channel, lacking=lacking, fetched=self._moved["here"], sent=self._moved["there"], left=left
        )

    # -- comparing ------------------------------------------------------------------------------------------------

    async def _compare(self) -> tuple[Holding, SeenSet, SeenSet]:
        """What the other side allows; what is here and what is there."""
        way, channel = self._way, self._channel
        ends = {} if self._dry_run else fitting_ends(await way.run(self._shelf.ends))
        holding: Holding | None = None
        there, after = SeenSet(), None
        while holding is None or after is not None:
            ask = Compare(channel=channel, ends=ends if holding is None else {}, after=after)
            said: Holding = (await self._ask(COMPARE, ask, Holding))[0]
            there.update(set_of(said.seen))
            holding, after = holding or said, _further(after, said.after)
        try:
            theirs = ends_from(holding.ends)
        except ValueError as error:
            raise ProtocolError(f"{way.peer} said ends that are none: {error}") from None
        if not self._dry_run:
            await way.run(self._shelf.doubt, way.peer, theirs)
        return holding, await way.run(self._shelf.seen), there

    def _own(self, holding: Holding) -> SeenSet:
        """What the other side published itself, as far as it can say that."""
        own = set_of(holding.own)
        return only(own, {origin for (origin, _), _ in own if station_of(origin) == self._way.peer})

    async def _ask(self, name: str, head: msgspec.Struct, kind: type[Any], lines: bytes = b"") -> tuple[Any, bytes]:
        try:
            return await self._way.ask(name, head, kind, lines)
        except NotFound as error:
            if name == COMPARE:  # a channel that is not there is one that holds nothing
                raise ProtocolError(f"{self._way.peer} cannot compare ({error}): upgrade its Heliograph") from None
            raise

    def _allowed(self, side: Side, lacks: SeenSet, holding: Holding) -> SeenSet:
        """What of it may be exchanged, and was not yet; the rest is left, with the reason."""
        lacks = lacks.difference(self._settled[side])
        origins = {origin for (origin, _), _ in lacks}
        refused = {origin: self._why_not(side, origin, holding) for origin in origins}
        for origin, why in refused.items():
            if why:
                self._leave(side, only(lacks, {origin}), "not allowed", why)
        return only(lacks, {origin for origin in origins if not refused[origin]})

    def _why_not(self, side: Side, origin: str, holding: Holding) -> str:
        """Both sides have rules: whose, and what they say."""
        peer, rules, channel = self._way.peer, self._rules, self._channel
        if side == "here":
            theirs, ours = holding.subscribe, rules.publishing(channel) or rules.sending(origin)
        else:
            may = Rules(self._station.name, relay=holding.relay)
            theirs, ours = holding.publish or may.sending(origin), rules.subscribing(channel)
        if theirs:
            return f"{theirs} (rules of {peer})"
        return f"{ours} (rules of {self._station.name})" if ours else ""

    def _leave(self, side: Side, lacks: SeenSet, why: Why, reason: str) -> None:
        for origin in {origin for (origin, _), _ in lacks}:
            self._left.setdefault((side, origin, why, reason), SeenSet()).update(only(lacks, {origin}))
        self._settled[side].update(lacks)

    # -- exchanging -----------------------------------------------------------------------------------------------

    async def _give(self, side: Side, wanted: SeenSet) -> None:
        """Have a side get what it lacks."""
        for portion in resume.portions(wanted):
            try:
                left = await self._give_portion(side, portion)
            except NotFound as error:  # no such channel there, and none is to be made
                self._leave(side, portion, "refused", str(error))
                continue
            if len(left):
                where = self._way.peer if side == "here" else self._station.name
                self._leave(side, left, "gone", f"{where} has removed what it had: retention, compaction or redaction")
                await self._tell(side, left, never=False)

    async def _give_portion(self, side: Side, left: SeenSet) -> SeenSet:
        """Page by page; what was not found."""
        take = self._fetch if side == "here" else self._pick
        life = ""
        places: list[tuple[int, int]] = []
        while True:
            page = await take(left, life, places)
            settled = page.found.union(both(page.never, left))
            for origin, partition, sequence, reason in page.refused:
                settled.update(self._leave_one(side, (origin, partition, sequence), reason))
            if page.lines and not self._dry_run:
                settled.update(await self._put(side, page.lines, left))
            await self._settle_never(side, both(page.never, left))
            if page.next and page.next == places and not len(settled):
                raise ProtocolError(f"{self._way.peer} looks at the same place of '{self._channel}' again and again")
            left = left.difference(settled)
            self._done += settled.count
            if self._progress is not None:
                self._progress(self._done, self._total)
            if not page.next or not len(left):
                return left
            life, places = page.incarnation, page.next

    def _leave_one(self, side: Side, identity: Identity, reason: str) -> SeenSet:
        one = SeenSet()
        one.add(*identity, identity[2] + 1)
        self._leave(side, one, "refused", reason)
        return one

    async def _put(self, side: Side, lines: bytes, wanted: SeenSet) -> SeenSet:
        """Have lines appended; which they were."""
        identities, found = identities_in(lines), SeenSet()
        for origin, partition, sequence in identities:
            found.add(origin, partition, sequence, sequence + 1)
        if len(identities) != lines.count(b"\n") or len(found.difference(wanted)):
            raise ProtocolError(f"{self._way.peer} sent lines of '{self._channel}' that were not asked for")
        if side == "here":
            arrival = await self._way.run(self._shelf.put, lines, self._rules)
        else:
            arrival = (await self._ask(STORE, Store(channel=self._channel), Stored, lines))[0]
        self._moved[side] += arrival.appended
        for at, reason in arrival.refused:
            if at < len(identities):
                self._leave_one(side, identities[at], reason)
        return found

    async def _settle_never(self, side: Side, never: SeenSet) -> None:
        """Sequences that were given to no message were not lacking."""
        if not len(never):
            return
        self._count({side: never}, -1)
        self._settled[side].update(never)
        await self._tell(side, never, never=True)

    async def _tell(self, side: Side, told: SeenSet, *, never: bool) -> None:
        """Have a side know what will not come."""
        if self._dry_run:
            return
        if side == "here":
            await self._way.run(lambda: self._shelf.note(told, self._rules, never=never))
            return
        for portion in resume.portions(told):
            said = {"never" if never else "gaps": portion.to_json()}
            await self._ask(STORE, Store(channel=self._channel, **said), Stored)

    async def _fetch(self, left: SeenSet, life: str, places: list[tuple[int, int]]) -> Picked:
        """What the other side has of it."""
        ask = Fetch(
            channel=self._channel, wanted=left.to_json(), incarnation=life, places=places, look=self._dry_run
        )  # fmt: skip
        said, lines = await self._ask(FETCH, ask, Fetched)
        return Picked(
            said.incarnation, lines, said.next, set_of(said.found), set_of(said.never), said.refused
        )  # fmt: skip

    async def _pick(self, left: SeenSet, life: str, places: list[tuple[int, int]]) -> Picked:
        """What this side has of it."""
        most = self._way.body_bytes_max() - HEAD_BYTES
        picked: Picked = await self._way.run(
            lambda: self._shelf.pick(
                left, life, places, size=min(PAGE_BYTES, most), line_bytes_max=most, look=self._dry_run
            )
        )
        return picked


async def channels_known(station: Station, way: Way) -> set[str]:
    """The channels that are here, and those there that this station may read."""
    said, _ = await way.ask(CHANNELS, Channels(names=[]), Channels, b"")
    return {*said.names, *await way.run(station.engine.channel_names)}


def _further(before: Identity | None, after: Identity | None) -> Identity | None:
    """Where to go on; a side that does not get on would be asked for ever."""
    if after is not None and before is not None and after <= before:
        raise ProtocolError("the parts of a set are not in order")
    return after
