"""The connections of a hub that belong to clients without a log: several of one name, and no trace of any.

A client that comes back before its old connection was noticed to be dead gets the place of that one: what it had asked
there is done, or will never be done, before anything is asked here. So it may ask again whether it was done.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from heliograph.federation.counter import Counter
from heliograph.federation.crew import Places
from heliograph.federation.desk import Desk
from heliograph.federation.events import Called
from heliograph.federation.newsroom import Ends
from heliograph.federation.showing import shown
from heliograph.federation.storeroom import Storeroom
from heliograph.station.links import LinkInfo

if TYPE_CHECKING:
    from heliograph.config import Config
    from heliograph.federation.conversation import Conversation
    from heliograph.federation.terms import Shared

TIDY_S: Final = 60.0
"""How often it is looked for what clients laid aside, and do not come back for."""


def ephemeral(conversation: Conversation) -> bool:
    """Whether the other side keeps no log."""
    theirs = conversation.session.theirs if conversation.peer is not None else None
    return theirs is not None and theirs.ephemeral


class Clients:
    """All of them, and the desks of whoever asks for something."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._counter = Counter(shared.station)
        self._storeroom = Storeroom(shared.station, self._counter)
        self._tidy_at = 0.0
        self._places = Places()
        self._here: list[Conversation] = []
        self._desks: dict[Conversation, Desk] = {}

    async def admit(self, conversation: Conversation) -> None:
        """One more. Those of one name share a quota."""
        theirs = conversation.session.theirs
        for other in list(self._here):
            known = other.session.theirs
            if known is not None and theirs is not None and known.station == theirs.station:
                other.drop("its client came back")
                await other.finished.wait()
            elif other.session_peer == conversation.session_peer:
                conversation.storer.quota = other.storer.quota
        self._here.append(conversation)

    def left(self, conversation: Conversation) -> None:
        """Nobody remembers it."""
        if conversation in self._here:
            self._here.remove(conversation)
        desk = self._desks.pop(conversation, None)
        if desk is not None:
            self._shared.workers.submit(desk.end())

    def called(self, conversation: Conversation, event: Called) -> None:
        """It asks for something."""
        desk = self._desks.get(conversation)
        if desk is None:
            desk = self._desks[conversation] = Desk(conversation, self._counter, self._places, self._storeroom)
        desk.asked(event)

    def on_news(self, ends: Ends) -> None:
        """Channels grew."""
        for desk in self._desks.values():
            for channel in ends:
                desk.on_news(channel)

    def look(self) -> None:
        """Now and then."""
        now = asyncio.get_running_loop().time()
        if now >= self._tidy_at:
            self._tidy_at = now + TIDY_S
            self._shared.workers.submit(self._storeroom.tidy)

    def reload(self, config: Config) -> None:
        """Other settings from now on."""
        self._storeroom.room.bytes_max = config.hub.staged_bytes_max

    def infos(self) -> list[LinkInfo]:
        """Those that are here, as people see them."""
        engine = self._shared.station.engine
        return [shown(engine, one, "client", one.address, 0) for one in self._here if one.established_at is not None]
