"""Whether a channel's life is still this station's own (rule 3 of the links).

On every stream both sides state the highest sequence of each origin and the id of its message. A station whose own
origin is further at the other side than here, or has another message under the same sequence, was restored from a
backup or copied without its noticing. It takes a new incarnation at once, and appends again under it what it published
since under sequences that others know as other messages.
"""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Final

import msgspec

from heliograph.engine.knowledge import identities_of
from heliograph.errors import NotFound
from heliograph.federation.resume import Doubt, Ends, compare
from heliograph.log import channel as channels
from heliograph.log.cursor import LogCursor
from heliograph.log.seek import line_at

if TYPE_CHECKING:
    from heliograph.log.channel import ChannelFile
    from heliograph.station import Station

logger = logging.getLogger("heliograph.links")
_TAIL: Final = re.compile(rb'(?:,"batch":"\d+/\d+")?,"origin":"[^"\\]*","originseq":"\d+/\d+","crc":"[0-9a-f]{8}"\}$')
_AGAIN_BYTES: Final = 1 << 20


class _Timed(msgspec.Struct):
    time: datetime


class Lives:
    """The lives of one channel."""

    def __init__(self, station: Station, channel: str) -> None:
        self._station = station
        self._engine = station.engine
        self._channel = channel

    def origin(self) -> str:
        """The channel's origin now; empty if there is no such channel."""
        with contextlib.suppress(NotFound):
            return f"{self._engine.name}.{self._engine.incarnation(self._channel)}"
        return ""

    def ends(self) -> Ends:
        """The highest sequence of each origin and its partition, and the id of its message."""
        with contextlib.suppress(NotFound):
            return self._engine.relayed.ends(self._channel)
        return {}

    def doubted(self, peer: str, theirs: Ends, positions: Mapping[int, int]) -> bool:
        """Compare; whether the channel got a new life. ``positions``: what the other side is known to have of ours.

        Busy if the other side said so too often.
        """
        origin = self.origin()
        if not origin or not theirs:
            return False
        if not any(named == origin for named, _ in theirs):
            return False
        ours = self.ends()
        compared = compare(self._engine.name, ours, theirs)
        doubts = [*compared.beyond, *compared.different, *compared.unsure, *_never_here(origin, ours, theirs)]
        doubts = [doubt for doubt in doubts if doubt.origin == origin and self._differs(doubt)]
        if not doubts or self.origin() != origin:
            return bool(doubts)
        self._engine.relayed.renewals.take(peer, self._channel)
        first = doubts[0]
        if self._renew(origin, f"{origin} {first.partition}/{first.sequence} is message {first.id} elsewhere"):
            self._append_again(origin, doubts, positions)
        return True

    def _differs(self, doubt: Doubt) -> bool:
        """Whether our message of this sequence, which is its offset, is another one; not if it was removed."""
        if doubt.partition >= self._engine.partition_count(self._channel):
            return True
        limit = self._engine.limit(self._channel, doubt.partition, synced=False)
        if not limit.first <= doubt.sequence < limit.next:
            return doubt.sequence >= limit.next
        line = line_at(self._engine.log(self._channel, doubt.partition), doubt.sequence, self._engine.disk)
        for origin, _, _, message in identities_of(line or b""):
            return (origin, message) != (doubt.origin, doubt.id)
        return False

    def _renew(self, origin: str, why: str) -> bool:
        """Begin a new life, unless somebody else was quicker: another stream of the channel, for example."""
        before, new = origin.rpartition(".")[2], channels.new_incarnation()

        def renew(file: ChannelFile) -> ChannelFile:
            return msgspec.structs.replace(file, incarnation=new) if file.incarnation == before else file

        after = self._engine.alter(self._channel, renew).incarnation
        if after != new:
            return False
        logger.warning(
            "channel '%s' begins a new life, for it was restored from a backup or copied: %s", self._channel, why
        )
        self._engine.audit.write("incarnation", channel=self._channel, before=before, after=after, why=why)
        return True

    def _append_again(self, origin: str, doubts: list[Doubt], positions: Mapping[int, int]) -> None:
        """What others take for messages that they have: published once more, under the new origin."""
        count = 0
        for doubt in doubts:
            bodies: list[bytes] = []
            size = 0
            for line in self._own_lines(origin, doubt.partition, positions.get(doubt.partition, 0), doubt.sequence + 1):
                bodies.append(_TAIL.sub(b"", line))
                size += len(line)
                count += 1
                if size > _AGAIN_BYTES:
                    self._republish(bodies)
                    bodies, size = [], 0
            self._republish(bodies)
        if count:
            self._engine.audit.write("appended-again", channel=self._channel, origin=origin, messages=count)

    def _republish(self, bodies: list[bytes]) -> None:
        if bodies:
            moments = [msgspec.json.decode(body + b"}", type=_Timed).time for body in bodies]
            self._station.publisher.republish(self._channel, bodies, moments)

    def _own_lines(self, origin: str, partition: int, first: int, following: int) -> Iterator[bytes]:
        """Lines of an own origin between two sequences, which are offsets."""
        log = self._engine.log(self._channel, partition)
        mark = f',"origin":"{origin}","originseq":"{partition}/'.encode()
        with contextlib.closing(LogCursor(log, first, self._engine.disk)) as cursor:
            while cursor.offset < following and (chunk := cursor.read()) is not None:
                numbered = chunk.numbered or list(enumerate(chunk.data.split(b"\n")[:-1], chunk.first))
                for offset, line in numbered:
                    if first <= offset < following and mark in line[-400:]:
                        yield line


def _never_here(origin: str, ours: Ends, theirs: Ends) -> list[Doubt]:
    """Partitions in which others have something of this origin, and we know of nothing."""
    return [Doubt(*key, *end) for key, end in theirs.items() if key[0] == origin and key not in ours]
