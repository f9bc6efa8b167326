from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heliograph.federation.quota import BURST_S, Quota


@given(
    st.lists(st.tuples(st.integers(1, 500), st.integers(1, 100_000)), min_size=1, max_size=50),
    st.floats(10, 1_000),
    st.floats(1_000, 1_000_000),
)
def test_whoever_waits_as_told_is_never_faster_than_the_quota(
    arrivals: list[tuple[int, int]], messages_per_s: float, bytes_per_s: float
) -> None:
    quota, now = Quota(messages_per_s=messages_per_s, bytes_per_s=bytes_per_s), 1_000.0
    began = now
    for messages, size in arrivals:
        now += quota.take(now, messages, size)
    longest = max(sum(n for n, _ in arrivals) / messages_per_s, sum(n for _, n in arrivals) / bytes_per_s)
    assert now - began >= longest - BURST_S - 1e-6


def test_whoever_waits_as_told_is_as_fast_as_the_quota() -> None:
    quota, now = Quota(messages_per_s=100, bytes_per_s=0), 5.0
    for _ in range(50):
        now += quota.take(now, 30, 1)
    assert now == pytest.approx(5.0 + 50 * 30 / 100 - BURST_S)


def test_without_a_quota_nobody_waits() -> None:
    quota = Quota(messages_per_s=0, bytes_per_s=0)
    assert not any(quota.take(0.0, 10**9, 10**12) for _ in range(100))


def test_time_that_was_not_used_is_not_saved_up() -> None:
    quota = Quota(messages_per_s=10, bytes_per_s=0)
    assert quota.take(0.0, 1, 1) == 0.0
    assert quota.take(1_000_000.0, 30, 1) == pytest.approx(2.0)
