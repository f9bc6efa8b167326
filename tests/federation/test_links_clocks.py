"""Clocks that are hours apart, or are set while links are up: messages flow, and no number is absurd."""

from __future__ import annotations

import time
from datetime import timedelta
from pathlib import Path

import msgspec
import pytest

import heliograph as hg
from heliograph.admin import linked
from heliograph.clock import Clock
from tests.federation.stations import Net, audited, check_log, lines, payloads, up, wait_for

HOURS = 3_600.0


class Shifted(Clock):
    """The system's clock, some hours off; it may be set."""

    def __init__(self, hours: float) -> None:
        self.hours = hours

    def time_ns(self) -> int:  # type: ignore[override]
        return time.time_ns() + round(self.hours * HOURS * 1e9)


@pytest.fixture
def net(tmp_path: Path) -> Net:
    found = Net(tmp_path)
    rules = {"publish": ["alerts"], "subscribe": ["commands"]}
    found.station("hub", peers=[{"name": "host1", **rules}], storage={"segment_bytes": 4096})
    found.station("host1", links=[{"hub": "hub", **rules}])
    return found


def sane(station: hg.Station) -> None:
    """No number of a link is less than nothing, or absurd."""
    for link in [*station.links(), *linked.look(station).links]:
        assert 0 <= link.lag_s < 60, link
        assert 0 <= link.round_trip_ms < 60_000 and link.lag_messages >= 0
        assert link.certificate_days_left is None or 300 < link.certificate_days_left < 400


@pytest.mark.parametrize("hours", [-10, 10])
def test_messages_flow_both_ways_and_numbers_are_sane(net: Net, hours: float) -> None:
    heard: list[object] = []
    with net.open("hub", clock=Shifted(hours / 2)) as hub, net.open("host1", clock=Shifted(-hours / 2)) as host1:
        subscription = hub.subscribe("alerts", lambda message: heard.append(message.data), name="dashboard")
        for number in range(50):
            host1.publish("alerts", number)
            hub.publish("commands", number)
        wait_for(lambda: len(check_log(net.path("hub"), "alerts")) == 50)
        wait_for(lambda: len(check_log(net.path("host1"), "commands")) == 50)
        wait_for(lambda: heard == list(range(50)))
        latency = subscription.stats().latency
        assert latency.count > 0 and all(
            value >= 0 for name, value in msgspec.to_builtins(latency).items() if name != "buckets"
        )
        wait_for(lambda: host1.links()[0].round_trip_ms > 0)
        for station in (hub, host1):
            sane(station)
        assert hub.subscriptions("alerts")[0].lag_s in (0.0, None)
    with net.open("host1", clock=Shifted(-hours / 2), federate=False) as host1:
        host1.publish("alerts", "waits")
        (link,) = linked.look(host1).links
        assert link.lag_messages == 1 and 0 <= link.lag_s < 60


def test_a_message_from_the_future_that_waits_is_no_less_than_nothing_behind(net: Net) -> None:
    """The hub has what a clock that is ahead published, and cannot pass it on."""
    net.station("dashboard", links=[{"hub": "hub", "subscribe": ["alerts"]}])
    peers = [{"name": "host1", "publish": ["alerts"]}, {"name": "dashboard", "subscribe": ["alerts"]}]
    net.station("hub", peers=peers)
    with net.open("hub") as hub, net.open("host1", clock=Shifted(10)) as host1:
        host1.publish("alerts", "first")
        with net.open("dashboard"):
            wait_for(lambda: len(lines(net.path("dashboard"), "alerts")) == 1)
        wait_for(lambda: not up(hub, "dashboard"))
        host1.publish("alerts", "tomorrow")
        wait_for(lambda: len(lines(net.path("hub"), "alerts")) == 2)
        wait_for(
            lambda: [link for link in linked.look(hub).links if link.name == "dashboard" and link.lag_messages == 1]
        )
        time.sleep(1.1)
        (link,) = [link for link in linked.look(hub).links if link.name == "dashboard"]
        assert 1.0 < link.lag_s < 60, "since it came here"


