"""Numbered publishers: what is published again is recognised, whatever happened in between."""

from __future__ import annotations

import errno
import threading
from pathlib import Path
from typing import Any

import pytest

import heliograph as hg
from heliograph.engine.producers import Epoch, Producers
from tests.faults import Died, FaultyDisk
from tests.opening import Opener
from tests.proof.tools import Child

CHANNEL = "orders"


def data_of(station: hg.Station) -> list[Any]:
    return [message.data for message in station.read(CHANNEL)]


def test_a_number_that_is_stored_is_not_stored_again(opened: Opener) -> None:
    with opened() as station, station.producer("p") as producer:
        receipts = [producer.publish(CHANNEL, n) for n in (1, 2, 3)]
        again = producer.publish(CHANNEL, 3, seq=3)
        assert again.duplicate
        assert (again.id, again.offset) == (receipts[2].id, receipts[2].offset)
        older = producer.publish(CHANNEL, 1, seq=1)
        assert (older.duplicate, older.offset) == (True, -1)
        assert not producer.publish(CHANNEL, 4, seq=4).duplicate
        assert data_of(station) == [1, 2, 3, 4]


def test_numbers_live_in_the_envelope(opened: Opener) -> None:
    with opened() as station, station.producer("p") as producer:
        producer.publish(CHANNEL, 1)
        producer.publish_many(CHANNEL, [2, 3])
        seen = [message.envelope["producerseq"] for message in station.read(CHANNEL)]
        assert seen == ["1/1", "1/2", "1/3"]
        assert {message.envelope["producer"] for message in station.read(CHANNEL)} == {"p"}


@pytest.mark.parametrize("seq", [0, -1, True, 1.5, "2"])
def test_what_is_no_number_is_refused(opened: Opener, seq: Any) -> None:
    with opened() as station, station.producer("p") as producer:
        with pytest.raises(hg.OutOfSequence, match="begin at 1"):
            producer.publish(CHANNEL, 1, seq=seq)
        assert producer.last(CHANNEL) == 0


def test_a_number_beyond_the_next_is_refused_since_those_between_would_be_lost(opened: Opener) -> None:
    with opened() as station, station.producer("p") as producer:
        producer.publish(CHANNEL, 1)
        with pytest.raises(hg.OutOfSequence, match="the next is 2, not 4"):
            producer.publish(CHANNEL, 4, seq=4)
        with pytest.raises(hg.OutOfSequence):
            producer.publish_many(CHANNEL, [4, 5], seq=4)
        assert data_of(station) == [1]


def test_a_batch_that_was_stored_in_part_stores_the_rest(opened: Opener) -> None:
    with opened() as station, station.producer("p") as producer:
        producer.publish_many(CHANNEL, [1, 2])
        receipts = producer.publish_many(CHANNEL, [1, 2, 3, 4], seq=1)
        assert [receipt.duplicate for receipt in receipts] == [True, True, False, False]
        assert producer.publish_many(CHANNEL, [3, 4], seq=3) == [
            hg.Receipt("", CHANNEL, -1, -1, True),
            hg.Receipt(receipts[3].id, CHANNEL, 0, 3, True),
        ]
        assert data_of(station) == [1, 2, 3, 4]


@pytest.mark.parametrize("durability", ["always", "interval", "os"])
def test_a_restart_remembers(opened: Opener, durability: str) -> None:
    for life in range(3):
        with opened(durability=durability) as station, station.producer("p") as producer:
            assert producer.last(CHANNEL) == 2 * life
            for number in (2 * life, 2 * life + 1, 2 * life + 2):
                if number:
                    producer.publish(CHANNEL, number, seq=number)
    with opened() as station:
        assert data_of(station) == [1, 2, 3, 4, 5, 6]


def test_without_its_checkpoint_the_log_says_it(opened: Opener, root: Path) -> None:
    with opened() as station, station.producer("p") as producer:
        producer.publish_many(CHANNEL, list(range(500)))
    path = root / "producers" / "channels" / CHANNEL / "p.json"
    for content in (None, b"", b"{garbage", b'{"seq":3}'):
        path.unlink() if content is None else path.write_bytes(content)
        with opened() as station, station.producer("p") as producer:
            assert producer.last(CHANNEL) == 500


