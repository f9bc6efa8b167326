"""How far behind a link is, also while nobody keeps count: it is down, or stands still. Every door says the same."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

import heliograph as hg
from heliograph.admin import linked
from heliograph.admin.trace import trace
from heliograph.federation import behind, peerfile
from heliograph.federation.incoming import Storer
from heliograph.federation.inlet import Inlet, Standing
from heliograph.federation.resume import Ends
from heliograph.federation.rules import Rules
from heliograph.station.links import LinkInfo
from tests.federation.stations import Net, payloads, up, wait_for


@pytest.fixture
def net(tmp_path: Path) -> Net:
    found = Net(tmp_path)
    found.station("hub", peers=[{"name": "host1", "publish": ["alerts"], "subscribe": ["commands"]}])
    found.station("host1", links=[{"hub": "hub", "publish": ["alerts", "secret"], "subscribe": ["commands"]}])
    return found


def same(station: hg.Station, messages: int) -> LinkInfo:
    """The station's only link, of which every door says that so many messages wait."""
    (link,) = station.links()
    (shown,) = linked.look(station).links
    assert (link.lag_messages, shown.lag_messages) == (messages, messages)
    assert (link.lag_s > 0, shown.lag_s > 0) == (messages > 0, messages > 0)
    return link


def test_a_hub_that_was_never_reached_has_none_of_it(net: Net) -> None:
    with net.open("host1") as host1:
        host1.publish_many("alerts", range(3))
        assert same(host1, 3).state != "up"
        with net.open("host1", federate=False) as beside:
            wait_for(beside.links)  # it is said to other processes, too
            same(beside, 3)
    with net.open("host1", federate=False) as host1:
        host1.publish("alerts", "while nobody runs the links")
        assert same(host1, 4).state == "stopped"


def test_a_link_that_is_lost_is_behind_by_what_came_since(net: Net) -> None:
    with net.open("host1") as host1:
        with net.open("hub") as hub:
            host1.publish("alerts", "there")
            wait_for(lambda: payloads(net.path("hub"), "alerts") == ["there"])
            hub.publish("commands", "there")
            wait_for(lambda: payloads(net.path("host1"), "commands") == ["there"])
            wait_for(lambda: host1.links()[0].lag_messages == 0)
        wait_for(lambda: not up(host1, "hub"))
        host1.publish_many("alerts", range(2))
        wait_for(lambda: host1.links()[0].lag_messages == 2)  # when it is written down what was acknowledged
        same(host1, 2)
    with net.open("hub") as hub:
        hub.publish_many("commands", range(5))
        assert same(hub, 5).state == "absent"


def test_a_hub_that_is_down_when_its_link_begins_is_known_by_name_and_by_what_it_has(net: Net) -> None:
    with net.open("host1") as host1:
        with net.open("hub"):
            host1.publish_many("alerts", range(100))
            position = peerfile.directory_of(net.path("host1"), "hub", "hub") / "alerts.json"
            wait_for(lambda: position.exists() and b'"0":100' in position.read_bytes())
        wait_for(lambda: not up(host1, "hub"))
    with net.open("host1") as host1:  # begins while it is down
        host1.publish("alerts", "since")
        wait_for(lambda: host1.links() and host1.links()[0].state == "waiting")
        assert same(host1, 1).name == "hub"
    (net.path("host1") / "links" / "state.json").unlink()
    with net.open("host1", federate=False) as host1:  # as a link that is in the configuration, and was never run
        (link,) = linked.look(host1).links
        assert (link.name, link.state, link.lag_messages) == ("hub", "stopped", 1)


def test_a_channel_that_is_parked_waits_beside_those_that_go_on(net: Net) -> None:
    with net.open("hub"), net.open("host1") as host1:
        host1.publish_many("secret", range(4))
        wait_for(lambda: host1.links()[0].parked)
        host1.publish("alerts", "goes on")
        wait_for(lambda: host1.links()[0].lag_messages == 4)
        assert same(host1, 4).state == "up"
        with net.open("host1", federate=False) as beside:
            wait_for(lambda: beside.links()[0].parked)
            same(beside, 4)


