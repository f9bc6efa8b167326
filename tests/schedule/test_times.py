"""What callers may say about time, and what is refused before anything is stored."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

import heliograph as hg
from heliograph.clock import to_us
from heliograph.schedule import times
from tests.schedule.conftest import Opener

NOW_US = to_us(datetime(2026, 11, 16, 12, tzinfo=UTC))


def test_a_delay_is_seconds_or_a_timedelta() -> None:
    assert times.due_us(NOW_US, None, 1.5) == NOW_US + 1_500_000
    assert times.due_us(NOW_US, None, timedelta(hours=1)) == NOW_US + 3_600_000_000
    assert times.due_us(NOW_US, None, 0) == NOW_US


def test_a_time_without_a_zone_is_utc_as_everywhere() -> None:
    aware = datetime(2026, 11, 16, 15, tzinfo=timezone(timedelta(hours=2)))
    assert times.due_us(NOW_US, aware, None) == times.due_us(NOW_US, datetime(2026, 11, 16, 13), None)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"delay": -1}, "negative"),
        ({"delay": timedelta(microseconds=-1)}, "negative"),
        ({"delay": 11 * 366 * 86_400}, "ten years"),
        ({"delay": math.inf}, "ten years"),
        ({"delay": math.nan}, "ten years"),
        ({"delay": 1e300}, "ten years"),
        ({"delay": "5"}, "seconds or a timedelta"),
        ({"delay": True}, "seconds or a timedelta"),
        ({"deliver_at": 1_794_774_601}, "datetime"),
        ({"deliver_at": "2026-11-16T12:00:00Z"}, "datetime"),
        ({"deliver_at": datetime.now(UTC) + timedelta(days=4000)}, "ten years"),
        ({"deliver_at": datetime.now(UTC), "delay": 1}, "not both"),
        ({"ttl": 0}, "live"),
        ({"ttl": -1}, "live"),
        ({"ttl": math.nan}, "ten years"),
        ({"ttl": timedelta(days=4000)}, "ten years"),
        ({"ttl": 0, "delay": 1}, "live"),
    ],
)
def test_absurd_times_are_refused_and_nothing_is_stored(
    opened: Opener, root: Path, arguments: dict[str, Any], complaint: str
) -> None:
    station = opened()
    with pytest.raises(hg.InvalidMessage, match=complaint):
        station.publish("alerts", 1, **arguments)
    with pytest.raises(hg.InvalidMessage, match=complaint):
        station.publish_many("alerts", [1, 2], **arguments)
    assert not (root / "schedule").exists()
    assert not station.channels()


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"channel": "../etc"}, hg.InvalidName),
        ({"channel": "alerts.dead-letter"}, hg.InvalidName),
        ({"data": object()}, hg.InvalidMessage),
        ({"data": "x" * 2_000_000}, hg.MessageTooLarge),
        ({"headers": {"expires": "2026-11-16T12:00:00Z"}}, hg.InvalidMessage),
        ({"id": "two words"}, hg.InvalidMessage),
        ({"data": {"n": "one"}, "type": "com.example.number.v1"}, hg.PayloadMismatch),
    ],
)
def test_a_delayed_message_is_checked_like_any_other_when_it_is_published(
    opened: Opener, root: Path, arguments: dict[str, Any], error: type[Exception]
) -> None:
    station = opened(config={"messages": {"max_bytes": 1_000_000}})
    station.register("com.example.number.v1", dict[str, int])
    with pytest.raises(error):
        station.publish(**{"channel": "alerts", "data": 1, "delay": 60, **arguments})
    assert not (root / "schedule").exists()


def test_a_channel_that_must_not_be_made_is_missed_at_once(opened: Opener, root: Path) -> None:
    station = opened(auto_create=False)
    with pytest.raises(hg.NotFound):
        station.publish("alerts", 1, delay=60)
    with pytest.raises(hg.NotFound):
        station.schedule("often", "alerts", 1, cron="* * * * *")
    assert not (root / "schedule").exists()
