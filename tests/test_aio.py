"""The asynchronous station: the same names and meaning, and an event loop that is never held up."""

from __future__ import annotations

import asyncio
import errno
import gc
import inspect
import os
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import heliograph as hg
from heliograph import aio
from heliograph.aio import AsyncStation
from heliograph.disk import Disk
from heliograph.opening import open_linked
from heliograph.station import open_station

PATIENCE_S = 60.0


class CountingDisk(Disk):
    """Counts syncs; each takes a moment, as on a real disk."""

    def __init__(self, pause_s: float = 0.0) -> None:
        self.syncs = 0
        self.pause_s = pause_s

    def fdatasync(self, fd: int) -> None:
        self.syncs += 1
        time.sleep(self.pause_s)


class GatedDisk(Disk):
    """Syncs return when the gate is open."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.waiting = threading.Event()

    def fdatasync(self, fd: int) -> None:
        self.waiting.set()
        assert self.gate.wait(PATIENCE_S)

    def shut(self) -> None:
        self.gate.clear()
        self.waiting.clear()


def run(story: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(PATIENCE_S):
            await story()

    asyncio.run(bounded())


def on(disk: Disk, root: Path, **settings: Any) -> AsyncStation:
    """A station on that disk, in the running loop."""
    return AsyncStation(open_station(root, name="host1", disk=disk, **settings), asyncio.get_running_loop())


async def eventually(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110 — conditions of any kind
            await asyncio.sleep(0.002)


def public(cls: type) -> dict[str, Any]:
    return {name: member for name, member in vars(cls).items() if not name.startswith("_") and callable(member)}


@pytest.mark.parametrize("method", sorted(set(public(hg.Station)) - {"open_range"}))
def test_every_method_takes_the_same_parameters_in_the_same_order_with_the_same_defaults(method: str) -> None:
    here = dict(inspect.signature(getattr(hg.Station, method)).parameters)
    there = dict(inspect.signature(getattr(hg.AsyncStation, method)).parameters)
    here.pop("event_loop", None)  # its own loop, always
    assert [(one.name, one.kind, one.default) for one in here.values()] == [
        (one.name, one.kind, one.default) for one in there.values()
    ]


def test_the_asynchronous_station_has_no_method_of_its_own() -> None:
    assert set(public(hg.AsyncStation)) <= set(public(hg.Station))


def test_open_async_takes_what_open_takes() -> None:
    here = set(inspect.signature(hg.open).parameters) - {"disk", "clock"}
    assert set(inspect.signature(hg.open_async).parameters) == here


def test_publish_read_get_and_redact_mean_what_they_mean_elsewhere(tmp_path: Path) -> None:
    async def story() -> None:
        async with hg.open_async(tmp_path, name="host1") as station:
            assert (station.name, station.path) == ("host1", tmp_path)
            receipt = await station.publish(
                "a", {"n": 0}, type="t.v1", key="k", headers={"x": "1"}, correlation_id="c", subject="s"
            )
            assert (receipt.channel, receipt.partition, receipt.offset) == ("a", 0, 0)
            many = await station.publish_many(
                "a", [{"n": 1}, hg.Draft(data={"n": 2}, key="other")], type="t.v1", key="k"
            )
            assert [one.offset for one in many] == [1, 2]
            assert await station.publish_many("a", []) == []
            messages = [message async for message in station.read("a")]
            assert [message.data["n"] for message in messages] == [0, 1, 2]
            assert [message.key for message in messages] == ["k", "k", "other"]
            assert messages[0].headers == {"x": "1"}
            assert (messages[0].correlationid, messages[0].subject) == ("c", "s")
            assert [m.offset async for m in station.read("a", start=1, end=2)] == [1]
            found = await station.get(receipt.id)
            assert found is not None and found.data == {"n": 0}
            assert (await station.redact(receipt.id, reason="test")).offset == 0
            assert await station.get(receipt.id) is None
            assert [m.offset async for m in station.read("a")] == [1, 2]

    run(story)


def test_a_follower_gets_what_is_published_later(tmp_path: Path) -> None:
    async def story() -> None:
        async with hg.open_async(tmp_path, name="host1") as station:
            await station.create_channel("a")
            got: list[int] = []

            async def follow() -> None:
                async for message in station.read("a", follow=True):
                    got.append(message.data)
                    if len(got) == 3:
                        return

            follower = asyncio.create_task(follow())
            for n in range(3):
                await station.publish("a", n)
                await eventually(lambda n=n: len(got) == n + 1)
            await follower
            assert got == [0, 1, 2]

    run(story)


@pytest.mark.parametrize("batch", [False, True])
@pytest.mark.parametrize("plain", [False, True])
def test_handlers_may_be_plain_or_async_and_take_batches(tmp_path: Path, batch: bool, plain: bool) -> None:
    async def story() -> None:
        async with hg.open_async(tmp_path, name="host1") as station:
            got: list[int] = []
            threads = set()

            def take(what: Any) -> None:
                threads.add(threading.current_thread())
                got.extend([message.data for message in what] if batch else [what.data])

            async def take_async(what: Any) -> None:
                await asyncio.sleep(0)
                take(what)

            await station.publish_many("a", list(range(5)))
            handler = take if plain else take_async
            async with await station.subscribe("a", handler, name="s", start="first", batch=batch) as subscription:
                assert (subscription.name, subscription.channel) == ("s", "a")
                await station.publish("a", 5)
                await eventually(lambda: subscription.position == 6)
            assert subscription.state == "closed"
            assert got == [0, 1, 2, 3, 4, 5]
            assert (threading.main_thread() in threads) == (not plain)
            assert [(one.name, one.offset) for one in await station.subscriptions("a")] == [("s", 6)]

    run(story)


def test_seek_forget_channels_trim_sync_and_stats_are_there(tmp_path: Path) -> None:
    async def story() -> None:
        async with hg.open_async(tmp_path, name="host1", durability="interval") as station:
            await station.create_channel("a", segment_bytes=4096)
            assert (await station.alter_channel("a", retention_bytes=4096)).settings.retention_bytes == 4096
            for n in range(40):
                await station.publish("a", {"n": n, "pad": "x" * 400})
            subscription = await station.subscribe("a", lambda message: None, name="s", start="first")
            await eventually(lambda: subscription.position == 40)
            await subscription.close()
            result = await station.seek("a", "s", 30, dry_run=True)
            assert (result.before, result.after, result.applied) == (40, 30, False)
            assert (await station.seek("a", "s", 30)).applied
            (trimmed,) = await station.trim("a")
            assert (await station.channel("a")).first == trimmed.first > 0
            await station.sync()
            stats = await station.stats()
            assert [(one.channel, one.published, one.partitions[0].unsynced_bytes) for one in stats.channels] == [
                ("a", 40, 0)
            ]
            await station.forget("a", "s")
            assert await station.subscriptions() == []
            await station.delete_channel("a")
            assert await station.channels() == []

    run(story)


def test_sixty_four_tasks_share_syncs_and_lose_nothing(tmp_path: Path) -> None:
    async def story() -> None:
        disk = CountingDisk(0.001)
        async with on(disk, tmp_path) as station:
            await station.create_channel("a")
            before = disk.syncs

            async def publisher(task: int) -> list[hg.Receipt]:
                return [await station.publish("a", [task, n]) for n in range(20)]

            receipts = await asyncio.gather(*map(publisher, range(64)))
            assert disk.syncs - before < 64 * 20 / 8
            stored = {message.offset: (message.id, message.data) async for message in station.read("a")}
            assert stored == {
                receipt.offset: (receipt.id, [task, n])
                for task, mine in enumerate(receipts)
                for n, receipt in enumerate(mine)
            }
            assert sorted(stored) == list(range(64 * 20))
            for mine in receipts:  # each one's order is kept
                assert [one.offset for one in mine] == sorted(one.offset for one in mine)

    run(story)


def test_publishers_to_many_new_channels_at_once_all_succeed(tmp_path: Path) -> None:
    async def story() -> None:
        async with on(CountingDisk(), tmp_path) as station:
            await asyncio.gather(*[station.publish(f"c{n % 8}", n) for n in range(64)])
            assert [(info.name, info.messages) for info in await station.channels()] == [(f"c{n}", 8) for n in range(8)]

    run(story)


def test_a_cancelled_publish_hangs_nobody_and_its_message_is_still_counted(tmp_path: Path) -> None:
    async def story() -> None:
        disk = GatedDisk()
        async with on(disk, tmp_path) as station:
            await station.publish("a", "first")
            disk.shut()
            tasks = [asyncio.create_task(station.publish("a", n)) for n in range(12)]
            await eventually(disk.waiting.is_set)
            for task in tasks[::3]:
                task.cancel()
            results = asyncio.gather(*tasks, return_exceptions=True)
            await asyncio.sleep(0.01)
            disk.gate.set()
            for n, result in enumerate(await results):
                assert isinstance(result, asyncio.CancelledError) if n % 3 == 0 else isinstance(result, hg.Receipt)
            await station.publish("a", "last")
            assert {message.data async for message in station.read("a")} == {"first", *range(12), "last"}
            stats = await station.stats()
            assert stats.pending_bytes == 0
            assert stats.channels[0].published == 14
            assert not station._waiting

    run(story)


def test_an_event_loop_that_was_closed_while_it_published_leaves_the_channel_to_others(tmp_path: Path) -> None:
    disk = GatedDisk()

    async def story() -> hg.Station:
        station = on(disk, tmp_path)
        await station.publish("a", "first")
        disk.shut()
        station._tasks = [asyncio.ensure_future(station.publish("a", n)) for n in range(5)]  # type: ignore[attr-defined]
        await eventually(disk.waiting.is_set)
        return station.sync_station

    loop = asyncio.new_event_loop()
    station = loop.run_until_complete(story())
    loop.close()
    publisher = threading.Thread(target=station.publish, args=("a", "last"), daemon=True)
    publisher.start()
    disk.gate.set()
    publisher.join(30)
    assert not publisher.is_alive(), "it waits for somebody who was to lead, for ever"
    assert {message.data for message in station.read("a")} == {"first", *range(5), "last"}
    station.close()


class SlowStation:
    """Makes a station's own methods wait in their thread until they are let go."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, owner: object, name: str) -> None:
        self.begun, self.go, self.ended = threading.Event(), threading.Event(), threading.Event()
        original = getattr(owner, name)

        def slow(*arguments: Any, **named: Any) -> Any:
            self.begun.set()
            assert self.go.wait(PATIENCE_S)
            try:
                return original(*arguments, **named)
            finally:
                self.ended.set()

        monkeypatch.setattr(owner, name, slow)

    async def cancel(self, task: asyncio.Task[Any]) -> None:
        await eventually(self.begun.is_set)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        self.go.set()
        await eventually(self.ended.is_set)


