"""Asks a hub over whichever connection there is, again after a cut, and says how it ended."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any, Final

import msgspec

from heliograph.arguments import check_seconds
from heliograph.client.keeper import Keeper
from heliograph.client.line import Line
from heliograph.errors import HeliographError, MessageTooLarge, OutcomeUnknown, ReplyTimeout, Unreachable
from heliograph.federation.asking import PUBLISH, READ, WAIT_S, Publish, Published
from heliograph.federation.errands import RECEIVE, REQUEST, Replied, Request
from heliograph.federation.questions import Lost
from heliograph.message import Receipt

ASKED_MAX: Final = 80
"""How many requests wait for their answers at once; others wait for their turn."""
WAITING_MAX: Final = 160
"""How many of those that may wait for long: they do not hold up the others. Of all there are less than 256."""
_LONG: Final = {READ, RECEIVE, REQUEST}
REPLY_GRACE_S: Final = 2.0
"""How much longer than a reply is waited for the hub's word that none came: it knows more of why."""
LOSSES_MAX: Final = 20
"""How many connections in a row may be lost while one request waits for its answer."""
SLOW: Final = 10
"""How many times longer than for a connection a patient request waits for its answer."""
FLYING_BYTES_MAX: Final = 16 << 20
"""How much may be on its way to the hub; less than what a hub lets wait."""


