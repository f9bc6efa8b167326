"""The receiving half of a connection: stores what arrives, in threads, and acknowledges it when it is on disk."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Final

from heliograph.errors import HeliographError, NotAllowed, NotFound, ProtocolError
from heliograph.federation import events
from heliograph.federation.inlet import Inlet
from heliograph.federation.quota import Quota
from heliograph.federation.rules import Rules

if TYPE_CHECKING:
    from heliograph.federation.conversation import Conversation

WAITING_MAX: Final = 10_000
"""Batches and gaps of one channel that wait for the disk; more than the windows allow is an attack."""
GAPS_MAX: Final = 200
"""Gaps among them: windows do not count these."""
STORE_BYTES: Final = 1 << 20
"""How much is stored at once: a part of the window, so that the sender goes on while it is stored."""
RETRY_S: Final = 1.0
"""After what pause the disk is asked again."""

Item = events.Arrived | events.Gapped


class Storer:
    """Everything that arrives on one connection."""

    def __init__(self, line: Conversation, rules: Rules, quota: Quota) -> None:
        self._line = line
        self._receiving = line.session.receiving
        self._loop = asyncio.get_running_loop()
        self.rules = rules
        self.quota = quota
        self._inlets: dict[str, tuple[Inlet, deque[Item]]] = {}
        self._storing: set[str] = set()

    def ended(self, channel: str) -> None:
        """The other side sends it no more. What was not acknowledged comes again some day."""
        self._inlets.pop(channel, None)
        self._line.settled(f"store {channel}")

    async def resume(self, event: events.Opened) -> None:
        """Say what is here already."""
        inlet = Inlet(self._line.shared.station, event.channel, self._line.session_peer)
        while not self._line.over.is_set():
            try:
                standing = await self._line.run(inlet.standing, event.ends)
                self._inlets[event.channel] = (inlet, deque())
                self._receiving.resume(event.stream, *standing)
                self._line.settled(f"resume {event.channel}")
                self._line.flush()
                return
            except NotFound as error:
                self._park(event.stream, event.channel, str(error))
                return
            except (HeliographError, OSError) as error:
                self._line.complain(f"resume {event.channel}", f"'{event.channel}' cannot be looked at: {error}")
            await self._line.pause(RETRY_S)

    def arrived(self, event: Item) -> None:
        """Lines, or a word that some will never come: stored in turn."""
        found = self._inlets.get(event.channel)
        if found is None:
            return
        found[1].append(event)
        gaps = isinstance(event, events.Gapped) and sum(isinstance(item, events.Gapped) for item in found[1])
        if len(found[1]) > WAITING_MAX or gaps > GAPS_MAX:
            self._line.fail(ProtocolError(f"too many frames of '{event.channel}' wait"))
        elif event.channel not in self._storing:
            self._storing.add(event.channel)
            self._line.spawn(self._store(event.channel))

    async def _store(self, channel: str) -> None:
        """One at a time for each channel: take all that waits, store it, acknowledge it."""
        try:
            while channel in self._inlets and self._inlets[channel][1] and not self._line.over.is_set():
                inlet, waiting = self._inlets[channel]
                await self._store_items(channel, inlet, _take(waiting))
        finally:
            self._storing.discard(channel)

    async def _store_items(self, channel: str, inlet: Inlet, items: list[Item]) -> None:
        while not self._line.over.is_set():
            try:
                stored = await self._line.run(inlet.store, items, self.rules)
                self._line.settled(f"store {channel}")
                break
            except (NotAllowed, NotFound) as error:
                self._park(items[0].stream, channel, str(error))
                return
            except ProtocolError as error:
                self._line.fail(error)
                return
            except (HeliographError, OSError) as error:
                self._line.complain(
                    f"store {channel}", f"'{channel}' cannot be stored, and is not acknowledged: {error}"
                )
            await self._line.pause(RETRY_S)
        else:
            return
        wait = self.quota.take(self._loop.time(), stored.messages, stored.size)
        if wait > 0:
            await self._line.pause(wait)
        if self._line.over.is_set() or self._inlets.get(channel, (None,))[0] is not inlet:
            return
        for (stream, partition), (following, refused) in stored.acks.items():
            self._receiving.acknowledge(stream, partition, following, refused)
        self._line.flush()

    def _park(self, stream: int, channel: str, reason: str) -> None:
        """Not allowed, or not possible: the channel stands still on this link, the others go on."""
        self._inlets.pop(channel, None)
        self._receiving.park(stream, reason)
        self._line.alarm(channel, reason, ours=False)
        self._line.flush()


def _take(waiting: deque[Item]) -> list[Item]:
    """The oldest of what waits, as much as is stored at once."""
    items: list[Item] = []
    size = 0
    while waiting and size < STORE_BYTES:
        items.append(waiting.popleft())
        size += items[-1].size if isinstance(items[-1], events.Arrived) else 0
    return items
