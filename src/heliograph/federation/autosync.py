"""What a link does with the channels of its ``sync`` whenever it comes up: both sides get what they lack.

The streams of the link come first: what they bring need not be asked for. It is done again when either side changes
its rules, even while it is under way, for it may have been refused what is allowed now; and after a pause if it failed.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from heliograph.errors import HeliographError, StationClosed
from heliograph.federation import targets
from heliograph.federation.conversation import Conversation
from heliograph.federation.questions import Lost
from heliograph.federation.rules import EVERYTHING, Rules
from heliograph.federation.showing import since_now
from heliograph.federation.syncing import Left, Synced, Syncing, Way, channels_known
from heliograph.federation.targets import Target
from heliograph.station.links import LinkSync

if TYPE_CHECKING:
    from heliograph.station import Station

logger = logging.getLogger("heliograph.links")
LOOK_S: Final = 0.25
"""How often the streams are looked at."""
QUIET_S_MAX: Final = 30.0
"""How long they are waited for: there may always be something on its way."""
AGAIN_S: Final = 30.0
"""After what pause a sync that failed is begun again."""


class AutoSync:
    """The syncs of one link, one at a time."""

    def __init__(self, station: Station) -> None:
        self._station = station
        self._running: Conversation | None = None
        self._channels: tuple[str, ...] = ()
        self._due = False
        self.last: LinkSync | None = None

    def begin(self, conversation: Conversation, channels: tuple[str, ...]) -> None:
        """The connection works, or its rules changed: sync beside it, from the beginning if that is under way."""
        self._channels, self._due = channels, True
        if channels and self._running is not conversation:
            self._running = conversation
            conversation.spawn(self._run(conversation))

    async def _run(self, conversation: Conversation) -> None:
        try:
            while self._due and self._channels and self._running is conversation and not conversation.over.is_set():
                self._due = False
                self.last = await self._once(conversation)
                if self.last.error and not self._due:
                    self._due = True
                    await conversation.pause(AGAIN_S)
        except StationClosed:
            return
        finally:
            if self._running is conversation:
                self._running = None

    async def _once(self, conversation: Conversation) -> LinkSync:
        done: list[Synced] = []
        error = ""
        try:
            await _quiet(conversation)
            await self._sync(conversation, self._channels, done)
        except StationClosed:
            raise
        except Lost as failure:
            error = str(failure)
        except (HeliographError, OSError) as failure:
            error = str(failure)
            logger.warning("the sync with %s ended: %s", conversation.session_peer, error)
        return LinkSync(
            time=since_now(self._station.engine), channels=len(done), fetched=sum([one.fetched for one in done]),
            sent=sum([one.sent for one in done]), left={one.channel: _words(one.left) for one in done if one.left},
            error=error,
        )  # fmt: skip

    async def _sync(self, conversation: Conversation, channels: tuple[str, ...], done: list[Synced]) -> None:
        session, peer = conversation.session, conversation.session_peer
        way = Way(peer, conversation.questions.ask, conversation.run, lambda: session.body_bytes_max)
        rules = Rules(peer, channels, channels, [EVERYTHING])
        for channel in targets.meant([Target(channels)], await channels_known(self._station, way)):
            done.append(await Syncing(self._station, way, channel, rules).run())
            moved = done[-1].fetched or done[-1].sent
            if moved:
                await conversation.run(self._audit, peer, done[-1])

    def _audit(self, peer: str, one: Synced) -> None:
        logger.info("'%s' was synced with %s: %d fetched, %d sent", one.channel, peer, one.fetched, one.sent)
        self._station.engine.audit.write(
            "synced", peer=peer, channel=one.channel, fetched=one.fetched, sent=one.sent, equal=one.equal
        )


async def _quiet(conversation: Conversation) -> None:
    """Wait until the streams have brought what they bring, twice in a row: they may just have been opened."""
    looks = 0
    for _ in range(round(QUIET_S_MAX / LOOK_S)):
        busy = conversation.sender.lag()[0] or conversation.in_flight()
        looks = 0 if busy else looks + 1
        if looks > 2 or conversation.over.is_set():
            return
        await conversation.pause(LOOK_S)


def _words(left: list[Left]) -> str:
    """What is not equal, on one line.

    >>> _words([Left(side="here", origin="host1.k", messages=3, why="gone", reason="hub has removed what it had")])
    '3 of host1.k are lacking here: gone (hub has removed what it had)'
    """
    return "; ".join(
        [f"{one.messages} of {one.origin} are lacking {one.side}: {one.why} ({one.reason})" for one in left]
    )
