"""``@broker.subscriber(…)`` and ``@broker.publisher(…)``, for brokers and routers alike."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, cast

from faststream._internal.broker.registrator import Registrator
from faststream._internal.configs import BrokerConfig
from faststream._internal.constants import EMPTY
from faststream._internal.endpoint.subscriber.call_item import CallsCollection
from faststream._internal.utils.path import Address
from faststream.exceptions import SetupError
from faststream.middlewares import AckPolicy

from heliograph.delivery.ports import OnGap, OverflowPolicy
from heliograph.delivery.retry import Retry
from heliograph.faststream.command import given
from heliograph.faststream.publisher import ChannelPublisher, PublisherConfig
from heliograph.faststream.specification import Read, ReadSpecification, Written, WrittenSpecification
from heliograph.faststream.subscriber import SYNTAX, HeliographSubscriber, SubscriberConfig
from heliograph.filters import Choice
from heliograph.station.starts import Start

if TYPE_CHECKING:
    from fast_depends.dependencies import Dependant
    from faststream._internal.parser import CodecProto
    from faststream._internal.types import BrokerMiddleware, CustomCallable


class HeliographRegistrator(Registrator[Any, BrokerConfig]):
    """Keeps what was declared until the broker starts."""

    def subscriber(  # type: ignore[override]
        self,
        channel: str,
        *,
        name: str | None = None,
        group: bool = False,
        queue: bool = False,
        start: Start = "new",
        batch: bool = False,
        max_workers: int = 1,
        retry: Retry | None = None,
        timeout_s: float | None = None,
        buffer: int | None = None,
        overflow: OverflowPolicy = "block",
        on_gap: OnGap | None = None,
        where: Choice | None = None,
        visibility_s: float | timedelta | None = None,
        max_in_flight: int | None = None,
        max_deliveries: int | None = None,
        ack_policy: AckPolicy = EMPTY,
        no_reply: bool = False,
        dependencies: Sequence[Dependant] = (),
        parser: CustomCallable | None = None,
        decoder: CustomCallable | None = None,
        codec: CodecProto | None = None,
        persistent: bool = True,
        title: str | None = None,
        description: str | None = None,
        include_in_schema: bool = True,
    ) -> HeliographSubscriber:
        """Call a handler with the messages of a channel, a pattern, or a template such as ``logs.{level}``.

        ``name`` to ``max_deliveries`` are those of :meth:`heliograph.Station.subscribe`; ``max_workers`` is its
        ``concurrency``. The others are FastStream's.
        """
        address = Address(channel, SYNTAX)
        config = SubscriberConfig(
            address=address,
            options={
                "name": name, "group": group, "queue": queue, "start": start, "batch": batch, "retry": retry,
                "concurrency": max_workers, "timeout_s": timeout_s, "buffer": buffer, "overflow": overflow,
                "on_gap": on_gap, "where": where, "visibility_s": visibility_s, "max_in_flight": max_in_flight,
                "max_deliveries": max_deliveries,
            },
            no_reply=no_reply,
            _ack_policy=ack_policy,
            _outer_config=cast("BrokerConfig", self.config),
        )  # fmt: skip
        calls = CallsCollection[Any]()
        read = Read(title_=title, description_=description, include_in_schema=include_in_schema, address=address)
        declared = HeliographSubscriber(config, ReadSpecification(config._outer_config, read, calls), calls)
        super().subscriber(declared, persistent=persistent)
        return declared.add_call(
            parser_=parser or self._parser, decoder_=decoder or self._decoder, codec_=codec, dependencies_=dependencies
        )

    def publisher(  # type: ignore[override]
        self,
        channel: str,
        *,
        batch: bool = False,
        key: str | None = None,
        type: str | None = None,
        subject: str | None = None,
        delay: float | timedelta | None = None,
        ttl: float | timedelta | None = None,
        headers: dict[str, Any] | None = None,
        reply_to: str = "",
        persistent: bool = True,
        title: str | None = None,
        description: str | None = None,
        schema: Any | None = None,
        include_in_schema: bool = True,
    ) -> ChannelPublisher:
        """Publish what a handler returns; with ``batch=True`` it returns a list, published all or none."""
        if batch and subject is not None:
            raise SetupError("a batch has no subject: leave it out, or publish one message at a time")
        config = PublisherConfig(
            channel=channel,
            batch=batch,
            headers=headers or {},
            reply_to=reply_to,
            options=given(key=key, type=type, subject=subject, delay=delay, ttl=ttl),
            _outer_config=cast("BrokerConfig", self.config),
        )
        written = Written(
            title_=title, description_=description, include_in_schema=include_in_schema, schema_=schema, channel=channel
        )
        declared = ChannelPublisher(config, WrittenSpecification(config._outer_config, written))
        super().publisher(declared, persistent=persistent)
        return declared

    def include_router(
        self,
        router: Registrator[Any, Any],
        *,
        prefix: str = "",
        dependencies: Sequence[Dependant] = (),
        middlewares: Sequence[BrokerMiddleware[Any, Any]] = (),
        include_in_schema: bool | None = None,
    ) -> None:
        """Take in what a router declared."""
        if not isinstance(router, HeliographRegistrator):
            raise SetupError(f"only a HeliographRouter can be included here, not a {router.__class__.__name__}")
        super().include_router(
            router, prefix=prefix, dependencies=dependencies, middlewares=middlewares,
            include_in_schema=include_in_schema,
        )  # fmt: skip
