"""Looking a message up by its id: its UUIDv7 says when, so little is read; other ids are found all the same."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import heliograph as hg
from heliograph.message import new_id
from heliograph.station import Station
from tests.faults import SteppedClock
from tests.opening import Opener
from tests.station.test_seek_by_time import CountingDisk

CHANNEL = "events"


def offset_of(station: Station, id: str, channel: str | None = CHANNEL) -> int | None:
    found = station.get(id, channel)
    if found is None:
        return None
    assert found.id == id
    return found.offset


@pytest.mark.parametrize("compress", [False, True])
def test_every_message_is_found_by_its_id(opened: Opener, root: Path, compress: bool) -> None:
    with opened(segment_bytes=8192, compress=compress) as station:
        receipts = [station.publish(CHANNEL, {"n": number, "pad": "x" * 300}) for number in range(100)]
        station.trim()
        for receipt in receipts:
            assert offset_of(station, receipt.id) == receipt.offset
    with opened(read_only=True) as station:
        assert offset_of(station, receipts[50].id) == 50


def test_what_is_not_there_is_none(opened: Opener) -> None:
    with opened() as station:
        station.publish(CHANNEL, 1)
        for id in ("", "nobody", str(uuid.uuid4()), new_id(), "0" * 36, "7" * 36, 'quo"te', "\\", "ü"):
            assert station.get(id, CHANNEL) is None
            assert station.get(id) is None
        with pytest.raises(hg.NotFound):
            station.get("nobody", "nowhere")


@pytest.mark.parametrize("id", ["order-4711", str(uuid.UUID(int=77, version=4)), "a", "0192-7", "%41", "<&>"])
def test_a_foreign_id_is_found_by_looking_at_everything(opened: Opener, id: str) -> None:
    with opened(segment_bytes=4096) as station:
        for number in range(60):
            station.publish(CHANNEL, "x" * 200, id=id if number == 20 else None)
        assert offset_of(station, id) == 20


def test_an_old_id_in_a_new_message_is_found(opened: Opener) -> None:
    """Messages come from elsewhere, too, long after they were made."""
    old = "01800000-0000-7000-8000-000000000001"
    new = "0fff0000-0000-7000-8000-000000000001"
    with opened(segment_bytes=4096) as station:
        for number in range(60):
            station.publish(CHANNEL, "x" * 200, id={20: old, 30: new}.get(number))
        assert offset_of(station, old) == 20
        assert offset_of(station, new) == 30


def test_an_id_inside_of_a_payload_is_not_the_message(opened: Opener) -> None:
    with opened() as station:
        id = new_id()
        station.publish(CHANNEL, {"id": id})
        station.publish(CHANNEL, {"original": {"id": id, "time": "2026-01-01T00:00:00Z"}})
        assert station.get(id) is None
        assert station.publish(CHANNEL, {"id": "another"}, id=id).offset == 2
        assert offset_of(station, id) == 2


def test_all_channels_are_searched_unless_one_is_named(opened: Opener) -> None:
    with opened() as station:
        receipts = {name: station.publish(name, name) for name in ("a", "b", "c")}
        for name, receipt in receipts.items():
            found = station.get(receipt.id)
            assert found is not None
            assert (found.channel, found.data) == (name, name)
        assert station.get(receipts["a"].id, "b") is None


def test_a_trimmed_or_deleted_message_is_not_found(opened: Opener) -> None:
    with opened(segment_bytes=4096, retention_bytes=4096) as station:
        receipts = [station.publish(CHANNEL, "x" * 200) for _ in range(60)]
        station.trim()
        assert offset_of(station, receipts[0].id) is None
        assert offset_of(station, receipts[-1].id) == 59
        station.delete_channel(CHANNEL)
        assert station.get(receipts[-1].id) is None


@pytest.fixture
def hours(opened: Opener, monkeypatch: pytest.MonkeyPatch) -> list[hg.Receipt]:
    """A log of some megabytes, written over many hours; station closed."""
    clock = SteppedClock()
    receipts: list[hg.Receipt] = []
    with opened(segment_bytes=100_000, clock=clock) as station:
        for hour in range(300):
            clock.step_us = hour * 3_600_000_000
            made_ms = clock.time_ns() // 1_000_000
            ids = [f"{made_ms >> 16:08x}-{made_ms & 0xFFFF:04x}-7000-8000-{number:012x}" for number in range(10)]
            receipts += station.publish_many(CHANNEL, [hg.Draft(data="x" * 700, id=id) for id in ids])
        assert station.channel(CHANNEL).bytes > 2_500_000
    return receipts


def test_an_id_that_says_when_is_found_without_reading_the_rest(opened: Opener, hours: list[hg.Receipt]) -> None:
    disk = CountingDisk()
    with opened(disk=disk, read_only=True) as station:
        for wanted in (0, 1500, 2999):
            disk.bytes_read = 0
            assert offset_of(station, hours[wanted].id) == wanted
            assert 0 < disk.bytes_read < 600_000, f"{disk.bytes_read} bytes were read to find {wanted}"


@pytest.mark.parametrize("days", [-1000, 100_000], ids=["of long ago", "of the far future"])
def test_event_times_that_are_not_of_today_do_not_make_lookups_slow(opened: Opener, days: int) -> None:
    clock = SteppedClock()
    moment = datetime.now(UTC) + timedelta(days=days)
    receipts: list[hg.Receipt] = []
    with opened(segment_bytes=100_000, clock=clock) as station:
        for hour in range(300):
            clock.step_us = hour * 3_600_000_000
            made_ms = clock.time_ns() // 1_000_000
            ids = [f"{made_ms >> 16:08x}-{made_ms & 0xFFFF:04x}-7000-8000-{number:012x}" for number in range(10)]
            receipts += station.publish_many(CHANNEL, [hg.Draft(data="x" * 700, id=id, time=moment) for id in ids])
    disk = CountingDisk()
    with opened(disk=disk, read_only=True) as station:
        for wanted in (0, 1500, 2999):
            disk.bytes_read = 0
            assert offset_of(station, receipts[wanted].id) == wanted
            assert 0 < disk.bytes_read < 1_000_000, f"{disk.bytes_read} bytes were read to find {wanted}"
