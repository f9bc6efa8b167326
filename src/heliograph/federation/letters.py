"""What a peer refused: dead letters of this station, with the reason and who it was.

They are ordinary dead letters (``CHANNEL.dead-letter``) of a subscription called ``link to PEER``.
"""

from __future__ import annotations

import contextlib
import logging
from base64 import b64encode
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from heliograph.clock import from_us
from heliograph.delivery.deadletter import (
    DEAD_LETTER_TYPE,
    DeadLetter,
    DeadLetterIdentity,
    DeadLetters,
    dead_letter_channel,
    is_dead_letter_channel,
)
from heliograph.engine.knowledge import identities_of
from heliograph.log.seek import line_at
from heliograph.seen import SeenSet
from heliograph.station.letters import recent_letters

if TYPE_CHECKING:
    from heliograph.station import Station

logger = logging.getLogger("heliograph.links")


class Letters:
    """The letters of one link and channel, each written once."""

    def __init__(self, station: Station, peer: str, channel: str, since_us: int) -> None:
        self._station = station
        self._engine = station.engine
        self._peer = peer
        self._channel = channel
        self._letters = DeadLetters(channel, publish=self._publish, recent=self._recent, since_us=since_us)

    def write(self, partition: int, offset: int, reason: str, again: SeenSet) -> tuple[str, int, int] | None:
        """Durable when it returns: origin, its partition and sequence; None if the message is not here any more.

        ``again``: what is sent because its letter was replayed. That one may still be there, and counts for nothing.
        """
        line = line_at(self._engine.log(self._channel, partition), offset, self._engine.disk)
        found = next(iter(identities_of(line or b"")), None)
        logger.warning("%s refused message %d/%d of '%s': %s", self._peer, partition, offset, self._channel, reason)
        self._engine.audit.write(
            "link-refused-message", peer=self._peer, channel=self._channel, partition=partition, offset=offset,
            id="" if found is None else found[3], why=reason,
        )  # fmt: skip
        if line is None or found is None:
            return None
        if not is_dead_letter_channel(self._channel):
            letter = self._letter(partition, offset, line, reason)
            if again.has(*found[:3]):
                self._publish(dead_letter_channel(self._channel), letter.payload, letter.key)
            else:
                self._letters.write(letter)
        return found[:3]

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
        return DeadLetter(identity, payload, key)

    def _publish(self, channel: str, payload: dict[str, Any], key: str | None) -> object:
        receipt = self._station.publisher.publish_own(channel, DEAD_LETTER_TYPE, payload, key)
        self._engine.make_durable(channel, 0, receipt.offset + 1)
        return receipt

    def _recent(self, channel: str, since_us: int) -> Iterator[DeadLetterIdentity]:
        return recent_letters(self._station, channel, since_us)
