"""Whether the other end is still there: a pure decision.

Every heartbeat one PING goes out, unless the last one was not answered yet. Whatever arrives is a sign of life. After
three heartbeats without one the connection is half open: the other end is gone, or the line is cut somewhere.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

from heliograph.limits import LINK_SILENT_HEARTBEATS


class Pulse(Enum):
    """What to do now."""

    WAIT = "wait"
    PING = "ping"
    GONE = "gone"


class Heartbeat:
    """The pulse of one connection."""

    def __init__(self, interval_s: float, clock: Callable[[], float]) -> None:
        self.interval_s = interval_s
        self._clock = clock
        self._heard = self._looked = self._pinged = clock()
        self._nonce = 0
        self._waiting = False
        self.round_trip_s = 0.0
        """How long the last PING took to come back; 0 before the first."""

    def heard(self, ago_s: float = 0.0) -> None:
        """Something arrived, now or a while ago."""
        self._heard = max(self._heard, self._clock() - ago_s)

    @property
    def silent_s(self) -> float:
        """How long nothing arrived."""
        return self._clock() - self._heard

    def deadline(self) -> float:
        """When to look again, by the clock."""
        gone = self._heard + self.interval_s * LINK_SILENT_HEARTBEATS
        return gone if self._waiting else min(gone, self._pinged + self.interval_s)

    def look(self) -> Pulse:
        """What to do now."""
        now = self._clock()
        patience = self.interval_s * LINK_SILENT_HEARTBEATS
        if now - self._looked > patience:
            # This process stood still itself (a suspended laptop, SIGSTOP): what arrived meanwhile is not read yet.
            self._heard = max(self._heard, now - patience + self.interval_s)
        self._looked = now
        if now - self._heard >= patience:
            return Pulse.GONE
        if not self._waiting and now - self._pinged >= self.interval_s:
            return Pulse.PING
        return Pulse.WAIT

    def ping(self) -> int:
        """A PING is sent now; its nonce."""
        self._pinged = self._clock()
        self._waiting = True
        self._nonce += 1
        return self._nonce

    def pong(self, nonce: int) -> bool:
        """An answer came; whether it was waited for."""
        if not self._waiting or nonce != self._nonce:
            return False
        self._waiting = False
        self.round_trip_s = self._clock() - self._pinged
        return True
