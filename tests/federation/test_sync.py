"""Two hubs that each lack something have the same messages after a sync: real stations, mutual TLS, nothing doubled."""

from __future__ import annotations

import contextlib
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import heliograph as hg
from heliograph.admin.sync import SyncReport, sync
from heliograph.engine.foreign import station_of
from heliograph.federation.syncing import Left, Side
from heliograph.log.lines import intact
from heliograph.seen import SeenSet
from tests.arrivals import lines as made
from tests.federation.stations import Net, audited, lines, payloads, up, wait_for

CHANNELS = ("alerts", "sensors.kitchen")
HOST2, HOST3 = "host2.aaaaaa", "host3.bbbbbb"


@pytest.fixture
def net(tmp_path: Path) -> Net:
    return Net(tmp_path)


def hubs(net: Net, rule: dict[str, Any] | None = None, **south: Any) -> None:
    """North is a hub; south is one as well, and may do everything at north unless a rule says otherwise."""
    allowed = {"publish": [">"], "subscribe": [">"], "relay": [">"]}
    net.station("north", peers=[{"name": "south", **(allowed if rule is None else rule)}])
    net.station("south", **south)


def give(net: Net, name: str, *found: list[bytes], channel: str = "alerts") -> None:
    """Lines of other stations, as a link brought them."""
    with net.open(name, federate=False) as station:
        for some in found:
            assert not station.engine.relayed.arrive(channel, some).refused


def say(net: Net, name: str, *texts: Any, channel: str = "alerts") -> None:
    with net.open(name, federate=False) as station:
        station.publish_many(channel, texts)


@contextlib.contextmanager
def north(net: Net) -> Iterator[hg.Station]:
    with net.open("north") as station:
        yield station


def run(net: Net, *channels: str, sides: Sequence[Side] = ("here", "there"), **options: Any) -> SyncReport:
    """South syncs with north, as ``helio sync`` does."""
    with net.open("south", federate=False) as station:
        return sync(station, net.address("north"), channels, sides=tuple(sides), **options)


def seen(net: Net, name: str, channel: str = "alerts") -> SeenSet:
    with net.open(name, federate=False) as station:
        return station.engine.relayed.seen(channel)


def check_equal(net: Net, *channels: str) -> None:
    """Both have seen the same and hold the same bytes, each line once and intact."""
    for channel in channels or ("alerts",):
        north, south = (lines(net.path(name), channel) for name in ("north", "south"))
        assert len(set(north)) == len(north), "nothing is there twice"
        assert len(set(south)) == len(south), "nothing is there twice"
        assert sorted(north) == sorted(south), "byte for byte"
        assert all(map(intact, north)), "checksums hold"
        assert seen(net, "north", channel) == seen(net, "south", channel)


def left(report: SyncReport) -> list[tuple[str, str, str, int]]:
    found: list[Left] = [left for one in report.channels for left in one.left]
    return [(one.side, str(station_of(one.origin)), one.why, one.messages) for one in found]


# -- what it is for -----------------------------------------------------------------------------------------


def test_two_hubs_that_each_lack_parts_of_several_channels_and_origins_become_equal(net: Net) -> None:
    hubs(net)
    for channel in CHANNELS:
        host2, host3 = made(0, 100, HOST2, channel=channel), made(0, 50, HOST3, 1, channel=channel)
        say(net, "north", "n1", "n2", channel=channel)
        give(net, "north", host2[:40], host2[60:90], channel=channel)  # a hole in the middle, and the end
        say(net, "north", "n3", channel=channel)
        give(net, "south", host2[30:70], host3, host2[90:], channel=channel)
        say(net, "south", "s1", channel=channel)
    with north(net):
        report = run(net, "alerts", "sensors.>")
        assert report.equal and (report.fetched, report.sent) == (2 * (30 + 20 + 3), 2 * (20 + 10 + 50 + 1))
        assert report.hub == "north" and [one.channel for one in report.channels] == list(CHANNELS)
        again = run(net, "alerts", "sensors.>")
        assert again.equal and (again.fetched, again.sent) == (0, 0), "nothing is left to be done"
        assert [one.lacking for one in again.channels] == [[], []]
    check_equal(net, *CHANNELS)


def test_a_dry_run_counts_and_changes_nothing(net: Net) -> None:
    hubs(net)
    host2 = made(0, 100)
    say(net, "north", "n1")
    give(net, "north", host2[:40])
    say(net, "north", "n2")  # its sequence is 41: those between belong to no message, and nobody lacks them
    give(net, "south", host2[30:45])
    before = {name: lines(net.path(name), "alerts") for name in ("north", "south")}
    with north(net):
        report = run(net, "alerts", dry_run=True)
        assert not report.equal and not left(report)
        found = {station_of(one.origin): (one.here, one.there) for one in report.channels[0].lacking}
        assert found == {"host2": (30, 5), "north": (2, 0)}
        assert {name: lines(net.path(name), "alerts") for name in before} == before
        assert run(net, "alerts").equal
        assert run(net, "alerts", dry_run=True).equal
    check_equal(net)
