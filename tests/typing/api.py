"""The public API as a type checker sees it: mypy reads this file, nobody runs it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import assert_type

import heliograph as hg


def handle(message: hg.Message) -> None:
    assert_type(message.id, str)
    assert_type(message.time, datetime)
    assert_type(message.offset, int)
    assert_type(message.key, str | None)
    assert_type(message.raw, bytes)


async def handle_async(message: hg.Message) -> None: ...


def handle_batch(messages: list[hg.Message]) -> None: ...


def told(gap: hg.Gap) -> None:
    assert_type(gap.first, int)


def opening() -> None:
    assert_type(hg.open(), hg.Station)
    assert_type(hg.open("data", name="host1", durability="interval"), hg.Station)
    assert_type(hg.open(Path("data"), config={"storage": {"durability": "os"}}, read_only=True), hg.Station)
    with hg.open(config=hg.Config()) as station:
        assert_type(station, hg.Station)
        assert_type(station.name, str)
        assert_type(station.path, Path)
        assert_type(station.config, hg.Config)


def publishing(station: hg.Station) -> None:
    with hg.service("billing"), hg.correlation("order-17"):
        receipt = station.publish("alerts", {"a": 1}, type="alert.v1", key="cpu", headers={"region": "eu"}, wait=1.0)
    assert_type(receipt, hg.Receipt)
    assert_type(receipt.offset, int)
    assert_type(station.publish_many("alerts", [1, hg.Draft(data=2, key="cpu")]), list[hg.Receipt])


def publishing_later(station: hg.Station) -> None:
    station.publish("alerts", 1, delay=60, ttl=timedelta(hours=1))
    station.publish_many("alerts", [1], deliver_at=datetime.now(UTC))
    assert_type(station.scheduled("alerts"), Iterator[hg.Scheduled])
    assert_type(station.scheduled_count(), int)
    assert_type(station.cancel("0192"), bool)
    assert_type(station.schedule("nightly", "reports", 1, cron="0 3 * * *", missed="all"), hg.Schedule)
    station.schedule("nightly", "reports", 1, cron="0 3 * * *", missed="some")  # type: ignore[arg-type]
    assert_type(station.schedules(), list[hg.Schedule])
    assert_type(station.unschedule("nightly"), bool)


def asking(station: hg.Station) -> None:
    assert_type(station.request("prices", 1, timeout=2.5), hg.Message)
    station.request("prices", timeout=timedelta(seconds=2))
    assert_type(station.reply("prices", handle, name="clerk", retry=hg.Retry(max_retries=0)), hg.Subscription)


async def asking_async(station: hg.AsyncStation) -> None:
    assert_type(await station.request("prices", 1, timeout=2.5), hg.Message)
    assert_type(await station.reply("prices", handle_async, name="clerk"), hg.AsyncSubscription)


def subscribing(station: hg.Station) -> None:
    assert_type(station.subscribe("alerts", handle), hg.Subscription)
    station.subscribe("alerts", handle_async, name="worker-1", start="first", concurrency=8)
    station.subscribe("alerts", handle_batch, batch=True, start=datetime.now(UTC), retry=hg.Retry())
    station.subscribe("alerts", handle, buffer=10, overflow="drop_oldest", on_gap=told, timeout_s=1, paused=True)
    station.subscribe("alerts", handle, overflow="drop_everything")  # type: ignore[arg-type]
    station.subscribe("sensors.>", handle, where=hg.Filter(type="com.example.*", headers={"region": "eu"}))
    station.subscribe("alerts", handle, where="type=x")  # type: ignore[arg-type]
    with station.subscribe("alerts", handle, start=7) as subscription:
        subscription.pause()
        subscription.resume()
        assert_type(subscription.stats(), hg.SubscriptionStats)
        assert_type(subscription.positions, dict[int, int])
        assert_type(subscription.partition_stats(), list[hg.SubscriptionStats])
    station.subscribe("alerts", handle, name="sums", group=True)
    assert_type(station.groups("alerts"), list[hg.GroupInfo])


def queueing(station: hg.Station) -> None:
    with station.queue("images", "resize", start="first", visibility_s=timedelta(minutes=1), max_in_flight=7) as queue:
        assert_type(queue, hg.Queue)
        for job in queue.receive(max_messages=10, wait_s=1):
            assert_type(job, hg.Job)
            assert_type(job.message, hg.Message)
            assert_type(job.deliveries, int)
            job.extend(30)
            job.nack(delay=timedelta(seconds=1))
            job.ack()
    station.subscribe("images", handle_async, name="resize", queue=True, visibility_s=30, max_deliveries=3)
    assert_type(station.queues(), list[hg.QueueInfo])
    assert_type(station.queue_info("images", "resize").leases, list[hg.LeaseInfo])
    assert_type(station.release("images", "resize", offset=7), int)


def reading(station: hg.Station) -> None:
    assert_type(station.read("alerts", start="first", end=10, follow=False), Iterator[hg.Message])
    assert_type(station.get("0192"), hg.Message | None)
    assert_type(station.redact("0192", reason="a name in it"), hg.Receipt)


def administering(station: hg.Station) -> None:
    assert_type(station.channels(), list[hg.ChannelInfo])
    assert_type(station.create_channel("alerts", retention_age_s="7d"), hg.ChannelInfo)
    assert_type(station.subscriptions("alerts"), list[hg.SubscriptionInfo])
    assert_type(station.seek("alerts", "worker-1", "-5m", dry_run=True), hg.SeekResult)
    assert_type(station.trim(), list[hg.Trimmed])
    assert_type(station.stats(), hg.StationStats)


async def asynchronously() -> None:
    async with hg.open_async("data", name="host1") as station:
        assert_type(station, hg.AsyncStation)
        assert_type(await station.publish("alerts", 1), hg.Receipt)
        assert_type(await station.publish_many("alerts", [1, 2]), list[hg.Receipt])
        assert_type(await station.subscribe("alerts", handle_async), hg.AsyncSubscription)
        assert_type(station.read("alerts", follow=True), AsyncIterator[hg.Message])
        queue = await station.queue("images", "resize")
        assert_type(queue, hg.AsyncQueue)
        assert_type(await queue.receive(10), list[hg.AsyncJob])
        assert_type(await station.stats(), hg.StationStats)
        assert_type(station.scheduled(), AsyncIterator[hg.Scheduled])
        assert_type(await station.schedule("nightly", "reports", cron="0 3 * * *"), hg.Schedule)
    assert_type(await hg.open_async("data"), hg.AsyncStation)
