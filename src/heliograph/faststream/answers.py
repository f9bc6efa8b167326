"""Where the value that a handler returns goes, if whoever sent the message wants an answer."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

from faststream._internal.endpoint.publisher.fake import FakePublisher

from heliograph.faststream.command import HeliographPublishCommand
from heliograph.faststream.message import Delivery
from heliograph.message import Draft

if TYPE_CHECKING:
    from faststream._internal.types import PublisherMiddleware
    from faststream.response.response import PublishCommand

    from heliograph.faststream.producer import HeliographProducer


class ToChannel(FakePublisher):
    """The sender named a channel: ``broker.publish(…, reply_to="answers")``."""

    def __init__(self, producer: HeliographProducer, channel: str) -> None:
        super().__init__(producer=producer)
        self._channel = channel

    def patch_command(self, cmd: PublishCommand) -> HeliographPublishCommand:
        """The answer, on its way there."""
        command = HeliographPublishCommand.from_cmd(super().patch_command(cmd))
        command.destination = self._channel
        return command


class ToRequest(FakePublisher):
    """The sender waits: ``broker.request(…)``. The answer is the delivery's, and the station sends it.

    So that whoever asked is also told when the handler gives up.
    """

    def __init__(self, producer: HeliographProducer, delivery: Delivery) -> None:
        super().__init__(producer=producer)
        self._encode = producer.encode
        self._delivery = delivery

    def patch_command(self, cmd: PublishCommand) -> HeliographPublishCommand:
        """The answer."""
        return HeliographPublishCommand.from_cmd(super().patch_command(cmd))

    async def _publish(self, cmd: PublishCommand, *, _extra_middlewares: Iterable[PublisherMiddleware]) -> Any:
        call: Any = self._keep
        for middleware in _extra_middlewares:
            call = partial(middleware, call)
        return await call(self.patch_command(cmd))

    async def _keep(self, cmd: HeliographPublishCommand) -> None:
        said = {name: cmd.options[name] for name in ("key", "type", "subject") if name in cmd.options}
        self._delivery.answer = Draft(
            data=await self._encode(cmd.body), headers=cmd.headers, correlation_id=cmd.correlation_id, **said
        )
