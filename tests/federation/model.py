"""Stations in memory: logs that survive, processes and lines that do not. What a shell around a session has to do."""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Iterable
from typing import Any

from heliograph.federation import events, frames
from heliograph.federation.frames import Wanted
from heliograph.federation.resume import plan
from heliograph.federation.rules import Rules
from heliograph.federation.sending import Read
from heliograph.federation.session import Ours, Session
from heliograph.seen import SeenSet

BAD = "bad"  # the key of a message that every receiver refuses


def identity(line: bytes) -> tuple[str, int, int]:
    origin, partition, sequence, _ = line.decode().split(" ")
    return origin, int(partition), int(sequence)


class Log:
    """One channel of one station: what is on its disk."""

    def __init__(self, partitions: int) -> None:
        self.parts: list[list[bytes]] = [[] for _ in range(partitions)]
        self.firsts = [0] * partitions
        self.known: list[list[tuple[str, int, int]]] = [[] for _ in range(partitions)]  # a checkpoint: blank ones, too
        self.seen = SeenSet()
        self.gaps = SeenSet()

    def append(self, partition: int, line: bytes) -> None:
        origin, at, sequence = identity(line)
        assert not self.seen.has(origin, at, sequence), f"doubled: {line!r}"
        self._keep(partition, line, (origin, at, sequence))

    def _keep(self, partition: int, line: bytes, who: tuple[str, int, int]) -> None:
        self.seen.add(*who, who[2] + 1)
        self.known[partition].append(who)
        self.parts[partition].append(line)

    def blank_after(self, keep: float) -> set[tuple[str, int, int]]:
        """What a backup would bring back, if others still have it: removed here since it was made."""
        return {
            who
            for lines, known in zip(self.parts, self.known, strict=True)
            for line, who in list(zip(lines, known, strict=True))[int(len(lines) * keep) :]
            if not line
        }

    def restored(self, keep: float) -> Log:
        """An old backup: the newest lines of each partition are gone."""
        log = Log(len(self.parts))
        log.firsts = list(self.firsts)
        for partition, lines in enumerate(self.parts):
            for offset in range(max(int(len(lines) * keep), self.firsts[partition])):
                log._keep(partition, lines[offset], self.known[partition][offset])
        return log

    def arrive(self, line: bytes) -> None:
        origin, at, sequence = identity(line)
        if not self.seen.has(origin, at, sequence):
            key = line.split(b" ")[3].partition(b":")[0]
            place = key if key != b"-" else f"{origin}/{at}".encode()
            self.append(zlib.crc32(place) % len(self.parts), line)

    def locate(self, wanted: SeenSet) -> tuple[dict[int, int], SeenSet]:
        places: dict[int, int] = {}
        left = SeenSet()
        for partition, lines in enumerate(self.parts):
            for offset in range(self.firsts[partition], len(lines)):
                if lines[offset] and wanted.has(*identity(lines[offset])):
                    places.setdefault(partition, offset)
                    origin, at, sequence = identity(lines[offset])
                    left.add(origin, at, sequence, sequence + 1)
        return places, wanted.difference(left)

    def lines(self) -> list[bytes]:
        return [line for first, part in zip(self.firsts, self.parts, strict=True) for line in part[first:] if line]


class Station:
    """A name, its disk, and the process that may be killed."""

    def __init__(self, name: str, channels: Iterable[str], partitions: int, clock: Any) -> None:
        self.name = name
        self.incarnation = "k1"
        self.clock = clock
        self.logs = {channel: Log(partitions) for channel in channels}
        self.positions: dict[tuple[str, str, int], int] = {}
        self.spared: dict[tuple[str, str], SeenSet] = {}  # what a peer will never be sent
        self.letters: list[tuple[str, bytes]] = []  # peer and line
        self.links: dict[str, Shell] = {}
        self.starts = 0
        self.published = 0
        self.paused: set[str] = set()  # channels whose disk stands still
        self.brought_back: set[tuple[str, int, int]] = set()  # removed, and forgotten with an old backup

    @property
    def origin(self) -> str:
        return f"{self.name}.{self.incarnation}"

    def publish(self, channel: str, key: str = "-") -> bytes:
        log = self.logs[channel]
        partition = self.published % len(log.parts) if key == "-" else zlib.crc32(key.encode()) % len(log.parts)
        self.published += 1
        sequence = len(log.parts[partition])
        padding = "x" * (70_000 if self.published % 40 == 0 else self.published * 7919 % 3_000)  # some exceed a window
        line = f"{self.origin} {partition} {sequence} {key}:{self.published}{padding}".encode()
        log.append(partition, line)
        for link in self.links.values():
            link.news(channel)
        return line

    def trim(self, channel: str, partition: int, first: int) -> None:
        self.logs[channel].firsts[partition] = max(self.logs[channel].firsts[partition], first)

    def blank(self, channel: str, partition: int, offset: int) -> None:
        self.logs[channel].parts[partition][offset] = b""

    def restart(self) -> None:
        self.links.clear()
        self.starts += 1

    def restore(self, channel: str, keep: float) -> None:
        """An old backup of a channel: its newest lines are gone, and it is another incarnation."""
        self.restart()
        self.incarnation = f"k{self.starts + 1}"
        self.brought_back |= self.logs[channel].blank_after(keep)
        log = self.logs[channel] = self.logs[channel].restored(keep)
        for (peer, name, partition), position in list(self.positions.items()):
            if name == channel:
                self.positions[peer, name, partition] = min(position, len(log.parts[partition]))

    def connect(self, peer: str, rules: Rules, push: tuple[str, ...], wants: tuple[Wanted, ...], window: int) -> Shell:
        shell = self.links[peer] = Shell(self, peer, rules, push, wants, window)
        return shell


