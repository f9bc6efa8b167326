"""Clients whose connection is cut: what they publish is stored once, what they subscribed comes once and in order."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import heliograph as hg
from heliograph.federation import sockets
from heliograph.federation.counter import Counter
from heliograph.federation.errands import Receive, Received
from heliograph.federation.pulling import Pulling
from tests.client.conftest import TOOL, Hub
from tests.federation.chaos import Proxy
from tests.federation.stations import audited, check_log, payloads, wait_for

Proxies = Callable[..., Proxy]


pytestmark = pytest.mark.usefixtures("short_pauses")


def test_a_cut_between_the_append_and_its_answer_does_not_store_it_twice(hub: Hub, mute: list[int]) -> None:
    with hub.open("hub"), hub.connect() as client:
        client.publish("alerts", "first")
        mute[0] = 2
        receipt = client.publish("alerts", "second")
        assert (receipt.offset, receipt.duplicate) == (1, True)
        assert client.publish("alerts", "third").offset == 2
    assert payloads(hub.path("hub"), "alerts") == ["first", "second", "third"]


def test_nor_a_batch_of_several_partitions(hub: Hub, mute: list[int]) -> None:
    hub.station("hub", peers=[TOOL], storage={"partitions": 3})
    with hub.open("hub") as station, hub.connect() as client:
        mute[0] = 1
        receipts = client.publish_many("alerts", [hg.Draft(data=n, key=f"k{n}") for n in range(20)])
        assert all(receipt.duplicate for receipt in receipts)
        for number, receipt in enumerate(receipts):
            (message,) = station.read(
                "alerts", partition=receipt.partition, start=receipt.offset, end=receipt.offset + 1
            )
            assert (message.id, message.data) == (receipt.id, number)
        assert len(list(station.read("alerts"))) == 20


def test_what_is_asked_again_while_the_first_is_still_at_the_disk_waits_for_it(
    hub: Hub, monkeypatch: pytest.MonkeyPatch, proxy: Proxies
) -> None:
    line = proxy()
    appending, go_on = threading.Event(), threading.Event()
    append = Counter.append

    def slow(self: Counter, *arguments: Any) -> Any:
        if not appending.is_set():
            appending.set()
            go_on.wait(30)
        return append(self, *arguments)

    monkeypatch.setattr(Counter, "append", slow)
    with hub.open("hub"), hub.connect(url=f"wss://localhost:{line.port}") as client:
        done: list[hg.Receipt] = []
        publishing = threading.Thread(target=lambda: done.append(client.publish("alerts", "slow")))
        publishing.start()
        assert appending.wait(30)
        line.cut()
        time.sleep(1.0)  # the client is back by now, or as far as it comes
        go_on.set()
        publishing.join(30)
    assert [receipt.duplicate for receipt in done] == [True]
    assert payloads(hub.path("hub"), "alerts") == ["slow"]


def test_many_cuts_anywhere(hub: Hub, proxy: Proxies) -> None:
    line = proxy(cut_after=(3_000, 40_000), seed=7)
    got: list[int] = []
    with hub.open("hub") as station, contextlib.ExitStack() as stack:
        url = f"wss://localhost:{line.port}"
        publisher = stack.enter_context(hub.connect(url=url))
        reader = stack.enter_context(hub.connect(url=url))
        reader.subscribe("alerts", lambda message: got.append(message.data))
        until = time.monotonic() + 60
        sent = 0
        while line.cuts < 40 and time.monotonic() < until:
            publisher.publish_many("alerts", range(sent, sent + 5))
            sent += 5
            publisher.publish("alerts", sent)
            sent += 1
        line.cut_after = (1 << 60, 1 << 61)
        line.cut()
        publisher.publish("alerts", sent)
        assert line.cuts >= 40
        assert [message.data for message in station.read("alerts")] == list(range(sent + 1)), "once, in order"
        wait_for(lambda: len(got) > sent)
        assert got == list(range(sent + 1)), "once, in order"
    check_log(hub.path("hub"), "alerts")


def test_a_hub_that_is_restarted_is_gone_on_with_where_it_was(hub: Hub) -> None:
    got: list[Any] = []
    process = hub.run("hub")
    with hub.connect() as client:
        client.subscribe("alerts", lambda message: got.append(message.data))
        client.publish("alerts", "before")
        wait_for(lambda: got == ["before"])
        process.kill()
        with hub.open("hub", federate=False) as station:
            station.publish("alerts", "while it was away")
        process = hub.run("hub")
        client.publish("alerts", "after")
        wait_for(lambda: len(got) == 3)
        process.end()
    assert got == ["before", "while it was away", "after"]


def test_a_gap_that_cannot_be_filled_is_told(hub: Hub) -> None:
    gaps: list[hg.Gap] = []
    got: list[Any] = []
    with hub.open("hub", federate=False) as station:
        station.create_channel("alerts", segment_bytes="64KiB", retention_bytes="500KiB")
    process = hub.run("hub")
    with hub.connect() as client:
        client.subscribe("alerts", lambda message: got.append(message.offset), on_gap=gaps.append)
        client.publish("alerts", "first")
        wait_for(lambda: got == [0])
        process.kill()
        with hub.open("hub", federate=False) as station:
            for _ in range(40):
                station.publish_many("alerts", ["x" * 1000] * 50)
            trimmed = station.trim("alerts")
        process = hub.run("hub")
        wait_for(lambda: got[-1] == 2000)
        process.end()
    assert trimmed
    (gap,) = gaps
    assert (gap.channel, gap.first) == ("alerts", 1)
    assert got == [0, *range(gap.next, 2001)]
    assert gap.next > 1000


def test_a_channel_that_was_deleted_and_made_anew_is_told_and_gone_on_with(hub: Hub) -> None:
    gaps: list[hg.Gap] = []
    got: list[Any] = []
    with hub.open("hub") as station, hub.connect() as client:
        client.subscribe("alerts", lambda message: got.append(message.data), on_gap=gaps.append)
        for n in range(10):
            client.publish("alerts", n)
        wait_for(lambda: got == list(range(10)))
        station.delete_channel("alerts")
        station.publish_many("alerts", ["anew", "and more"])
        wait_for(lambda: got[10:] == ["anew", "and more"])
    assert gaps


def test_partitions_of_a_channel_that_was_made_anew_with_fewer_begin_with_their_first_message(hub: Hub) -> None:
    got: list[int] = []
    with hub.open("hub") as station, hub.connect() as client:
        station.create_channel("alerts", partitions=3)
        client.subscribe("alerts", lambda message: got.append(message.data), start="first")
        for number in range(9):
            station.publish("alerts", number, key=f"k{number}")
        wait_for(lambda: len(got) == 9)
        station.delete_channel("alerts")
        station.create_channel("alerts", partitions=1)
        station.publish("alerts", 9)
        wait_for(lambda: 9 in got)
        station.alter_channel("alerts", partitions=3)
        station.publish_many("alerts", [hg.Draft(data=number, key=f"k{number}") for number in range(10, 50)])
        wait_for(lambda: len(got) >= 50, 10)
    assert sorted(got) == list(range(50))


def test_all_of_a_channel_that_was_made_anew_while_the_hub_was_away_is_delivered(hub: Hub) -> None:
    gaps: list[hg.Gap] = []
    got: list[Any] = []
    process = hub.run("hub")
    with hub.connect() as client:
        client.subscribe("alerts", lambda message: got.append(message.data), on_gap=gaps.append)
        client.publish_many("alerts", range(100))
        wait_for(lambda: len(got) == 100)
        process.kill()
        with hub.open("hub", federate=False) as station:
            station.delete_channel("alerts")
            for n in range(20):
                station.publish_many("alerts", [f"anew {n}{' ' * 1000}"] * 200)
        process = hub.run("hub")
        wait_for(lambda: len(got) == 4100)
        process.end()
    assert [text.rstrip() for text in got[100:]] == [f"anew {n // 200}" for n in range(4000)]
    assert len(gaps) == 1


def test_a_new_incarnation_of_the_same_log_is_gone_on_with_silently(hub: Hub) -> None:
    gaps: list[hg.Gap] = []
    got: list[Any] = []
    with hub.open("hub") as station, hub.connect() as client:
        client.subscribe("alerts", lambda message: got.append(message.data), on_gap=gaps.append)
        client.publish_many("alerts", range(10))
        wait_for(lambda: len(got) == 10)
        station.engine.new_incarnation("alerts", "a test")
        client.publish_many("alerts", range(10, 20))
        wait_for(lambda: len(got) >= 20)
    assert got == list(range(20))
    assert gaps == []


@pytest.mark.parametrize("what", ["publish", "request"])
def test_what_is_on_its_way_when_its_client_is_closed_has_an_unknown_outcome(
    hub: Hub, proxy: Proxies, what: str
) -> None:
    line = proxy()
    with hub.open("hub"), ThreadPoolExecutor() as pool:
        client = hub.connect(url=f"wss://localhost:{line.port}")
        client.publish("alerts", "answered")
        line.silent.set()
        sent = pool.submit(getattr(client, what), "alerts", "on its way")
        time.sleep(0.3)
        client.close()
        with pytest.raises(hg.OutcomeUnknown, match="whether it was stored is not known: the client is closed"):
            sent.result(10)
        with pytest.raises(hg.StationClosed):
            getattr(client, what)("alerts", "never sent")


def test_a_hub_that_refuses_its_client_before_it_answered_leaves_an_unknown_outcome(hub: Hub, proxy: Proxies) -> None:
    line = proxy()
    with ThreadPoolExecutor() as pool:
        with hub.open("hub"):
            client = hub.connect(url=f"wss://localhost:{line.port}")
            client.publish("alerts", "answered")
            line.silent.set()
            sent = pool.submit(client.publish, "alerts", "on its way", timeout=30)
            time.sleep(0.3)
        hub.station("hub", peers=[{"name": "nobody"}])
        with hub.open("hub"):
            line.silent.clear()
            line.cut()
            with pytest.raises(hg.OutcomeUnknown, match=r"whether it was stored is not known: .*refused"):
                sent.result(20)
        client.close()


@pytest.mark.parametrize("what", ["publish", "request"])
@pytest.mark.parametrize(
    ("then", "why"),
    [
        ({"peers": [{**TOOL, "publish": ["sensors.>"]}]}, "not allowed to publish"),
        ({"peers": [TOOL], "messages": {"max_bytes": "4KiB"}}, "4096"),
    ],
    ids=["not-allowed", "too-large"],
)
def test_what_was_stored_and_is_refused_when_it_is_sent_again_has_an_unknown_outcome(
    hub: Hub, mute: list[int], what: str, then: dict[str, Any], why: str
) -> None:
    """The hub does not look for what its rules of now do not allow."""
    with ThreadPoolExecutor() as pool:
        with hub.open("hub"):
            client = hub.connect()
            mute[0] = 1 << 30
            sent = pool.submit(getattr(client, what), "alerts", "x" * 8000, timeout=30)
            wait_for(lambda: payloads(hub.path("hub"), "alerts"))
        mute[0] = 0
        hub.station("hub", **then)
        with hub.open("hub"):
            with pytest.raises(hg.OutcomeUnknown, match=why):
                sent.result(20)
            with pytest.raises((hg.NotAllowed, hg.MessageTooLarge), match=why):
                getattr(client, what)("alerts", "x" * 8000)
            client.close()
    assert payloads(hub.path("hub"), "alerts") == ["x" * 8000]


def test_no_answer_in_time_is_an_unknown_outcome(hub: Hub, proxy: Proxies) -> None:
    line = proxy()
    with hub.open("hub"), hub.connect(url=f"wss://localhost:{line.port}") as client:
        client.publish("alerts", "answered")
        line.silent.set()
        with pytest.raises(hg.OutcomeUnknown, match="whether it was stored is not known"):
            client.publish("alerts", "lost?", timeout=0.5)
        line.silent.clear()


def test_a_hub_that_stands_still_is_noticed(hub: Hub, proxy: Proxies, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("heliograph.client.keeper.HEARTBEAT_S", 0.2)
    line = proxy()
    with hub.open("hub"), hub.connect(url=f"wss://localhost:{line.port}") as client:
        line.silent.set()
        wait_for(lambda: not client.connected)
        line.silent.clear()
        client.publish("alerts", "here again")
    assert payloads(hub.path("hub"), "alerts") == ["here again"]


def test_a_message_that_takes_longer_than_three_heartbeats_is_published_and_read(
    hub: Hub, proxy: Proxies, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.station("hub", peers=[TOOL])
    monkeypatch.setattr("heliograph.client.keeper.HEARTBEAT_S", 0.4)
    line = proxy(rate=300_000)
    with hub.open("hub") as station, hub.connect(url=f"wss://localhost:{line.port}") as client:
        client.publish("alerts", "x" * 1_200_000)
        assert [len(message.data) for message in client.read("alerts")] == [1_200_000]
        assert client.connected
    assert len(audited(station.path, "client-up")) == 1


def test_an_answer_that_takes_long_to_come_is_waited_for_as_long_as_it_comes(
    hub: Hub, proxy: Proxies, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("heliograph.client.keeper.HEARTBEAT_S", 0.3)
    monkeypatch.setattr("heliograph.client.asker.WAIT_S", 0.5)
    line = proxy(rate=300_000)
    with hub.open("hub") as station, hub.connect(url=f"wss://localhost:{line.port}", timeout=1) as client:
        station.publish("alerts", "x" * 1_200_000)
        assert [len(message.data) for message in client.read("alerts")] == [1_200_000]
        line.silent.set()
        with pytest.raises(hg.Unreachable):
            list(client.read("alerts"))
        line.silent.clear()


def test_a_client_that_vanishes_is_forgotten(hub: Hub, proxy: Proxies) -> None:
    line = proxy()
    with hub.open("hub") as station, hub.connect(url=f"wss://localhost:{line.port}") as client:
        client.subscribe("alerts", print)
        wait_for(lambda: any(link.kind == "client" for link in station.links()))
        line.close()
        wait_for(lambda: not any(link.kind == "client" for link in station.links()))
    assert audited(hub.path("hub"), "client-down")


def test_close_ends_whoever_waits(hub: Hub) -> None:
    with hub.open("hub"):
        client = hub.connect()
        ended: list[BaseException] = []

        def follow() -> None:
            try:
                for _ in client.read("alerts", follow=True, start="new"):
                    pass
            except hg.StationClosed as error:
                ended.append(error)

        reading = threading.Thread(target=follow)
        reading.start()
        time.sleep(0.2)
        client.close()
        reading.join(10)
        assert len(ended) == 1


def test_cancelling_what_waits_leaves_the_client_usable(hub: Hub) -> None:
    async def story() -> None:
        async with hg.connect_async(hub.url, tls=hub.tls()) as client:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.2):
                    async for _ in client.read("alerts", follow=True):
                        pass
            await client.publish("alerts", 1)
            assert [message.data async for message in client.read("alerts")] == [1]

    with hub.open("hub"):
        asyncio.run(story())


def test_a_hub_that_loses_every_connection_is_not_asked_for_ever(hub: Hub, mute: list[int]) -> None:
    with hub.open("hub") as station, hub.connect() as client:
        station.publish("alerts", 1)
        for ask in (client.channels, lambda: list(client.read("alerts"))):
            mute[0] = 60
            with pytest.raises(hg.Unreachable, match="lost 20 times before the hub answered"):
                ask()
            assert mute[0] == 40
        mute[0] = 0
        assert client.channels() == ["alerts"]


def test_nor_is_its_queue(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    lost = [0]
    receive = Pulling.receive

    async def silent(self: Pulling, ask: Receive) -> tuple[Received, bytes]:
        lost[0] += 1
        if lost[0] > 40:
            return await receive(self, ask)
        self._conversation.drop("cut by the test")
        raise hg.StationClosed("the connection is over")

    with hub.open("hub") as station, hub.connect() as client, client.queue("alerts", "jobs") as queue:
        station.publish("alerts", 1)
        monkeypatch.setattr(Pulling, "receive", silent)
        for wait_s in (0, 20):
            lost[0] = 0
            with pytest.raises(hg.Unreachable, match="lost 20 times before the hub answered"):
                queue.receive(wait_s=wait_s)
            assert lost[0] == 20
        lost[0] = 40
        assert [job.message.data for job in queue.receive(wait_s=20)] == [1]


def test_nor_longer_than_it_would_have_for_its_answer(
    hub: Hub, mute: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """However few connections that were: each may hold for long before it is lost."""
    monkeypatch.setattr("heliograph.client.asker.WAIT_S", 0.0)
    monkeypatch.setattr("heliograph.client.asker.LOSSES_MAX", 1_000_000)
    with hub.open("hub"), hub.connect(timeout=0.5) as client:
        mute[0] = 1_000_000
        with pytest.raises(hg.Unreachable, match="times before the hub answered"):
            client.channels()


def test_a_subscription_goes_on_when_the_hub_answers_again(
    hub: Hub, mute: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("heliograph.client.asker.LOSSES_MAX", 2)
    heard: list[Any] = []
    with hub.open("hub") as station, hub.connect() as client:
        subscription = client.subscribe("alerts", lambda message: heard.append(message.data))
        mute[0] = 7
        station.publish("alerts", "while it answers nobody")
        wait_for(lambda: heard == ["while it answers nobody"])
        assert mute[0] == 0 and subscription.live


@pytest.mark.parametrize("wanted", ["alerts", "*"])
def test_a_subscription_goes_on_when_the_hub_could_not_read_for_a_while(
    hub: Hub, monkeypatch: pytest.MonkeyPatch, wanted: str
) -> None:
    read, troubles = Counter.read, [hg.Busy("too much waits"), hg.StorageError("the hub's disk: Input/output error")]

    def troubled(self: Counter, *arguments: Any) -> Any:
        if troubles:
            raise troubles.pop()
        return read(self, *arguments)

    heard: list[Any] = []
    with hub.open("hub") as station, hub.connect() as client:
        station.publish("alerts", "before")
        monkeypatch.setattr(Counter, "read", troubled)
        subscription = client.subscribe(wanted, lambda message: heard.append(message.data))
        wait_for(lambda: not troubles)
        station.publish("alerts", "after")
        wait_for(lambda: heard == ["after"])
        assert subscription.live


def test_a_client_is_connected_again_whatever_goes_wrong(
    hub: Hub, proxy: Callable[..., Proxy], monkeypatch: pytest.MonkeyPatch
) -> None:
    dial, wrong, line = sockets.dial, [True], proxy()

    async def dialled(*arguments: Any) -> Any:
        if wrong:
            wrong.clear()
            raise RuntimeError("nobody thought of that")
        return await dial(*arguments)

    with hub.open("hub"), hub.connect(url=f"wss://localhost:{line.port}") as client:
        client.publish("alerts", "before")
        monkeypatch.setattr(sockets, "dial", dialled)
        line.cut()
        client.publish("alerts", "after", timeout=10)
        assert payloads(hub.path("hub"), "alerts") == ["before", "after"]
        assert not wrong
