"""What can be a handler, and what a run knows about itself."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import textwrap
from typing import Any

import pytest

from heliograph.delivery.control import Control
from heliograph.delivery.invoke import Ended, PlainInvoker, Run
from heliograph.errors import ConfigError
from heliograph.message import Message
from tests.delivery.harness import FakeEngine, MiniStation, eventually


def messages(count: int) -> list[Message]:
    engine = FakeEngine("alerts")
    return [engine.publish(value) for value in range(count)]


def test_a_run_knows_its_progress_from_the_iterator_alone() -> None:
    run = Run(messages(3))
    assert (run.taken(), run.done(), run.undone().data) == (0, 0, 0)
    next(run.source)
    assert (run.taken(), run.done(), run.undone().data) == (1, 0, 0), "the one at hand is not done"
    next(run.source)
    assert (run.taken(), run.done(), run.undone().data) == (2, 1, 1)
    next(run.source)
    assert next(run.source, None) is None
    assert run.done() == 2, "the last one may still be at hand, for all an onlooker knows"


def test_an_interruption_leaves_the_message_undelivered() -> None:
    control = Control()
    seen: list[int] = []

    def handle(message: Message) -> None:
        seen.append(message.data)
        control.pause()

    run = Run(messages(3))
    assert PlainInvoker(handle, control.interrupt)(run) is Ended.INTERRUPTED
    assert seen == [0]
    assert run.undone().data == 1


def generator(message: Message) -> Any:
    yield message


async def async_generator(message: Message) -> Any:
    yield message


@pytest.mark.parametrize("handler", [None, 17, generator, async_generator, functools.partial(generator)])
def test_what_cannot_handle_a_message_is_refused_at_once(station: MiniStation, handler: Any) -> None:
    with pytest.raises(ConfigError):
        station.subscribe(handler)


@pytest.mark.parametrize("batch", [False, True])
def test_a_plain_function_that_returns_a_coroutine_fails_instead_of_losing_messages(
    station: MiniStation, batch: bool
) -> None:
    async def work(message: Message) -> None:
        pass

    station.publish(0, 1)
    subscription = station.subscribe(lambda given: work(given), name="worker", batch=batch)  # noqa: PLW0108 - the point
    eventually(lambda: subscription.state == "failed")
    assert "async def" in subscription.stats().last_error
    assert station.saved() == 0
    assert not station.letters.written


def test_the_process_ends_quietly_without_close() -> None:
    script = textwrap.dedent(
        """
        import asyncio, time
        from tests.delivery.harness import MiniStation

        async def handle(message):
            await asyncio.sleep(0.001)

        def slow(message):
            time.sleep(0.001)

        station = MiniStation()
        station.publish(*range(100_000 // 100))
        station.subscribe(slow, name="plain")
        station.subscribe(slow, name="lanes", concurrency=3)
        station.subscribe(slow, name="timed", timeout_s=5)
        station.subscribe(handle, name="async", concurrency=3)
        station.subscribe(print, name="waiting", start_offset=1000)
        time.sleep(0.1)
        """
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, cwd=os.getcwd(), check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_forked_child_closes_without_touching_its_parents_subscription(station: MiniStation) -> None:
    subscription = station.subscribe(print, name="worker")
    child = os.fork()
    if child == 0:
        os._exit(0 if subscription.close() and "worker" in station.engine.leases else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert subscription.state == "running"
