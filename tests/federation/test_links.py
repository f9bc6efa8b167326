"""Links between real stations: mutual TLS on loopback, both ends durable."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.federation.stations import Net, audited, check_log, lines, payloads, up, wait_for


@pytest.fixture
def net(tmp_path: Path) -> Net:
    return Net(tmp_path)


def test_a_client_publishes_a_channel_to_a_hub(net: Net) -> None:
    net.station("hub", peers=[{"name": "host1", "publish": ["alerts"]}])
    net.station("host1", links=[{"hub": "hub", "publish": ["alerts"]}])
    with net.open("hub") as hub, net.open("host1") as host1:
        host1.publish("alerts", "one")
        host1.publish_many("alerts", ["two", "three"])
        wait_for(lambda: payloads(net.path("hub"), "alerts") == ["one", "two", "three"])
        assert lines(net.path("hub"), "alerts") == lines(net.path("host1"), "alerts"), "byte for byte"
        host1.publish("alerts", "four")
        wait_for(lambda: len(check_log(net.path("hub"), "alerts")) == 4)
        wait_for(lambda: up(host1, "hub") and up(hub, "host1"))
        (link,) = host1.links()
        assert (link.kind, link.channels) == ("hub", ["alerts"])
        wait_for(lambda: host1.links()[0].lag_messages == 0)
    assert [record["peer"] for record in audited(net.path("hub"), "link-up")] == ["host1"]
