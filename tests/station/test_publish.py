"""What publish accepts, refuses and promises, one message or many."""

from __future__ import annotations

import asyncio
import concurrent.futures
import json
import re
import threading
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import msgspec
import pytest

import heliograph as hg
from heliograph.limits import BATCH_MESSAGES_MAX
from tests.faults import SteppedClock
from tests.opening import Opener
from tests.proof.tools import checked_log

CHANNEL = "events"


@pytest.mark.parametrize("durability", ["always", "interval", "os"])
@pytest.mark.parametrize(
    "data",
    [
        None,
        True,
        0,
        -1,
        2**63,
        1.5,
        "",
        "text",
        'é\n\t"\\\0',
        "\u2028",
        [],
        {},
        [1, [2, [3]]],
        {"a": {"b": None}},
        b"",
        b"\0\xff",
    ],
    ids=ascii,
)
def test_data_comes_back_as_it_went_in(opened: Opener, root: Path, durability: str, data: Any) -> None:
    with opened(durability=durability) as station:
        one = station.publish(CHANNEL, data)
        many = station.publish_many(CHANNEL, [data, hg.Draft(data=data)])
        read = list(station.read(CHANNEL))
        assert [message.data for message in read] == [data] * 3
        assert [message.id for message in read] == [one.id, *[receipt.id for receipt in many]]
        assert [receipt.offset for receipt in [one, *many]] == [0, 1, 2]
    checked_log(root, CHANNEL)


def test_everything_a_publisher_may_say_arrives(opened: Opener) -> None:
    moment = datetime(2026, 11, 15, 22, 30, 1, 123456, tzinfo=timezone(timedelta(hours=2)))
    with opened(service="monitor") as station:
        station.publish(
            CHANNEL, {"n": 1}, type="com.example.v1", key="cpu", headers={"tenant": "t1", "level": 3, "urgent": True},
            correlation_id="c-1", subject="s", id="own-id",
        )  # fmt: skip
        station.publish_many(
            CHANNEL,
            [
                hg.Draft(
                    data=2,
                    type="t.v2",
                    key="k",
                    headers={"a": "b"},
                    correlation_id="c",
                    subject="s",
                    id="x",
                    time=moment,
                )
            ],
        )
        first, second = station.read(CHANNEL)
        assert (first.id, first.type, first.key, first.correlationid, first.subject) == (
            "own-id", "com.example.v1", "cpu", "c-1", "s",
        )  # fmt: skip
        assert first.source == "host1/monitor"
        assert first.headers == {"tenant": "t1", "level": 3, "urgent": True}
        assert (second.id, second.type, second.key, second.time) == ("x", "t.v2", "k", moment)
        assert json.loads(second.raw)["time"] == "2026-11-15T20:30:01.123456Z"
        assert json.loads(first.raw)["specversion"] == "1.0"


def test_what_a_batch_says_for_all_holds_unless_a_draft_says_otherwise(opened: Opener) -> None:
    with opened() as station:
        station.publish_many(
            CHANNEL, [1, hg.Draft(data=2, key="own", headers={"b": 2})], type="t.v1", key="k", headers={"a": 1},
            correlation_id="c",
        )  # fmt: skip
        first, second = station.read(CHANNEL)
        assert (first.key, first.headers, first.type) == ("k", {"a": 1}, "t.v1")
        assert (second.key, second.headers, second.correlationid) == ("own", {"a": 1, "b": 2}, "c")


@pytest.mark.parametrize(
    "field", ["origin", "originseq", "crc", "batch", "producer", "producerseq", "channel", "id", "data"]
)
def test_nobody_sets_what_is_ours(opened: Opener, field: str) -> None:
    with opened() as station:
        with pytest.raises(hg.InvalidMessage, match=field):
            station.publish(CHANNEL, 1, headers={field: "forged"})
        with pytest.raises(hg.InvalidMessage):
            station.publish_many(CHANNEL, [hg.Draft(data=1, headers={field: "forged"})])
        assert station.channels() == []


def test_a_payload_that_looks_like_an_envelope_forges_nothing(opened: Opener, root: Path) -> None:
    forged = {"origin": "evil.abc", "originseq": "0/99", "crc": "00000000", "batch": "0/5", "id": "x", "channel": "y"}
    with opened() as station:
        station.publish(CHANNEL, forged)
        station.publish_many(CHANNEL, [forged, json.dumps(forged), '"}\n{"specversion":"1.0"'])
        for message in station.read(CHANNEL):
            assert message.origin.startswith("host1.")
            assert message.originseq == f"0/{message.offset}"
    assert len(checked_log(root, CHANNEL)) == 4


