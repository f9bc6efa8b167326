"""Looking around once a second, for whoever must notice what nobody tells: a channel that has grown."""

from __future__ import annotations

import logging
from collections.abc import Callable

from heliograph.delivery.deadletter import describe
from heliograph.delivery.rounds import Rounds

LOOK_S = 1.0
"""How often."""

logger = logging.getLogger("heliograph.delivery")


class Lookout(Rounds[Callable[[], None]]):
    """Calls everybody on its list once a second. One per station."""

    def __init__(self, interval_s: float = LOOK_S) -> None:
        super().__init__("heliograph-lookout", interval_s)

    def add(self, look: Callable[[], None]) -> None:
        """Call this from now on. It must not block for long; what it raises is logged."""
        with self._changed:
            self._add(look)

    def discard(self, look: Callable[[], None]) -> None:
        """Call it no more; it may be running just now."""
        with self._changed:
            if look in self._items:
                self._items.remove(look)

    def _round(self) -> None:
        with self._changed:
            looks = list(self._items)
        for look in looks:
            try:
                look()
            except Exception as error:  # noqa: BLE001 - it is tried again in a second
                logger.warning("looking for new partitions failed, trying again: %s", describe(error))