@pytest.mark.parametrize(
    ("method", "arguments", "options"),
    [
        ("subscribe", ("a", print), {"name": "worker"}),
        ("subscribe", ("a", print), {"name": "worker", "queue": True}),
        ("reply", ("a", str), {"name": "worker"}),
        ("queue", ("a", "worker"), {}),
    ],
)
def test_what_was_cancelled_while_it_began_does_not_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, arguments: tuple[Any, ...], options: dict[str, Any]
) -> None:
    async def story() -> None:
        async with hg.open_async(tmp_path, name="host1") as station:
            await station.publish("a", 1)
            slow = SlowStation(monkeypatch, station.sync_station, method)
            await slow.cancel(asyncio.ensure_future(getattr(station, method)(*arguments, **options)))
            own = station.sync_station
            await eventually(lambda: not own._subscriptions and not own._pulled)
            assert not any(one.live for one in own.subscriptions("a"))

    run(story)


def test_opening_that_is_cancelled_leaves_nothing_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[hg.Station] = []

    def keeping(**arguments: Any) -> hg.Station:
        opened.append(open_linked(**arguments))
        return opened[0]

    monkeypatch.setattr(aio, "open_linked", keeping)

    async def story() -> None:
        slow = SlowStation(monkeypatch, aio, "open_linked")
        opening = hg.open_async(tmp_path, name="host1")
        await slow.cancel(asyncio.ensure_future(opening.__aenter__()))
        await eventually(lambda: opened and opened[0].closed)

    run(story)


