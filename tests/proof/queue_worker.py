"""A worker of a queue that is killed at any moment, and says what it does before and after it does it.

    queue_worker.py ROOT LOG MODE SEED [BROKEN]

MODE is ``pull`` or ``handler``. A line of LOG: what, partition/offset, deliveries, the monotonic clock, and, for a
worker that pulls, until when it has the lease. BROKEN names a deliberate mistake (see ``break_it``).
"""

from __future__ import annotations

import os
import random
import sys
import time
from typing import Any

import heliograph as hg
from heliograph.delivery.queues.ledger import Exchange, Ledger
from heliograph.engine.queuestore import Pending, Turn

CHANNEL, QUEUE = "work", "workers"
VISIBILITY_S = 0.5
MAX_DELIVERIES = 8


class Diary:
    """One write for each line, so that SIGKILL leaves whole lines."""

    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def write(self, what: str, message: hg.Message, deliveries: int = 0, until_ns: int = 0) -> None:
        place = f"{message.partition}/{message.offset}"
        os.write(self._fd, f"{what} {place} {deliveries} {time.monotonic_ns()} {until_ns}\n".encode())


def break_it(how: str) -> None:
    """Mistakes that the checker must see."""
    if how == "greedy":  # hands out what somebody has
        Turn.due = lambda self, mono_us, wall_us, limit: self.pending(limit)  # type: ignore[method-assign]
    elif how == "forgetful":  # says "done" and does not book it
        Ledger.settle = lambda self, done=(), returned=(): Exchange([], [], [])  # type: ignore[method-assign]
    elif how == "careless":  # moves on without a lease for all
        lease = Turn.lease

        def some(self: Turn, messages: Any) -> None:
            lease(self, [one for one in messages if one.offset % 5])

        Turn.lease = some  # type: ignore[method-assign]
    elif how == "heartless":  # never looks after the dead, nor at the clock
        Ledger.release_dead = lambda self, mine, is_dead: []  # type: ignore[method-assign]
        Turn.due = lambda self, mono_us, wall_us, limit: _given_back(self, wall_us, limit)  # type: ignore[method-assign]
    elif how:
        raise SystemExit(f"there is no mistake {how}")


def _given_back(turn: Turn, wall_us: int, limit: int) -> list[Pending]:
    return turn._some("token IS NULL", wall_us, limit)


def pull(station: hg.Station, diary: Diary, luck: random.Random) -> None:
    queue = station.queue(CHANNEL, QUEUE, start="first", visibility_s=VISIBILITY_S, max_deliveries=MAX_DELIVERIES)
    while True:
        asked_ns = time.monotonic_ns()
        jobs = queue.receive(luck.randint(1, 4), wait_s=0.3)
        until_ns = asked_ns + int(VISIBILITY_S * 1e9)
        for job in jobs:
            try:
                diary.write("start", job.message, job.deliveries, until_ns)
                time.sleep(luck.choice([0.0, 0.001, 0.01]))
                if luck.random() < 0.05:  # longer than its lease would be
                    for _ in range(4):
                        asked_ns = time.monotonic_ns()
                        queue.extend(jobs[jobs.index(job) :])
                        until_ns = asked_ns + int(VISIBILITY_S * 1e9)
                        diary.write("extend", job.message, job.deliveries, until_ns)
                        time.sleep(VISIBILITY_S / 3)
                if job.message.data["poison"] or luck.random() < 0.1:
                    diary.write("end", job.message, job.deliveries)
                    job.nack(delay=luck.choice([0.0, 0.01]))
                    continue
                diary.write("end", job.message, job.deliveries)
                job.ack()
                diary.write("acked", job.message)
            except hg.LeaseLost:
                diary.write("lost", job.message, job.deliveries)


def handle(station: hg.Station, diary: Diary, luck: random.Random) -> None:
    def work(message: hg.Message) -> None:
        diary.write("start", message)
        try:
            time.sleep(luck.choice([0.0, 0.001, 0.01]))
            if luck.random() < 0.03:
                time.sleep(3 * VISIBILITY_S)  # its lease is extended meanwhile
            if message.data["poison"] or luck.random() < 0.1:
                raise ValueError("this one fails")
        finally:
            diary.write("end", message)

    station.subscribe(
        CHANNEL, work, name=QUEUE, queue=True, start="first", visibility_s=VISIBILITY_S, concurrency=3,
        retry=hg.Retry(max_retries=MAX_DELIVERIES - 1, base_s=0.001, max_s=0.01), max_deliveries=MAX_DELIVERIES,
    )  # fmt: skip
    while True:
        time.sleep(10)


def main() -> None:
    root, log, mode, seed, *broken = sys.argv[1:]
    break_it(broken[0] if broken else "")
    luck = random.Random(int(seed))
    station = hg.open(root, name="host1")
    diary = Diary(log)
    print("ready", flush=True)
    (pull if mode == "pull" else handle)(station, diary, luck)


if __name__ == "__main__":
    main()
