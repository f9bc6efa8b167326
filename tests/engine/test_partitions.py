"""The partitions a process has open: a bounded number, opened again when they are needed."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

import heliograph as hg
from heliograph.log.head import Fields, Head
from heliograph.log.news import News
from tests.faults import FaultyDisk
from tests.opening import Opener
from tests.proof.tools import checked_log, eventually
from tests.spread import put


@pytest.mark.parametrize("durability", ["always", "interval"])
def test_partitions_closed_for_room_are_opened_again_and_lose_nothing(
    opened: Opener, root: Path, durability: str
) -> None:
    with opened(open_partitions_max=4, durability=durability) as station:
        for lap in range(3):
            for number in range(20):
                assert station.publish(f"c{number}", lap).offset == lap
        assert station.stats().open_partitions <= 5
        for number in range(20):
            assert [message.data for message in station.read(f"c{number}")] == [0, 1, 2]
    for number in range(20):
        assert len(checked_log(root, f"c{number}")) == 3


def test_a_partition_somebody_waits_for_stays_open(opened: Opener) -> None:
    with opened(open_partitions_max=4) as station:
        got: list[int] = []
        with station.subscribe("watched", lambda message: got.append(message.data)):
            for number in range(30):
                station.publish(f"c{number}", 1)
            station.publish("watched", 7)
            eventually(lambda: got == [7])


def test_a_partition_is_synced_before_it_is_closed_for_room(opened: Opener) -> None:
    """Rule 6: the descriptor that wrote stays open until its sync returned, for to it a failure is reported."""
    disk = FaultyDisk()
    with opened(open_partitions_max=4, durability="os", disk=disk) as station:
        station.publish("first", 1)
        disk.recording = True
        for number in range(12):
            station.publish(f"c{number}", 1)
        synced = [at for at, (kind, path) in enumerate(disk.journal) if kind == "fdatasync" and "/first/" in path]
        assert synced, "closed without a sync"
        fields = station.engine.head_fields("first", 0)
        assert fields.synced == fields.written


def test_a_sync_that_fails_while_making_room_fences_and_is_not_forgotten(opened: Opener) -> None:
    disk = FaultyDisk()
    station = opened(open_partitions_max=4, durability="os", disk=disk)
    station.publish("first", 1)
    disk.fail("fdatasync", path="/first/")
    for number in range(12):
        station.publish(f"c{number}", 1)
    disk.heal()
    with pytest.raises(hg.Fenced):
        station.publish("first", 2)
    with pytest.raises(hg.StorageError):
        station.close()  # what was acknowledged without a sync may be lost: somebody has to hear it
    station.engine.close()


def test_many_threads_on_more_channels_than_fit_never_deadlock(opened: Opener) -> None:
    with opened(open_partitions_max=4) as station:

        def work(number: int) -> None:
            for n in range(20):
                station.publish(f"c{(number * 7 + n) % 15}", n)
                list(station.read(f"c{(number * 7 + n) % 15}", start="new"))

        threads = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(10)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive(), "deadlock"
        assert sum(info.next for info in station.channels()) == 200


def test_a_cursor_outlives_its_partition_s_files(opened: Opener) -> None:
    with opened(open_partitions_max=4, segment_bytes=4096) as station:
        for number in range(100):
            station.publish("read", {"n": number, "pad": "x" * 100})
        reading = station.read("read")
        got = [next(reading).data["n"]]
        for number in range(20):
            station.publish(f"c{number}", 1)
        got += [message.data["n"] for message in reading]
        assert got == list(range(100))


@pytest.mark.parametrize("durability", ["always", "interval"])
def test_readers_and_workers_wait_for_more_partitions_than_may_be_open(opened: Opener, durability: str) -> None:
    with opened(open_partitions_max=2, durability=durability) as station:
        station.create_channel("readings", partitions=5)
        with station.queue("readings", "work") as queue:
            following = station.read("readings", follow=True)
            for number in range(5):
                later = threading.Timer(0.2, put, (station, "readings", number, number))
                later.start()
                assert next(following).data == number
                [job] = queue.receive(wait_s=10)
                assert job.message.data == number
                job.ack()
                assert queue.receive(wait_s=0.05) == []
                later.join()


def test_what_a_read_only_station_closes_for_room_while_it_is_read_is_opened_again(
    opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened() as station:
        for name in ("one", "other"):
            station.publish(name, 1)
        with opened(read_only=True, open_partitions_max=1) as reading:
            load, closed = Head.load, []

            def load_late(head: Head) -> Fields:
                if not closed:  # another thread needs the room
                    closed.append(head)
                    reading.engine.limit("other")
                return load(head)

            monkeypatch.setattr(Head, "load", load_late)
            assert reading.engine.limit("one").next == 1
            assert closed


@pytest.mark.parametrize("way", ["one", "batch"])
def test_what_was_appended_is_not_appended_again_though_its_partition_is_closed_for_room_before_it_is_told(
    opened: Opener, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    with opened(open_partitions_max=1, durability="os") as station:
        station.publish("other", 0)
        station.publish("one", 0)
        tell, closed = News.tell, []

        def tell_late(news: News) -> None:
            if not closed:  # another thread needs the room
                closed.append(news)
                station.engine.limit("other")
            tell(news)

        monkeypatch.setattr(News, "tell", tell_late)
        if way == "one":
            assert station.publish("one", 1, headers={"the": "long way"}).offset == 1
        else:
            assert [receipt.offset for receipt in station.publish_many("one", [1])] == [1]
        assert closed
        assert [message.data for message in station.read("one")] == [0, 1]
