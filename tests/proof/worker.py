"""A worker of a group that tells what it does.

    worker.py ROOT CHANNEL GROUP JOURNAL PAUSE_S BROKEN

Before and after each message it appends a line to JOURNAL, each with one write: what, when, who, partition, offset.
BROKEN is the way in which its code is deliberately wrong ("" for none). Ends in order when its standard input does.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import heliograph as hg
from heliograph.delivery import lanes, member, part, positions
from heliograph.engine import groups
from heliograph.log.locks import FileLock
from tests.proof.journal import telling


def unlocked(self: groups.Membership, partition: int) -> groups.PartitionLease:
    """A lease for everybody who asks."""
    return groups.PartitionLease(FileLock(self._directory / "leases" / f"{partition}.lock", self._disk))


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
    elif how == "saves nothing":
        positions.Positions.save = lambda self: True  # type: ignore[method-assign]
    elif how == "sees nobody":
        groups.Membership.members = lambda self: {}  # type: ignore[method-assign]
        groups.Membership.lease = unlocked  # type: ignore[method-assign]
    elif how == "begins one later":
        begin = part._begin

        def later(*arguments: Any) -> Any:
            found = begin(*arguments)
            return found._replace(offset=found.offset + 1)

        part._begin = later
    else:
        assert not how, how


def main() -> None:
    root, channel, group, journal, pause_s, broken = sys.argv[1:]
    break_it(broken)
    handle = telling(Path(journal), os.getpid(), float(pause_s))
    options = {"name": group, "group": True, "start": "first", "concurrency": 6}
    with hg.open(root) as station, station.subscribe(channel, handle, **options):
        print("working", flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
