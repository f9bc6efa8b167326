"""Publishing much at once over one connection: what waits for the disk shares an append, each with its own outcome."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

import pytest

import heliograph as hg
from heliograph.engine.files import FilesEngine
from heliograph.log.held import ChannelGone
from heliograph.log.partition import Partition
from tests.client.conftest import TOOL, Hub
from tests.federation.stations import check_log, payloads


@pytest.fixture
def appends(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many tickets each append of a slow disk had."""
    found: list[int] = []
    commit = Partition.commit

    def slow(self: Partition, tickets: Sequence[Any]) -> Any:
        found.append(len(tickets))
        time.sleep(0.02)
        return commit(self, tickets)

    monkeypatch.setattr(Partition, "commit", slow)
    return found


async def _publish(hub: Hub, work: Any) -> Any:
    async with hg.connect_async(hub.url, tls=hub.tls()) as client:
        return await work(client)


def test_many_at_once_share_appends_and_keep_their_order(hub: Hub, appends: list[int]) -> None:
    async def work(client: hg.AsyncClient) -> list[hg.Receipt]:
        return await asyncio.gather(*(client.publish("alerts", n) for n in range(200)))

    with hub.open("hub"):
        receipts = asyncio.run(_publish(hub, work))
    assert [receipt.offset for receipt in receipts] == list(range(200))
    assert payloads(hub.path("hub"), "alerts") == list(range(200))
    assert sum(appends) == 200
    assert len(appends) < 50, "not one append for each"


def test_each_has_its_own_outcome(hub: Hub, appends: list[int]) -> None:
    hub.station("hub", peers=[TOOL], messages={"max_bytes": "16KiB"}, storage={"partitions": 3})

    async def work(client: hg.AsyncClient) -> list[Any]:
        return await asyncio.gather(
            client.publish("alerts", "first", key="a"),
            *(client.publish("alerts", n, key="a") for n in range(10)),
            client.publish("commands", "not allowed"),
            client.publish("alerts", "x" * 20_000),
            client.publish_many("alerts", [hg.Draft(data=f"batch{n}", key=f"k{n}") for n in range(6)]),
            client.publish("sensors.a", "elsewhere"),
            client.publish("alerts", "last", key="a"),
            return_exceptions=True,
        )

    with hub.open("hub") as station:
        found = asyncio.run(_publish(hub, work))
        partition = found[0].partition
        stored = [message.data for message in station.read("alerts", partition=partition) if message.key == "a"]
    assert stored == ["first", *range(10), "last"]
    assert [type(one) for one in found[11:14]] == [hg.NotAllowed, hg.MessageTooLarge, list]
    assert {receipt.partition for receipt in found[13]} == {0, 1, 2}
    assert (found[14].channel, found[14].offset) == ("sensors.a", 0)
    check_log(hub.path("hub"), "alerts")


@pytest.mark.parametrize("error", [hg.Busy("no room"), ChannelGone("closed for room")])
def test_what_finds_no_room_is_waited_for(
    hub: Hub, appends: list[int], monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    submit, refused = FilesEngine.submit, [0]

    def full(self: FilesEngine, *arguments: Any) -> None:
        refused[0] += 1
        if refused[0] % 3 == 0:
            raise error
        submit(self, *arguments)

    async def work(client: hg.AsyncClient) -> list[hg.Receipt]:
        return await asyncio.gather(*(client.publish("alerts", n) for n in range(50)))

    monkeypatch.setattr(FilesEngine, "submit", full)
    with hub.open("hub"):
        receipts = asyncio.run(_publish(hub, work))
    assert refused[0] >= 3
    assert [receipt.offset for receipt in receipts] == list(range(50)), "in order all the same"
    assert payloads(hub.path("hub"), "alerts") == list(range(50))