class Asker:
    """The requests of one client."""

    def __init__(self, keeper: Keeper, timeout_s: float) -> None:
        self._keeper = keeper
        self.timeout_s = timeout_s
        self._loop = asyncio.get_running_loop()
        self._turns = asyncio.Semaphore(ASKED_MAX)
        self._long = asyncio.Semaphore(WAITING_MAX)
        self._room = asyncio.Event()
        self._flying = 0

    async def ask(
        self, name: str, head: msgspec.Struct, kind: type[Any], lines: bytes = b"", patience_s: float | None = None
    ) -> tuple[Any, bytes]:
        """Ask for something that may be asked any number of times.

        ``patience_s``: how long to wait for a connection; for the answer of a hub that lives, to which quotas belong,
        longer. Without: as long as for any request. Not for ever if each connection is lost, in either case.
        """
        given_s = self.timeout_s if patience_s is None else patience_s
        slow_s = WAIT_S if patience_s is None else SLOW * patience_s
        losses, began = 0, self._loop.time()
        while True:
            until = self._loop.time() + given_s
            line = await self._keeper.line(until)
            try:
                async with asyncio.timeout_at(until + slow_s) as limit:
                    with line.patient(limit):
                        return await line.ask(name, head, kind, lines, self.turn(name))
            except Lost as lost:
                losses += 1
                self.check_again(losses, lost, None if patience_s is not None else began + given_s + slow_s)
            except TimeoutError as error:
                if isinstance(error, HeliographError):
                    raise
                raise Unreachable(f"the hub did not answer within {given_s + slow_s:g} s") from None

    def check_again(self, losses: int, lost: Lost, by: float | None) -> None:
        """Whether to ask once more after so many losses in a row, and until when: raises Unreachable if not."""
        if losses >= LOSSES_MAX or (by is not None and self._loop.time() >= by):
            raise Unreachable(f"the connection was lost {losses} times before the hub answered: {lost}") from None

    async def body_bytes_max(self) -> int:
        """The largest body that the hub takes."""
        return (await self._keeper.line(self._loop.time() + self.timeout_s)).body_bytes_max

    def turn(self, name: str) -> asyncio.Semaphore:
        """What a request of this name holds until it is answered."""
        return self._long if name in _LONG else self._turns

    async def request(self, channel: str, line: bytes, own_id: str, timeout_s: float) -> tuple[Replied, bytes]:
        """Publish a request once, however often it has to be sent, and wait for its reply."""
        until = self._loop.time() + timeout_s
        asked_at: float | None = None
        while True:
            sent_before = asked_at is not None
            try:
                connection = await self._keeper.line(until)
                self._check_size(connection, channel, line)
                now = self._loop.time()
                again_s = None if asked_at is None else now - asked_at
                asked_at = now if asked_at is None else asked_at
                head = partial(self._request, channel, until, again_s)
                async with asyncio.timeout_at(until + REPLY_GRACE_S):
                    return await connection.ask(REQUEST, head, Replied, line, self._long)
            except Lost:
                continue
            except ReplyTimeout:
                raise
            except Unreachable as error:
                if not sent_before:
                    raise
                raise _unanswered(own_id, channel, timeout_s, str(error)) from error
            except HeliographError as error:  # the client is closed, or refused; or what it sends again is
                if not sent_before:
                    raise
                raise self._unknown(channel, [own_id], str(error)) from error
            except TimeoutError:
                raise _unanswered(own_id, channel, timeout_s, "the hub did not answer") from None

    def _request(self, channel: str, until: float, again_s: float | None) -> Request:
        left_s = max(0.001, round(until - self._loop.time(), 3))  # who is told of it reads it
        return Request(channel=channel, timeout_s=left_s, again_s=again_s)

    async def publish(self, channel: str, lines: list[bytes], ids: list[str], timeout_s: float | None) -> list[Receipt]:
        """Publish a batch: once, however often it has to be sent."""
        body = b"\n".join(lines)
        until = self._loop.time() + (self.timeout_s if timeout_s is None else check_seconds("timeout", timeout_s))
        await self._wait_for_room(len(body), until)
        self._flying += len(body)
        try:
            published = await self._publish(channel, body, ids, until)
        finally:
            self._flying -= len(body)
            self._room.set()
            self._room = asyncio.Event()
        return [
            Receipt(own_id, channel, partition, offset, published.duplicate)
            for own_id, (partition, offset) in zip(ids, published.places, strict=True)
        ]

    async def _wait_for_room(self, size: int, until: float) -> None:
        try:
            async with asyncio.timeout_at(until):
                while self._flying and self._flying + size > FLYING_BYTES_MAX:
                    await self._room.wait()
        except TimeoutError:
            raise Unreachable(f"the hub takes too long for the {self._flying} bytes that are on their way") from None

    async def _publish(self, channel: str, body: bytes, ids: list[str], until: float) -> Published:
        asked_at: float | None = None
        while True:
            sent_before = asked_at is not None
            try:
                line = await self._keeper.line(until)
                self._check_size(line, channel, body)
                again_s = None if asked_at is None else self._loop.time() - asked_at
                asked_at = self._loop.time() if asked_at is None else asked_at
                head = Publish(channel=channel, again_s=again_s)
                async with asyncio.timeout_at(until):
                    published: Published = (await line.ask(PUBLISH, head, Published, body, self._turns))[0]
                    return published
            except Lost:
                continue
            except HeliographError as error:  # the same, and nobody there in time
                if not sent_before:
                    raise
                raise self._unknown(channel, ids, str(error)) from error
            except TimeoutError:
                raise self._unknown(channel, ids, "it did not answer in time") from None

    def _unknown(self, channel: str, ids: list[str], why: str) -> OutcomeUnknown:
        several = f" and {len(ids) - 1} more" if len(ids) > 1 else ""
        return OutcomeUnknown(
            f"message {ids[0]}{several} was sent to '{channel}' of the hub, but whether it was stored is not known: "
            f"{why}. Read the channel before you publish it again"
        )

    def _check_size(self, line: Line, channel: str, body: bytes) -> None:
        if len(body) + 1024 > line.body_bytes_max:
            raise MessageTooLarge(
                f"{len(body)} bytes for '{channel}' at once; the hub takes {line.body_bytes_max - 1024}. Publish "
                "fewer messages at once, or a reference to the data instead"
            )


def _unanswered(own_id: str, channel: str, timeout_s: float, why: str) -> ReplyTimeout:
    return ReplyTimeout(
        f"no reply to request {own_id} on '{channel}' came within {timeout_s:g} s, and whether it was handled is not "
        f"known: {why}"
    )
