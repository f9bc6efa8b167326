"""A partition as one reader knows it: of the channel that was there when it began.

A channel may be deleted and made again under its name. Offsets then begin anew, so whoever went on reading at its own
would pass over the first messages of the new one without a word.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from heliograph.engine.partitions import OpenPartition, OpenPartitions
from heliograph.errors import NotFound
from heliograph.log.head import Limit
from heliograph.log.indexing import Place


class OneLife:
    """What a cursor asks of a partition (cursor.Log); refuses the partition of a channel that was made later."""

    def __init__(
        self, opened: OpenPartitions, channel: str, place: Place, birth: datetime, ask: Callable[[str], datetime]
    ) -> None:
        self.place = place
        self._opened = opened
        self._channel = channel
        self._birth = birth
        self._ask = ask
        self._known: OpenPartition | None = None

    def limit(self) -> Limit:
        """How far readers may go."""
        entry, limit = self._opened.use(self._channel, self.place.number, lambda entry: (entry, entry.log.limit()))
        if entry is not self._known:  # closed for room, or deleted: what is opened then may be another channel's
            if self._ask(self._channel) != self._birth:
                raise NotFound(f"channel '{self._channel}' was deleted and made again")
            self._known = entry
        return limit
