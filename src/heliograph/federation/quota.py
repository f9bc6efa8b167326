"""How fast a peer may send: a pure decision.

What arrives is stored at once and acknowledged late: the window stays full, so the sender slows down and nothing is
lost. A second's worth may come at once.
"""

from __future__ import annotations

from typing import Final

BURST_S: Final = 1.0


class Quota:
    """Messages and bytes a second, by a clock that whoever asks brings along; 0 is without limit.

    >>> quota = Quota(messages_per_s=100, bytes_per_s=0)
    >>> quota.take(0.0, 100, 5_000), quota.take(0.0, 50, 2_500), quota.take(10.0, 1, 50)
    (0.0, 0.5, 0.0)
    """

    __slots__ = ("_due", "rates")

    def __init__(self, *, messages_per_s: float, bytes_per_s: float) -> None:
        self.rates = (messages_per_s, bytes_per_s)
        self._due = [0.0, 0.0]  # when all that was taken so far is paid for

    def take(self, now: float, messages: int, size: int) -> float:
        """So much arrived: how many seconds to wait before it is acknowledged."""
        wait = 0.0
        for at, amount in enumerate((messages, size)):
            rate = self.rates[at]
            if rate:
                self._due[at] = max(self._due[at], now) + amount / rate
                wait = max(wait, self._due[at] - now - BURST_S)
        return wait
