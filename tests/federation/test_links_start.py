"""``start: new`` of a link: nothing from before the first connection, all of the channels that are made later."""

from __future__ import annotations

from pathlib import Path

import pytest

import heliograph as hg
from heliograph.federation import peerfile
from tests.federation.stations import Net, payloads, up, wait_for

pytestmark = pytest.mark.usefixtures("short_pauses")


@pytest.fixture
def net(tmp_path: Path) -> Net:
    found = Net(tmp_path)
    found.station("hub", peers=[{"name": "host", "subscribe": ["news.>"]}])
    found.station("host", links=[{"hub": "hub", "subscribe": ["news.>"], "start": "new"}])
    return found


def here(net: Net, host: hg.Station) -> None:
    wait_for(lambda: up(host, "hub"))
    wait_for((peerfile.directory_of(net.path("hub"), "peer", "host") / "last-here").exists)


def arrived(net: Net, channel: str, count: int) -> list[object]:
    wait_for(lambda: len(payloads(net.path("host"), channel)) >= count)
    return payloads(net.path("host"), channel)


def test_the_first_channel_there_is_comes_from_its_first_message_on(net: Net) -> None:
    with net.open("hub") as hub, net.open("host") as host:
        here(net, host)
        hub.publish_many("news.a", [1, 2])
        assert arrived(net, "news.a", 2) == [1, 2]


def test_also_if_it_was_made_while_the_station_was_away(net: Net) -> None:
    with net.open("hub") as hub:
        with net.open("host") as host:
            here(net, host)
        hub.publish_many("news.a", [1, 2])
        with net.open("host"):
            assert arrived(net, "news.a", 2) == [1, 2]


def test_also_if_it_was_made_while_nothing_ran_the_hub(net: Net) -> None:
    with net.open("host") as host:
        with net.open("hub"):
            here(net, host)
        with net.open("hub", federate=False) as hub:
            hub.publish_many("news.a", [1, 2])
        with net.open("hub"):
            assert arrived(net, "news.a", 2) == [1, 2]


def test_what_was_there_before_the_first_connection_does_not_come(net: Net) -> None:
    with net.open("hub") as hub:
        hub.publish("news.old", 0)
        with net.open("host") as host:
            here(net, host)
            wait_for((peerfile.directory_of(net.path("hub"), "peer", "host") / "news.old.json").exists)
        hub.publish("news.old", 1)
        hub.publish("news.a", 1)
        with net.open("host"):
            assert arrived(net, "news.a", 1) == [1]
            assert arrived(net, "news.old", 1) == [1]
