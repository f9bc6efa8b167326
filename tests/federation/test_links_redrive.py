"""Dead letters that are redriven beside links: the copy goes everywhere, and is for one subscription of one station."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import heliograph as hg
from heliograph.admin import dead
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
