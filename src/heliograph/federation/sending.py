"""The sending half of a session: a stream for each channel, each with a window of its own.

    open ──OPEN──▶ waiting ──RESUME──▶ resumed ──begin──▶ flowing ──PARK or shut──▶ gone

A stream flows as long as fewer bytes are on their way than its window; a batch that is larger than the whole window
travels alone. Streams take turns, and the partitions of a stream: a channel that is not acknowledged stands still by
itself. Calls for a stream that is gone meanwhile do nothing: its reader may have been at work in another thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from heliograph.errors import Busy, ProtocolError
from heliograph.federation import frames
from heliograph.federation.events import Acked, Event, Parked, Resumed, Unparked
from heliograph.federation.frames import Buffer, Header
from heliograph.federation.resume import Ends, ends_from, fitting_ends, portions
from heliograph.limits import (
    BATCH_CHARGE_BYTES_MIN,
    LINK_STREAMS_MAX,
    LINK_TEXT_CHARS_MAX,
    LINK_WINDOW_BYTES_MAX,
    READ_LINK_BYTES,
)
from heliograph.seen import SeenSet

Say = Callable[[Header, Buffer], None]


def charge(size: int) -> int:
    """What a batch counts for the window: a small one as much as the memory around it."""
    return max(size, BATCH_CHARGE_BYTES_MIN)


class Read(NamedTuple):
    """What to read next: then call ``send`` or ``skip``, once for each batch of it."""

    stream: int
    channel: str
    partition: int
    offset: int
    bytes: int
    """How much, about; at least one line, however long it is."""
    end: int
    """There are lines up to here."""


class _Part:
    """One partition of a stream."""

    __slots__ = ("acked", "end", "flown", "flying", "sent")

    def __init__(self, start: int) -> None:
        self.acked = self.sent = start
        self.end = start
        self.flown = start  # where the last batch ends that is on its way: later ones may be held
        self.flying: deque[tuple[int, int]] = deque()  # where each batch ends, and its bytes; 0 of what was skipped

    def settle(self, following: int) -> int:
        """Take off what is acknowledged, and what was skipped behind it; the bytes that are free again."""
        freed = 0
        self.acked = following
        while self.flying and (self.flying[0][0] <= self.acked or self.flying[0][1] == 0):
            end, size = self.flying.popleft()
            freed += size
            self.acked = max(self.acked, end)
        return freed


class _Stream:
    """One channel on its way."""

    __slots__ = ("behind", "channel", "flying", "held", "number", "parts", "reading", "resumed", "window")

    def __init__(self, number: int, channel: str) -> None:
        self.number = number
        self.channel = channel
        self.window = 0
        self.flying = 0
        self.resumed = False
        self.reading = -1  # the partition whose lines are being read
        self.held: deque[tuple[frames.Batch, Buffer]] = deque()  # read, and too large for what is left of the window
        self.parts: dict[int, _Part] = {}
        self.behind: dict[int, None] = {}  # partitions with something to send, in the order of their turns

    def fits(self, size: int) -> bool:
        return not self.flying or self.flying + charge(size) <= self.window

    def next_read(self) -> Read | None:
        """The next turn: worth its while, or nothing is on its way."""
        room = self.window - self.flying
        if self.reading >= 0 or self.held or not self.behind or (self.flying and room < self.window // 4):
            return None
        partition = next(iter(self.behind))
        del self.behind[partition]
        self.reading = partition
        part = self.parts[partition]
        return Read(self.number, self.channel, partition, part.sent, min(READ_LINK_BYTES, max(room, 1)), part.end)

    def note(self, partition: int) -> None:
        """Whether a partition has something to send may have changed: one read becomes several batches."""
        part = self.parts[partition]
        if part.sent >= part.end:
            self.behind.pop(partition, None)
        elif self.reading != partition:
            self.behind.setdefault(partition)


class Sending:
    """Every stream that this side sends."""

    def __init__(self, say: Say) -> None:
        self._say = say
        self._last = 0
        self._streams: dict[int, _Stream] = {}
        self._channels: dict[str, int] = {}
        self._turns: dict[int, None] = {}  # streams that may have something to read, in order
        self.parked: dict[str, str] = {}
        """Channels that the other side does not allow, and why."""

    # -- for whoever runs the session -----------------------------------------------------------------------

    def open(self, channel: str, partitions: int, ends: Ends) -> int:
        """Begin to send a channel; its number, or 0 if it is parked. If it is open already, that one's."""
        if channel in self._channels:
            return self._channels[channel]
        if channel in self.parked:
            return 0
        if len(self._streams) >= LINK_STREAMS_MAX:
            raise Busy(f"a link carries at most {LINK_STREAMS_MAX} channels; '{channel}' is one more")
        self._last += 1
        self._streams[self._last] = _Stream(self._last, channel)
        self._channels[channel] = self._last
        self._say(frames.Open(stream=self._last, channel=channel, partitions=partitions, ends=fitting_ends(ends)), b"")
        return self._last

    def begin(self, stream: int, starts: Mapping[int, int]) -> None:
        """After Resumed: where each partition begins. Partitions that are added later begin with their first news."""
        found = self._streams.get(stream)
        if found is None or not found.resumed or found.parts:
            return
        for partition, start in starts.items():
            found.parts[partition] = _Part(start)

    def news(self, stream: int, partition: int, end: int) -> None:
        """The partition's durable lines end before ``end`` now; begins at 0 if it is new."""
        found = self._streams.get(stream)
        if found is None or not found.parts:
            return
        if partition not in found.parts:
            found.parts[partition] = _Part(0)
        part = found.parts[partition]
        part.end = max(part.end, end)
        found.note(partition)
        self._turns.setdefault(stream)

    def next_read(self) -> Read | None:
        """What to read and send next, streams in turn; None until there is news, or room in a window."""
        while self._turns:
            number = next(iter(self._turns))
            del self._turns[number]
            read = self._streams[number].next_read()
            if read is not None:
                self._turns[number] = None
                return read
        return None

    def send(
        self, stream: int, partition: int, first: int, count: int, body: Buffer, *, unpacked: int | None = None
    ) -> None:
        """Send lines that were read. ``unpacked``: how many bytes they have, if ``body`` is packed."""
        found = self._streams.get(stream)
        if found is None:
            return
        size = len(body) if unpacked is None else unpacked
        batch = frames.Batch(
            stream=stream, partition=partition, first=first, count=count, size=size, packed=unpacked is not None
        )
        part = found.parts[partition]
        if first < part.sent:
            raise ValueError(f"lines from {first} on were sent already, up to {part.sent}")
        if first > part.sent:
            _pass(part, first)
        part.sent = first + count
        found.reading = -1
        found.note(partition)
        self._turns.setdefault(stream)
        part.flying.append((part.sent, charge(size)))
        found.held.append((batch, body))
        self._release(found)

    def skip(self, stream: int, partition: int, following: int) -> Acked | None:
        """Nothing to send before ``following``: all blank, or not for the other side. The position, if it moves."""
        found = self._streams.get(stream)
        if found is None:
            return None
        part = found.parts[partition]
        found.reading = -1
        moved = _pass(part, following)
        found.note(partition)
        self._turns.setdefault(stream)
        return (
            Acked(stream=stream, channel=found.channel, partition=partition, position=part.acked, refused=())
            if moved
            else None
        )

    def gap(self, stream: int, gaps: SeenSet, reason: str, *, never: bool = False) -> None:
        """Tell that some sequences will never come. ``never``: because no message has them."""
        if stream in self._streams:
            for portion in portions(gaps):
                said = reason[:LINK_TEXT_CHARS_MAX]
                self._say(frames.Gap(stream=stream, gaps=portion.to_json(), reason=said, never=never), b"")

    def shut(self, stream: int, reason: str) -> None:
        """End a stream, if it is there."""
        if self._forget(stream):
            self._say(frames.Shut(stream=stream, reason=reason[:LINK_TEXT_CHARS_MAX]), b"")

    def withdraw(self, channels: Iterable[str]) -> None:
        """Ask no more for some that are parked: they are not to be sent, or are not there any more."""
        for channel in channels:
            del self.parked[channel]
            self._say(frames.Unpark(channel=channel, withdrawn=True), b"")

    def stream_of(self, channel: str) -> int:
        """The number of a channel's stream; 0 if there is none."""
        return self._channels.get(channel, 0)

    @property
    def channels(self) -> Mapping[str, int]:
        """The channels that are open, and the numbers of their streams."""
        return self._channels

    def flying(self, stream: int) -> int:
        """What is sent and not acknowledged of a stream, as it counts for its window."""
        return self._streams[stream].flying if stream in self._streams else 0

    @property
    def idle(self) -> bool:
        """Whether nothing is on its way."""
        return not any(stream.flying or stream.held for stream in self._streams.values())

    # -- what the other side says ---------------------------------------------------------------------------

    def on_resume(self, said: frames.Resume) -> list[Event]:
        """The other side has looked what it has."""
        found = self._known(said.stream)
        if found is None:
            return []
        if found.resumed:
            raise ProtocolError(f"a second RESUME of stream {said.stream}")
        found.resumed = True
        found.window = min(said.window, LINK_WINDOW_BYTES_MAX)
        try:
            seen, ends = SeenSet.from_json(said.seen), ends_from(said.ends)
        except ValueError as error:
            raise ProtocolError(f"the RESUME of stream {said.stream} is not valid: {error}") from None
        return [Resumed(stream=said.stream, channel=found.channel, origin=said.origin, seen=seen, ends=ends)]

    def on_ack(self, said: frames.Ack) -> list[Event]:
        """Some of what was sent is stored, or refused."""
        found = self._known(said.stream)
        if found is None:
            return []
        part = found.parts.get(said.partition)
        if part is None or not part.acked < said.next <= part.flown:
            raise ProtocolError(f"an ACK of {said.partition}/{said.next} on stream {said.stream}, which is not awaited")
        if any(not part.acked <= offset < said.next for offset, _ in said.refused):
            raise ProtocolError(f"an ACK on stream {said.stream} refuses what it does not acknowledge")
        if len({offset for offset, _ in said.refused}) != len(said.refused):  # each would be a letter
            raise ProtocolError(f"an ACK on stream {said.stream} refuses a message twice")
        found.flying -= part.settle(said.next)
        self._release(found)
        self._turns.setdefault(said.stream)
        return [
            Acked(
                stream=said.stream,
                channel=found.channel,
                partition=said.partition,
                position=part.acked,
                refused=said.refused,
            )
        ]

    def on_window(self, said: frames.Window) -> list[Event]:
        """More, or less, may be on its way from now on."""
        found = self._known(said.stream)
        if found is not None:
            found.window = min(said.bytes, LINK_WINDOW_BYTES_MAX)
            self._release(found)
            self._turns.setdefault(said.stream)
        return []

    def on_park(self, said: frames.Park) -> list[Event]:
        """The other side does not allow it."""
        if said.stream == 0:  # something that this side wanted to be sent
            return [Parked(stream=0, channel=said.channel, reason=said.reason)]
        found = self._known(said.stream)
        if found is None:
            return []
        self._forget(said.stream)
        self.parked[found.channel] = said.reason
        self._say(frames.Shut(stream=said.stream), b"")
        return [Parked(stream=said.stream, channel=found.channel, reason=said.reason)]

    def on_unpark(self, said: frames.Unpark) -> list[Event]:
        """It does now."""
        self.parked.pop(said.channel, None)
        return [Unparked(channel=said.channel)]

    def _known(self, stream: int) -> _Stream | None:
        """A stream that is there; None if it is over; an error if it never was."""
        if not 0 < stream <= self._last:
            raise ProtocolError(f"there is no stream {stream}")
        return self._streams.get(stream)

    def _forget(self, stream: int) -> bool:
        found = self._streams.pop(stream, None)
        if found is None:
            return False
        del self._channels[found.channel]
        self._turns.pop(stream, None)
        return True

    def _release(self, found: _Stream) -> None:
        while found.held and found.fits(found.held[0][0].size):
            self._fly(found, *found.held.popleft())

    def _fly(self, found: _Stream, batch: frames.Batch, body: Buffer) -> None:
        found.flying += charge(batch.size)
        found.parts[batch.partition].flown = batch.first + batch.count
        self._say(batch, body)


def _pass(part: _Part, following: int) -> bool:
    """Leave out what is before ``following``; whether that moves the position."""
    if following <= part.sent:
        return False
    part.sent = following
    part.end = max(part.end, following)
    if part.flying:
        part.flying.append((following, 0))
        return False
    part.acked = following
    return True
