"""Async handlers: on a loop of their own, or on the one they are given."""

from __future__ import annotations

import asyncio
import functools
import threading
import time
from typing import Any

import pytest

from heliograph.delivery import Retry
from heliograph.delivery.invoke import is_async
from heliograph.errors import ConfigError, RetryLater
from heliograph.message import Gap, Message
from tests.delivery.harness import PATIENCE_S, MiniStation, eventually


class Callable:
    async def __call__(self, message: Message) -> None:
        pass

    async def method(self, message: Message) -> None:
        pass


async def coroutine_function(flag: bool, message: Message) -> None:
    pass


@pytest.mark.parametrize(
    ("handler", "expected"),
    [
        (coroutine_function, True),
        (functools.partial(coroutine_function, True), True),
        (functools.partial(functools.partial(coroutine_function), True), True),
        (Callable(), True),
        (functools.partial(Callable()), True),
        (Callable().method, True),
        (print, False),
        (lambda message: None, False),
        (functools.partial(print), False),
    ],
)
def test_async_handlers_are_recognised(handler: Any, expected: bool) -> None:
    assert is_async(handler) is expected


def test_async_handlers_get_every_message_in_order(station: MiniStation) -> None:
    seen: list[int] = []

    async def handle(message: Message) -> None:
        await asyncio.sleep(0)
        seen.append(message.data)

    station.engine.pull_messages = 30
    station.publish(*range(200))
    subscription = station.subscribe(handle, name="worker")
    eventually(lambda: subscription.position == 200)
    assert seen == list(range(200))
    eventually(lambda: station.saved() == 200)


def test_async_handlers_take_batches(station: MiniStation) -> None:
    seen: list[int] = []

    async def handle(messages: list[Message]) -> None:
        seen.extend(message.data for message in messages)
        if 3 in [message.data for message in messages]:
            del seen[-len(messages) :]
            raise ValueError("boom")

    station.publish(*range(10))
    subscription = station.subscribe(handle, name="worker", batch=True)
    eventually(lambda: subscription.position == 10)
    assert seen == [0, 1, 2, 4, 5, 6, 7, 8, 9]
    assert station.letters.offsets() == [3]


def test_they_run_in_the_loop_they_are_given(station: MiniStation) -> None:
    threads: set[int] = set()

    async def handle(message: Message) -> None:
        threads.add(threading.get_ident())

    async def main() -> None:
        subscription = station.subscribe(handle, name="worker", event_loop=asyncio.get_running_loop())
        station.publish(*range(10))
        await asyncio.to_thread(eventually, lambda: subscription.position == 10)
        assert await asyncio.to_thread(subscription.close)

    asyncio.run(main())
    assert threads == {threading.get_ident()}
    assert station.saved() == 10


def test_closing_on_the_loop_itself_from_a_handler_does_not_deadlock(station: MiniStation) -> None:
    async def handle(message: Message) -> None:
        assert subscription.close() is False

    station.publish(*range(3))
    subscription = station.subscribe(handle, name="worker", paused=True)
    subscription.resume()
    eventually(lambda: subscription.closed)
    assert station.saved() == 1


def test_a_loop_that_ends_fails_the_subscription_and_loses_nothing(station: MiniStation) -> None:
    entered = threading.Event()

    async def handle(message: Message) -> None:
        if message.data == 1:
            entered.set()
            await asyncio.sleep(3600)

    async def main() -> None:
        station.subscribe(handle, name="worker", event_loop=asyncio.get_running_loop())
        await asyncio.to_thread(entered.wait, PATIENCE_S)

    station.publish(*range(3))
    asyncio.run(main())
    subscription = station.subscriptions[0]
    eventually(lambda: subscription.state == "failed")
    assert "event loop" in subscription.stats().last_error
    assert not station.letters.written, "being cancelled is not the message's fault"
    assert subscription.close()
    assert station.saved() == 1


def test_async_failures_are_retried_and_buried(station: MiniStation) -> None:
    calls: list[int] = []

    async def handle(message: Message) -> None:
        calls.append(message.data)
        if message.data == 1:
            raise SystemExit("not this loop's problem")

    station.publish(*range(3))
    subscription = station.subscribe(handle, name="worker")
    eventually(lambda: subscription.position == 3)
    assert calls == [0, 1, 1, 1, 2]
    assert station.letters.offsets() == [1]


