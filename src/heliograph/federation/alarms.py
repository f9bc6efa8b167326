"""What stands still on one connection until a person changes something, and what does not work and is tried again: told
once, and shown as long as it is so.
"""

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


class Troubles:
    """What does not work on one connection."""

    def __init__(self, line: Conversation) -> None:
        self._line = line
        self._told: dict[str, str] = {}

    def complain(self, about: str, text: str) -> None:
        """Something does not work, and is tried again. ``about``: a verb and its channel, for ``settled``."""
        if self._told.get(about) != text:
            self._told[about] = text
            logger.warning("link with %s: %s", self._line.session_peer, text)

    def settled(self, about: str) -> None:
        """It works again."""
        self._told.pop(about, None)

    def forgotten(self, channel: str) -> None:
        """It is not there any more, and nothing that did not work with it matters."""
        self._told = {about: text for about, text in self._told.items() if about.partition(" ")[2] != channel}

    @property
    def error(self) -> str:
        """One of them; empty when all is well."""
        return next(iter(self._told.values()), "")