# -- sizes ----


@pytest.mark.parametrize("durability", ["always", "interval"])
def test_a_message_too_large_is_refused_with_its_size_and_the_limit(opened: Opener, durability: str) -> None:
    with opened(durability=durability, max_bytes=10_000) as station:
        for act in (
            lambda: station.publish(CHANNEL, "x" * 10_000),
            lambda: station.publish(CHANNEL, b"x" * 10_000),
            lambda: station.publish(CHANNEL, "x" * 10_000, key="k"),
            lambda: station.publish_many(CHANNEL, [1, "x" * 10_000]),
            lambda: station.publish_many(CHANNEL, [hg.Draft(data="x" * 10_000)]),
        ):
            with pytest.raises(hg.MessageTooLarge, match=r"1\d{4}.*10000|10,?000"):
                act()
        assert station.channels() == []


@pytest.mark.parametrize("durability", ["always", "interval"])
def test_what_is_accepted_is_always_deliverable(opened: Opener, durability: str) -> None:
    """From one byte under the limit to one over it, nothing is stored that a reader could not take."""
    with opened(durability=durability, max_bytes=10_000, segment_bytes=4096) as station:
        stored = 0
        for size in range(9000, 10_050, 35):
            try:
                station.publish(CHANNEL, "x" * size)
                stored += 1
            except hg.MessageTooLarge:
                continue
        assert 0 < stored < 30
        read = list(station.read(CHANNEL))
        assert len(read) == stored
        assert all(len(message.raw) + 1 <= 10_000 for message in read)


def test_the_default_limit_is_ten_megabytes_and_a_large_message_survives(opened: Opener) -> None:
    with opened() as station:
        station.publish(CHANNEL, "x" * 9_900_000)
        with pytest.raises(hg.MessageTooLarge):
            station.publish(CHANNEL, "x" * 10_000_000)
        assert len(next(iter(station.read(CHANNEL))).data) == 9_900_000


def test_a_batch_has_bounds_and_is_refused_whole(opened: Opener) -> None:
    with opened() as station:
        with pytest.raises(hg.InvalidMessage, match=str(BATCH_MESSAGES_MAX)):
            station.publish_many(CHANNEL, [None] * (BATCH_MESSAGES_MAX + 1))
        with pytest.raises(hg.MessageTooLarge, match="atomic"):
            station.publish_many(CHANNEL, ["x" * 9_000_000] * 8)
        assert station.publish_many(CHANNEL, []) == []
        assert station.channels() == []


@pytest.mark.parametrize(
    "bad",
    [{"x": object()}, {1, 2} and object(), float("nan") and object(), lambda: 1],
    ids=["nested", "object", "object2", "function"],
)
def test_a_batch_with_one_bad_message_is_refused_whole_and_says_which(opened: Opener, bad: Any) -> None:
    with opened() as station:
        with pytest.raises(hg.InvalidMessage):
            station.publish_many(CHANNEL, [1, bad, 3])
        with pytest.raises(hg.InvalidMessage, match="message 1"):
            station.publish_many(CHANNEL, [hg.Draft(data=1), hg.Draft(data=2, key=5)])  # type: ignore[arg-type]
        assert station.channels() == []


def test_a_batch_may_be_any_iterable_and_one_that_raises_publishes_nothing(opened: Opener) -> None:
    def numbers(upto: int, fail: bool) -> Any:
        yield from range(upto)
        if fail:
            raise RuntimeError("half-way")

    with opened() as station:
        assert len(station.publish_many(CHANNEL, numbers(5, False))) == 5
        assert len(station.publish_many(CHANNEL, (1, 2))) == 2
        with pytest.raises(RuntimeError):
            station.publish_many(CHANNEL, numbers(5, True))
        assert station.channel(CHANNEL).next == 7


@pytest.mark.parametrize("time", [datetime(1969, 12, 31, tzinfo=UTC), datetime.max.replace(tzinfo=UTC) + timedelta(0)])
def test_times_outside_of_what_can_be_written_are_refused(opened: Opener, time: datetime) -> None:
    with opened() as station:
        if time.year == 9999:
            station.publish_many(CHANNEL, [hg.Draft(data=1, time=time)])
            assert next(iter(station.read(CHANNEL))).time == time
        else:
            with pytest.raises(hg.InvalidMessage, match="1970"):
                station.publish_many(CHANNEL, [hg.Draft(data=1, time=time)])


# -- ids, order, time ----


