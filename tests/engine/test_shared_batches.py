"""Subscribers of one process decode for each other: near ones everything, slow ones cost nobody anything."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import heliograph as hg
from heliograph.engine import batches
from heliograph.engine.batches import Cursor, SharedBatches
from heliograph.engine.port import Batch
from heliograph.filters import Sieve
from heliograph.limits import CHUNK_BYTES, SHARED_BATCHES, SHARED_BATCHES_AT_END
from heliograph.station import Station
from tests.opening import Opener

CHANNEL = "events"
PIECE = ["x" * (CHUNK_BYTES // 12)] * 8
MANY = SHARED_BATCHES + 20


class Numbered(msgspec.Struct):
    """A payload."""

    n: int


@pytest.fixture
def station(opened: Opener) -> Iterator[Station]:
    with opened(durability="os") as station:
        yield station


def cursor(station: Station, offset: int = 0) -> Cursor:
    one = station.engine.cursor(CHANNEL, 0, offset)
    assert isinstance(one, Cursor)
    return one


def pull(one: Cursor) -> Batch:
    batch = one.pull()
    assert batch is not None
    return batch


def shared(station: Station) -> SharedBatches:
    return station.engine._open.get(CHANNEL, 0).shared


class Slow:
    """Decoding that stops in the middle of it until it may go on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun = threading.Event()
        self.go_on = threading.Event()
        self.calls = 0
        self.fails = False
        self._really = batches.to_batch
        monkeypatch.setattr(batches, "to_batch", self)

    def __call__(self, *arguments: Any) -> Batch:
        self.calls += 1
        batch = self._really(*arguments)
        if self.calls == 1:
            self.begun.set()
            assert self.go_on.wait(10)
            if self.fails:
                raise OSError("the disk is gone")
        return batch


class Pulling:
    """A thread that pulls once."""

    def __init__(self, one: Cursor) -> None:
        self.got: list[Batch | None] = []
        self.error: Exception | None = None
        self._thread = threading.Thread(target=self._pull, args=(one,))
        self._thread.start()

    def _pull(self, one: Cursor) -> None:
        try:
            self.got.append(one.pull())
        except OSError as error:
            self.error = error

    def batch(self) -> Batch | None:
        self._thread.join(10)
        assert not self._thread.is_alive()
        return self.got[0] if self.got else None


def test_who_is_behind_gets_what_was_decoded_and_it_is_let_go_then(station: Station) -> None:
    for _ in range(SHARED_BATCHES):
        station.publish_many(CHANNEL, PIECE)
    ahead, behind, third = cursor(station), cursor(station), cursor(station)
    found = [pull(ahead) for _ in range(SHARED_BATCHES - 1)]
    assert [pull(behind) is batch for batch in found] == [True] * len(found)
    assert len(shared(station)._recent) == len(found), "the third one has nothing of it yet"
    assert [pull(third) is batch for batch in found] == [True] * len(found)
    del found
    pull(ahead)
    assert len(shared(station)._recent) == 1
    pull(behind)
    pull(third)
    assert ahead.pull() is None
    assert len(shared(station)._recent) == 0


def test_a_stuck_reader_keeps_little_and_nothing_once_it_is_far_behind(station: Station) -> None:
    for _ in range(MANY):
        station.publish_many(CHANNEL, PIECE)
    ahead, stuck = cursor(station), cursor(station)
    first = pull(ahead)
    assert pull(stuck) is first
    kept = []
    while ahead.pull() is not None:
        kept.append(len(shared(station)._recent))
    assert max(kept) == SHARED_BATCHES
    assert kept[-1] <= 1, "it is too far behind to be waited for"
    assert len(shared(station)._recent) <= 1
    assert [message.data for message in pull(stuck).messages] == PIECE


