"""Dead letters: what they say, and how they are written once.

A letter is an ordinary message in ``CHANNEL.dead-letter``; its data::

    {"original": {…the stored envelope…} | null,     null only when the line is not an envelope at all, then
     "original_base64": "…",                         the line itself is here
     "reason": "handler" | "mismatch" | "undecodable",
     "error": "ValueError: boom", "error_type": "builtins.ValueError", "traceback": "…", "attempts": 6,
     "subscription": "worker-1", "group": "worker-1", "worker": "host1.4711.1",     the last two for groups only
     "channel": "alerts", "partition": 0, "offset": 41, "incarnation": "k3f9q2",
     "failed_at": "2026-11-15T20:30:01.123456Z"}

(subscription, incarnation, partition, offset) is a letter's identity. A crash between the letter and the
commit of the position delivers the message again; before the first letter of a new life is written, those
written since the position was saved are looked through, so that the letter is not doubled.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import traceback
from base64 import b64encode
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from heliograph.clock import from_us
from heliograph.errors import InvalidMessage, NotFound, OutcomeUnknown, Reject
from heliograph.message import key_attribute

if TYPE_CHECKING:
    from heliograph.delivery.ports import PublishDeadLetter, RecentDeadLetters
    from heliograph.engine.port import Problem
    from heliograph.message import Message

DEAD_LETTER_TYPE = "heliograph.dead-letter.v1"
DEAD_LETTER_SUFFIX = ".dead-letter"

ERROR_CHARS_MAX = 2_000
"""Longest error text in a letter."""

TRACEBACK_CHARS_MAX = 16_000
"""Longest traceback in a letter; its end is kept, because that is where the error is."""

LOOK_BACK_US = 600 * 1_000_000
"""How far before the position's time letters are looked through, in case the clock was stepped."""

_ERROR_TYPES = {
    "mismatch": "heliograph.errors.PayloadMismatch",
    "undecodable": "heliograph.errors.InvalidMessage",
}

logger = logging.getLogger("heliograph.delivery")


class DeadLetterIdentity(NamedTuple):
    """What makes two letters the same letter."""

    subscription: str
    incarnation: str
    partition: int
    offset: int


class DeadLetter(NamedTuple):
    """A letter that is ready to be written."""

    identity: DeadLetterIdentity
    payload: dict[str, Any]
    key: str | None


def dead_letter_channel(channel: str) -> str:
    """Where the channel's dead letters go.

    >>> dead_letter_channel("alerts")
    'alerts.dead-letter'
    """
    return channel + DEAD_LETTER_SUFFIX


def is_dead_letter_channel(channel: str) -> bool:
    """Dead letters have no dead letters of their own."""
    return channel.endswith(DEAD_LETTER_SUFFIX)


def identity_of(data: object) -> DeadLetterIdentity | None:
    """The identity of a stored letter, from its data; None if it is not one of ours."""
    if not isinstance(data, Mapping):
        return None
    match data:
        case {
            "subscription": str(subscription),
            "incarnation": str(incarnation),
            "partition": int(partition),
            "offset": int(offset),
        }:
            return DeadLetterIdentity(subscription, incarnation, partition, offset)
    return None


