"""What lies between a worker's keeper and its lanes: messages to start, at work, and finished.

The keeper fills and empties it; lanes take one message at a time. Nothing here touches the disk.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from heliograph.clock import Clock
    from heliograph.delivery.invoke import Outcome
    from heliograph.delivery.queues.desk import Found
    from heliograph.engine.queuestore import Key


class Finished(NamedTuple):
    """A message whose handler has returned, raised, or was not even called."""

    found: Found
    outcome: Outcome


class Tray:
    """Shared by one keeper and any number of lanes."""

    def __init__(self, clock: Clock, ring: Callable[[], None]) -> None:
        self.drained = threading.Event()
        """Set while there is nothing to start."""
        self.drained.set()
        self.closed = False
        self._clock = clock
        self._ring = ring
        self._changed = threading.Condition()
        self._waiting: deque[tuple[Found, float]] = deque()
        self._at_work: dict[Key, Found] = {}
        self._finished: list[Finished] = []

    # -- the keeper's side --------------------------------------------------------------------------------------

    def put(self, found: Iterable[Found]) -> None:
        """Messages to start."""
        now_s = self._clock.monotonic()
        with self._changed:
            self._waiting.extend((one, now_s) for one in found)
            if self._waiting:
                self.drained.clear()
                self._changed.notify_all()

    def take_finished(self) -> list[Finished]:
        """What the lanes are done with."""
        with self._changed:
            finished, self._finished = self._finished, []
            return finished

    def has_finished(self) -> bool:
        """Whether something is to be handed in."""
        return bool(self._finished)

    def take_back(self, older_than_s: float = 0.0) -> list[Found]:
        """What was not started for so long."""
        limit_s = self._clock.monotonic() - older_than_s
        back: list[Found] = []
        with self._changed:
            while self._waiting and self._waiting[0][1] <= limit_s:
                back.append(self._waiting.popleft()[0])
            if not self._waiting:
                self.drained.set()
        return back

    def held(self) -> list[Key]:
        """Everything that must stay leased."""
        with self._changed:
            return [*self._at_work, *(found.key for found, _ in self._waiting)]

    def lose(self, keys: Iterable[Key]) -> None:
        """Somebody else has these: do not start them."""
        lost = set(keys)
        with self._changed:
            self._waiting = deque(one for one in self._waiting if one[0].key not in lost)
            if not self._waiting:
                self.drained.set()

    def waiting(self) -> int:
        """How many are not started yet."""
        return len(self._waiting)

    def at_work(self) -> int:
        """How many handlers are called."""
        return len(self._at_work)

    def close(self) -> None:
        """Lanes end when they have nothing at hand."""
        with self._changed:
            self.closed = True
            self._changed.notify_all()

    # -- a lane's side ------------------------------------------------------------------------------------------

    def take(self, *, wait: bool) -> Found | None:
        """The next message to start; None when there is none (any more)."""
        with self._changed:
            while wait and not self._waiting and not self.closed:
                self._changed.wait()
            if not self._waiting or self.closed:
                return None
            found, _ = self._waiting.popleft()
            self._at_work[found.key] = found
            if not self._waiting:
                self.drained.set()
            return found

    def finish(self, found: Found, outcome: Outcome) -> None:
        """A handler has come to an end."""
        with self._changed:
            self._at_work.pop(found.key, None)
            self._finished.append(Finished(found, outcome))
            hurry = len(self._finished) == 1 or not self._waiting
        if hurry:
            self._ring()