def test_closing_says_how_far_it_came_without_reading_what_it_published(
    opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened() as station:
        producer = station.producer("p")
        producer.publish_many(CHANNEL, list(range(1000)))
        monkeypatch.setattr(Producers, "_largest", lambda *_: pytest.fail("the log was read"))
        producer.close()
        monkeypatch.undo()
        state = station.engine.producers.states(CHANNEL)["p"]
        assert (state.seq, state.at, state.covered) == (1000, [0, 999], [1000])
        station.publish(CHANNEL, "of another")
        with station.producer("p") as again:
            assert again.last(CHANNEL) == 1000


def test_one_that_was_replaced_does_not_say_how_far_its_successor_came(opened: Opener) -> None:
    with opened() as station:
        zombie = station.producer("p")
        zombie.publish_many(CHANNEL, [1, 2])
        station.producer("p").publish_many(CHANNEL, [3, 4])  # and is never closed
        zombie.close()  # its last number is 2, and the log ends behind 4
        with station.producer("p") as last:
            assert last.last(CHANNEL) == 4


def test_a_checkpoint_covers_nothing_that_a_power_cut_could_take(opened: Opener) -> None:
    with opened(durability="os") as station:
        producer = station.producer("p")
        producer.publish_many(CHANNEL, [1, 2, 3])
        assert station.engine.limit(CHANNEL, synced=True).next == 0
        producer.close()
        assert station.engine.limit(CHANNEL, synced=True).next == 3


def test_retention_and_redaction_do_not_make_it_forget(opened: Opener) -> None:
    with opened(segment_bytes=4096) as station:
        station.create_channel(CHANNEL, retention_bytes=1)
        producer = station.producer("p")  # never closed: its checkpoint is of the beginning
        for number in range(40):
            producer.publish(CHANNEL, {"n": number, "pad": "x" * 200})
        last = producer.publish(CHANNEL, "the last")
        for number in range(20):
            station.publish(CHANNEL, {"n": number, "pad": "x" * 200})
        assert station.get(last.id) is not None
        station.redact(last.id)
        station.trim()
        assert station.channel(CHANNEL).first > last.offset
        with station.producer("p") as again:
            assert again.last(CHANNEL) == 41


def test_two_producers_do_not_disturb_one_another(opened: Opener) -> None:
    with opened() as station:
        producers = [station.producer(f"p{n}") for n in range(4)]

        def publish(producer: hg.Producer) -> None:
            for number in range(1, 51):
                producer.publish(CHANNEL, [producer.id, number], seq=number)
                producer.publish(CHANNEL, [producer.id, number], seq=number)

        threads = [threading.Thread(target=publish, args=(producer,)) for producer in producers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for producer in producers:
            assert [data[1] for data in data_of(station) if data[0] == producer.id] == list(range(1, 51))


def test_one_producer_in_several_threads_numbers_without_holes(opened: Opener) -> None:
    with opened() as station, station.producer("p") as producer:
        threads = [threading.Thread(target=lambda: [producer.publish(CHANNEL, n) for n in range(25)]) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        numbers = [message.envelope["producerseq"] for message in station.read(CHANNEL)]
        assert numbers == [f"1/{n}" for n in range(1, 101)]


def test_whoever_was_replaced_is_refused_at_every_door_and_stays_so(opened: Opener) -> None:
    with opened() as station:
        old = station.producer("p")
        old.publish(CHANNEL, 1)
        new = station.producer("p")
        for act in (
            lambda: old.publish(CHANNEL, 2),
            lambda: old.publish(CHANNEL, 1, seq=1),
            lambda: old.publish_many(CHANNEL, [2]),
            lambda: old.publish("elsewhere", 1),
            lambda: old.last(CHANNEL),
        ):
            with pytest.raises(hg.ProducerFenced, match="opened again elsewhere"):
                act()
        assert new.publish(CHANNEL, 2).offset == 1
        with pytest.raises(hg.ProducerFenced):
            old.publish(CHANNEL, 3)
        assert data_of(station) == [1, 2]


ZOMBIE = """
    import sys, heliograph as hg
    from heliograph.log import partition
    station = hg.open(sys.argv[1], name="host1", durability=sys.argv[2])
    producer = station.producer("p")
    producer.publish("orders", 1)
    def slow(real):
        def paused(*args):
            print("at the lock", flush=True)
            sys.stdin.readline()
            return real(*args)
        return paused
    partition._extend = slow(partition._extend)
    print("ready", flush=True)
    sys.stdin.readline()
    try:
        producer.publish("orders", 2, headers={"way": "long"} if sys.argv[3] == "long" else None)
        print("stored", flush=True)
    except hg.HeliographError as error:
        print(type(error).__name__, flush=True)
"""


@pytest.mark.parametrize("way", ["long", "short"])
@pytest.mark.parametrize("durability", ["always", "interval"])
def test_a_zombie_that_is_already_writing_is_waited_for(opened: Opener, root: Path, durability: str, way: str) -> None:
    """It passed the check under the lock: whoever replaces it must see what it writes."""
    with opened(durability=durability) as station, Child(ZOMBIE, root, durability, way) as zombie:
        assert zombie.line() == "ready"
        zombie.tell()
        assert zombie.line() == "at the lock"
        found: list[int] = []
        new = station.producer("p")
        thread = threading.Thread(target=lambda: found.append(new.last(CHANNEL)), daemon=True)
        thread.start()
        thread.join(0.3)
        assert thread.is_alive(), "it did not wait"
        zombie.tell()
        assert zombie.line() == "stored"
        thread.join(30)
        assert found == [2]
        assert new.publish(CHANNEL, 2, seq=2).duplicate
        assert data_of(station) == [1, 2]


@pytest.mark.parametrize("way", ["long", "short"])
@pytest.mark.parametrize("durability", ["always", "interval"])
def test_a_zombie_that_comes_later_is_refused(opened: Opener, root: Path, durability: str, way: str) -> None:
    with opened(durability=durability) as station, Child(ZOMBIE, root, durability, way) as zombie:
        assert zombie.line() == "ready"
        with station.producer("p") as new:
            assert new.publish(CHANNEL, 2).offset == 1
            zombie.tell()
            assert zombie.line() == "ProducerFenced"
        assert data_of(station) == [1, 2]


@pytest.mark.parametrize("way", ["long", "short", "batch"])
@pytest.mark.parametrize("durability", ["always", "interval"])
def test_a_zombie_that_slept_after_its_check_is_refused_under_the_lock(
    opened: Opener, monkeypatch: pytest.MonkeyPatch, durability: str, way: str
) -> None:
    with opened(durability=durability) as station:
        old = station.producer("p")
        old.publish(CHANNEL, 1)
        new = station.producer("p")
        monkeypatch.setattr(Epoch, "check", lambda self: None)
        assert new.publish(CHANNEL, 2).offset == 1
        with pytest.raises(hg.ProducerFenced):
            if way == "batch":
                old.publish_many(CHANNEL, [3, 4])
            else:
                old.publish(CHANNEL, 3, key="k", headers={"way": "long"} if way == "long" else None)
        assert new.publish(CHANNEL, 5).offset == 2
        assert data_of(station) == [1, 2, 5]


def test_too_many_producers_are_refused_loudly_and_forgetting_makes_room(opened: Opener) -> None:
    with opened(config={"publishing": {"producers_max": 2}}) as station:
        for name in ("a", "b"):
            station.producer(name).publish(CHANNEL, name)
        with pytest.raises(hg.Busy, match="remembers 2 producers"):
            station.producer("c").publish(CHANNEL, "c")
        station.producer("c").publish("other", "c")  # another channel has room of its own
        assert [(info.channel, info.producer) for info in station.producers()] == [
            (CHANNEL, "a"),
            (CHANNEL, "b"),
            ("other", "c"),
        ]
        station.forget_producer(CHANNEL, "a")
        station.producer("c").publish(CHANNEL, "c")
        with pytest.raises(hg.NotFound):
            station.forget_producer(CHANNEL, "a")
        assert data_of(station) == ["a", "b", "c"]


@pytest.mark.parametrize("name", ["..", "a/b", "", "a b", "\0", "x" * 300, None, 5])
def test_bad_names_are_refused(opened: Opener, name: Any) -> None:
    with opened() as station, pytest.raises(hg.InvalidName):
        station.producer(name)


def test_a_deleted_channel_begins_anew(opened: Opener) -> None:
    with opened() as station:
        with station.producer("p") as producer:
            producer.publish(CHANNEL, 1)
        station.delete_channel(CHANNEL)
        with station.producer("p") as producer:
            assert producer.last(CHANNEL) == 0
            assert producer.publish(CHANNEL, 1, seq=1).offset == 0


@pytest.mark.parametrize("durability", ["always", "interval"])
@pytest.mark.parametrize("deleted_by", ["itself", "another"])
def test_a_channel_that_is_deleted_under_a_producer_begins_anew(
    opened: Opener, deleted_by: str, durability: str
) -> None:
    """It is not told that messages are stored which went with the channel."""
    with opened(durability=durability) as station, opened() as other, station.producer("p") as producer:
        deleting = station if deleted_by == "itself" else other
        for number in (1, 2, 3):
            producer.publish(CHANNEL, number, seq=number)
        deleting.delete_channel(CHANNEL)
        assert [producer.publish(CHANNEL, number, seq=number).duplicate for number in (1, 2)] == [False, False]
        assert data_of(station) == [1, 2]
        deleting.delete_channel(CHANNEL)
        assert producer.last(CHANNEL) == 0
        assert not any(receipt.duplicate for receipt in producer.publish_many(CHANNEL, [1, 2], seq=1))
        deleting.delete_channel(CHANNEL)
        with pytest.raises(hg.OutOfSequence, match="the next is 1, not 3"):
            producer.publish(CHANNEL, 3, seq=3)


@pytest.mark.parametrize("way", ["short", "long", "batch"])
@pytest.mark.parametrize("durability", ["always", "interval"])
def test_numbers_begin_at_one_in_a_channel_that_was_made_anew(opened: Opener, way: str, durability: str) -> None:
    """Else there would be a hole, and nobody would remember them when retention takes their lines."""
    with opened(durability=durability) as station, opened() as other, station.producer("p") as producer:
        for _ in range(2):
            if way == "batch":
                producer.publish_many(CHANNEL, [1, 2])
            else:
                for number in (1, 2):
                    producer.publish(CHANNEL, number, headers={"way": "long"} if way == "long" else None)
            assert [message.envelope["producerseq"] for message in other.read(CHANNEL)] == ["1/1", "1/2"]
            assert [info.producer for info in station.producers(CHANNEL)] == ["p"]
            other.delete_channel(CHANNEL)


def test_closed_it_says_so_and_a_full_disk_is_no_reason_to_lose_count(opened: Opener) -> None:
    disk = FaultyDisk()
    with opened(disk=disk) as station:
        producer = station.producer("p")
        producer.publish(CHANNEL, 1)
        disk.fail("pwrite", errno.ENOSPC, path=".jsonl")
        with pytest.raises(hg.DiskFull):
            producer.publish(CHANNEL, 2)
        disk.heal()
        assert producer.publish(CHANNEL, 2).offset == 1
        producer.close()
        producer.close()
        with pytest.raises(hg.StationClosed):
            producer.publish(CHANNEL, 3)


def test_dying_at_any_call_a_retry_of_everything_stores_each_once(opened: Opener, root: Path) -> None:
    """The same numbers again after every death: each is in the log once, in order."""
    number, survived = 0, False
    while not survived:
        number += 1
        disk = FaultyDisk()
        station = opened(disk=disk, segment_bytes=4096)
        disk.kill_at(number)
        try:
            with station.producer("p") as producer:
                for seq in range(1, 7):
                    producer.publish(CHANNEL, {"n": seq, "pad": "x" * 900}, seq=seq)
                producer.publish_many(CHANNEL, [{"n": n, "pad": ""} for n in (7, 8)], seq=7)
            survived = not disk.dead
        except (Died, hg.OutOfSequence):
            assert disk.dead or number == 0
        station.engine.abandon()
        disk.bury()
        with opened() as after, after.producer("p") as producer:
            for seq in range(1, 9):
                producer.publish(CHANNEL, {"n": seq, "pad": "again"}, seq=seq)
            assert [data["n"] for data in data_of(after)] == list(range(1, 9))
            after.delete_channel(CHANNEL)
    assert number > 10


def test_a_restored_copy_remembers_what_was_trimmed_before(opened: Opener, root: Path, tmp_path: Path) -> None:
    from heliograph.admin.backup import backup
    from heliograph.admin.restore import restore

    with opened(segment_bytes=4096) as station:
        station.create_channel(CHANNEL, retention_bytes=1)
        with station.producer("p") as producer:
            for number in range(12):
                producer.publish(CHANNEL, {"n": number, "pad": "x" * 900})
        for number in range(40):
            station.publish(CHANNEL, {"n": number, "pad": "x" * 900})
        station.trim()
        station.publish(CHANNEL, "after")
        backup(station, tmp_path / "backup")
    restore(tmp_path / "backup", tmp_path / "copy")
    with opened(tmp_path / "copy") as copy, copy.producer("p") as producer:
        assert producer.last(CHANNEL) == 12


def test_a_restored_copy_remembers_what_was_redacted_before(opened: Opener, tmp_path: Path) -> None:
    """Or whoever publishes all of it again would bring back what was taken out for good."""
    from heliograph.admin.backup import backup
    from heliograph.admin.restore import restore

    with opened() as station:
        with station.producer("p") as producer:
            receipts = [producer.publish(CHANNEL, number) for number in range(3)]
        station.redact(receipts[-1].id)
        backup(station, tmp_path / "backup")
    restore(tmp_path / "backup", tmp_path / "copy")
    with opened(tmp_path / "copy") as copy, copy.producer("p") as producer:
        assert producer.publish(CHANNEL, 2, seq=3).duplicate
        assert data_of(copy) == [0, 1]


def test_a_log_that_lost_its_end_is_asked_again(opened: Opener, root: Path) -> None:
    """The checkpoint knows more than the log, which grew beyond it since."""
    with opened() as station, station.producer("p") as producer:
        for number in range(4):
            producer.publish(CHANNEL, number)
    segment = next((root / "channels" / CHANNEL / "0").glob("*.jsonl"))
    lines = segment.read_bytes().splitlines(keepends=True)
    segment.write_bytes(b"".join(lines[:2]))
    with opened() as station:
        for _ in range(5):
            station.publish(CHANNEL, "others")
        with station.producer("p") as producer:
            assert producer.last(CHANNEL) == 2


# -- batches whose keys lead to several partitions are atomic steps ----

DRAFTS = [hg.Draft(data=number, key=f"k{number}") for number in range(8)]


def replacing(station: hg.Station, monkeypatch: pytest.MonkeyPatch) -> list[hg.Producer]:
    """Somebody becomes the producer right after the record of its step was written."""
    steps, replaced = station.engine.steps, []
    real = steps._write

    def write(record: Any) -> Any:
        lock = real(record)
        replaced.append(station.producer("p"))
        return lock

    monkeypatch.setattr(steps, "_write", write)
    return replaced


def test_a_producer_that_is_replaced_after_its_record_was_written_withdraws_it(
    opened: Opener, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened() as station:
        station.create_channel(CHANNEL, partitions=4)
        old = station.producer("p")
        old.publish(CHANNEL, "first")
        replaced = replacing(station, monkeypatch)
        with pytest.raises(hg.ProducerFenced):
            old.publish_many(CHANNEL, DRAFTS)
        monkeypatch.undo()
        assert list((root / "atomic").iterdir()) == []
        assert replaced[0].last(CHANNEL) == 1
        assert [receipt.duplicate for receipt in replaced[0].publish_many(CHANNEL, DRAFTS, seq=2)] == [False] * 8
        assert sorted(map(str, data_of(station))) == sorted(["first", *map(str, range(8))])


def test_the_record_of_one_that_died_replaced_is_not_carried_out(
    opened: Opener, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its numbers belong to the new one by then."""
    with opened() as station:
        station.create_channel(CHANNEL, partitions=4)
        old = station.producer("p")
        old.last(CHANNEL)
        monkeypatch.setattr(station.engine.steps, "_append", lambda *_: (_ for _ in ()).throw(hg.DiskFull("no space")))
        with pytest.raises(hg.OutcomeUnknown):
            old.publish_many(CHANNEL, DRAFTS)
        assert len(list((root / "atomic").iterdir())) == 1
        monkeypatch.undo()
        new = station.engine.producers.begin("p")  # and has not looked at the channel yet
        station.trim()
        assert list((root / "atomic").iterdir()) == []
        assert data_of(station) == []
        assert station.engine.producers.last(CHANNEL, new).seq == 0


def test_whoever_replaces_a_producer_waits_for_its_step(
    opened: Opener, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened() as station:
        station.create_channel(CHANNEL, partitions=4)
        old, steps, reached, go = station.producer("p"), station.engine.steps, threading.Event(), threading.Event()
        old.last(CHANNEL)
        real = steps._append

        def append(record: Any, number: int) -> int:
            reached.set()
            assert go.wait(30)
            return real(record, number)

        monkeypatch.setattr(steps, "_append", append)
        working = threading.Thread(target=lambda: old.publish_many(CHANNEL, DRAFTS), daemon=True)
        working.start()
        assert reached.wait(30)
        new, found = station.producer("p"), []
        asking = threading.Thread(target=lambda: found.append(new.last(CHANNEL)), daemon=True)
        asking.start()
        asking.join(0.3)
        assert asking.is_alive(), "it did not wait"
        go.set()
        working.join(30)
        asking.join(30)
        assert found == [8]
