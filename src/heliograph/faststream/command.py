"""What is to be published: FastStream's command, with what a station can be told beyond it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from faststream.response import PublishType, Response
from faststream.response.response import BatchPublishCommand, PublishCommand


def given(**options: Any) -> dict[str, Any]:
    """The options that say something.

    >>> given(key="cpu", ttl=None)
    {'key': 'cpu'}
    """
    return {name: value for name, value in options.items() if value is not None}


class HeliographPublishCommand(BatchPublishCommand):
    """One message, or an atomic batch of them. ``options`` are further arguments of ``AsyncStation.publish``."""

    def __init__(
        self,
        message: Any,
        /,
        *messages: Any,
        channel: str = "",
        options: dict[str, Any] | None = None,
        timeout: float | timedelta | None = None,
        correlation_id: str | None = None,
        headers: dict[str, Any] | None = None,
        reply_to: str = "",
        _publish_type: PublishType,
    ) -> None:
        super().__init__(
            message, *messages, destination=channel, correlation_id=correlation_id, headers=headers,
            reply_to=reply_to, _publish_type=_publish_type,
        )  # fmt: skip
        self.options = options or {}
        self.timeout = timeout
        self._empty = False

    @classmethod
    def from_cmd(cls, cmd: PublishCommand, *, batch: bool = False) -> HeliographPublishCommand:
        """The same with the options of a station; a batch is what a handler returned as a list."""
        body, others = cls._parse_bodies(cmd.body, batch=batch)
        made = cls(
            body, *others, channel=cmd.destination, correlation_id=cmd.correlation_id, headers=dict(cmd.headers),
            reply_to=cmd.reply_to, options=dict(getattr(cmd, "options", {})), _publish_type=cmd.publish_type,
        )  # fmt: skip
        made._empty = batch and not others and body is None and not cmd.body  # [None] is one message, [] is none
        return made

    @property
    def batch_bodies(self) -> tuple[Any, ...]:
        """Every message of the batch. None is a message like any other, which FastStream leaves out."""
        return () if self._empty else (self.body, *self.extra_bodies)

    @batch_bodies.setter
    def batch_bodies(self, value: Sequence[Any]) -> None:
        self._empty = not value
        self.body, self.extra_bodies = (value[0], tuple(value[1:])) if value else (None, ())


class HeliographResponse(Response):
    """What a handler returns to say more than data: ``return HeliographResponse(invoice, key=order.customer)``."""

    def __init__(
        self,
        body: Any,
        *,
        headers: dict[str, Any] | None = None,
        correlation_id: str | None = None,
        key: str | None = None,
        type: str | None = None,
        subject: str | None = None,
        deliver_at: datetime | None = None,
        delay: float | timedelta | None = None,
        ttl: float | timedelta | None = None,
    ) -> None:
        super().__init__(body, headers=headers, correlation_id=correlation_id)
        self.options = given(key=key, type=type, subject=subject, deliver_at=deliver_at, delay=delay, ttl=ttl)

    def as_publish_command(self) -> HeliographPublishCommand:
        """The command that publishes it."""
        return HeliographPublishCommand(
            self.body, headers=dict(self.headers), correlation_id=self.correlation_id, options=dict(self.options),
            _publish_type=PublishType.PUBLISH,
        )  # fmt: skip
