"""The short way of publishing must not be told from the general one by anything but its speed."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

import heliograph as hg
from heliograph.log import lines
from heliograph.station import Station
from heliograph.station.partitioning import partition_of
from tests.opening import Opener

CHANNEL = "readings"
BOTH = pytest.mark.parametrize("durability", ["always", "interval"])
MOVING = {"id", "time", "originseq", "crc"}


def general(station: Station, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(station, "_publish_plain", lambda *_: None)


def envelopes(station: Station) -> list[dict[str, Any]]:
    found = list(station.read(CHANNEL))
    assert all(lines.intact(message.raw) for message in found)
    return [{name: value for name, value in message.envelope.items() if name not in MOVING} for message in found]


@BOTH
@pytest.mark.parametrize("key", [None, "", "cpu", "50%", "größe", 'quo"ted\\', "line\nbreak", "%b%d"])
@pytest.mark.parametrize("data", [None, {"a": 1}, "100%", "%b", [1.5, None]])
def test_both_ways_store_the_same_envelope(
    opened: Opener, monkeypatch: pytest.MonkeyPatch, durability: str, key: str | None, data: Any
) -> None:
    with opened(durability=durability) as station:
        station.publish(CHANNEL, "makes the channel")
        short = station.publish(CHANNEL, data, key=key)
        general(station, monkeypatch)
        long = station.publish(CHANNEL, data, key=key)
        _, one, other = station.read(CHANNEL)
        assert list(one.envelope) == list(other.envelope)
        assert envelopes(station)[1] == envelopes(station)[2]
        assert (one.key, one.data, one.id) == (key, data, short.id)
        assert (short.offset, long.offset) == (1, 2)


@BOTH
@pytest.mark.parametrize("name", ["50%", "%%", "%b", "%%b", "100%d", "50% off"])
def test_a_percent_sign_in_a_type_or_a_service_is_only_that(opened: Opener, durability: str, name: str) -> None:
    with opened(durability=durability) as station, hg.service(name):
        for _ in range(2):
            station.publish(CHANNEL, 1, type=name)
            station.publish(CHANNEL, 2, type=name, key="cpu")
            station.publish_many(CHANNEL, [3, 4], type=name)
            station.publish_many(CHANNEL, [5], type=name, key="cpu")
        messages = list(station.read(CHANNEL))
        assert [message.data for message in messages] == [1, 2, 3, 4, 5] * 2
        assert {(message.source, message.type) for message in messages} == {(f"host1/{name}", name)}


@BOTH
@pytest.mark.parametrize("key", [7, b"k", "\ud800", "x" * 70_000])
def test_a_bad_key_is_refused_and_nothing_stored(opened: Opener, durability: str, key: Any) -> None:
    with opened(durability=durability) as station:
        station.publish(CHANNEL, 1, key="good")
        with pytest.raises(hg.InvalidMessage, match="key"):
            station.publish(CHANNEL, 2, key=key)
        assert station.stats().channels[0].refused == 1
        station.publish(CHANNEL, 3, key="good")
        assert [message.data for message in station.read(CHANNEL)] == [1, 3]


@BOTH
def test_threads_that_share_a_form_keep_their_partitions_apart(opened: Opener, durability: str) -> None:
    with opened(durability=durability) as station:
        station.create_channel(CHANNEL, partitions=4)
        keys = [f"key-{number}" for number in range(12)]

        def work(key: str) -> None:
            for number in range(60):
                receipt = station.publish(CHANNEL, number, key=key)
                assert receipt.partition == partition_of(key, 4)

        threads = [threading.Thread(target=work, args=(key,)) for key in keys]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        read = list(station.read(CHANNEL))
        assert len(read) == len(keys) * 60
        for message in read:
            assert message.originseq == f"{message.partition}/{message.offset}"
            assert message.partition == partition_of(message.key or "", 4)
        for key in keys:
            assert [message.data for message in read if message.key == key] == list(range(60))


@BOTH
def test_more_partitions_are_seen_by_the_next_message(opened: Opener, root: Path, durability: str) -> None:
    """Growing happens elsewhere: nobody tells the publisher but the head they share."""
    keys = [f"key-{number}" for number in range(20)]
    with opened(durability=durability) as station, opened(durability=durability) as other:
        assert {station.publish(CHANNEL, 1, key=key).partition for key in keys} == {0}
        for partitions in (3, 8):
            other.alter_channel(CHANNEL, partitions=partitions)
            for key in keys:
                assert station.publish(CHANNEL, 1, key=key).partition == partition_of(key, partitions)


def test_tasks_take_the_short_way_with_the_same_outcome(root: Path) -> None:
    async def run() -> list[hg.Receipt]:
        async with hg.open_async(root, name="host1") as station:
            await station.create_channel(CHANNEL, partitions=4)
            keys = [f"key-{number}" for number in range(10)]
            return [
                receipt
                for _ in range(5)
                for receipt in await asyncio.gather(*[station.publish(CHANNEL, key, key=key) for key in keys])
            ]

    receipts = asyncio.run(run())
    with hg.open(root) as station:
        stored = {message.id: message for message in station.read(CHANNEL)}
        assert len(stored) == len(receipts) == 50
        for receipt in receipts:
            message = stored[receipt.id]
            assert (message.partition, message.offset) == (receipt.partition, receipt.offset)
            assert message.partition == partition_of(message.data, 4) and message.key == message.data


def test_a_task_is_refused_what_a_thread_is_refused(root: Path) -> None:
    async def run() -> None:
        async with hg.open_async(root, name="host1", max_bytes=10_000) as station:
            await station.publish(CHANNEL, 1)
            for bad in (7, "\ud800"):
                with pytest.raises(hg.InvalidMessage):
                    await station.publish(CHANNEL, 2, key=bad)  # type: ignore[arg-type]
            with pytest.raises(hg.MessageTooLarge):
                await station.publish(CHANNEL, "x" * 10_000)
            with pytest.raises(hg.InvalidMessage):
                await station.publish(CHANNEL, float("nan"))
            await station.publish(CHANNEL, 3, key="k")

    asyncio.run(run())
    with hg.open(root) as station:
        assert [message.data for message in station.read(CHANNEL)] == [1, 3]