def test_at_the_end_of_the_log_only_the_last_ones_are_kept(station: Station) -> None:
    for _ in range(20):
        station.publish_many(CHANNEL, PIECE)
    ahead, near, stuck = cursor(station), cursor(station), cursor(station)
    bounds = [0]
    while (batch := ahead.pull()) is not None:
        bounds.append(batch.next)
    assert len(shared(station)._recent) == 0, "both are too far behind"
    near.seek(bounds[-3])
    ahead.seek(bounds[-3])
    last = [pull(ahead), pull(ahead)]
    assert ahead.pull() is None
    assert len(shared(station)._recent) == 2 < SHARED_BATCHES_AT_END
    assert [pull(near), pull(near)] == last
    assert near.pull() is None
    assert len(shared(station)._recent) == 0
    offsets = []
    while (batch := stuck.pull()) is not None:
        offsets += [message.offset for message in batch.messages]
    assert offsets == list(range(20 * len(PIECE)))


def test_all_who_wait_for_a_batch_get_that_batch_however_far_the_others_went(
    station: Station, monkeypatch: pytest.MonkeyPatch
) -> None:
    station.publish_many(CHANNEL, [1, 2, 3])
    slow = Slow(monkeypatch)
    cursors = [cursor(station) for _ in range(6)]
    pulling = [Pulling(cursors[0])]
    assert slow.begun.wait(10)
    pulling += [Pulling(one) for one in cursors[1:]]
    slow.go_on.set()
    found = [one.batch() for one in pulling]
    assert found[0] is not None
    assert [one is found[0] for one in found] == [True] * 6
    assert slow.calls == 1
    assert {one.offset for one in cursors} == {3}


def test_a_decoder_that_fails_leaves_the_others_to_themselves(
    station: Station, monkeypatch: pytest.MonkeyPatch
) -> None:
    station.publish_many(CHANNEL, [1, 2, 3])
    slow = Slow(monkeypatch)
    slow.fails = True
    cursors = [cursor(station) for _ in range(3)]
    failing = Pulling(cursors[0])
    assert slow.begun.wait(10)
    others = [Pulling(one) for one in cursors[1:]]
    slow.go_on.set()
    assert failing.batch() is None and isinstance(failing.error, OSError)
    for other in others:
        batch = other.batch()
        assert batch is not None and [message.data for message in batch.messages] == [1, 2, 3]
    assert shared(station)._decoding == {}


def test_what_was_decoded_while_a_message_was_redacted_is_given_to_nobody_else(
    station: Station, monkeypatch: pytest.MonkeyPatch
) -> None:
    receipts = station.publish_many(CHANNEL, ["a", "secret", "b"])
    slow = Slow(monkeypatch)
    cursors = [cursor(station) for _ in range(3)]
    before = Pulling(cursors[0])
    assert slow.begun.wait(10)
    waiting = Pulling(cursors[1])
    station.redact(receipts[1].id)
    after = Pulling(cursors[2])
    seen = after.batch()  # need not wait for the one that began before
    slow.go_on.set()
    first = before.batch()
    assert first is not None and [message.data for message in first.messages] == ["a", "secret", "b"]
    late = waiting.batch()
    for batch in (seen, late, cursor(station).pull()):
        assert batch is not None and [message.data for message in batch.messages] == ["a", "b"]


def test_who_comes_after_a_redaction_does_not_get_what_was_decoded_before_it(
    station: Station, monkeypatch: pytest.MonkeyPatch
) -> None:
    receipts = station.publish_many(CHANNEL, ["a", "secret", "b"])
    slow = Slow(monkeypatch)
    early, late = cursor(station), cursor(station)
    before = Pulling(early)
    assert slow.begun.wait(10)
    station.redact(receipts[1].id)
    slow.go_on.set()
    held = before.batch()
    assert held is not None and len(held.messages) == 3
    assert [message.data for message in pull(late).messages] == ["a", "b"]


@pytest.mark.parametrize("read_only", [False, True])
def test_what_another_process_redacts_is_not_given_to_others_here(opened: Opener, root: Path, read_only: bool) -> None:
    there = opened()
    receipts = there.publish_many(CHANNEL, ["a", "secret", "b"])
    with hg.open(root, read_only=read_only) as station:
        early, late = cursor(station), cursor(station)
        held = pull(early)
        assert len(held.messages) == 3
        there.redact(receipts[1].id)
        assert [message.data for message in pull(late).messages] == ["a", "b"]


