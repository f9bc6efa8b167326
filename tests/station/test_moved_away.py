"""A data directory that is moved while a station has it open: nothing is begun anew at its old path."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import heliograph as hg
from heliograph.disk import SYSTEM_DISK
from heliograph.engine.port import Position
from heliograph.federation import peerfile
from heliograph.staging import files as staging
from heliograph.station import open_station
from tests.opening import Opener
from tests.proof.tools import eventually

CHANNEL = "alerts"
MOVED = "was moved or deleted"


def move(root: Path) -> Path:
    return root.rename(root.with_name("moved"))


@pytest.mark.parametrize("options", [{}, {"group": True}, {"queue": True}], ids=str)
def test_a_live_subscriber_saves_nothing_at_the_old_path(
    opened: Opener, root: Path, caplog: pytest.LogCaptureFixture, options: dict[str, Any]
) -> None:
    station = opened()
    seen: list[int] = []
    for number in range(3):  # so many that all is known and opened
        station.publish(CHANNEL, number)
    subscription = station.subscribe(
        CHANNEL, lambda message: seen.append(message.data), name="worker", start="first", **options
    )
    eventually(lambda: seen == [0, 1, 2])
    moved = move(root)
    station.publish(CHANNEL, 3)
    eventually(lambda: len(seen) == 4 or "No such file" in caplog.text)  # the second: a queue stands still
    time.sleep(0.1)  # in which it would save its position
    began = time.monotonic()
    subscription.close()
    station.close()
    assert time.monotonic() - began < 20
    assert not root.exists()
    if not options:
        assert MOVED in caplog.text
    with open_station(moved) as station:  # delivered again, perhaps, and not lost
        assert [message.data for message in station.read(CHANNEL)] == [0, 1, 2, 3]


def lease(station: hg.Station) -> None:
    station.subscribe(CHANNEL, print, name="new").close()


def join(station: hg.Station) -> None:
    station.subscribe(CHANNEL, print, name="new", group=True).close()


def queue(station: hg.Station) -> None:
    station.subscribe(CHANNEL, print, name="new", queue=True).close()


def save(station: hg.Station) -> None:
    station.engine.save_position(CHANNEL, "worker", 0, Position("abcdef", 1, "", 0))


def save_another(station: hg.Station) -> None:
    station.engine.positions.save(CHANNEL, "worker", 1, Position("abcdef", 1, "", 0))


def number(station: hg.Station) -> None:
    with station.producer("p") as producer:
        producer.publish(CHANNEL, 1)


def remember(station: hg.Station) -> None:
    peerfile.save(station.path / "links" / "hub" / "host2", CHANNEL, b"{}", SYSTEM_DISK)


def stage(station: hg.Station) -> None:
    staging.make_folder(station.path, "query", "0")


@pytest.mark.parametrize("act", [lease, join, queue, save, save_another, number, remember, stage])
def test_whoever_needs_a_directory_hears_that_the_station_is_not_there(
    opened: Opener, root: Path, act: Callable[[hg.Station], None]
) -> None:
    station = opened()
    station.publish(CHANNEL, 0)
    moved = move(root)
    with pytest.raises(hg.StorageError, match=MOVED):
        act(station)
    assert not root.exists()
    moved.rename(root)  # and nothing is broken by that


def test_no_position_is_written_into_another_station_that_was_made_at_the_old_path(opened: Opener, root: Path) -> None:
    station = opened()
    station.publish(CHANNEL, 0)
    station.subscribe(CHANNEL, print, name="worker", start="first").close()
    move(root)
    with open_station(root, name="another") as another:
        another.publish(CHANNEL, 0)
        with pytest.raises(hg.StorageError, match=MOVED):
            save(station)
        assert another.subscriptions() == []


def test_a_subscriptions_directory_that_was_removed_is_made_again(opened: Opener, root: Path) -> None:
    station = opened()
    station.publish(CHANNEL, 0)
    (root / "subscriptions").rmdir()
    lease(station)
    assert (root / "subscriptions" / CHANNEL / "new").is_dir()
