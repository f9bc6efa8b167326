"""``hg.open``: a station, and its links if it has any."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from heliograph.clock import SYSTEM_CLOCK, Clock
from heliograph.config import Config
from heliograph.disk import SYSTEM_DISK, Disk
from heliograph.station import Station, open_station


def open_linked(
    path: str | os.PathLike[str] | None = None,
    *,
    name: str | None = None,
    config: Config | Mapping[str, Any] | str | os.PathLike[str] | None = None,
    read_only: bool = False,
    federate: bool = True,
    disk: Disk = SYSTEM_DISK,
    clock: Clock = SYSTEM_CLOCK,
    **settings: Any,
) -> Station:
    """Open a data directory, making it if it is new.

    ``config`` is a file (YAML or TOML), a mapping or a Config; keyword arguments win over it, for example
    ``durability="interval"``. Close the station, or use it as a context manager.

    If the configuration has links, or a hub that listens, they run in the background until the station is closed: in
    one of the processes that have the directory open. ``federate=False`` leaves them to others.

    >>> import heliograph as hg, tempfile
    >>> with hg.open(tempfile.mkdtemp(), name="host1") as station:
    ...     receipt = station.publish("alerts", {"message": "system problem!"}, key="cpu")
    ...     [message.data for message in station.read("alerts")]
    [{'message': 'system problem!'}]
    """
    station = open_station(path, name=name, config=config, read_only=read_only, disk=disk, clock=clock, **settings)
    wanted = station.config.hub.listen or station.config.links
    if federate and wanted and not read_only:
        try:
            from heliograph.federation.service import Federation

            Federation(station).start()
        except BaseException:
            station.close()
            raise
    return station
