"""When to try again."""

from __future__ import annotations

import math
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import heliograph as hg
from heliograph.delivery.retry import WAIT_S_MAX, Again, GiveUp, Retry
from heliograph.errors import ConfigError, Reject, RetryLater


def test_delays_double_up_to_the_maximum() -> None:
    retry = Retry(base_s=0.1, max_s=1.0, jitter=0)
    assert [retry.delay_s(attempt, 0.3) for attempt in range(1, 7)] == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]


@given(attempt=st.integers(1, 10_000), random01=st.floats(0, 1), jitter=st.floats(0, 1))
def test_delay_stays_within_the_jitter(attempt: int, random01: float, jitter: float) -> None:
    retry = Retry(max_s=5.0, jitter=jitter)
    plain = Retry(max_s=5.0, jitter=0).delay_s(attempt, 0)
    delay = retry.delay_s(attempt, random01)
    assert plain * (1 - jitter) - 1e-9 <= delay <= plain * (1 + jitter) + 1e-9


def test_gives_up_after_one_call_and_the_retries() -> None:
    retry, error = Retry(max_retries=2), ValueError()
    decisions = [type(retry.decide(attempt, error, 0.5)) for attempt in (1, 2, 3)]
    assert decisions == [Again, Again, GiveUp]


def test_retry_later_replaces_the_delay_but_not_the_count() -> None:
    retry = Retry(max_retries=1)
    assert retry.decide(1, RetryLater(17.5), 0.5) == Again(17.5)
    assert retry.decide(2, RetryLater(17.5), 0.5) == GiveUp()
    assert retry.decide(1, RetryLater(timedelta(minutes=1)), 0.5) == Again(60.0)


def test_retry_later_with_a_senseless_number_still_gives_a_wait() -> None:
    assert Retry().decide(1, RetryLater(-3), 0.5) == Again(0.0)
    assert Retry().decide(1, RetryLater(1e300), 0.5) == Again(WAIT_S_MAX)
    assert Retry(jitter=0).decide(1, RetryLater(math.nan), 0.5) == Again(0.1)


def test_reject_gives_up_at_once() -> None:
    assert Retry(max_retries=99).decide(1, Reject("no such customer"), 0.5) == GiveUp()


@pytest.mark.parametrize("wrong", [{"max_retries": -1}, {"base_s": -1}, {"max_s": math.inf}, {"jitter": 2}])
def test_senseless_settings_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError):
        Retry(**wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("retry", [3, 0, True, {"max_retries": 3}])
@pytest.mark.parametrize("options", [{}, {"name": "a", "group": True}, {"name": "b", "queue": True}])
def test_a_number_is_refused_before_the_first_failure(root: Path, retry: Any, options: dict[str, Any]) -> None:
    with hg.open(root, name="host1", durability="os") as station:
        for channel in ["tasks"] if options else ["tasks", "tasks.>"]:
            with pytest.raises(ConfigError, match=r"use a Retry, as in retry=Retry\(max_retries=3\)"):
                station.subscribe(channel, print, retry=retry, **options)
        assert station.subscriptions() == []
