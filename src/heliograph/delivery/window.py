"""How far everything is done, when several lanes finish out of order: a pure table.

Work is handed out in offset order, as pieces: a piece is some messages for one lane, which works through its
pieces one after the other. So a lane's first undone offset is in its oldest piece, and everything before the
smallest of these is done::

    lane 0   [ 3  5  8 | 12 14 ]    has done 3 and 5                  first undone: 8
    lane 1   [ 4  6  7 ]            has done 4, 6                     first undone: 7   <- committed
    lane 2   [ ]                    everything it was given is done
    reach    15                     everything before 15 was handed out

There is no entry per message: a million small handlers cost a few thousand table operations.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence


class Window:
    """Which pieces are out, per lane. Not synchronised: its owner holds a lock."""

    def __init__(self, lanes: int, start: int, *, pieces_max: int, span_max: int) -> None:
        self._pieces: list[deque[int]] = [deque() for _ in range(lanes)]
        self._reach = start
        self._pieces_max = pieces_max
        self._span_max = span_max

    @property
    def reach(self) -> int:
        """Everything before this offset was handed out, or needs nobody."""
        return self._reach

    def hand_out(self, firsts: Mapping[int, int], reach: int) -> None:
        """Each of these lanes gets a piece that begins at the given offset; nothing before reach is left."""
        for lane, first in firsts.items():
            pieces = self._pieces[lane]
            if first < self._reach or first >= reach or len(pieces) >= self._pieces_max:
                raise ValueError(f"piece at {first} for lane {lane}: window {self._reach}..{reach}, {len(pieces)} out")
            pieces.append(first)
        self.advance(reach)

    def advance(self, reach: int) -> None:
        """Everything before the offset was handed out, or needs nobody."""
        if reach < self._reach:
            raise ValueError(f"the window moves forwards only: {self._reach} to {reach}")
        self._reach = reach

    def rewind(self, reach: int) -> None:
        """Begin again at an earlier offset, now that nothing is out."""
        if any(self._pieces):
            raise ValueError("the window can be moved back only while nothing is out")
        self._reach = reach

    def complete(self, lane: int) -> None:
        """The lane's oldest piece is done."""
        self._pieces[lane].popleft()

    def committed(self, undone: Sequence[int]) -> int:
        """The lowest offset that is not done, given each lane's first undone offset in the piece at hand.

        A lane that has completed a piece and not yet begun the next still states an offset of the old one;
        the later of the two is right, because its pieces are in offset order.
        """
        low = self._reach
        for pieces, offset in zip(self._pieces, undone, strict=True):
            if pieces:
                low = min(low, max(pieces[0], offset))
        return low

    def has_room(self, undone: Sequence[int]) -> bool:
        """Whether more may be handed out: no lane is full, and the slowest is not too far behind."""
        if any(len(pieces) >= self._pieces_max for pieces in self._pieces):
            return False
        return self._reach - self.committed(undone) < self._span_max
