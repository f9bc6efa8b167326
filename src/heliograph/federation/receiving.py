"""The receiving half of a session: what the other side sends, checked against what it may send and what it was granted.

    OPEN ──▶ opened ──resume──▶ flowing ──SHUT──▶ gone
               └──park──┴──park──▶ gone, and what still comes is dropped

Bytes that arrived and are not acknowledged never exceed the window of their stream, so memory is bounded by the
windows, and these by a budget that all streams share. Nothing is acknowledged but what ``acknowledge`` is told.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence

from heliograph.errors import ProtocolError
from heliograph.federation import frames
from heliograph.federation.events import Arrived, Denied, Ended, Event, Gapped, Opened
from heliograph.federation.resume import Ends, ends_from, fitting, fitting_ends
from heliograph.federation.rules import Names, Rules
from heliograph.federation.sending import Say, charge
from heliograph.limits import (
    LINK_REASON_CHARS_MAX,
    LINK_REFUSED_MAX,
    LINK_STREAMS_MAX,
    LINK_TEXT_CHARS_MAX,
    LINK_WINDOW_BYTES_MIN,
    PARTITIONS_MAX,
)
from heliograph.seen import SeenSet


class _Part:
    __slots__ = ("acked", "last", "waiting")

    def __init__(self) -> None:
        self.acked = 0
        self.last = 0  # where the last batch ended
        self.waiting: deque[tuple[int, int]] = deque()  # where each batch ends that is not acknowledged, and its bytes


class _Stream:
    __slots__ = ("channel", "granted", "limit", "number", "parts", "resumed", "waiting")

    def __init__(self, number: int, channel: str) -> None:
        self.number = number
        self.channel = channel
        self.granted = 0
        self.limit = 0  # the largest window it ever had: the other side may not know of a smaller one yet
        self.waiting = 0
        self.resumed = False
        self.parts: dict[int, _Part] = {}


def share(window: int, budget: int, streams: int) -> int:
    """The window of each of so many streams: they share a budget, in steps of two so that it seldom changes.

    >>> [share(1 << 20, 16 << 20, n) >> 10 for n in (1, 16, 17, 100, 4096)]
    [1024, 1024, 512, 128, 64]
    """
    step = 1 << max(streams - 1, 0).bit_length()
    return max(LINK_WINDOW_BYTES_MIN, min(window, budget // step))


class Receiving:
    """Every stream that the other side sends."""

    def __init__(self, say: Say, rules: Rules, *, window: int, budget: int) -> None:
        self._say = say
        self._rules = rules
        self._window = window
        self._budget = budget
        self._last = 0
        self._streams: dict[int, _Stream] = {}
        self._channels: dict[str, int] = {}
        self.parked: dict[str, str] = {}
        """Channels that the other side may not send, and why."""

    # -- for whoever runs the session -----------------------------------------------------------------------

    def resume(self, stream: int, origin: str, seen: SeenSet, ends: Ends) -> None:
        """After Opened: say what is here already. ``origin``: this station's own in this channel.

        Of a set that is too large for a frame, a part is told.
        """
        found = self._streams.get(stream)
        if found is None or found.resumed:
            return
        found.resumed = True
        found.granted = found.limit = share(self._window, self._budget, len(self._streams))
        self._say(
            frames.Resume(
                stream=stream,
                window=found.granted,
                origin=origin,
                seen=fitting(seen).to_json(),
                ends=fitting_ends(ends),
            ),
            b"",
        )

    def acknowledge(self, stream: int, partition: int, following: int, refused: Sequence[tuple[int, str]] = ()) -> None:
        """Everything before ``following`` is durable, except those that were refused and why."""
        found = self._streams.get(stream)
        if found is None:
            return
        part = found.parts.get(partition)
        if part is None or not part.acked < following <= part.last:
            raise ValueError(f"{partition}/{following} did not arrive, or was acknowledged before")
        part.acked = following
        while part.waiting and part.waiting[0][0] <= following:
            found.waiting -= part.waiting.popleft()[1]
        cut = [(offset, why[:LINK_REASON_CHARS_MAX]) for offset, why in refused]
        while len(cut) > LINK_REFUSED_MAX:  # each acknowledges up to the last that it refuses
            head, cut = cut[:LINK_REFUSED_MAX], cut[LINK_REFUSED_MAX:]
            self._say(frames.Ack(stream=stream, partition=partition, next=head[-1][0] + 1, refused=head), b"")
        self._say(frames.Ack(stream=stream, partition=partition, next=following, refused=cut), b"")

    def park(self, stream: int, reason: str) -> None:
        """The channel is not allowed, or cannot be stored: it stands still until ``unpark``."""
        found = self._streams.get(stream)
        if found is not None:
            self._forget(found)
            self._refuse(stream, found.channel, reason)

    def unpark(self, channel: str) -> None:
        """What was in the way of a channel is gone: the other side may open it again."""
        if self.parked.pop(channel, None) is not None:
            self._say(frames.Unpark(channel=channel), b"")

    def allow(self, rules: Rules) -> list[Event]:
        """Other rules from now on: parks what is not allowed any more, lets go what is."""
        self._rules = rules
        events: list[Event] = []
        for found in list(self._streams.values()):
            reason = rules.publishing(found.channel)
            if reason:
                self.park(found.number, reason)
                events.append(Denied(channel=found.channel, reason=reason))
                events.append(Ended(stream=found.number, channel=found.channel, reason=reason))
        for channel in [channel for channel in self.parked if not rules.publishing(channel)]:
            self.unpark(channel)
        return events

    def let_go(self, wanted: Names) -> list[Event]:
        """Take no more of what this side does not want any more: the other side was told, and shuts it."""
        unwanted = [found for found in self._streams.values() if found.channel not in wanted]
        for found in unwanted:
            self._forget(found)
        return [Ended(stream=found.number, channel=found.channel, reason="not wanted any more") for found in unwanted]

    @property
    def channels(self) -> Mapping[str, int]:
        """The channels that arrive, and the numbers of their streams."""
        return self._channels

    @property
    def waiting(self) -> int:
        """What arrived and is not acknowledged, as it counts for the windows."""
        return sum([found.waiting for found in self._streams.values()])

    # -- what the other side says ---------------------------------------------------------------------------

    def on_open(self, said: frames.Open) -> list[Event]:
        """The other side would like to send a channel."""
        if said.stream != self._last + 1:
            raise ProtocolError(f"stream {said.stream} is opened after {self._last}")
        self._last = said.stream
        if said.channel in self._channels:
            raise ProtocolError(f"'{said.channel[:80]}' is opened twice")
        reason = self.parked.get(said.channel) or self._rules.publishing(said.channel)
        if not reason and len(self._streams) >= LINK_STREAMS_MAX:
            reason = f"a link carries at most {LINK_STREAMS_MAX} channels"
        if reason:
            self._refuse(said.stream, said.channel, reason)
            return [Denied(channel=said.channel, reason=reason)]
        try:
            ends = ends_from(said.ends)
        except ValueError as error:
            raise ProtocolError(f"the OPEN of stream {said.stream} is not valid: {error}") from None
        self._streams[said.stream] = _Stream(said.stream, said.channel)
        self._channels[said.channel] = said.stream
        self._grant()
        return [Opened(stream=said.stream, channel=said.channel, partitions=said.partitions, ends=ends)]

    def on_batch(self, said: frames.Batch, body: memoryview) -> list[Event]:
        """Lines."""
        found = self._known(said.stream)
        if found is None:
            return []
        if not found.resumed:
            raise ProtocolError(f"a BATCH on stream {said.stream} before its RESUME")
        size = charge(said.size)
        if found.waiting and found.waiting + size > found.limit:
            raise ProtocolError(f"stream {said.stream} has more on its way than its window of {found.limit} bytes")
        part = found.parts.get(said.partition)
        if part is None:
            part = found.parts[said.partition] = _Part()
        if said.first < part.last:
            raise ProtocolError(
                f"a BATCH of {said.partition}/{said.first} on stream {said.stream} comes after {part.last}"
            )
        part.last = said.first + said.count
        part.waiting.append((part.last, size))
        found.waiting += size
        return [
            Arrived(
                stream=said.stream,
                channel=found.channel,
                partition=said.partition,
                first=said.first,
                count=said.count,
                size=said.size,
                packed=said.packed,
                body=bytes(body),
            )
        ]

    def on_gap(self, said: frames.Gap) -> list[Event]:
        """Sequences that will never come."""
        found = self._known(said.stream)
        if found is None:
            return []
        try:
            gaps = SeenSet.from_json(said.gaps, PARTITIONS_MAX)
        except ValueError as error:
            raise ProtocolError(f"the GAP of stream {said.stream} is not valid: {error}") from None
        return [
            Gapped(stream=said.stream, channel=found.channel, gaps=gaps, reason=said.reason, never=said.never)
        ]  # fmt: skip

    def on_shut(self, said: frames.Shut) -> list[Event]:
        """The other side ends a stream."""
        found = self._known(said.stream)
        if found is None:
            return []
        self._forget(found)
        return [Ended(stream=said.stream, channel=found.channel, reason=said.reason)]

    def _known(self, stream: int) -> _Stream | None:
        """A stream that is there; None if it is over; an error if it never was."""
        if not 0 < stream <= self._last:
            raise ProtocolError(f"there is no stream {stream}")
        return self._streams.get(stream)

    def _refuse(self, stream: int, channel: str, reason: str) -> None:
        if len(self.parked) < LINK_STREAMS_MAX:  # of more than that nobody is told when they are allowed
            self.parked[channel] = reason
        self._say(frames.Park(stream=stream, channel=channel, reason=reason[:LINK_TEXT_CHARS_MAX]), b"")

    def _forget(self, found: _Stream) -> None:
        del self._streams[found.number]
        del self._channels[found.channel]

    def _grant(self) -> None:
        """Streams share the budget: with twice as many, each gets half."""
        window = share(self._window, self._budget, len(self._streams))
        for found in self._resumed():
            if found.granted != window:
                found.granted = window
                found.limit = max(found.limit, window)
                self._say(frames.Window(stream=found.number, bytes=window), b"")

    def _resumed(self) -> Iterable[_Stream]:
        return [found for found in self._streams.values() if found.resumed]
