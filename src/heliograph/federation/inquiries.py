"""Requests that clients of a hub publish and answer.

A client that asks needs the right to publish, and gets the replies to its own requests, nothing else: they come to this
process's channel of replies, and from there to the client. A client that answers names the request, which it was
allowed to read; the hub looks where the reply is to go.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast

import msgspec

from heliograph.errors import InvalidMessage, NotAllowed, NotFound, OutcomeUnknown, ReplyFailed
from heliograph.federation import asking
from heliograph.federation.counter import Counter, insist
from heliograph.federation.errands import Answer, Answered, Replied, Request
from heliograph.message import Message
from heliograph.names import check_ownable
from heliograph.station.answers import Asker
from heliograph.station.reader import message_at
from heliograph.station.requests import addresses

if TYPE_CHECKING:
    from heliograph.federation.conversation import Conversation
    from heliograph.federation.rules import Rules
    from heliograph.station import requests


class _Event(msgspec.Struct):
    id: str


_event = msgspec.json.Decoder(_Event).decode


class Inquiries:
    """What one connection asks and answers."""

    def __init__(self, conversation: Conversation, counter: Counter) -> None:
        self._conversation = conversation
        self._counter = counter
        self._station = conversation.shared.station
        self._loop = asyncio.get_running_loop()

    async def ask(self, ask: Request, line: bytes) -> tuple[Replied, bytes]:
        """Publish a request, and wait for the reply without holding a thread."""
        until = self._loop.time() + ask.timeout_s
        rules = self._conversation.storer.rules
        request = await self._conversation.run(self._begin, ask, line, rules)
        over = self._loop.create_task(self._conversation.over.wait())
        try:
            answer = asyncio.wrap_future(request.future)
            left: set[asyncio.Future[Any]] = {answer, over}
            await asyncio.wait(left, timeout=until - self._loop.time(), return_when=asyncio.FIRST_COMPLETED)
            if not answer.done():
                answer.cancel()
                raise request.timed_out()
            reply = answer.result()
        except ReplyFailed as failed:
            reply = cast(Message, failed.reply)  # the client sees what it says
        finally:
            over.cancel()
            self._station.requests.end(request)
        return Replied(partition=reply.partition, offset=reply.offset), reply.raw

    def _begin(self, ask: Request, line: bytes, rules: Rules) -> requests.Request:
        """Publish it; in a thread."""
        insist(rules.publishing(check_ownable(ask.channel)))
        request = self._station.requests.begin(ask.channel, ask.timeout_s, _id_in(line))
        try:
            publish = asking.Publish(channel=ask.channel, again_s=ask.again_s)
            published = self._counter.publish(publish, line, rules, {"replyto": request.replyto})
            if published.duplicate:
                self._resume(ask, request, published.places[0], rules.peer)
        except BaseException:
            self._station.requests.end(request)
            raise
        return request

    def _resume(self, ask: Request, request: requests.Request, place: tuple[int, int], peer: str) -> None:
        """It was published before a cut: the reply may be here, or will come."""
        message = message_at(self._station.engine, ask.channel, *place)
        if message is None or message.source.partition("/")[0] != peer:
            raise NotAllowed(f"message {request.id} of '{ask.channel}' was not asked by {peer}")
        if addresses(message.raw).replyto != request.replyto:
            raise OutcomeUnknown(
                f"request {request.id} is in '{ask.channel}', but the hub was restarted since: whether it was handled "
                "is not known, and the reply does not come. Ask again if that does no harm"
            )
        self._station.requests.look(request)

    async def answer(self, ask: Answer, line: bytes) -> Answered:
        """Send an answer to whoever asked."""
        return await self._conversation.run(self._answer, ask, line, self._conversation.storer.rules)

    def _answer(self, ask: Answer, line: bytes, rules: Rules) -> Answered:
        channel = check_ownable(ask.channel)
        insist(rules.subscribing(channel) or rules.answering(channel))
        message = message_at(self._station.engine, channel, ask.partition, ask.offset)
        if message is None or message.id != ask.id:
            raise NotFound(f"there is no request {ask.id!r} at {ask.partition}/{ask.offset} of '{channel}' (any more)")
        asker = Asker.of(message)

        def publish(into: str) -> None:
            self._counter.publish_reply(channel, line, rules.peer, {"replyfor": asker.id}, into)

        return Answered(sent=self._station.answers.deliver(asker, publish))


def _id_in(line: bytes) -> str:
    try:
        return _event(line).id
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidMessage(f"this is no event: {error}") from None
