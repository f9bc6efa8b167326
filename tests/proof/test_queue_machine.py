"""The book of a queue and a model of it do the same things in any order; its process dies in any statement of them.

The clock is ours, the logs are nothing but their ends, the book is the real one in a real file.
"""

from __future__ import annotations

import copy
import shutil
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from heliograph.delivery.queues.decisions import QueueSettings
from heliograph.delivery.queues.ledger import Ledger, Return
from heliograph.engine import queuestore
from heliograph.engine.queuestore import Key, Pending, Progress, QueueStore, Turn
from tests.proof.machines import search
from tests.proof.queue_model import Died, FakeClock, FakeEngine, Leased, Model, Waiting, mortal, stored

SETTINGS = QueueSettings(visibility_s=10.0, max_in_flight=5, max_deliveries=3)
WORKERS = ("w1", "w2", "w3")
ALL = 10_000
MEMORY = Path("/dev/shm")  # a killed process leaves the page cache as it is: no disk has to be waited for
DOOMS = st.none() | st.tuples(st.integers(1, 14), st.booleans())
WHO = st.sampled_from(WORKERS)


class QueueMachine(RuleBasedStateMachine):
    """Workers lease, finish, give back, extend and die; logs grow and are cut; clocks go on and are stepped."""

    ledger_type: type[Ledger] = Ledger

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp(prefix="queue-machine-", dir=MEMORY if MEMORY.is_dir() else None))
        self.clock = FakeClock()
        self.boot = 0
        self.model = Model()
        self.held: list[tuple[str, Key]] = []
        """What workers believe to have; some of it they have lost."""

    @initialize(partitions=st.integers(1, 2), begin=st.integers(0, 3))
    def start(self, partitions: int, begin: int) -> None:
        self.engine = FakeEngine(partitions)
        self.engine.ends = [begin] * partitions
        self.open()
        self.ledger.start(lambda _number: 0)
        self.model.next = dict.fromkeys(range(partitions), 0)

    def open(self) -> None:
        store = QueueStore(self.directory / "queue.sqlite3", timeout_s=1.0)
        self.ledger = self.ledger_type(self.engine, store, "c", self.clock, boot=str(self.boot))  # type: ignore[arg-type]
        self.connection = mortal(store)

    def reopen(self) -> None:
        self.connection.real.close()
        self.open()

    # -- doing something, and perhaps dying of it ----

    def perform(self, doom: tuple[int, bool] | None, action: Callable[[], Any]) -> tuple[bool, Any]:
        """Whether it came to an end, and what it gave."""
        if doom is not None:
            self.connection.doom(doom[0], late=doom[1])
        try:
            given = action()
        except Died:
            self.reopen()
            return False, None
        self.connection.doom(0, late=False)
        return True, given

    def change(self, doom: tuple[int, bool] | None, action: Callable[[], Any], expected: Model) -> Any:
        """A transaction is kept as a whole or not at all, and kept for certain once it has returned."""
        ended, given = self.perform(doom, action)
        if ended or self.state() == (expected.seen(), expected.next):
            self.model = expected
        return given if ended else None

    def state(self) -> tuple[set[tuple[Any, ...]], dict[int, int]]:
        with self.ledger.store.look() as turn:
            progress = {number: one.next for number, one in turn.progress().items()}
            return stored(turn.pending(ALL)), progress

    # -- the world ----

    @rule(partition=st.integers(0, 1), count=st.integers(1, 4))
    def publish(self, partition: int, count: int) -> None:
        self.engine.ends[partition % len(self.engine.ends)] += count

    @precondition(lambda self: len(self.engine.ends) < 3)
    @rule(count=st.integers(0, 2))
    def grow(self, count: int) -> None:
        self.engine.ends.append(count)
        self.engine.synced.append(0)

    @rule(seconds=st.sampled_from([0.5, 4.0, 11.0]))
    def time_goes_by(self, seconds: float) -> None:
        self.clock.pass_by(seconds)

    @rule(seconds=st.sampled_from([-100.0, 100.0]))
    def the_wall_clock_is_stepped(self, seconds: float) -> None:
        """Leases must not notice; delays are by the wall clock."""
        self.clock.wall_us += int(seconds * 1e6)

    @rule()
    def everything_is_closed_and_opened(self) -> None:
        self.reopen()

    @rule()
    def the_machine_boots(self) -> None:
        self.boot += 1
        self.clock.mono_us = 5
        self.model.on_its_way = {
            place: Waiting(0, one.deliveries) if isinstance(one, Leased) else one
            for place, one in self.model.on_its_way.items()
        }
        self.reopen()

    @rule(partition=st.integers(0, 2), lost=st.integers(0, 3), doom=DOOMS)
    def the_log_is_cut(self, partition: int, lost: int, doom: tuple[int, bool] | None) -> None:
        """What was seen beyond the new end is another message from now on: it is handed out anew."""
        partition %= len(self.engine.ends)
        self.engine.ends[partition] = end = max(0, self.engine.ends[partition] - lost)
        self.engine.synced[partition] = min(self.engine.synced[partition], end)
        self.engine.life += "b"
        expected = copy.deepcopy(self.model)
        for number, known in expected.next.items():
            expected.next[number] = target = min(known, self.engine.ends[number])
            expected.on_its_way = {
                place: one for place, one in expected.on_its_way.items() if place[0] != number or place[1] < target
            }
        for number in range(len(self.engine.ends)):
            expected.next.setdefault(number, 0)
        full = QueueSettings(visibility_s=10.0, max_in_flight=1, max_deliveries=3)
        blocked = copy.deepcopy(expected)
        if blocked.in_flight(self.clock):  # an exchange that leases nothing: only the fitting is looked at
            self.change(doom, lambda: self.ledger.exchange("w1", 1, full), blocked)
            if self.model is not blocked:
                self.change(None, lambda: self.ledger.exchange("w1", 1, full), blocked)
        else:
            self.model = expected
            self.lease("w1", 1, None)

    # -- workers ----

    @rule(worker=WHO, wanted=st.integers(1, 6), doom=DOOMS)
    def lease(self, worker: str, wanted: int, doom: tuple[int, bool] | None) -> None:
        before, clock = self.model, self.clock
        claimable = before.claimable(self.engine, clock)
        due = before.due(clock)
        room = max(0, min(wanted, SETTINGS.max_in_flight - before.in_flight(clock)))
        ended, given = self.perform(doom, lambda: self.ledger.exchange(worker, wanted, SETTINGS))
        pending, _ = self.state()
        after = {(one[0], one[1]): one for one in pending}
        until_us = clock.mono_us + 10_000_000
        taken = {
            place: one
            for place, one in after.items()
            if one[3] is not None and not before.holds(Key(one[0], one[1], one[3]))
        }
        assert set(taken) <= claimable, f"handed out though somebody has it or had it: {set(taken) - claimable}"
        assert len(taken) in ({min(room, len(claimable))} if ended else {0, min(room, len(claimable))})
        if ended:
            assert {(one.partition, one.offset) for one in given.leases} == set(taken)
        if len(taken) >= len(due):
            assert due <= set(taken), "something new was handed out before what was due again"
        for place, one in sorted(taken.items()):  # in an order that a replay repeats: tokens are random
            was = before.on_its_way.get(place)
            assert one[2] == (was.deliveries if was else 0) + 1, f"{place}: wrong count of deliveries"
            assert one[4:6] == (worker, until_us)
            before.on_its_way[place] = Leased(one[3], worker, until_us, one[2])
            before.next[place[0]] = max(before.next.get(place[0], 0), place[1] + 1)
            if ended:
                self.held.append((worker, Key(place[0], place[1], one[3])))
        if ended or taken:
            for number in range(len(self.engine.ends)):
                before.next.setdefault(number, 0)

    def some(self, data: st.DataObject, most: int = 3) -> list[Key]:
        chosen = data.draw(st.lists(st.sampled_from(self.held), min_size=1, max_size=most, unique=True))
        self.held = [one for one in self.held if one not in chosen] + chosen[:1]  # one is tried once more later
        return [key for _, key in chosen]

    @precondition(lambda self: self.held)
    @rule(data=st.data(), doom=DOOMS)
    def acknowledge(self, data: st.DataObject, doom: tuple[int, bool] | None) -> None:
        keys = self.some(data)
        expected = copy.deepcopy(self.model)
        lost = [key for key in keys if not expected.holds(key)]
        for key in keys:
            if key not in lost:
                del expected.on_its_way[key.partition, key.offset]
        given = self.change(doom, lambda: self.ledger.settle(keys), expected)
        assert given is None or given.lost == lost

    @precondition(lambda self: self.held)
    @rule(data=st.data(), delay_s=st.sampled_from([0.0, 3.0]), counts=st.booleans(), doom=DOOMS)
    def give_back(self, data: st.DataObject, delay_s: float, counts: bool, doom: tuple[int, bool] | None) -> None:
        keys = self.some(data)
        expected = copy.deepcopy(self.model)
        lost = [key for key in keys if not expected.holds(key)]
        due_us = self.clock.wall_us + int(delay_s * 1e6) if delay_s else 0
        for key in keys:
            if key not in lost:
                had = expected.on_its_way[key.partition, key.offset]
                expected.on_its_way[key.partition, key.offset] = Waiting(due_us, had.deliveries - (not counts))
        returned = [Return(key, delay_s, counts) for key in keys]
        given = self.change(doom, lambda: self.ledger.settle((), returned), expected)
        assert given is None or given.lost == lost

    @precondition(lambda self: self.held)
    @rule(data=st.data(), seconds=st.sampled_from([5.0, 30.0]), doom=DOOMS)
    def extend(self, data: st.DataObject, seconds: float, doom: tuple[int, bool] | None) -> None:
        keys = self.some(data)
        expected = copy.deepcopy(self.model)
        lost = [key for key in keys if not expected.holds(key)]
        for key in keys:
            if key not in lost:
                had = expected.on_its_way[key.partition, key.offset]
                assert isinstance(had, Leased)
                longer = had._replace(until_us=self.clock.mono_us + int(seconds * 1e6))
                expected.on_its_way[key.partition, key.offset] = longer
        given = self.change(doom, lambda: self.ledger.extend(keys, seconds), expected)
        assert given is None or given == lost

    @rule(worker=WHO, mine=WHO, doom=DOOMS)
    def a_worker_dies(self, worker: str, mine: str, doom: tuple[int, bool] | None) -> None:
        if worker == mine:
            return
        expected = copy.deepcopy(self.model)
        expected.on_its_way = {
            place: Waiting(0, one.deliveries) if isinstance(one, Leased) and one.worker == worker else one
            for place, one in expected.on_its_way.items()
        }
        self.change(doom, lambda: self.ledger.release_dead(mine, lambda name: name == worker), expected)

    @rule(partition=st.integers(0, 1), offset=st.integers(0, 6), doom=DOOMS)
    def hand_out_again(self, partition: int, offset: int, doom: tuple[int, bool] | None) -> None:
        """What is done is visible once more; nothing else changes."""
        expected = copy.deepcopy(self.model)
        place = (partition, offset)
        done = offset < expected.next.get(partition, 0) and place not in expected.on_its_way
        if done:
            expected.on_its_way[place] = Waiting(0, 0)
        given = self.change(doom, lambda: self.ledger.requeue([place]), expected)
        assert given is None or given == int(done)

    # -- what is always true ----

    @invariant()
    def the_book_is_the_model(self) -> None:
        if not hasattr(self, "ledger"):
            return
        assert self.state() == (self.model.seen(), self.model.next)

    @invariant()
    def floors_are_below_everything_that_is_not_done(self) -> None:
        if hasattr(self, "ledger"):
            assert self.ledger.floors() == {number: self.model.floor(number) for number in self.model.next}

    @invariant()
    def nothing_is_kept_beyond_what_is_synced(self) -> None:
        if hasattr(self, "ledger"):
            for number, following in self.model.next.items():
                assert following <= max(self.engine.synced[number], 0), "a power cut would make this position a lie"

    def teardown(self) -> None:
        if hasattr(self, "ledger"):
            self.connection.real.close()
        shutil.rmtree(self.directory, ignore_errors=True)


