"""Reading from a time: exactly the first message that is not older, found through the index."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import heliograph as hg
from heliograph.clock import Clock
from heliograph.log import index
from heliograph.station import Station
from tests.faults import QuickDisk
from tests.opening import Opener

CHANNEL = "events"
NOON = datetime(2026, 11, 15, 12, 0, 0, tzinfo=UTC)
SECOND = timedelta(seconds=1)


class SetClock(Clock):
    """A wall clock that stands where it is put."""

    def __init__(self) -> None:
        self.now = NOON

    def time_ns(self) -> int:  # type: ignore[override]
        return int(self.now.timestamp()) * 1_000_000_000 + self.now.microsecond * 1000


class CountingDisk(QuickDisk):
    """Knows how many bytes were read through it."""

    def __init__(self) -> None:
        self.bytes_read = 0

    def pread(self, fd: int, length: int, position: int) -> bytes:  # type: ignore[override]
        data = QuickDisk.__mro__[1].pread(fd, length, position)
        self.bytes_read += len(data)
        return data


def first_at(station: Station, moment: datetime | str) -> int | None:
    found = next(iter(station.read(CHANNEL, start=moment)), None)
    return None if found is None else found.offset


def check_everywhere(station: Station, times: list[datetime]) -> None:
    """Against the definition: the first offset whose event time is not before the moment."""
    for moment in sorted({time + step for time in times for step in (timedelta(microseconds=-1), timedelta(0))}):
        expected = next((offset for offset, time in enumerate(times) if time >= moment), None)
        assert first_at(station, moment) == expected, moment
    assert first_at(station, max(times) + timedelta(microseconds=1)) is None


@pytest.mark.parametrize("compress", [False, True])
def test_the_first_message_that_is_not_older_is_found_across_segments(
    opened: Opener, root: Path, compress: bool
) -> None:
    clock = SetClock()
    with opened(segment_bytes=4096, compress=compress, clock=clock) as station:
        times = []
        for _ in range(60):
            clock.now += SECOND
            times += [clock.now] * 2  # two of one moment: the first counts
            station.publish(CHANNEL, "x" * 200)
            station.publish(CHANNEL, "x" * 200)
        station.trim()
        assert len(list((root / "channels" / CHANNEL / "0").glob("*.index"))) > 5
        check_everywhere(station, times)
        assert first_at(station, "2026-11-15T12:00:10Z") == 18
        assert first_at(station, "-5s") == 2 * 54
    with opened(read_only=True, clock=clock) as station:
        check_everywhere(station, times)


@pytest.mark.parametrize("seed", range(4))
def test_event_times_out_of_order_are_found_as_defined(opened: Opener, seed: int) -> None:
    with opened(segment_bytes=4096) as station:
        times = [NOON + SECOND * (number * (7919 + seed) % 83 + number // 7 * (seed % 2)) for number in range(80)]
        for start in range(0, 80, 5):
            drafts = [hg.Draft(data="x" * 250, time=time) for time in times[start : start + 5]]
            station.publish_many(CHANNEL, drafts)
        check_everywhere(station, times)
        assert [message.time for message in station.read(CHANNEL)] == times


def test_one_message_from_the_future_hides_nothing_behind_it(opened: Opener) -> None:
    with opened(segment_bytes=4096) as station:
        times = [NOON + SECOND * number for number in range(60)]
        times[10] = NOON + timedelta(days=1)
        for time in times:
            station.publish_many(CHANNEL, [hg.Draft(data="x" * 200, time=time)])
        check_everywhere(station, times)


def test_a_clock_that_steps_back_keeps_the_order_of_appends_and_seeking_right(opened: Opener, root: Path) -> None:
    clock = SetClock()
    times = []
    with opened(segment_bytes=4096, clock=clock) as station:
        for number in range(90):
            clock.now += SECOND if number % 30 else -timedelta(seconds=50)
            times.append(clock.now)
            station.publish(CHANNEL, "x" * 250)
        messages = list(station.read(CHANNEL))
        assert [message.time for message in messages] == times
        assert times != sorted(times)
        check_everywhere(station, times)
        for message in messages[::9]:
            found = station.get(message.id, CHANNEL)
            assert found is not None
            assert found.offset == message.offset
    paths = sorted((root / "channels" / CHANNEL / "0").glob("*.index"))
    entries = [entry for path in paths for entry in index.chain(path.read_bytes(), int(path.stem))]
    appended = [entry.append_us for entry in entries]
    assert len(appended) > 5
    assert appended == sorted(appended)
    assert [entry.peak_us for entry in entries] == sorted(entry.peak_us for entry in entries)
    clock.now -= timedelta(hours=1)
    with opened(segment_bytes=4096, clock=clock) as station:  # a clock that was set back between two runs
        station.publish(CHANNEL, "late")
        times.append(clock.now)
        check_everywhere(station, times)


@pytest.mark.parametrize("durability", ["always", "interval"])
def test_what_was_made_before_something_older_was_appended_is_found(opened: Opener, durability: str) -> None:
    """As by a publisher that waits for the lock while another one appends what was made long ago."""
    clock = SetClock()
    with opened(clock=clock, durability=durability) as station:
        times = [NOON - timedelta(hours=1)]
        station.publish_many(CHANNEL, [hg.Draft(data="older", time=times[0])])
        clock.now -= timedelta(minutes=1)
        for _ in range(30):
            station.publish(CHANNEL, "x" * 2000)
            times.append(clock.now)
            clock.now += SECOND
        check_everywhere(station, times)


@pytest.mark.parametrize("harm", ["lost", "emptied", "damaged", "from an older state"])
def test_seeking_is_right_whatever_happened_to_the_index(opened: Opener, root: Path, harm: str) -> None:
    times = [NOON + SECOND * number for number in range(80)]
    with opened(segment_bytes=8192) as station:
        for time in times:
            station.publish_many(CHANNEL, [hg.Draft(data="x" * 250, time=time)])
    for path in sorted((root / "channels" / CHANNEL / "0").glob("*.index"))[:3]:
        data = path.read_bytes()
        path.unlink()
        if harm != "lost":
            path.write_bytes({"emptied": b"", "damaged": b"\x5a" * len(data)}.get(harm, data[: len(data) // 128 * 64]))
    with opened() as station:
        check_everywhere(station, times)


def test_a_time_is_found_through_the_index_and_not_by_scanning(opened: Opener) -> None:
    times = [NOON + SECOND * number for number in range(3000)]
    with opened(segment_bytes=100_000) as station:
        for start in range(0, 3000, 10):
            drafts = [hg.Draft(data="x" * 700, time=time) for time in times[start : start + 10]]
            station.publish_many(CHANNEL, drafts)
        total = station.channel(CHANNEL).bytes
        assert total > 2_500_000
    disk = CountingDisk()
    with opened(disk=disk, read_only=True) as station:
        for wanted in (0, 1500, 2999):
            disk.bytes_read = 0
            assert first_at(station, times[wanted]) == wanted
            assert 0 < disk.bytes_read < 400_000, f"{disk.bytes_read} of {total} bytes were read for {wanted}"


def test_only_ascii_digits_are_numbers(opened: Opener) -> None:
    station = opened()
    station.publish(CHANNEL, 0)
    for wrong in ("٠", "０", "-٣m"):
        with pytest.raises(hg.ConfigError, match="is not a start"):
            first_at(station, wrong)
        with pytest.raises(hg.ConfigError, match="is not a start"):
            station.subscribe("events.>", print, name="s", start=wrong)