def test_ids_sort_in_the_order_of_publishing_also_across_threads(opened: Opener) -> None:
    with opened() as station:
        lock = threading.Lock()
        order: list[str] = []

        def publish() -> None:
            for _ in range(50):
                with lock:
                    order.append(station.publish(CHANNEL, 1).id)

        threads = [threading.Thread(target=publish) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert order == sorted(order)
        assert [message.id for message in station.read(CHANNEL)] == order


def test_a_clock_that_steps_back_disturbs_neither_order_nor_reading_by_time(opened: Opener, root: Path) -> None:
    clock = SteppedClock()
    with opened(clock=clock, segment_bytes=4096) as station:
        receipts = []
        for step_s in (0, -3600, 60, -7200, 10, -86_400, 0):
            clock.step_us = step_s * 1_000_000
            for _ in range(10):
                receipts.append(station.publish(CHANNEL, {"n": len(receipts), "pad": "x" * 300}))
        assert [message.data["n"] for message in station.read(CHANNEL)] == list(range(70))
        assert [receipt.offset for receipt in receipts] == list(range(70))
        assert all(station.get(receipt.id) is not None for receipt in receipts[::7])
        for message in station.read(CHANNEL):
            found = next(iter(station.read(CHANNEL, start=message.time)))
            assert found.offset <= message.offset
            assert found.time >= message.time
    checked_log(root, CHANNEL)
    with opened() as station:
        assert station.publish(CHANNEL, {"n": 70}).offset == 70


def test_reading_by_time_finds_the_first_message_not_before_it(opened: Opener) -> None:
    begin = datetime(2026, 1, 1, tzinfo=UTC)
    with opened(segment_bytes=4096) as station:
        for number in range(200):
            station.publish_many(CHANNEL, [hg.Draft(data=number, time=begin + timedelta(minutes=number))])
        for number in (0, 1, 57, 100, 199):
            moment = begin + timedelta(minutes=number)
            assert next(iter(station.read(CHANNEL, start=moment))).data == number
            assert next(iter(station.read(CHANNEL, start=moment.isoformat()))).data == number
            assert next(iter(station.read(CHANNEL, start=moment - timedelta(seconds=1)))).data == number
        assert list(station.read(CHANNEL, start=begin + timedelta(days=9))) == []
        part = station.read(CHANNEL, start=begin + timedelta(minutes=10), end=begin + timedelta(minutes=20))
        assert [message.data for message in part] == list(range(10, 20))


def test_times_out_of_order_are_found_all_the_same(opened: Opener) -> None:
    begin = datetime(2026, 1, 1, tzinfo=UTC)
    minutes = [5, 3, 9, 1, 7, 2, 8, 20, 4, 6] * 20
    with opened(segment_bytes=4096) as station:
        for minute in minutes:
            station.publish_many(CHANNEL, [hg.Draft(data=minute, time=begin + timedelta(minutes=minute))])
        for wanted in range(25):
            expected = next((offset for offset, minute in enumerate(minutes) if minute >= wanted), None)
            found = next(iter(station.read(CHANNEL, start=begin + timedelta(minutes=wanted))), None)
            assert (found.offset if found else None) == expected


# -- where to start ----


@pytest.mark.parametrize("start", ["first", 0, "0", "2020-01-01T00:00:00Z", "-9d", datetime(2020, 1, 1)])
def test_words_that_mean_the_beginning(opened: Opener, start: Any) -> None:
    with opened() as station:
        station.publish_many(CHANNEL, [1, 2, 3])
        assert [message.data for message in station.read(CHANNEL, start=start)] == [1, 2, 3]


@pytest.mark.parametrize("start", ["new", 3, 100, "2100-01-01T00:00:00Z"])
def test_words_that_mean_the_end(opened: Opener, start: Any) -> None:
    with opened() as station:
        station.publish_many(CHANNEL, [1, 2, 3])
        assert list(station.read(CHANNEL, start=start)) == []


@pytest.mark.parametrize("start", ["", "last", "soon", -1, "-1", True, None, 1.5, "5m", "-5y", b"first", [], "-5"])
def test_words_that_mean_nothing_say_what_would(opened: Opener, start: Any) -> None:
    with opened() as station:
        station.publish(CHANNEL, 1)
        with pytest.raises((hg.ConfigError, hg.InvalidMessage), match=r"'first', 'new'|negative"):
            list(station.read(CHANNEL, start=start))


# -- service and correlation for a block of code ----


def test_service_and_correlation_hold_for_a_block_in_threads_and_tasks(opened: Opener) -> None:
    with opened(service="default") as station:

        def publish(name: str) -> None:
            with hg.service(name), hg.correlation(f"c-{name}"):
                for _ in range(20):
                    station.publish(CHANNEL, name)
                    station.publish_many(CHANNEL, [name, hg.Draft(data=name)])

        threads = [threading.Thread(target=publish, args=(f"thread-{n}",)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

        async def task(name: str) -> None:
            with hg.service(name), hg.correlation(f"c-{name}"):
                for _ in range(5):
                    await asyncio.sleep(0)
                    await asyncio.to_thread(station.publish, CHANNEL, name)

        async def tasks() -> None:
            await asyncio.gather(*[task(f"task-{n}") for n in range(4)])

        asyncio.run(tasks())
        station.publish(CHANNEL, "default")
        for message in station.read(CHANNEL):
            assert message.source == f"host1/{message.data}"
            assert message.correlationid == (f"c-{message.data}" if message.data != "default" else None)


def test_a_correlation_given_wins_over_the_block_s(opened: Opener) -> None:
    with opened() as station, hg.correlation("block"):
        station.publish(CHANNEL, 1, correlation_id="own")
        station.publish_many(CHANNEL, [2], correlation_id="own")
        station.publish_many(CHANNEL, [hg.Draft(data=3, correlation_id="own"), 4])
        assert [message.correlationid for message in station.read(CHANNEL)] == ["own", "own", "own", "block"]


# -- channels ----


def test_a_deleted_channel_made_again_starts_empty_with_another_life(opened: Opener) -> None:
    with opened() as station:
        station.publish_many(CHANNEL, [1, 2, 3])
        station.subscribe(CHANNEL, print, name="worker", start="first", paused=True).close()
        before = station.channel(CHANNEL).incarnation
        station.delete_channel(CHANNEL)
        with pytest.raises(hg.NotFound):
            station.channel(CHANNEL)
        with pytest.raises(hg.NotFound):
            list(station.read(CHANNEL))
        assert station.subscriptions() == []
        assert station.publish(CHANNEL, 4).offset == 0
        assert [message.data for message in station.read(CHANNEL)] == [4]
        assert station.channel(CHANNEL).incarnation != before


def test_a_channel_is_made_once_with_its_settings(opened: Opener) -> None:
    with opened() as station:
        info = station.create_channel(CHANNEL, segment_bytes="8KiB", retention_age_s="7d", compress=True)
        assert (info.settings.segment_bytes, info.settings.retention_age_s, info.settings.compress) == (
            8192,
            604_800,
            True,
        )
        with pytest.raises(hg.AlreadyExists, match="alter"):
            station.create_channel(CHANNEL)
        with pytest.raises(hg.ConfigError, match="segment_byte"):
            station.create_channel("other", segment_byte=1)
        with pytest.raises(hg.ConfigError):
            station.create_channel("other", segment_bytes=1)
        assert station.alter_channel(CHANNEL, compress=None).settings.compress is None
        with pytest.raises(hg.NotFound):
            station.alter_channel("nowhere", compress=True)
        with pytest.raises(hg.NotFound):
            station.delete_channel("nowhere")


def test_without_auto_create_a_channel_must_be_made_first(opened: Opener) -> None:
    with opened(auto_create=False) as station:
        with pytest.raises(hg.NotFound, match="helio channels create"):
            station.publish(CHANNEL, 1)
        with pytest.raises(hg.NotFound):
            station.subscribe(CHANNEL, print)
        station.create_channel(CHANNEL)
        assert station.publish(CHANNEL, 1).offset == 0


def test_segment_size_is_taken_over_by_running_publishers(opened: Opener) -> None:
    with opened() as first, opened() as second:
        second.publish(CHANNEL, "x" * 3000)
        first.alter_channel(CHANNEL, segment_bytes=4096)
        second.publish(CHANNEL, "x" * 3000)
        assert second.channel(CHANNEL).segments == 2


# -- closed ----


def test_a_closed_station_says_so_at_every_door(opened: Opener) -> None:
    station = opened()
    station.publish(CHANNEL, 1)
    reading = station.read(CHANNEL, follow=True)
    next(reading)
    station.close()
    station.close()
    doors: dict[str, Any] = {
        "publish": lambda: station.publish(CHANNEL, 1),
        "publish with key": lambda: station.publish(CHANNEL, 1, key="k"),
        "publish elsewhere": lambda: station.publish("new", 1),
        "publish_many": lambda: station.publish_many(CHANNEL, [1]),
        "read": lambda: list(station.read(CHANNEL)),
        "reading": lambda: next(reading),
        "subscribe": lambda: station.subscribe(CHANNEL, print),
        "channels": station.channels,
        "channel": lambda: station.channel(CHANNEL),
        "create": lambda: station.create_channel("new"),
        "alter": lambda: station.alter_channel(CHANNEL, compress=True),
        "delete": lambda: station.delete_channel(CHANNEL),
        "get": lambda: station.get("x"),
        "redact": lambda: station.redact("x"),
        "trim": station.trim,
        "seek": lambda: station.seek(CHANNEL, "w", 0),
        "forget": lambda: station.forget(CHANNEL, "w"),
        "subscriptions": station.subscriptions,
        "stats": station.stats,
        "sync": station.sync,
    }
    for door, act in doors.items():
        with pytest.raises(hg.StationClosed):
            act()
            pytest.fail(f"{door} works on a closed station")
    assert station.closed


@pytest.mark.parametrize("durability", ["always", "interval"])
def test_publishing_from_many_threads_to_many_channels_mixes_nothing_up(
    opened: Opener, root: Path, durability: str
) -> None:
    with opened(durability=durability, open_partitions_max=4, segment_bytes=4096) as station:

        def publish(number: int) -> None:
            for n in range(30):
                channel = f"c{(number + n) % 12}"
                station.publish(channel, {"channel": channel, "thread": number, "n": n})
                if n % 5 == 0:
                    station.publish_many(channel, [{"channel": channel, "thread": number, "n": -1}] * 3)

        with concurrent.futures.ThreadPoolExecutor(12) as pool:
            list(pool.map(publish, range(12)))
        total = 0
        for info in station.channels():
            for message in station.read(info.name):
                assert message.channel == info.name == message.data["channel"]
                total += 1
        assert total == 12 * (30 + 6 * 3)
    for number in range(12):
        checked_log(root, f"c{number}")


def test_registered_types_are_checked_before_anything_is_written(opened: Opener) -> None:
    class Alert(msgspec.Struct):
        message: str

    with opened() as station:
        station.register("com.example.alert.v1", Alert)
        station.publish(CHANNEL, Alert("a"), type="com.example.alert.v1")
        with pytest.raises(hg.PayloadMismatch):
            station.publish(CHANNEL, {"massage": 1}, type="com.example.alert.v1")
        with pytest.raises(hg.PayloadMismatch):
            station.publish_many(CHANNEL, [Alert("b"), {"massage": 1}], type="com.example.alert.v1")
        assert [message.data for message in station.read(CHANNEL)] == [Alert("a")]


@pytest.mark.parametrize("durability", ["always", "os"])
def test_the_bytes_that_were_published_are_counted_whatever_way_they_went(opened: Opener, durability: str) -> None:
    """The general way, the short one, that of asyncio, and those of batches: none counts the payload alone."""
    station = opened(durability=durability)
    for number in range(5):
        station.publish(CHANNEL, {"n": number})
        station.publish(CHANNEL, number, key="a")
        station.publish(CHANNEL, number, headers={"region": "eu"})

    async def gather() -> None:
        awaited = hg.AsyncStation(station, asyncio.get_running_loop())
        await asyncio.gather(*(awaited.publish(CHANNEL, number) for number in range(5)))

    asyncio.run(gather())
    station.publish_many(CHANNEL, ["a", "bc"], key="a")
    with station.producer("importer") as producer:
        producer.publish_many(CHANNEL, list(range(12)))
    bodies = [re.split(rb',"(?:batch|origin)":', message.raw)[0] for message in station.read(CHANNEL)]
    assert len(bodies) == 34
    assert station.stats().channels[0].published_bytes == sum(map(len, bodies))


def test_a_batch_for_several_partitions_is_in_the_latency_like_any_other(opened: Opener) -> None:
    station = opened(durability="os")
    station.create_channel(CHANNEL, partitions=4)
    station.publish_many(CHANNEL, [hg.Draft(data=number, key=str(number)) for number in range(20)])
    assert station.stats().channels[0].publish_latency.count == 1


@pytest.mark.parametrize("payloads", ["abc", b"abc", {"a": 1, "b": 2}, memoryview(b"abc")])
def test_a_single_payload_is_no_batch_of_its_letters_or_keys(opened: Opener, payloads: Any) -> None:
    station = opened(durability="os")

    async def awaited() -> None:
        await hg.AsyncStation(station, asyncio.get_running_loop()).publish_many(CHANNEL, payloads)

    doors = [
        lambda: station.publish_many(CHANNEL, payloads),
        lambda: station.publish_many(CHANNEL, payloads, delay=60),
        lambda: station.producer("importer").publish_many(CHANNEL, payloads),
        lambda: asyncio.run(awaited()),
    ]
    for door in doors:
        with pytest.raises(hg.InvalidMessage, match="a batch is a list of payloads"):
            door()
    assert station.channels() == []
