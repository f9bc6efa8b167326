"""Retention waits for links: that is seen, warned of, and ends where a limit is set."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

import heliograph as hg
from heliograph.admin import linked
from heliograph.admin.linkhealth import links_health
from heliograph.federation import peerfile
from heliograph.station import links
from tests.federation.stations import Net, audited, check_log, lines, payloads, up, wait_for

SMALL = {"segment_bytes": 4096, "retention_bytes": 8192}


@pytest.fixture
def net(tmp_path: Path) -> Net:
    return Net(tmp_path)


def fill(station: hg.Station, count: int, channel: str = "alerts") -> None:
    for number in range(count):
        station.publish(channel, f"{number} {'x' * 200}")


@pytest.fixture
def _look_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("heliograph.federation.service.BURDEN_S", 1.0)


@pytest.mark.usefixtures("_look_often")
def test_a_hub_that_is_away_keeps_data_and_that_is_told_once(net: Net, caplog: pytest.LogCaptureFixture) -> None:
    net.station("hub", peers=[{"name": "host1", "publish": ["alerts"]}])
    net.station("host1", links=[{"hub": "hub", "publish": ["alerts"]}], storage=SMALL)
    with net.open("host1") as host1:
        fill(host1, 100)
        host1.trim()
        assert len(lines(net.path("host1"), "alerts")) == 100, "kept for a hub that was never reached"
        held = wait_for(lambda: host1.links()[0].held_bytes)
        assert held > 20_000
        health = links_health(host1)
        assert health.status == "warn" and "holdback_bytes" in health.advice
        assert linked.look(host1).links[0].held_bytes == held
        time.sleep(2.5)
        assert [record["bytes"] for record in audited(net.path("host1"), "link-held-back")] == [held]
        assert sum("kept on disk" in record.message for record in caplog.records) == 1
        with net.open("hub"):
            wait_for(lambda: len(check_log(net.path("hub"), "alerts")) == 100)

            def trimmed() -> bool:
                host1.trim()
                return len(lines(net.path("host1"), "alerts")) < 100

            wait_for(trimmed)
            wait_for(lambda: host1.links()[0].held_bytes == 0)
            assert links_health(host1).status == "ok"


@pytest.mark.usefixtures("_look_often")
def test_a_limit_lets_go_and_says_what_the_hub_will_never_get(net: Net) -> None:
    net.station("hub", peers=[{"name": "host1", "publish": ["alerts"]}])
    net.station("host1", links=[{"hub": "hub", "publish": ["alerts"]}], storage={**SMALL, "holdback_bytes": 12_000})
    with net.open("host1") as host1:
        fill(host1, 100)
        host1.trim()
        left = payloads(net.path("host1"), "alerts")
        assert 10 < len(left) < 60
        (record,) = audited(net.path("host1"), "trimmed")
        assert record["unread"] == {f"link to localhost:{net.port('hub')}": 100 - len(left)}
        with net.open("hub") as hub:
            wait_for(lambda: payloads(net.path("hub"), "alerts") == left)
            gaps = wait_for(lambda: hub.engine.relayed.gaps("alerts").to_json())
            assert list(gaps.values()) == [{"0": [[0, 100 - len(left)]]}]


def test_positions_of_a_former_life_of_a_channel_let_nothing_go(net: Net) -> None:
    """Deleted and made again while the hub was away: what it has read of the first says nothing of the second."""
    net.station("hub", peers=[{"name": "host1", "publish": ["alerts"]}])
    net.station("host1", links=[{"hub": "hub", "publish": ["alerts"]}], storage=SMALL)
    with net.open("hub"), net.open("host1") as host1:
        fill(host1, 100)
        wait_for(lambda: len(lines(net.path("hub"), "alerts")) == 100)
        position = peerfile.directory_of(net.path("host1"), "hub", "hub") / "alerts.json"
        wait_for(lambda: b'"0":100' in position.read_bytes())
    with net.open("host1", federate=False) as host1:
        host1.delete_channel("alerts")
        for number in range(60):
            host1.publish("alerts", f"second life {number} {'x' * 200}")
        host1.trim()
        assert len(lines(net.path("host1"), "alerts")) == 60
    with net.open("hub"), net.open("host1"):
        wait_for(lambda: len(check_log(net.path("hub"), "alerts")) == 160)


def test_a_process_without_the_configuration_waits_for_its_hubs(net: Net) -> None:
    net.station("hub", peers=[{"name": "host1", "publish": ["alerts"]}])
    net.station("host1", links=[{"hub": "hub", "publish": ["alerts"]}], storage=SMALL)
    with net.open("host1") as host1, hg.open(net.path("host1"), **SMALL) as other:  # type: ignore[arg-type]
        host1.publish("alerts", "first")
        fill(other, 100)
        other.trim()
        assert len(lines(net.path("host1"), "alerts")) == 101
    with hg.open(net.path("host1"), **SMALL) as other:  # type: ignore[arg-type]
        other.trim()
        assert len(lines(net.path("host1"), "alerts")) == 101, "nobody runs the links now"
    with hg.open(net.path("host1"), config={"name": "host1"}, **SMALL) as other:  # type: ignore[arg-type]
        other.trim()
        assert len(lines(net.path("host1"), "alerts")) < 101, "there are no links any more"


def test_links_that_come_and_go_while_they_run_are_waited_for_or_not(net: Net) -> None:
    net.station("hub", peers=[{"name": "host1", "publish": ["alerts"]}])
    net.station("other", peers=[{"name": "host1", "publish": ["alerts"]}])
    net.station("host1", links=[{"hub": "other", "publish": ["else"]}], storage=SMALL)
    with net.open("host1") as host1:
        both = [{"hub": "other", "publish": ["else"]}, {"hub": "hub", "publish": ["alerts"]}]
        net.station("host1", links=both, storage=SMALL)
        wait_for(lambda: len(host1.links()) == 2)
        fill(host1, 100)
        host1.trim()
        assert len(lines(net.path("host1"), "alerts")) == 100
        net.station("host1", links=both[:1], storage=SMALL)
        wait_for(lambda: len(host1.links()) == 1)
        host1.trim()
        assert len(lines(net.path("host1"), "alerts")) < 100


def test_a_peer_that_does_not_ask_for_a_channel_any_more_keeps_none_of_it(net: Net) -> None:
    net.station("hub", peers=[{"name": "host1", "subscribe": ["alerts", "commands"]}], storage=SMALL)
    net.station("host1", links=[{"hub": "hub", "subscribe": ["alerts", "commands"]}])
    with net.open("hub") as hub:
        with net.open("host1") as host1:
            for channel in ("alerts", "commands"):
                hub.publish(channel, "there")
                wait_for(lambda channel=channel: payloads(net.path("host1"), channel) == ["there"])
            net.station("host1", links=[{"hub": "hub", "subscribe": ["commands"]}])
            wait_for(lambda: host1.links()[0].channels == ["commands"])
            wait_for(lambda: hub.links()[0].channels == ["commands"])
        wait_for(lambda: not up(hub, "host1"))
        for channel in ("alerts", "commands"):
            fill(hub, 100, channel)
        hub.trim()
        assert len(lines(net.path("hub"), "alerts")) < 100
        assert len(lines(net.path("hub"), "commands")) == 101, "it is away, and wants it"
        net.station("host1", links=[{"hub": "hub", "subscribe": ["alerts", "commands"]}])
        with net.open("host1"):
            wait_for(lambda: payloads(net.path("host1"), "commands") == payloads(net.path("hub"), "commands"))
            wait_for(lambda: payloads(net.path("host1"), "alerts")[1:] == payloads(net.path("hub"), "alerts"))
            fill(hub, 1, "alerts")
            wait_for(lambda: payloads(net.path("host1"), "alerts")[-1] == payloads(net.path("hub"), "alerts")[-1])


def test_a_peer_that_was_here_lately_counts_however_long_its_channel_was_quiet(net: Net) -> None:
    net.station(
        "hub", peers=[{"name": "host1", "subscribe": ["alerts"]}], storage=SMALL, hub={"forget_after_s": 3_600}
    )  # fmt: skip
    net.station("host1", links=[{"hub": "hub", "subscribe": ["alerts"]}])
    with net.open("hub") as hub:
        hub.publish("alerts", "first")
        with net.open("host1"):
            wait_for(lambda: len(lines(net.path("host1"), "alerts")) == 1)
            wait_for(lambda: up(hub, "host1"))
        directory = peerfile.directory_of(net.path("hub"), "peer", "host1")
        wait_for(
            lambda: links.last_here(directory, hub.engine.disk) and b'"0":1' in (directory / "alerts.json").read_bytes()
        )
        wait_for(lambda: not up(hub, "host1"))
        text = (directory / "alerts.json").read_text()
        year = text.index('"time":"') + len('"time":"')
        (directory / "alerts.json").write_text(text[:year] + "2020" + text[year + 4 :])
        assert links.positions(hub.engine, "alerts", 0, 0) == {"link from host1": 1}
        whole = (directory / "alerts.json").read_bytes()
        (directory / "alerts.json").write_bytes(b"garbage")
        assert links.positions(hub.engine, "alerts", 0, 0) == {"link from host1": 0}, "how far it is nobody knows"
        (directory / "alerts.json").write_bytes(whole)
        os.utime(directory / links.LAST_FILE, (1e9, 1e9))
        assert links.positions(hub.engine, "alerts", 0, 0) == {}, "not here for too long"


@pytest.mark.parametrize(("before", "after"), [("one", "two"), ("two", "one")])
def test_a_hub_that_took_the_place_of_another_is_waited_for_and_the_other_is_not(
    net: Net, before: str, after: str
) -> None:
    """Another name at the same address: what the one had does not say what the other has."""
    for name in (before, after):
        net.ports[name] = net.port("hub")
        net.station(name, peers=[{"name": "host1", "publish": ["alerts"]}])
    net.station("host1", links=[{"hub": "hub", "publish": ["alerts"]}], storage=SMALL)
    position = peerfile.directory_of(net.path("host1"), "hub", before) / "alerts.json"
    with net.open("host1") as host1:
        with net.open(before):
            fill(host1, 100)
            wait_for(lambda: position.exists() and b'"0":100' in position.read_bytes())
        net.station(after, peers=[{"name": "host1", "publish": ["else"]}])  # it takes nothing yet
        with net.open(after):
            wait_for(lambda: host1.links()[0].name == after and host1.links()[0].parked)
            host1.trim()
            assert len(lines(net.path("host1"), "alerts")) == 100, "kept for the one that is there now"
            net.station(after, peers=[{"name": "host1", "publish": ["alerts"]}])
            fill(host1, 100)
            wait_for(lambda: len(check_log(net.path(after), "alerts")) == 200)

            def trimmed() -> bool:
                host1.trim()
                return len(lines(net.path("host1"), "alerts")) < 90

            wait_for(trimmed)


def test_a_channel_that_is_made_while_a_peer_is_away_is_kept_for_it(net: Net) -> None:
    net.station("hub", peers=[{"name": "host1", "subscribe": ["sensors.>"]}], storage=SMALL)
    net.station("host1", links=[{"hub": "hub", "subscribe": [">"]}])
    with net.open("hub") as hub:
        with net.open("host1") as host1:
            wait_for(
                lambda: up(host1, "hub") and links.wanted(net.path("hub") / "links" / "peer" / "host1", hub.engine.disk)
            )
        wait_for(lambda: not up(hub, "host1"))
        fill(hub, 100, "sensors.new")
        fill(hub, 100, "secrets")
        hub.trim()
        assert len(lines(net.path("hub"), "secrets")) < 90, "it asked for that, and is not allowed it"
        assert len(lines(net.path("hub"), "sensors.new")) == 100
        assert next(link.lag_messages for link in hub.links() if link.name == "host1") == 100
        with net.open("host1", federate=False), hg.open(net.path("hub"), **SMALL) as other:  # type: ignore[arg-type]
            other.trim()
            assert len(lines(net.path("hub"), "sensors.new")) == 100, "other processes know, too"
        with net.open("host1"):
            wait_for(lambda: len(check_log(net.path("host1"), "sensors.new")) == 100)

            def trimmed() -> bool:
                hub.trim()
                return len(lines(net.path("hub"), "sensors.new")) < 90

            wait_for(trimmed)


@pytest.mark.usefixtures("_look_often")
def test_what_is_kept_for_a_hub_is_told_also_when_the_links_began_without_it(net: Net) -> None:
    net.station("hub", peers=[{"name": "host1", "publish": ["alerts"]}])
    net.station("host1", links=[{"hub": "hub", "publish": ["alerts"]}], storage=SMALL)
    with net.open("host1") as host1, net.open("hub"):
        host1.publish("alerts", "first")
        wait_for(lambda: payloads(net.path("hub"), "alerts") == ["first"])
    with net.open("host1") as host1:
        fill(host1, 100)
        assert wait_for(lambda: host1.links()[0].held_bytes) > 20_000
        (record,) = wait_for(lambda: audited(net.path("host1"), "link-held-back"))
        assert record["peer"] == "hub"