def test_ctrl_c_in_the_main_thread_is_passed_on(station: MiniStation) -> None:
    async def handle(message: Message) -> None:
        raise KeyboardInterrupt

    async def main() -> None:
        station.subscribe(handle, name="worker", event_loop=asyncio.get_running_loop())
        await asyncio.sleep(PATIENCE_S)

    station.publish(0)
    with pytest.raises(KeyboardInterrupt):
        asyncio.run(main())
    assert station.subscriptions[0].close()
    assert station.saved() == 0
    assert not station.letters.written


def test_a_cancelled_inner_task_is_a_failure_not_the_end(station: MiniStation) -> None:
    async def handle(message: Message) -> None:
        task = asyncio.ensure_future(asyncio.sleep(3600))
        task.cancel()
        await task

    station.publish(0)
    subscription = station.subscribe(handle, name="worker")
    eventually(lambda: subscription.position == 1)
    assert station.letters.offsets() == [0]


def test_close_and_pause_during_async_backoff(station: MiniStation) -> None:
    calls: list[int] = []

    async def handle(message: Message) -> None:
        calls.append(message.data)
        raise RetryLater(600)

    station.publish(0)
    subscription = station.subscribe(handle, name="worker", retry=Retry(max_retries=9))
    eventually(lambda: subscription.state == "retrying")
    subscription.pause()
    time.sleep(0.02)
    assert calls == [0]
    subscription.resume()
    time.sleep(0.02)
    assert subscription.close()
    assert station.saved() == 0
    assert not station.letters.written


def test_an_async_handler_that_takes_too_long_is_cancelled_and_fails(station: MiniStation) -> None:
    cancelled: list[int] = []

    async def handle(message: Message) -> None:
        if message.data == 1:
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                cancelled.append(message.data)
                raise

    station.publish(*range(3))
    subscription = station.subscribe(handle, name="worker", timeout_s=0.02)
    eventually(lambda: subscription.position == 3)
    assert cancelled == [1, 1, 1]
    (letter,) = station.letters.written
    assert letter["error"] == "TimeoutError: the handler took longer than 0.02 s"
    assert letter["error_type"] == "builtins.TimeoutError"
    assert subscription.stats().timeouts == 3


def test_a_timeout_inside_the_handler_is_not_ours(station: MiniStation) -> None:
    async def handle(message: Message) -> None:
        raise TimeoutError("the database said so")

    station.publish(0)
    subscription = station.subscribe(handle, name="worker", timeout_s=600)
    eventually(lambda: subscription.position == 1)
    assert subscription.stats().timeouts == 0
    assert station.letters.written[0]["error"] == "TimeoutError: the database said so"


def test_an_async_handler_left_behind_is_cancelled(station: MiniStation) -> None:
    entered, cancelled = threading.Event(), threading.Event()

    async def handle(message: Message) -> None:
        entered.set()
        try:
            await asyncio.sleep(3600)
        finally:
            cancelled.set()

    station.publish(0)
    subscription = station.subscribe(handle, name="worker")
    assert entered.wait(PATIENCE_S)
    assert subscription.close(timeout_s=0.05) is False
    assert cancelled.wait(PATIENCE_S)
    assert station.saved() == 0
    eventually(lambda: not subscription._parts.alive)


def test_a_handler_that_never_waits_leaves_turns_to_the_loop(station: MiniStation) -> None:
    turns = 0
    seen = 0

    async def handle(message: Message) -> None:
        nonlocal seen
        seen += 1

    async def main() -> None:
        nonlocal turns
        subscription = station.subscribe(handle, event_loop=asyncio.get_running_loop())
        while seen < 1000:
            turns += seen > 0
            await asyncio.sleep(0)
        await asyncio.to_thread(subscription.close)

    station.publish(*range(1000))
    asyncio.run(main())
    assert turns >= 5


def test_an_async_on_gap_is_awaited_where_the_handlers_run(station: MiniStation) -> None:
    story: list[object] = []

    async def handle(message: Message) -> None:
        story.append(message.data)

    async def on_gap(gap: Gap) -> None:
        await asyncio.sleep(0)
        story.append(gap.reason)

    station.engine.add("missing", "damaged")
    station.publish(1)
    station.subscribe(handle, on_gap=on_gap)
    eventually(lambda: story == ["damaged", 1])


def test_an_async_on_gap_needs_an_async_handler(station: MiniStation) -> None:
    async def on_gap(gap: Gap) -> None:
        pass

    with pytest.raises(ConfigError, match="make both async"):
        station.subscribe(print, on_gap=on_gap)
