"""A FastStream broker on a station: ``pip install 'heliograph[faststream]'``.

FastStream's decorators, dependency injection, middlewares, routers, test client and AsyncAPI documents, with a
directory instead of a server::

    from faststream import FastStream
    from heliograph.faststream import HeliographBroker

    broker = HeliographBroker("./data")
    app = FastStream(broker)

    @broker.subscriber("orders", name="billing", group=True)
    @broker.publisher("invoices")
    async def bill(order: Order) -> Invoice: ...

FastStream has no public interface for brokers of others: what is imported from its ``_internal`` here is what its own
brokers are made of. Hence the narrow range of versions in the extra.
"""

from __future__ import annotations

try:
    import faststream as _faststream  # noqa: F401 - only to say what is missing
except ModuleNotFoundError as error:
    raise ImportError("heliograph.faststream needs FastStream: pip install 'heliograph[faststream]'") from error

from faststream.middlewares import AckPolicy

from heliograph.faststream.annotations import HeliographMessage
from heliograph.faststream.broker import HeliographBroker
from heliograph.faststream.command import HeliographResponse
from heliograph.faststream.router import HeliographPublisher, HeliographRoute, HeliographRouter
from heliograph.faststream.testing import TestHeliographBroker

__all__ = [
    "AckPolicy",
    "HeliographBroker",
    "HeliographMessage",
    "HeliographPublisher",
    "HeliographResponse",
    "HeliographRoute",
    "HeliographRouter",
    "TestHeliographBroker",
]
