"""Three processes share a queue of work; one of them is killed in the middle, and the others finish what it had.

Each message is leased to one worker and acknowledged by itself. A worker that dies frees its lock, so that what it
had is handed to somebody else at once.
"""

from __future__ import annotations

import multiprocessing
import sys
import tempfile
import time

import heliograph as hg

JOBS, WORKERS = 60, 3


def work(directory: str) -> None:
    with hg.open(directory) as station, station.queue("images", "resize") as queue:
        while True:
            for job in queue.receive(max_messages=5, wait_s=1):
                time.sleep(0.01)  # resizing
                station.publish("thumbnails", job.message.data)
                job.ack()


def main(directory: str) -> None:
    with hg.open(directory, name="host1") as station:
        station.queue("images", "resize", start="first").close()  # the queue begins here
        station.publish_many("images", [f"{n}.png" for n in range(JOBS)])
        spawn = multiprocessing.get_context("spawn")
        workers = [spawn.Process(target=work, args=(directory,), daemon=True) for _ in range(WORKERS)]
        for worker in workers:
            worker.start()
        while station.queue_info("images", "resize").depth > JOBS / 2:
            time.sleep(0.005)
        workers[0].kill()
        while (info := station.queue_info("images", "resize")).depth or info.in_flight:
            time.sleep(0.01)
        done = {message.data for message in station.read("thumbnails")}
        print(f"{len(done)} of {JOBS} pictures are resized, though a worker was killed")
        for worker in workers:
            worker.kill()


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp(prefix="heliograph-"))
