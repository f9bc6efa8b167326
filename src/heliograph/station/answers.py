"""Answering: handlers whose answers go back to whoever asked, in this process, another, or at another station.

A reply goes to the channel that the request names. If that is not here because the request was published at another
station, it goes to that station's ``_reply.to.NAME``, and links take it there.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from heliograph.delivery.invoke import refuse_awaitable
from heliograph.errors import HeliographError, NotFound
from heliograph.message import Draft, Message, Receipt
from heliograph.names import REPLY, REPLY_TO
from heliograph.station.requests import ERROR_TYPE, addresses

logger = logging.getLogger("heliograph.requests")


class Asker(NamedTuple):
    """Whoever asked: where it wants the reply to which request."""

    replyto: Any
    id: str
    correlation_id: str | None
    origin: str | None

    @classmethod
    def of(cls, message: Message) -> Asker:
        """Whoever published a message."""
        return cls(addresses(message.raw).replyto, message.id, message.correlationid, message.origin)


class Answers:
    """Sends replies to where requests want them. Safe to use from any thread.

    ``bury`` writes dead letters: when a handler gives up, whoever asked is told as well.
    """

    def __init__(
        self,
        name: str,
        publish: Callable[..., Receipt],
        bury: Callable[[str, dict[str, Any], str | None], object],
    ) -> None:
        self._name = name
        self._publish = publish
        self._bury = bury

    def send(self, asker: Asker, draft: Draft) -> bool:
        """Send a reply; False if nobody wants it (any more)."""
        headers = {**(draft.headers or {}), "replyfor": asker.id}
        correlation_id = draft.correlation_id or asker.correlation_id

        def publish(channel: str) -> None:
            self._publish(
                channel, draft.data, draft.type, draft.key, headers, correlation_id, draft.subject, draft.id, None
            )

        return self.deliver(asker, publish)

    def deliver(self, asker: Asker, publish: Callable[[str], object]) -> bool:
        """Have a reply published where it has to go; False if nobody wants it (any more)."""
        if asker.replyto is None:
            return False
        if not isinstance(asker.replyto, str) or not asker.replyto.startswith(REPLY):
            logger.warning("request %s wants its reply in %r, which is no channel of replies", asker.id, asker.replyto)
            return False
        try:
            publish(asker.replyto)
        except NotFound:
            station = (asker.origin or "").rpartition(".")[0]
            if station in {"", self._name}:
                logger.info("whoever sent request %s has gone", asker.id)
                return False
            publish(REPLY_TO + station)
        return True

    def bury(self, channel: str, payload: dict[str, Any], key: str | None) -> object:
        """Tell whoever asked, then write the dead letter: a reply that comes twice does no harm, a letter would."""
        original = payload.get("original")
        if original is not None:
            self._apologise(bytes(original), payload)
        return self._bury(channel, payload, key)

    def _apologise(self, line: bytes, payload: dict[str, Any]) -> None:
        try:
            envelope = msgspec.json.decode(line, type=dict[str, Any])
            told = {field: payload[field] for field in ("error", "error_type", "attempts")}
            asker = Asker(
                envelope.get("replyto"), str(envelope.get("id")), envelope.get("correlationid"), envelope.get("origin")
            )
            self.send(asker, Draft(data=told, type=ERROR_TYPE))
        except (HeliographError, msgspec.MsgspecError, UnicodeDecodeError) as error:
            logger.error("an error could not be told to whoever asked: %s", error)


class Answering:
    """A handler that answers, so that whoever asked is told when it gives up."""

    answers: Answers


class Replier(Answering):
    """A handler whose answers are published to where the request says. Messages that ask for none get none."""

    def __init__(self, handler: Callable[[Message], Any], answers: Answers) -> None:
        self._handler = handler
        self.answers = answers

    def __call__(self, message: Message) -> None:
        """Handle a request and send the answer."""
        answer = self._handler(message)
        refuse_awaitable(answer)
        self._answer(message, answer)

    def _answer(self, message: Message, answer: Any) -> None:
        self.answers.send(Asker.of(message), answer if isinstance(answer, Draft) else Draft(data=answer))


class AsyncReplier(Replier):
    """The same for a coroutine function; the answer is published in a thread, not in the event loop."""

    async def __call__(self, message: Message) -> None:  # type: ignore[override]
        """Handle a request and send the answer."""
        import asyncio

        answer = await self._handler(message)
        if addresses(message.raw).replyto is not None:  # a change of threads costs more than looking
            await asyncio.to_thread(self._answer, message, answer)