def _encodable(text: str) -> str:
    """The same text without lone surrogates, which JSON cannot carry."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def describe(error: BaseException) -> str:
    """One line about an error, whatever its ``__str__`` does."""
    try:
        text = str(error)
    except Exception:  # noqa: BLE001 - the text of a broken error must not break the delivery
        text = "(its text cannot be shown)"
    name = type(error).__name__
    return _encodable(f"{name}: {text}" if text else name)[:ERROR_CHARS_MAX]


def _traceback_of(error: BaseException) -> str:
    try:
        text = "".join(traceback.format_exception(error))
    except Exception:  # noqa: BLE001 - as above
        text = describe(error)
    text = _encodable(text)
    return text if len(text) <= TRACEBACK_CHARS_MAX else "…" + text[1 - TRACEBACK_CHARS_MAX :]


def letter_for_message(
    identity: DeadLetterIdentity,
    message: Message,
    error: BaseException,
    *,
    attempts: int,
    now_us: int,
    worker: str | None = None,
) -> DeadLetter:
    """The letter for a message whose handler gave up."""
    if isinstance(error, Reject) and error.__cause__ is not None:
        error = error.__cause__
    error_type = type(error)
    details: dict[str, Any] = {
        "original": msgspec.Raw(message.raw),
        "reason": "handler",
        "error": describe(error),
        "error_type": f"{error_type.__module__}.{error_type.__qualname__}",
        "traceback": _traceback_of(error),
        "attempts": attempts,
    }
    return _letter(identity, message.channel, details, message.key, now_us, worker)


def letter_for_problem(
    identity: DeadLetterIdentity, channel: str, problem: Problem, *, now_us: int, worker: str | None = None
) -> DeadLetter:
    """The letter for a line that reached no handler: it is not an envelope, or does not fit its type."""
    line = problem.line.rstrip(b"\n")
    details: dict[str, Any] = {
        "original": None,
        "reason": problem.kind,
        "error": _encodable(problem.reason)[:ERROR_CHARS_MAX],
        "error_type": _ERROR_TYPES.get(problem.kind, ""),
        "traceback": "",
        "attempts": 0,
    }
    key = None
    envelope = _envelope_of(line) if problem.kind == "mismatch" else None
    if envelope is None:
        details["original_base64"] = b64encode(line).decode("ascii")
    else:
        details["original"] = msgspec.Raw(line)
        key = envelope.get("partitionkey")
    return _letter(identity, channel, details, key if isinstance(key, str) else None, now_us, worker)


def _envelope_of(line: bytes) -> dict[str, Any] | None:
    try:
        return msgspec.json.decode(line, type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def _letter(
    identity: DeadLetterIdentity,
    channel: str,
    details: dict[str, Any],
    key: str | None,
    now_us: int,
    worker: str | None,
) -> DeadLetter:
    if worker is not None:
        details |= {"group": identity.subscription, "worker": worker}
    failed_at = from_us(now_us).isoformat(timespec="microseconds").replace("+00:00", "Z")
    payload = {**details, **identity._asdict(), "channel": channel, "failed_at": failed_at}
    return DeadLetter(identity, payload, key if may_be_key(key) else None)


def may_be_key(key: str | None) -> bool:
    """Whether a letter can have the key of its original: a log may hold longer ones than are published today."""
    try:
        key_attribute(key or "")
    except InvalidMessage:
        return False
    return True


class Written:
    """Which letters of a subscription were written before this life.

    ``since_us`` is when the position this life started from was saved: older letters cannot be ours. None
    for an ephemeral subscription, which starts no message twice.
    """

    def __init__(self, channel: str, *, recent: RecentDeadLetters, since_us: int | None) -> None:
        self.channel = dead_letter_channel(channel)
        self._recent = recent
        self._since_us = since_us
        self._looked: set[int] = set()
        self._found: set[DeadLetterIdentity] = set()
        self._lock = threading.Lock()

    def has(self, identity: DeadLetterIdentity) -> bool:
        """Whether this letter was. Before the first one of a partition, those that are there are looked through."""
        if self._since_us is None:
            return False
        with self._lock:
            if identity.partition not in self._looked:
                self._look(identity, max(0, self._since_us - LOOK_BACK_US))
                self._looked.add(identity.partition)
            found = identity in self._found
        if found:
            logger.info("%s: letter for offset %d is there already", self.channel, identity.offset)
        return found

    def _look(self, identity: DeadLetterIdentity, since_us: int) -> None:
        with contextlib.suppress(NotFound):
            self._found.update(
                DeadLetterIdentity(*found)
                for found in self._recent(self.channel, since_us)
                if found[0] == identity.subscription and found[2] == identity.partition
            )

    def doubt(self) -> None:
        """What was written last may be there once the log is repaired: look before it is written again."""
        with self._lock:
            self._looked.clear()


class DeadLetters:
    """Writes the letters of one subscription, each once; see :class:`Written`."""

    def __init__(
        self,
        channel: str,
        *,
        publish: PublishDeadLetter,
        recent: RecentDeadLetters,
        since_us: int | None,
    ) -> None:
        self._written = Written(channel, recent=recent, since_us=since_us)
        self._publish = publish

    def write(self, letter: DeadLetter) -> None:
        """Return when the letter is durable; whatever is raised means that it may not be."""
        if self._written.has(letter.identity):
            return
        try:
            self._publish(self._written.channel, letter.payload, letter.key)
        except OutcomeUnknown:
            self._written.doubt()
            raise