def test_a_queue_does_what_its_model_does_though_it_dies_in_any_statement() -> None:
    search(QueueMachine, examples=60)


@pytest.mark.prove
def test_a_queue_does_what_its_model_does_for_long() -> None:
    search(QueueMachine, examples=2_000, steps=60)


# -- the machine itself: each of these must be found ----


class TokenIgnored(Turn):
    """Acknowledges for whoever asks: a worker that lost its lease finishes somebody else's message."""

    def finish(self, keys: Iterable[Key]) -> list[Key]:
        statement = "DELETE FROM pending WHERE partition = ? AND offset = ?"
        return [key for key in keys if not self._execute(statement, key[:2]).rowcount]


class LeasesIgnored(Turn):
    """Hands out what somebody has."""

    def due(self, mono_us: int, wall_us: int, limit: int) -> list[Pending]:
        return self.pending(limit)


class ByTheWallClock(Turn):
    """Leases run out when the clock is stepped."""

    def due(self, mono_us: int, wall_us: int, limit: int) -> list[Pending]:
        stepped = wall_us - 1_700_000_000_000_000 + 1_000_000
        return super().due(stepped, wall_us, limit)


class NobodyCounts(Turn):
    """Leases as many as are wanted."""

    def in_flight(self, mono_us: int) -> int:
        return 0


