"""``async with TestHeliographBroker(broker)``: handlers are called at once, in memory, without a directory.

Also with what is to be delivered later, as the test brokers of FastStream do with schedules: a test is not to wait for
an hour. Whoever publishes gets the receipt of a message that waits, as from a station.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import count
from typing import TYPE_CHECKING, Any, cast, overload
from unittest.mock import MagicMock

import msgspec
from faststream._internal.testing.broker import EnterType, TestBroker, change_producer
from faststream.exceptions import SubscriberNotFound

from heliograph.clock import from_us
from heliograph.errors import ReplyTimeout
from heliograph.faststream.broker import HeliographBroker
from heliograph.faststream.command import HeliographPublishCommand
from heliograph.faststream.producer import HeliographProducer
from heliograph.faststream.subscriber import HeliographSubscriber
from heliograph.filters import ABSENT
from heliograph.message import Message, Receipt, attributes, decode_line, new_id
from heliograph.names import check_name
from heliograph.patterns import Pattern, is_pattern
from heliograph.payloads import DEFAULT_TYPE, check_type_name
from heliograph.schedule.times import due_us, ttl_of
from heliograph.schedule.waiting import Scheduled
from heliograph.station.requests import seconds

if TYPE_CHECKING:
    from heliograph.faststream.publisher import ChannelPublisher


class TestHeliographBroker(TestBroker[HeliographBroker, EnterType], broker=HeliographBroker):
    """Routes what is published to the handlers whose channel or pattern fits; an error of theirs is raised."""

    __test__ = False  # for pytest

    @overload
    def __init__(
        self: TestHeliographBroker[HeliographBroker], broker: HeliographBroker, /, *, with_real: bool = False,
        connect_only: bool | None = None,
    ) -> None: ...  # fmt: skip
    @overload
    def __init__(
        self: TestHeliographBroker[tuple[HeliographBroker, ...]], *brokers: HeliographBroker, with_real: bool = False,
        connect_only: bool | None = None,
    ) -> None: ...  # fmt: skip
    def __init__(self, *brokers: HeliographBroker, with_real: bool = False, connect_only: bool | None = None) -> None:
        super().__init__(*brokers, with_real=with_real, connect_only=connect_only)

    def create_publisher_fake_subscriber(
        self, broker: HeliographBroker, publisher: ChannelPublisher
    ) -> tuple[HeliographSubscriber, bool]:
        """Somebody who hears the publisher: a subscriber that was declared, or one made for the test."""
        for subscriber in _subscribers(self.brokers):
            if _hears(subscriber, publisher.channel):
                return subscriber, True
        return broker.subscriber(publisher.channel, batch=publisher.batch, persistent=False), False

    @contextmanager
    def _patch_producer(self, broker: HeliographBroker) -> Generator[None, None, None]:
        with change_producer(broker.config.broker_config, _FakeProducer(broker, self.brokers)):
            yield

    async def _fake_connect(self, broker: HeliographBroker, *_: Any, **__: Any) -> Any:  # noqa: ARG002 - FastStream's
        return MagicMock()


class _FakeProducer(HeliographProducer):
    """Hands messages to handlers instead of a station."""

    def __init__(self, broker: HeliographBroker, brokers: Sequence[HeliographBroker]) -> None:
        config = broker.config
        super().__init__(config.broker_parser, config.broker_decoder)
        self.connect(None, config.fd_config._serializer, config.broker_codec)
        self._brokers = brokers
        self._offsets = count()

    async def publish(self, cmd: HeliographPublishCommand) -> Receipt:
        message = await self._message(cmd, cmd.body)
        await self._deliver([message])
        return _receipt(cmd, message)

    async def publish_batch(self, cmd: HeliographPublishCommand) -> list[Receipt]:
        messages = [await self._message(cmd, body) for body in cmd.batch_bodies]
        await self._deliver(messages)
        return [_receipt(cmd, message) for message in messages]

    async def request(self, cmd: HeliographPublishCommand) -> Message:
        message = await self._message(cmd, cmd.body)
        hearing = list(_hearing(self._brokers, message))
        for subscriber in hearing:
            if subscriber.silent:
                await self._hand_to(subscriber, [message])
                continue
            async with asyncio.timeout(None if cmd.timeout is None else seconds(cmd.timeout)):
                response = await subscriber.process_message(message)
            answer = HeliographPublishCommand.from_cmd(response.as_publish_command())
            answer.destination = cmd.destination
            return await self._message(answer, answer.body)
        if hearing:
            raise ReplyTimeout(f"nobody replies on '{cmd.destination}': with batch or no_reply there is no answer")
        raise SubscriberNotFound(f"no subscriber of '{cmd.destination}' was declared")

    async def _deliver(self, messages: list[Message]) -> None:
        if not messages:
            return
        for subscriber in _hearing(self._brokers, messages[0]):
            await self._hand_to(subscriber, messages)

    async def _hand_to(self, subscriber: HeliographSubscriber, messages: list[Message]) -> None:
        if subscriber.options["batch"]:
            await subscriber.process_message(messages)
        else:
            for message in messages:
                await subscriber.process_message(message)

    async def _message(self, cmd: HeliographPublishCommand, body: Any) -> Message:
        """As it would come out of a log; what a station refuses is refused here."""
        _check(cmd)
        data = await self.encode(body)
        said = {"reply_to": cmd.reply_to} if cmd.reply_to else {}
        envelope = {
            "specversion": "1.0",
            "id": new_id(),
            "source": "test",
            "type": cmd.options.get("type", DEFAULT_TYPE),
            "time": datetime.now(UTC),
            "channel": cmd.destination,
            "partitionkey": cmd.options.get("key"),
            "correlationid": cmd.correlation_id,
            "subject": cmd.options.get("subject"),
            **cmd.headers,
            **said,
            ("data_base64" if isinstance(data, bytes) else "data"): data,
        }
        stored = {name: value for name, value in envelope.items() if value is not None}
        return decode_line(msgspec.json.encode(stored), next(self._offsets), 0, None)


def _check(cmd: HeliographPublishCommand) -> None:
    said = cmd.options
    check_name(cmd.destination)
    if "type" in said:
        check_type_name(said["type"])
    attributes(said.get("key"), cmd.correlation_id, None, said.get("subject"), cmd.headers)
    ttl_of(said.get("ttl"))
    _due(cmd)


def _due(cmd: HeliographPublishCommand) -> datetime | None:
    """When a station would deliver it; None for at once."""
    deliver_at, delay = cmd.options.get("deliver_at"), cmd.options.get("delay")
    if deliver_at is None and delay is None:
        return None
    return from_us(due_us(time.time_ns() // 1000, deliver_at, delay))


def _receipt(cmd: HeliographPublishCommand, message: Message) -> Receipt:
    due = _due(cmd)
    if due is None:
        return Receipt(message.id, message.channel, 0, message.offset)
    return Scheduled(message.id, message.channel, -1, -1, due=due, key=message.key)


def _subscribers(brokers: Sequence[HeliographBroker]) -> Iterator[HeliographSubscriber]:
    for broker in brokers:
        yield from cast("list[HeliographSubscriber]", broker.subscribers)


def _hears(subscriber: HeliographSubscriber, channel: str) -> bool:
    heard = subscriber.channel
    return Pattern(heard).matches(channel) if is_pattern(heard) else heard == channel


def _hearing(brokers: Sequence[HeliographBroker], message: Message) -> Iterator[HeliographSubscriber]:
    """Who gets a message: of a group or queue one worker."""
    served: set[str] = set()
    for subscriber in _subscribers(brokers):
        name, where = subscriber.options["name"], subscriber.options["where"]
        if not _hears(subscriber, message.channel) or (where is not None and not _fits(where, message)):
            continue
        if name is None or name not in served:
            yield subscriber
        if name is not None:
            served.add(name)


def _fits(where: Any, message: Message) -> bool:
    envelope = message.envelope
    return all(test(envelope.get(field, ABSENT)) for field, test in where.conditions())
