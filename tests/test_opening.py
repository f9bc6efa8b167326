"""``hg.open``: when links run, and when not. What they do is tested in ``tests/federation``."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

import heliograph as hg
from tests.federation.stations import Net


@pytest.fixture
def net(tmp_path: Path) -> Net:
    found = Net(tmp_path)
    found.station("hub", peers=[{"name": "host1"}])
    return found


def runs_links() -> bool:
    return any(thread.name == "heliograph-links" for thread in threading.enumerate())


def test_links_run_from_open_to_close(net: Net) -> None:
    with net.open("hub") as station:
        assert runs_links()
        assert [(link.name, link.state) for link in station.links()] == [("host1", "absent")]
    assert not runs_links()


def test_links_are_left_to_others_when_asked_to(net: Net) -> None:
    with net.open("hub", federate=False):
        assert not runs_links()
        assert not (net.path("hub") / "links").exists()
    with net.open("hub", read_only=True):
        assert not runs_links()
        assert not (net.path("hub") / "links").exists()


def test_nothing_runs_where_nothing_is_configured(tmp_path: Path) -> None:
    with hg.open(tmp_path / "data", name="host1") as station:
        assert not runs_links()
        assert station.links() == []


def test_a_station_that_cannot_run_its_links_is_closed_again(net: Net) -> None:
    key = net.pki.directory / "hub.key"
    key.rename(key.with_suffix(".away"))
    with pytest.raises(hg.NotFound, match=r"hub\.key"):
        net.open("hub")
    assert not runs_links()
    left = [link for fd in Path("/proc/self/fd").glob("*") if (link := _target(fd)).startswith(str(net.path("hub")))]
    assert left == [], "its files are closed, too"
    key.with_suffix(".away").rename(key)
    with net.open("hub"):
        assert runs_links()


def _target(fd: Path) -> str:
    try:
        return str(fd.readlink())
    except FileNotFoundError:  # the one that lists the others
        return ""