@pytest.mark.parametrize("hours", [-24 * 300, -10, 10])
def test_retention_by_age_goes_by_the_clock_of_the_log(net: Net, hours: float) -> None:
    """What arrives is as old as its stay here, whatever its time says."""
    with net.open("hub", retention_age_s=HOURS) as hub, net.open("host1", clock=Shifted(0), federate=False) as host1:
        host1.engine.clock = Shifted(hours)  # certificates are looked at with the right one
        for number in range(60):
            host1.publish("alerts", f"{number} {'x' * 200}")
        host1.engine.clock = Shifted(0)
        host1.close()
        with net.open("host1"):
            wait_for(lambda: len(check_log(net.path("hub"), "alerts")) == 60)
        hub.trim()
        assert len(lines(net.path("hub"), "alerts")) == 60, "all of it came within the hour"
    with net.open("hub", clock=Shifted(2), retention_age_s=HOURS, federate=False) as hub:
        hub.trim()
        assert len(lines(net.path("hub"), "alerts")) < 60
        assert audited(net.path("hub"), "trimmed")


def test_what_expires_does_so_by_the_clock_of_whoever_reads(net: Net) -> None:
    with net.open("hub", clock=Shifted(5)) as hub, net.open("host1") as host1:
        heard: list[object] = []
        hub.subscribe("alerts", lambda message: heard.append(message.data), name="dashboard")
        host1.publish("alerts", "for an hour", ttl=timedelta(hours=1))
        host1.publish("alerts", "for a day", ttl=timedelta(days=1))
        host1.publish("alerts", "for ever")
        wait_for(lambda: "for ever" in heard)
        assert heard == ["for a day", "for ever"]
        assert len(lines(net.path("hub"), "alerts")) == 3, "stored and passed on all the same"


def test_a_clock_that_is_set_while_a_link_is_up_changes_nothing(net: Net) -> None:
    hubs, hosts = Shifted(0), Shifted(0)
    with net.open("hub", clock=hubs) as hub, net.open("host1", clock=hosts) as host1:
        sent = 0
        for hours in (0.0, 7.0, -9.0, 3.0, -3.0, 0.0):
            hubs.hours, hosts.hours = hours, -hours
            for _ in range(5):
                host1.publish("alerts", sent)
                sent += 1
            wait_for(lambda expected=sent: payloads(net.path("hub"), "alerts") == list(range(expected)))
            wait_for(lambda: host1.links()[0].lag_messages == 0)
            time.sleep(1.1)  # certificates are looked at, states are written
            for station in (hub, host1):
                sane(station)
        assert up(host1, "hub") and host1.links()[0].reconnects == 0


def test_a_clock_that_is_wrong_by_more_than_a_certificate_allows_is_named(net: Net) -> None:
    with net.open("hub", clock=Shifted(-24 * 30)), net.open("host1") as host1:
        link = wait_for(lambda: host1.links()[0].state in ("refused", "waiting") and host1.links()[0].error)
        assert link
        wait_for(lambda: "is a clock wrong?" in str(audited(net.path("hub"), "link-refused")))


def test_a_time_to_begin_with_goes_by_the_times_of_messages(net: Net) -> None:
    """Those of a station whose clock is behind are older than they are."""
    peers = [{"name": "host1", "publish": ["alerts"]}, {"name": "dashboard", "subscribe": ["alerts"]}]
    net.station("hub", peers=peers)
    with net.open("hub") as hub:
        with net.open("host1", clock=Shifted(-10)) as host1:
            host1.publish("alerts", "ten hours old, it says")
            wait_for(lambda: len(lines(net.path("hub"), "alerts")) == 1)
        hub.publish("alerts", "now")
        start = f"{host_time(hub, -1):%Y-%m-%dT%H:%M:%SZ}"
        net.station("dashboard", links=[{"hub": "hub", "subscribe": ["alerts"], "start": start}])
        with net.open("dashboard"):
            wait_for(lambda: "now" in payloads(net.path("dashboard"), "alerts"))
            assert payloads(net.path("dashboard"), "alerts") == ["now"]


def host_time(station: hg.Station, hours: float) -> object:
    from heliograph.clock import from_us

    return from_us(station.engine.clock.time_ns() // 1000) + timedelta(hours=hours)
