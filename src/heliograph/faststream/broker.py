"""The broker: a station that opens when FastStream's application starts, and closes when it ends."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, cast

from fast_depends import Provider, dependency_provider
from faststream import ContextRepo
from faststream._internal.broker import BrokerUsecase
from faststream._internal.configs import BrokerConfig
from faststream._internal.constants import EMPTY
from faststream._internal.di import FastDependsConfig
from faststream.message import gen_cor_id
from faststream.middlewares import AckPolicy
from faststream.response import PublishType
from faststream.specification.schema import BrokerSpec

from heliograph.aio import AsyncStation, open_async
from heliograph.config import Config
from heliograph.faststream import logs
from heliograph.faststream.command import HeliographPublishCommand, given
from heliograph.faststream.producer import HeliographProducer
from heliograph.faststream.registrator import HeliographRegistrator
from heliograph.station.requests import TIMEOUT_S

if TYPE_CHECKING:
    from types import TracebackType

    from fast_depends.dependencies import Dependant
    from fast_depends.library.serializer import SerializerProto
    from faststream._internal.basic_types import LoggerProto
    from faststream._internal.parser import CodecProto
    from faststream._internal.types import BrokerMiddleware, CustomCallable, IdGenerator
    from faststream.specification.schema import Tag, TagDict

    from heliograph.faststream.message import HeliographMessage
    from heliograph.message import Receipt


class HeliographBroker(HeliographRegistrator, BrokerUsecase[Any, AsyncStation, BrokerConfig]):
    """FastStream on a data directory. ``path``, ``name``, ``config`` and settings are those of ``heliograph.open``."""

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        name: str | None = None,
        config: Config | Mapping[str, Any] | str | os.PathLike[str] | None = None,
        graceful_timeout: float | None = 15.0,
        ack_policy: AckPolicy = EMPTY,
        parser: CustomCallable | None = None,
        decoder: CustomCallable | None = None,
        codec: CodecProto | None = None,
        dependencies: Sequence[Dependant] = (),
        middlewares: Sequence[BrokerMiddleware[Any, Any]] = (),
        routers: Iterable[HeliographRegistrator] = (),
        id_generator: IdGenerator = gen_cor_id,
        specification_url: str | None = None,
        description: str | None = None,
        tags: Iterable[Tag | TagDict] = (),
        logger: LoggerProto | None = EMPTY,
        log_level: int = logging.INFO,
        apply_types: bool = True,
        serializer: SerializerProto | None = EMPTY,
        provider: Provider | None = None,
        context: ContextRepo | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(
            path=path,
            name=name,
            config=BrokerConfig(
                producer=HeliographProducer(parser, decoder),
                broker_middlewares=middlewares,
                broker_parser=parser,
                broker_decoder=decoder,
                broker_codec=codec,
                broker_dependencies=dependencies,
                logger=logs.make_state(logger=logger, log_level=log_level),
                fd_config=FastDependsConfig(
                    use_fastdepends=apply_types,
                    serializer=serializer,
                    provider=provider or dependency_provider,
                    context=context or ContextRepo(),
                ),
                graceful_timeout=graceful_timeout,
                ack_policy=ack_policy,
                id_generator=id_generator,
                extra_context={"broker": self},
            ),
            routers=routers,
            specification=BrokerSpec(
                url=[
                    specification_url or f"heliograph://{name or 'localhost'}/{os.fspath(path or 'data').lstrip('./')}"
                ],
                protocol="heliograph",
                protocol_version=None,
                description=description,
                tags=tags,
                security=None,
            ),
            **settings,
        )
        self._station_config = config

    @property
    def station(self) -> AsyncStation:
        """The open station, for everything that FastStream has no word for: reading, seeking, queues, statistics."""
        return self._own_producer.station

    @property
    def _own_producer(self) -> HeliographProducer:
        return cast("HeliographProducer", self.config.producer)

    # -- beginning and ending ---------------------------------------------------------------------------------

    async def _connect(self) -> AsyncStation:
        station = await open_async(config=self._station_config, **self._connection_kwargs)
        self._own_producer.connect(station, self.config.fd_config._serializer, self.config.broker_codec)
        return station

    async def start(self) -> None:
        """Open the station and begin to deliver; if not every subscriber can, none does."""
        connected = self._connection is not None
        await self.connect()
        try:
            await super().start()
        except BaseException:
            if connected:
                for subscriber in self.subscribers:
                    await subscriber.stop()
            else:
                await self.stop()
            raise

    async def stop(
        self,
        exc_type: type[BaseException] | None = None,
        exc_val: BaseException | None = None,
        exc_tb: TracebackType | None = None,
    ) -> None:
        """Finish the messages at hand and close the station."""
        try:
            await super().stop(exc_type, exc_val, exc_tb)
        finally:
            station, self._connection = self._connection, None
            self._own_producer.connect(None, None, None)
            if station is not None:
                await station.close()

    async def ping(self, timeout: float | None = None) -> bool:  # noqa: ARG002, ASYNC109 - FastStream's signature
        """Whether the station is open."""
        return self._connection is not None and not self._connection.sync_station.closed

    # -- publishing -----------------------------------------------------------------------------------------------

    async def publish(
        self,
        message: Any = None,
        channel: str = "",
        *,
        key: str | None = None,
        type: str | None = None,
        subject: str | None = None,
        deliver_at: datetime | None = None,
        delay: float | timedelta | None = None,
        ttl: float | timedelta | None = None,
        headers: dict[str, Any] | None = None,
        correlation_id: str | None = None,
        reply_to: str = "",
    ) -> Receipt:
        """Publish a message; when it returns, the message is on disk.

        ``key`` to ``headers`` are those of :meth:`heliograph.Station.publish`. With ``reply_to``, what the handler
        returns is published there.
        """
        command = self._command(
            PublishType.PUBLISH, (message,), channel, headers, correlation_id,
            given(key=key, type=type, subject=subject, deliver_at=deliver_at, delay=delay, ttl=ttl),
        )  # fmt: skip
        command.reply_to = reply_to
        receipt = await self._basic_publish(command, producer=self.config.producer)
        return cast("Receipt", receipt)

    async def publish_batch(  # type: ignore[override]
        self,
        *messages: Any,
        channel: str,
        key: str | None = None,
        type: str | None = None,
        deliver_at: datetime | None = None,
        delay: float | timedelta | None = None,
        ttl: float | timedelta | None = None,
        headers: dict[str, Any] | None = None,
        correlation_id: str | None = None,
    ) -> list[Receipt]:
        """Publish several messages, all or none; see :meth:`heliograph.Station.publish_many`."""
        if not messages:
            return []
        command = self._command(
            PublishType.PUBLISH, messages, channel, headers, correlation_id,
            given(key=key, type=type, deliver_at=deliver_at, delay=delay, ttl=ttl),
        )  # fmt: skip
        receipts = await self._basic_publish_batch(command, producer=self.config.producer)
        return cast("list[Receipt]", receipts)

    async def request(  # type: ignore[override]
        self,
        message: Any = None,
        channel: str = "",
        *,
        timeout: float | timedelta = TIMEOUT_S,  # noqa: ASYNC109 - FastStream's name
        key: str | None = None,
        type: str | None = None,
        subject: str | None = None,
        headers: dict[str, Any] | None = None,
        correlation_id: str | None = None,
    ) -> HeliographMessage:
        """Publish a message and wait for its reply; see :meth:`heliograph.Station.request`."""
        command = self._command(
            PublishType.REQUEST, (message,), channel, headers, correlation_id,
            given(key=key, type=type, subject=subject),
        )  # fmt: skip
        command.timeout = timeout
        reply = await self._basic_request(command, producer=self.config.producer)
        return cast("HeliographMessage", reply)

    def _command(
        self, publish_type: PublishType, messages: tuple[Any, ...], channel: str, headers: dict[str, Any] | None,
        correlation_id: str | None, options: dict[str, Any],
    ) -> HeliographPublishCommand:  # fmt: skip
        return HeliographPublishCommand(
            *messages,
            channel=channel,
            options=options,
            headers=headers,
            correlation_id=correlation_id or self.config.id_generator(),
            _publish_type=publish_type,
        )
