"""Sets of intervals, against Python's sets of numbers."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from heliograph.seen import SEQUENCE_MAX, IntervalSet, SeenSet

SMALL = 40
RANGES = st.lists(st.tuples(st.integers(0, SMALL), st.integers(0, SMALL)), max_size=12)
KEYED = st.lists(st.tuples(st.sampled_from(["a.1", "b.2"]), st.integers(0, 2), st.integers(0, SMALL)), max_size=30)


def numbers(intervals: IntervalSet) -> set[int]:
    return {number for first, following in intervals for number in range(first, following)}


def made(ranges: list[tuple[int, int]]) -> tuple[IntervalSet, set[int]]:
    return IntervalSet(ranges), {number for first, following in ranges for number in range(first, following)}


def is_tidy(intervals: IntervalSet) -> bool:
    """Sorted, disjoint, none empty, none touching the next."""
    flat = [bound for interval in intervals for bound in interval]
    return flat == sorted(set(flat))


@given(RANGES, RANGES)
def test_adding_and_removing_ranges_is_adding_and_removing_numbers(
    add: list[tuple[int, int]], remove: list[tuple[int, int]]
) -> None:
    intervals, model = made(add)
    for first, following in remove:
        intervals.remove(first, following)
        model -= set(range(first, following))
        assert is_tidy(intervals)
    assert numbers(intervals) == model
    assert intervals.count == len(model)
    assert intervals.end == max(model, default=-1) + 1
    assert [number in intervals for number in range(-1, SMALL + 2)] == [
        number in model for number in range(-1, SMALL + 2)
    ]


@given(RANGES, RANGES)
def test_two_sets_combine_as_sets_do(ours: list[tuple[int, int]], theirs: list[tuple[int, int]]) -> None:
    (here, here_model), (there, there_model) = made(ours), made(theirs)
    for combined, model in (
        (here.union(there), here_model | there_model),
        (here.difference(there), here_model - there_model),
    ):
        assert numbers(combined) == model
        assert is_tidy(combined)
    assert (numbers(here), numbers(there)) == (here_model, there_model), "its operands changed"
    here.update(there)
    assert numbers(here) == here_model | there_model


@given(RANGES, st.integers(0, SMALL), st.integers(0, SMALL))
def test_gaps_are_what_is_not_in(ranges: list[tuple[int, int]], first: int, following: int) -> None:
    intervals, model = made(ranges)
    asked = set(range(first, following))
    assert numbers(intervals.gaps(first, following)) == asked - model


@given(RANGES)
def test_intervals_survive_json_and_copies_are_independent(ranges: list[tuple[int, int]]) -> None:
    intervals, model = made(ranges)
    assert IntervalSet.from_json(msgspec.json.decode(msgspec.json.encode(intervals.to_json()))) == intervals
    intervals.copy().add(SMALL + 5, SMALL + 6)
    assert numbers(intervals) == model


@pytest.mark.parametrize(
    "value",
    [
        None, {}, "x", [1], [[1]], [[1, 2, 3]], [[2, 1]], [[1, 1]], [[-1, 2]], [[1, 2], [2, 3]], [[5, 6], [1, 2]],
        [[0, True]], [[0.0, 1]], [["0", 1]], [[0, SEQUENCE_MAX + 1]], [[0, 5], [3, 9]],
    ],
)  # fmt: skip
def test_what_is_no_set_of_intervals_is_refused(value: Any) -> None:
    with pytest.raises(ValueError):
        IntervalSet.from_json(value)


@pytest.mark.parametrize("ends", [(-1, 3), (0, SEQUENCE_MAX + 1)])
def test_sequences_beyond_every_log_are_refused(ends: tuple[int, int]) -> None:
    with pytest.raises(ValueError):
        IntervalSet().add(*ends)


@given(KEYED, KEYED)
def test_seen_sets_combine_as_sets_of_identities_do(
    ours: list[tuple[str, int, int]], theirs: list[tuple[str, int, int]]
) -> None:
    here, there = SeenSet(), SeenSet()
    for seen, identities in ((here, ours), (there, theirs)):
        for origin, partition, sequence in identities:
            seen.add(origin, partition, sequence, sequence + 1)
    assert identities_of(here) == set(ours)
    assert here.count == len(set(ours))
    assert len(here) == len({(origin, partition) for origin, partition, _ in ours})
    assert identities_of(here.union(there)) == set(ours) | set(theirs)
    assert identities_of(here.difference(there)) == set(ours) - set(theirs)
    assert all(here.has(*identity) == (identity in set(ours)) for identity in theirs)
    for origin, partition, sequence in theirs:
        here.remove(origin, partition, sequence, sequence + 1)
    assert identities_of(here) == set(ours) - set(theirs)


def identities_of(seen: SeenSet) -> set[tuple[str, int, int]]:
    return {(*key, number) for key, intervals in seen for number in numbers(intervals)}


@given(KEYED)
def test_seen_sets_survive_json(identities: list[tuple[str, int, int]]) -> None:
    seen = SeenSet()
    for origin, partition, sequence in identities:
        seen.add(origin, partition, sequence, sequence + 1)
    assert SeenSet.from_json(msgspec.json.decode(msgspec.json.encode(seen.to_json()))) == seen
    seen.copy().add("c.3", 0, 0, 1)
    assert identities_of(seen) == set(identities)


def test_looking_at_an_origin_that_was_never_seen_does_not_change_a_set() -> None:
    seen = SeenSet()
    assert not seen.of("a.1", 0)
    assert seen == SeenSet()
    assert seen.to_json() == {}


@pytest.mark.parametrize("value", [None, [], {"a.1": []}, {"a.1": {"x": []}}, {"a.1": {"-1": []}}, {"a.1": {"0": 1}}])
def test_what_is_no_seen_set_is_refused(value: Any) -> None:
    with pytest.raises(ValueError):
        SeenSet.from_json(value)


@pytest.mark.parametrize("many", [1, 256, 257, 1_000])
@pytest.mark.parametrize("where", [0, 1, 5_000, 100_000])
def test_many_intervals_at_once_are_the_same_as_one_by_one(many: int, where: int) -> None:
    before = [(at, at + 2) for at in range(0, 6_000, 5)]
    added = [(where + at, where + at + 1) for at in range(0, many * 3, 3)]
    at_once, one_by_one = IntervalSet(before), IntervalSet(before)
    at_once.update(IntervalSet(added))
    for first, following in added:
        one_by_one.add(first, following)
    assert at_once == one_by_one
    assert is_tidy(at_once)
