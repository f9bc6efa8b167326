"""The state of queues in backups and checks.

A copy is taken with SQLite's own backup, in the middle of the work. Nobody works in a copy, so all leases are free in
it. A log that is restored gets a new incarnation; therefore the copy says of each partition which message stands before
the place up to which it was handed out. By that the queue recognises its log, and does not begin anew.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from heliograph.engine import queuestore
from heliograph.engine.files import FilesEngine
from heliograph.engine.queuestore import FILE
from heliograph.errors import NotFound, SubscriptionBusy
from heliograph.station.reader import message_at

LOOKS: Final = 4
"""What another process is opening just now may look wrong for a moment: trouble is believed when it stays."""

PAUSE_S: Final = 0.1


def copy_state(engine: FilesEngine, channel: str, name: str, target: Path) -> None:
    """Copy the state of a queue into a file, as of now. Raises StorageError or Damaged if it cannot be read."""
    source = engine.positions.directory(channel, name) / FILE
    with queuestore.copied(source, target, read_only=engine.read_only) as turn:
        turn.release()
        for number, progress in turn.progress().items():
            last = message_at(engine, channel, number, progress.next - 1) if progress.next else None
            if last is not None:
                turn.anchor(number, progress.next, last.id, progress.incarnation)


def check_queues(engine: FilesEngine, channel: str, *, repair: bool) -> Iterator[tuple[str, str, bool]]:
    """Path, what is wrong, and whether it was repaired, for every queue of a channel whose state is not right."""
    for name in engine.positions.names(channel):
        path = engine.positions.directory(channel, name) / FILE
        what = _wrong(path)
        if what is not None:
            yield str(path.relative_to(engine.root)), what, repair and _set_aside(engine, channel, name)


def _wrong(path: Path) -> str | None:
    what = None
    for look in range(LOOKS):
        if look:
            time.sleep(PAUSE_S)
        if not path.exists():
            return None
        try:
            what = queuestore.wrong_with(path)
        except NotFound:
            return None  # nothing is in it yet: whoever makes it, or comes after one that was killed, fills it
        if what is None:
            return None
    return f"cannot be used ({what}); repair sets it aside, and the queue goes on at its saved position"


def _set_aside(engine: FilesEngine, channel: str, name: str) -> bool:
    """Move the state away, unless somebody works with it: what was acknowledged beyond the position comes again."""
    try:
        lease = engine.subscription_lease(channel, name)
    except SubscriptionBusy:
        return False
    try:
        aside = engine.root / "quarantine" / channel
        aside.mkdir(parents=True, exist_ok=True)
        now_us = engine.clock.time_ns() // 1000
        directory = engine.positions.directory(channel, name)
        for entry in sorted(engine.disk.listdir(directory), reverse=True):  # its log before the file it belongs to
            if entry.startswith(FILE):
                os.replace(directory / entry, aside / f"{name}-{entry}-{now_us}.bad")
        engine.disk.sync_directory(aside)
        engine.disk.sync_directory(directory)
        engine.audit.write("queue-repaired", channel=channel, queue=name)
    finally:
        lease.release()
    return True
