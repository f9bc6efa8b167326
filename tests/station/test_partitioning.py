"""Which partition a message goes to."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import heliograph as hg
from heliograph.station.partitioning import partition_of
from tests.opening import Opener

CONCEPTS = Path(__file__).parent.parent.parent / "docs" / "concepts.md"
CHANNEL = "readings"


def test_the_vectors_of_the_document_hold() -> None:
    rows = re.findall(
        r"^\| `([^`]+)` \| `[0-9a-f]{8}` \| (\d+) \| (\d+) \| (\d+) \|$", CONCEPTS.read_text(), re.MULTILINE
    )
    assert len(rows) == 4
    for key, *wanted in rows:
        assert [partition_of(key, count) for count in (2, 8, 1000)] == [int(number) for number in wanted]


def test_a_key_always_lands_in_the_same_partition_in_order(opened: Opener) -> None:
    with opened() as station:
        station.create_channel(CHANNEL, partitions=4)
        for number in range(60):
            receipt = station.publish(CHANNEL, number, key=f"k{number % 7}")
            assert receipt.partition == partition_of(f"k{number % 7}", 4)
        station.publish_many(CHANNEL, [100, 101], key="k3")
        for key in range(7):
            found = [message for message in station.read(CHANNEL) if message.key == f"k{key}"]
            assert len({message.partition for message in found}) == 1
            assert [message.data for message in found] == sorted(message.data for message in found)


def test_keyless_messages_spread_evenly_over_all(opened: Opener) -> None:
    with opened() as station:
        station.create_channel(CHANNEL, partitions=5)
        single = Counter(station.publish(CHANNEL, number).partition for number in range(50))
        assert single == dict.fromkeys(range(5), 10)
        batches = Counter(station.publish_many(CHANNEL, [1, 2, 3])[0].partition for _ in range(20))
        assert batches == dict.fromkeys(range(5), 4)


def test_two_channels_do_not_take_turns_with_each_other(opened: Opener) -> None:
    with opened() as station:
        for name in ("a", "b"):
            station.create_channel(name, partitions=2)
        counts: dict[str, Counter[int]] = {"a": Counter(), "b": Counter()}
        for number in range(40):
            counts["ab"[number % 2]][station.publish("ab"[number % 2], number).partition] += 1
        assert counts == {"a": {0: 10, 1: 10}, "b": {0: 10, 1: 10}}


def test_a_publisher_notices_that_the_channel_grew(opened: Opener) -> None:
    for durability in ("always", "interval"):
        with opened(durability=durability) as station, opened() as other:
            name = f"grows-{durability}"
            for number in range(10):
                assert station.publish(name, number).partition == 0
            other.alter_channel(name, partitions=3)
            seen = Counter(station.publish(name, number).partition for number in range(31))
            assert set(seen) == {0, 1, 2}
            assert max(seen.values()) - min(seen.values()) <= 2


def test_a_batch_over_several_partitions_is_whole_or_not_there(opened: Opener, root: Path) -> None:
    with opened() as station:
        station.create_channel(CHANNEL, partitions=4)
        drafts = [hg.Draft(data=number, key=f"k{number}") for number in range(12)]
        receipts = station.publish_many(CHANNEL, drafts)
        assert [receipt.partition for receipt in receipts] == [partition_of(f"k{number}", 4) for number in range(12)]
        stored = {(message.partition, message.offset): message.data for message in station.read(CHANNEL)}
        assert {(receipt.partition, receipt.offset): number for number, receipt in enumerate(receipts)} == stored
        with station.producer("p") as producer:
            again = [producer.publish_many(CHANNEL, drafts, seq=1) for _ in range(2)]
        assert [receipt.duplicate for receipt in again[1]] == [True] * 12
        assert len(list(station.read(CHANNEL))) == 24
    assert list((root / "atomic").iterdir()) == []
