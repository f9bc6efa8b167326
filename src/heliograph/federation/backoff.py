"""When a link that could not be made, or was lost, is tried again: a pure decision.

    failures       1     2     3     4     5     6     7     8 …
    longest (s)    0.5   1     2     4     8     16    32    60 …     at random between half of it and all of it

Half of the pause is random, so that the stations of a hub that was restarted do not come back in one moment.
"""

from __future__ import annotations

from typing import Final

BASE_S: Final = 0.5
MAX_S: Final = 60.0
STEADY_S: Final = 10.0
"""A link that held this long was in order: the next pause is a short one again."""

_DOUBLINGS_MAX: Final = 32


def pause_s(failures: int, random01: float) -> float:
    """How long to wait after so many failures (1, 2, …) without a steady link between.

    >>> [pause_s(n, 1.0) for n in (1, 2, 7, 8, 1000)]
    [0.5, 1.0, 32.0, 60.0, 60.0]
    >>> pause_s(8, 0.0)
    30.0
    """
    longest = min(MAX_S, BASE_S * 2.0 ** min(max(failures, 1) - 1, _DOUBLINGS_MAX))
    return longest * (1.0 + random01) / 2.0


def failures_after(failures: int, held_s: float, *, refused: bool) -> int:
    """How many failures to count after a link ended that had held for some time (0: it was never made).

    Whoever was refused waits the longest time at once: a person has to change something first.

    >>> failures_after(3, 0.0, refused=False), failures_after(3, 3600.0, refused=False)
    (4, 1)
    """
    if refused:
        return _DOUBLINGS_MAX
    return 1 if held_s >= STEADY_S else failures + 1
