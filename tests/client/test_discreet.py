"""A hub does not tell its clients where its files are; its own log does."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest

import heliograph as hg
from heliograph.federation.counter import Counter
from tests.client.conftest import Hub

Attempt = Callable[[hg.Client], object]


@pytest.mark.parametrize(
    "attempt",
    [
        lambda client: list(client.read("alerts")),
        lambda client: client.publish("alerts", "x"),
        lambda client: client.publish_many("alerts", ["x", "y"]),
        lambda client: client.subscribe("alerts", print, name="worker", group=True),
        lambda client: client.queue("alerts", "jobs"),
    ],
)
def test_errors_name_no_path_of_the_hub(hub: Hub, attempt: Attempt, caplog: pytest.LogCaptureFixture) -> None:
    with hub.open("hub") as station:
        station.create_channel("alerts")
    (hub.path("hub") / "channels/alerts/channel.json").write_bytes(b"{")
    caplog.set_level(logging.WARNING, "heliograph.links")
    damaged = pytest.raises(hg.Damaged, match=r"DATA/channels/alerts/channel\.json")
    with hub.open("hub"), hub.connect() as client, damaged as failed:
        attempt(client)
    assert str(hub.path("hub").parent) not in str(failed.value)
    assert f"{hub.path('hub')}/channels/alerts/channel.json" in caplog.text


def test_nor_does_what_the_system_says(
    hub: Hub, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: Any) -> None:
        raise OSError(5, "Input/output error", "/srv/hub/secret")

    monkeypatch.setattr(Counter, "find", fail)
    caplog.set_level(logging.WARNING, "heliograph.links")
    told = pytest.raises(hg.StorageError, match=r"^the hub's disk: Input/output error$")
    with hub.open("hub"), hub.connect() as client, told:
        list(client.read("alerts"))
    assert "/srv/hub/secret" in caplog.text


def test_a_channel_that_is_not_there_is_told_without_a_path(hub: Hub) -> None:
    absent = pytest.raises(hg.NotFound, match="there is no channel 'alerts'")
    with hub.open("hub"), hub.connect() as client, absent as failed:
        list(client.read("alerts"))
    assert str(hub.path("hub").parent) not in str(failed.value)
