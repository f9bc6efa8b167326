"""A hub with real TLS on loopback, and clients of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import heliograph as hg
from heliograph.federation.desk import Desk
from tests.federation.chaos import Proxy, proxies
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
    with proxies(hub.port("hub")) as make:
        yield make


@pytest.fixture
def mute(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """As many answers as this says are not given: the connection is cut instead, after the work was done."""
    left = [0]
    say = Desk._say

    def silent(self: Desk, reply: Callable[[], None]) -> None:
        if left[0]:
            left[0] -= 1
            self._line.drop("cut by the test")
        else:
            say(self, reply)

    monkeypatch.setattr(Desk, "_say", silent)
    return left
