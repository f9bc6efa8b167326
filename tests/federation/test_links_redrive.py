"""Dead letters that are redriven beside links: the copy goes everywhere, and is for one subscription of one station."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import heliograph as hg
from heliograph.admin import dead
from heliograph.admin.redrive import redrive
from tests.federation.stations import Net, payloads, wait_for

NO_RETRY = hg.Retry(max_retries=0)


class Numb(hg.HeliographError):
    """What the handler at host1 raises until it is mended."""


@pytest.fixture
def net(tmp_path: Path) -> Net:
    net = Net(tmp_path)
    net.station("hub", peers=[{"name": "host1", "publish": ["alerts"]}])
    net.station("host1", links=[{"hub": "hub", "publish": ["alerts"]}])
    return net


@pytest.mark.parametrize("kind", [{}, {"group": True}, {"queue": True}], ids=["plain", "group", "queue"])
def test_what_is_redriven_at_one_station_is_passed_over_by_subscriptions_of_that_name_at_others(
    net: Net, kind: dict[str, Any]
) -> None:
    broken = True
    took: dict[str, list[Any]] = {"host1": [], "hub": []}

    def handle(message: hg.Message) -> None:
        if broken and message.data == "two":
            raise Numb
        took["host1"].append(message.data)

    with net.open("hub") as hub, net.open("host1") as host1:
        hub.create_channel("alerts")
        there = hub.subscribe("alerts", lambda m: took["hub"].append(m.data), name="pager", start="first", **kind)
        host1.create_channel("alerts")
        host1.subscribe("alerts", handle, name="pager", start="first", retry=NO_RETRY, **kind)
        host1.publish_many("alerts", ["one", "two", "three"])
        wait_for(lambda: len(list(dead.letters(host1, "alerts"))) == 1 and len(took["hub"]) == 3)
        broken = False
        assert dead.replay(host1, "alerts").redriven == {"pager": 1}
        host1.publish("alerts", "four")
        wait_for(lambda: took["host1"] == ["one", "three", "two", "four"])
        wait_for(lambda: took["hub"][-1] == "four")
        assert took["hub"] == ["one", "two", "three", "four"], "it had handled this one"
        assert there.stats().passed_over == 1
    assert payloads(net.path("hub"), "alerts") == ["one", "two", "three", "two", "four"], "reading shows it"


def test_letters_that_a_hub_collects_are_redriven_where_they_were_written(tmp_path: Path) -> None:
    """A subscription of the hub that only has the same name never failed with it."""
    net = Net(tmp_path)
    channels = ["alerts", "alerts.dead-letter"]
    net.station("hub", peers=[{"name": "host1", "publish": channels}])
    net.station("host1", links=[{"hub": "hub", "publish": channels}])
    took: list[tuple[str, Any]] = []

    def fail(_: hg.Message) -> None:
        raise Numb

    with net.open("hub") as hub, net.open("host1") as host1:
        for station in (hub, host1):
            station.create_channel("alerts")
        hub.subscribe("alerts", lambda message: took.append(("pager", message.data)), name="pager", start="first")
        hub.subscribe("alerts", lambda message: took.append(("q", message.data)), name="q", queue=True, start="first")
        host1.subscribe("alerts", fail, name="pager", start="first", retry=NO_RETRY)
        host1.subscribe("alerts", fail, name="q", queue=True, start="first", retry=NO_RETRY)
        host1.publish("alerts", "one")
        wait_for(lambda: payloads(net.path("hub"), "alerts.dead-letter")[1:] and len(took) == 2)
        report = dead.replay(hub, "alerts")
        assert (report.replayed, report.removed, len(report.skipped)) == (0, 0, 2)
        assert all("'host1'" in one.reason and "--to-all" in one.reason for one in report.skipped)
        again = redrive(hub, "alerts", "q")
        assert (again.matched, again.redriven) == (0, 0)
        assert dead.replay(hub, "alerts", to_all=True).replayed == 2, "whoever wants that may"
        wait_for(lambda: len(took) == 6)
