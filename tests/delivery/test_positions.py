"""Saving positions on the side."""

from __future__ import annotations

import threading
import weakref
from typing import Any, cast

import pytest

from heliograph.clock import SYSTEM_CLOCK
from heliograph.delivery import Flusher, Retry
from heliograph.delivery.control import Control
from heliograph.delivery.lane import Life, Terms
from heliograph.delivery.positions import Positions
from heliograph.engine import batches
from heliograph.engine.port import Batch
from tests.delivery.harness import FakeEngine, eventually
from tests.opening import Opener


class FixedLanes:
    """Lanes that are as far as the test says."""

    def __init__(self) -> None:
        self.offset = 0

    def committed(self) -> int:
        return self.offset


class Story:
    def __init__(self) -> None:
        self.engine = FakeEngine("alerts")
        self.lanes = FixedLanes()
        terms = Terms(
            channel="alerts",
            partition=0,
            name="worker",
            life=Life("k3f9q2"),
            batch=False,
            retry=Retry(),
            letters=None,
            oldest=None,
            save=lambda: None,
            control=Control(),
            clock=SYSTEM_CLOCK,
        )
        self.positions = Positions(self.engine, terms, cast(Any, self.lanes), name="worker", saved=0)

    def batch(self, count: int) -> Batch:
        first = len(self.engine.entries)
        messages = [self.engine.publish(value) for value in range(first, first + count)]
        return Batch(first, first + count, messages, [], 0, (0, 0, 0))

    def saved(self) -> list[int]:
        return [position.offset for position in self.engine.saves]


@pytest.fixture
def story() -> Story:
    return Story()


def test_a_batch_that_begins_while_the_flusher_is_about_to_rest_is_saved(story: Story) -> None:
    flusher = Flusher(5)
    story.positions.listed = True  # on the flusher's list, which it has just taken
    story.positions.remember(story.batch(10))
    flusher.touch(story.positions)  # listed already, so this does nothing
    story.positions.listed = False  # the flusher goes on, and finds what is done unchanged
    assert story.positions.save()
    assert not story.positions.settled(), "ten messages are on their way"
    flusher.touch(story.positions)
    story.lanes.offset = 10
    eventually(lambda: story.saved() == [10])
    eventually(story.positions.settled)
    flusher.close()


def test_only_changes_are_saved(story: Story) -> None:
    story.positions.remember(story.batch(3))
    for offset in (0, 1, 1, 3, 3):
        story.lanes.offset = offset
        assert story.positions.save()
    assert story.saved() == [1, 3]


def test_the_id_is_that_of_the_message_before_the_position(story: Story) -> None:
    first, second = story.batch(3), story.batch(3)
    story.positions.remember(first)
    story.positions.remember(second)
    for offset in (1, 3, 4, 6):
        story.lanes.offset = offset
        story.positions.save()
    ids = [message.id for message in first.messages + second.messages]
    assert [position.id for position in story.engine.saves] == [ids[0], ids[2], ids[3], ids[5]]


def test_batches_that_are_done_are_not_kept(story: Story) -> None:
    for _ in range(50):
        story.positions.remember(story.batch(2))
        story.lanes.offset += 2
    assert len(story.positions._batches) <= 2


def test_a_batch_is_let_go_as_soon_as_it_is_done_and_its_end_is_still_known(story: Story) -> None:
    kept, done, blank = story.batch(3), story.batch(3), story.batch(3)
    del blank.messages[-1]  # redacted, or left out by a filter
    blank.last_id = "left out"
    for batch in (kept, done, blank):
        story.positions.remember(batch)
    story.lanes.offset = 2
    story.positions.let_go()
    assert len(story.positions._batches) == 3
    story.lanes.offset = 9
    story.positions.let_go()
    assert len(story.positions._batches) == 0
    for offset in (3, 6, 9):  # whoever asked before may still look for an earlier one
        story.lanes.offset = offset
        story.positions.save()
    ids = [kept.messages[-1].id, done.messages[-1].id, "left out"]
    assert [position.id for position in story.engine.saves] == ids
    story.positions.rewind(3)
    story.lanes.offset = 6
    story.positions.save()
    assert story.engine.saves[-1].id == "", "offset 5 of the log as it was is another message"


@pytest.mark.parametrize("batch", [True, False])
def test_a_batch_that_is_done_is_freed_before_the_next_is_decoded(
    opened: Opener, monkeypatch: pytest.MonkeyPatch, batch: bool
) -> None:
    """The next one reuses its memory, which is still in the processor's cache."""
    alive: list[int] = []
    known: list[weakref.ref[Batch]] = []
    ended = threading.Event()
    really = batches.to_batch

    def spying(*arguments: Any) -> Batch:
        alive.append(sum(one() is not None for one in known))
        decoded = really(*arguments)
        known.append(weakref.ref(decoded))
        return decoded

    def handle(given: Any) -> None:
        last = given[-1] if batch else given
        if last.offset == 47:
            ended.set()

    monkeypatch.setattr(batches, "to_batch", spying)
    with opened(durability="os") as station:
        for _ in range(6):
            station.publish_many("alerts", ["x" * 100_000] * 8)
        station.subscribe("alerts", handle, name="worker", start="first", batch=batch)
        assert ended.wait(10)
    assert len(alive) >= 5
    assert alive == [0] * len(alive)


def test_after_sealing_nothing_is_saved(story: Story) -> None:
    story.positions.remember(story.batch(3))
    story.positions.seal()
    story.lanes.offset = 3
    assert story.positions.save()
    assert story.saved() == []
    assert story.positions.settled()


def test_a_closed_flusher_starts_no_thread(story: Story) -> None:
    flusher = Flusher(5)
    flusher.close()
    flusher.touch(story.positions)
    assert flusher._thread is None
