"""Publishes FastStream's commands through a station."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from faststream._internal.constants import ContentTypes
from faststream._internal.endpoint.utils import ParserComposition
from faststream._internal.parser import CodecProto, DefaultCodec
from faststream._internal.producer import ProducerProto
from faststream.exceptions import IncorrectState

from heliograph.errors import InvalidMessage
from heliograph.faststream.command import HeliographPublishCommand
from heliograph.faststream.message import Parser
from heliograph.message import Message, Receipt
from heliograph.station.requests import TIMEOUT_S

if TYPE_CHECKING:
    from fast_depends.library.serializer import SerializerProto
    from faststream._internal.types import CustomCallable

    from heliograph.aio import AsyncStation


class HeliographProducer(ProducerProto[HeliographPublishCommand]):
    """What a broker publishes with, once it is connected."""

    def __init__(self, parser: CustomCallable | None = None, decoder: CustomCallable | None = None) -> None:
        default = Parser()
        self._parser = ParserComposition(parser, default.parse_message)
        self._decoder = ParserComposition(decoder, default.decode_message)
        self.codec: CodecProto = DefaultCodec()
        self._serializer: SerializerProto | None = None
        self._station: AsyncStation | None = None

    def connect(
        self, station: AsyncStation | None, serializer: SerializerProto | None, codec: CodecProto | None
    ) -> None:
        """Publish through this station; None: not any more."""
        self._station = station
        self._serializer = serializer
        self.codec = codec or DefaultCodec()

    @property
    def station(self) -> AsyncStation:
        """The open station."""
        if self._station is None:
            raise IncorrectState("the broker is not connected: `await broker.start()`, or `async with broker:`")
        return self._station

    async def encode(self, body: Any) -> Any:
        """What the station is given: text and JSON are stored as such, so that everybody can read them; else bytes."""
        encoded, content_type = await self.codec.encode(body, self._serializer)
        if body is None and not encoded:
            return None
        kind = (content_type or "").partition(";")[0].strip()
        if kind == ContentTypes.TEXT.value:
            return encoded.decode()
        if kind != ContentTypes.JSON.value:
            return encoded
        try:
            return msgspec.json.decode(encoded)
        except msgspec.DecodeError as error:
            raise InvalidMessage(f"the payload was encoded as JSON that cannot be read again: {error}") from error

    async def publish(self, cmd: HeliographPublishCommand) -> Receipt:
        """Return when the message is as durable as the station promises."""
        return await self.station.publish(
            cmd.destination, await self.encode(cmd.body), headers=_headers(cmd), correlation_id=cmd.correlation_id,
            **cmd.options,
        )  # fmt: skip

    async def publish_batch(self, cmd: HeliographPublishCommand) -> list[Receipt]:
        """All of them or none."""
        return await self.station.publish_many(
            cmd.destination, [await self.encode(body) for body in cmd.batch_bodies], headers=_headers(cmd),
            correlation_id=cmd.correlation_id, **cmd.options,
        )  # fmt: skip

    async def request(self, cmd: HeliographPublishCommand) -> Message:
        """Publish, and wait for the reply."""
        return await self.station.request(
            cmd.destination, await self.encode(cmd.body), headers=_headers(cmd), correlation_id=cmd.correlation_id,
            timeout=TIMEOUT_S if cmd.timeout is None else cmd.timeout, **cmd.options,
        )  # fmt: skip


def _headers(cmd: HeliographPublishCommand) -> dict[str, Any] | None:
    headers = {**cmd.headers, "reply_to": cmd.reply_to} if cmd.reply_to else cmd.headers
    return headers or None
