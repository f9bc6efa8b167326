"""Microseconds, exactly."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

from hypothesis import given
from hypothesis import strategies as st

from heliograph.clock import SYSTEM_CLOCK, from_us, to_us


@given(st.integers(min_value=0, max_value=253_402_300_799_999_999))
def test_every_microsecond_survives_the_round_trip(us: int) -> None:
    assert to_us(from_us(us)) == us


def test_a_time_without_a_zone_is_utc() -> None:
    assert to_us(datetime(2026, 11, 15, 20, 30)) == to_us(datetime(2026, 11, 15, 20, 30, tzinfo=UTC))


def test_zones_are_honoured() -> None:
    east = timezone(timedelta(hours=2))
    assert to_us(datetime(2026, 11, 15, 22, 30, tzinfo=east)) == to_us(datetime(2026, 11, 15, 20, 30, tzinfo=UTC))


def test_the_system_clock_is_the_system_s() -> None:
    assert SYSTEM_CLOCK.monotonic_ns() <= SYSTEM_CLOCK.monotonic_ns()
    assert abs(SYSTEM_CLOCK.time_ns() / 1e9 - datetime.now(UTC).timestamp()) < 60
