"""A durable subscriber that is killed: ``reader.py ROOT NAME SEEN``. A message is noted before its handler returns."""

from __future__ import annotations

import os
import sys
import time

import heliograph as hg

CHANNEL = "events"


def main() -> None:
    root, name, seen = sys.argv[1:]
    station = hg.open(root, name="host1", position_flush_ms=5)
    fd = os.open(seen, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(fd, b"begin\n")

    def handle(message: hg.Message) -> None:
        os.write(fd, f"{message.offset} {message.id}\n".encode())

    station.subscribe(CHANNEL, handle, name=name, start="first")
    while True:
        time.sleep(1)


if __name__ == "__main__":
    main()
