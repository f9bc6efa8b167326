"""The sending half of a connection: reads what its session may send, in threads, and keeps how far that has come."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Collection, Iterable
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Final

from heliograph.errors import Busy, HeliographError, NotFound, StationClosed, StorageError
from heliograph.federation import again, events, packing
from heliograph.federation.lag import Lag
from heliograph.federation.outlet import Outlet, Renewed
from heliograph.federation.packing import Squeeze
from heliograph.federation.portions import Portion
from heliograph.federation.resume import Ends
from heliograph.federation.sending import Read
from heliograph.limits import BATCH_CHARGE_BYTES_MIN, BATCH_LINK_BYTES, LINK_STREAMS_MAX
from heliograph.log.cursor import LogCut
from heliograph.log.held import ChannelGone

if TYPE_CHECKING:
    from heliograph.federation.conversation import Conversation

logger = logging.getLogger("heliograph.links")
READS_MAX: Final = 4
"""How many streams are read at the same time."""
OPENS_MAX: Final = 8
"""How many channels are looked at at the same time while streams are opened."""
SOCKET_BYTES_MAX: Final = 1 << 20
"""Nothing more is read while so much waits for the socket."""
SAVE_S: Final = 2.0
"""How often positions are written down while they move."""
RETRY_S: Final = 1.0
"""After what pause the disk is asked again."""


class Sender:
    """Everything that one connection sends."""

    def __init__(self, line: Conversation, directory: Path, mode: packing.Mode) -> None:
        self._line = line
        self._session = line.session
        self._sending = line.session.sending
        self._news = line.shared.news
        self._loop = asyncio.get_running_loop()
        self._directory = directory
        self._squeeze = Squeeze(mode)
        self._outlets: dict[int, Outlet] = {}
        self._lags: dict[str, Lag] = {}
        self._opening: set[str] = set()
        self._gone: set[str] = set()  # channels that were not there when they were to be opened
        self._leaving: dict[str, asyncio.Task[None]] = {}  # what was known of a channel is written down
        self._opens = asyncio.Semaphore(OPENS_MAX)
        self._reads = 0
        self._keeping: dict[int, deque[events.Acked]] = {}  # acknowledgements behind one that refused something
        self._saving: asyncio.TimerHandle | None = None
        self.refused = 0
        self.crowded: dict[str, str] = {}
        """Channels that are too many for one link."""

    def compress(self, mode: packing.Mode) -> None:
        """Pack in another way from now on."""
        self._squeeze = Squeeze(mode)

    def offer(self, channels: Iterable[str], there: Collection[str] | None = None) -> None:
        """Open those of some channels that the other side is to be sent. ``there``: all that are here, if known."""
        if not self._session.established:
            return
        if there is not None:
            self.crowded = {channel: why for channel, why in self.crowded.items() if channel in there}
            self._forget_parked([channel for channel in self._sending.parked if channel not in there])
        gone, self._gone = self._gone, set()
        room = LINK_STREAMS_MAX - len(self._sending.channels)
        for channel in {*channels, *gone, *islice(self.crowded, max(0, room))}:
            if self._session.offers(channel) is None or self._sending.stream_of(channel):
                continue
            if channel not in self._opening and channel not in self._sending.parked:
                self._opening.add(channel)
                self._line.spawn(self._open(channel))

    def _forget_parked(self, gone: list[str]) -> None:
        """They were deleted while they stood still: nobody has to change anything any more."""
        if gone:
            self._sending.withdraw(gone)
            self._line.alarms.calm()
            self._line.flush()

    async def _open(self, channel: str) -> None:
        try:
            if channel in self._leaving:  # it would write over what is remembered from now on
                await asyncio.wait([self._leaving.pop(channel)])
            outlet = Outlet(self._line.shared.station, self._directory, self._line.session_peer, channel)
            prepared = await self._prepare(outlet)
            if prepared is None or self._line.over.is_set() or self._session.offers(channel) is None:
                return
            stream = self._sending.open(channel, *prepared)
            self.crowded.pop(channel, None)
            if stream:
                self._outlets[stream] = outlet
            self._line.flush()
        except NotFound:  # deleted meanwhile, and perhaps made again soon
            self._gone.add(channel)
            self._line.forgotten(channel)
        except Busy as error:
            self.crowded[channel] = str(error)
            self._line.alarm(channel, str(error), ours=True)
        finally:
            self._opening.discard(channel)

    async def _prepare(self, outlet: Outlet) -> tuple[int, Ends] | None:
        """What to open a stream with; None if it is not to be opened any more."""
        while not self._line.over.is_set():
            try:
                async with self._opens:
                    start = self._session.offers(outlet.channel)
                    if start is None or self._line.over.is_set():
                        return None
                    prepared = await self._line.run(outlet.prepare, start)
                self._line.settled(f"open {outlet.channel}")
                return prepared
            except (NotFound, StationClosed):
                raise
            except (HeliographError, OSError) as error:
                self._line.complain(f"open {outlet.channel}", f"'{outlet.channel}' cannot be looked at: {error}")
            await self._line.pause(RETRY_S)
        return None

    async def start(self, event: events.Resumed) -> None:
        """The other side said what it has: begin to send."""
        outlet = self._outlets.get(event.stream)
        if outlet is None:
            return
        try:
            begun = await self._line.run(outlet.begin, event, self._session.relays)
        except (Renewed, NotFound, ChannelGone, LogCut):
            self._reopen(event.stream, "the channel begins a new life")
            return
        except (StorageError, Busy, OSError) as error:
            self._line.complain(f"begin {event.channel}", f"'{event.channel}' cannot be looked at: {error}")
            await self._line.pause(RETRY_S)
            self._reopen(event.stream, "looked at again")
            return
        if self._sending.stream_of(event.channel) != event.stream or self._line.over.is_set():
            return
        self._line.settled(f"begin {event.channel}")
        sending = self._sending
        sending.begin(event.stream, begun.starts)
        sending.gap(event.stream, begun.gaps, "gone, or not for you")
        sending.gap(event.stream, begun.never, "no messages", never=True)
        lag = self._lags[event.channel] = Lag(begun.starts)
        for partition, end in begun.ends.items():
            lag.news(partition, end, self._loop.time())
            sending.news(event.stream, partition, end)
        self._news.watch(event.channel, outlet)
        self._save_soon()
        self.pump()
        self._line.flush()

    def on_news(self, channel: str, ends: dict[int, int] | None) -> None:
        """A channel grew, or is gone."""
        if self._line.over.is_set():
            return
        sending, lag = self._sending, self._lags.get(channel)
        stream = sending.stream_of(channel)
        if not stream or lag is None:
            return
        shorter = ends is not None and any(end < lag.acked.get(number, 0) for number, end in ends.items())
        if ends is None or shorter or self._outlets[stream].outlived:
            self._reopen(stream, "the channel begins a new life")
            return
        for partition, end in ends.items():
            lag.news(partition, end, self._loop.time())
            sending.news(stream, partition, end)
        self.pump()
        self._line.flush()

    def pump(self) -> None:
        """Read what may be sent, several streams at a time, as long as the socket takes it."""
        if self._session.closed:
            return
        while self._reads < READS_MAX and self._line.unsent() < SOCKET_BYTES_MAX:
            read = self._sending.next_read()
            if read is None:
                return
            ready = self._ready(read)
            if ready is not None:
                self._send_portion(read, ready, None)
                continue
            self._reads += 1
            self._line.spawn(self._read(read))

    def _ready(self, read: Read) -> Portion | None:
        """What was read ahead, unless it had better be packed."""
        outlet = self._outlets.get(read.stream)
        if outlet is None or self._squeeze.always:
            return None
        if self._sending.flying(read.stream) and self._line.congested():  # else there is nothing to ask the kernel for
            return None
        return outlet.ready(read)

    async def _read(self, read: Read) -> None:
        try:
            while (outlet := self._outlets.get(read.stream)) is not None and not self._line.over.is_set():
                try:
                    if await self._send(read, outlet):
                        self._line.settled(f"read {read.channel}")
                        return
                except (Renewed, NotFound, ChannelGone, LogCut) as error:
                    logger.info("'%s' to %s begins again: %s", read.channel, self._line.session_peer, error)
                    self._reopen(read.stream, "the channel begins a new life")
                    return
                except (HeliographError, OSError) as error:
                    self._line.complain(f"read {read.channel}", f"'{read.channel}' cannot be read: {error}")
                self._let_others()
                try:
                    await self._line.pause(RETRY_S)
                finally:
                    self._reads += 1
        finally:
            self._let_others()

    def _let_others(self) -> None:
        """One read less is under way, for now or at all: other streams may have the turn."""
        self._reads -= 1
        if not self._line.over.is_set():
            self.pump()
            self._line.flush()

    async def _send(self, read: Read, outlet: Outlet) -> bool:
        """Read and send; False if there is nothing to be read though there should be."""
        congested = self._line.congested()
        squeeze = self._squeeze if self._session.packs else None
        found = await self._line.run(_read, outlet, read, self._session.body_bytes_max, squeeze, congested)
        if not self._line.over.is_set():
            for portion, packed in found:
                self._send_portion(read, portion, packed)
            self._line.flush()
        return bool(found)

    def _send_portion(self, read: Read, portion: Portion, packed: bytes | None) -> None:
        sending = self._sending
        if portion.gaps is not None:
            sending.gap(read.stream, portion.gaps, "removed here")
        if not portion.body:
            moved = sending.skip(read.stream, read.partition, portion.next)
            if moved is not None:
                self.acked(moved)
        elif packed is None:
            sending.send(read.stream, read.partition, portion.first, portion.lines, portion.body)
        else:
            sending.send(read.stream, read.partition, portion.first, portion.lines, packed, unpacked=len(portion.body))

    def acked(self, event: events.Acked) -> None:
        """Everything before a position is stored there, or refused."""
        outlet = self._outlets.get(event.stream)
        if outlet is None:
            return
        lag = self._lags.get(event.channel)
        if lag is not None:
            lag.moved(event.partition, event.position)
        self.refused += len(event.refused)
        if event.stream in self._keeping:
            self._keeping[event.stream].append(event)
        elif event.refused:
            self._keeping[event.stream] = deque([event])
            self._line.spawn(self._keep(outlet, event.stream))
        else:
            outlet.acked(event.partition, event.position)
            self._save_soon()

    async def _keep(self, outlet: Outlet, stream: int) -> None:
        """Refused messages become dead letters before the position passes them."""
        queue = self._keeping[stream]
        while queue and not self._line.over.is_set():
            event = queue[0]
            try:
                if event.refused:
                    await self._line.run(outlet.refused, event.partition, event.refused)
                    self._line.settled(f"keep {event.channel}")
            except (HeliographError, OSError) as error:
                self._line.complain(
                    f"keep {event.channel}", f"refused messages of '{event.channel}' cannot be kept: {error}"
                )
                await self._line.pause(RETRY_S)
                continue
            outlet.acked(event.partition, event.position)
            queue.popleft()
        del self._keeping[stream]
        self._save_soon()

    def _save_soon(self) -> None:
        if self._saving is None and not self._line.over.is_set():
            self._saving = self._loop.call_later(SAVE_S, lambda: self._line.spawn(self._save()))

    async def _save(self) -> None:
        self._saving = None
        for outlet in list(self._outlets.values()):
            if outlet.unsaved:
                try:
                    await self._line.run(outlet.save)
                    self._line.settled(f"save {outlet.channel}")
                except (HeliographError, OSError) as error:
                    self._line.complain(
                        f"save {outlet.channel}", f"the position in '{outlet.channel}' cannot be saved: {error}"
                    )
                    self._save_soon()

    def _reopen(self, stream: int, why: str) -> None:
        """Begin a stream again with what is there now."""
        outlet = self._outlets.pop(stream, None)
        if outlet is None or self._line.over.is_set():
            return
        self._sending.shut(stream, why)
        self._drop(outlet)
        self._line.flush()
        self.offer([outlet.channel])

    def reopen_all(self) -> None:
        """The other side changed its rules: what may be relayed decides what is left out."""
        for stream in list(self._outlets):
            self._reopen(stream, "what may be relayed has changed")

    def send_again(self, asked: again.Asked) -> None:
        """Send once more what somebody asked for."""
        for channel in asked.get(self._directory, ()):
            self._reopen(self._sending.stream_of(channel), "some of it is sent again")

    def sweep(self) -> None:
        """Let go of streams that the session ended: parked by the other side, or not wanted any more."""
        if len(self._outlets) <= len(self._sending.channels):
            return
        for stream, outlet in list(self._outlets.items()):
            if self._sending.stream_of(outlet.channel) != stream:
                del self._outlets[stream]
                self._drop(outlet)

    def _drop(self, outlet: Outlet) -> None:
        if self._lags.pop(outlet.channel, None) is not None:
            self._news.unwatch(outlet.channel, outlet)
        self._leaving[outlet.channel] = self._line.spawn(self._put_away(outlet))

    async def _put_away(self, outlet: Outlet) -> None:
        with contextlib.suppress(HeliographError, OSError):
            await self._line.run(outlet.save)
        await self._line.run(outlet.close)

    def close(self) -> None:
        """The connection is over: save positions, let go of the files."""
        if self._saving is not None:
            self._saving.cancel()
        for outlet in self._outlets.values():
            self._drop(outlet)
        self._outlets.clear()

    # -- what is seen ---------------------------------------------------------------------------------------------

    def lag(self) -> tuple[int, float]:
        """How many messages are not acknowledged, and how long the oldest has waited."""
        now = self._loop.time()
        found = list(self._lags.values())
        return sum([lag.messages for lag in found]), max([lag.seconds(now) for lag in found], default=0.0)

    def waiting(self) -> list[str]:
        """Channels that are to be sent and do not flow; ``lag`` does not count them."""
        sending = self._sending
        found = {*self._session.denied, *sending.parked, *sending.channels, *self._opening, *self.crowded}
        return sorted(found - self._lags.keys())

    def flying(self) -> int:
        """Bytes that are sent and not acknowledged."""
        return sum([self._sending.flying(stream) for stream in self._outlets])


def _read(
    outlet: Outlet, read: Read, body_bytes_max: int, squeeze: Squeeze | None, congested: bool
) -> list[tuple[Portion, bytes | None]]:
    """In a thread: read batches, and pack them if that is likely to help."""
    found: list[tuple[Portion, bytes | None]] = []
    offset, room = read.offset, read.bytes
    while offset < read.end and room > 0:
        portion = outlet.read(read._replace(offset=offset, bytes=min(room, BATCH_LINK_BYTES)), body_bytes_max)
        if portion is None:
            break
        found.append((portion, _packed(portion.body, squeeze, congested)))
        offset = portion.next
        room -= max(len(portion.body), BATCH_CHARGE_BYTES_MIN)
    return found


def _packed(body: bytes, squeeze: Squeeze | None, congested: bool) -> bytes | None:
    if squeeze is None or not squeeze.wanted(len(body), congested=congested):
        return None
    packed = packing.pack(body)
    squeeze.packed(len(body), len(packed))
    return packed if len(packed) < len(body) else None