def test_a_batch_with_a_problem_is_not_shared(station: Station, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever meets it makes its own dead letter of it."""
    station.publish_many(CHANNEL, [{"n": 1}, {"n": "one"}], type="com.example.n.v1")
    station.register("com.example.n.v1", Numbered)
    slow = Slow(monkeypatch)
    cursors = [cursor(station), cursor(station)]
    first = Pulling(cursors[0])
    assert slow.begun.wait(10)
    second = Pulling(cursors[1])
    slow.go_on.set()
    found = [first.batch(), second.batch()]
    assert [len(batch.problems) for batch in found if batch is not None] == [1, 1]
    assert found[0] is not found[1]
    assert slow.calls == 2


def test_a_reader_that_was_forgotten_is_none_and_may_be_closed_by_the_garbage_collector(station: Station) -> None:
    for _ in range(4):
        station.publish_many(CHANNEL, PIECE)
    ahead, forgotten = cursor(station), cursor(station)
    first = pull(ahead)
    assert pull(forgotten) is first
    del forgotten, first
    pull(ahead)
    assert len(shared(station)._recent) == 0, "nobody else is there to share it with"
    other = cursor(station)
    with shared(station)._lock:  # as if the collector ran in a step that holds it
        other.close()
    assert pull(ahead).messages


def test_many_subscribers_share_what_they_decode(station: Station, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(150):
        station.publish_many(CHANNEL, PIECE)
    decoded = []
    really = batches.to_batch

    def counting(*arguments: Any) -> Batch:
        batch = really(*arguments)
        decoded.append(batch.first)
        return batch

    monkeypatch.setattr(batches, "to_batch", counting)
    ended = [threading.Event() for _ in range(8)]
    got: list[list[int]] = [[] for _ in ended]

    def handler(number: int) -> Any:
        def handle(message: hg.Message) -> None:
            got[number].append(message.offset)
            if message.offset == 150 * len(PIECE) - 1:
                ended[number].set()

        return handle

    subscriptions = [
        station.subscribe(CHANNEL, handler(number), name=f"reader-{number}", start="first", paused=True)
        for number in range(len(ended))
    ]
    for one in subscriptions:
        one.resume()
    assert all(event.wait(30) for event in ended)
    assert got == [list(range(150 * len(PIECE)))] * len(ended)
    assert len(decoded) < 8 * 150, "how often depends on who runs when; that nobody shares anything cannot be"


def test_eight_who_read_side_by_side_decode_everything_once(station: Station, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(10):
        station.publish_many(CHANNEL, PIECE)
    decoded = []
    really = batches.to_batch
    monkeypatch.setattr(batches, "to_batch", lambda *all_of: (decoded.append(1), really(*all_of))[1])
    cursors = [cursor(station) for _ in range(8)]
    for _ in range(10):
        for one in cursors:
            pull(one)
    assert len(decoded) == 10


@pytest.mark.parametrize("known", [False, True])
def test_a_type_registered_while_others_read_is_decoded_for_all_who_read_on(station: Station, known: bool) -> None:
    """Also for those who began before: else it would depend on who is quicker what the others get."""
    if known:
        station.register("another.v1", list[int])
    station.publish_many(CHANNEL, [{"n": 1}], type="numbered.v1")
    sieve = Sieve(hg.Filter(type="numbered.v1"))
    before, beside, filtered = cursor(station), cursor(station), station.engine.cursor(CHANNEL, 0, 1, sieve)
    held = pull(before)  # and kept for the other one
    assert held.messages[0].data == {"n": 1}
    station.register("numbered.v1", Numbered)
    after = cursor(station)
    assert pull(after).messages[0].data == Numbered(1)
    assert pull(beside).messages[0].data == Numbered(1)
    station.publish_many(CHANNEL, [{"n": 2}], type="numbered.v1")
    batch = pull(before)
    assert batch.messages[0].data == Numbered(2)
    assert pull(after) is batch
    other = filtered.pull()
    assert other is not None
    assert other.messages[0].data == Numbered(2)