def test_a_read_that_is_cancelled_is_closed_by_the_thread_that_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []

    async def story() -> None:
        async with hg.open_async(tmp_path, name="host1") as station:
            await station.publish("a", 1)
            pieces = station.sync_station.open_range("a", "first", None, False, None)
            monkeypatch.setattr(station.sync_station, "open_range", lambda *_: pieces)
            slow = SlowStation(monkeypatch, pieces, "next")
            original, close = pieces.next, pieces.close

            def next_(timeout_s: float) -> Any:
                found = original(timeout_s)
                done.append("read")
                return found

            def close_() -> None:
                done.append("closed")
                close()

            monkeypatch.setattr(pieces, "next", next_)
            monkeypatch.setattr(pieces, "close", close_)

            async def read() -> None:
                async for _ in station.read("a"):
                    pass

            await slow.cancel(asyncio.ensure_future(read()))
            await eventually(lambda: len(done) == 2)
            assert done == ["read", "closed"]

    run(story)


def test_a_publish_cancelled_while_its_channel_is_made_hangs_nobody(tmp_path: Path) -> None:
    async def story() -> None:
        disk = GatedDisk()
        async with on(disk, tmp_path) as station:
            disk.shut()
            tasks = [asyncio.create_task(station.publish("a", n)) for n in range(3)]
            await eventually(disk.waiting.is_set)
            tasks[0].cancel()
            await asyncio.sleep(0.01)
            disk.gate.set()
            results = await asyncio.gather(*tasks, return_exceptions=True)
            assert isinstance(results[0], asyncio.CancelledError)
            await station.publish("a", "last")
            data = [message.data async for message in station.read("a")]
            assert {1, 2, "last"} <= set(data) and len(data) == len(set(data))
            assert not station._waiting
            await eventually(lambda: station.sync_station.engine.pending_bytes() == 0)  # its thread goes on

    run(story)


