"""Workers join, leave, look, deliver, commit and die at any call of their disk; the channel grows meanwhile.

Members, leases and positions are the real ones on real files. What must hold: no partition has two workers, none is
delivered beyond what comes next or before what was committed, and no position goes back or ahead of what is done. When
nothing happens any more everything is shared fairly, and everything that was published is delivered.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

import heliograph as hg
from heliograph.delivery import beginning, member, parts, positions
from heliograph.engine import groups
from heliograph.station.reader import message_at
from tests.faults import Died, QuickDisk
from tests.proof.group_model import CHANNEL, FATAL, GROUP, StepPart, Worker, make_step_part
from tests.proof.machines import search
from tests.proof.worker import unlocked
from tests.spread import put

MEMORY = Path("/dev/shm")  # a killed process leaves the page cache as it is: no disk has to be waited for
DOOMS = st.none() | st.integers(1, 14)
LONG_DOOMS = st.none() | st.integers(1, 45)  # the first to join has so much to write
WORKERS_MAX, PARTITIONS_MAX = 4, 5
ROUNDS = 40


class Mistake(NamedTuple):
    """A line of the code that is deliberately wrong."""

    where: Any
    name: str
    instead: Any


class GroupMachine(RuleBasedStateMachine):
    """A group and all that may happen to it."""

    mistakes: tuple[Mistake, ...] = ()

    def __init__(self) -> None:
        super().__init__()
        self.stack = ExitStack()
        self.stack.enter_context(patch.object(parts, "make_part", make_step_part))
        for mistake in self.mistakes:
            self.stack.enter_context(patch.object(mistake.where, mistake.name, mistake.instead))
        self.root = Path(tempfile.mkdtemp(prefix="group-machine-", dir=MEMORY if MEMORY.is_dir() else None))
        self.stack.callback(shutil.rmtree, self.root, ignore_errors=True)
        self.station = self.stack.enter_context(hg.open(self.root, name="host1", disk=QuickDisk()))
        self.names = 0
        self.live: list[Worker] = []
        self.done: dict[int, int] = {}
        """By partition, once the group has begun: everything before this offset was delivered."""
        self.floor: dict[int, int] = {}
        """By partition: what is committed."""
        self.retired: list[StepPart] = []
        self.sound = True

    @initialize(partitions=st.integers(1, 4), waiting=st.integers(0, 2), crowd=st.integers(0, 2), doom=LONG_DOOMS)
    def begin(self, partitions: int, waiting: int, crowd: int, doom: int | None) -> None:
        self.station.create_channel(CHANNEL, partitions=partitions)
        for partition in range(partitions):
            self.publish(partition, waiting)
        self.join(doom)
        self.positions_go_forwards_and_not_ahead()
        for _ in range(crowd):
            self.join(None)

    # -- the world ----

    def count(self) -> int:
        return self.station.engine.partition_count(CHANNEL)

    def end(self, partition: int) -> int:
        return self.station.engine.bounds(CHANNEL, partition).next

    def stored(self, partition: int) -> int | None:
        position = self.station.engine.positions.load(CHANNEL, GROUP, partition)
        return None if position is None else position.offset

    @rule(partition=st.integers(0, PARTITIONS_MAX - 1), count=st.integers(1, 3))
    def publish(self, partition: int, count: int) -> None:
        for _ in range(count):
            put(self.station, CHANNEL, partition % self.count(), None)

    @precondition(lambda self: self.count() < PARTITIONS_MAX)
    @rule(waiting=st.integers(0, 2))
    def grow(self, waiting: int) -> None:
        self.station.alter_channel(CHANNEL, partitions=self.count() + 1)
        self.publish(self.count() - 1, waiting)

    # -- doing something, and perhaps dying of it ----

    def perform(self, worker: Worker, doom: int | None, action: Callable[[], Any]) -> Any:
        """What it gave; None if the worker died of it. The kernel then frees what it had."""
        disk = worker.view.disk
        if doom is not None:
            disk.kill_at(doom, FATAL)
        try:
            given = action()
        except Died:
            self.bury(worker)
            return None
        disk.heal()
        return given

    def bury(self, worker: Worker) -> None:
        worker.view.disk.bury()
        self.live.remove(worker)

    def choose(self, data: st.DataObject) -> Worker:
        return self.live[data.draw(st.integers(0, len(self.live) - 1))]

    @precondition(lambda self: len(self.live) < WORKERS_MAX)
    @rule(doom=LONG_DOOMS)
    def join(self, doom: int | None) -> None:
        self.names += 1
        # The last of them has the first name: who comes later does not always stand behind the others.
        name = f"w{99 - self.names:02}"
        worker = Worker(self.station.engine, self.root, name, self.end)
        self.live.append(worker)
        self.perform(worker, doom, worker.join)

    @precondition(lambda self: self.live)
    @rule(data=st.data(), doom=DOOMS)
    def leave(self, data: st.DataObject, doom: int | None) -> None:
        worker = self.choose(data)
        ended = self.perform(worker, doom, worker.leave)
        if ended is not None:
            self.live.remove(worker)
            self.retired += ended
            for part in ended:
                assert self.stored(part.partition) == part.offset, "who leaves in order leaves nothing to do again"

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def die(self, data: st.DataObject) -> None:
        self.bury(self.choose(data))

    @precondition(lambda self: self.live)
    @rule(data=st.data(), doom=DOOMS)
    def look(self, data: st.DataObject, doom: int | None) -> None:
        worker = self.choose(data)
        assert worker.member is not None
        self.perform(worker, doom, worker.member.look)

    @precondition(lambda self: self.live)
    @rule(rounds=st.integers(1, 3))
    def time_goes_by(self, rounds: int) -> None:
        """Everybody looks, as they do several times a second."""
        for worker in self.live * rounds:
            assert worker.member is not None
            worker.member.look()

    @precondition(lambda self: len(self.live) > 1)
    @rule(data=st.data(), dying=st.booleans())
    def look_at_once(self, data: st.DataObject, dying: bool) -> None:
        """One has seen the group, and before it asks for its first lease another is quicker; mostly after a death."""
        if dying and len(self.live) > 2:
            self.bury(max(self.live, key=lambda worker: len(worker.delivering())))
        slow = self.choose(data)
        quick = data.draw(st.sampled_from([worker for worker in self.live if worker is not slow]))
        assert slow.member is not None
        assert quick.member is not None
        look, disk = quick.member.look, slow.view.disk

        def meanwhile(path: str, *_: object) -> None:
            if "/leases/" in path:
                disk.before.clear()
                look()

        disk.before["open"] = meanwhile
        slow.member.look()
        disk.before.clear()

    def at_work(self) -> list[tuple[Worker, StepPart]]:
        return [(worker, part) for worker in self.live for part in worker.delivering()]

    def draw_part(self, data: st.DataObject, found: list[tuple[Worker, StepPart]]) -> tuple[Worker, StepPart]:
        return found[data.draw(st.integers(0, len(found) - 1))]

    @precondition(lambda self: self.at_work())
    @rule(data=st.data(), count=st.integers(1, 3))
    def deliver(self, data: st.DataObject, count: int) -> None:
        _, part = self.draw_part(data, self.at_work())
        for _ in range(count):
            self.deliver_next(part)

    def deliver_next(self, part: StepPart) -> bool:
        number, offset = part.partition, part.offset
        if offset >= self.end(number):
            return False
        assert message_at(self.station.engine, CHANNEL, number, offset) is not None
        assert offset <= self.done[number], f"partition {number}: {offset} after {self.done[number] - 1}, some are lost"
        assert offset >= self.floor[number], f"partition {number}: {offset} again, though {self.floor[number]} is saved"
        self.done[number] = max(self.done[number], offset + 1)
        part.offset += 1
        return True

    @precondition(lambda self: self.at_work())
    @rule(data=st.data(), doom=DOOMS)
    def commit(self, data: st.DataObject, doom: int | None) -> None:
        worker, part = self.draw_part(data, self.at_work())
        if self.perform(worker, doom, part.positions.save) is not None:
            assert self.stored(part.partition) == part.offset

    @precondition(lambda self: any(part.stopping for _, part in self.at_work()))
    @rule(data=st.data(), doom=DOOMS)
    def give_back(self, data: st.DataObject, doom: int | None) -> None:
        """The message at hand is done, and the partition is left to another."""
        stopping = [(worker, part) for worker, part in self.at_work() if part.stopping]
        self.end_part(*self.draw_part(data, stopping), doom)

    def end_part(self, worker: Worker, part: StepPart, doom: int | None = None) -> None:
        self.perform(worker, doom, part.end)
        if worker in self.live:
            self.retired.append(part)

    @precondition(lambda self: self.retired)
    @rule(data=st.data())
    def come_back_late(self, data: st.DataObject) -> None:
        """A handler that was left behind returns: what it did does not count any more."""
        part = data.draw(st.sampled_from(self.retired))
        part.offset += 1
        part.positions.save()

    # -- what is always true ----

    @invariant()
    def positions_go_forwards_and_not_ahead(self) -> None:
        if not hasattr(self, "station") or CHANNEL not in self.station.engine.channel_names():
            return
        if not self.done and self.stored(0) is not None:  # it has begun, hence with a position everywhere
            begun = {number: self.stored(number) for number in range(self.count())}
            assert None not in begun.values(), begun
            self.done, self.floor = dict(begun), dict(begun)  # type: ignore[arg-type]
        if self.done:
            for number in range(self.count()):
                floor = self.floor.setdefault(number, 0)
                done = self.done.setdefault(number, 0)
                stored = self.stored(number)
                if stored is not None:
                    self.check(stored >= floor, f"partition {number} went back from {floor} to {stored}")
                    self.check(stored <= done, f"partition {number} is committed to {stored}, done to {done}")
                    self.floor[number] = stored

    @invariant()
    def no_partition_has_two_workers(self) -> None:
        holders: dict[int, str] = {}
        for worker, part in self.at_work():
            self.check(part.partition not in holders, f"partition {part.partition}: {holders} and {worker.name}")
            holders[part.partition] = worker.name

    def check(self, fine: bool, complaint: str) -> None:
        self.sound = self.sound and fine
        assert fine, complaint

    # -- the end ----

    def teardown(self) -> None:
        try:
            if self.sound and CHANNEL in self.station.engine.channel_names():
                self.come_to_an_end()
        finally:
            for worker in self.live:
                worker.view.disk.bury()
            self.stack.close()

    def come_to_an_end(self) -> None:
        if not self.live:
            self.join(None)
        self.settle()
        self.positions_go_forwards_and_not_ahead()
        sizes = [len(worker.delivering()) for worker in self.live]
        assert sum(sizes) == self.count(), f"of {self.count()} partitions {sizes} are delivered"
        assert max(sizes) - min(sizes) <= 1, sizes
        for _, part in self.at_work():
            while self.deliver_next(part):
                pass
        for number in range(self.count()):
            assert self.done[number] == self.end(number), f"partition {number}: lost what follows {self.done[number]}"

    def settle(self) -> None:
        """Until nothing changes in two rounds: what one gives back in the first it tells the others in the second."""
        quiet = 0
        for _ in range(ROUNDS):
            before = [(worker.name, part.partition, part.stopping) for worker, part in self.at_work()]
            for worker in self.live:
                assert worker.member is not None
                worker.member.look()
                for part in worker.delivering():
                    if part.stopping:
                        self.end_part(worker, part)
            self.no_partition_has_two_workers()
            after = [(worker.name, part.partition, part.stopping) for worker, part in self.at_work()]
            quiet = quiet + 1 if before == after else 0
            if quiet == 2:
                return
        raise AssertionError("it never settles")


def test_a_group_loses_and_reorders_nothing_though_its_workers_die_at_any_call() -> None:
    search(GroupMachine, examples=60)


@pytest.mark.prove
def test_a_group_loses_and_reorders_nothing_for_long() -> None:
    search(GroupMachine, examples=2_000, steps=60)


# -- the machine itself: each of these must be found ----


_look = member.Member._look


def too_early(self: member.Member, parts_: parts.Parts) -> None:
    """Broken: gives the lease back before the message at hand is done."""
    _look(self, parts_)
    for number in list(self._leaving):
        lease = self._leases.pop(number, None)
        if lease is not None:
            lease.release()


def never(self: member.Member, number: int) -> None:
    """Broken: does not give the lease back."""
    self._leaving.discard(number)


def anew(engine: Any, channel: str, name: str, start: Callable[[int], int], count: int, clock: Any) -> None:
    """Broken: partitions that were added begin at the end, too."""
    first = engine.load_position(channel, name, 0)
    for number in reversed(range(count)):
        if engine.load_position(channel, name, number) is None:
            position = beginning.Position(engine.incarnation(channel), start(number), "", 0)
            engine.save_position(channel, name, number, position)
    assert first is None or engine.load_position(channel, name, 0) == first


def zero_first(engine: Any, channel: str, name: str, start: Callable[[int], int], count: int, clock: Any) -> None:
    """Broken: partition 0 gets its position first, though that says that all the others have one."""
    begun = engine.load_position(channel, name, 0) is not None
    for number in range(count):
        if engine.load_position(channel, name, number) is None:
            offset = 0 if begun else start(number)
            engine.save_position(channel, name, number, beginning.Position(engine.incarnation(channel), offset, "", 0))


def sweeps_the_living(self: groups.Membership) -> None:
    """Broken: takes everybody else for dead."""
    for entry in self._disk.listdir(self._directory / "members"):
        self._disk.unlink(self._directory / "members" / entry)


MISTAKES: dict[str, tuple[Mistake, ...]] = {
    "leases for everybody": (Mistake(groups.Membership, "lease", unlocked),),
    "gives back too early": (Mistake(member.Member, "_look", too_early),),
    "gives nothing back": (Mistake(member.Member, "left", never),),
    "new partitions begin at the end": (Mistake(member, "establish", anew),),
    "has begun before it has": (Mistake(member, "establish", zero_first),),
    "sweeps the living": (Mistake(groups.Membership, "_sweep", sweeps_the_living),),
    "saves without a lease": (
        Mistake(positions.Positions, "seal", lambda self: None),
        Mistake(groups.PartitionLease, "valid", lambda self: True),
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_the_machine_finds_a_broken_group(mistake: str) -> None:
    machine = type("Broken", (GroupMachine,), {"mistakes": MISTAKES[mistake]})
    with pytest.raises(AssertionError):
        search(machine, examples=400, shrink=False)
