"""A data directory, and stations that are closed at the end whatever happened."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from heliograph.station import Station, open_station
from tests.faults import QuickDisk

Opener = Callable[..., Station]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def opened(root: Path) -> Iterator[Opener]:
    """Opens the directory; by default on a disk that does not sync, which is many times faster."""
    stations: list[Station] = []

    def opener(path: Path = root, **settings: Any) -> Station:
        settings.setdefault("disk", QuickDisk())
        settings.setdefault("name", None if settings.get("read_only") else "host1")
        stations.append(open_station(path, **settings))
        return stations[-1]

    yield opener
    for station in stations:
        station.close()
