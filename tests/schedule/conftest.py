"""Stations whose clock can be stepped, and ones that never dispatch by themselves."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from heliograph.disk import SYSTEM_DISK
from heliograph.log.locks import FileLock
from heliograph.schedule.mover import Mover
from heliograph.schedule.recurring import Recurring
from heliograph.schedule.waiting import Waiting
from heliograph.station import Station, open_station
from tests.faults import QuickDisk

Opener = Callable[..., Station]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def opened(root: Path) -> Iterator[Opener]:
    """Opens the directory; its logs do not sync, which is many times faster."""
    stations: list[Station] = []

    def opener(**settings: Any) -> Station:
        settings.setdefault("disk", QuickDisk())
        settings.setdefault("name", None if settings.get("read_only") else "host1")
        stations.append(open_station(root, **settings))
        return stations[-1]

    yield opener
    for station in stations:
        station.close()


@pytest.fixture
def undisturbed(root: Path) -> Iterator[FileLock]:
    """Holds the dispatcher's lease, so that nothing is moved but by the test itself."""
    (root / "schedule").mkdir(parents=True)
    lease = FileLock(root / "schedule" / "lock", SYSTEM_DISK)
    assert lease.try_exclusive()
    yield lease
    lease.release()


class Hands:
    """The steps of the dispatcher, one by one, by hand."""

    def __init__(self, station: Station) -> None:
        database = station.timetable._data()
        self.waiting = Waiting(database)
        self.recurring = Recurring(database)
        self.mover = Mover(station.engine, self.waiting, station.publisher.republish)
