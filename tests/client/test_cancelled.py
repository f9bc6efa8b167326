"""Clients for asyncio whose callers are cancelled: what they were about is undone, and the others go on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

import heliograph as hg
from heliograph.client.asker import FLYING_BYTES_MAX
from heliograph.federation.pulling import Pulling
from tests.client.conftest import TOOL, Hub
from tests.federation.chaos import Proxy
from tests.federation.stations import audited, wait_for

pytestmark = pytest.mark.usefixtures("short_pauses")


def test_a_queue_whose_worker_was_cancelled_while_it_joined_again_goes_on(
    hub: Hub, proxy: Callable[..., Proxy], monkeypatch: pytest.MonkeyPatch
) -> None:
    join, slow = Pulling.join, asyncio.Event()

    async def joining(self: Pulling, ask: Any) -> Any:
        joined = await join(self, ask)
        if slow.is_set():
            await asyncio.sleep(0.5)
        return joined

    monkeypatch.setattr(Pulling, "join", joining)
    line = proxy()

    async def main(station: hg.Station) -> None:
        async with hg.connect_async(f"wss://localhost:{line.port}", tls=hub.tls()) as client:
            queue = await client.queue("alerts", "jobs")
            slow.set()
            line.cut()
            await asyncio.to_thread(wait_for, lambda: not client.connected)
            await asyncio.to_thread(wait_for, lambda: client.connected)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(queue.receive(), 0.1)
            station.publish("alerts", "x")
            (job,) = await queue.receive(wait_s=10)
            await job.ack()
            assert len(station.queue_info("alerts", "jobs").workers) == 1

    with hub.open("hub") as station:
        asyncio.run(main(station))


def test_requests_that_nobody_waits_for_any_more_do_not_hold_up_others(hub: Hub) -> None:
    async def main() -> None:
        async with hg.connect_async(hub.url, tls=hub.tls()) as client:
            for _ in range(300):
                subscription = await client.subscribe("alerts", print)
                await asyncio.sleep(0)
                await subscription.close()
            await client.publish("alerts", "x", timeout=5)

    with hub.open("hub"):
        asyncio.run(main())


def test_requests_whose_callers_gave_up_do_not_hold_up_others(hub: Hub) -> None:
    async def main() -> None:
        async with hg.connect_async(hub.url, tls=hub.tls()) as client:
            for _ in range(300):
                asking = asyncio.create_task(client.request("alerts", "x", timeout=30))
                await asyncio.sleep(0)
                asking.cancel()
            assert [message async for message in client.read("alerts", start="new")] == []
            await client.publish("alerts", "x", timeout=5)

    with hub.open("hub"):
        asyncio.run(main())


def test_waiting_for_room_to_publish_ends_with_the_timeout(hub: Hub, proxy: Callable[..., Proxy]) -> None:
    line = proxy()
    big = "x" * 900_000

    async def main() -> None:
        async with hg.connect_async(f"wss://localhost:{line.port}", tls=hub.tls()) as client:
            line.silent.set()
            others = [asyncio.create_task(client.publish("alerts", big)) for _ in range(FLYING_BYTES_MAX // 900_000)]
            await asyncio.sleep(0.1)
            async with asyncio.timeout(3):
                with pytest.raises(hg.Unreachable, match="on their way"):
                    await client.publish("alerts", big, timeout=0.3)
            line.silent.clear()
            await asyncio.gather(*others)
            await client.publish("alerts", big)

    with hub.open("hub"):
        asyncio.run(main())


def test_a_client_whose_closing_is_cancelled_leaves_all_the_same(hub: Hub) -> None:
    async def main(station: hg.Station) -> None:
        begun = asyncio.Event()

        async def handler(message: hg.Message) -> None:
            begun.set()
            await asyncio.sleep(60)

        client = await hg.connect_async(hub.url, tls=hub.tls())
        await client.subscribe("alerts", handler, name="jobs", queue=True)
        await client.publish("alerts", "x")
        await begun.wait()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(client.close(), 0.2)
        assert not client.connected
        with pytest.raises(hg.StationClosed):
            await client.publish("alerts", "y")

    with hub.open("hub") as station:
        asyncio.run(main(station))


def test_a_channel_that_is_allowed_again_goes_on_where_it_stood(hub: Hub) -> None:
    got: list[Any] = []
    with hub.open("hub") as station, hub.connect() as client:
        station.publish_many("sensors.a", ["old", "older"])
        station.publish("sensors.b", "old")
        client.subscribe("sensors.>", lambda message: got.append(message.data))
        station.publish("sensors.a", 1)
        wait_for(lambda: got == [1])
        hub.station("hub", peers=[{**TOOL, "subscribe": ["sensors.b"]}])
        wait_for(lambda: len(audited(hub.path("hub"), "links-reloaded")) == 1)
        station.publish("sensors.a", 2)
        station.publish("sensors.b", 3)
        wait_for(lambda: got == [1, 3])
        hub.station("hub", peers=[TOOL])
        wait_for(lambda: len(audited(hub.path("hub"), "links-reloaded")) == 2)
        station.publish("sensors.a", 4)
        wait_for(lambda: 4 in got)
    assert got == [1, 3, 2, 4]


async def fails_with_one(message: hg.Message) -> None:
    """What it waits for is cancelled by somebody else: a failure as any other."""
    if message.data == 1:
        other = asyncio.create_task(asyncio.sleep(60))
        other.cancel()
        await other


def test_a_handler_that_waits_for_something_cancelled_has_failed_and_the_next_one_comes(hub: Hub) -> None:
    async def main() -> None:
        async with hg.connect_async(hub.url, tls=hub.tls()) as client:
            subscription = await client.subscribe("alerts", fails_with_one)
            await client.publish_many("alerts", [0, 1, 2])
            await asyncio.to_thread(wait_for, lambda: subscription.delivered == 2, 5)
            assert (subscription.failed, subscription.live) == (1, True)

    with hub.open("hub"):
        asyncio.run(main())


def test_the_same_of_a_worker_which_is_not_given_it_for_ever(hub: Hub) -> None:
    async def main(station: hg.Station) -> None:
        async with hg.connect_async(hub.url, tls=hub.tls()) as client:
            retry = hg.Retry(max_retries=1, base_s=0.01)
            worker = await client.subscribe("alerts", fails_with_one, name="jobs", group=True, retry=retry)
            await client.publish_many("alerts", [0, 1, 2])
            await asyncio.to_thread(wait_for, lambda: worker.delivered == 2, 5)
            assert worker.failed == 2
            (letter,) = station.read("alerts.dead-letter")
            assert "CancelledError" in str(letter.data)

    with hub.open("hub") as station:
        asyncio.run(main(station))
