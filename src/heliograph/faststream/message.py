"""Messages as FastStream's handlers see them, and what became of one that was delivered.

FastStream says what became of a message by calling ``ack``, ``nack`` or ``reject`` on it; a station by how its
handler ends. :class:`Delivery` notes the one and turns it into the other.
"""

from __future__ import annotations

import asyncio
from contextvars import ContextVar
from datetime import timedelta
from re import Pattern
from typing import Any

import msgspec
from faststream._internal.constants import ContentTypes
from faststream._internal.utils.path import match_path
from faststream.exceptions import NackMessage
from faststream.message import AckStatus, StreamMessage, decode_message
from faststream.middlewares import AckPolicy

from heliograph.delivery.deadletter import describe
from heliograph.errors import Reject, RetryLater
from heliograph.message import Draft, Message
from heliograph.station.requests import ERROR_TYPE


class NotAcknowledged(Exception):
    """The handler came to an end and did not say what became of its message."""


class Delivery:
    """One attempt to deliver a message, or a batch: what FastStream decided, and what the handler answered."""

    __slots__ = ("answer", "decided", "delay_s", "reason", "verdict")

    def __init__(self) -> None:
        self.verdict: AckStatus | None = None
        self.delay_s: float | None = None
        self.reason = ""
        self.answer: Draft | None = None
        self.decided = asyncio.Event()

    def decide(self, verdict: AckStatus, *, delay_s: float | None = None, reason: str = "") -> None:
        """The first decision counts."""
        if self.verdict is None:
            self.verdict, self.delay_s, self.reason = verdict, delay_s, reason
        self.decided.set()

    def fail(self, policy: AckPolicy) -> None:
        """What the policy makes of an error, unless it was decided before."""
        if policy is AckPolicy.REJECT_ON_ERROR:
            self.decide(AckStatus.REJECTED)
        elif policy is AckPolicy.ACK:
            self.decide(AckStatus.ACKED)

    def end(self, error: BaseException | None, *, manual: bool) -> Draft:
        """Return the answer if the message is done, and raise what the station understands if it is not."""
        if self.verdict is AckStatus.REJECTED:
            raise Reject(self.reason or "rejected by the handler") from error
        if self.verdict is AckStatus.ACKED or (self.verdict is None and error is None and not manual):
            return self.answer or _no_answer(error)
        if self.delay_s is not None:
            raise RetryLater(self.delay_s) from error
        if error is not None:
            raise error
        if self.verdict is AckStatus.NACKED:
            raise NackMessage
        raise NotAcknowledged("the handler returned without ack(), nack() or reject(), and its AckPolicy is MANUAL")


def _no_answer(error: BaseException | None) -> Draft:
    """For whoever asked, if anybody did: the message is done, and there is no answer."""
    kind = type(error) if error is not None else NotAcknowledged
    text = describe(error) if error is not None else "the message was acknowledged without an answer"
    told = {"error": text, "error_type": f"{kind.__module__}.{kind.__qualname__}", "attempts": 1}
    return Draft(data=told, type=ERROR_TYPE)


_current: ContextVar[Delivery | None] = ContextVar("heliograph_faststream_delivery", default=None)


class Delivering:
    """``with Delivering() as delivery``: messages that are parsed in the block belong to the delivery."""

    __slots__ = ("_delivery", "_token")

    def __init__(self, delivery: Delivery | None = None) -> None:
        self._delivery = delivery or Delivery()

    def __enter__(self) -> Delivery:
        self._token = _current.set(self._delivery)
        return self._delivery

    def __exit__(self, *_: object) -> None:
        _current.reset(self._token)


def current_delivery() -> Delivery:
    """The delivery at hand; one that nobody looks at when a message is handled outside of a station, as in tests."""
    return _current.get() or Delivery()


class HeliographMessage(StreamMessage[Any]):
    """A message of a channel. ``raw_message`` is the :class:`heliograph.Message`, or a list of them."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._delivery = current_delivery()

    async def ack(self) -> None:
        """It is done."""
        self._delivery.decide(AckStatus.ACKED)
        await super().ack()

    async def nack(self, delay: float | timedelta | None = None) -> None:
        """Deliver it again: after this long, or as the subscriber's ``retry`` says. It counts as an attempt."""
        delay_s = delay.total_seconds() if isinstance(delay, timedelta) else delay
        self._delivery.decide(AckStatus.NACKED, delay_s=delay_s)
        await super().nack()

    async def reject(self, reason: str = "") -> None:
        """Trying again cannot help: a dead letter, at once."""
        self._delivery.decide(AckStatus.REJECTED, reason=reason)
        await super().reject()


class _Payload(msgspec.Struct):
    data: msgspec.Raw = msgspec.Raw(b"null")


_payload = msgspec.json.Decoder(_Payload).decode


def _body(message: Message) -> tuple[bytes, str | None]:
    """The payload's bytes and kind, whatever type is registered for it."""
    data = message.data
    if isinstance(data, bytes):
        return data, None
    if type(data) is str:
        return data.encode(), ContentTypes.TEXT.value
    return bytes(_payload(message.raw).data), ContentTypes.JSON.value


class Parser:
    """Makes FastStream's message of one of ours."""

    def __init__(self, names: Pattern[str] | None = None) -> None:
        self._names = names

    async def parse_message(self, message: Message) -> StreamMessage[Any]:
        """Headers, path and body; ``reply_to`` is where an answer goes."""
        headers = message.headers
        body, content_type = _body(message)
        return HeliographMessage(
            raw_message=message,
            body=body,
            headers=headers,
            reply_to=str(headers.get("replyto") or headers.get("reply_to") or ""),
            path=match_path(self._names, message.channel),
            content_type=content_type,
            correlation_id=message.correlationid,
            message_id=message.id,
        )

    async def decode_message(self, message: StreamMessage[Any]) -> Any:
        """The body as Python data."""
        return decode_message(message)


class BatchParser(Parser):
    """The same for a list of messages. Nobody is answered."""

    async def parse_batch(self, messages: list[Message]) -> StreamMessage[Any]:
        """One message whose body is a list."""
        first = messages[0]
        all_headers = [message.headers for message in messages]
        return HeliographMessage(
            raw_message=messages,
            body=[_body(message)[0] for message in messages],
            headers=all_headers[0],
            batch_headers=all_headers,
            path=match_path(self._names, first.channel),
            correlation_id=first.correlationid,
            message_id=first.id,
        )

    async def decode_batch(self, message: StreamMessage[Any]) -> list[Any]:
        """The bodies as Python data."""
        return [decode_message(await self.parse_message(one)) for one in message.raw_message]
