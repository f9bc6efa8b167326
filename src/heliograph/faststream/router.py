"""Subscribers and publishers that are declared apart and included in a broker."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from faststream._internal.broker.router import ArgsContainer, BrokerRouter, SubscriberRoute
from faststream._internal.configs import BrokerConfig
from faststream._internal.constants import EMPTY
from faststream.middlewares import AckPolicy

from heliograph.faststream.registrator import HeliographRegistrator

if TYPE_CHECKING:
    from fast_depends.dependencies import Dependant
    from faststream._internal.types import BrokerMiddleware, CustomCallable


class HeliographPublisher(ArgsContainer):
    """The arguments of ``router.publisher``, for a :class:`HeliographRoute`."""


class HeliographRoute(SubscriberRoute):
    """A handler and the arguments of ``router.subscriber``: ``HeliographRoute(handle, "orders", name="billing")``."""


class HeliographRouter(HeliographRegistrator, BrokerRouter[Any, BrokerConfig]):
    """Declares; a broker that includes it publishes and subscribes. The prefix is put before each channel's name."""

    def __init__(
        self,
        prefix: str = "",
        handlers: Iterable[HeliographRoute] = (),
        *,
        dependencies: Sequence[Dependant] = (),
        middlewares: Sequence[BrokerMiddleware[Any, Any]] = (),
        routers: Iterable[HeliographRegistrator] = (),
        parser: CustomCallable | None = None,
        decoder: CustomCallable | None = None,
        include_in_schema: bool | None = None,
        ack_policy: AckPolicy = EMPTY,
    ) -> None:
        super().__init__(
            handlers=handlers,
            routers=routers,
            config=BrokerConfig(
                prefix=prefix,
                broker_dependencies=dependencies,
                broker_middlewares=middlewares,
                broker_parser=parser,
                broker_decoder=decoder,
                include_in_schema=include_in_schema,
                ack_policy=ack_policy,
            ),
        )
