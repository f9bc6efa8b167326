"""Handlers of a client whose answers go back to whoever asked."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from heliograph.client.asker import Asker
from heliograph.client.drafting import Drafting
from heliograph.client.subscription import is_ours
from heliograph.delivery.deadletter import describe
from heliograph.delivery.invoke import refuse_awaitable
from heliograph.federation.errands import ANSWER, Answer, Answered
from heliograph.message import Draft, Message
from heliograph.station.requests import ERROR_TYPE, addresses

if TYPE_CHECKING:
    from heliograph.client.threads import Loop

Handler = Callable[[Message], Any]


class Answers:
    """Sends answers by way of the hub: it knows where they have to go."""

    def __init__(self, asker: Asker, drafting: Drafting) -> None:
        self._asker = asker
        self._drafting = drafting

    async def send(self, message: Message, answer: Any) -> None:
        """Answer a request. Messages that ask for nothing get nothing."""
        if addresses(message.raw).replyto is None:
            return
        draft = answer if isinstance(answer, Draft) else Draft(data=answer)
        common = Draft(correlation_id=message.correlationid)
        lines, _ = self._drafting.events(message.channel, [draft], common, None)
        place = Answer(channel=message.channel, partition=message.partition, offset=message.offset, id=message.id)
        await self._asker.ask(ANSWER, place, Answered, lines[0])

    async def apologise(self, message: Message, error: BaseException) -> None:
        """Tell whoever asked that the handler failed."""
        kind = type(error)
        told = {"error": describe(error), "error_type": f"{kind.__module__}.{kind.__qualname__}", "attempts": 1}
        await self.send(message, Draft(data=told, type=ERROR_TYPE))


def awaiting(handler: Handler, answers: Answers, *, alone: bool) -> Handler:
    """A handler for asyncio that answers. ``alone``: nobody else tells of its failures."""

    async def answering(message: Message) -> None:
        try:
            answer = handler(message)
            if inspect.isawaitable(answer):
                answer = await answer
        except (Exception, asyncio.CancelledError) as error:
            if alone and not is_ours(error):
                await answers.apologise(message, error)
            raise
        await answers.send(message, answer)

    return answering


def in_threads(handler: Handler, answers: Answers, loop: Loop, *, alone: bool) -> Handler:
    """The same for threads."""

    def answering(message: Message) -> None:
        try:
            answer = handler(message)
            refuse_awaitable(answer)
        except Exception as error:
            if alone:
                loop.run(answers.apologise(message, error))
            raise
        loop.run(answers.send(message, answer))

    return answering
