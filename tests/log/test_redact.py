"""Redaction: the message is gone for good, everything else stays where it is."""

from __future__ import annotations

import contextlib
import json
import shutil
import threading
from pathlib import Path

import pytest

import heliograph as hg
from heliograph.station import Station
from tests.faults import Died, FaultyDisk
from tests.opening import Opener
from tests.proof.tools import Child, checked_log, eventually

CHANNEL = "events"


def fill(station: Station, count: int = 20) -> list[hg.Receipt]:
    return [station.publish(CHANNEL, {"n": number, "secret": f"secret-{number}-"}) for number in range(count)]


def numbers(station: Station) -> list[int]:
    return [message.data["n"] for message in station.read(CHANNEL)]


def on_disk(root: Path) -> bytes:
    return b"".join(path.read_bytes() for path in root.rglob("*") if path.is_file())


@pytest.mark.parametrize("which", [0, 7, 19])
def test_a_redacted_message_is_nowhere_on_disk_and_offsets_stay(opened: Opener, root: Path, which: int) -> None:
    with opened() as station:
        receipts = fill(station)
        receipt = station.redact(receipts[which].id, reason="asked for")
        assert receipt.offset == which
        assert numbers(station) == [number for number in range(20) if number != which]
        assert [message.offset for message in station.read(CHANNEL)] == [n for n in range(20) if n != which]
        assert station.get(receipts[which].id) is None
        assert f"secret-{which}-".encode() not in on_disk(root)
        assert station.publish(CHANNEL, {"n": 20}).offset == 20
        assert station.channel(CHANNEL).next == 21
    with opened() as station:
        assert numbers(station) == [number for number in range(21) if number != which]
    records = [json.loads(line) for line in (root / "audit" / "audit.jsonl").read_text().splitlines()]
    (record,) = [record for record in records if record["event"] == "redacted"]
    assert (record["offset"], record["id"], record["reason"]) == (which, receipts[which].id, "asked for")


def test_nothing_is_told_missing_where_something_was_redacted(opened: Opener) -> None:
    with opened() as station:
        receipts = fill(station)
        station.redact(receipts[3].id)
        gaps: list[hg.Gap] = []
        got: list[int] = []
        with station.subscribe(
            CHANNEL, lambda message: got.append(message.offset), name="w", start="first", on_gap=gaps.append
        ) as subscription:
            eventually(lambda: subscription.position == 20)
        assert got == [number for number in range(20) if number != 3]
        assert not gaps


def test_every_message_can_be_redacted_and_the_log_goes_on(opened: Opener, root: Path) -> None:
    with opened() as station:
        for receipt in fill(station):
            station.redact(receipt.id)
        assert numbers(station) == []
        assert station.publish(CHANNEL, {"n": 20}).offset == 20
        assert numbers(station) == [20]
    assert b"secret-" not in on_disk(root)
    with opened() as station:
        assert numbers(station) == [20]
        assert station.publish(CHANNEL, {"n": 21}).offset == 21


def test_a_message_that_is_not_there_cannot_be_redacted(opened: Opener) -> None:
    with opened() as station:
        receipts = fill(station)
        with pytest.raises(hg.NotFound, match="no-such-id"):
            station.redact("no-such-id")
        station.redact(receipts[1].id)
        with pytest.raises(hg.NotFound):
            station.redact(receipts[1].id)


def test_an_audit_that_cannot_hold_the_reason_does_not_stop_a_redaction(opened: Opener) -> None:
    with opened() as station:
        receipts = fill(station)
        station.redact(receipts[1].id, reason="\ud800")
        assert 1 not in numbers(station)


def test_a_reader_in_the_middle_does_not_notice(opened: Opener) -> None:
    with opened(segment_bytes=4096) as station:
        receipts = fill(station, 100)
        reading = station.read(CHANNEL)
        got = [next(reading).offset]
        station.redact(receipts[90].id)
        station.redact(receipts[2].id)
        got += [message.offset for message in reading]
        assert set(range(100)) - {2, 90} <= set(got)
        assert got == sorted(got)


def test_subscribers_of_other_processes_read_on_and_do_not_get_it_later(opened: Opener, root: Path) -> None:
    code = """
        import sys, heliograph as hg
        station = hg.open(sys.argv[1], name="host1")
        reading = station.read("events", follow=True)
        print(next(reading).offset, flush=True)
        for message in reading:
            print(message.offset, flush=True)
    """
    with opened(segment_bytes=4096) as station:
        receipts = fill(station, 5)
        with Child(code, root) as reader:
            assert [int(reader.line()) for _ in range(5)] == list(range(5))
            more = fill(station, 5)
            assert [int(reader.line()) for _ in range(5)] == list(range(5, 10))
            station.redact(receipts[2].id)
            station.redact(more[4].id)
            station.publish(CHANNEL, {"n": 10})
            assert int(reader.line()) == 10


def test_publishing_goes_on_while_redacting(opened: Opener, root: Path) -> None:
    with opened(segment_bytes=4096) as station:
        receipts = fill(station, 60)
        stop = threading.Event()
        published: list[hg.Receipt] = []

        def publish() -> None:
            while not stop.is_set():
                published.append(station.publish(CHANNEL, {"n": -1, "secret": "none"}))

        thread = threading.Thread(target=publish)
        thread.start()
        for receipt in receipts[::7]:
            station.redact(receipt.id)
        stop.set()
        thread.join()
        ids = {message.id for message in station.read(CHANNEL)}
        assert {receipt.id for receipt in published} <= ids
        assert not {receipt.id for receipt in receipts[::7]} & ids
    checked_log(root, CHANNEL, holes=True)


def test_an_interrupted_redaction_is_finished_by_the_next_to_open(opened: Opener, root: Path, tmp_path: Path) -> None:
    """Once it is written down that a message shall go, it goes, whoever dies."""
    with opened() as station:
        receipts = fill(station)
    shutil.move(root, tmp_path / "saved")
    finished_by_recovery = 0
    for number in range(1, 60):
        shutil.copytree(tmp_path / "saved", root)
        disk = FaultyDisk()
        station = opened(disk=disk)
        disk.kill_at(number)
        with contextlib.suppress(Died):
            station.redact(receipts[3].id)
        finished = not disk.fired
        written_down = (root / "channels" / CHANNEL / "0" / "redact.json").exists()
        station._upkeep.close()
        station.engine.abandon()
        disk.bury()
        with opened() as again:
            got = numbers(again)
            assert [n for n in got if n != 3] == [n for n in range(20) if n != 3], disk.fired
            if written_down or finished:
                assert 3 not in got, disk.fired
                assert b"secret-3-" not in on_disk(root), disk.fired
                finished_by_recovery += written_down
            assert again.publish(CHANNEL, {"n": 20}).offset == 20
        shutil.rmtree(root)
        if finished:
            break
    assert finished
    assert finished_by_recovery > 1


def test_a_redaction_that_failed_is_finished_by_the_next_one(opened: Opener, root: Path) -> None:
    disk = FaultyDisk()
    with opened(disk=disk) as station:
        receipts = fill(station)
        station.engine.writer(CHANNEL, 0).rotate()
        disk.fail("pwrite", path=".jsonl")
        with pytest.raises(hg.StorageError):
            station.redact(receipts[3].id)
        disk.heal()
        station.redact(receipts[5].id)
        assert numbers(station) == [n for n in range(20) if n not in (3, 5)]
        assert b"secret-3-" not in on_disk(root)
