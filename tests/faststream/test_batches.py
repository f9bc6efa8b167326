"""Every message of a batch is published, whatever it is, and none that does not fit is lost in silence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from faststream.exceptions import SetupError

from heliograph.faststream import HeliographBroker
from tests.faststream.stories import at, eventually, run


async def stored(broker: HeliographBroker, channel: str) -> list[Any]:
    return [message.data async for message in broker.station.read(channel)]


@pytest.mark.parametrize("batch", [(None, 1), (None,), (None, None), (0, None, "")])
def test_none_is_a_message_of_a_batch(root: Path, batch: tuple[Any, ...]) -> None:
    broker = at(root)
    publisher = broker.publisher("declared", batch=True)
    returned: list[Any] = []

    @broker.subscriber("begin", start="first")
    @broker.publisher("returned", batch=True)
    async def answer(body: Any) -> list[Any]:
        returned.append(body)
        return list(batch)

    async def story() -> None:
        async with broker:
            assert len(await broker.publish_batch(*batch, channel="told")) == len(batch)
            await publisher.publish(*batch)
            await broker.start()
            await broker.publish("go", "begin")
            await eventually(lambda: returned)
            await broker.stop()
            await broker.connect()
            for channel in ("told", "declared", "returned"):
                assert await stored(broker, channel) == list(batch)

    run(story)


def test_an_empty_batch_is_nothing(root: Path) -> None:
    broker = at(root)
    publisher = broker.publisher("declared", batch=True)

    async def story() -> None:
        async with broker:
            assert await publisher.publish() == []
            assert await broker.station.channels() == []

    run(story)


def test_several_messages_are_for_a_publisher_of_batches(root: Path) -> None:
    broker = at(root)
    publisher = broker.publisher("declared")

    async def story() -> None:
        async with broker:
            with pytest.raises(SetupError, match="batch=True"):
                await publisher.publish("one", "two")
            assert await broker.station.channels() == []

    run(story)


def test_a_batch_has_no_subject(root: Path) -> None:
    broker = at(root)
    with pytest.raises(SetupError, match="no subject"):
        broker.publisher("declared", batch=True, subject="one")
    publisher = broker.publisher("declared", batch=True)

    async def story() -> None:
        async with broker:
            with pytest.raises(SetupError, match="no subject"):
                await publisher.publish("one", subject="one")

    run(story)
