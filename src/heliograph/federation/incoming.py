"""The receiving half of a connection: stores what arrives, in threads, and acknowledges it when it is on disk.

While some is synced, what came after it is appended already. Each waits for the one before with its acknowledgement,
and with being appended again if a failure makes that necessary: so nothing overtakes anything::

    append ──▶ sync ──▶ acknowledge
               append ──▶ sync ──▶ acknowledge
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Final

from heliograph.engine.knowledge import Outdated
from heliograph.errors import HeliographError, NotAllowed, NotFound, ProtocolError
from heliograph.federation import events
from heliograph.federation.inlet import Deleted, Inlet, Stored
from heliograph.federation.quota import Quota
from heliograph.federation.rules import Rules

if TYPE_CHECKING:
    from heliograph.federation.conversation import Conversation

WAITING_MAX: Final = 10_000
"""Batches and gaps of one channel that wait for the disk; more than the windows allow is an attack."""
GAPS_MAX: Final = 1_000_000
"""Pieces of gaps among them, which windows do not count. Of more than that nothing is kept: nothing depends on them."""
GAPS_TOGETHER: Final = 1_000
"""So many pieces that come one after the other are stored as one: a log that was compacted tells of few at a time."""
STORE_BYTES: Final = 2 << 20
"""How much is stored at once: a part of the window, so that the sender goes on while it is stored. And much of it, for
a sync takes nearly as long for less."""
UNDER_WAY_MAX: Final = 3
"""One is acknowledged and one synced while the next is appended."""
QUOTA_LOOK_S: Final = 0.5
"""How often whoever waits for a quota looks whether there is another one."""
READERS_FIRST_S: Final = 0.001
"""After what pause the one who sent a message that came alone is told: whoever waits here to read it was woken already,
and would have to share the interpreter. If another one comes meanwhile, it is told at once."""
RETRY_S: Final = 1.0
"""After what pause the disk is asked again."""

Item = events.Arrived | events.Gapped


class _Flow:
    """One channel that arrives."""

    __slots__ = ("inlet", "latest", "life", "pieces", "storing", "under_way", "waiting")

    def __init__(self, inlet: Inlet) -> None:
        self.inlet = inlet
        self.waiting: deque[Item] = deque()
        self.under_way: deque[asyncio.Task[None]] = deque()  # what is being stored, in order
        self.latest: _Turn | None = None  # of what is being stored
        self.life = ""  # of the channel, when the last of it was appended
        self.storing = False
        self.pieces = 0  # of the gaps that wait

    def put(self, event: Item) -> bool:
        """One more that waits; False if it is not kept."""
        if isinstance(event, events.Arrived):
            self.waiting.append(event)
            return True
        more = event.gaps.pieces
        if self.pieces + more > GAPS_MAX:
            return False
        last = self.waiting[-1] if self.waiting else None
        if isinstance(last, events.Gapped) and (last.stream, last.never) == (event.stream, event.never):
            before = last.gaps.pieces
            if before + more <= GAPS_TOGETHER:
                last.gaps.update(event.gaps)
                self.pieces += last.gaps.pieces - before
                return True
        self.waiting.append(event)
        self.pieces += more
        return True

    def full(self) -> bool:
        """Whether as much is under way as may be."""
        while self.under_way and self.under_way[0].done():
            self.under_way.popleft()
        return len(self.under_way) >= UNDER_WAY_MAX

    def take(self) -> list[Item]:
        """The oldest of what waits, as much as is stored at once."""
        items: list[Item] = []
        size = 0
        while self.waiting and size < STORE_BYTES:
            item = self.waiting.popleft()
            items.append(item)
            if isinstance(item, events.Arrived):
                size += item.size
            else:
                self.pieces -= item.gaps.pieces
        return items


class _Turn:
    """What is stored at once, behind what comes before."""

    __slots__ = ("before", "items", "life", "storing", "written")

    def __init__(self, items: list[Item], before: asyncio.Task[None] | None, written: asyncio.Future[str]) -> None:
        self.items = items
        self.before = before
        self.written = written
        self.life = ""  # the channel's, in which it was written; set in another thread
        self.storing: asyncio.Future[Stored]  # at the disk, from the beginning

    def tell(self) -> None:
        """It is written, or never will be: the next may be. Whoever comes first counts."""
        if not self.written.done():
            self.written.set_result(self.life)

    async def comes(self) -> None:
        """Wait until what comes before is done with."""
        if self.before is not None:
            await asyncio.wait([self.before])


class Storer:
    """Everything that arrives on one connection."""

    def __init__(self, line: Conversation, rules: Rules, quota: Quota) -> None:
        self._line = line
        self._receiving = line.session.receiving
        self._loop = asyncio.get_running_loop()
        self.rules = rules
        self.quota = quota
        self._flows: dict[str, _Flow] = {}
        self._alone: dict[_Flow, Callable[[], object]] = {}  # what is stored without a task, and how one begins
        self._absent: set[str] = set()  # channels that are parked because they are not here, and not to be made

    def ended(self, channel: str) -> None:
        """The other side sends it no more. What was not acknowledged comes again some day."""
        self._flows.pop(channel, None)
        self._line.settled(f"store {channel}")

    async def resume(self, event: events.Opened) -> None:
        """Say what is here already."""
        inlet = Inlet(self._line.shared.station, event.channel, self._line.session_peer)
        while not self._line.over.is_set() and self._arrives(event.channel, event.stream):
            try:
                standing = await self._line.run(inlet.standing, event.ends, self.rules)
                if not self._arrives(event.channel, event.stream):
                    return
                self._flows[event.channel] = _Flow(inlet)
                self._receiving.resume(event.stream, *standing)
                self._line.settled(f"resume {event.channel}")
                self._line.flush()
                return
            except NotFound:
                self._line.settled(f"resume {event.channel}")
                self._lack(event.stream, event.channel)
                return
            except (HeliographError, OSError) as error:
                self._line.complain(f"resume {event.channel}", f"'{event.channel}' cannot be looked at: {error}")
            await self._line.pause(RETRY_S)
        self._line.settled(f"resume {event.channel}")

    def arrived(self, event: Item) -> None:
        """Lines, or a word that some will never come: stored in turn."""
        flow = self._flows.get(event.channel)
        if flow is None or not flow.put(event):
            return
        if len(flow.waiting) > WAITING_MAX:
            self._line.fail(ProtocolError(f"too many frames of '{event.channel}' wait"))
        elif not flow.storing:
            flow.storing = True
            if flow.full():
                self._line.spawn(self._store(event.channel, flow, None))
            else:
                self._leave_alone(event.channel, flow, self._begin(flow))
        else:
            self._attend(flow)
            if flow.latest is not None and flow.latest.life:
                flow.latest.tell()

    def _leave_alone(self, channel: str, flow: _Flow, turn: _Turn) -> None:
        """Nothing else came yet: whoever stores it has the interpreter at once, and a task begins when it is done."""
        self._alone[flow] = lambda: self._line.spawn(self._store(channel, flow, turn))
        turn.storing.add_done_callback(lambda _: self._loop.call_later(READERS_FIRST_S, self._attend, flow))

    def _attend(self, flow: _Flow) -> None:
        """It is stored, or does not come alone: see to the rest."""
        begin = self._alone.pop(flow, None)
        if begin is not None:
            begin()

    def close(self) -> None:
        """The connection is over: whoever waits for its tasks waits for what is at the disk, too."""
        for flow in list(self._alone):
            self._attend(flow)

    def _begin(self, flow: _Flow) -> _Turn:
        """Have some of what waits stored. A thread begins with it at once: it is a while until a task comes round."""
        before = flow.under_way[-1] if flow.under_way else None
        turn = flow.latest = _Turn(flow.take(), before, self._loop.create_future())
        self._start(flow, turn, flow.life if before is not None else "")
        return turn

    def _start(self, flow: _Flow, turn: _Turn, life: str) -> None:
        def written(life: str) -> None:
            turn.life = life
            if flow.waiting:  # else whoever comes next sees it: to wake the loop would keep the sync from beginning
                with contextlib.suppress(RuntimeError):  # the loop is closed
                    self._loop.call_soon_threadsafe(turn.tell)

        turn.life = ""
        turn.storing = self._line.start(flow.inlet.store, turn.items, self.rules, written, life)

    async def _store(self, channel: str, flow: _Flow, turn: _Turn | None) -> None:
        """Take all that waits and store it: the next once the one before is written."""
        try:
            while turn is not None or (
                flow.waiting and self._flows.get(channel) is flow and not self._line.over.is_set()
            ):
                while turn is None and flow.full():
                    await asyncio.wait([flow.under_way[0]])
                turn = turn or self._begin(flow)
                flow.under_way.append(self._line.spawn(self._store_items(channel, flow, turn)))
                flow.life = await turn.written or flow.life
                turn = None
        finally:
            flow.storing = False

    async def _store_items(self, channel: str, flow: _Flow, turn: _Turn) -> None:
        try:
            stored = await self._stored(channel, flow, turn)
            await turn.comes()
            if stored is not None:
                await self._acknowledge(channel, flow, stored)
        finally:
            turn.tell()

    async def _stored(self, channel: str, flow: _Flow, turn: _Turn) -> Stored | None:
        """Wait until it is stored, however often that takes; None if it cannot be."""
        while True:
            try:
                stored = await turn.storing
                self._line.settled(f"store {channel}")
                return stored
            except (NotAllowed, NotFound) as error:
                await turn.comes()
                if isinstance(error, NotFound):
                    self._lack(turn.items[0].stream, channel)
                else:
                    self._park(turn.items[0].stream, channel, str(error))
                return None
            except ProtocolError as error:
                self._line.fail(error)
                return None
            except Deleted:
                await turn.comes()
                self._park(turn.items[0].stream, channel, f"'{channel}' was deleted there, and begins anew")
                self._receiving.unpark(channel)
                self._line.alarms.calm()
                self._line.flush()
                return None
            except Outdated:  # what comes before may have to be appended again first
                pause = 0.0
            except (HeliographError, OSError) as error:
                self._line.complain(
                    f"store {channel}", f"'{channel}' cannot be stored, and is not acknowledged: {error}"
                )
                pause = RETRY_S
            await self._line.pause(pause)
            await turn.comes()
            if self._line.over.is_set() or self._flows.get(channel) is not flow:
                return None
            self._start(flow, turn, "")

    async def _acknowledge(self, channel: str, flow: _Flow, stored: Stored) -> None:
        await self.pay(stored.messages, stored.size)
        if self._line.over.is_set() or self._flows.get(channel) is not flow:
            return
        for (stream, partition), (following, refused) in stored.acks.items():
            self._receiving.acknowledge(stream, partition, following, refused)
        self._line.flush()

    async def pay(self, messages: int, size: int) -> None:
        """Wait until so much is within the quota, as long as that is the quota."""
        quota = self.quota
        left = quota.take(self._loop.time(), messages, size)
        while left > 0 and self.quota is quota and not self._line.over.is_set():
            await self._line.pause(min(left, QUOTA_LOOK_S))
            left -= QUOTA_LOOK_S

    def found(self, channels: Collection[str]) -> None:
        """These are here: what was parked because it was not goes on."""
        self._absent.intersection_update(self._receiving.parked)  # of the rest nobody asks any more
        for channel in [channel for channel in self._absent if channel in channels]:
            self._absent.discard(channel)
            self._receiving.unpark(channel)
            self._line.alarms.calm()
            self._line.flush()

    def _lack(self, stream: int, channel: str) -> None:
        """The channel is not here, and not to be made: it waits for whoever makes it. No word of paths."""
        if self._arrives(channel, stream):
            self._absent.add(channel)
            name = self._line.shared.station.engine.name
            why = f"{name} has no channel '{channel}' and makes none by itself (storage.auto_create): create it there"
            self._park(stream, channel, why)

    def _park(self, stream: int, channel: str, reason: str) -> None:
        """Not allowed, or not possible: the channel stands still on this link, the others go on."""
        if not self._arrives(channel, stream):
            return
        self._flows.pop(channel, None)
        self._receiving.park(stream, reason)
        self._line.alarm(channel, reason, ours=False)
        self._line.flush()

    def _arrives(self, channel: str, stream: int) -> bool:
        """Whether a channel still comes as this stream: it may have ended while somebody was at the disk, and begun."""
        return self._receiving.channels.get(channel) == stream
