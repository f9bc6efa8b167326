"""A batch of plain data takes a short way; nothing but its speed must tell."""

from __future__ import annotations

import math
import threading
from typing import Any

import msgspec
import pytest

import heliograph as hg
from heliograph.limits import BATCH_MESSAGES_MAX
from heliograph.log import lines
from heliograph.station import Station
from heliograph.station.partitioning import partition_of
from tests.opening import Opener

pytestmark = pytest.mark.usefixtures("untraced")
CHANNEL = "readings"
BOTH = pytest.mark.parametrize("durability", ["always", "interval"])
MOVING = {"id", "time", "batch", "originseq", "crc"}


class Spy:
    """Sees which batches went the short way."""

    def __init__(self, station: Station, monkeypatch: pytest.MonkeyPatch) -> None:
        self.short: list[bool] = []
        self._really = station._publish_batch
        monkeypatch.setattr(station, "_publish_batch", self)

    def __call__(self, *arguments: Any) -> list[hg.Receipt] | None:
        receipts = self._really(*arguments)
        self.short.append(receipts is not None)
        return receipts


def envelopes(station: Station) -> list[dict[str, Any]]:
    found = list(station.read(CHANNEL))
    assert all(lines.intact(message.raw) for message in found)
    return [{name: value for name, value in message.envelope.items() if name not in MOVING} for message in found]


@BOTH
@pytest.mark.parametrize("key", [None, "", "50%", "größe", 'quo"ted\\', "line\nbreak", "%b%d#"])
@pytest.mark.parametrize(
    "batch", [[1], ["a", "b\n", "%b#"], [None, {"a": None}, 1.5, 2**70], [{"n": n} for n in range(12)]]
)
def test_both_ways_store_the_same_envelopes(
    opened: Opener, monkeypatch: pytest.MonkeyPatch, durability: str, key: str | None, batch: list[Any]
) -> None:
    with opened(durability=durability) as station:
        station.publish(CHANNEL, "makes the channel")
        spy = Spy(station, monkeypatch)
        receipts = station.publish_many(CHANNEL, batch, key=key)
        receipts += station.publish_many(CHANNEL, iter(batch), key=key)  # no list: the general way
        assert spy.short == [2**70 not in batch, False]
        _, *stored = station.read(CHANNEL)
        assert [(one.id, one.offset, one.partition) for one in stored] == [
            (one.id, one.offset, one.partition) for one in receipts
        ]
        half = len(batch)
        assert [list(one.envelope) for one in stored[:half]] == [list(one.envelope) for one in stored[half:]]
        _, *found = envelopes(station)
        assert found[:half] == found[half:]
        assert [one.data for one in stored[:half]] == batch
        marks = [one.envelope.get("batch") for one in stored]
        assert marks == ([None, None] if half == 1 else [f"1/{half}"] * half + [f"{1 + half}/{half}"] * half)
        times = [one.time for one in stored]
        assert len(set(times[:half])) == len(set(times[half:])) == 1


@BOTH
@pytest.mark.parametrize(
    ("batch", "key", "said"),
    [
        ([1, math.nan], None, "payload 1 of the batch: .*nan"),
        ([1, None, [math.inf]], None, "payload 2 of the batch: .*inf"),
        ([1, object()], None, "payload 1 of the batch: .*object"),
        ([1, msgspec.Raw(b'{"a":\n1}')], None, "payload 1 of the batch: .*newline"),
        ([1, "x" * 10_000], None, "10000"),
        ([1, 2], 7, "key"),
        ([1, 2], "\ud800", "key"),
    ],
)
def test_what_is_refused_is_refused_whole_once_and_for_the_same_reason(
    opened: Opener, durability: str, batch: list[Any], key: Any, said: str
) -> None:
    with opened(durability=durability, max_bytes=10_000) as station:
        station.publish(CHANNEL, 0)
        with pytest.raises(hg.InvalidMessage, match=said):
            station.publish_many(CHANNEL, batch, key=key)
        assert station.stats().channels[0].refused == 1
        station.publish_many(CHANNEL, [1, 2])
        assert [message.data for message in station.read(CHANNEL)] == [0, 1, 2]


def test_a_batch_of_more_bytes_than_a_message_may_have_is_none_too_large(opened: Opener) -> None:
    with opened(durability="os", max_bytes=10_000) as station:
        station.publish(CHANNEL, 0)
        station.publish_many(CHANNEL, ["x" * 5_000] * 10)
        assert station.channels()[0].messages == 11


def test_what_is_out_of_the_ordinary_goes_the_general_way(opened: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(durability="os") as station:
        station.publish(CHANNEL, 0)
        spy = Spy(station, monkeypatch)
        station.publish_many(CHANNEL, [1, b"bytes"])
        station.publish_many(CHANNEL, [2, hg.Draft(data=3, key="a")])
        station.publish_many(CHANNEL, [4], headers={"region": "eu"})  # not even asked
        with hg.context.correlation("order-17"):
            station.publish_many(CHANNEL, [5])
        assert station.publish_many(CHANNEL, []) == []
        with pytest.raises(hg.InvalidMessage, match=str(BATCH_MESSAGES_MAX)):
            station.publish_many(CHANNEL, [1] * (BATCH_MESSAGES_MAX + 1))
        assert spy.short == [False] * 5
        with hg.context.service("billing"):
            station.publish_many(CHANNEL, [6])  # the first of its service
            station.publish_many(CHANNEL, [7])
        assert spy.short[5:] == [False, True]
        stored = list(station.read(CHANNEL))
        assert [message.data for message in stored] == [0, 1, b"bytes", 2, 3, 4, 5, 6, 7]
        assert stored[6].correlationid == "order-17"
        assert [message.source for message in stored[-2:]] == ["host1/billing"] * 2


@BOTH
def test_batches_of_threads_stay_whole_and_in_their_partition(opened: Opener, durability: str) -> None:
    with opened(durability=durability) as station:
        station.create_channel(CHANNEL, partitions=3)
        keys = [None, *[f"key-{number}" for number in range(7)]]

        def work(key: str | None) -> None:
            for number in range(30):
                receipts = station.publish_many(CHANNEL, [number, number, number], key=key)
                assert len({receipt.partition for receipt in receipts}) == 1
                assert key is None or receipts[0].partition == partition_of(key, 3)
                assert [receipt.offset - receipts[0].offset for receipt in receipts] == [0, 1, 2]

        threads = [threading.Thread(target=work, args=(key,)) for key in keys]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        read = list(station.read(CHANNEL))
        assert len(read) == len({message.id for message in read}) == len(keys) * 90
        for partition in range(3):
            own = [message for message in read if message.partition == partition]
            for at in range(0, len(own), 3):
                assert len({(one.key, one.data, one.envelope["batch"]) for one in own[at : at + 3]}) == 1


@BOTH
def test_a_deleted_channel_is_made_again_and_more_partitions_are_seen(opened: Opener, durability: str) -> None:
    with opened(durability=durability) as station, opened(durability=durability) as other:
        station.publish_many(CHANNEL, [1, 2])
        station.publish_many(CHANNEL, [3, 4])
        other.delete_channel(CHANNEL)
        assert [receipt.offset for receipt in station.publish_many(CHANNEL, [5, 6])] == [0, 1]
        other.alter_channel(CHANNEL, partitions=8)
        for key in ("a", "b", "c"):
            assert station.publish_many(CHANNEL, [7], key=key)[0].partition == partition_of(key, 8)
    with pytest.raises(hg.StationClosed):
        station.publish_many(CHANNEL, [8])
