"""Who this station is on its links."""

from __future__ import annotations

import hashlib
import os
from datetime import datetime
from importlib import metadata
from typing import TYPE_CHECKING

from heliograph.clock import from_us
from heliograph.federation.frames import Wanted
from heliograph.federation.session import FRAME_SLACK_BYTES, Ours
from heliograph.limits import LINK_FRAME_BYTES_MIN
from heliograph.names import REPLY_TO

if TYPE_CHECKING:
    from heliograph.config import Config
    from heliograph.station import Station


def software() -> str:
    """What people are told who have to upgrade one side."""
    try:
        return f"heliograph {metadata.version('heliograph')}"
    except metadata.PackageNotFoundError:  # run from its source
        return "heliograph"


class Identity:
    """What every session says of this station."""

    def __init__(self, station: Station, software: str) -> None:
        file = station.engine.directory.station
        self._name = station.name
        self._station = hashlib.sha256(f"{file.machine}/{file.mark or file.inode}".encode()).hexdigest()[:32]
        self._instance = os.urandom(8).hex()
        self._software = software
        self._config = station.config
        self.frame_bytes = max(LINK_FRAME_BYTES_MIN, station.config.messages.max_bytes + FRAME_SLACK_BYTES + 1)
        self.started: datetime = from_us(station.engine.clock.time_ns() // 1000)

    def change(self, config: Config) -> None:
        """Other settings from now on."""
        self._config = config

    def ours(self, push: tuple[str, ...] = (), wants: tuple[Wanted, ...] = ()) -> Ours:
        """What one session says."""
        hub = self._config.hub
        return Ours(
            name=self._name, station=self._station, instance=self._instance, software=self._software, push=push,
            keep=(REPLY_TO + self._name,), wants=wants,
            heartbeat_s=hub.heartbeat_s, window_bytes=hub.window_bytes, budget_bytes=hub.budget_bytes,
            frame_bytes=self.frame_bytes,
        )  # fmt: skip