def test_a_channel_deleted_by_somebody_else_is_made_again(tmp_path: Path) -> None:
    async def story() -> None:
        async with hg.open_async(tmp_path, name="host1") as station:
            await station.publish("a", "old")
            with hg.open(tmp_path) as other:
                other.delete_channel("a")
            receipts = await asyncio.gather(*[station.publish("a", n) for n in range(4)])
            assert sorted(one.offset for one in receipts) == [0, 1, 2, 3]
            assert {message.data async for message in station.read("a")} == {0, 1, 2, 3}
            with hg.open(tmp_path) as other:
                other.delete_channel("a")
            assert [one.offset for one in await station.publish_many("a", [4, 5])] == [0, 1]

    run(story)


def test_when_too_much_waits_for_the_disk_the_caller_is_told_or_waits_if_asked_to(tmp_path: Path) -> None:
    async def story() -> None:
        disk = GatedDisk()
        async with on(disk, tmp_path, pending_bytes_max=65536) as station:
            await station.create_channel("a")
            await station.publish("a", 0)
            disk.shut()
            first = asyncio.create_task(station.publish("a", "x" * 60_000))
            await eventually(disk.waiting.is_set)
            with pytest.raises(hg.Busy, match="pending_bytes_max"):
                await station.publish("a", "y" * 60_000)
            with pytest.raises(hg.Busy):
                await station.publish_many("a", ["y" * 60_000], wait=0.02)
            patient = asyncio.create_task(station.publish("a", "z" * 60_000, wait=PATIENCE_S))
            await asyncio.sleep(0.02)
            assert not patient.done()
            disk.gate.set()
            assert [(await first).offset, (await patient).offset] == [1, 2]
            assert not station._waiting

    run(story)


