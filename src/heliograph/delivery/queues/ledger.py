"""The book of a queue: who has which message. Each of its operations is one transaction.

It says what is leased and what is done; reading the messages, calling handlers and waiting are others' business.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from heliograph.delivery.queues import decisions
from heliograph.delivery.queues.decisions import Frontier, QueueSettings
from heliograph.engine.port import Bounds, Position
from heliograph.engine.queuestore import Key, Pending, Progress

if TYPE_CHECKING:
    from heliograph.clock import Clock
    from heliograph.engine.queuestore import QueueStore, Tally, Turn
    from heliograph.log.channel import ChannelFile
    from heliograph.message import Gap


LETTER_S = 60.0
"""How long a message is leased, at the least, while its dead letter is written."""


class Engine(Protocol):
    """What the book asks of the engine."""

    def describe(self, channel: str, /) -> ChannelFile:
        """The channel's partitions and present life."""

    def bounds(self, channel: str, partition: int = 0, /) -> Bounds:
        """What readers may see."""

    def make_durable(self, channel: str, partition: int, offset: int, /) -> None:
        """Make sure that what is before the offset survives a power cut."""

    def fit_position(self, channel: str, partition: int, position: Position, /) -> tuple[int, Gap | None]:
        """Where to resume, and what cannot be delivered any more."""


class Return(NamedTuple):
    """A message that goes back to the queue; ``counts`` unless no handler ever saw it."""

    key: Key
    delay_s: float = 0.0
    counts: bool = True


class Exchange(NamedTuple):
    """What a transaction gave."""

    leases: list[Pending]
    lost: list[Key]
    gaps: list[Gap]
    full: bool = False
    """As many messages are in flight as are allowed."""
    freed: bool = False
    """Somebody else waits for the room that there is now."""


class Summary(NamedTuple):
    """A queue as it is now."""

    tally: Tally
    frontiers: dict[int, Frontier]
    floors: dict[int, int]
    workers: dict[str, int]
    pending: list[Pending]
    undone: dict[int, int]

    def lag(self, partition: int) -> int:
        """How many messages of a partition are not acknowledged: fewer than there are since the oldest of them."""
        frontier = self.frontiers[partition]
        return max(0, frontier.end - frontier.next) + self.undone.get(partition, 0)


