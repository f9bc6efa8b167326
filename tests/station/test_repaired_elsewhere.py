"""A process dies holding the lock, and another one repairs the log: those that live on have its files open."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from heliograph.admin.verify import verify
from heliograph.disk import Disk
from heliograph.limits import INDEX_STRIDE_BYTES
from heliograph.log.partition import Partition
from heliograph.station import Station
from tests.opening import Opener

CHANNEL = "events"
LARGE = "x" * INDEX_STRIDE_BYTES  # each of these has an entry of the index for itself


def die_holding_the_lock(station: Station) -> None:
    """Whoever takes the lock next finds that its holder did not give it back."""
    writer = station.engine.writer(CHANNEL, 0)
    partition = writer if isinstance(writer, Partition) else writer.partition
    with partition.mutex:
        partition._enter()
        partition._disown()


@pytest.mark.parametrize("durability", ["always", "interval"])
def test_the_index_goes_on_in_the_file_that_the_repair_made(opened: Opener, durability: str) -> None:
    with opened(durability=durability) as one, opened(durability=durability) as two:
        expected: list[Any] = []
        got: list[Any] = []

        def publish(station: Station, *data: Any) -> None:
            for each in data:
                station.publish(CHANNEL, each)
            expected.extend(data)

        publish(one, LARGE, 1)
        publish(two, LARGE, 2)
        subscription = two.subscribe(CHANNEL, lambda message: got.append(message.data), start="first")
        die_holding_the_lock(one)
        publish(one, 3)  # repairs
        publish(two, LARGE, 4, LARGE)
        publish(one, LARGE)
        until = time.monotonic() + 30
        while len(got) < len(expected) and time.monotonic() < until:
            time.sleep(0.01)
        assert got == expected
        subscription.close()
        report = verify(one)
        assert report.ok, report
        assert [message.data for message in two.read(CHANNEL)] == expected


@pytest.mark.parametrize("durability", ["always", "interval"])
def test_nobody_appends_to_a_segment_that_a_repair_wrote_anew(opened: Opener, root: Path, durability: str) -> None:
    """The new one may be as long as the old one, which somebody has open and nobody will ever read."""
    with opened(durability=durability) as one, opened(durability=durability) as two:
        one.publish(CHANNEL, 1)
        two.publish(CHANNEL, 2)
        segment = root / "channels" / CHANNEL / "0" / f"{0:020d}.jsonl"

        def write_anew(partition: Partition) -> None:
            Disk().replace_file(segment, segment.read_bytes())
            partition._open_segment(0)

        two.engine.write(CHANNEL, 0, lambda partition: partition.change(write_anew))
        one.publish(CHANNEL, 3)
        two.publish(CHANNEL, 4)
        assert [message.data for message in one.read(CHANNEL)] == [1, 2, 3, 4]
    with opened() as station:
        assert [message.data for message in station.read(CHANNEL)] == [1, 2, 3, 4]
        assert verify(station).ok