def test_the_loop_goes_on_while_the_disk_is_slow(tmp_path: Path) -> None:
    async def story() -> None:
        disk = GatedDisk()
        async with on(disk, tmp_path) as station:
            for channel in ("a", "new"):  # known, and still to be made
                if channel == "a":
                    await station.publish("a", 0)
                disk.shut()
                publishing = asyncio.create_task(station.publish(channel, 1))
                await eventually(disk.waiting.is_set)
                ticks = 0
                for _ in range(100):
                    await asyncio.sleep(0)
                    ticks += 1
                assert ticks == 100 and not publishing.done()
                disk.gate.set()
                await publishing

    run(story)


def test_a_closed_station_says_so_and_hangs_nobody(tmp_path: Path) -> None:
    async def story() -> None:
        station = await hg.open_async(tmp_path, name="host1")
        await station.publish("a", 0)
        await station.close()
        await station.close()
        for attempt in (
            lambda: station.publish("a", 1),
            lambda: station.publish_many("a", [1]),
            lambda: station.subscribe("a", print),
            lambda: station.get("x"),
            station.channels,
            station.stats,
            lambda: station.seek("a", "s", 0),
            station.sync,
            lambda: anext(station.read("a")),
        ):
            with pytest.raises(hg.StationClosed):
                await attempt()

    run(story)


def test_closing_while_others_publish_leaves_every_publisher_with_an_answer(tmp_path: Path) -> None:
    async def story() -> None:
        station = on(CountingDisk(0.002), tmp_path)
        await station.create_channel("a")
        acknowledged: list[int] = []

        async def publisher(task: int) -> None:
            n = 0
            while True:
                try:
                    await station.publish("a", [task, n])
                except hg.StationClosed:
                    return
                acknowledged.append(task * 1_000_000 + n)
                n += 1

        tasks = [asyncio.create_task(publisher(task)) for task in range(8)]
        await eventually(lambda: len(acknowledged) > 40)
        await station.close()
        await asyncio.gather(*tasks)
        with hg.open(tmp_path) as again:
            stored = {message.data[0] * 1_000_000 + message.data[1] for message in again.read("a")}
        assert set(acknowledged) <= stored

    run(story)


# -- producers and atomic steps ----


def test_a_producer_and_a_step(tmp_path: Path) -> None:
    async def main() -> tuple[list[Any], list[Any], int]:
        async with hg.open_async(tmp_path, name="host1") as station:
            async with station.producer("p") as producer:
                await producer.publish("in", 1)
                assert (await producer.publish("in", 1, seq=1)).duplicate
                await producer.publish_many("in", [2, 3])
                last = await producer.last("in")
            async with station.atomic() as step:
                await step.publish("out", "a")
                await step.publish("in", 4)
            with pytest.raises(ZeroDivisionError):
                async with station.atomic() as broken:
                    await broken.publish("out", "b")
                    raise ZeroDivisionError
            assert [receipt.channel for receipt in step.receipts] == ["out", "in"]
            found = [[message.data async for message in station.read(channel)] for channel in ("in", "out")]
            return found[0], found[1], last

    assert asyncio.run(main()) == ([1, 2, 3, 4], ["a"], 3)


def test_publishing_later_and_not_for_ever(tmp_path: Path) -> None:
    async def story() -> None:
        async with hg.open_async(tmp_path, name="host1") as station:
            seen: list[int] = []

            async def handle(message: hg.Message) -> None:
                seen.append(message.data)

            await station.subscribe("alerts", handle)
            receipt = await station.publish("alerts", 1, delay=0.2)
            assert isinstance(receipt, hg.Scheduled)
            await station.publish_many("alerts", [2, 3], delay=0.1, ttl=60)
            far = [await station.publish("later", number, delay=3600 + number) for number in range(3)]
            assert await station.scheduled_count() == 6
            assert [one.id async for one in station.scheduled("later")] == [one.id for one in far]
            assert await station.cancel(far[0].id)
            await eventually(lambda: seen == [2, 3, 1])
            await station.publish("alerts", 4, ttl=60)
            await eventually(lambda: seen[-1] == 4)
            made = await station.schedule("nightly", "reports", 1, cron="0 3 * * *")
            assert await station.schedules() == [made]
            assert await station.unschedule("nightly")
            with pytest.raises(hg.InvalidMessage):
                await station.publish("alerts", 1, delay=-1)