class Ledger:
    """Leases messages of one queue to workers and books what they say. Safe to use from any thread."""

    def __init__(self, engine: Engine, store: QueueStore, channel: str, clock: Clock, *, boot: str) -> None:
        self.store = store
        self._engine = engine
        self._channel = channel
        self._clock = clock
        self._turns = 0
        self._begin(boot)

    def _begin(self, boot: str) -> None:
        """After a boot nobody works any more, and the clock of the leases is another."""
        with self.store.turn() as turn:
            if turn.meta("boot") != boot:
                turn.release()
                turn.set_meta("boot", boot)

    def start(self, first: Callable[[int], int]) -> None:
        """Make the partitions there are begin somewhere, unless the queue has begun already."""
        file = self._engine.describe(self._channel)
        with self.store.turn() as turn:
            if not turn.progress():
                for number in range(file.partitions):
                    begin = Progress(number, first(number), file.incarnation, self.wall_us())
                    _begin(turn, begin, awaits=begin.next > self._engine.bounds(self._channel, number).next)

    def mono_us(self) -> int:
        """The clock of leases."""
        return self._clock.monotonic_ns() // 1000

    def wall_us(self) -> int:
        """The clock of delays."""
        return self._clock.time_ns() // 1000

    # -- workers ----------------------------------------------------------------------------------------------

    def exchange(
        self, worker: str, wanted: int, settings: QueueSettings,
        done: Sequence[Key] = (), returned: Sequence[Return] = (),
    ) -> Exchange:  # fmt: skip
        """Acknowledge, give back, and lease more, at once."""
        file = self._engine.describe(self._channel)
        bounds = {number: self._engine.bounds(self._channel, number) for number in range(file.partitions)}
        if wanted:  # what is handed out counts as a position: never beyond what a power cut would leave
            for number, bound in bounds.items():
                self._engine.make_durable(self._channel, number, bound.next)
        with self.store.turn() as turn:
            lost, freed = self._settle(turn, done, returned)
            if not wanted:
                return Exchange([], lost, [], freed=freed)
            gaps, frontiers = self._frontiers(turn, file.incarnation, bounds)
            room = decisions.room(wanted, turn.in_flight(self.mono_us()), settings.max_in_flight)
            leases = self._lease(turn, worker, room, settings, frontiers) if room else []
            if not room:
                turn.want_room()
        return Exchange(leases, lost, gaps, not room, freed)

    def _settle(self, turn: Turn, done: Sequence[Key], returned: Sequence[Return]) -> tuple[list[Key], bool]:
        lost = turn.finish(done) + [one.key for one in returned if not self._put_back(turn, one)]
        return lost, len(lost) < len(done) + len(returned) and turn.room_wanted()

    def _put_back(self, turn: Turn, one: Return) -> bool:
        due_us = self.wall_us() + int(one.delay_s * 1e6) if one.delay_s else 0
        return turn.put_back(one.key, due_us, counts=one.counts)

    def _frontiers(self, turn: Turn, life: str, bounds: dict[int, Bounds]) -> tuple[list[Gap], list[Frontier]]:
        """What was never handed out, once the state fits the log."""
        gaps: list[Gap] = []
        known, frontiers = turn.progress(), []
        for number, bound in bounds.items():
            progress = known.get(number)
            if progress is None:  # the channel grew: all that is in the new partition came after the queue began
                progress = Progress(number, bound.first, life, self.wall_us())
                _begin(turn, progress)
            now = bound
            if progress.next > bound.next:  # others may have gone further since we looked
                now = self._engine.bounds(self._channel, number)
            fits = now.first <= progress.next <= now.next or _awaits(turn, progress)
            if progress.incarnation != life or not fits:
                progress = self._fit(turn, progress, life, gaps)
            frontiers.append(Frontier(number, progress.next, bound.next))  # what came since then is not synced yet
        return gaps, frontiers

    def _fit(self, turn: Turn, progress: Progress, life: str, gaps: list[Gap]) -> Progress:
        """The log is not the one it was, or was trimmed: clamp, and tell. Delivering again is better than skipping."""
        known = progress.next, ""
        if progress.incarnation != life and progress.anchor_id:  # up to there it can be recognised
            known = progress.anchor, progress.anchor_id
        position = Position(progress.incarnation, *known, progress.time_us)
        target, gap = self._engine.fit_position(self._channel, progress.number, position)
        if gap is not None:
            gaps.append(gap)
        turn.forget_from(progress.number, target)
        fitted = Progress(progress.number, target, life, self.wall_us())
        _begin(turn, fitted)
        return fitted

    def _lease(
        self, turn: Turn, worker: str, room: int, settings: QueueSettings, frontiers: list[Frontier]
    ) -> list[Pending]:
        mono_us, wall_us = self.mono_us(), self.wall_us()
        token = int.from_bytes(os.urandom(8)) >> 1  # not a number that a queue of the same name had before
        until_us = mono_us + int(settings.visibility_s * 1e6)
        leases = [
            due._replace(deliveries=due.deliveries + 1, token=token, worker=worker, until_us=until_us)
            for due in turn.due(mono_us, wall_us, room)
        ]
        self._turns += 1
        for fresh in decisions.share_out(room - len(leases), frontiers, self._turns):
            leases += [
                Pending(fresh.partition, offset, 1, token, worker, until_us, 0)
                for offset in range(fresh.next, fresh.end)
            ]
            turn.advance(fresh.partition, fresh.end, wall_us)
        turn.lease(leases)
        return leases

    def settle(self, done: Sequence[Key] = (), returned: Sequence[Return] = ()) -> Exchange:
        """Acknowledge and give back."""
        with self.store.turn() as turn:
            lost, freed = self._settle(turn, done, returned)
        return Exchange([], lost, [], freed=freed)

    def extend(self, keys: Iterable[Key], seconds: float) -> list[Key]:
        """Keep leases for so long from now on; which of them were lost meanwhile."""
        with self.store.turn() as turn:
            return turn.extend(keys, self.mono_us() + int(seconds * 1e6))

    def begin_letter(self, key: Key) -> bool:
        """Book that a dead letter is about to be written, so that whoever comes after a crash looks for it.

        Nobody else gets the message while it is written: two who write at once could not see each other's letter.
        """
        with self.store.turn(durable=True) as turn:
            return turn.begin_letter(key, self.wall_us(), self.mono_us() + int(LETTER_S * 1e6))

    def release(self, worker: str | None = None, place: tuple[int, int] | None = None) -> int:
        """Take leases away; how many."""
        with self.store.turn() as turn:
            return turn.release(worker, place)

    def requeue(self, places: Iterable[tuple[int, int]]) -> int:
        """Hand messages out again that are done; how many. Kept through a power cut."""
        with self.store.turn(durable=True) as turn:
            return turn.requeue(places)

    def release_dead(self, mine: str, is_dead: Callable[[str], bool]) -> list[str]:
        """Take the leases of dead workers away; who they were."""
        with self.store.look() as turn:
            others = [worker for worker in turn.workers() if worker != mine]
        dead = [worker for worker in others if is_dead(worker)]
        for worker in dead:
            self.release(worker)
        return dead

    # -- looking ----------------------------------------------------------------------------------------------

    def reached(self) -> tuple[dict[int, int], float]:
        """How far each partition was handed out, and how long nothing becomes visible by itself."""
        with self.store.look() as turn:
            offsets = {progress.number: progress.next for progress in turn.progress().values()}
            return offsets, decisions.waits_s(turn.next_due(), self.mono_us(), self.wall_us())

    def floors(self) -> dict[int, int]:
        """Everything before these offsets is acknowledged, by partition."""
        with self.store.look() as turn:
            return _floors(turn)

    def awaits(self, partition: int, offset: int, life: str) -> bool:
        """Whether the queue was asked to begin at that offset, beyond the end, in this life of the channel."""
        with self.store.look() as turn:
            progress = turn.progress()[partition]
            return progress.next == offset and progress.incarnation == life and _awaits(turn, progress)

    def anchor(self, partition: int, offset: int, message_id: str, life: str) -> None:
        """Note which message stands before an offset in this life of the channel, to recognise the log by it."""
        with self.store.turn() as turn:
            turn.anchor(partition, offset, message_id, life)

    def summary(self, limit: int = 0) -> Summary:
        """Everything about the queue, with some of what is pending."""
        file = self._engine.describe(self._channel)
        bounds = {number: self._engine.bounds(self._channel, number) for number in range(file.partitions)}
        return summary(self.store, bounds, self.mono_us(), self.wall_us(), limit)

    def reset(self, target: dict[int, int]) -> None:
        """Begin again at these offsets: nothing is pending."""
        life = self._engine.describe(self._channel).incarnation
        with self.store.turn() as turn:
            for number, offset in target.items():
                turn.forget_from(number, 0)
                _begin(turn, Progress(number, offset, life, self.wall_us()))


def _begin(turn: Turn, progress: Progress, *, awaits: bool = False) -> None:
    """Say where a partition stands; ``awaits`` if its log has to come so far yet."""
    turn.begin(progress)
    if awaits or _awaits(turn, progress):
        turn.set_meta(f"awaits {progress.number}", str(progress.next) if awaits else "")


def _awaits(turn: Turn, progress: Progress) -> bool:
    """Whether nothing was handed out because the queue was asked to begin beyond the end of the log."""
    return turn.meta(f"awaits {progress.number}") == str(progress.next)


def _floors(turn: Turn) -> dict[int, int]:
    return {number: decisions.floor(one.next, turn.oldest(number)) for number, one in turn.progress().items()}


def summary(store: QueueStore, bounds: dict[int, Bounds], mono_us: int, wall_us: int, limit: int) -> Summary:
    """A queue as its state and its log say."""
    with store.look() as turn:
        progress = turn.progress()
        frontiers = {
            number: Frontier(number, max(progress[number].next if number in progress else 0, bound.first), bound.next)
            for number, bound in bounds.items()
        }
        floors, tally = _floors(turn), turn.tally(mono_us, wall_us)
        return Summary(tally, frontiers, floors, turn.workers(), turn.pending(limit), turn.undone())
