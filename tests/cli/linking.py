"""The files of links as a running process leaves them, and certificates to run some with."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import heliograph as hg
from heliograph.disk import SYSTEM_DISK
from heliograph.federation import peerfile
from heliograph.federation.peerfile import Memory
from heliograph.log.locks import FileLock
from heliograph.seen import SeenSet
from heliograph.station import links
from heliograph.station.links import LinkInfo, LinkKind, LinksState


def link(name: str, kind: LinkKind = "hub", **facts: Any) -> LinkInfo:
    defaults: dict[str, Any] = {
        "address": "hub.example:7740" if kind == "hub" else "10.0.0.7:51000",
        "state": "up",
        "since": datetime.now(UTC) - timedelta(hours=2),
    }
    return LinkInfo(name=name, kind=kind, **{**defaults, **facts})


def write_state(data: Path, *found: LinkInfo) -> None:
    (data / links.DIRECTORY).mkdir(exist_ok=True)
    links.save(data, LinksState(pid=1, time=datetime.now(UTC), links=list(found)), SYSTEM_DISK)


class Runner:
    """Holds the lease, as whoever runs the links does."""

    def __init__(self, data: Path) -> None:
        (data / links.DIRECTORY).mkdir(exist_ok=True)
        self._lock = FileLock(data / links.DIRECTORY / links.LOCK_FILE, SYSTEM_DISK)
        assert self._lock.try_exclusive()

    def end(self) -> None:
        self._lock.release()


def acknowledged(
    station: hg.Station, peer: str, channel: str, positions: dict[int, int], kind: LinkKind = "hub",
    spared: SeenSet | None = None,
) -> None:  # fmt: skip
    """What a peer has acknowledged, as a link writes it down."""
    memory = Memory(
        incarnation=station.engine.incarnation(channel), positions=positions, spared=spared or SeenSet(),
        time=datetime.now(UTC),
    )  # fmt: skip
    peerfile.save(peerfile.directory_of(station.path, kind, peer), channel, peerfile.encode(memory), SYSTEM_DISK)