# -- queues -------------------------------------------------------------------------------------------------


def test_a_queue_is_pulled_acknowledged_and_given_back(tmp_path: Path) -> None:
    async def story() -> None:
        async with hg.open_async(tmp_path, name="host1") as station:
            await station.publish_many("jobs", range(4))
            async with await station.queue("jobs", "q", start="first", visibility_s=100) as queue:
                one, two, *rest = await queue.receive(4)
                assert (one.message.data, one.deliveries) == (0, 1)
                await one.ack()
                with pytest.raises(hg.LeaseLost):
                    await one.extend(5)
                await two.nack()
                await queue.extend(rest)
                await queue.ack(rest)
                (again,) = await queue.receive(10, wait_s=30)
                assert (again.message.data, again.deliveries) == (1, 2)
                info = await station.queue_info("jobs", "q")
                assert (info.in_flight, queue.settings.visibility_s) == (1, 100)
                assert await station.release("jobs", "q") == 1
            assert [info.depth for info in await station.queues()] == [1]

    run(story)


def test_cancelling_receive_leases_nothing(tmp_path: Path) -> None:
    async def story() -> None:
        async with hg.open_async(tmp_path, name="host1") as station:
            queue = await station.queue("jobs", "q", visibility_s=3600)
            for number in range(5):
                waiting = asyncio.create_task(queue.receive(10, wait_s=30))
                await asyncio.sleep(0.01 * number)
                waiting.cancel()
                await station.publish("jobs", number)  # its thread still waits, and gets it
                with pytest.raises(asyncio.CancelledError):
                    await waiting
                (job,) = await queue.receive(10, wait_s=30)
                assert (job.message.data, job.deliveries) == (number, 1)
                await job.ack()

    run(story)


def test_async_handlers_of_a_queue_run_in_this_loop_and_are_extended(tmp_path: Path) -> None:
    async def story() -> None:
        async with hg.open_async(tmp_path, name="host1") as station:
            loops: list[asyncio.AbstractEventLoop] = []
            done = asyncio.Event()

            async def work(message: hg.Message) -> None:
                loops.append(asyncio.get_running_loop())
                await asyncio.sleep(0.6)  # longer than the lease, were it not extended
                if len(loops) == 3:
                    done.set()

            await station.publish_many("jobs", range(3))
            for _ in range(2):
                await station.subscribe("jobs", work, name="q", queue=True, start="first", visibility_s=0.2)
            await done.wait()
            while (await station.queue_info("jobs", "q")).leases:  # noqa: ASYNC110 - another thread does it
                await asyncio.sleep(0.01)
            assert loops == [asyncio.get_running_loop()] * 3

    run(story)


def test_whoever_is_publishing_when_the_station_is_closed_hears_what_became_of_it(tmp_path: Path) -> None:
    async def story() -> None:
        disk = GatedDisk()
        station = on(disk, tmp_path)
        await station.publish("a", 0)
        threaded, engine = station.sync_station.publish, station.sync_station.engine
        disk.shut()
        publishing = [asyncio.create_task(asyncio.to_thread(threaded, "a", 1))]
        await eventually(disk.waiting.is_set)
        for one in (station.publish("a", 2), asyncio.to_thread(threaded, "a", 3)):
            before = engine.pending_bytes()
            publishing.append(asyncio.create_task(one))
            await eventually(lambda before=before: engine.pending_bytes() > before)
        closing = asyncio.create_task(station.close())
        await asyncio.sleep(0.1)
        with pytest.raises(hg.StationClosed):
            await asyncio.to_thread(threaded, "a", 4)
        disk.gate.set()
        assert [receipt.offset for receipt in await asyncio.gather(*publishing)] == [1, 2, 3]
        await closing
        with pytest.raises(hg.StationClosed):
            await station.publish("a", 5)

    run(story)
    with hg.open(tmp_path) as station:
        assert [message.data for message in station.read("a")] == [0, 1, 2, 3]


