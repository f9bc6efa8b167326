"""Groups: how fast workers in several processes deliver together, and how soon a dead one is replaced."""

from __future__ import annotations

import multiprocessing
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from statistics import median

import heliograph as hg
from bench.harness import Bench, Row, compare
from bench.processes import rate_together
from bench.samples import CHANNEL, PAYLOADS, TYPE

PARTITIONS = 8
RAW = "one worker process"
TOGETHER = (2, 4)


def run(bench: Bench) -> list[Row]:
    """Measure one, two and four worker processes, and a rebalance after SIGKILL."""
    return [*throughput(bench), *rebalance(bench)]


def throughput(bench: Bench) -> list[Row]:
    """Messages a second over all workers, each with a handler that does next to nothing."""
    messages, seconds = int(bench.either(1_500_000, 300_000)), bench.either(1.0, 0.3)
    names = count()
    with bench.scratch("groups") as path:
        fill(path, messages)

        def together(workers: int) -> float:
            group = f"group-{next(names)}"
            return rate_together(worker, [(str(path), group)] * workers, seconds)

        contestants: dict[str, Callable[[], float]] = {"raw": lambda: together(1)}
        contestants |= {str(workers): partial(together, workers) for workers in TOGETHER}
        rounds = bench.measure(contestants, rounds=2 if bench.quick else 5)
    rows = [compare("groups", f"{workers} worker processes", rounds, str(workers), raw_is=RAW) for workers in TOGETHER]
    one = Row(subject="groups", what=RAW, unit="messages/s", ours=median(rounds["raw"]), rounds={"ours": rounds["raw"]})
    return [one, *rows]


def fill(path: Path, messages: int) -> None:
    """A backlog, spread over the partitions."""
    with hg.open(path, name="bench", durability="os") as station:
        station.create_channel(CHANNEL, partitions=PARTITIONS)
        for _ in range(messages // len(PAYLOADS)):
            station.publish_many(CHANNEL, PAYLOADS, type=TYPE)


@contextmanager
def worker(path: str, group: str) -> Iterator[Callable[[float], int]]:
    """One process of a group; begins when all are there."""
    with hg.open(path, durability="os") as station:
        done = [0]

        def handle(messages: list[hg.Message]) -> None:
            done[0] += len(messages)

        subscription = station.subscribe(
            CHANNEL, handle, name=group, group=True, start="first", batch=True, paused=True
        )
        time.sleep(0.5)  # until the partitions are shared out

        def work(until_s: float) -> int:
            subscription.resume()
            time.sleep(max(0.0, until_s - time.monotonic()))
            return done[0]

        yield work


def rebalance(bench: Bench) -> list[Row]:
    """From SIGKILL of a worker until the other one delivers a message of each of its partitions."""
    rounds = 3 if bench.quick else 7
    with bench.scratch("rebalance") as path, hg.open(path, name="bench") as station:
        station.create_channel(CHANNEL, partitions=PARTITIONS)
        found = [one_rebalance(station, str(path), f"group-{number}") * 1000 for number in range(rounds)]
    return [
        Row(subject="groups", what="rebalance after SIGKILL of a worker", unit="ms", ours=median(found),
            rounds={"ours": found})
    ]  # fmt: skip


def one_rebalance(station: hg.Station, path: str, group: str) -> float:
    """Seconds until the survivor has delivered from every partition."""
    context = multiprocessing.get_context("spawn")
    victim = context.Process(target=stay, args=(path, group), daemon=True)
    seen: set[int] = set()
    everywhere = threading.Event()

    def handle(message: hg.Message) -> None:
        seen.add(message.partition)
        if len(seen) == PARTITIONS:
            everywhere.set()

    with station.subscribe(CHANNEL, handle, name=group, group=True) as survivor:
        victim.start()
        while len(survivor.partitions) != PARTITIONS // 2:
            time.sleep(0.01)
        seen.clear()
        everywhere.clear()
        victim.kill()
        started = time.perf_counter()
        while not everywhere.wait(0.005):
            for number in range(PARTITIONS):
                station.publish(CHANNEL, number)
        took_s = time.perf_counter() - started
        victim.join()
    return took_s


def stay(path: str, group: str) -> None:
    """A worker that is there until it is killed."""
    with hg.open(path) as station, station.subscribe(CHANNEL, lambda _: None, name=group, group=True):
        time.sleep(600)
