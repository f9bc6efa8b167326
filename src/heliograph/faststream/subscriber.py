"""A FastStream subscriber is a subscription of a station."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from faststream._internal.configs import SubscriberUsecaseConfig
from faststream._internal.constants import EMPTY
from faststream._internal.endpoint.subscriber import SubscriberUsecase
from faststream._internal.endpoint.utils import process_msg
from faststream._internal.utils.path import Address, AddressSyntax
from faststream.exceptions import SetupError, StopConsume
from faststream.message import AckStatus
from faststream.middlewares import AckPolicy

from heliograph.delivery.coroutines import out_of_time
from heliograph.faststream.answers import ToChannel, ToRequest
from heliograph.faststream.handover import Handover
from heliograph.faststream.message import BatchParser, Delivering, HeliographMessage, Parser, current_delivery
from heliograph.names import DEAD_LETTER

if TYPE_CHECKING:
    from faststream._internal.endpoint.publisher import PublisherProto
    from faststream._internal.endpoint.subscriber import SubscriberSpecification
    from faststream._internal.endpoint.subscriber.call_item import CallsCollection
    from faststream.message import StreamMessage

    from heliograph.aio import AsyncSubscription
    from heliograph.faststream.producer import HeliographProducer
    from heliograph.message import Draft

SYNTAX = AddressSyntax(
    replace_symbol="*",
    patch_regex=lambda regex: regex.replace(r"\*", "[^.]+").replace(".>", "..+"),
)
"""``logs.{level}`` subscribes to ``logs.*``, and the word is the handler's ``Path()``."""


@dataclass(kw_only=True)
class SubscriberConfig(SubscriberUsecaseConfig):
    """What was said when subscribing; ``options`` are those of ``AsyncStation.subscribe``."""

    address: Address
    options: dict[str, Any]

    @property
    def ack_policy(self) -> AckPolicy:
        """What an error means: by default what it means to a station, retries and then a dead letter."""
        for policy in (self._ack_policy, self._outer_config.ack_policy):
            if policy is not EMPTY:
                return policy
        return AckPolicy.NACK_ON_ERROR


