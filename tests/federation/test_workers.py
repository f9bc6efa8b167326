"""Threads for an event loop: as many as are needed, not more than allowed, and none when they are closed."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from heliograph.errors import StationClosed, StorageError
from heliograph.federation.workers import Workers

Test = Callable[[Workers], Coroutine[Any, Any, None]]


def run(test: Test, most: int = 3) -> None:
    async def main() -> None:
        workers = Workers(most, asyncio.get_running_loop())
        try:
            async with asyncio.timeout(10):
                await test(workers)
        finally:
            workers.close()

    asyncio.run(main())


def test_results_and_failures_come_back() -> None:
    async def test(workers: Workers) -> None:
        assert await workers.run(divmod, 7, 2) == (3, 1)
        assert await workers.run(threading.get_ident) != threading.get_ident()
        with pytest.raises(ZeroDivisionError):
            await workers.run(divmod, 7, 0)

    run(test)


def test_there_are_as_many_threads_as_are_busy_at_once() -> None:
    async def test(workers: Workers) -> None:
        before = threading.active_count()
        for _ in range(5):
            await workers.run(int)
        assert threading.active_count() == before + 1
        gate = threading.Event()
        waiting = [workers.run(gate.wait, 10) for _ in range(5)]
        await asyncio.sleep(0.02)
        assert threading.active_count() == before + 3, "no more than allowed"
        assert not any(one.done() for one in waiting)
        gate.set()
        assert await asyncio.gather(*waiting) == [True] * 5
        assert await asyncio.gather(*[workers.run(int) for _ in range(50)]) == [0] * 50
        assert threading.active_count() == before + 3

    run(test)


def test_who_is_not_waited_for_any_more_does_no_harm() -> None:
    async def test(workers: Workers) -> None:
        gate = threading.Event()
        given_up = workers.run(gate.wait, 10)
        given_up.cancel()
        gate.set()
        assert await workers.run(int) == 0

    run(test, most=1)


def test_they_finish_before_they_end() -> None:
    done: list[int] = []

    async def main() -> None:
        workers = Workers(2, asyncio.get_running_loop())
        for number in range(20):
            workers.submit(done.append, number)
        workers.close()
        assert sorted(done) == list(range(20))
        with pytest.raises(RuntimeError):
            workers.run(int)
        with pytest.raises(RuntimeError):
            workers.submit(int)

    asyncio.run(main())


def test_what_nobody_waits_for_is_logged_if_it_fails(caplog: pytest.LogCaptureFixture) -> None:
    def fail(error: Exception) -> None:
        raise error

    async def test(workers: Workers) -> None:
        workers.submit(fail, StorageError("the disk is gone"))
        workers.submit(fail, StationClosed("closed"))
        await workers.run(int)

    with caplog.at_level(logging.WARNING):
        run(test, most=1)
    assert [record.getMessage() for record in caplog.records] == ["something beside the links failed: the disk is gone"]
