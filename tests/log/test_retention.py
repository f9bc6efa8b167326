"""Retention: what may go, what must stay, and that deleting unread data is never silent."""

from __future__ import annotations

import json
import logging
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import heliograph as hg
from heliograph.log.retention import Rules, Sealed, plan
from heliograph.station import Station
from tests.faults import SteppedClock
from tests.opening import Opener
from tests.proof.tools import Child, eventually

CHANNEL = "events"
SEGMENT = 4096
PAD = "x" * 500  # about six messages a segment


def fill(station: Station, count: int = 60, start: int = 0) -> None:
    for number in range(start, start + count):
        station.publish(CHANNEL, {"n": number, "pad": PAD})


def left(station: Station) -> list[int]:
    return [message.data["n"] for message in station.read(CHANNEL)]


def durable(station: Station, name: str, at: int = 0) -> None:
    """A subscription with a position, and nobody behind it."""
    station.subscribe(CHANNEL, print, name=name, start="first", paused=True).close()
    station.seek(CHANNEL, name, at)


def audited(root: Path) -> list[dict[str, Any]]:
    lines = (root / "audit" / "audit.jsonl").read_text().splitlines()
    return [record for record in map(json.loads, lines) if record["event"] == "trimmed"]


# -- the decision ----


SEALED = st.lists(st.tuples(st.integers(1, 20), st.integers(1, 1000)), max_size=12)
POSITIONS = st.dictionaries(st.sampled_from("abc"), st.integers(0, 300), max_size=3)


@given(SEALED, POSITIONS, st.integers(0, 5000), st.integers(0, 100), st.booleans(), st.integers(0, 3000))
def test_a_plan_deletes_a_prefix_and_names_everybody_who_loses_something(
    sizes: list[tuple[int, int]], positions: dict[str, int], bytes_max: int, age: int, once_read: bool, holdback: int
) -> None:
    sealed, offset = [], 0
    for number, (count, size) in enumerate(sizes):
        sealed.append(Sealed(offset, offset + count, size, number))
        offset += count
    made = plan(sealed, 100, Rules(bytes_max, age, once_read, holdback), positions, now_us=len(sizes))
    assert made.delete == sealed[: len(made.delete)]
    end = made.delete[-1].next if made.delete else 0
    assert made.unread == {name: end - at for name, at in positions.items() if at < end}
    if made.unread:
        assert holdback, "unread data is held back for ever unless a cap is set"
    if not (bytes_max or age or once_read):
        assert not made.delete
    if once_read and not (bytes_max or age or holdback):
        assert end <= min(positions.values(), default=0)


def test_nothing_goes_without_a_rule() -> None:
    assert plan([Sealed(0, 10, 10**9, 0)], 0, Rules(), {}, now_us=10**18).delete == []


def test_once_read_needs_a_reader() -> None:
    """Without any subscription nothing was read: nothing goes."""
    assert plan([Sealed(0, 10, 100, 0)], 0, Rules(once_read=True), {}, now_us=0).delete == []


# -- the doing ----


def test_by_bytes_the_oldest_go_and_the_newest_stay(opened: Opener, root: Path) -> None:
    with opened(segment_bytes=SEGMENT, retention_bytes=12_000) as station:
        fill(station)
        before = station.channel(CHANNEL)
        (trimmed,) = station.trim()
        after = station.channel(CHANNEL)
        assert after.bytes <= 12_000 + SEGMENT
        assert (after.first, after.next) == (trimmed.first, 60)
        assert trimmed.messages == trimmed.first
        assert trimmed.bytes == before.bytes - after.bytes
        assert left(station) == list(range(trimmed.first, 60))
        assert trimmed.unread == {}
        assert station.publish(CHANNEL, {"n": 60}).offset == 60
        assert station.trim() == []
        assert station.stats().trimmed_messages == trimmed.messages
    assert audited(root)[0]["messages"] == trimmed.messages
    with opened() as station:
        assert left(station) == list(range(trimmed.first, 61))
        assert station.channel(CHANNEL).first == trimmed.first


def test_by_age_also_the_active_segment_is_sealed_and_goes(opened: Opener) -> None:
    clock = SteppedClock()
    with opened(segment_bytes=SEGMENT, retention_age_s=3600, clock=clock) as station:
        fill(station, 20)
        assert station.trim() == []
        clock.step_us = 3601 * 1_000_000
        fill(station, 3, 20)
        station.trim()
        clock.step_us += 1
        station.trim()
        assert left(station)[-3:] == [20, 21, 22]
        assert len(left(station)) < 10
        clock.step_us += 3601 * 1_000_000
        station.trim()
        station.trim()
        assert left(station) == []
        assert station.publish(CHANNEL, {"n": 23}).offset == 23


