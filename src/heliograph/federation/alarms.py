"""What stands still on one connection until a person changes something: told once, and shown as long as it does."""

from __future__ import annotations

import itertools
import logging
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from heliograph.federation.conversation import Conversation

logger = logging.getLogger("heliograph.links")
ALARMS_MAX: Final = 1_000


class Alarms:
    """Those of one connection."""

    def __init__(self, line: Conversation) -> None:
        self._line = line
        self._told: dict[tuple[str, bool], str] = {}

    def sound(self, channel: str, reason: str, *, ours: bool) -> None:
        """Tell of a channel, once. ``ours``: it is what we would like to do."""
        if self._told.get((channel, ours)) == reason or len(self._told) > ALARMS_MAX:
            return
        self._told[channel, ours] = reason
        peer, shared = self._line.session_peer, self._line.shared
        by, audit = peer if ours else "this station", shared.station.engine.audit
        logger.warning("'%s' is parked on the link with %s by %s: %s", channel, peer, by, reason)
        shared.workers.submit(lambda: audit.write("link-parked", peer=peer, channel=channel, by=by, why=reason))

    def calm(self) -> None:
        """Something goes on: should it stand still again, that is worth another word."""
        parked = self.parked()
        self._told = {told: why for told, why in self._told.items() if told[0] in parked}

    def parked(self) -> dict[str, str]:
        """What stands still now, and why; not more than anybody can read."""
        found = {**self._line.session.parked(), **self._line.sender.crowded}
        return dict(itertools.islice(found.items(), ALARMS_MAX))
