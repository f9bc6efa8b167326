"""``hg.open``: a station, and its links if it has any."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from heliograph import config as configs
from heliograph.clock import SYSTEM_CLOCK, Clock
from heliograph.config import Config
from heliograph.disk import SYSTEM_DISK, Disk, anchored
from heliograph.station import Station, links, open_station
from heliograph.station.links import LinkInfo


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
    station.known_links = _known_links
    wanted = station.config.hub.listen or station.config.links
    if federate and wanted and not read_only:
        try:
            from heliograph.federation.service import Federation

            Federation(station, _source(config, name, path, settings)).start()
        except BaseException:
            station.close()
            raise
    elif federate and config is not None and not read_only:
        links.forget_configured(station.path, disk)  # it had some once, perhaps
    return station


def _known_links(station: Station) -> list[LinkInfo]:
    from heliograph.federation import behind  # most programs never ask

    return behind.known(station)


def _source(
    config: Config | Mapping[str, Any] | str | os.PathLike[str] | None,
    name: str | None,
    path: str | os.PathLike[str] | None,
    settings: dict[str, Any],
) -> tuple[Path, Callable[[], Config]] | None:
    """The configuration file, and how to read it again with the same arguments; None if there is none."""
    file = os.environ.get(configs.ENV_FILE) if config is None else config
    if not isinstance(file, str | os.PathLike) or not file:
        return None
    given = dict(settings)
    if path is not None:
        given["data_dir"] = os.fspath(path)
    if name is not None:
        given["name"] = name
    place = anchored(file)
    return place, lambda: configs.load(place, **given)
