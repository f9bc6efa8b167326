"""Retention: what goes, what stays, and that nobody loses an unread message without being told."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

import heliograph as hg
from heliograph.log.retention import Rules, Sealed, plan
from heliograph.station import Station
from tests.faults import SteppedClock
from tests.opening import Opener
from tests.proof.tools import eventually

CHANNEL = "events"
HOUR_US = 3_600_000_000

# -- the decision, without a disk ----

OLD = [Sealed(0, 10, 100, 1_000), Sealed(10, 20, 100, 2_000), Sealed(20, 30, 100, 3_000)]


def bases(rules: Rules, positions: dict[str, int] | None = None, now_us: int = 4_000, active: int = 50) -> list[int]:
    return [segment.base for segment in plan(OLD, active, rules, positions or {}, now_us).delete]


def test_without_rules_nothing_goes() -> None:
    assert bases(Rules()) == []
    assert bases(Rules(), {"a": 30}) == []
    assert bases(Rules(holdback_bytes=1), {"a": 0}) == []


@pytest.mark.parametrize(
    ("bytes_max", "gone"), [(350, []), (349, [0]), (250, [0]), (249, [0, 10]), (149, [0, 10, 20]), (1, [0, 10, 20])]
)
def test_by_bytes_just_enough_of_the_oldest_go(bytes_max: int, gone: list[int]) -> None:
    assert bases(Rules(bytes_max=bytes_max)) == gone


@pytest.mark.parametrize(("age_us", "gone"), [(3_000, []), (2_999, [0]), (1_999, [0, 10]), (1, [0, 10, 20])])
def test_by_age_a_segment_goes_when_its_newest_line_is_too_old(age_us: int, gone: list[int]) -> None:
    assert bases(Rules(age_us=age_us)) == gone


@pytest.mark.parametrize(
    ("positions", "gone"),
    [({}, []), ({"a": 9}, []), ({"a": 10}, [0]), ({"a": 30, "b": 19}, [0]), ({"a": 30, "b": 31}, [0, 10, 20])],
)
def test_once_read_asks_the_slowest_and_needs_at_least_one(positions: dict[str, int], gone: list[int]) -> None:
    assert bases(Rules(once_read=True), positions) == gone


@pytest.mark.parametrize("rules", [Rules(bytes_max=1), Rules(age_us=1)])
def test_unread_segments_are_held_back_for_ever_without_a_cap(rules: Rules) -> None:
    assert bases(rules, {"a": 10, "b": 30}) == [0]
    assert bases(rules, {"a": 0}) == []


@pytest.mark.parametrize(("holdback", "gone"), [(350, []), (349, [0]), (249, [0, 10]), (1, [0, 10, 20])])
@pytest.mark.parametrize("rules", [Rules(bytes_max=1), Rules(age_us=1), Rules(once_read=True)])
def test_beyond_the_cap_unread_segments_go_and_the_losers_are_named(
    rules: Rules, holdback: int, gone: list[int]
) -> None:
    decided = plan(OLD, 50, rules._replace(holdback_bytes=holdback), {"slow": 3, "quick": 30}, 4_000)
    assert [segment.base for segment in decided.delete] == gone
    assert decided.unread == ({"slow": 10 * len(gone) - 3} if gone else {})


def test_a_cap_does_not_delete_what_no_rule_wants_deleted() -> None:
    assert bases(Rules(bytes_max=10_000, holdback_bytes=1), {"a": 0}) == []


def test_a_subscription_behind_what_was_trimmed_before_loses_only_what_goes_now() -> None:
    decided = plan(OLD[1:], 50, Rules(bytes_max=1, holdback_bytes=1), {"a": 2}, 4_000)
    assert decided.unread == {"a": 20}


# -- on disk ----


def partition(root: Path) -> Path:
    return root / "channels" / CHANNEL / "0"


def audited(root: Path, event: str) -> list[dict[str, Any]]:
    lines = (root / "audit" / "audit.jsonl").read_text().splitlines()
    return [record for line in lines if (record := json.loads(line))["event"] == event]


def fill(station: Station, count: int = 120, first: int = 0) -> None:
    for number in range(first, first + count):
        station.publish(CHANNEL, {"n": number, "pad": "x" * 100})


def numbers(station: Station) -> list[int]:
    return [message.data["n"] for message in station.read(CHANNEL)]


def read_until(station: Station, name: str, count: int) -> None:
    """A durable subscription that has read so many messages and stopped."""
    handled: list[int] = []
    with station.subscribe(CHANNEL, lambda message: handled.append(message.offset), name=name, start="first") as live:
        eventually(lambda: len(handled) >= count)
        live.close()
    station.seek(CHANNEL, name, count)


def test_by_bytes_the_log_stays_below_its_size_and_keeps_the_newest(opened: Opener, root: Path) -> None:
    with opened(segment_bytes=4096, retention_bytes=12_000) as station:
        fill(station)
        (trimmed,) = station.trim(CHANNEL)
        info = station.channel(CHANNEL)
        assert info.bytes <= 12_000
        assert info.bytes > 12_000 - 2 * 4096, "more was deleted than needed"
        assert numbers(station) == list(range(info.first, 120))
        assert (trimmed.first, trimmed.messages, trimmed.unread) == (info.first, info.first, {})
        assert station.stats().trimmed_messages == info.first
        assert station.stats().trimmed_unread == 0
        (record,) = audited(root, "trimmed")
        assert (record["first"], record["messages"], record["bytes"]) == (info.first, info.first, trimmed.bytes)
        assert station.trim(CHANNEL) == []
    assert sum(path.stat().st_size for path in partition(root).glob("*.jsonl")) == info.bytes
    with opened() as station:  # and it stays so
        assert station.channel(CHANNEL).first == info.first
        fill(station, 1, 120)
        assert numbers(station) == list(range(info.first, 121))


def test_by_age_the_old_goes_even_out_of_a_segment_that_nobody_filled(opened: Opener) -> None:
    clock = SteppedClock()
    with opened(retention_age_s="1h", clock=clock) as station:
        fill(station, 5)
        assert station.trim(CHANNEL) == []
        clock.step_us = HOUR_US // 2
        fill(station, 5, 5)
        station.trim(CHANNEL)
        assert numbers(station) == list(range(10)), "its newest line is young"
        clock.step_us = 2 * HOUR_US
        fill(station, 1, 10)
        station.trim(CHANNEL)  # the segment is too old to be written on
        clock.step_us = 3 * HOUR_US + HOUR_US // 2
        fill(station, 1, 11)
        station.trim(CHANNEL)
        assert numbers(station) == [11]


@pytest.mark.parametrize("harm", ["lost", "emptied", "damaged", "shortened"])
@pytest.mark.parametrize("compress", [False, True])
def test_an_index_that_does_not_know_the_age_makes_nothing_older(
    opened: Opener, root: Path, harm: str, compress: bool
) -> None:
    with opened(segment_bytes=4096, retention_age_s="1h", compress=compress) as station:
        fill(station, 60)
        station.trim(CHANNEL)
        for path in sorted(partition(root).glob("*.index"))[:-1]:
            if harm == "lost":
                path.unlink()
            elif harm == "shortened":
                os.truncate(path, 40)
            else:
                path.write_bytes(b"" if harm == "emptied" else b"\xff" * path.stat().st_size)
        assert station.trim(CHANNEL) == []
        assert numbers(station) == list(range(60))


def test_once_every_subscription_has_read_it_it_goes(opened: Opener) -> None:
    with opened(segment_bytes=4096, retention_once_read=True) as station:
        fill(station)
        assert station.trim(CHANNEL) == [], "nobody has read anything"
        read_until(station, "quick", 120)
        read_until(station, "slow", 60)
        (trimmed,) = station.trim(CHANNEL)
        assert trimmed.unread == {}
        assert 60 - 4096 // 300 - 1 <= station.channel(CHANNEL).first <= 60
        station.forget(CHANNEL, "slow")
        station.trim(CHANNEL)
        assert station.channel(CHANNEL).first > 60
        assert station.stats().trimmed_unread == 0


def test_a_subscription_that_has_not_handled_anything_yet_holds_back_too(opened: Opener) -> None:
    with opened(segment_bytes=4096, retention_bytes=4096) as station:
        fill(station)
        station.subscribe(CHANNEL, lambda _: None, name="asleep", start="first", paused=True)
        assert station.trim(CHANNEL) == []
        assert numbers(station) == list(range(120))


@pytest.mark.parametrize("rule", [{"retention_bytes": 4096}, {"retention_once_read": True}])
def test_beyond_the_holdback_unread_messages_go_and_everybody_is_told(
    opened: Opener, root: Path, rule: dict[str, Any]
) -> None:
    with opened(segment_bytes=4096, holdback_bytes=10_000, **rule) as station:
        station.create_channel(CHANNEL)
        read_until(station, "slow", 0)
        fill(station, 20)
        read_until(station, "slow", 5)
        fill(station, 100, 20)
        (trimmed,) = station.trim(CHANNEL)
        first = station.channel(CHANNEL).first
        assert station.channel(CHANNEL).bytes <= 10_000
        assert trimmed.unread == {"slow": first - 5}
        assert station.stats().trimmed_unread == first - 5
        assert audited(root, "trimmed")[-1]["unread"] == {"slow": first - 5}

        gaps: list[hg.Gap] = []
        got: list[int] = []
        subscription = station.subscribe(
            CHANNEL, lambda message: got.append(message.offset), name="slow", on_gap=gaps.append
        )
        eventually(lambda: got and got[-1] == 119)
        assert got == list(range(first, 120))
        assert [(gap.first, gap.next) for gap in gaps] == [(5, first)]
        assert "retention" in gaps[0].reason
        assert subscription.stats().missing == first - 5
        (moved,) = audited(root, "position-moved")
        assert (moved["before"], moved["after"]) == (5, first)


def test_the_active_segment_never_goes(opened: Opener, root: Path) -> None:
    with opened(retention_bytes=1, retention_once_read=True, holdback_bytes=1) as station:
        fill(station, 50)
        read_until(station, "quick", 50)
        assert station.trim(CHANNEL) == []
        assert numbers(station) == list(range(50))
    with opened(retention_bytes=1) as station:
        station.trim(CHANNEL)
        assert numbers(station) == list(range(50))
        assert station.publish(CHANNEL, {"n": 50}).offset == 50


def test_a_live_subscription_in_the_middle_of_a_trimmed_segment_is_told(opened: Opener) -> None:
    gaps: list[hg.Gap] = []
    got: list[int] = []
    with opened(segment_bytes=200_000, retention_bytes=1, holdback_bytes=1) as station:
        fill(station, 1500)  # a segment is larger than what a reader takes at once
        live = station.subscribe(
            CHANNEL,
            lambda message: (got.append(message.offset), live.pause() if message.offset == 3 else None),
            name="slow",
            start="first",
            on_gap=gaps.append,
        )
        eventually(lambda: live.state == "paused" and got)
        station.trim(CHANNEL)
        first = station.channel(CHANNEL).first
        assert first > 100
        live.resume()
        eventually(lambda: got[-1] == 1499)
        missing = {offset for gap in gaps for offset in range(gap.first, gap.next)}
        assert missing, "it had the whole segment in memory: this proves nothing"
        assert not missing & set(got)
        assert sorted(missing | set(got)) == list(range(1500))
        assert live.stats().missing == len(missing)


def test_a_reader_in_the_middle_of_a_trimmed_segment_is_told(opened: Opener) -> None:
    gaps: list[hg.Gap] = []
    with opened(segment_bytes=200_000, retention_bytes=1) as station:
        fill(station, 1500)
        reader = station.read(CHANNEL, on_gap=gaps.append)
        got = [next(reader).offset for _ in range(3)]
        station.trim(CHANNEL)
        got += [message.offset for message in reader]
        missing = {offset for gap in gaps for offset in range(gap.first, gap.next)}
        assert missing
        assert not missing & set(got)
        assert sorted(missing | set(got)) == list(range(1500))


def test_an_interrupted_deletion_is_finished_by_the_next(opened: Opener, root: Path) -> None:
    with opened(segment_bytes=4096, retention_bytes=12_000) as station:
        fill(station)
        kept = {path: path.read_bytes() for path in partition(root).glob("0*.*")}
        station.trim(CHANNEL)
        first = station.channel(CHANNEL).first
        for path, data in kept.items():  # as if nothing had been removed after the beginning was moved
            if not path.exists():
                path.write_bytes(data)
        assert numbers(station) == list(range(first, 120)), "what was trimmed came back"
    with opened(retention_bytes=12_000) as station:
        station.trim(CHANNEL)
        assert numbers(station) == list(range(first, 120))
        assert min(int(path.name[:20]) for path in partition(root).glob("0*.jsonl")) == first


def test_compressed_segments_count_by_what_they_take_and_go_with_all_their_files(opened: Opener, root: Path) -> None:
    with opened(segment_bytes=4096, compress=True) as station:
        fill(station)
        station.trim(CHANNEL)
        assert list(partition(root).glob("*.zst"))
        station.alter_channel(CHANNEL, retention_bytes=1)
        station.trim(CHANNEL)
        first = station.channel(CHANNEL).first
        assert numbers(station) == list(range(first, 120))
        assert {path.name[:20] for path in partition(root).glob("0*")} == {f"{first:020d}"}