def test_what_is_stored_is_acknowledged_though_its_channel_cannot_be_opened_any_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        async with hg.open_async(tmp_path, name="host1") as station:
            await station.publish("a", 0)
            engine = station.sync_station.engine

            def refuse(*_: object) -> None:
                raise hg.StorageError("too many open files")

            monkeypatch.setattr(engine, "is_open", lambda *_: False)
            monkeypatch.setattr(engine, "appender", refuse)
            monkeypatch.setattr(engine, "writer", refuse)
            assert (await station.publish("a", 1, headers={"the": "long way"})).offset == 1

    run(story)


def test_closing_while_messages_are_published_leaves_no_error_that_nobody_hears(root: Path) -> None:
    unheard: list[dict[str, Any]] = []

    async def publish(station: AsyncStation) -> None:
        with pytest.raises(hg.StationClosed):
            while True:
                await station.publish("numbers", 1)

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: unheard.append(context))
        station = on(CountingDisk(0.002), root)
        tasks = [asyncio.create_task(publish(station)) for _ in range(10)]
        await asyncio.sleep(0.2)
        await station.close()
        await asyncio.gather(*tasks)
        gc.collect()

    asyncio.run(main())
    assert unheard == []


class ShortDisk(Disk):
    """There are no descriptors left for the first partition."""

    short = False

    def open(self, path: Any, flags: int, mode: int = 0o644) -> int:
        if self.short and "numbers/0" in str(path):
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return super().open(path, flags, mode)


def two_partitions(root: Path) -> None:
    """A channel that was made by another process."""
    with hg.open(root, name="host1") as station:
        station.create_channel("numbers", partitions=2)


def of_the_second(station: AsyncStation) -> str:
    """A key of the second of two partitions."""
    among = station.sync_station.publisher.partitioner.among
    return next(key for key in map(str, range(100)) if among(2, "numbers", key) == 1)


def test_what_is_stored_is_acknowledged_even_if_the_next_message_could_not_be(root: Path) -> None:
    async def story() -> None:
        two_partitions(root)
        disk = ShortDisk()
        station = on(disk, root)
        disk.short = True
        receipt = await station.publish("numbers", 1, key=of_the_second(station), subject="one")
        assert (receipt.partition, receipt.offset) == (1, 0)
        disk.short = False
        await station.close()

    run(story)


def test_a_channel_that_is_deleted_after_a_message_was_stored_stays_deleted(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        two_partitions(root)
        station = on(Disk(), root)
        engine = station.sync_station.engine

        def deleted_meanwhile(channel: str, number: int) -> bool:
            with hg.open(root) as other:
                other.delete_channel(channel)
            return False

        monkeypatch.setattr(engine, "is_open", deleted_meanwhile)
        await station.publish("numbers", 1, key=of_the_second(station), subject="one")
        assert await station.channels() == []
        await station.close()

    run(story)


def test_many_who_wait_keep_nobody_else_from_working(tmp_path: Path) -> None:
    async def story() -> None:
        threads = ThreadPoolExecutor(2)  # what a small machine has, for everything in this loop
        asyncio.get_running_loop().set_default_executor(threads)
        async with hg.open_async(tmp_path / "data", name="host1") as station:
            await station.publish("alerts", "first")
            heard: dict[int, str] = {}

            async def follow(number: int) -> None:
                async for message in station.read("alerts", start="new", follow=True):
                    heard[number] = message.data

            async def work() -> None:
                async with await station.queue("jobs", "resize") as queue:
                    while True:
                        await queue.receive(wait_s=20)

            waiting = [asyncio.create_task(follow(number)) for number in range(10)]
            waiting += [asyncio.create_task(work()) for _ in range(10)]
            await asyncio.sleep(0.5)
            begun = time.monotonic()
            await station.channels()
            await station.publish("orders", 1)  # a new channel
            await asyncio.to_thread(time.monotonic)  # the application's own work
            await station.publish("alerts", "second")
            await eventually(lambda: len(heard) == 10)
            assert time.monotonic() - begun < 0.9  # one turn of waiting takes a second
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)

    run(story)
    wait_for(lambda: not [one for one in threading.enumerate() if one.name.startswith("heliograph-wait")])