class Shell:
    """What runs one session: as little as possible."""

    def __init__(
        self, station: Station, peer: str, rules: Rules, push: tuple[str, ...], wants: tuple[Wanted, ...], window: int
    ) -> None:
        self.station = station
        self.peer = peer
        self.rules = rules
        self.session = Session(
            Ours(
                name=station.name,
                station=station.name,
                instance=f"{station.name}-{station.starts}",
                push=push,
                wants=wants,
                window_bytes=window,
                heartbeat_s=10.0,
            ),
            rules,
            clock=station.clock,
        )
        self.waiting: dict[str, deque[events.Arrived]] = {}
        self.alarms: list[str] = []
        self.echo: dict[int, str] = {}
        self.closed: events.Closed | None = None

    # -- the socket -----------------------------------------------------------------------------------------

    def receive(self, frame: bytes) -> None:
        self._carry_out(self.session.receive(frame))

    def tick(self) -> None:
        self._carry_out(self.session.tick())

    def outgoing(self) -> list[bytes]:
        return [bytes(head) + bytes(body) for head, body in self.session.outgoing()]

    # -- the log --------------------------------------------------------------------------------------------

    def news(self, channel: str) -> None:
        stream = self.session.sending.stream_of(channel)
        if stream:
            for partition, lines in enumerate(self.station.logs[channel].parts):
                self.session.sending.news(stream, partition, len(lines))

    def pump(self, most: int = 1) -> bool:
        """Read and send; whether anything was."""
        for done in range(most):
            read = self.session.sending.next_read()
            if read is None:
                return bool(done)
            assert read.offset < read.end, "there is nothing to be read"
            offset = self._send(read, read.offset)
            for _ in range(2):  # one read becomes several batches
                if offset < read.end and self.session.sending.stream_of(read.channel) == read.stream:
                    offset = self._send(read, offset)
        return True

    def _send(self, read: Read, offset: int) -> int:
        """One batch of a read; where it ends."""
        log = self.station.logs[read.channel]
        first = max(offset, log.firsts[read.partition])
        taken: list[bytes] = []
        for line in log.parts[read.partition][first:]:
            if taken and sum(map(len, taken)) + len(line) >= min(read.bytes, 20_000):
                break
            taken.append(line if self._passes(read.stream, line) else b"")
            if not line:
                self._blank(read, first + len(taken) - 1)
        if any(taken):
            body = b"".join(line + b"\n" for line in taken)
            self.session.sending.send(read.stream, read.partition, first, len(taken), body)
        else:
            moved = self.session.sending.skip(read.stream, read.partition, first + len(taken))
            self._carry_out([moved] if moved else [])
        return first + len(taken)

    def _passes(self, stream: int, line: bytes) -> bool:
        """Not what may not be relayed, and not what the other side published itself."""
        return bool(line) and self.session.relays(identity(line)[0]) and identity(line)[0] != self.echo[stream]

    def _blank(self, read: Read, offset: int) -> None:
        """A line that was compacted or redacted will never come."""
        gone = SeenSet()
        if self.station.logs[read.channel].seen.has(self.station.origin, read.partition, offset):
            gone.add(self.station.origin, read.partition, offset, offset + 1)
        self.station.spared[self.peer, read.channel].update(gone)
        self.session.sending.gap(read.stream, gone, "compacted")

    def store(self, channel: str) -> bool:
        """Store the oldest batch of a channel that waits; whether there was one."""
        if not self.waiting.get(channel) or channel in self.station.paused:
            return False
        arrived = self.waiting[channel].popleft()
        refused: list[tuple[int, str]] = []
        lines, offsets = arrived.stored()
        for offset, line in zip(offsets, lines.splitlines(), strict=True):
            why = self.rules.sending(identity(line)[0])
            if why:
                self.alarms.append(why)
                self.session.receiving.park(arrived.stream, why)
                self.waiting[channel].clear()
                return True
            if line.split(b" ")[3].startswith(BAD.encode()):
                refused.append((offset, "malformed"))
            else:
                self.station.logs[channel].arrive(line)
        self.session.receiving.acknowledge(arrived.stream, arrived.partition, arrived.next, refused)
        for link in self.station.links.values():
            link.news(channel)
        return True

    # -- what the session says ------------------------------------------------------------------------------

    def _carry_out(self, happened: Iterable[events.Event]) -> None:
        for event in happened:
            match event:
                case events.Greeted():
                    self._carry_out(self.session.accept())
                case events.Established() | events.Wanting() | events.Unparked():
                    self._open()
                case events.Opened():
                    log = self.station.logs[event.channel]
                    self.session.receiving.resume(event.stream, self.station.origin, log.seen, {})
                case events.Resumed():
                    self._begin(event)
                case events.Arrived():
                    self.waiting.setdefault(event.channel, deque()).append(event)
                case events.Acked():
                    self._acked(event)
                case events.Gapped():
                    self.station.logs[event.channel].gaps.update(event.gaps)
                case events.Parked() | events.Denied():
                    self.alarms.append(event.reason)
                case events.Ended():
                    self.waiting.pop(event.channel, None)
                case events.Closed():
                    self.closed = event

    def _open(self) -> None:
        for channel, log in self.station.logs.items():
            start = self.session.offers(channel)
            if start is None or self.session.sending.stream_of(channel):
                continue
            spared = self.station.spared.setdefault((self.peer, channel), SeenSet())
            if start == "new" and (self.peer, channel, 0) not in self.station.positions:
                spared.update(log.seen)
                for partition, lines in enumerate(log.parts):
                    self.station.positions[self.peer, channel, partition] = len(lines)
            self.session.sending.open(channel, len(log.parts), {})

    def _begin(self, event: events.Resumed) -> None:
        log = self.station.logs[event.channel]
        spared = self.station.spared[self.peer, event.channel]
        made = plan(
            own=self.station.origin,
            have=log.seen,
            covered=event.seen.union(spared),
            positions={p: self.station.positions.get((self.peer, event.channel, p), 0) for p in range(len(log.parts))},
            firsts=dict(enumerate(log.firsts)),
            locate=log.locate,
            passes=self.session.relays,
        )
        self.echo[event.stream] = event.origin
        self.session.sending.begin(event.stream, made.starts)
        self.session.sending.gap(event.stream, made.gone.union(spared), "gone")
        self.news(event.channel)

    def _acked(self, event: events.Acked) -> None:
        log = self.station.logs[event.channel]
        for offset, _ in event.refused:
            line = log.parts[event.partition][offset]
            spared = self.station.spared[self.peer, event.channel]
            origin, at, sequence = log.known[event.partition][offset]
            if not spared.has(origin, at, sequence):
                spared.add(origin, at, sequence, sequence + 1)
                if line:  # else it was compacted meanwhile
                    self.station.letters.append((self.peer, line))
        self.station.positions[self.peer, event.channel, event.partition] = event.position


