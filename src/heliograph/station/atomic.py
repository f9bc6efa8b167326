"""Atomic steps: publish to several channels, and say that messages are done, all together or not at all.

A bridge that is exactly-once::

    def handle(message):
        with station.atomic() as step:
            step.publish("out", convert(message.data))
            step.commit(message, "bridge")

    station.subscribe("in", handle, name="bridge")

What is published in a step is encoded and checked at once and appended when the block ends. An exception in the block
leaves nothing behind. See engine/steps.py for how it survives a crash.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Any, NamedTuple, Self

from heliograph.engine.files import FilesEngine
from heliograph.engine.port import Position
from heliograph.engine.steps import Moved
from heliograph.errors import ConfigError, HeliographError, InvalidArgument, NotFound
from heliograph.message import HeaderValue, Message, Receipt
from heliograph.names import check_name
from heliograph.station.publisher import Publisher


class _Draft(NamedTuple):
    id: str
    channel: str
    partition: int
    body: bytes


class Step:
    """What happens together. Made by ``Station.atomic``; belongs to one thread."""

    def __init__(self, engine: FilesEngine, publisher: Publisher) -> None:
        self.receipts: list[Receipt] = []
        """Where the messages are, in the order of publishing, once the block has ended."""
        self.already_done = False
        """Whether what it commits was done before: then nothing happens when the block ends."""
        self._engine = engine
        self._publisher = publisher
        self._drafts: list[_Draft] = []
        self._moved: dict[tuple[str, str, int], Moved] = {}
        self._ended = False

    def publish(
        self,
        channel: str,
        data: Any = None,
        *,
        type: str | None = None,
        key: str | None = None,
        headers: Mapping[str, HeaderValue] | None = None,
        correlation_id: str | None = None,
        subject: str | None = None,
        id: str | None = None,
    ) -> str:
        """Publish a message when the block ends; its id."""
        self._check_open()
        body, message_id = self._publisher.body(channel, data, type, key, headers, correlation_id, subject, id)
        partition = self._publisher.partitioner.choose(channel, key)
        self._drafts.append(_Draft(message_id, channel, partition, body))
        return message_id

    def commit(self, message: Message, subscription: str) -> None:
        """Say that a durable subscription is done with this message and all before it in its partition.

        If it was done before (an earlier step ended in an error, after it had happened), the whole step does nothing.
        For handlers that take one message at a time (``concurrency=1``, not batches).
        """
        self._check_open()
        if not isinstance(message, Message):
            raise InvalidArgument(f"commit takes the message that was handled, not {message!r}")
        check_name(subscription, "subscription")
        if subscription not in self._engine.positions.names(message.channel):
            raise NotFound(f"channel '{message.channel}' has no subscription '{subscription}'")
        if self._engine.positions.kind(message.channel, subscription) == "queue":
            raise ConfigError(
                f"'{subscription}' of '{message.channel}' is a queue: its messages are acknowledged one by one, not "
                "by a position, and a step cannot commit them. Use a subscription or a group."
            )
        now_us = self._engine.clock.time_ns() // 1000
        position = Position(self._engine.incarnation(message.channel), message.offset + 1, message.id, now_us)
        if self._engine.steps.done(message.channel, subscription, message.partition, position):
            self.already_done = True
            return
        moved = Moved(message.channel, subscription, message.partition, position)
        before = self._moved.get((message.channel, subscription, message.partition))
        if before is None or before.position.offset < position.offset:
            self._moved[message.channel, subscription, message.partition] = moved

    def _check_open(self) -> None:
        if self._ended:
            raise HeliographError("this atomic step has ended; begin another with station.atomic()")
        self._engine.check_writable()

    def carry_out(self) -> None:
        """End the step: everything happens."""
        self._check_open()
        self._ended = True
        if self.already_done or not (self._drafts or self._moved):
            return
        steps, moved = self._engine.steps, list(self._moved.values())
        with steps.committing(moved):
            # A handler that took too long goes on beside the next attempt: whoever is second does nothing.
            if any(steps.done(*one.place, one.position) for one in moved):
                self.already_done = True
                return
            self._carry_out(moved)

    def _carry_out(self, moved: list[Moved]) -> None:
        places: dict[tuple[str, int], list[int]] = {}
        for at, draft in enumerate(self._drafts):
            places.setdefault((draft.channel, draft.partition), []).append(at)
        parts = [(*place, [self._drafts[at].body for at in found]) for place, found in places.items()]
        firsts = self._engine.steps.carry_out(parts, moved)
        receipts: dict[int, Receipt] = {}
        for ((channel, partition), found), first in zip(places.items(), firsts, strict=True):
            for n, at in enumerate(found):
                receipts[at] = Receipt(self._drafts[at].id, channel, partition, first + n)
            self._publisher.count(channel, [self._drafts[at].body for at in found])
        self.receipts = [receipts[at] for at in range(len(self._drafts))]

    def abandon(self) -> None:
        """End the step: nothing happens."""
        self._ended = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.carry_out()
        else:
            self.abandon()
