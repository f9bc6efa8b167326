"""What a station answers that wants to have the same messages as this one. Synchronous; in whichever thread."""

from __future__ import annotations

from typing import TYPE_CHECKING

from heliograph.errors import NotAllowed, ProtocolError
from heliograph.federation import asking
from heliograph.federation.comparing import (
    HEAD_BYTES,
    SETS_BYTES,
    Compare,
    Fetch,
    Fetched,
    Holding,
    Store,
    Stored,
    part_of,
    set_of,
)
from heliograph.federation.frames import Buffer
from heliograph.federation.resume import Ends, ends_from, fitting_ends
from heliograph.federation.rules import Rules
from heliograph.federation.shelf import Shelf
from heliograph.limits import LINK_PATTERNS_MAX, LINK_REASON_CHARS_MAX, LINK_TEXT_CHARS_MAX
from heliograph.names import check_name

if TYPE_CHECKING:
    from heliograph.station import Station


class Exchange:
    """Answers for one station. What a peer may do is what its rules allow: ``subscribe`` to fetch, ``publish`` and
    ``relay`` to store."""

    def __init__(self, station: Station) -> None:
        self._station = station

    def compare(self, body: Buffer, rules: Rules) -> bytes:
        """What is here. Whoever may neither fetch nor store is told nothing."""
        ask, _ = asking.decode(body, Compare)
        channel = check_name(ask.channel)
        publish, subscribe = rules.publishing(channel), rules.subscribing(channel)
        if publish and subscribe:
            raise NotAllowed(f"{rules.peer} is not allowed to publish or subscribe '{channel}'")
        shelf = Shelf(self._station, channel)
        theirs = _ends(ask)
        if theirs and not publish:  # a new life may cost lines: whoever may not cause any says what it likes
            shelf.doubt(rules.peer, theirs)
        seen, after = part_of(shelf.seen(), ask.after)
        holding = Holding(
            seen=seen.to_json(), after=after, ends=fitting_ends(shelf.ends()) if ask.after is None else {},
            own=shelf.own().to_json() if ask.after is None else {},
            publish=publish[:LINK_TEXT_CHARS_MAX], subscribe=subscribe[:LINK_TEXT_CHARS_MAX],
            relay=list(rules.relay.texts[:LINK_PATTERNS_MAX]),
        )  # fmt: skip
        return asking.encode(holding)

    def fetch(self, body: Buffer, rules: Rules, body_bytes_max: int) -> bytes:
        """Lines that the other side lacks, as many as it asks for and as fit."""
        ask, _ = asking.decode(body, Fetch)
        _insist(rules.subscribing(ask.channel))
        picked = Shelf(self._station, ask.channel).pick(
            set_of(ask.wanted), ask.incarnation, ask.places, size=min(ask.bytes, body_bytes_max - SETS_BYTES),
            line_bytes_max=body_bytes_max - HEAD_BYTES, look=ask.look,
        )  # fmt: skip
        fetched = Fetched(
            incarnation=picked.incarnation, next=picked.next, found=picked.found.to_json(),
            never=picked.never.to_json(), refused=picked.refused,
        )  # fmt: skip
        return asking.encode(fetched, picked.lines)

    def store(self, body: Buffer, rules: Rules) -> tuple[Stored, int]:
        """Append lines that are not here yet; and how many bytes it was. NotAllowed: nothing of them was stored."""
        ask, lines = asking.decode(body, Store)
        _insist(rules.publishing(ask.channel))
        shelf = Shelf(self._station, ask.channel)
        shelf.note(set_of(ask.gaps), rules, never=False)
        shelf.note(set_of(ask.never), rules, never=True)
        arrival = shelf.put(lines, rules)
        refused = [(at, why[:LINK_REASON_CHARS_MAX]) for at, why in arrival.refused]
        return Stored(appended=arrival.appended, duplicates=arrival.duplicates, refused=refused), len(lines)


def _ends(ask: Compare) -> Ends:
    try:
        return ends_from(ask.ends)
    except ValueError as error:
        raise ProtocolError(f"the ends in a request are not valid: {error}") from None


def _insist(why_not: str) -> None:
    if why_not:
        raise NotAllowed(why_not)