def test_segments_rotate_by_age(opened: Opener) -> None:
    clock = SteppedClock()
    with opened(segment_age_s=60, clock=clock) as station:
        station.publish(CHANNEL, 1)
        clock.step_us = 61 * 1_000_000
        station.publish(CHANNEL, 2)
        assert station.channel(CHANNEL).segments == 2
        clock.step_us += 61 * 1_000_000
        station.trim()
        assert station.channel(CHANNEL).segments == 3
        assert [message.data for message in station.read(CHANNEL)] == [1, 2]


def test_a_clock_that_steps_back_deletes_nothing_early(opened: Opener) -> None:
    clock = SteppedClock()
    with opened(segment_bytes=SEGMENT, retention_age_s=3600, clock=clock) as station:
        fill(station, 20)
        clock.step_us = -10 * 3600 * 1_000_000
        fill(station, 20, 20)
        assert station.trim() == []
        assert left(station) == list(range(40))


def test_once_every_subscription_has_read_it(opened: Opener) -> None:
    with opened(segment_bytes=SEGMENT, retention_once_read=True) as station:
        fill(station)
        assert station.trim() == []
        durable(station, "fast", 60)
        durable(station, "slow", 25)
        (trimmed,) = station.trim()
        assert 0 < trimmed.first <= 25
        assert trimmed.unread == {}
        assert left(station) == list(range(trimmed.first, 60))
        station.forget(CHANNEL, "slow")
        (trimmed,) = station.trim()
        assert trimmed.first > 25


def test_a_subscription_holds_deletion_back_whether_it_is_live_or_not(opened: Opener) -> None:
    with opened(segment_bytes=SEGMENT, retention_bytes=8000) as station:
        fill(station)
        durable(station, "slow", 13)
        (trimmed,) = station.trim()
        assert trimmed.first <= 13
        assert left(station)[0] <= 13
        assert station.trim() == []


def test_a_subscription_that_has_not_saved_anything_yet_holds_back_too(opened: Opener) -> None:
    with opened(segment_bytes=SEGMENT, retention_once_read=True, position_flush_ms=60_000) as station:
        fill(station)
        entered, leave = threading.Event(), threading.Event()

        def handle(message: hg.Message) -> None:
            entered.set()
            leave.wait(30)

        with station.subscribe(CHANNEL, handle, name="stuck", start="first"):
            assert entered.wait(30)
            durable(station, "fast", 60)
            assert station.trim() == []
            leave.set()


