"""What a peer refused and is to be sent once more: nobody's word is lost, whatever happens in that moment."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

import heliograph as hg
from heliograph.admin import dead
from heliograph.config import Config, Link
from heliograph.errors import DiskFull
from heliograph.federation import again, peerfile
from heliograph.federation.outlet import Outlet
from heliograph.seen import SeenSet
from heliograph.station import links
from tests.federation.stations import Net, payloads, up, wait_for


def one(sequence: int) -> SeenSet:
    found = SeenSet()
    found.add("host1.k3f9q2", 0, sequence, sequence + 1)
    return found


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Of a peer that was sent something."""
    with hg.open(tmp_path / "host1", name="host1") as station:
        station.publish("alerts", 0)
        found = peerfile.directory_of(station.path, "hub", "hub")
        Outlet(station, found, "hub", "alerts").prepare("first")
        peerfile.note_address(found, "hub:7740", station.engine.disk)
        links.note_configured(
            station.path, Config(links=(Link(hub="hub:7740", publish=("alerts",)),)), station.engine.disk
        )
        return found


@pytest.fixture
def net(tmp_path: Path) -> Net:
    return Net(tmp_path)


def remembered(station: hg.Station, directory: Path) -> SeenSet:
    Outlet(station, directory, "hub", "alerts").prepare("first")
    memory = peerfile.load(directory, "alerts", station.engine.disk)
    assert memory is not None
    return memory.again


def test_what_is_asked_for_while_something_is_taken_is_taken_next(
    tmp_path: Path, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save = peerfile.save
    with hg.open(tmp_path / "host1", name="host1") as station, monkeypatch.context() as patched:

        def and_another(*arguments: object) -> None:
            patched.setattr(peerfile, "save", save)
            again.ask(station, "hub", "alerts", one(3))
            save(*arguments)  # type: ignore[arg-type]

        again.ask(station, "hub", "alerts", one(7))
        patched.setattr(peerfile, "save", and_another)
        assert remembered(station, directory) == one(7)
        assert again.asked(station.path, station.engine.disk) == {directory: ["alerts"]}
        assert remembered(station, directory) == one(7).union(one(3))
        assert again.asked(station.path, station.engine.disk) == {}


def test_what_was_taken_and_not_remembered_is_taken_again(
    tmp_path: Path, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise DiskFull("no room")

    with hg.open(tmp_path / "host1", name="host1") as station:
        again.ask(station, "hub", "alerts", one(7))
        with monkeypatch.context() as patched:
            patched.setattr(peerfile, "save", full)
            for _ in range(2):
                with pytest.raises(DiskFull):
                    remembered(station, directory)
        again.ask(station, "hub", "alerts", one(3))
        assert remembered(station, directory) == one(7).union(one(3))
        assert sorted(path.name for path in directory.iterdir()) == ["address", "alerts.json"]


def test_what_a_stream_knew_is_written_down_before_the_next_one_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    net = Net(tmp_path)
    net.station("hub", peers=[{"name": "host1", "publish": ["alerts"]}])
    net.station("host1", links=[{"hub": "hub", "publish": ["alerts"]}])
    save, prepare = Outlet.save, Outlet.prepare
    order: list[str] = []
    slow = threading.Event()

    def saved(outlet: Outlet) -> None:
        if slow.is_set() and outlet._peer == "hub":
            time.sleep(0.3)
        save(outlet)
        order.append("saved")

    def prepared(outlet: Outlet, start: str) -> object:
        if outlet._peer == "hub" and outlet.channel == "alerts":
            order.append("prepared")
        return prepare(outlet, start)

    monkeypatch.setattr(Outlet, "save", saved)
    monkeypatch.setattr(Outlet, "prepare", prepared)
    with net.open("hub"), net.open("host1") as host1:
        wait_for(lambda: up(host1, "hub"))
        host1.publish("alerts", 1)
        wait_for(lambda: payloads(net.path("hub"), "alerts") == [1])
        slow.set()
        order.clear()
        net.station("hub", peers=[{"name": "host1", "publish": ["alerts"], "relay": ["host2"]}])  # it begins again
        wait_for(lambda: "prepared" in order)
        assert order[: order.index("prepared")][-1:] == ["saved"]


def test_letters_that_are_replayed_together_are_asked_for_together(net: Net) -> None:
    """One by one, what was refused again meanwhile would be asked for with each of the others."""
    net.station("hub", peers=[{"name": "host1", "publish": ["alerts"]}], messages={"max_bytes": 5_000})
    net.station("host1", links=[{"hub": "hub", "publish": ["alerts"]}])
    with net.open("hub"), net.open("host1") as host1:
        host1.publish_many("alerts", ["x" * 6_000] * 40)
        wait_for(lambda: len(list(dead.letters(host1, "alerts"))) == 40)
        last = max(letter.offset for letter in dead.letters(host1, "alerts"))
        report = dead.replay(host1, "alerts")
        assert (report.matched, report.replayed, report.removed) == (40, 40, 40)
        wait_for(lambda: len(list(dead.letters(host1, "alerts"))) >= 40)
        time.sleep(1.0)
        again = [letter.original_offset for letter in dead.letters(host1, "alerts")]
        assert sorted(again) == list(range(40)), "each was refused once more, and once"
        assert min(letter.offset for letter in dead.letters(host1, "alerts")) > last