def test_it_is_the_same_awaited(net: Net) -> None:
    async def look() -> list[LinkInfo]:
        async with hg.open_async(config=net.directory / "host1.yaml") as host1:
            await host1.publish("alerts", "waits")
            return await host1.links()

    (link,) = asyncio.run(look())
    assert link.lag_messages == 1 and link.lag_s > 0


def test_a_channel_that_is_deleted_meanwhile_is_not_behind(net: Net, monkeypatch: pytest.MonkeyPatch) -> None:
    with net.open("host1") as host1:
        host1.publish("alerts", "soon gone")
        host1.publish("secret", "stays")
        age_of = behind._appended_s

        def late(station: hg.Station, place: behind._Place) -> float | None:
            if place.channel == "alerts":
                station.delete_channel("alerts")
            return age_of(station, place)

        monkeypatch.setattr(behind, "_appended_s", late)
        assert host1.links()[0].lag_s >= 0
        same(host1, 1)


def test_files_of_others_among_ours_disturb_nobody(net: Net) -> None:
    with net.open("hub"), net.open("host1") as host1:
        host1.publish("alerts", "there")
        wait_for(lambda: peerfile.acknowledged(host1, "hub", "alerts") == {0: 1})
    for kind, station in (("hub", "host1"), ("peer", "hub")):
        directory = net.path(station) / "links" / kind
        (directory / ".DS_Store").touch()
        for peer in [one for one in directory.iterdir() if one.is_dir()]:
            (peer / "notes of mine.json").write_text("{}")
        with net.open(station, federate=False) as looked_at:
            same(looked_at, 0)
            assert trace(looked_at, next(looked_at.read("alerts")).id)


def test_what_the_hub_has_not_begun_to_take_is_behind(net: Net, monkeypatch: pytest.MonkeyPatch) -> None:
    look, busy = Inlet.standing, threading.Event()

    def standing(inlet: Inlet, theirs: Ends, rules: Rules) -> Standing:
        if rules.peer == "host1" and busy.is_set():
            raise hg.Busy("channel 'alerts' is being read, to know what it has seen")
        return look(inlet, theirs, rules)

    monkeypatch.setattr(Inlet, "standing", standing)
    busy.set()
    with net.open("hub"), net.open("host1") as host1:
        host1.publish_many("alerts", range(3))
        wait_for(lambda: "alerts" in host1.links()[0].waiting)
        assert same(host1, 3).state == "up"
        with net.open("host1", federate=False) as beside:
            wait_for(lambda: "alerts" in beside.links()[0].waiting)
            same(beside, 3)
        busy.clear()
        wait_for(lambda: payloads(net.path("hub"), "alerts") == [0, 1, 2])
        wait_for(lambda: not host1.links()[0].waiting)
        wait_for(lambda: host1.links()[0].lag_messages == 0)


def test_a_channel_that_is_parked_the_other_way_is_not_counted_twice(net: Net, monkeypatch: pytest.MonkeyPatch) -> None:
    net.station("host1", links=[{"hub": "hub", "publish": ["alerts"], "subscribe": ["alerts"]}])
    with net.open("hub"), net.open("host1") as host1:
        host1.publish("alerts", "there")
        wait_for(lambda: payloads(net.path("hub"), "alerts") == ["there"])
        wait_for(lambda: "alerts" in host1.links()[0].parked)  # the hub does not give it
        monkeypatch.setattr(Storer, "pay", _never)
        host1.publish_many("alerts", range(4))
        wait_for(lambda: payloads(net.path("hub"), "alerts") == ["there", 0, 1, 2, 3])
        wait_for(lambda: host1.links()[0].lag_messages)
        same(host1, 4)


async def _never(storer: Storer, messages: int, size: int) -> None:
    await storer._line.over.wait()