def test_the_cap_on_holding_back_is_obeyed_counted_audited_logged_and_told(
    opened: Opener, root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with opened(segment_bytes=SEGMENT, retention_bytes=8000, holdback_bytes=16_000) as station:
        fill(station)
        durable(station, "slow", 10)
        durable(station, "fast", 60)
        with caplog.at_level(logging.WARNING):
            (trimmed,) = station.trim()
        assert trimmed.first > 10
        assert trimmed.unread == {"slow": trimmed.first - 10}
        assert station.stats().trimmed_unread == trimmed.first - 10
        assert audited(root)[0]["unread"] == {"slow": trimmed.first - 10}
        assert "not read" in caplog.text
        assert station.channel(CHANNEL).bytes >= 8000
        gaps: list[hg.Gap] = []
        got: list[int] = []
        with station.subscribe(
            CHANNEL, lambda message: got.append(message.data["n"]), name="slow", on_gap=gaps.append
        ) as subscription:
            eventually(lambda: subscription.position == 60)
            assert subscription.stats().missing == trimmed.first - 10
        assert got == list(range(trimmed.first, 60))
        assert [(gap.first, gap.next) for gap in gaps] == [(10, trimmed.first)]
        assert "retention" in gaps[0].reason


def test_a_live_subscriber_that_is_overtaken_is_told_of_the_gap_and_goes_on(opened: Opener) -> None:
    with opened(segment_bytes=SEGMENT, retention_bytes=8000, holdback_bytes=1) as station:
        fill(station, 3)
        entered, leave = threading.Event(), threading.Event()
        got: list[int] = []
        gaps: list[hg.Gap] = []

        def handle(message: hg.Message) -> None:
            got.append(message.data["n"])
            entered.set()
            leave.wait(30)

        with station.subscribe(CHANNEL, handle, name="slow", start="first", on_gap=gaps.append) as subscription:
            assert entered.wait(30)
            fill(station, 400, 3)
            station.trim()
            first = station.channel(CHANNEL).first
            assert first > 100
            leave.set()
            eventually(lambda: subscription.position == 403)
        missing = {offset for gap in gaps for offset in range(gap.first, gap.next)}
        assert not missing & set(got)
        assert missing | set(got) == set(range(403))


def test_a_reader_in_the_middle_goes_on_and_is_told(opened: Opener) -> None:
    with opened(segment_bytes=SEGMENT, retention_bytes=8000) as station:
        fill(station, 400)
        gaps: list[hg.Gap] = []
        reading = station.read(CHANNEL, on_gap=gaps.append)
        got = [next(reading).data["n"] for _ in range(3)]
        station.trim()
        got += [message.data["n"] for message in reading]
        missing = {offset for gap in gaps for offset in range(gap.first, gap.next)}
        assert sorted(missing | set(got)) == list(range(400))
        assert not missing & set(got)
        assert got == sorted(got)


def test_a_reader_in_another_process_goes_on_and_is_told(opened: Opener, root: Path) -> None:
    code = """
        import sys, heliograph as hg
        station = hg.open(sys.argv[1], name="host1")
        gaps = []
        reading = station.read("events", on_gap=gaps.append)
        got = [next(reading).data["n"]]
        print("reading", flush=True)
        sys.stdin.readline()
        got += [message.data["n"] for message in reading]
        missing = {o for gap in gaps for o in range(gap.first, gap.next)}
        print(sorted(missing | set(got)) == list(range(400)) and not missing & set(got), len(missing) > 0, flush=True)
    """
    with opened(segment_bytes=SEGMENT, retention_bytes=8000) as station:
        fill(station, 400)
        with Child(code, root) as reader:
            assert reader.line() == "reading"
            station.trim()
            reader.tell()
            assert reader.line() == "True True"


def test_offsets_before_the_beginning_and_times_before_it_lead_to_the_beginning(opened: Opener) -> None:
    with opened(segment_bytes=SEGMENT, retention_bytes=8000) as station:
        fill(station)
        station.trim()
        first = station.channel(CHANNEL).first
        assert next(iter(station.read(CHANNEL, start="first"))).offset == first
        assert next(iter(station.read(CHANNEL, start="2020-01-01T00:00:00Z"))).offset == first
        gaps: list[hg.Gap] = []
        assert next(iter(station.read(CHANNEL, start=0, on_gap=gaps.append))).offset == first
        assert [(gap.first, gap.next) for gap in gaps] == [(0, first)]


def test_a_channel_s_own_settings_win_over_the_station_s(opened: Opener) -> None:
    with opened(segment_bytes=SEGMENT, retention_bytes=8000) as station:
        station.create_channel(CHANNEL, retention_bytes=10**9)
        fill(station)
        assert station.trim() == []
        station.alter_channel(CHANNEL, retention_bytes=None)
        assert station.trim()


def test_whoever_trims_does_it_for_all_processes(opened: Opener, root: Path) -> None:
    with opened(segment_bytes=SEGMENT, retention_bytes=8000) as first, opened() as second:
        fill(first)
        assert len(left(second)) == 60
        (trimmed,) = first.trim()
        assert second.channel(CHANNEL).first == trimmed.first
        assert left(second) == list(range(trimmed.first, 60))
        assert second.publish(CHANNEL, {"n": 60}).offset == 60
        assert left(first)[-1] == 60


def test_a_damaged_position_keeps_its_channel_s_data_and_no_other_s(opened: Opener, root: Path) -> None:
    with opened(segment_bytes=SEGMENT, retention_once_read=True) as station:
        fill(station)
        durable(station, "fast", 60)
        durable(station, "broken", 0)
        for _ in range(60):
            station.publish("other", {"pad": PAD})
        station.subscribe("other", print, name="w", start="new", paused=True).close()
        (root / "subscriptions" / CHANNEL / "broken" / "0.json").write_bytes(b"garbage")
        with pytest.raises(hg.Damaged, match="seek"):
            station.trim()
        assert left(station) == list(range(60))
        assert station.channel("other").first > 0
        station.seek(CHANNEL, "broken", 60)
        assert station.trim()


def test_upkeep_runs_by_itself(opened: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    from heliograph.station import upkeep

    monkeypatch.setattr(upkeep, "INTERVAL_S", 0.02)
    with opened(segment_bytes=SEGMENT, retention_bytes=8000) as station:
        fill(station)
        eventually(lambda: station.channel(CHANNEL).first > 0)
        assert left(station)[-1] == 59
