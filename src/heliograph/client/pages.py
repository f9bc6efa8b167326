"""The messages of a channel of a hub, page after page: asked for when there is room, so memory is bounded.

A client says itself how far it has come. After a cut it goes on there; what cannot be had any more is told.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from typing import Any, Final, Protocol

import msgspec

from heliograph.arguments import check_callable, check_whole
from heliograph.errors import InvalidArgument, InvalidMessage, NotFound
from heliograph.federation.asking import FIND, PAGE_BYTES, READ, WAIT_S, Find, Found, Lack, Page, Place, Read
from heliograph.message import Gap, Message, PayloadDecoder, decode_line, decode_lines
from heliograph.station.starts import ALLOWED, OFFSET_MAX

logger = logging.getLogger("heliograph.client")
OnGap = Callable[[Gap], Any]
Start = str | int | datetime
_MERGED_BYTES: Final = 1 << 20
_PAGE_BYTES_MIN: Final = 16 * 1024


class Ask(Protocol):
    """Asks the hub, over whichever connection; again after a cut."""

    def __call__(self, name: str, head: msgspec.Struct, kind: type[Any]) -> Awaitable[tuple[Any, bytes]]:
        """The answer."""


class Pages:
    """Messages of some partitions from some places on, in the order in which they come."""

    def __init__(
        self, ask: Ask, channel: str, decoder: Callable[[], PayloadDecoder | None], on_gap: OnGap | None,
        *, size: int = PAGE_BYTES, follow: bool = False, others: bool = False,
    ) -> None:  # fmt: skip
        self._ask = ask
        self._channel = channel
        self._decoder = decoder
        self._on_gap = on_gap
        self._size = size
        self._follow = follow
        self._others = others
        self._incarnation = ""
        self._places: dict[int, Place] = {}
        self._ends: dict[int, int] = {}
        self._dry = False
        self._had_at = time.monotonic()

    def begin(self, found: Found) -> None:
        """Where to begin, and without ``follow`` where to end."""
        self._incarnation = found.incarnation
        self._places = {
            number: Place(partition=number, offset=first, awaits=first > end) for number, first, end in found.places
        }
        if not self._follow:
            self._ends = {number: end for number, _, end in found.places}

    @property
    def done(self) -> bool:
        """Whether everything was had."""
        return not self._follow and not self._open()

    def _open(self) -> list[Place]:
        if self._follow:
            return list(self._places.values())
        if self._dry:
            return []
        return [place for place in self._places.values() if place.offset < self._ends[place.partition]]

    async def next(self) -> list[Message]:
        """Some more; none if nothing came for a while, or there is nothing more."""
        places = self._open()
        if not places and not self._others:
            return []
        ask = Read(
            channel=self._channel, places=places, incarnation=self._incarnation, bytes=self._size,
            wait_s=WAIT_S if self._follow else 0.0, others=self._others, age_s=time.monotonic() - self._had_at,
        )  # fmt: skip
        page, lines = await self._ask(READ, ask, Page)
        self._had_at = time.monotonic()
        self._dry = not page.next and not page.lacks
        return self._take(page, lines)

    def _take(self, page: Page, lines: bytes) -> list[Message]:
        messages: list[Message] = []
        rest = lines
        for lack in page.lacks:
            self._tell(lack)
        for run in page.runs:
            end = end_of(rest, run.count)
            data, rest = rest[:end], rest[end:]
            messages += self._decode(data, run.first, run.first + run.count, run.partition)
        self._incarnation = page.incarnation
        ids = {message.partition: message for message in messages}
        for number, offset in page.next:
            last = ids.get(number)
            own = last.id if last is not None and last.offset == offset - 1 else ""
            place = Place(partition=number, offset=offset, id=own)
            self._places.pop(number, None)  # whoever was served last comes last next time
            self._places[number] = place
        if self._ends:
            messages = [message for message in messages if message.offset < self._ends[message.partition]]
        return messages

    def _decode(self, data: bytes, first: int, following: int, partition: int) -> list[Message]:
        decoder = self._decoder()
        found = decode_lines(data, first, following, partition, decoder)
        if found is not None:
            return found
        messages = []
        for offset, line in enumerate(data.split(b"\n")[:-1], first):
            if not line.strip(b" "):
                continue
            try:
                messages.append(plainly(line, offset, partition, decoder))
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
                self._tell(Lack(partition, offset, offset + 1, f"it cannot be decoded: {error}"))
        return messages

    def _tell(self, lack: Lack) -> None:
        following = min(lack.next, self._ends.get(lack.partition, lack.next))
        if lack.first >= following:
            return
        gap = Gap(self._channel, lack.partition, lack.first, following, lack.reason)
        logger.warning("'%s' offsets %d to %d do not come: %s", gap.channel, gap.first, gap.next - 1, gap.reason)
        if self._on_gap is not None:
            self._on_gap(gap)


def unfailing(on_gap: OnGap) -> OnGap:
    """The same; one that raises is logged, and does not end what it is told of."""

    def told(gap: Gap) -> None:
        try:
            on_gap(gap)
        except Exception:
            logger.exception("'%s': on_gap failed", gap.channel)

    return told


def plainly(line: bytes, offset: int, partition: int, decoder: PayloadDecoder | None) -> Message:
    """A message; if it is not what is registered here, with plain data, as reading a station does."""
    try:
        return decode_line(line, offset, partition, decoder)
    except InvalidMessage:
        return decode_line(line, offset, partition, None)


class Merged:
    """Several partitions up to their ends, in the order of time."""

    def __init__(self, parts: Sequence[Pages]) -> None:
        self._parts = [(part, list[Message]()) for part in parts]

    @property
    def done(self) -> bool:
        """Whether everything was had."""
        return all(part.done and not waiting for part, waiting in self._parts)

    async def next(self) -> list[Message]:
        """Some more."""
        for part, waiting in self._parts:
            while not waiting and not part.done:
                waiting += reversed(await part.next())
        found: list[Message] = []
        while True:
            live = [(part, waiting) for part, waiting in self._parts if waiting or not part.done]
            if not live or not all(waiting for _, waiting in live):
                return found  # one has to be asked before it is known which comes first
            first = min((waiting for _, waiting in live), key=lambda waiting: waiting[-1].time)
            found.append(first.pop())


async def open_pages(
    ask: Ask, channel: str, start: Start, end: Start | None, partition: int | None,
    decoder: Callable[[], PayloadDecoder | None], on_gap: OnGap | None, *, follow: bool, size: int = PAGE_BYTES,
) -> Pages | Merged:  # fmt: skip
    """From start to end; with ``follow`` without an end, also of a channel that is not there yet."""
    check_callable("on_gap", on_gap)
    if partition is not None:
        check_whole("partition", partition)
    find = Find(channel=channel, start=said(start), end=None if end is None else said(end), partition=partition)
    try:
        found, _ = await ask(FIND, find, Found)
    except NotFound:
        if not follow or partition is not None:
            raise
        found = Found(incarnation="", places=[])  # whatever is published there will be new
    if follow or len(found.places) <= 1:
        pages = Pages(ask, channel, decoder, on_gap, size=size, follow=follow, others=follow and partition is None)
        pages.begin(found)
        return pages
    share = max(_PAGE_BYTES_MIN, _MERGED_BYTES // len(found.places))
    parts = []
    for place in found.places:
        part = Pages(ask, channel, decoder, on_gap, size=min(size, share))
        part.begin(Found(incarnation=found.incarnation, places=[place]))
        parts.append(part)
    return Merged(parts)


def said(start: Start) -> str | int:
    """A start as it is told to the hub."""
    if isinstance(start, bool) or not isinstance(start, str | int | datetime):
        raise InvalidArgument(f"{start!r} is not a start: {ALLOWED}")
    if isinstance(start, datetime):
        return start.isoformat()
    return min(start, OFFSET_MAX) if isinstance(start, int) else start


def end_of(data: bytes, lines: int) -> int:
    """Where so many lines end."""
    if data.count(b"\n") == lines:
        return len(data)
    at = 0
    for _ in range(lines):
        at = data.index(b"\n", at) + 1
    return at
