"""Work queues: how fast messages are leased and acknowledged one by one.

The raw limit is one message per commit: receive one, acknowledge it, as a simple worker does. Beside it a worker that
receives and acknowledges many at once, one whose handler is called, and two processes on one queue.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from statistics import median
from time import monotonic

import heliograph as hg
from bench.harness import Bench, Goal, Row, compare, rate_of
from bench.processes import rate_together
from bench.samples import CHANNEL, PAYLOADS, TYPE

RAW = "receive one, acknowledge it: one message per commit"
AT_ONCE = 100
PROCESSES = 2


def run(bench: Bench) -> list[Row]:
    """Measure ways to work off a queue beside one message per commit."""
    messages = int(bench.either(50_000, 10_000))
    seconds = bench.either(1.0, 0.3)
    names = count()
    with bench.scratch("queues") as path:
        with hg.open(path, name="bench", durability="interval") as station:
            for _ in range(messages // len(PAYLOADS)):
                station.publish_many(CHANNEL, PAYLOADS, type=TYPE)
            stored = station.channel(CHANNEL).messages
        with hg.open(path, name="bench") as station:
            rounds = bench.measure(
                {
                    "raw": lambda: pulled(station, next(names), 1, min(stored, 1_000)),
                    "many": lambda: pulled(station, next(names), AT_ONCE, stored),
                    "handler": lambda: handled(station, next(names), stored),
                    "processes": lambda: shared(path, next(names), seconds),
                },
                rounds=3 if bench.quick else 5,
            )
    row = partial(compare, "queues", rounds=rounds, raw_is=RAW)
    return [
        Row(subject="queues", what="one message per commit", unit="messages/s", ours=median(rounds["raw"]),
            rounds={"ours": rounds["raw"]}),
        row(f"{AT_ONCE} received and acknowledged at once", name="many", goal=Goal(ratio_min=5)),
        row("a handler, acknowledged in batches", name="handler", goal=Goal(ratio_min=4)),
        row(f"{PROCESSES} processes on one queue, {AT_ONCE} at once", name="processes", goal=Goal(ratio_min=4)),
    ]  # fmt: skip


def pulled(station: hg.Station, number: int, at_once: int, messages: int) -> float:
    """Messages a second, received and acknowledged so many at a time."""
    with station.queue(CHANNEL, f"pulled-{number}", start="first") as queue:
        return rate_of(messages, lambda: pull(queue, at_once, messages))


def pull(queue: hg.Queue, at_once: int, messages: int) -> None:
    """Work off so many messages."""
    left = messages
    while left > 0:
        jobs = queue.receive(min(at_once, left))
        queue.ack(jobs)
        left -= len(jobs)


def handled(station: hg.Station, number: int, messages: int) -> float:
    """Messages a second that a handler gets, until the last is acknowledged."""
    left, done = [messages], threading.Event()

    def handle(_: hg.Message) -> None:
        left[0] -= 1
        if not left[0]:
            done.set()

    worker = station.subscribe(CHANNEL, handle, name=f"handled-{number}", queue=True, start="first", paused=True)

    def work() -> None:
        worker.resume()
        if not done.wait(120):
            raise TimeoutError("a worker did not get every message")
        worker.close()

    return rate_of(messages, work)


@contextmanager
def worker(path: str, name: str) -> Iterator[Callable[[float], int]]:
    """One process of several: works until a moment, and says how many messages it had."""
    with hg.open(path) as station, station.queue(CHANNEL, name, start="first") as queue:

        def work(until: float) -> int:
            done = 0
            while monotonic() < until:
                jobs = queue.receive(AT_ONCE)
                queue.ack(jobs)
                done += len(jobs)
                if not jobs:
                    break
            return done

        yield work


def shared(path: Path, number: int, seconds: float) -> float:
    """Messages a second that several processes take from one queue."""
    return rate_together(worker, [(str(path), f"shared-{number}")] * PROCESSES, seconds)
