"""A FastStream publisher: a channel, and what to say with each message."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, cast

from faststream._internal.configs import PublisherUsecaseConfig
from faststream._internal.constants import EMPTY
from faststream._internal.endpoint.publisher import PublisherUsecase
from faststream.exceptions import SetupError
from faststream.response import PublishType

from heliograph.faststream.command import HeliographPublishCommand, given
from heliograph.station.requests import TIMEOUT_S

if TYPE_CHECKING:
    from faststream._internal.endpoint.publisher import PublisherSpecification
    from faststream._internal.types import PublisherMiddleware
    from faststream.response.response import PublishCommand

    from heliograph.faststream.message import HeliographMessage
    from heliograph.message import Receipt


@dataclass(kw_only=True)
class PublisherConfig(PublisherUsecaseConfig):
    """What was said when it was declared."""

    channel: str
    batch: bool
    headers: dict[str, Any]
    reply_to: str
    options: dict[str, Any]


class ChannelPublisher(PublisherUsecase):
    """Publishes what its handler returns, or what it is given."""

    def __init__(self, config: PublisherConfig, specification: PublisherSpecification[Any, Any]) -> None:
        super().__init__(config, specification)
        self._channel = config.channel
        self.batch = config.batch
        self.headers = config.headers
        self.reply_to = config.reply_to
        self.options = config.options

    @property
    def channel(self) -> str:
        """The channel it publishes to."""
        return f"{self._outer_config.prefix}{self._channel}"

    async def publish(
        self,
        message: Any = EMPTY,
        *messages: Any,
        channel: str = "",
        key: str | None = None,
        type: str | None = None,
        subject: str | None = None,
        deliver_at: datetime | None = None,
        delay: float | timedelta | None = None,
        ttl: float | timedelta | None = None,
        headers: dict[str, Any] | None = None,
        correlation_id: str | None = None,
        reply_to: str = "",
    ) -> Receipt | list[Receipt]:
        """Publish a message; with ``batch=True`` any number of them, all or none."""
        said = given(key=key, type=type, subject=subject, deliver_at=deliver_at, delay=delay, ttl=ttl)
        if messages and not self.batch:
            raise SetupError(f"this publisher of '{self.channel}' takes one message at a time: declare it batch=True")
        if message is EMPTY:
            if self.batch:
                return []
            message = None
        command = self._command(PublishType.PUBLISH, (message, *messages), channel, said, headers, correlation_id)
        command.reply_to = reply_to or self.reply_to
        return cast("Receipt | list[Receipt]", await self._send(command, ()))

    async def request(
        self,
        message: Any = None,
        *,
        channel: str = "",
        timeout: float | timedelta = TIMEOUT_S,  # noqa: ASYNC109 - FastStream's name
        key: str | None = None,
        type: str | None = None,
        subject: str | None = None,
        headers: dict[str, Any] | None = None,
        correlation_id: str | None = None,
    ) -> HeliographMessage:
        """Publish a message and wait for its reply."""
        said = given(key=key, type=type, subject=subject)
        command = self._command(PublishType.REQUEST, (message,), channel, said, headers, correlation_id)
        command.timeout = timeout
        reply = await self._basic_request(command, producer=self._outer_config.producer)
        return cast("HeliographMessage", reply)

    def _command(
        self, publish_type: PublishType, messages: tuple[Any, ...], channel: str, said: dict[str, Any],
        headers: dict[str, Any] | None, correlation_id: str | None,
    ) -> HeliographPublishCommand:  # fmt: skip
        return HeliographPublishCommand(
            *messages,
            channel=channel or self.channel,
            options={**self.options, **said},
            headers={**self.headers, **(headers or {})},
            correlation_id=correlation_id or self._outer_config.id_generator(),
            _publish_type=publish_type,
        )

    async def _publish(self, cmd: PublishCommand, *, _extra_middlewares: Iterable[PublisherMiddleware]) -> None:
        """What a handler has returned."""
        command = HeliographPublishCommand.from_cmd(cmd, batch=self.batch)
        command.destination = self.channel
        command.add_headers(self.headers, override=False)
        command.options = {**self.options, **command.options}
        command.reply_to = command.reply_to or self.reply_to
        await self._send(command, _extra_middlewares)

    async def _send(self, command: HeliographPublishCommand, extra: Iterable[PublisherMiddleware]) -> Any:
        if self.batch and "subject" in command.options:
            raise SetupError("a batch has no subject: leave it out, or publish one message at a time")
        publish = self._basic_publish_batch if self.batch else self._basic_publish
        return await publish(command, producer=self._outer_config.producer, _extra_middlewares=extra)
