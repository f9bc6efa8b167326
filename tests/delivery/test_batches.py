"""Handlers that take lists."""

from __future__ import annotations

import threading

from heliograph.delivery import Retry
from heliograph.message import Message
from tests.delivery.harness import Gate, MiniStation, eventually


class Poisoned:
    """A batch handler that some messages break."""

    def __init__(self, *poison: int) -> None:
        self.poison = set(poison)
        self.calls: list[list[int]] = []
        self.seen: list[int] = []

    def __call__(self, messages: list[Message]) -> None:
        values = [message.data for message in messages]
        self.calls.append(values)
        if self.poison & set(values):
            raise ValueError(f"boom {values}")
        self.seen.extend(values)


def test_the_whole_batch_arrives_in_one_call(station: MiniStation) -> None:
    handler = Poisoned()
    station.publish(*range(100))
    subscription = station.subscribe(handler, name="worker", batch=True)
    eventually(lambda: handler.seen == list(range(100)))
    assert handler.calls == [list(range(100))]
    eventually(lambda: subscription.stats().delivered == 100)


def test_a_handler_may_do_what_it_likes_with_its_list(station: MiniStation) -> None:
    batches: list[list[Message]] = []

    def handle(messages: list[Message]) -> None:
        batches.append(messages[:])
        messages.clear()

    station.publish(*range(10))
    with station.subscribe(handle, name="worker", batch=True):
        eventually(lambda: station.engine.positions["worker"].offset == 10)
    assert len(batches[0]) == 10
    assert station.engine.positions["worker"].id == batches[0][-1].id


def test_a_failing_batch_is_tried_again_as_a_whole(station: MiniStation) -> None:
    handler = Poisoned(3)
    station.publish(*range(8))
    station.subscribe(handler, name="worker", batch=True, retry=Retry(max_retries=600, base_s=0.01, max_s=0.01))
    eventually(lambda: len(handler.calls) >= 3)
    assert set(map(len, handler.calls)) == {8}
    handler.poison.clear()
    eventually(lambda: handler.seen == list(range(8)))
    assert not station.letters.written


def test_batch_poison_only_is_dead_lettered(station: MiniStation) -> None:
    handler = Poisoned(3, 100)
    station.publish(*range(200))
    subscription = station.subscribe(handler, name="worker", batch=True)
    eventually(lambda: len(handler.seen) == 198)
    assert station.letters.offsets() == [3, 100]
    assert handler.seen == [value for value in range(200) if value not in {3, 100}], "in order, each once"
    assert len(handler.calls) < 50, "found by halving, not one by one"
    assert station.letters.written[0]["attempts"] == 3, "alone, it had the same chances as any message"
    eventually(lambda: station.saved() == 200)
    assert subscription.stats().delivered == 198
    assert subscription.state == "running"


def test_a_batch_of_one_has_no_more_chances_than_a_message(station: MiniStation) -> None:
    handler = Poisoned(0)
    station.publish(0)
    station.subscribe(handler, name="worker", batch=True)
    eventually(lambda: station.letters.offsets() == [0])
    assert len(handler.calls) == 3


def test_what_is_done_of_a_halved_batch_is_saved_when_closing(station: MiniStation) -> None:
    station.publish(*range(8))
    gate = Gate()

    def handle(messages: list[Message]) -> None:
        values = [message.data for message in messages]
        if 5 in values:
            if len(values) == 1:
                gate()
            raise ValueError(f"boom {values}")

    subscription = station.subscribe(handle, name="worker", batch=True)
    assert gate.entered.wait(30)
    closing = threading.Thread(target=subscription.close)
    closing.start()
    eventually(lambda: subscription.state == "closed")
    gate.opened.set()
    closing.join()
    assert station.saved() == 5
    assert not station.letters.written


def test_a_batch_at_hand_is_not_done(station: MiniStation) -> None:
    gate = Gate()
    station.publish(*range(8))
    subscription = station.subscribe(lambda messages: gate(), name="worker", batch=True)
    assert gate.entered.wait(30)
    assert subscription.position == 0
    assert subscription.stats().delivered == 0
    gate.opened.set()
    eventually(lambda: subscription.position == 8)


def test_a_paused_batch_subscription_starts_no_batch(station: MiniStation) -> None:
    handler = Poisoned()
    gate = Gate()

    def handle(messages: list[Message]) -> None:
        gate()
        handler(messages)

    station.engine.pull_messages = 2
    station.publish(*range(4))
    subscription = station.subscribe(handle, name="worker", batch=True)
    assert gate.entered.wait(30)
    subscription.pause()
    gate.opened.set()
    eventually(lambda: station.saved() == 2)
    assert handler.seen == [0, 1]
    subscription.resume()
    eventually(lambda: handler.seen == [0, 1, 2, 3])
