"""Opening a station with its links, or without."""

from __future__ import annotations

from pathlib import Path

import heliograph as hg
from heliograph.station import links
from tests.federation.stations import Net


def test_links_run_only_where_they_are_configured_and_wanted(tmp_path: Path) -> None:
    net = Net(tmp_path)
    net.station("host1", links=[{"hub": "localhost:1", "publish": ["alerts"]}])
    with net.open("host1", federate=False) as host1:
        assert not links.running(host1.path, host1.engine.disk)
    with net.open("host1") as host1:
        assert links.running(host1.path, host1.engine.disk)
    with net.open("host1", read_only=True) as host1:
        assert not links.running(host1.path, host1.engine.disk)
    with hg.open(tmp_path / "alone", name="alone") as alone:
        assert not (alone.path / "links").exists() and alone.links() == []
