"""Many channels on one link: those that cannot be read, looked at or carried hold up no other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from heliograph.federation import outgoing
from heliograph.federation.outlet import Outlet
from tests.federation.stations import Net, payloads, up, wait_for


@pytest.fixture
def net(tmp_path: Path) -> Net:
    found = Net(tmp_path)
    found.station("hub", peers=[{"name": "host1", "publish": [">"]}])
    found.station("host1", links=[{"hub": "hub", "publish": [">"]}])
    return found


@pytest.mark.parametrize(("what", "at_once"), [("read", outgoing.READS_MAX), ("prepare", outgoing.OPENS_MAX)])
def test_however_many_channels_cannot_be_read_the_others_go_on(
    net: Net, monkeypatch: pytest.MonkeyPatch, what: str, at_once: int
) -> None:
    works, broken = getattr(Outlet, what), [True]

    def read(outlet: Outlet, *arguments: Any) -> Any:
        if outlet.channel.startswith("bad") and broken:
            raise OSError(5, "Input/output error")
        return works(outlet, *arguments)

    monkeypatch.setattr(Outlet, what, read)
    with net.open("hub"), net.open("host1") as host1:
        bad = [f"bad{number}" for number in range(at_once + 1)]
        for channel in bad:
            host1.publish(channel, "late")
        wait_for(lambda: up(host1, "hub"))
        wait_for(lambda: "cannot be" in host1.links()[0].error)
        host1.publish("good", "at once")
        wait_for(lambda: payloads(net.path("hub"), "good") == ["at once"], 10)
        broken.clear()
        for channel in bad:
            wait_for(lambda channel=channel: payloads(net.path("hub"), channel) == ["late"])


def test_a_channel_that_was_one_too_many_goes_on_when_there_is_room(net: Net, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("sending", "outgoing"):
        monkeypatch.setattr(f"heliograph.federation.{module}.LINK_STREAMS_MAX", 2)
    with net.open("hub"), net.open("host1") as host1:
        for channel in ("first", "second"):
            host1.publish(channel, "there")
            wait_for(lambda channel=channel: payloads(net.path("hub"), channel) == ["there"])
        for channel in ("third", "fourth"):
            host1.publish(channel, "waits")
        wait_for(lambda: set(host1.links()[0].parked) == {"third", "fourth"})
        host1.delete_channel("fourth")
        host1.delete_channel("first")
        wait_for(lambda: payloads(net.path("hub"), "third") == ["waits"])
        wait_for(lambda: host1.links()[0].parked == {})
