"""Counting."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from heliograph.delivery.statistics import Counters, Histogram, add_up

SAMPLES = st.lists(st.integers(0, 2**39), min_size=1, max_size=200)


@given(SAMPLES)
def test_a_percentile_is_an_upper_bound_and_exact_to_a_quarter(samples: list[int]) -> None:
    histogram = Histogram()
    for us in samples:
        histogram.add(us)
    for share in (0.5, 0.9, 0.99):
        exact = sorted(samples)[max(0, -(-len(samples) * int(share * 100) // 100) - 1)]
        assert exact <= histogram.percentile_us(share) <= max(exact * 1.25, exact + 1)


@given(SAMPLES, SAMPLES)
def test_merging_is_adding_all_samples(one: list[int], other: list[int]) -> None:
    left, right, both = Histogram(), Histogram(), Histogram()
    for us in one:
        left.add(us)
        both.add(us)
    for us in other:
        right.add(us)
        both.add(us)
    left.merge(right)
    assert left.stats() == both.stats()


def test_a_clock_that_stepped_back_counts_as_no_latency() -> None:
    histogram = Histogram()
    histogram.add(-5)
    assert histogram.stats().max_ms == 0
    assert histogram.stats().count == 1


def test_a_year_does_not_break_the_buckets() -> None:
    histogram = Histogram()
    histogram.add(365 * 86_400 * 1_000_000)
    assert histogram.stats().count == 1


def test_nothing_counted_is_no_division_by_zero() -> None:
    assert Histogram().stats().p99_ms == 0


def test_lanes_add_up() -> None:
    one, other = Counters(), Counters()
    one.delivered, other.delivered, other.missing = 2, 3, 1
    one.latency.add(10)
    total = add_up([one, other])
    assert (total.delivered, total.missing, total.latency.stats().count) == (5, 1, 1)
