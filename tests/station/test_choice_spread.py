"""Patterns, filters and replies where a channel has several partitions, and where groups and queues work."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

import heliograph as hg
from tests.opening import Opener
from tests.proof.tools import eventually

QUICK = hg.Retry(max_retries=1, base_s=0.001, max_s=0.002)
WANTED = hg.Filter(type="wanted.*")


def fill(station: hg.Station, channel: str, count: int) -> None:
    """Every other message is wanted."""
    for number in range(count):
        kind = "wanted.v1" if number % 2 == 0 else "other.v1"
        station.publish(channel, number, type=kind, key=f"k{number % 7}")


def test_a_filter_is_applied_in_every_partition_and_positions_pass_what_is_left_out(opened: Opener) -> None:
    station = opened()
    station.create_channel("readings", partitions=4)
    fill(station, "readings", 100)
    heard: list[Any] = []
    subscription = station.subscribe(
        "readings", lambda message: heard.append(message.data), name="sums", start="first", where=WANTED
    )
    eventually(lambda: subscription.stats().lag == 0)
    assert sorted(heard) == list(range(0, 100, 2))
    stats = subscription.stats()
    assert (stats.delivered, stats.filtered, stats.position) == (50, 50, 100)
    assert sum(part.filtered for part in subscription.partition_stats()) == 50


def test_reading_through_a_filter_merges_partitions_and_takes_one(opened: Opener) -> None:
    station = opened()
    station.create_channel("readings", partitions=3)
    fill(station, "readings", 60)
    assert [message.data for message in station.read("readings", where=WANTED)] == list(range(0, 60, 2))
    apart = [one.data for at in range(3) for one in station.read("readings", where=WANTED, partition=at)]
    assert sorted(apart) == list(range(0, 60, 2))
    following = station.read("readings", where=WANTED, follow=True)
    assert sorted(next(following).data for _ in range(30)) == list(range(0, 60, 2))


def test_the_workers_of_a_group_filter_too(opened: Opener) -> None:
    station = opened()
    station.create_channel("readings", partitions=4)
    heard: list[Any] = []
    workers = [
        station.subscribe(
            "readings", lambda message: heard.append(message.data), name="sums", group=True, start="first", where=WANTED
        )
        for _ in range(2)
    ]
    fill(station, "readings", 80)
    eventually(lambda: len(heard) >= 40)
    assert sorted(heard) == list(range(0, 80, 2))
    eventually(lambda: sum(worker.stats().filtered for worker in workers) == 40)


@pytest.mark.parametrize(
    ("channel", "options", "said"),
    [
        ("jobs", {"queue": True, "where": WANTED}, "leave out where"),
        ("jobs.>", {"queue": True}, "share one channel"),
        ("jobs.>", {"group": True}, "share one channel"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_is_made(
    opened: Opener, channel: str, options: dict[str, Any], said: str
) -> None:
    station = opened()
    with pytest.raises(hg.ConfigError, match=said):
        station.subscribe(channel, print, name="worker", **options)
    assert station.channels() == []


def test_a_partition_belongs_to_one_channel(opened: Opener) -> None:
    with pytest.raises(hg.ConfigError, match="belongs to one channel"):
        opened().read("sensors.>", partition=1)


def test_a_wildcard_hears_all_partitions_of_its_channels_one_message_at_a_time(opened: Opener) -> None:
    station = opened()
    for name, partitions in (("sensors.a", 3), ("sensors.b", 1)):
        station.create_channel(name, partitions=partitions)
        fill(station, name, 40)
    lock, crowded, heard = threading.Lock(), [], []

    def handler(message: hg.Message) -> None:
        if not lock.acquire(blocking=False):
            crowded.append(message)
            return
        time.sleep(0.001)
        heard.append((message.channel, message.key, message.data))
        lock.release()

    wildcard = station.subscribe("sensors.*", handler, name="archive", start="first")
    station.create_channel("sensors.c", partitions=2)
    fill(station, "sensors.c", 40)
    eventually(lambda: len(heard) + len(crowded) == 120)
    assert not crowded
    for channel in ("sensors.a", "sensors.b", "sensors.c"):
        for key in {f"k{number}" for number in range(7)}:
            mine = [data for name, its, data in heard if (name, its) == (channel, key)]
            assert mine == sorted(mine)
    assert isinstance(wildcard, hg.WildcardSubscription)
    assert {name: one.partitions for name, one in wildcard.channels.items()} == {
        "sensors.a": [0, 1, 2], "sensors.b": [0], "sensors.c": [0, 1],
    }  # fmt: skip
    eventually(lambda: wildcard.position == 120)
    assert sorted({(one.channel, one.partition) for one in station.stats().subscriptions}) == [
        ("sensors.a", 0), ("sensors.a", 1), ("sensors.a", 2), ("sensors.b", 0), ("sensors.c", 0), ("sensors.c", 1),
    ]  # fmt: skip
    assert wildcard.close()
    fill(station, "sensors.a", 10)
    again = station.subscribe("sensors.*", handler, name="archive")
    eventually(lambda: len(heard) == 130)
    assert again.close(forget=True)
    assert station.subscriptions() == []


def test_a_pattern_reads_all_partitions_in_the_order_of_time(opened: Opener) -> None:
    station = opened()
    station.create_channel("sensors.a", partitions=3)
    for number in range(60):
        station.publish("sensors.a" if number % 3 else "sensors.b", number, key=f"k{number % 5}")
    assert [message.data for message in station.read("sensors.*")] == list(range(60))
    following = station.read("sensors.*", follow=True)
    assert sorted(next(following).data for _ in range(60)) == list(range(60))


def test_a_station_whose_channels_have_several_partitions_asks_and_answers(opened: Opener) -> None:
    station = opened(partitions=4)
    with station.reply("prices", lambda request: request.data * 3, name="clerk"):
        assert [station.request("prices", number, key=str(number), timeout=30).data for number in range(8)] == [
            3 * number for number in range(8)
        ]
    assert [info.partitions for info in station.channels(replies=True) if info.name.startswith("_reply.")] == [1]


def test_the_workers_of_a_queue_reply_and_say_when_they_gave_up(opened: Opener) -> None:
    station = opened()

    def answer(request: hg.Message) -> int:
        if request.data < 0:
            raise ValueError("negative")
        return int(request.data) + 1

    workers = [station.reply("sums", answer, name="clerks", queue=True, retry=QUICK) for _ in range(2)]
    assert [station.request("sums", number, timeout=30).data for number in range(5)] == [1, 2, 3, 4, 5]
    with pytest.raises(hg.ReplyFailed, match="negative"):
        station.request("sums", -1, timeout=30)
    eventually(lambda: [info.messages for info in station.channels() if info.name == "sums.dead-letter"] == [1])
    for worker in workers:
        assert worker.close()
