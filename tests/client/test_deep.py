"""A payload that is nested more deeply than a reader's stack allows: told, and nobody else is held up.

It is refused today; logs of before, and other programs, may hold one.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

import heliograph as hg
from heliograph import nesting
from heliograph.admin import dead
from tests.client.conftest import Hub
from tests.federation.stations import Net, lines, payloads, wait_for

DEEP = msgspec.Raw(b"[" * 200_000 + b"]" * 200_000)


@pytest.fixture
def unbounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever publishes does not look how deep it is."""
    monkeypatch.setattr(nesting, "PAYLOAD_DEPTH_MAX", 1_000_000)


def plain(messages: Any) -> list[Any]:
    return [message.data for message in messages]


@pytest.mark.usefixtures("unbounded")
def test_readers_of_a_station_are_told_of_it_and_go_on(tmp_path: Path) -> None:
    heard: list[Any] = []
    gaps: list[hg.Gap] = []
    with hg.open(tmp_path, name="hub") as station:
        station.create_channel("alerts", retention_compact=True)
        station.subscribe("alerts", lambda message: heard.append(message.data), name="all")
        station.publish("alerts", "before", key="a")
        station.publish("alerts", DEEP, key="a")
        station.publish("alerts", "after", key="b")
        wait_for(lambda: heard == ["before", "after"])
        assert plain(station.read("alerts", on_gap=gaps.append)) == ["before", "after"]
        assert [(gap.first, gap.next) for gap in gaps] == [(1, 2)]
        assert plain(station.read("alerts", where=hg.Filter(key="b"))) == ["after"]
        assert station.engine.relayed.seen("alerts").count == 3
    for index in tmp_path.rglob("*.index"):
        index.unlink()
    with hg.open(tmp_path, name="hub") as station:
        station.trim()
        assert plain(station.read("alerts", start="first"))[-1] == "after"


@pytest.mark.usefixtures("unbounded")
def test_clients_of_a_hub_are_told_of_it_and_go_on(hub: Hub) -> None:
    heard: list[Any] = []
    with hub.open("hub") as station, hub.connect() as client:
        subscription = client.subscribe("alerts", lambda message: heard.append(message.data))
        station.publish_many("alerts", ["before", DEEP, "after"])
        wait_for(lambda: heard == ["before", "after"])
        assert subscription.live
        assert plain(client.read("alerts")) == ["before", "after"]
        with pytest.raises(hg.InvalidMessage):
            client.publish("alerts", DEEP)
        assert client.publish("alerts", "still there").offset == 3


@pytest.mark.usefixtures("unbounded")
def test_an_on_gap_that_fails_does_not_end_a_subscription(hub: Hub) -> None:
    heard: list[Any] = []
    told: list[hg.Gap] = []

    def on_gap(gap: hg.Gap) -> None:
        told.append(gap)
        raise ValueError(gap)

    with hub.open("hub") as station, hub.connect() as client:
        subscription = client.subscribe("alerts", lambda message: heard.append(message.data), on_gap=on_gap)
        station.publish_many("alerts", ["before", DEEP, "after"])
        wait_for(lambda: heard == ["before", "after"])
        assert subscription.live
        assert [gap.first for gap in told] == [1]


@pytest.mark.usefixtures("unbounded")
def test_a_hub_refuses_it_and_takes_the_others(tmp_path: Path) -> None:
    net = Net(tmp_path)
    net.station("hub", peers=[{"name": "host1", "publish": ["alerts"]}])
    net.station("host1", links=[{"hub": "hub", "publish": ["alerts"]}])
    with net.open("hub"), net.open("host1") as host1:
        host1.publish_many("alerts", ["before", DEEP, "after"])
        wait_for(lambda: payloads(net.path("hub"), "alerts") == ["before", "after"])
        (letter,) = wait_for(lambda: list(dead.letters(host1, "alerts")))
        assert letter.reason == "refused"
        assert len(lines(net.path("hub"), "alerts")) == 2


def test_what_no_reader_could_be_sure_to_decode_is_refused_by_client_and_hub(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = msgspec.Raw(b"[" * 800 + b"]" * 800)
    with hub.open("hub"), hub.connect() as client:
        with pytest.raises(hg.InvalidMessage, match="nested too deeply: 800 levels"):
            client.publish("alerts", deep)
        monkeypatch.setattr("heliograph.plain.refuse_too_deep", lambda _: None)  # a client that does not look
        with pytest.raises(hg.InvalidMessage, match="nested too deeply: 800 levels"):
            client.publish("alerts", deep)
        assert client.publish("alerts", "flat").offset == 0