def test_what_is_closed_is_closed_though_whoever_closes_is_cancelled_before_a_thread_has_time(tmp_path: Path) -> None:
    async def story() -> None:
        gate = threading.Event()
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
        async with hg.open_async(tmp_path / "data", name="host1") as station:
            subscription = await station.subscribe("alerts", print, name="pager")
            queue = await station.queue("jobs", "resize")
            producer = station.producer("importer")
            blocked = asyncio.create_task(asyncio.to_thread(gate.wait, PATIENCE_S))
            closing = [asyncio.create_task(one.close()) for one in (subscription, queue, producer)]
            await asyncio.sleep(0.05)
            for task in closing:
                task.cancel()
            await asyncio.gather(*closing, return_exceptions=True)
            await eventually(lambda: subscription.state == "closed" and queue.closed)
            gate.set()
            await blocked
            again = await station.subscribe("alerts", print, name="pager")
            assert again.state == "running"

    run(story)


def wait_for(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_closing_that_is_cancelled_goes_on_and_is_waited_for_by_who_closes_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        station = await hg.open_async(tmp_path)
        close, calls, ended = station.sync_station.close, [0], threading.Event()

        def slowly() -> None:
            calls[0] += 1
            time.sleep(0.3)
            close()
            ended.set()

        monkeypatch.setattr(station.sync_station, "close", slowly)
        reading = asyncio.create_task(anext(station.read("alerts", follow=True)))
        await station.publish("other", "x")
        await asyncio.sleep(0.1)
        first = asyncio.create_task(station.close())
        await asyncio.sleep(0.1)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        await station.close()
        assert ended.is_set(), "closed again, and not waited for the first"
        assert calls == [1], "two closed at once"
        with pytest.raises((hg.StationClosed, hg.NotFound, StopAsyncIteration)):
            await asyncio.wait_for(reading, PATIENCE_S)
        await station.close()

    asyncio.run(main())


def test_closing_that_is_cancelled_leaves_nothing_behind(tmp_path: Path) -> None:
    """Not even where nobody closes it again: threads that wait end, and who publishes is told."""

    async def main() -> None:
        station = await hg.open_async(tmp_path)
        queue = await station.queue("alerts", "jobs")
        assert not await queue.receive(wait_s=0.1)
        assert station._waiters._threads is not None
        closing = asyncio.create_task(station.close())
        await asyncio.sleep(0)
        closing.cancel()
        await eventually(lambda: station.sync_station.closed and station._waiters._threads is None)

    asyncio.run(main())


async def opened(path: Path) -> hg.AsyncStation:
    return await hg.open_async(path)


def test_a_station_whose_event_loop_is_over_can_be_closed_in_another(tmp_path: Path) -> None:
    station = asyncio.run(opened(tmp_path))
    asyncio.run(station.close())
    assert station.sync_station.closed
    asyncio.run(station.close())


def test_closing_that_ended_with_its_event_loop_is_finished_in_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    station = asyncio.run(opened(tmp_path))
    close = station.sync_station.close
    monkeypatch.setattr(station.sync_station, "close", lambda: (time.sleep(0.3), close()))
    first = asyncio.new_event_loop()
    closing = first.create_task(station.close())
    first.run_until_complete(asyncio.sleep(0.1))
    asyncio.run(station.close())
    assert station.sync_station.closed
    first.run_until_complete(closing)
    first.close()


def test_closing_that_failed_lets_go_of_who_waits_and_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        station = await hg.open_async(tmp_path)
        queue = await station.queue("alerts", "jobs")
        assert not await queue.receive(wait_s=0.1)
        close = station.sync_station.close

        def fail() -> None:
            monkeypatch.setattr(station.sync_station, "close", close)
            raise hg.StorageError("the disk is gone")

        monkeypatch.setattr(station.sync_station, "close", fail)
        with pytest.raises(hg.StorageError, match="the disk is gone"):
            await station.close()
        assert station._waiters._threads is None
        assert not station.sync_station.closed
        await station.close()
        assert station.sync_station.closed

    asyncio.run(main())
