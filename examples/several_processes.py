"""Several processes publish to one channel; this one subscribes. There is nothing between them but a directory.

Each process opens the directory for itself. A station that was opened before ``fork()`` raises ``Forked`` in the
child; the "spawn" start method avoids the question.
"""

from __future__ import annotations

import collections
import multiprocessing
import sys
import tempfile
import threading

import heliograph as hg

PROCESSES, EACH = 4, 250


def work(directory: str, number: int) -> None:
    with hg.open(directory) as station, hg.service(f"worker-{number}"):
        for n in range(EACH):
            station.publish("results", {"n": n}, key=f"worker-{number}")


def main(directory: str) -> None:
    counts: collections.Counter[str] = collections.Counter()
    complete = threading.Event()

    def count(message: hg.Message) -> None:
        assert message.data["n"] == counts[message.source], "each worker's messages arrive in its order"
        counts[message.source] += 1
        if counts.total() == PROCESSES * EACH:
            complete.set()

    with hg.open(directory, name="host1") as station, station.subscribe("results", count, start="first"):
        spawn = multiprocessing.get_context("spawn")
        workers = [spawn.Process(target=work, args=(directory, number)) for number in range(PROCESSES)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        complete.wait(30)
    for source, total in sorted(counts.items()):
        print(f"{source}: {total}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp(prefix="heliograph-"))
