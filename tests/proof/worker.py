"""A worker of a group that tells what it does.

    worker.py ROOT CHANNEL GROUP JOURNAL PAUSE_S BROKEN

Before and after each message it appends a line to JOURNAL, each with one write: what, when, who, partition, offset.
BROKEN is the way in which its code is deliberately wrong ("" for none). Ends in order when its standard input does.
"""

from __future__ import annotations

import os
import sys
import time

import heliograph as hg
from heliograph.delivery import lanes, member
from heliograph.engine import groups


def break_it(how: str) -> None:
    """Make a mistake that the checker has to notice."""
    if how == "leases for everybody":
        groups.FileLock.try_exclusive = lambda self: True  # type: ignore[method-assign]
    elif how == "gives back too early":
        original = member.Member._look

        def look(self: member.Member, parts: object) -> None:
            original(self, parts)  # type: ignore[arg-type]
            for number in list(self._leaving):
                lease = self._leases.pop(number, None)
                if lease is not None:
                    lease.release()

        member.Member._look = look  # type: ignore[method-assign]
    elif how == "commits what is not done":
        lanes.Lanes.committed = lanes.Lanes.reach  # type: ignore[method-assign]
    else:
        assert not how, how


def main() -> None:
    root, channel, group, journal, pause_s, broken = sys.argv[1:]
    break_it(broken)
    fd = os.open(journal, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def tell(what: str, message: hg.Message) -> None:
        line = f"{what} {time.monotonic_ns()} {os.getpid()} {message.partition} {message.offset}\n"
        os.write(fd, line.encode())

    def handle(message: hg.Message) -> None:
        tell("begin", message)
        time.sleep(float(pause_s))
        tell("end", message)

    options = {"name": group, "group": True, "start": "first", "concurrency": 6}
    with hg.open(root) as station, station.subscribe(channel, handle, **options):
        print("working", flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
