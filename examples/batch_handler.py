"""A batch handler that fills a database, a transaction per batch.

Delivery is at least once: after a crash the messages that were handled but not yet saved as done come again.
Their place in the log, (channel, partition, offset), does not change, so it is the key that makes writing them
twice the same as writing them once.
"""

from __future__ import annotations

import sqlite3
import sys
import tempfile
import threading
from pathlib import Path

import heliograph as hg

COUNT = 1000


def main(directory: str) -> None:
    database = sqlite3.connect(Path(directory) / "sales.sqlite", check_same_thread=False)
    database.execute("CREATE TABLE IF NOT EXISTS sale (place TEXT PRIMARY KEY, item TEXT, pieces INTEGER)")
    done = threading.Event()

    def store(messages: list[hg.Message]) -> None:
        rows = [(f"{m.channel}/{m.partition}/{m.offset}", m.data["item"], m.data["pieces"]) for m in messages]
        with database:  # one transaction; if it raises, the whole batch is delivered again
            database.executemany("INSERT OR IGNORE INTO sale VALUES (?, ?, ?)", rows)
        if messages[-1].offset == COUNT - 1:
            done.set()

    with hg.open(Path(directory) / "data", name="shop") as station:
        station.publish_many("sales", [{"item": "lamp", "pieces": n % 3 + 1} for n in range(COUNT)])

        with station.subscribe("sales", store, name="database", start="first", batch=True):
            done.wait(30)

        # Once more from the beginning, as after a crash or a restored database: nothing is doubled.
        done.clear()
        station.seek("sales", "database", "first")
        with station.subscribe("sales", store, name="database", batch=True):
            done.wait(30)

    rows, pieces = database.execute("SELECT count(*), sum(pieces) FROM sale").fetchone()
    database.close()
    print(f"{rows} sales of {pieces} pieces in the database, each once")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp(prefix="heliograph-"))
