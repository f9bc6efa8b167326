"""What a peer refused: dead letters of this station, with the reason and who it was.

They are ordinary dead letters (``CHANNEL.dead-letter``) of a subscription called ``link to PEER``.
"""

from __future__ import annotations

import contextlib
import logging
from base64 import b64encode
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec

from heliograph.clock import from_us
from heliograph.delivery.deadletter import (
    DEAD_LETTER_TYPE,
    DeadLetter,
    DeadLetterIdentity,
    Written,
    is_dead_letter_channel,
    may_be_key,
)
from heliograph.engine.knowledge import identities_of
from heliograph.errors import OutcomeUnknown
from heliograph.federation.originals import Originals
from heliograph.station.letters import recent_letters

if TYPE_CHECKING:
    from heliograph.station import Station

logger = logging.getLogger("heliograph.links")
TOGETHER_BYTES: Final = 4 << 20
"""How much of what was refused becomes letters with one append."""
Identity = tuple[str, int, int]
"""Origin, its partition and sequence."""
Again = Callable[[str, int, int], bool]


class Letters:
    """The letters of one link and channel, each written once."""

    def __init__(self, station: Station, peer: str, channel: str, since_us: int) -> None:
        self._station = station
        self._engine = station.engine
        self._peer = peer
        self._channel = channel
        self._written = Written(channel, recent=self._recent, since_us=since_us)

    def write(self, partition: int, refused: Sequence[tuple[int, str]], again: Again) -> list[Identity]:
        """Durable when it returns: origins, their partitions and sequences, of those messages that are still here.

        ``again``: whether something is sent because its letter was replayed. That one may still be there, and counts
        for nothing.
        """
        identities: list[Identity] = []
        waiting: list[DeadLetter] = []
        size = 0
        with Originals(self._engine, self._channel) as originals:
            for offset, reason in refused:
                line = originals.line(partition, offset)
                found = next(iter(identities_of(line or b"")), None)
                self._tell(partition, offset, reason, "" if found is None else found[3])
                if line is None or found is None:
                    continue
                identities.append(found[:3])
                if is_dead_letter_channel(self._channel):
                    continue
                letter = self._letter(partition, offset, line, reason)
                if again(*found[:3]) or not self._written.has(letter.identity):
                    waiting.append(letter)
                    size += len(line)
                if size >= TOGETHER_BYTES:
                    self._publish_all(waiting)
                    waiting, size = [], 0
        self._publish_all(waiting)
        return identities

    def _tell(self, partition: int, offset: int, reason: str, message_id: str) -> None:
        logger.warning("%s refused message %d/%d of '%s': %s", self._peer, partition, offset, self._channel, reason)
        self._engine.audit.write(
            "link-refused-message", peer=self._peer, channel=self._channel, partition=partition, offset=offset,
            id=message_id, why=reason,
        )  # fmt: skip

    def _letter(self, partition: int, offset: int, line: bytes, reason: str) -> DeadLetter:
        identity = DeadLetterIdentity(
            f"link to {self._peer}", self._engine.incarnation(self._channel), partition, offset
        )
        original: dict[str, Any] = {"original": None, "original_base64": b64encode(line).decode()}
        key = None
        with contextlib.suppress(msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            envelope = msgspec.json.decode(line, type=dict[str, msgspec.Raw])
            original = {"original": msgspec.Raw(line)}
            key = msgspec.json.decode(envelope["partitionkey"], type=str) if "partitionkey" in envelope else None
        now = from_us(self._engine.clock.time_ns() // 1000).isoformat(timespec="microseconds")
        payload = {
            **original, "reason": "refused", "error": f"{self._peer} refused it: {reason}",
            "error_type": "heliograph.errors.InvalidMessage", "traceback": "", "attempts": 1, "peer": self._peer,
            **identity._asdict(), "channel": self._channel, "failed_at": now.replace("+00:00", "Z"),
        }  # fmt: skip
        return DeadLetter(identity, payload, key if may_be_key(key) else None)

    def _publish_all(self, letters: list[DeadLetter]) -> None:
        """With one append, and one sync."""
        if not letters:
            return
        channel = self._written.channel
        messages = [(letter.payload, letter.key) for letter in letters]
        try:
            end = self._station.publisher.publish_all_own(channel, DEAD_LETTER_TYPE, messages)
            self._engine.make_durable(channel, 0, end)
        except OutcomeUnknown:
            self._written.doubt()
            raise

    def _recent(self, channel: str, since_us: int) -> Iterator[DeadLetterIdentity]:
        return recent_letters(self._station, channel, since_us)
