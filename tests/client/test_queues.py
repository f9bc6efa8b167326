"""Queues of a hub at its clients: each message leased to one worker, here or there, and acknowledged by itself."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import heliograph as hg
from heliograph.delivery.queues import Queue
from tests.client.conftest import TOOL, Hub
from tests.client.processes import WorkerProcess
from tests.federation.chaos import Proxy
from tests.federation.stations import wait_for

Proxies = Callable[..., Proxy]


pytestmark = pytest.mark.usefixtures("short_pauses")


def test_jobs_are_acknowledged_given_back_and_extended(hub: Hub) -> None:
    with hub.open("hub") as station, hub.connect() as client, client.queue("alerts", "jobs", visibility_s=2) as queue:
        assert (queue.channel, queue.name, queue.settings.visibility_s) == ("alerts", "jobs", 2)
        assert queue.worker in [worker.name for worker in station.queue_info("alerts", "jobs").workers]
        assert queue.receive() == []
        station.publish_many("alerts", ["a", "b", "c"])
        a, b, c = queue.receive(10, wait_s=10)
        assert [(job.message.data, job.deliveries) for job in (a, b, c)] == [("a", 1), ("b", 1), ("c", 1)]
        assert station.queue_info("alerts", "jobs").in_flight == 3
        a.ack()
        b.nack()
        c.extend(30)
        time.sleep(2.1)
        (again,) = queue.receive(10, wait_s=10)
        assert (again.message.data, again.deliveries) == ("b", 2), "c is still this worker's"
        queue.give_back([again])
        (again,) = queue.receive(10, wait_s=10)
        assert again.deliveries == 2, "it was not even begun"
        queue.ack([again, c])
        with pytest.raises(hg.LeaseLost):
            a.ack()
        info = station.queue_info("alerts", "jobs")
        assert (info.depth, info.in_flight) == (0, 0)
    assert queue.closed
    with pytest.raises(hg.StationClosed):
        queue.receive()


def test_a_lease_that_runs_out_is_somebody_elses(hub: Hub) -> None:
    with hub.open("hub") as station, hub.connect() as client, hub.connect() as other:
        slow = client.queue("alerts", "jobs", visibility_s=0.2)
        quick = other.queue("alerts", "jobs")
        station.publish("alerts", "x")
        (mine,) = slow.receive(wait_s=10)
        (theirs,) = quick.receive(wait_s=10)
        assert theirs.deliveries == 2
        for late in (mine.ack, mine.nack, mine.extend):
            with pytest.raises(hg.LeaseLost):
                late()
        theirs.ack()


def test_what_a_client_had_when_it_was_cut_is_free_at_once(hub: Hub, proxy: Proxies) -> None:
    line = proxy()
    with hub.open("hub") as station, hub.connect(url=f"wss://localhost:{line.port}") as client:
        queue = client.queue("alerts", "jobs", visibility_s=3600)
        station.publish_many("alerts", ["a", "b"])
        jobs = queue.receive(2, wait_s=10)
        first = queue.worker
        line.cut()
        again = queue.receive(2, wait_s=30)
        assert [job.message.data for job in again] == ["a", "b"], "the same client, another worker"
        assert queue.worker != first
        with pytest.raises(hg.LeaseLost, match="the connection to the hub was lost"):
            queue.ack(jobs)
        queue.ack(again)
        assert station.queue_info("alerts", "jobs").depth == 0


def test_whoever_is_cut_while_it_waits_for_more_is_replaced_and_back_at_once(hub: Hub, proxy: Proxies) -> None:
    line = proxy()
    with (
        hub.open("hub") as station,
        hub.connect(url=f"wss://localhost:{line.port}") as client,
        hub.connect() as other,
        ThreadPoolExecutor(1) as beside,
    ):
        queue = client.queue("alerts", "jobs")
        station.publish("alerts", "x")
        (job,) = queue.receive(wait_s=10)
        waiting = beside.submit(queue.receive, wait_s=20)
        time.sleep(0.3)  # the hub waits for the next message
        line.cut()
        began = time.monotonic()
        (again,) = other.queue("alerts", "jobs").receive(wait_s=20)
        client.publish("alerts", "y", timeout=20)
        assert time.monotonic() - began < 5
        assert (again.message.data, again.deliveries) == ("x", 2)
        assert [one.message.data for one in waiting.result(30)] == ["y"]
        with pytest.raises(hg.LeaseLost):
            job.ack()


def test_who_joins_again_leaves_the_settings_as_they_are(hub: Hub, proxy: Proxies) -> None:
    line = proxy()
    with hub.open("hub") as station, hub.connect(url=f"wss://localhost:{line.port}") as client:
        queue = client.queue("alerts", "jobs", visibility_s=100)
        worker: Any = client.subscribe("alerts", print, name="other", queue=True, visibility_s=100)
        for name in ("jobs", "other"):
            station.queue("alerts", name, visibility_s=7).close()
        before = worker.worker
        line.cut()
        queue.receive()
        wait_for(lambda: worker.worker != before)
        assert queue.settings.visibility_s == 7
        assert [station.queue_info("alerts", name).visibility_s for name in ("jobs", "other")] == [7, 7]


def test_closing_gives_back_what_is_not_settled(hub: Hub) -> None:
    with hub.open("hub") as station, hub.connect() as client:
        with client.queue("alerts", "jobs") as queue:
            station.publish("alerts", "x")
            assert queue.receive(wait_s=10)
        with station.queue("alerts", "jobs") as own:
            (job,) = own.receive(wait_s=10)
            assert job.deliveries == 2


def test_too_many_deliveries_end_among_the_dead_letters(hub: Hub) -> None:
    with hub.open("hub") as station, hub.connect() as client:
        queue = client.queue("alerts", "jobs", max_deliveries=2)
        station.publish_many("alerts", ["again and again", "never"])
        one, two = queue.receive(2, wait_s=10)
        one.nack(error=ValueError("first"))
        two.nack(error=hg.Reject("no use"))
        (one,) = queue.receive(2, wait_s=10)
        one.nack(error=ValueError("second"))
        never, again = [message.data for message in station.read("alerts.dead-letter")]
        assert (never["original"]["data"], never["attempts"]) == ("never", 1)
        assert (again["error"], again["attempts"], again["queue"]) == ("ValueError: second", 2, "jobs")
        assert queue.receive() == []


def test_handlers_at_clients_and_at_the_hub_share_a_queue(hub: Hub) -> None:
    got: dict[str, list[int]] = {"here": [], "there": []}

    def slowly(message: hg.Message) -> None:  # or it is done before a client hears of it
        time.sleep(0.005)
        got["here"].append(message.data)

    with hub.open("hub") as station, hub.connect() as client:
        own = station.subscribe("alerts", slowly, name="jobs", queue=True)
        far = client.subscribe("alerts", lambda m: got["there"].append(m.data), name="jobs", queue=True, concurrency=4)
        station.publish_many("alerts", range(400))
        wait_for(lambda: len(got["here"]) + len(got["there"]) >= 400)
        assert sorted(got["here"] + got["there"]) == list(range(400)), "each once"
        wait_for(lambda: station.queue_info("alerts", "jobs").depth == 0)
        far.close()
        own.close()
        assert got["there"]


def test_a_long_task_is_not_run_twice(hub: Hub) -> None:
    calls: list[Any] = []
    with hub.open("hub") as station, hub.connect() as client, hub.connect() as other:

        def slow(message: hg.Message) -> None:
            calls.append(message.data)
            time.sleep(2.5)

        for one in (client, other):
            one.subscribe("alerts", slow, name="jobs", queue=True, visibility_s=1)
        station.publish("alerts", "long")
        wait_for(lambda: station.queue_info("alerts", "jobs").depth == 0 and calls)
        assert calls == ["long"]


def test_a_client_killed_in_a_handler_gives_its_message_to_another(hub: Hub) -> None:
    with hub.open("hub") as station:
        said: dict[str, Any] = {"options": {"queue": True, "start": "first", "visibility_s": 3600}}
        station.publish_many("alerts", range(20))
        doomed = WorkerProcess(hub, "alerts", "jobs", stuck=7, **said)
        wait_for(lambda: doomed.stuck)
        doomed.kill()
        heir = WorkerProcess(hub, "alerts", "jobs", **said)
        wait_for(lambda: {*doomed.done, *heir.done} == set(range(20)))
        assert 7 in heir.done
        assert not set(doomed.done) & set(heir.done) - {6, 7, 8}, "the others were acknowledged"
        wait_for(lambda: station.queue_info("alerts", "jobs").depth == 0)
        assert heir.end() == 0


def test_a_message_that_kills_its_workers_ends_among_the_dead_letters(hub: Hub, proxy: Proxies) -> None:
    line = proxy()
    with hub.open("hub") as station, hub.connect(url=f"wss://localhost:{line.port}") as client:
        calls: list[Any] = []

        def handle(message: hg.Message) -> None:
            calls.append(message.data)
            if message.data == "poison":
                line.cut()
                time.sleep(0.05)

        retry = hg.Retry(max_retries=1, base_s=0.01)
        client.subscribe("alerts", handle, name="jobs", queue=True, retry=retry)
        station.publish("alerts", "poison")
        wait_for(lambda: "alerts.dead-letter" in [info.name for info in station.channels()])
        (letter,) = wait_for(lambda: list(station.read("alerts.dead-letter")))
        assert (letter.data["attempts"], letter.data["original"]["data"]) == (2, "poison")
        assert "the connection of the worker ended" in letter.data["error"]
        station.publish("alerts", "fine")
        wait_for(lambda: "fine" in calls)


def test_a_receive_that_is_cancelled_leases_nothing(hub: Hub) -> None:
    async def main(station: hg.Station) -> None:
        async with (
            hg.connect_async(hub.url, tls=hub.tls()) as client,
            await client.queue("alerts", "jobs", visibility_s=3600) as queue,
        ):
            waiting = asyncio.create_task(queue.receive(10, wait_s=30))
            await asyncio.sleep(0.2)
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
            await asyncio.to_thread(station.publish, "alerts", "x")
            (job,) = await queue.receive(10, wait_s=30)
            assert (job.message.data, job.deliveries) == ("x", 1)
            await job.extend()
            await job.nack(0.01)
            (job,) = await queue.receive(10, wait_s=30)
            await job.ack()
            assert await queue.receive() == []

    with hub.open("hub") as station:
        asyncio.run(main(station))


def test_what_is_received_is_bounded(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("heliograph.federation.pulling.HELD_BYTES_MAX", 20_000)
    hub.station("hub", peers=[TOOL], messages={"max_bytes": "4MiB"})
    with hub.open("hub") as station, hub.connect() as client:
        queue = client.queue("alerts", "jobs")
        station.publish_many("alerts", ["x" * 15_000] * 3)
        jobs = queue.receive(2, wait_s=10)
        with pytest.raises(hg.Busy, match="received and not settled"):
            queue.receive()
        queue.ack(jobs)
        (last,) = queue.receive(2, wait_s=10)
        last.ack()
        for wrong in (0, True, 100_000):
            with pytest.raises(hg.ConfigError):
                queue.receive(wrong)
        with pytest.raises(hg.ConfigError):
            client.queue("alerts", "jobs", visibility_s=-1)
        large = 30
        station.publish_many("alerts", ["y" * 2_000_000] * large)  # more than one frame takes
        got = []
        monkeypatch.setattr("heliograph.federation.pulling.HELD_BYTES_MAX", 1 << 40)
        while len(got) < large:
            jobs = queue.receive(large, wait_s=10)
            assert jobs
            got += jobs
        assert {job.deliveries for job in got} == {1}


def test_a_waiting_receive_holds_up_nothing(hub: Hub) -> None:
    with hub.open("hub") as station, hub.connect() as client:
        queue = client.queue("alerts", "jobs")
        got: list[Any] = []
        waiting = threading.Thread(target=lambda: got.extend(queue.receive(wait_s=60)))
        waiting.start()
        assert client.publish("sensors.a", 1).offset == 0
        station.publish("alerts", "x")
        waiting.join(30)
        got[0].ack()


def test_whoever_waits_for_messages_of_a_queue_that_is_closed_hears_of_it(hub: Hub) -> None:
    with hub.open("hub") as station, hub.connect() as client:
        station.create_channel("alerts")
        queue = client.queue("alerts", "jobs")
        ended: list[object] = []

        def receive() -> None:
            try:
                ended.append(queue.receive(wait_s=3600))
            except hg.HeliographError as error:
                ended.append(error)

        waiting = threading.Thread(target=receive, daemon=True)
        waiting.start()
        time.sleep(0.3)
        queue.close()
        waiting.join(10)
        assert [str(error) for error in ended] == ["queue 'jobs' of 'alerts' was closed"]
        assert isinstance(ended[0], hg.StationClosed)


def test_what_the_hub_could_not_settle_may_be_settled_later(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    ack, full = Queue.ack, [True]

    def acknowledge(self: Queue, jobs: Any) -> None:
        if full.pop():
            raise hg.DiskFull("the hub's disk is full")
        ack(self, jobs)

    with hub.open("hub") as station, hub.connect() as client, client.queue("alerts", "jobs") as queue:
        station.publish("alerts", "x")
        (job,) = queue.receive(wait_s=10)
        monkeypatch.setattr(Queue, "ack", acknowledge)
        with pytest.raises(hg.DiskFull):
            job.ack()
        full[:] = [False]
        job.ack()
        assert station.queue_info("alerts", "jobs").depth == 0
