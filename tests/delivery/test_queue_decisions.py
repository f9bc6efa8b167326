from __future__ import annotations

import math
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heliograph.delivery.queues import decisions
from heliograph.delivery.queues.decisions import Frontier, QueueSettings
from heliograph.delivery.retry import Retry
from heliograph.errors import ConfigError, Reject, RetryLater
from heliograph.limits import QUEUE_AHEAD_MAX

FRONTIERS = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 60)), max_size=8).map(
    lambda pairs: [Frontier(number, begin, begin + length) for number, (begin, length) in enumerate(pairs)]
)


@given(count=st.integers(0, 300), frontiers=FRONTIERS, turn=st.integers(0, 20))
def test_new_offsets_are_shared_out_evenly_and_none_is_left_while_somebody_wants_it(
    count: int, frontiers: list[Frontier], turn: int
) -> None:
    shared = {one.partition: one for one in decisions.share_out(count, frontiers, turn)}
    there = {one.partition: one for one in frontiers}
    given_out = {number: one.end - one.next for number, one in shared.items()}
    assert sum(given_out.values()) == min(count, sum(one.end - one.next for one in frontiers))
    for number, one in shared.items():
        assert one.next == there[number].next, "handed out in order, without a gap"
        assert one.end <= there[number].end
        assert one.end > one.next
    cut = [given_out.get(number, 0) for number, one in there.items() if given_out.get(number, 0) < one.end - one.next]
    most = max(given_out.values(), default=0)
    assert all(most - part <= 1 for part in cut), "who gets less than it has gets as much as anybody else"


def test_another_partition_is_first_each_turn() -> None:
    frontiers = [Frontier(number, 0, 10) for number in range(3)]
    firsts = [decisions.share_out(1, frontiers, turn)[0].partition for turn in range(6)]
    assert sorted(firsts[:3]) == [0, 1, 2]
    assert firsts[:3] == firsts[3:]


def test_the_floor_is_below_everything_pending() -> None:
    assert decisions.floor(10, None) == 10
    assert decisions.floor(10, 3) == 3


@pytest.mark.parametrize(
    ("leased", "delayed", "expected"),
    [(None, None, math.inf), (5_000_000, None, 4.0), (None, 3_000_000, 1.0), (9_000_000, 2_500_000, 0.5), (1, 1, 0.0)],
)
def test_a_wait_ends_with_the_first_lease_or_delay(leased: int | None, delayed: int | None, expected: float) -> None:
    assert decisions.waits_s((leased, delayed), 1_000_000, 2_000_000) == expected


def test_failures_are_given_back_until_the_deliveries_are_used_up() -> None:
    retry, settings = Retry(max_retries=99, base_s=1.0, jitter=0), QueueSettings(max_deliveries=3)
    error = ValueError("no")
    waits = [decisions.after_failure(retry, settings, delivery, error, 0.5) for delivery in (1, 2, 3, 4)]
    assert waits == [1.0, 2.0, None, None]
    assert decisions.after_failure(retry, settings, 1, RetryLater(77), 0.5) == 77
    assert decisions.after_failure(retry, settings, 3, RetryLater(77), 0.5) is None
    assert decisions.after_failure(retry, settings, 1, Reject(), 0.5) is None
    assert [decisions.exhausted(delivery, settings) for delivery in (1, 3, 4)] == [False, False, True]


@given(
    handled=st.integers(0, 1_000_000), elapsed_s=st.floats(0, 100), lanes=st.integers(1, 64), most=st.integers(1, 2_000)
)
def test_a_worker_takes_ahead_what_it_can_start_soon(handled: int, elapsed_s: float, lanes: int, most: int) -> None:
    ahead = decisions.ahead(handled, elapsed_s, lanes, most)
    assert min(lanes, most) <= ahead <= min(max(lanes, QUEUE_AHEAD_MAX), most)
    if not handled:
        assert ahead == min(lanes, most), "a slow one takes nothing that somebody else could do"


def test_durations_are_seconds_or_timedeltas_within_bounds() -> None:
    assert decisions.seconds(timedelta(seconds=90), "delay") == 90.0
    assert decisions.seconds(0, "delay") == 0.0
    for wrong in (-1, math.nan, math.inf, "5", None, True, 1e12, timedelta(days=-1)):
        with pytest.raises(ConfigError, match="delay"):
            decisions.seconds(wrong, "delay")


def test_settings_change_one_by_one_and_are_checked() -> None:
    settings = QueueSettings().changed(visibility_s=timedelta(minutes=1), max_in_flight=None)
    assert settings == QueueSettings(visibility_s=60.0)
    with pytest.raises(ConfigError, match="max_in_flight is 0"):
        settings.changed(max_in_flight=0)
