"""Links to a station whose log is long and not known yet."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from heliograph.engine.learning import Learner
from tests.federation.stations import Net, check_log, payloads, up, wait_for


@pytest.fixture
def net(tmp_path: Path) -> Net:
    return Net(tmp_path)


def test_a_long_log_is_read_while_everything_else_goes_on(net: Net, monkeypatch: pytest.MonkeyPatch) -> None:
    going, progress = threading.Event(), Learner._progress

    def waiting(self: Learner, count: int) -> None:
        assert going.wait(30)
        progress(self, count)

    rules = {"publish": ["alerts", "other"], "subscribe": ["alerts"]}
    net.station("hub", peers=[{"name": "host1", **rules}, {"name": "host2", **rules}])
    for name in ("host1", "host2"):
        net.station(name, links=[{"hub": "hub", **rules}])
    with net.open("hub", federate=False) as hub, net.open("host1", federate=False) as host1:
        hub.publish_many("alerts", list(range(300)))
        host1.publish("alerts", "of host1")
    monkeypatch.setattr("heliograph.limits.SEEN_LOCKED_LINES", 50)
    monkeypatch.setattr(Learner, "_progress", waiting)
    with net.open("hub") as hub, net.open("host1") as host1, net.open("host2") as host2:
        wait_for(lambda: ["% of 300 lines" in link.error for link in hub.links()] == [True, True])
        hub.publish("alerts", "published meanwhile")
        host1.publish("other", "another channel")
        wait_for(lambda: payloads(net.path("hub"), "other") == ["another channel"])
        assert [thread.name for thread in threading.enumerate()].count("heliograph-seen") == 1
        going.set()
        for name in ("hub", "host1", "host2"):
            wait_for(lambda name=name: len(check_log(net.path(name), "alerts")) == 302)
        wait_for(lambda: not any(link.error for link in hub.links()))
        assert up(host1, "hub") and host1.links()[0].reconnects == host2.links()[0].reconnects == 0
