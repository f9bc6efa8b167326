"""When to try again: a pure decision.

The n-th attempt failed; what now? ::

    attempt          1      2      3      4      5      6
    then wait (s)    0.1    0.2    0.4    0.8    1.6    give up        with the defaults, each ± 20 %

``RetryLater(seconds)`` replaces the wait, not the count. ``Reject`` gives up at once.
"""

from __future__ import annotations

import math

import msgspec

from heliograph.arguments import check_number, check_whole
from heliograph.errors import ConfigError, Reject, RetryLater

WAIT_S_MAX = 1_000_000.0
"""Longest wait a handler may ask for: eleven days, which every operating system's timers can hold."""

_DOUBLINGS_MAX = 60
"""2.0**60 periods are longer than any maximum; more would overflow a float."""


class Again(msgspec.Struct, frozen=True):
    """Deliver once more, after this long."""

    delay_s: float


class GiveUp(msgspec.Struct, frozen=True):
    """The retries are used up, or would not help."""


class Retry(msgspec.Struct, frozen=True):
    """How often, and how patiently, a failing handler is called again.

    The first call is not a retry: ``max_retries=5`` means at most six calls.

    >>> Retry(jitter=0).delay_s(3, 0.5)
    0.4
    >>> Retry(max_retries=0).decide(1, ValueError("boom"), 0.5)
    GiveUp()
    """

    max_retries: int = 5
    base_s: float = 0.1
    max_s: float = 5.0
    jitter: float = 0.2

    def __post_init__(self) -> None:
        if check_whole("max_retries", self.max_retries) < 0:
            raise ConfigError(f"max_retries is {self.max_retries}; use 0 to give up after the first failure")
        for name in ("base_s", "max_s", "jitter"):
            check_number(name, getattr(self, name))
        if not (0 <= self.base_s <= WAIT_S_MAX and 0 <= self.max_s <= WAIT_S_MAX):
            raise ConfigError(f"back-off of {self.base_s} s to {self.max_s} s; both must be 0 to {WAIT_S_MAX:.0f} s")
        if not 0 <= self.jitter <= 1:
            raise ConfigError(f"jitter is {self.jitter}; it is a share of the delay, between 0 and 1")

    def delay_s(self, attempt: int, random01: float) -> float:
        """How long to wait after the given attempt (1, 2, …) failed."""
        delay_s = min(self.max_s, self.base_s * 2.0 ** min(attempt - 1, _DOUBLINGS_MAX))
        return delay_s * (1.0 + self.jitter * (2.0 * random01 - 1.0))

    def decide(self, attempt: int, error: BaseException, random01: float) -> Again | GiveUp:
        """What to do after the given attempt failed with the error."""
        if attempt > self.max_retries or isinstance(error, Reject):
            return GiveUp()
        if isinstance(error, RetryLater) and math.isfinite(error.seconds):
            return Again(min(max(0.0, error.seconds), WAIT_S_MAX))
        return Again(self.delay_s(attempt, random01))


def check_retry(retry: object) -> None:
    """Refuse a number, which would be found out only when a handler fails for the first time."""
    if retry is not None and not isinstance(retry, Retry):
        raise ConfigError(f"retry is {retry!r}; use a Retry, as in retry=Retry(max_retries=3)")
