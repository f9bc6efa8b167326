"""How far behind one channel is at one peer: pure numbers."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Final

_MARKS_MAX: Final = 64


class Lag:
    """Where each partition ends and how far it is acknowledged.

    >>> lag = Lag({0: 10})
    >>> lag.news(0, 12, 100.0); lag.news(0, 15, 103.0)
    >>> lag.messages, lag.seconds(104.0)
    (5, 4.0)
    >>> lag.moved(0, 12)
    >>> lag.messages, lag.seconds(104.0)
    (3, 1.0)
    """

    __slots__ = ("_marks", "acked", "ends")

    def __init__(self, starts: Mapping[int, int]) -> None:
        self.acked = dict(starts)
        self.ends: dict[int, int] = {}
        self._marks: dict[int, deque[tuple[int, float]]] = {}  # when each end was heard of

    def news(self, partition: int, end: int, now: float) -> None:
        """The partition ends here now."""
        if end <= self.ends.get(partition, -1):
            return
        self.ends[partition] = end
        marks = self._marks.setdefault(partition, deque())
        if len(marks) < _MARKS_MAX:
            marks.append((end, now))
        else:
            marks[-1] = (end, marks[-1][1])

    def moved(self, partition: int, position: int) -> None:
        """Everything before the position is acknowledged."""
        self.acked[partition] = max(position, self.acked.get(partition, 0))
        marks = self._marks.get(partition)
        while marks and marks[0][0] <= position:
            marks.popleft()

    @property
    def messages(self) -> int:
        """How many are not acknowledged."""
        return sum([max(0, end - self.acked.get(partition, 0)) for partition, end in self.ends.items()])

    def seconds(self, now: float) -> float:
        """How long the oldest of them has been known of."""
        waiting = [
            marks[0][1]
            for partition, marks in self._marks.items()
            if marks and marks[0][0] > self.acked.get(partition, 0)
        ]
        return max(0.0, now - min(waiting)) if waiting else 0.0
