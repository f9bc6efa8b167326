"""Work done by several processes at once, begun at the same moment."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from multiprocessing.connection import Connection
from time import monotonic
from typing import Any, NamedTuple

Worker = Callable[..., AbstractContextManager[Callable[[float], int]]]
"""Prepares what it needs and gives a function that works until a moment of the monotonic clock and counts."""

LEAD_S = 0.01


class Done(NamedTuple):
    """What one process did between two moments of the clock that all processes share."""

    messages: int
    began_s: float
    ended_s: float


def rate_together(worker: Worker, arguments: Sequence[tuple[Any, ...]], seconds: float) -> float:
    """How many a second the workers did together, one process for each tuple of arguments."""
    context = multiprocessing.get_context("spawn")
    lines, processes = [], []
    for given in arguments:
        ours, its = context.Pipe()
        process = context.Process(target=_run, args=(its, worker, given, seconds), daemon=True)
        process.start()
        its.close()
        lines.append(ours)
        processes.append(process)
    for line in lines:
        line.recv()  # ready
    begin_s = monotonic() + LEAD_S
    for line in lines:
        line.send(begin_s)
    found: list[Done] = [line.recv() for line in lines]
    for process in processes:
        process.join()
    elapsed_s = max(done.ended_s for done in found) - min(done.began_s for done in found)
    return sum(done.messages for done in found) / elapsed_s


def _run(line: Connection, worker: Worker, given: tuple[Any, ...], seconds: float) -> None:
    with worker(*given) as work:
        line.send("ready")
        begin_s = line.recv()
        while monotonic() < begin_s:  # spinning, not sleeping: nobody starts late
            pass
        began_s = monotonic()
        messages = work(began_s + seconds)
        line.send(Done(messages, began_s, monotonic()))
