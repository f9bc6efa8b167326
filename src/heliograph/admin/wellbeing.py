"""How a station is: fences, damage set aside, letters waiting, subscriptions behind, the clock against the log."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Final, Literal, NamedTuple

from heliograph.admin.letters import letters
from heliograph.admin.linkhealth import certificates_health, links_health
from heliograph.config import Config
from heliograph.config.units import MIB
from heliograph.disk import Disk
from heliograph.errors import HeliographError
from heliograph.limits import SCHEDULE_LATE_S
from heliograph.log.directory import FORMAT
from heliograph.station import Station

LAG_S_MAX: Final = 3600.0
LETTERS_COUNTED_MAX: Final = 10_000
CLOCK_SLACK_S: Final = 5.0
_BUILT_S: Final = 1_735_689_600  # no clock that is right says less: the first of January 2025

Status = Literal["ok", "warn", "bad"]


class Fact(NamedTuple):
    """Name, status, value and advice of one finding."""

    name: str
    status: Status
    value: str
    advice: str = ""


def station_findings(path: Path, config: Config, disk: Disk) -> Iterator[Fact]:
    """Open the station without a trace and look at it."""
    try:
        station = Station(config.with_settings(data_dir=str(path)), read_only=True, disk=disk)
    except (HeliographError, OSError) as error:
        yield Fact("station", "bad", str(error), "Nothing can be published or read until this is mended.")
        return
    with station:
        yield Fact("station", "ok", f"'{station.name}', format {FORMAT}")
        for name, look in LOOKS.items():
            try:
                yield look(station)
            except (HeliographError, OSError) as error:
                yield Fact(name, "bad", str(error), "Run 'helio verify'.")


def _channels(station: Station) -> Fact:
    names = station.engine.channel_names()
    allowed = station.config.storage.open_partitions_max
    value = f"{len(names)} channels"
    if len(names) > allowed:
        advice = f"More than stay open at once ({allowed}); raise storage.open_partitions_max if most of them are busy."
        return Fact("channels", "warn", value, advice)
    return Fact("channels", "ok", value)


def _fenced(station: Station) -> Fact:
    fenced = [info.name for info in station.channels() if info.fenced]
    if fenced:
        advice = "A sync failed. Check the disk (dmesg, smartctl), then run 'helio verify --repair'."
        return Fact("fenced logs", "bad", ", ".join(fenced), advice)
    return Fact("fenced logs", "ok", "none")


def _clock(station: Station) -> Fact:
    """The newest message must not lie in the future. A clock that is ahead cannot be told from a quiet station."""
    now_s = time.time()
    if now_s < _BUILT_S:
        return Fact("clock", "bad", f"says {time.ctime(now_s)}", "Set it; is a time service running?")
    newest = 0.0
    for name in station.engine.channel_names():
        for number in range(station.engine.describe(name).partitions):
            newest = max(newest, station.engine.head_fields(name, number).append_us / 1e6)
    if not newest:
        return Fact("clock", "ok", "no message to compare with")
    behind_s = newest - now_s
    if behind_s > CLOCK_SLACK_S:
        value = f"{behind_s:.0f} s behind the newest message"
        advice = "The clock was set back, or was wrong before. Messages keep their order; reading by time may surprise."
        return Fact("clock", "warn", value, advice)
    return Fact("clock", "ok", f"newest message {max(0.0, -behind_s):.0f} s ago")


def _unsynced(station: Station) -> Fact:
    if not (station.path / "unsynced").exists():
        return Fact("unsynced data", "ok", "none")
    if _others(station.path / "open.lock"):
        return Fact("unsynced data", "ok", "a process with durability interval or os is at work")
    advice = "A process was killed before it synced. Opening and closing the station once syncs what it left."
    return Fact("unsynced data", "warn", "perhaps", advice)


def _others(lock: Path) -> list[int]:
    """Processes that hold a lock file, as far as the kernel tells us."""
    try:
        inode, table = lock.stat().st_ino, Path("/proc/locks").read_text()
    except OSError:
        return []
    rows = [line.split() for line in table.splitlines()]
    found = {int(row[4]) for row in rows if len(row) > 5 and row[5].endswith(f":{inode}") and row[4].isdigit()}
    return sorted(found - {os.getpid()})


def _quarantine(station: Station) -> Fact:
    files = [path for path in (station.path / "quarantine").rglob("*") if path.is_file()]
    if not files:
        return Fact("quarantine", "ok", "empty")
    size = sum(path.stat().st_size for path in files)
    advice = f"Damaged bytes were set aside. Look whether you need them, then remove {station.path / 'quarantine'}."
    return Fact("quarantine", "warn", f"{len(files)} files, {size / MIB:.1f} MiB", advice)


def _dead_letters(station: Station) -> Fact:
    waiting = sum(1 for _ in islice(letters(station), LETTERS_COUNTED_MAX))
    if not waiting:
        return Fact("dead letters", "ok", "none")
    shown = str(waiting) if waiting < LETTERS_COUNTED_MAX else f"{waiting} or more"
    return Fact("dead letters", "warn", shown, "'helio dead list' says why; 'helio dead replay' sends them again.")


def _subscriptions(station: Station) -> Fact:
    known = station.subscriptions()
    late = [info for info in known if (info.lag_s or 0.0) > LAG_S_MAX]
    if not late:
        return Fact("subscriptions", "ok", f"{len(known)}, none more than an hour behind")
    worst = max(late, key=lambda info: info.lag_s or 0.0)
    lag = f"{worst.lag} messages, {(worst.lag_s or 0.0) / 3600:.0f} h"
    value = f"{len(late)} of {len(known)} behind; '{worst.name}' of '{worst.channel}' by {lag}"
    advice = "Is its process running? If it is not needed any more: 'helio subscriptions forget'."
    return Fact("subscriptions", "warn", value, advice)


def _schedule(station: Station) -> Fact:
    waiting, failed = station.timetable.count(), station.timetable.failed()
    value = f"{waiting} messages wait for their time"
    if failed:
        value += f", {failed} of them could not be delivered when they were due"
        return Fact("schedule", "warn", value, "'helio schedule list' says why; they are tried again.")
    first = next(station.scheduled(), None)
    late_s = time.time() - first.due.timestamp() if first is not None else 0.0
    if late_s > SCHEDULE_LATE_S:
        advice = "No process with the station open delivers them: start the application, or 'helio sub'."
        return Fact("schedule", "warn", f"{value}, the first for {late_s:.0f} s too long", advice)
    return Fact("schedule", "ok", value)


def _links(station: Station) -> Fact:
    return Fact("links", *links_health(station))


def _certificates(station: Station) -> Fact:
    return Fact("certificates", *certificates_health(station))


LOOKS: Final[dict[str, Callable[[Station], Fact]]] = {
    "channels": _channels,
    "fenced logs": _fenced,
    "clock": _clock,
    "unsynced data": _unsynced,
    "quarantine": _quarantine,
    "dead letters": _dead_letters,
    "subscriptions": _subscriptions,
    "schedule": _schedule,
    "links": _links,
    "certificates": _certificates,
}
