"""What an ephemeral subscription skips when it cannot keep up: pure decisions.

The messages wait in the log, not in memory, so a "buffer" is a number of offsets: what lies between the first
one not yet done and the end of the log. ``block`` needs no decision: it reads at its own pace.
"""

from __future__ import annotations

import msgspec


class Keep(msgspec.Struct, frozen=True):
    """Deliver what lies before ``until``, then go on at ``resume``; what lies between is dropped."""

    until: int
    resume: int


def oldest_to_keep(end: int, buffer: int) -> int:
    """``drop_oldest``: everything before this offset has waited too long.

    >>> oldest_to_keep(end=100, buffer=10)
    90
    """
    return max(0, end - buffer)


def newest_to_keep(done: int, handed_out: int, end: int, buffer: int) -> Keep | None:
    """``drop_newest``: of what waits now, the oldest ``buffer`` are kept and the rest is dropped.

    What was handed out already is delivered in any case. None when everything fits.

    >>> newest_to_keep(done=5, handed_out=5, end=100, buffer=10)
    Keep(until=15, resume=100)
    >>> newest_to_keep(done=5, handed_out=5, end=15, buffer=10) is None
    True
    """
    until = max(handed_out, done + buffer)
    return Keep(until, end) if end > until else None
