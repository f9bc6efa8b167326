from __future__ import annotations

from datetime import timedelta

from heliograph.federation.lifetimes import Lifetime, Reminders, shown
from tests.federation.pki import NOW


def lifetime(days: float, *, life: float = 365, fingerprint: str = "AA") -> Lifetime:
    ends = NOW + timedelta(days=days)
    return Lifetime(
        what="certificate", name="hub", path="hub.crt", fingerprint=fingerprint, begins=ends - timedelta(days=life),
        ends=ends,
    )  # fmt: skip


def test_there_is_a_threshold_only_once_it_was_passed() -> None:
    passed = {31: None, 30: 30, 15: 30, 14: 14, 7.5: 14, 7: 7, 3: 3, 1.5: 3, 1: 1, 0.1: 1, 0: 0, -5: 0}
    assert {days: lifetime(days).threshold(NOW) for days in passed} == passed


def test_the_status_follows() -> None:
    assert [lifetime(days).status(NOW) for days in (31, 30, 1, -0.01)] == ["ok", "warn", "warn", "bad"]
    assert lifetime(400).status(NOW) == "bad", "its time has not come"


def test_what_is_made_for_a_week_is_not_warned_of_all_the_time() -> None:
    assert [lifetime(days, life=7).threshold(NOW) for days in (6, 2.9, 1, 0)] == [None, None, 1, 0]


def test_each_threshold_is_told_once_and_a_renewed_one_begins_anew() -> None:
    reminders = Reminders()
    assert len(reminders.due([lifetime(20)], NOW)) == 1
    assert reminders.due([lifetime(20)], NOW) == []
    assert reminders.due([lifetime(20)], NOW + timedelta(days=5)) == []
    assert len(reminders.due([lifetime(20)], NOW + timedelta(days=6))) == 1
    assert reminders.due([lifetime(365, fingerprint="BB")], NOW) == []
    assert len(reminders.due([lifetime(5, fingerprint="BB")], NOW)) == 1


def test_a_clock_that_steps_back_says_nothing_twice() -> None:
    reminders = Reminders()
    assert len(reminders.due([lifetime(5)], NOW)) == 1
    assert reminders.due([lifetime(5)], NOW - timedelta(days=40)) == []
    assert reminders.due([lifetime(5)], NOW) == []


def test_it_is_said_in_words() -> None:
    assert "expires in 30 days, on 2026-12-16 12:00 UTC" in lifetime(30).says(NOW)
    assert "expires in 12 hours" in lifetime(0.5).says(NOW)
    assert "expired on" in lifetime(-1).says(NOW)
    assert "is the clock right" in lifetime(400).says(NOW)


def test_it_is_shown_as_plain_values() -> None:
    info = shown(lifetime(12.25), NOW)
    assert (info.what, info.name, info.days_left, info.status) == ("certificate", "hub", 12.25, "warn")