class HeliographSubscriber(SubscriberUsecase[Any]):
    """Calls its handlers with the messages of a channel."""

    def __init__(
        self, config: SubscriberConfig, specification: SubscriberSpecification[Any, Any], calls: CallsCollection[Any]
    ) -> None:
        self.address = config.address
        self.options = config.options
        config.parser, config.decoder = _parsing(self.address, batch=self.options["batch"])
        super().__init__(config, specification, calls)
        self._subscription: AsyncSubscription | None = None
        self._handover: Handover | None = None
        if self.ack_policy is AckPolicy.ACK_FIRST and self.options["name"] is not None:
            raise SetupError(
                "AckPolicy.ACK_FIRST is not possible with a name: a durable subscription's position moves when the "
                "handler is done. Use AckPolicy.ACK, which acknowledges whatever the handler does, or no name."
            )

    @property
    def channel(self) -> str:
        """The channel or pattern it reads."""
        return self.address.add_prefix(self._outer_config.prefix).broker_address

    @property
    def silent(self) -> bool:
        """Whether it answers nobody. Others also tell whoever asked when the handler gives up."""
        # Nobody can ask in a channel of dead letters.
        return bool(self._no_reply or self.options["batch"] or self.channel.endswith(DEAD_LETTER))

    @property
    def _producer(self) -> HeliographProducer:
        return cast("HeliographProducer", self._outer_config.producer)

    # -- beginning and ending ---------------------------------------------------------------------------------

    async def start(self) -> None:
        """Subscribe, if there is a handler; without one messages are fetched with ``get_one``."""
        await super().start()
        begun = await self._subscribe(self._deliver) if self.calls else None
        self._post_start()
        if begun is not None:
            begun.resume()

    async def _subscribe(self, handler: Any) -> AsyncSubscription:
        """Paused, because a handler may want to stop it, and has to find it then."""
        station, channel = self._producer.station, self.channel
        begin = station.subscribe if self.silent else station.reply
        options = {name: value for name, value in self.options.items() if self.silent or name != "batch"}
        self._subscription = await begin(channel, handler, paused=True, **options)
        return self._subscription

    async def stop(self) -> None:
        """Stop after the message at hand, and save the position."""
        handover, self._handover = self._handover, None
        subscription, self._subscription = self._subscription, None
        if handover is not None:
            if subscription is not None:
                subscription.pause()  # what is given back is not offered again
            handover.close()
        if subscription is not None:
            await subscription.close(timeout_s=self._outer_config.graceful_timeout or 0.0)
        await super().stop()

    # -- delivering ---------------------------------------------------------------------------------------------

    async def _deliver(self, message: Any) -> Draft:
        """The station's handler: how it ends says what becomes of the message."""
        error: BaseException | None = None
        with Delivering() as delivery:
            try:
                await self.process_message(message)
            except (StopConsume, SystemExit) as stop:
                error = stop
                await self._stop_from_inside(leave=isinstance(stop, SystemExit))
            except asyncio.CancelledError:
                error = out_of_time()
                if error is None:
                    raise
                delivery.fail(self.ack_policy)  # FastStream leaves it open what a cancellation means
            except Exception as failure:  # noqa: BLE001 - FastStream has logged it, the station decides
                error = failure
        return delivery.end(error, manual=self.ack_policy is AckPolicy.MANUAL)

    async def _stop_from_inside(self, *, leave: bool) -> None:
        """The handler asked for it: a subscription that is closed from there does not wait for it."""
        await self.stop()
        app = self._outer_config.context.get("app") if leave else None
        if app is not None:
            app.exit()

    def _make_response_publisher(self, message: StreamMessage[Any]) -> Sequence[PublisherProto[Any]]:
        if "replyto" in message.headers:
            return (ToRequest(self._producer, current_delivery()),)
        return (ToChannel(self._producer, message.reply_to),)

    # -- fetching -----------------------------------------------------------------------------------------------

    async def get_one(self, *, timeout: float = 5.0) -> HeliographMessage | None:  # noqa: ASYNC109 - FastStream's name
        """The next message, for a subscriber without handlers; None when there is none in time."""
        return await self._fetch(await self._handing_over(), timeout)

    async def __aiter__(self) -> AsyncIterator[HeliographMessage]:
        handover = await self._handing_over()
        while (message := await self._fetch(handover, None)) is not None:
            yield message

    async def _handing_over(self) -> Handover:
        if self.calls:
            raise SetupError("messages of a subscriber with handlers go to these; declare another to fetch from")
        if self._handover is None:
            self._handover = Handover(manual=self.ack_policy is AckPolicy.MANUAL)
            try:
                (await self._subscribe(self._handover.offer)).resume()
            except BaseException:
                self._handover = None  # or the next one would wait for what nobody offers
                raise
        return self._handover

    async def _fetch(self, handover: Handover, timeout_s: float | None) -> HeliographMessage | None:
        found = await handover.take(timeout_s)
        if found is None:
            return None
        raw, delivery = found
        context = self._outer_config.context
        parser, decoder = self._get_parser_and_decoder()
        try:
            with Delivering(delivery):
                message = await process_msg(
                    msg=raw,
                    middlewares=(make(raw, context=context) for make in self._broker_middlewares),
                    parser=parser,
                    decoder=decoder,
                )
        except BaseException:
            delivery.decide(AckStatus.NACKED)  # nobody has seen it: taking the next one must not acknowledge it
            raise
        return cast("HeliographMessage", message)

    # -- logging ------------------------------------------------------------------------------------------------

    def get_log_context(self, message: StreamMessage[Any] | None) -> dict[str, str]:
        """What a line of FastStream's log says beside its text. The place in the log is shorter than an id."""
        return {
            "channel": self.channel,
            "subscription": self.options["name"] or "",
            "message_id": "" if message is None else _place(message.raw_message),
        }


def _parsing(address: Address, *, batch: bool) -> tuple[Any, Any]:
    if batch:
        batches = BatchParser(address.regex)
        return batches.parse_batch, batches.decode_batch
    single = Parser(address.regex)
    return single.parse_message, single.decode_message


def _place(raw: Any) -> str:
    if isinstance(raw, list):
        return f"{_place(raw[0])}-{raw[-1].offset}"
    return f"{raw.partition}/{raw.offset}"
