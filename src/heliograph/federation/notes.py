"""What is to be remembered of one peer and one channel while it is sent, and when that is written down.

All of it is written each time (peerfile.py), so many refusals are noted first and worked in when it is saved.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from pathlib import Path

from heliograph.clock import Clock, from_us
from heliograph.disk import Disk
from heliograph.federation import peerfile
from heliograph.federation.letters import Identity
from heliograph.federation.peerfile import Memory
from heliograph.seen import SeenSet


class Notes:
    """The memory of one outlet. Acknowledgements come while it reads, hence the locks."""

    def __init__(self, memory: Memory, directory: Path, channel: str, disk: Disk, clock: Clock) -> None:
        self.memory = memory
        self.unsaved = False
        self._directory = directory
        self._channel = channel
        self._disk = disk
        self._clock = clock
        self._refused = SeenSet()  # of which the memory does not know yet
        self._lock = threading.Lock()
        self._saving = threading.Lock()
        self._saved_at = self._saving_s = 0.0

    def acked(self, partition: int, position: int) -> None:
        """Everything before the position is done."""
        with self._lock:
            self.memory.positions[partition] = position
            self.unsaved = True

    def spare(self, gaps: SeenSet) -> None:
        """What will never come from here."""
        with self._lock:
            self.memory.spared.update(gaps)
            self.unsaved = True

    def refused(self, messages: Iterable[Identity]) -> None:
        """What is not to be sent again, unless it is asked for.

        Written down at once, unless that was done a moment ago and takes long: no more than half of the time is spent
        on it, however many there are. What was not written down when the process died is sent and refused once more.
        """
        with self._lock:
            for origin, partition, sequence in messages:
                self._refused.add(origin, partition, sequence, sequence + 1)
            self.unsaved = True
        if self._clock.monotonic() - self._saved_at >= self._saving_s:
            self.save()

    def sent_again(self, origin: str, partition: int, sequence: int) -> bool:
        """Whether a message is sent because its letter was replayed, and was not refused since."""
        asked = self.memory.again.has(origin, partition, sequence)
        return asked and not self._refused.has(origin, partition, sequence)

    def save(self) -> None:
        """Write down how far it has come, if that changed. Durable when it returns."""
        with self._saving:
            if not self.unsaved:
                return
            began = self._clock.monotonic()
            with self._lock:
                self.unsaved = False
                data = self._worked_in()
            try:
                peerfile.save(self._directory, self._channel, data, self._disk)
            except OSError:
                self.unsaved = True
                raise
            self._saved_at = self._clock.monotonic()
            self._saving_s = self._saved_at - began

    def _worked_in(self) -> bytes:
        memory, refused = self.memory, self._refused
        memory.spared, memory.again, self._refused = (
            memory.spared.union(refused), memory.again.difference(refused), SeenSet(),
        )  # fmt: skip
        memory.time = from_us(self._clock.time_ns() // 1000)
        return peerfile.encode(memory)
