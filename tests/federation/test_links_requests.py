"""Requests over links: asked at one station, answered at another, and the reply comes back by itself."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import heliograph as hg
from tests.federation.stations import Net, up, wait_for

HOST1 = {"name": "host1", "publish": ["prices"], "subscribe": ["commands.>"], "reply": ["commands.>"]}
HOST2 = {"name": "host2", "publish": ["prices"], "subscribe": ["prices"], "reply": ["prices"]}


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("heliograph.federation.link.pause_s", lambda *_: 0.05)


@pytest.fixture
def net(tmp_path: Path) -> Net:
    net = Net(tmp_path)
    net.station("hub", peers=[HOST1, HOST2])
    net.station("host1", links=[{"hub": "hub", "publish": ["prices"], "subscribe": ["commands.host1"]}])
    net.station("host2", links=[{"hub": "hub", "subscribe": ["prices"]}])
    return net


@pytest.fixture
def stations(net: Net) -> Iterator[dict[str, hg.Station]]:
    with ExitStack() as stack:
        opened = {name: stack.enter_context(net.open(name)) for name in ("hub", "host1", "host2")}
        wait_for(lambda: all(up(opened[name], "hub") for name in ("host1", "host2")))
        yield opened


def double(request: hg.Message) -> Any:
    return request.data * 2


def test_a_station_asks_and_its_hub_answers(stations: dict[str, hg.Station]) -> None:
    stations["hub"].reply("prices", double)
    for number in range(5):
        assert stations["host1"].request("prices", number, timeout=30).data == 2 * number
    assert stations["host1"].stats().late_replies == 0


def test_a_hub_asks_and_a_station_answers(stations: dict[str, hg.Station]) -> None:
    stations["host1"].reply("commands.host1", lambda request: f"{request.data} is done")
    assert stations["hub"].request("commands.host1", "reboot", timeout=30).data == "reboot is done"


def test_stations_ask_each_other_through_the_hub(stations: dict[str, hg.Station]) -> None:
    stations["host2"].reply("prices", double, name="clerks", group=True)
    assert stations["host1"].request("prices", 21, timeout=30).data == 42
    assert "_reply.to.host1" not in [info.name for info in stations["host1"].channels()], "shown only if asked for"


def test_a_failure_is_told_over_the_link(stations: dict[str, hg.Station]) -> None:
    def fail(_: hg.Message) -> None:
        raise ValueError("sold out")

    stations["hub"].reply("prices", fail, retry=hg.Retry(max_retries=0))
    with pytest.raises(hg.ReplyFailed, match="ValueError: sold out"):
        stations["host1"].request("prices", 1, timeout=30)


def test_the_asynchronous_station_and_clients_of_the_hub_are_answered_from_afar(
    net: Net, stations: dict[str, hg.Station]
) -> None:
    stations["host2"].reply("prices", double)

    async def main() -> Any:
        async with hg.open_async(net.path("host1")) as station:  # another user of the directory, without the links
            return (await station.request("prices", 4, timeout=30)).data

    assert asyncio.run(main()) == 8
    files = {kind: net.pki.directory / f"host1.{kind}" for kind in ("crt", "key")}
    tls = {"cert": files["crt"], "key": files["key"], "ca": net.pki.ca, "crl": net.pki.crl}
    with hg.connect(f"wss://localhost:{net.port('hub')}", tls=tls) as client:
        assert client.request("prices", 5, timeout=30).data == 10
        assert client.channels() == [], "no channel of replies is shown"


def test_a_link_that_is_down_is_named_and_the_request_is_answered_later(net: Net) -> None:
    handled: list[Any] = []
    with net.open("host1") as host1:
        wait_for(lambda: any(link.error for link in host1.links()))
        wait_for((net.path("host1") / "links" / "state.json").exists)
        with pytest.raises(hg.ReplyTimeout, match=r"the link to localhost:\d+ is down: nobody listens there"):
            host1.request("prices", "early", timeout=1.5)
        with net.open("hub") as hub:
            hub.reply("prices", lambda request: handled.append(request.data), name="clerk", start="first")
            wait_for(lambda: handled == ["early"])
            assert host1.request("prices", "now", timeout=30).data is None
    with net.open("hub") as hub, pytest.raises(hg.ReplyTimeout, match="the link from host1 is down"):
        wait_for(lambda: [link for link in hub.links() if link.name == "host1"])
        hub.request("commands.host1", "reboot", timeout=1.5)


def test_who_may_not_answer_is_parked_and_says_why(net: Net) -> None:
    net.station("hub", peers=[{**HOST1, "reply": []}])
    with net.open("hub") as hub, net.open("host1") as host1:
        wait_for(lambda: up(host1, "hub"))
        host1.reply("commands.host1", double)
        with pytest.raises(hg.ReplyTimeout):
            hub.request("commands.host1", 1, timeout=2)
        parked = wait_for(lambda: [link.parked for link in host1.links() if link.parked])
        assert parked == [{"_reply.to.hub": "host1 is not allowed to reply to anything: say what in 'reply'"}]
        net.station("hub", peers=[HOST1])
        assert wait_for(lambda: _asked(hub)) == 2, "the rules were loaded anew"


def _asked(hub: hg.Station) -> Any:
    try:
        return hub.request("commands.host1", 1, timeout=2).data
    except hg.ReplyTimeout:
        return None


def test_replies_of_others_are_nobodys_business(net: Net) -> None:
    """A peer is sent the replies to its own requests, and may send those to stations that the hub knows."""
    net.station("host2", links=[{"hub": "hub", "subscribe": ["prices", "_reply.to.host1"]}])
    with net.open("hub") as hub, net.open("host2") as host2:
        wait_for(lambda: any("_reply.to.host1" in link.parked for link in host2.links()))
        host2.engine.create("_reply.to.stranger")
        host2.publisher.publish_own("_reply.to.stranger", "x.y", {}, None)
        parked = wait_for(lambda: [link.parked for link in host2.links() if "_reply.to.stranger" in link.parked])
        assert "not allowed to publish" in parked[0]["_reply.to.stranger"]
        assert "_reply.to.stranger" not in [info.name for info in hub.channels(replies=True)]
