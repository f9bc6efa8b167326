"""How workers share partitions: everything is held, nobody has two more than another, little moves."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from heliograph.delivery import sharing
from heliograph.delivery.sharing import Decision, decide, quotas

WORKERS = st.lists(st.text("abcdefgh", min_size=1, max_size=3), min_size=1, max_size=8, unique=True)


@st.composite
def holdings(draw: st.DrawFn) -> tuple[int, dict[str, list[int]]]:
    """Any number of partitions, some of them held by some workers."""
    count, workers = draw(st.integers(1, 24)), draw(WORKERS)
    held: dict[str, list[int]] = {worker: [] for worker in workers}
    for number in range(count):
        holder = draw(st.sampled_from([None, *workers]))
        if holder is not None:
            held[holder].append(number)
    return count, held


@given(holdings())
def test_the_quotas_add_up_and_differ_by_at_most_one(case: tuple[int, dict[str, list[int]]]) -> None:
    count, held = case
    found = quotas(count, held)
    assert sum(found.values()) == count
    assert max(found.values()) - min(found.values()) <= 1
    assert found.keys() == held.keys()


@given(holdings())
def test_nobody_gives_and_takes_at_once(case: tuple[int, dict[str, list[int]]]) -> None:
    count, held = case
    for worker in held:
        decision = decide(worker, count, held)
        assert not (decision.give and decision.take)
        assert set(decision.give) <= set(held[worker])
        assert not set(decision.take) & {number for numbers in held.values() for number in numbers}


@given(holdings())
def test_no_more_is_given_back_than_must_be(case: tuple[int, dict[str, list[int]]]) -> None:
    """The fewest moves that any fair sharing needs: what lies above the best choice of quotas."""
    count, held = case
    least, more = divmod(count, len(held))
    sizes = sorted((len(numbers) for numbers in held.values()), reverse=True)
    fewest = sum(max(0, size - least - (rank < more)) for rank, size in enumerate(sizes))
    assert sum(len(decide(worker, count, held).give) for worker in held) == fewest


@given(holdings())
def test_once_shared_nothing_moves(case: tuple[int, dict[str, list[int]]]) -> None:
    count, held = case
    settle(count, held)
    assert all(decide(worker, count, held) == Decision((), (), 0) for worker in held)


def test_what_is_being_given_back_is_not_given_twice_and_not_replaced() -> None:
    held = {"a": [0, 1, 2, 3], "b": []}
    assert decide("a", 4, held, leaving=[2, 3]) == Decision((), (), 0)
    assert decide("a", 4, held, leaving=[3]) == Decision((2,), (), 0)


def settle(count: int, held: dict[str, list[int]], rounds: int = 100) -> int:
    """Everybody acts on what he sees, in any order, until nothing changes; how many partitions were given back."""
    moved = 0
    for _ in range(rounds):
        changed = False
        for worker in random.sample(sorted(held), len(held)):
            decision = decide(worker, count, held)
            for number in decision.give:
                held[worker].remove(number)
                moved += 1
                changed = True
            for number in decision.take[: decision.room]:
                held[worker].append(number)
                changed = True
        if not changed:
            return moved
    raise AssertionError("it never settles")


class Sharing(RuleBasedStateMachine):
    """Workers that join, leave, die and look at what they saw a while ago; leases are what counts."""

    decide: Callable[..., Decision] = staticmethod(decide)

    @initialize(count=st.integers(1, 12))
    def begin(self, count: int) -> None:
        self.count = count
        self.names = 0
        self.leases: dict[int, str] = {}  # as the kernel knows them
        self.said: dict[str, list[int]] = {}  # as the workers say
        self.leaving: dict[str, set[int]] = {}
        self.seen: dict[str, dict[str, list[int]]] = {}

    def mine(self, worker: str) -> list[int]:
        return sorted(number for number, holder in self.leases.items() if holder == worker)

    @rule()
    @precondition(lambda self: len(self.said) < 6)
    def join(self) -> None:
        self.names += 1
        name = f"w{self.names}"
        self.said[name], self.leaving[name] = [], set()

    @rule(data=st.data(), clean=st.booleans())
    @precondition(lambda self: self.said)
    def end(self, data: st.DataObject, clean: bool) -> None:
        """Leaving and dying are the same to the others: the leases are free."""
        worker = data.draw(st.sampled_from(sorted(self.said)))
        for number in self.mine(worker):
            del self.leases[number]
        for table in (self.said, self.leaving, self.seen):
            table.pop(worker, None)  # type: ignore[attr-defined]

    @rule(data=st.data())
    @precondition(lambda self: self.said)
    def look(self, data: st.DataObject) -> None:
        """See what the others say; act on it only later."""
        worker = data.draw(st.sampled_from(sorted(self.said)))
        self.seen[worker] = {name: list(numbers) for name, numbers in self.said.items()}

    @rule(data=st.data())
    @precondition(lambda self: self.seen)
    def act(self, data: st.DataObject) -> None:
        self.carry_out(data.draw(st.sampled_from(sorted(self.seen))))

    def carry_out(self, worker: str) -> bool:
        held = {**self.seen.pop(worker), worker: self.mine(worker)}
        decision = self.decide(worker, self.count, held, self.leaving[worker])
        self.leaving[worker] |= set(decision.give)
        got = 0
        for number in decision.take:
            if got < decision.room and number not in self.leases:
                self.leases[number] = worker
                got += 1
        self.said[worker] = self.mine(worker)
        return bool(decision.give) or got > 0

    @rule(data=st.data())
    @precondition(lambda self: any(self.leaving.values()))
    def finish_a_message(self, data: st.DataObject) -> None:
        worker = data.draw(st.sampled_from(sorted(name for name, numbers in self.leaving.items() if numbers)))
        self.give_back(worker, data.draw(st.sampled_from(sorted(self.leaving[worker]))))

    def give_back(self, worker: str, number: int) -> None:
        self.leaving[worker].discard(number)
        del self.leases[number]
        self.said[worker] = self.mine(worker)

    @rule(more=st.integers(1, 3))
    def grow(self, more: int) -> None:
        self.count += more

    @invariant()
    def nobody_says_what_is_not_his(self) -> None:
        if hasattr(self, "said"):
            for worker, numbers in self.said.items():
                assert numbers == self.mine(worker)

    def teardown(self) -> None:
        """When nothing happens any more, everything is shared fairly, soon."""
        if not getattr(self, "said", None):
            return
        for _ in range(50):
            changed = False
            for worker in sorted(self.said):
                self.seen[worker] = {name: list(numbers) for name, numbers in self.said.items()}
                changed |= self.carry_out(worker)
                for number in sorted(self.leaving[worker]):
                    self.give_back(worker, number)
                    changed = True
            if not changed:
                break
        else:
            raise AssertionError("it never settles")
        sizes = [len(self.mine(worker)) for worker in self.said]
        assert sum(sizes) == self.count, "a partition is left to nobody"
        assert max(sizes) - min(sizes) <= 1, sizes


TestSharing = Sharing.TestCase
TestSharing.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def greedy(me: str, count: int, held: sharing.Held, leaving: object = ()) -> Decision:
    """Broken: takes whatever is free and gives nothing back."""
    taken = {number for numbers in held.values() for number in numbers}
    free = tuple(number for number in range(count) if number not in taken)
    return Decision((), free, len(free))


def rounded_down(me: str, count: int, held: sharing.Held, leaving: object = ()) -> Decision:
    """Broken: what does not divide evenly is left to nobody."""
    decision = decide(me, count, held, leaving)  # type: ignore[arg-type]
    return decision._replace(room=max(0, count // len(held) - len(held[me])))


@pytest.mark.parametrize("broken", [greedy, rounded_down])
def test_the_state_machine_catches_broken_decisions(broken: Callable[..., Decision]) -> None:
    from hypothesis.stateful import run_state_machine_as_test

    class Broken(Sharing):
        decide = staticmethod(broken)

    with pytest.raises(AssertionError):
        run_state_machine_as_test(
            Broken, settings=settings(max_examples=200, stateful_step_count=20, deadline=None, database=None)
        )