class DeliveriesForgotten(Turn):
    """Giving back begins the count anew."""

    def put_back(self, key: Key, due_us: int, *, counts: bool) -> bool:
        statement = (
            "UPDATE pending SET token = NULL, worker = NULL, until_us = ?, deliveries = 0 "
            "WHERE partition = ? AND offset = ? AND token = ?"
        )
        return self._execute(statement, (due_us, *key)).rowcount > 0


class Unleased(Turn):
    """Moves on without a lease: what a dead worker had is lost."""

    def lease(self, messages: Iterable[Pending]) -> None:
        super().lease(list(messages)[:-1])


class BootForgotten(Ledger):
    """Believes in leases of before the boot."""

    def _begin(self, boot: str) -> None:
        pass


class NotSynced(Ledger):
    """Hands out what a power cut may take back."""

    def exchange(self, *arguments: Any, **named: Any) -> Any:
        synced = list(self._engine.synced)  # type: ignore[attr-defined]
        given = super().exchange(*arguments, **named)
        self._engine.synced[:] = synced  # type: ignore[attr-defined]
        return given


class TwoTransactions(Ledger):
    """Moves on first and leases afterwards: a crash between the two loses messages."""

    def _lease(self, turn: Turn, worker: str, room: int, *arguments: Any) -> list[Pending]:
        leases = super()._lease(turn, worker, room, *arguments)
        connection = self.store._connection
        rows = connection.execute("SELECT * FROM pending").fetchall()
        for lease in leases:
            connection.execute("DELETE FROM pending WHERE partition = ? AND offset = ?", lease[:2])
        connection.execute("COMMIT")
        connection.execute("BEGIN IMMEDIATE")
        turn.lease([Pending(*row) for row in rows])
        return leases


class OldLifeBelieved(Ledger):
    """Does not notice that the log is another."""

    def _fit(self, turn: Turn, progress: Progress, life: str, gaps: list[Any]) -> Progress:
        return progress


BROKEN_TURNS = [TokenIgnored, LeasesIgnored, ByTheWallClock, NobodyCounts, DeliveriesForgotten, Unleased]
BROKEN_LEDGERS = [BootForgotten, NotSynced, TwoTransactions, OldLifeBelieved]


@pytest.mark.parametrize("broken", BROKEN_TURNS)
def test_the_machine_finds_a_broken_store(broken: type[Turn], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queuestore, "Turn", broken)
    with pytest.raises((AssertionError, KeyError)):
        search(QueueMachine, examples=400, shrink=False)


@pytest.mark.parametrize("broken", BROKEN_LEDGERS)
def test_the_machine_finds_a_broken_book(broken: type[Ledger]) -> None:
    machine = type("Broken", (QueueMachine,), {"ledger_type": broken})
    with pytest.raises((AssertionError, KeyError)):
        search(machine, examples=400, shrink=False)
