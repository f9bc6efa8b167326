"""Workers of a hub's groups at its clients: they share the partitions with the hub's own, and with each other."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest

import heliograph as hg
from heliograph.federation.crew import Crew
from tests.client.conftest import TOOL, Hub
from tests.client.processes import WorkerProcess, in_order
from tests.federation.chaos import Proxy
from tests.federation.stations import wait_for

Proxies = Callable[..., Proxy]


pytestmark = pytest.mark.usefixtures("short_pauses")


@pytest.fixture
def workers(hub: Hub) -> Iterator[Callable[..., WorkerProcess]]:
    made: list[WorkerProcess] = []

    def make(**said: Any) -> WorkerProcess:
        options = {"group": True, "start": "first", **said.pop("options", {})}
        made.append(WorkerProcess(hub, "alerts", "pager", options=options, **said))
        return made[-1]

    yield make
    for one in made:
        if one.child.poll() is None:
            one.kill()


@pytest.fixture
def wide(hub: Hub) -> Hub:
    hub.station("hub", peers=[TOOL, {"name": "nobody"}], storage={"partitions": 6})
    return hub


def keyed(numbers: range) -> list[hg.Draft]:
    return [hg.Draft(data=n, key=f"k{n % 29}") for n in numbers]


def shares(station: hg.Station, name: str = "pager") -> list[int]:
    """How many partitions each worker has."""
    found = [group for group in station.groups("alerts") if group.name == name]
    return sorted(len(member.partitions) for member in found[0].members) if found else []


def positions(station: hg.Station, name: str = "pager") -> int:
    return sum(partition.offset for group in station.groups("alerts") if group.name == name
               for partition in group.partitions)  # fmt: skip


def test_two_clients_and_a_worker_of_the_hub_share_a_group(wide: Hub, workers: Callable[..., WorkerProcess]) -> None:
    with wide.open("hub") as station:
        here: list[tuple[str, int, int, Any]] = []
        own = station.subscribe(
            "alerts", lambda message: here.append(("done", message.partition, message.offset, message.data)),
            name="pager", group=True, start="first",
        )  # fmt: skip
        there = [workers(), workers()]
        wait_for(lambda: shares(station) == [2, 2, 2])
        station.publish_many("alerts", keyed(range(600)))
        wait_for(lambda: len(here) + sum(len(one.said) for one in there) >= 600)
        records = [here, *(one.said for one in there)]
        assert all(in_order(one) for one in records)
        assert all({partition for _, partition, _, _ in one} for one in records), "each had something"
        handled = [data for one in records for *_, data in one]
        assert sorted(handled) == list(range(600)), "each message once"
        own.close()
        assert [one.end() for one in there] == [0, 0]
        assert positions(station) == 600, "what they handled is committed"
        assert shares(station) == []


def test_a_client_killed_in_a_handler_is_replaced_at_once(wide: Hub, workers: Callable[..., WorkerProcess]) -> None:
    with wide.open("hub") as station:
        station.publish_many("alerts", keyed(range(300)))
        doomed = workers(stuck=150)
        wait_for(lambda: doomed.stuck)
        heir = workers()
        wait_for(lambda: shares(station) in ([3, 3], [2, 4]))  # the third may be the one that is stuck
        doomed.kill()
        station.publish_many("alerts", keyed(range(300, 400)))
        wait_for(lambda: {*doomed.done, *heir.done} == set(range(400)))
        assert in_order(doomed.said)
        assert in_order(heir.said)
        assert 150 in heir.done, "what the dead one had in hand was delivered again"
        again = set(doomed.done) & set(heir.done)
        assert len(again) < 150, "what it had said that it did is not"
        both = [record for one in (doomed, heir) for record in one.said if record[3] not in again]
        assert in_order(both), "order holds from one worker to the next"


def test_a_worker_that_was_frozen_is_fenced(wide: Hub, workers: Callable[..., WorkerProcess]) -> None:
    """It goes on with its message when it wakes up, but nobody hears of it: others had its share meanwhile."""
    with wide.open("hub") as station:
        station.publish_many("alerts", keyed(range(60)))
        frozen = workers(stuck=30, stuck_s=0.5)
        wait_for(lambda: frozen.stuck)
        os.kill(frozen.child.pid, signal.SIGSTOP)
        got: list[int] = []
        station.subscribe("alerts", lambda message: got.append(message.data), name="pager", group=True)
        wait_for(lambda: 30 in got, 60)
        wait_for(lambda: positions(station) == 60)
        os.kill(frozen.child.pid, signal.SIGCONT)
        station.publish_many("alerts", keyed(range(60, 100)))
        wait_for(lambda: {*got, *frozen.done} == set(range(100)))
        wait_for(lambda: shares(station) == [3, 3])
        wait_for(lambda: positions(station) == 100)


def test_cuts_lose_nothing_and_keep_the_order(wide: Hub, proxy: Proxies) -> None:
    line = proxy(cut_after=(4_000, 60_000), seed=3)
    records: list[tuple[str, int, int, Any]] = []
    with wide.open("hub") as station, wide.connect(url=f"wss://localhost:{line.port}") as client:

        def handle(message: hg.Message) -> None:
            records.append(("done", message.partition, message.offset, message.data))

        worker = client.subscribe("alerts", handle, name="pager", group=True, start="first")
        sent = 0
        until = time.monotonic() + 60
        while line.cuts < 12 and time.monotonic() < until:
            station.publish_many("alerts", keyed(range(sent, sent + 200)))
            sent += 200
            time.sleep(0.02)
        assert line.cuts >= 12
        line.cut_after = (1 << 60, 1 << 61)
        wait_for(lambda: positions(station) == sent)
        assert {data for *_, data in records} == set(range(sent))
        firsts: dict[tuple[int, int], Any] = {}
        for what, partition, offset, data in records:
            firsts.setdefault((partition, offset), (what, partition, offset, data))
        assert in_order(list(firsts.values())), "what comes again comes behind its first time, from where it was cut"
        assert worker.live
        assert worker.error is None
        assert worker.delivered == len(records)


def test_a_hub_that_is_restarted_finds_its_workers_again(wide: Hub) -> None:
    got: list[int] = []
    with wide.open("hub") as station:
        station.publish_many("alerts", keyed(range(50)))
        client = wide.connect()
        worker = client.subscribe(
            "alerts", lambda message: got.append(message.data), name="pager", group=True, start="first"
        )
        wait_for(lambda: len(got) == 50)
    time.sleep(0.2)
    with client, wide.open("hub") as station:
        station.publish_many("alerts", keyed(range(50, 100)))
        wait_for(lambda: len(got) >= 100)
        assert got[:50] + sorted(got[50:]) == [*got[:50], *range(50, 100)], "each once: the hub closed in order"
        assert worker.live
        client.close()
        assert not worker.live


def test_a_slow_client_does_not_hold_up_others(wide: Hub) -> None:
    go_on = threading.Event()
    got: list[int] = []
    with wide.open("hub") as station, wide.connect() as slow, wide.connect() as quick:
        slow.subscribe("alerts", lambda _: go_on.wait(60), name="slow", group=True)
        quick.subscribe("alerts", lambda message: got.append(message.data), name="quick", group=True)
        station.publish_many("alerts", ["x" * 1000 for _ in range(5_000)])
        assert slow.publish("sensors.a", 1).offset == 0, "nor its own other requests"
        wait_for(lambda: len(got) == 5_000)
        assert positions(station, "slow") == 0
        go_on.set()


def test_a_client_joins_a_group_while_another_has_a_message_at_hand(wide: Hub) -> None:
    """Partitions move only after their message is done, so that no two have one at once."""
    at_work, most, handled = [0], [0], []
    lock = threading.Lock()

    def handle(message: hg.Message) -> None:
        with lock:
            at_work[0] += 1
            most[0] = max(most[0], at_work[0])
        time.sleep(0.01)
        with lock:
            at_work[0] -= 1
            handled.append((message.partition, message.offset))

    with wide.open("hub") as station, wide.connect() as first, wide.connect() as second:
        station.publish_many("alerts", keyed(range(100)))
        first.subscribe("alerts", handle, name="pager", group=True, start="first")
        wait_for(lambda: len(handled) > 5)
        second.subscribe("alerts", handle, name="pager", group=True, start="first")
        wait_for(lambda: len(handled) >= 100)
        assert len(handled) == len(set(handled)) == 100, "each once"
        assert most[0] == 2, "one at a time at each"


def test_retries_and_dead_letters_are_the_hubs(hub: Hub) -> None:
    calls: list[Any] = []

    def handle(message: hg.Message) -> None:
        calls.append(message.data)
        if message.data == "broken":
            raise KeyError("no such thing")
        if message.data == "hopeless":
            raise hg.Reject("no use") from ValueError("it is wrong")
        if message.data == "later" and calls.count("later") == 1:
            raise hg.RetryLater(0.01)

    retry = hg.Retry(max_retries=2, base_s=0.01)
    with hub.open("hub") as station, hub.connect() as client:
        worker: Any = client.subscribe("alerts", handle, name="pager", group=True, start="first", retry=retry)
        station.publish_many("alerts", ["fine", "broken", "hopeless", "later", "last"])
        wait_for(lambda: "last" in calls)
        assert calls == ["fine", *["broken"] * 3, "hopeless", "later", "later", "last"]
        broken, hopeless = [message.data for message in station.read("alerts.dead-letter")]
        assert (broken["error_type"], broken["error"]) == ("builtins.KeyError", "KeyError: 'no such thing'")
        assert (broken["attempts"], broken["group"], broken["worker"]) == (3, "pager", worker.worker)
        assert "test_groups.py" in broken["traceback"], "where at the client it was"
        assert (hopeless["attempts"], hopeless["error"]) == (1, "ValueError: it is wrong")
        wait_for(lambda: (worker.delivered, worker.failed) == (3, 5))


class Reading(msgspec.Struct):
    degrees: float


def test_a_payload_that_does_not_fit_its_type_here_is_a_dead_letter(hub: Hub) -> None:
    got: list[Any] = []
    with hub.open("hub") as station, hub.connect() as client:
        client.register("com.example.reading.v1", Reading)
        client.subscribe("alerts", lambda message: got.append(message.data), name="pager", group=True)
        for data in ({"degrees": 1}, {"degrees": "cold"}, {"degrees": 3}):
            station.publish("alerts", data, type="com.example.reading.v1")
        wait_for(lambda: len(got) == 2)
        assert got == [Reading(1), Reading(3)]
        (letter,) = [message.data for message in station.read("alerts.dead-letter")]
        assert letter["original"]["data"] == {"degrees": "cold"}
        assert letter["attempts"] == 1


def test_a_durable_subscription_of_one_client_goes_on_where_it_was(hub: Hub) -> None:
    got: list[Any] = []
    with hub.open("hub") as station, hub.connect() as client, hub.connect() as other:
        with_name = {"name": "book", "start": "first"}
        station.publish_many("alerts", range(10))
        first: Any = client.subscribe("alerts", lambda message: got.append(message.data), **with_name)
        wait_for(lambda: len(got) == 10)
        with pytest.raises(hg.SubscriptionBusy):
            other.subscribe("alerts", print, **with_name)
        first.close()
        with pytest.raises(hg.AlreadyExists, match="is a plain subscription, not a queue"):
            other.subscribe("alerts", print, name="book", queue=True)
        station.publish_many("alerts", range(10, 20))
        other.subscribe("alerts", lambda message: got.append(message.data), **with_name)
        wait_for(lambda: len(got) == 20)
        assert got == list(range(20))


def test_what_is_not_allowed_is_refused_with_a_reason(hub: Hub) -> None:
    with hub.open("hub") as station, hub.connect("nobody") as client, hub.connect() as tool:
        station.publish("alerts", "secret")
        for options in ({"group": True}, {"queue": True}, {}):
            with pytest.raises(hg.NotAllowed, match="nobody is not allowed to subscribe 'alerts'"):
                client.subscribe("alerts", print, name="pager", **options)
        with pytest.raises(hg.NotAllowed, match="nobody is not allowed to subscribe 'alerts'"):
            client.queue("alerts", "pager")
        assert station.groups() == []
        assert station.queues() == []
        for name in ("../../x", "", "a b"):
            with pytest.raises(hg.InvalidName):
                tool.subscribe("alerts", print, name=name, group=True)
            with pytest.raises(hg.InvalidName):
                tool.queue("alerts", name)
        for wrong in (
            {"group": True}, {"queue": True}, {"concurrency": 2}, {"name": "p", "group": True, "queue": True},
            {"name": "p", "group": True, "concurrency": 1000}, {"name": "p", "visibility_s": 3},
        ):  # fmt: skip
            with pytest.raises(hg.ConfigError):
                tool.subscribe("alerts", print, **wrong)  # type: ignore[arg-type]
        with pytest.raises(hg.ConfigError, match="pattern"):
            tool.subscribe("sensors.>", print, name="p", group=True)
        with pytest.raises(hg.ConfigError, match="cannot be called"):
            tool.subscribe("alerts", 7, name="p", group=True)  # type: ignore[arg-type]


def test_a_worker_that_is_not_allowed_any_more_ends_and_says_why(hub: Hub) -> None:
    got: list[Any] = []
    with hub.open("hub") as station, hub.connect() as client:
        worker = client.subscribe("alerts", lambda message: got.append(message.data), name="pager", group=True)
        station.publish("alerts", 1)
        wait_for(lambda: got == [1])
        hub.station("hub", peers=[{**TOOL, "subscribe": []}])
        wait_for(lambda: worker.error is not None or not station.publish("alerts", 2))
        assert isinstance(worker.error, hg.NotAllowed)
        wait_for(lambda: not worker.live and shares(station) == [])
        station.publish("alerts", 3)
        station.subscribe("alerts", lambda message: got.append(("here", message.data)), name="pager", group=True)
        wait_for(lambda: ("here", 3) in got)
        assert 3 not in got


def test_a_client_has_a_bounded_number_of_workers(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("heliograph.federation.crew.LINK_SUBSCRIPTIONS_MAX", 2)
    monkeypatch.setattr("heliograph.federation.crew.NAMES_MAX", 3)
    with hub.open("hub"), hub.connect() as client, hub.connect() as other:
        for name in ("a", "b"):
            client.subscribe("alerts", print, name=name, group=True)
        with pytest.raises(hg.Busy, match="at most 2 workers"):
            client.subscribe("alerts", print, name="c", group=True)
        other.subscribe("alerts", print, name="c", group=True).close()
        with pytest.raises(hg.Busy, match="has 3 subscriptions"):
            other.subscribe("alerts", print, name="d", group=True)
        other.subscribe("alerts", print, name="a", group=True, concurrency=120)
        with pytest.raises(hg.Busy, match="handles at most 128"):
            other.subscribe("alerts", print, name="b", group=True, concurrency=20)


def test_a_hub_has_a_bounded_number_of_workers_at_clients(
    hub: Hub, monkeypatch: pytest.MonkeyPatch, proxy: Proxies
) -> None:
    monkeypatch.setattr("heliograph.federation.crew.WORKERS_MAX", 3)
    with hub.open("hub"), hub.connect() as client:
        line = proxy()
        with hub.connect(url=f"wss://localhost:{line.port}") as other:
            other.subscribe("alerts", print, name="a", group=True)
            other.queue("alerts", "q")
            with pytest.raises(hg.AlreadyExists):
                client.subscribe("alerts", print, name="q", group=True)
            own = client.subscribe("alerts", print, name="a", group=True)
            with pytest.raises(hg.Busy, match="has 3 workers of clients"):
                client.subscribe("alerts", print, name="b", group=True)
            own.close()
            client.queue("alerts", "q").close()
            client.queue("alerts", "q")
            line.close()  # it does not leave: it is gone
        wait_for(lambda: _joins(client))
        client.subscribe("alerts", print, name="b", group=True)


def _joins(client: hg.Client) -> bool:
    try:
        return bool(client.subscribe("alerts", print, name="a", group=True))
    except hg.Busy:
        return False


def test_closing_waits_for_the_message_at_hand_and_a_handler_may_close_its_own(hub: Hub) -> None:
    begun, done = threading.Event(), []

    def handle(message: hg.Message) -> None:
        begun.set()
        time.sleep(0.2)
        done.append(message.data)

    with hub.open("hub") as station, hub.connect() as client:
        worker = client.subscribe("alerts", handle, name="pager", group=True)
        station.publish_many("alerts", range(5))
        assert begun.wait(30)
        worker.close()
        assert done == [0], "that one, and no other"
        assert positions(station) == 1
        own: list[hg.client.ClientSubscription] = []  # type: ignore[name-defined]
        heard: list[Any] = []

        def last(message: hg.Message) -> None:
            heard.append(message.data)
            own[0].close()

        own.append(client.subscribe("alerts", last, name="other", group=True))
        station.publish("alerts", 5)
        wait_for(lambda: not own[0].live)
        wait_for(lambda: shares(station, "other") == [])
        assert heard == [5]
        assert positions(station, "other") == 6


async def _collect(hub: Hub, station: hg.Station) -> list[Any]:
    got: list[Any] = []
    over = asyncio.Event()

    async def handle(message: hg.Message) -> None:
        await asyncio.sleep(0)
        got.append(message.data)
        if len(got) == 300:
            over.set()

    async with hg.connect_async(hub.url, tls=hub.tls()) as client:
        worker = await client.subscribe("alerts", handle, name="pager", group=True, start="first", concurrency=3)
        await asyncio.to_thread(station.publish_many, "alerts", keyed(range(300)))
        await asyncio.wait_for(over.wait(), 30)
        assert worker.live
        await worker.close()
        assert not worker.live
    return got


def test_the_same_for_asyncio(wide: Hub) -> None:
    with wide.open("hub") as station:
        assert sorted(asyncio.run(_collect(wide, station))) == list(range(300))
        assert positions(station) == 300


def test_a_subscription_that_is_given_up_while_it_is_made_holds_no_partition(
    wide: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, joined = threading.Event(), threading.Event()
    subscribe = Crew._subscribe

    def slow(self: Crew, *arguments: Any) -> Any:
        begun.set()
        time.sleep(0.3)
        try:
            return subscribe(self, *arguments)
        finally:
            joined.set()

    async def main() -> None:
        async with hg.connect_async(wide.url, tls=wide.tls()) as client:
            joining = asyncio.create_task(client.subscribe("alerts", print, name="pager", group=True))
            await asyncio.to_thread(begun.wait, 30)
            joining.cancel()
            with pytest.raises(asyncio.CancelledError):
                await joining
            await asyncio.to_thread(joined.wait, 30)
            await asyncio.to_thread(wait_for, lambda: shares(station) == [6])

    monkeypatch.setattr(Crew, "_subscribe", slow)
    with wide.open("hub") as station:
        station.subscribe("alerts", print, name="pager", group=True)
        asyncio.run(main())


def test_a_worker_that_its_client_does_not_know_is_sent_away(wide: Hub) -> None:
    got: list[int] = []
    with wide.open("hub") as station, wide.connect() as client:
        client.subscribe("alerts", print, name="pager", group=True)
        client._inner.workers.known.clear()
        station.subscribe("alerts", lambda message: got.append(message.data), name="pager", group=True)
        station.publish_many("alerts", keyed(range(100)))
        wait_for(lambda: sorted(got) == list(range(100)))
        wait_for(lambda: shares(station) == [6])


def test_messages_large_expired_and_with_holes(hub: Hub) -> None:
    got: list[Any] = []
    with hub.open("hub") as station, hub.connect() as client:
        gone = station.publish("alerts", "redacted")
        station.publish("alerts", "x" * 3_000_000)
        station.publish("alerts", "stale", ttl=0.01)
        station.publish("alerts", b"\x00\xff")
        station.redact(gone.id)
        time.sleep(0.05)
        client.subscribe("alerts", lambda message: got.append(message.data), name="pager", group=True, start="first")
        wait_for(lambda: len(got) == 2)
        assert got == ["x" * 3_000_000, b"\x00\xff"]
        wait_for(lambda: positions(station) == 4)


def test_patterns_hear_channels_that_are_made_later(hub: Hub) -> None:
    heard: list[tuple[str, Any]] = []
    with hub.open("hub") as station, hub.connect() as client:
        station.publish("sensors.old", "before")
        subscription = client.subscribe("sensors.>", lambda message: heard.append((message.channel, message.data)))
        station.publish("sensors.old", 1)
        station.publish("alerts", "no")
        station.publish_many("sensors.new", range(2, 6))
        wait_for(lambda: len(heard) == 5)
        assert sorted(heard) == [("sensors.new", n) for n in (2, 3, 4, 5)] + [("sensors.old", 1)]
        with pytest.raises(hg.NotAllowed):
            client.subscribe("commands.>", print)
        subscription.close()
        assert not subscription.live
