"""What a station does by itself, now and then: see ``tidying.py``, which is loaded when it is time for it.

However many processes open the directory, one at a time does it: whoever holds ``upkeep.lock``.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from itertools import count
from typing import Final

from heliograph.engine.files import FilesEngine
from heliograph.errors import HeliographError, StationClosed
from heliograph.log.locks import FileLock
from heliograph.station.info import Trimmed

logger = logging.getLogger("heliograph.upkeep")
INTERVAL_S: Final = 10.0
LOOKS: Final = 10
"""How often between two rounds something cheap is looked at."""


class Upkeep:
    """The housekeeping of one station in this process."""

    def __init__(self, engine: FilesEngine, look: Callable[[], object]) -> None:
        self._engine = engine
        self._look = look
        self._stop = threading.Event()
        self.trimmed_messages = 0
        self.trimmed_unread = 0
        self.compacted_messages = 0
        self.compacted_bytes = 0
        self._thread = threading.Thread(target=self._run, name="heliograph-upkeep", daemon=True)
        if not engine.read_only:
            self._thread.start()

    def _run(self) -> None:
        for turn in count(1):
            if self._stop.wait(INTERVAL_S / LOOKS):
                return
            try:
                self._look()
                self._engine.take_idle_room()
                if turn % LOOKS == 0:
                    self.tidy()
            except StationClosed:  # also of one that was abandoned, and does not say so
                return
            except HeliographError as error:
                logger.warning("upkeep: %s", error)
            except OSError as error:
                logger.warning("upkeep: %s; trying again in %g s", error, INTERVAL_S)
            except Exception:  # whatever it is: without upkeep the disk fills up
                logger.exception("upkeep failed; trying again in %g s", INTERVAL_S)

    def close(self) -> None:
        """Stop after what is being done."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def tidy(self, only: str | None = None) -> list[Trimmed]:
        """Apply retention, rotation by age, compaction and compression now; what retention deleted."""
        asked = threading.current_thread() is not self._thread
        lease = FileLock(self._engine.root / "upkeep.lock", self._engine.disk)
        try:
            if not lease.try_exclusive():
                if only is None and not asked:
                    return []
                lease.exclusive(self._engine.clock, self._engine.config.publishing.busy_timeout_s)
            return self._tidying(only, self._engine.steps.unfinished(), asked=asked)
        finally:
            lease.release()

    def _tidying(self, only: str | None, spared: dict[str, HeliographError], *, asked: bool) -> list[Trimmed]:
        from heliograph.station.tidying import Tidying

        tidying = Tidying(self._engine, spared, asked=asked, going=lambda: not self._stop.is_set())
        try:
            return tidying.all() if only is None else tidying.these([only])
        finally:
            self.trimmed_messages += tidying.trimmed_messages
            self.trimmed_unread += tidying.trimmed_unread
            self.compacted_messages += tidying.compacted.messages
            self.compacted_bytes += tidying.compacted.bytes
