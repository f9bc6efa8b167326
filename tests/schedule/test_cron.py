"""Cron expressions against known dates, summer time, and what becomes of missed firings."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest

import heliograph as hg
from heliograph.clock import from_us, to_us
from heliograph.limits import SCHEDULE_MOVE_MAX
from heliograph.schedule import cron as crons

ZURICH = "Europe/Zurich"


def at(*parts: int, zone: str = "UTC", fold: int = 0) -> int:
    return to_us(datetime(*parts, tzinfo=ZoneInfo(zone), fold=fold))  # type: ignore[arg-type, misc]


def following(cron: str, after_us: int, zone: str = "UTC", count: int = 1) -> list[str]:
    found = []
    for _ in range(count):
        following_us = crons.following(cron, zone, after_us)
        assert following_us is not None
        found.append(from_us(following_us).astimezone(ZoneInfo(zone)).isoformat())
        after_us = following_us
    return found


@pytest.mark.parametrize(
    ("cron", "expected"),
    [
        ("*/5 * * * *", "2026-11-16T12:05:00+00:00"),
        ("0 0 * * *", "2026-11-17T00:00:00+00:00"),
        ("30 4 1 * *", "2026-12-01T04:30:00+00:00"),
        ("0 9 * * MON-FRI", "2026-11-17T09:00:00+00:00"),
        ("0 0 29 2 *", "2028-02-29T00:00:00+00:00"),
        ("0 0 L * *", "2026-11-30T00:00:00+00:00"),
        ("15 10 * * 5#3", "2026-11-20T10:15:00+00:00"),
        ("*/10 * * * * *", "2026-11-16T12:01:10+00:00"),
    ],
)
def test_known_dates(cron: str, expected: str) -> None:
    assert following(cron, at(2026, 11, 16, 12, 1)) == [expected]


def test_a_firing_is_strictly_after_the_moment_whatever_its_fraction() -> None:
    midnight = at(2026, 11, 17)
    assert crons.following("0 0 * * *", "UTC", midnight - 1) == midnight
    assert crons.following("0 0 * * *", "UTC", midnight) == at(2026, 11, 18)
    assert crons.following("0 0 * * *", "UTC", midnight + 1) == at(2026, 11, 18)


def test_a_time_that_summer_time_skips_fires_right_after_the_gap() -> None:
    before = at(2026, 3, 28, 12, zone=ZURICH)
    assert following("30 2 * * *", before, ZURICH, 2) == ["2026-03-29T03:00:00+02:00", "2026-03-30T02:30:00+02:00"]


def test_a_time_that_comes_twice_fires_once() -> None:
    before = at(2026, 10, 24, 12, zone=ZURICH)
    assert following("30 2 * * *", before, ZURICH, 2) == ["2026-10-25T02:30:00+02:00", "2026-10-26T02:30:00+01:00"]


def test_asked_within_the_hour_that_comes_twice_the_past_is_no_answer() -> None:
    second = at(2026, 10, 25, 2, 10, zone=ZURICH, fold=1)  # its 02:30 was half an hour ago, and comes once more
    assert following("30 2 * * *", second, ZURICH) == ["2026-10-26T02:30:00+01:00"]
    due, next_us = crons.firings("30 2 * * *", ZURICH, "one", at(2026, 10, 25, 2, 30, zone=ZURICH), second)
    assert len(due) == 1
    assert next_us is not None
    assert next_us > second


def test_every_few_minutes_goes_by_elapsed_time() -> None:
    before = at(2026, 10, 25, 2, 30, zone=ZURICH)
    found = [datetime.fromisoformat(text).astimezone(UTC) for text in following("*/30 * * * *", before, ZURICH, 4)]
    assert {after - one for one, after in pairwise(found)} == {timedelta(minutes=30)}


@pytest.mark.parametrize("cron", ["", "* * * *", "61 * * * *", "* * * * * * *", "nonsense", "0 0 31 2 *", None, 5])
def test_an_expression_that_is_none_is_refused(cron: object) -> None:
    with pytest.raises(hg.ConfigError, match="cron"):
        crons.following(cron, "UTC", 0)


@pytest.mark.parametrize("zone", ["Mars/Olympus", "../../etc/passwd", "", "Europe", None, 7])
def test_an_unknown_timezone_is_refused(zone: object) -> None:
    with pytest.raises(hg.ConfigError, match="timezone"):
        crons.following("* * * * *", zone, 0)


# -- missed firings -----------------------------------------------------------------------------------------


def test_on_time_every_policy_publishes_the_firing() -> None:
    due = at(2026, 11, 16, 12)
    for missed in crons.POLICIES:
        assert crons.firings("0 * * * *", "UTC", missed, due, due + 20_000) == ([due], at(2026, 11, 16, 13))


def test_missed_firings_become_one_or_all_or_none() -> None:
    due, now = at(2026, 11, 16, 12), at(2026, 11, 16, 15, 30)
    hours = [at(2026, 11, 16, hour) for hour in (12, 13, 14, 15)]
    following_us = at(2026, 11, 16, 16)
    assert crons.firings("0 * * * *", "UTC", "one", due, now) == (hours[-1:], following_us)
    assert crons.firings("0 * * * *", "UTC", "all", due, now) == (hours, following_us)
    assert crons.firings("0 * * * *", "UTC", "skip", due, now) == ([], following_us)


def test_skipping_means_the_missed_ones_not_the_one_that_is_due_now() -> None:
    due, now = at(2026, 11, 16, 12), at(2026, 11, 16, 15, 0, 1)
    assert crons.firings("0 * * * *", "UTC", "skip", due, now).due_us == [at(2026, 11, 16, 15)]


def test_all_of_a_long_time_come_a_bounded_number_at_a_time() -> None:
    due, now = at(2026, 1, 1), at(2026, 1, 3)
    first = crons.firings("* * * * *", "UTC", "all", due, now)
    assert len(first.due_us) == SCHEDULE_MOVE_MAX
    assert first.next_us == first.due_us[-1] + 60_000_000
    second = crons.firings("* * * * *", "UTC", "all", first.next_us, now)
    assert first.due_us[-1] < second.due_us[0]


def test_a_year_without_anybody_costs_no_year_of_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = 0
    walk = crons._walk

    def counted(*arguments: object, **named: object):  # type: ignore[no-untyped-def]
        nonlocal steps
        for moment in walk(*arguments, **named):  # type: ignore[arg-type]
            steps += 1
            yield moment

    monkeypatch.setattr(crons, "_walk", counted)
    assert crons.firings("* * * * *", "UTC", "one", at(2025, 1, 1), at(2026, 1, 1)).due_us == [at(2026, 1, 1)]
    assert steps < 10


def test_a_number_of_very_many_digits_is_refused() -> None:
    with pytest.raises(hg.ConfigError, match="cron"):
        crons.following(f"{'9' * 5000} * * * *", "UTC", 0)
