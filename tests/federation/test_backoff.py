from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from heliograph.federation.backoff import MAX_S, failures_after, pause_s


@given(st.integers(-5, 10**9), st.floats(0, 1))
def test_a_pause_is_between_a_quarter_second_and_a_minute(failures: int, random01: float) -> None:
    assert 0.25 <= pause_s(failures, random01) <= 60.0


def test_pauses_double_up_to_a_minute_and_half_of_each_is_chance() -> None:
    assert [pause_s(n, 1.0) for n in range(1, 10)] == [0.5, 1, 2, 4, 8, 16, 32, 60, 60]
    assert pause_s(5, 0.0) == 4.0
    assert len({pause_s(5, part / 10) for part in range(11)}) == 11


def test_a_link_that_held_begins_again_with_short_pauses_and_one_that_flaps_does_not() -> None:
    assert failures_after(7, 3600.0, refused=False) == 1
    assert failures_after(7, 0.2, refused=False) == 8


def test_whoever_is_refused_waits_longest() -> None:
    assert pause_s(failures_after(0, 3600.0, refused=True), 1.0) == MAX_S