class Line:
    """A connection between two stations: two queues that can be cut."""

    def __init__(self, one: Shell, other: Shell) -> None:
        self.ends = (one, other)
        self.queues: tuple[deque[bytes], deque[bytes]] = (deque(), deque())  # to the other, to the one
        self.cut = False
        self.accounts = (Account(), Account())

    def flush(self) -> None:
        for side, shell in enumerate(self.ends):
            for frame in shell.outgoing():
                self.accounts[side].sent(frame)
                if not self.cut:
                    self.queues[side].append(frame)

    def deliver(self, side: int) -> bool:
        """One frame; whether there was one."""
        self.flush()
        if self.cut or not self.queues[side]:
            return False
        shell = self.ends[1 - side]
        frame = self.queues[side].popleft()
        if shell.closed is None:
            self.accounts[1 - side].heard(frame)
            shell.receive(frame)
        self.flush()
        return True


class Account:
    """The windows of one sender, by the account of somebody who reads along."""

    def __init__(self) -> None:
        self.windows: dict[int, int] = {}
        self.batches = 0
        self.flying: dict[int, deque[tuple[int, int, int]]] = {}

    def heard(self, frame: bytes) -> None:
        header, _ = frames.decode(frame, 1 << 30)
        match header:
            case frames.Resume():
                self.windows[header.stream] = header.window
            case frames.Window():
                self.windows[header.stream] = header.bytes
            case frames.Ack():
                flying = self.flying.get(header.stream, deque())
                self.flying[header.stream] = deque(
                    one for one in flying if one[0] != header.partition or one[1] > header.next
                )

    def sent(self, frame: bytes) -> None:
        header, _ = frames.decode(frame, 1 << 30)
        if isinstance(header, frames.Batch):
            self.batches += 1
            flying = self.flying.setdefault(header.stream, deque())
            flying.append((header.partition, header.first + header.count, max(header.size, 1024)))
            total = sum(size for _, _, size in flying)
            assert len(flying) == 1 or total <= self.windows[header.stream], "a window is exceeded"
