"""A hub with real TLS on loopback, and clients of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import heliograph as hg
from tests.federation.chaos import Proxy
from tests.federation.stations import Net

TOOL = {"name": "tool", "publish": ["alerts", "sensors.>"], "subscribe": ["alerts", "sensors.>"]}


class Hub(Net):
    """A hub, and what its clients need."""

    def tls(self, name: str = "tool") -> dict[str, Path]:
        cert = self.pki.directory / f"{name}.crt"
        if not cert.exists():
            self.pki.issue(name)
        return {"cert": cert, "key": cert.with_suffix(".key"), "ca": self.pki.ca, "crl": self.pki.crl}

    @property
    def url(self) -> str:
        return f"wss://localhost:{self.port('hub')}"

    def connect(self, name: str = "tool", url: str | None = None, **options: Any) -> hg.Client:
        return hg.connect(url or self.url, tls=self.tls(name), **options)


@pytest.fixture
def hub(tmp_path: Path) -> Hub:
    net = Hub(tmp_path)
    net.station("hub", peers=[TOOL, {"name": "nobody"}])
    return net


@pytest.fixture
def proxy(hub: Hub) -> Iterator[Callable[..., Proxy]]:
    made: list[Proxy] = []

    def make(**options: Any) -> Proxy:
        made.append(Proxy(hub.port("hub"), **options))
        return made[-1]

    yield make
    for one in made:
        one.close()
