"""Reading a long log to know what it holds, beside everything else: nobody holds the arrivals lock meanwhile."""

from __future__ import annotations

import logging
import threading
from typing import Final

from heliograph.engine.knowledge import Checkpoints, Knowledge
from heliograph.errors import StationClosed

logger = logging.getLogger("heliograph.engine")


AT_ONCE: Final = 2
"""How many logs are read at the same time, of however many channels."""
_LOOK_S: Final = 0.2


class Learner:
    """Reads in a thread until it is over. Then either ``error`` says why not, or ``known`` is what was learnt.

    ``room``: whoever has many of them lets few read at a time.
    """

    def __init__(
        self, checkpoints: Checkpoints, channel: str, known: Knowledge, lines: int, *, turn: int,
        room: threading.Semaphore,
    ) -> None:  # fmt: skip
        self.known = known
        self.error: Exception | None = None
        self.turn = turn
        self._checkpoints = checkpoints
        self._channel = channel
        self._lines = lines
        self._room = room
        self._read = 0
        self._stopped = False
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heliograph-seen", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._room.acquire(timeout=_LOOK_S):
                self._progress(0)
            try:
                logger.info("channel '%s': %d lines are read, to know what it has seen", self._channel, self._lines)
                self._checkpoints.catch_up(self._channel, self.known, self._progress)
            finally:
                self._room.release()
        except Exception as error:  # noqa: BLE001 - raised where it is asked for
            self.error = error
        finally:
            self._over.set()

    def _progress(self, lines: int) -> None:
        self._read += lines
        if self._stopped:
            raise StationClosed("the station is closed")

    @property
    def over(self) -> bool:
        """Whether it reads no more."""
        return self._over.is_set()

    def wait(self, seconds: float | None) -> bool:
        """Wait until it is over; whether it is."""
        return self._over.wait(seconds)

    @property
    def says(self) -> str:
        """How far it is, in steps that are worth a word."""
        percent = min(90, 100 * self._read // max(1, self._lines) // 10 * 10)
        return (
            f"channel '{self._channel}' is being read, to know what it has seen: "
            f"{percent} % of {self._lines:,} lines; it goes on by itself"
        )

    def stop(self) -> None:
        """Read no more: what was read is of no use then."""
        self._stopped = True
        self._thread.join()
