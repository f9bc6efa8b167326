"""With ``storage.auto_create`` off, channels are made on purpose; dead letters find their place all the same."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

import heliograph as hg


def test_a_misspelt_channel_is_an_error(tmp_path: Path) -> None:
    with hg.open(tmp_path, name="host1", auto_create=False) as station:
        station.create_channel("alerts")
        station.publish("alerts", 1)
        for use in (lambda: station.publish("alarts", 1), lambda: station.subscribe("alarts", print)):
            with pytest.raises(hg.NotFound, match="alarts"):
                use()
        assert [info.name for info in station.channels()] == ["alerts"]


def test_a_handler_that_gives_up_does_not_wait_for_a_channel_that_nobody_can_make(tmp_path: Path) -> None:
    def fail(message: hg.Message) -> None:
        raise ValueError("boom")

    with hg.open(tmp_path, name="host1", auto_create=False) as station:
        station.create_channel("alerts")
        station.publish("alerts", 1)
        with station.subscribe("alerts", fail, name="w", start="first", retry=hg.Retry(max_retries=0)) as subscription:
            deadline = time.monotonic() + 20
            while not subscription.stats().dead_letters and time.monotonic() < deadline:
                time.sleep(0.01)
        assert [letter.data["error"] for letter in station.read("alerts.dead-letter")] == ["ValueError: boom"]
