"""Links hear of what is new whatever else happens: the disk fails for a moment, or another channel never rests."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import heliograph as hg
from heliograph.federation import newsroom, service
from heliograph.federation.newsroom import Ends, Newsroom
from heliograph.log.news import Fresh
from tests.faults import FaultyDisk
from tests.federation.stations import Net, payloads, wait_for

pytestmark = pytest.mark.usefixtures("untraced")


@contextmanager
def watching(engine: Any, tell: Callable[[Ends], None], *channels: str) -> Iterator[Newsroom]:
    room = Newsroom(engine, tell)
    try:
        for channel in channels:
            room.watch(channel)
        yield room
    finally:
        room.close()


def test_a_disk_that_fails_for_a_moment_is_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(newsroom, "LOOK_S", 0.05)
    disk, told = FaultyDisk(), list[Ends]()
    with hg.open(tmp_path, disk=disk) as station:
        station.publish("alerts", 1)
        with watching(station.engine, told.append, "alerts"):
            wait_for(lambda: {"alerts": {0: 1}} in told)
            disk.fail("stat", errno.EMFILE, times=3)
            wait_for(lambda: len(disk.fired) == 3)
            station.publish("alerts", 2)
            wait_for(lambda: {"alerts": {0: 2}} in told)


def test_a_channel_that_was_made_anew_is_told_though_it_ends_where_the_one_before_did(tmp_path: Path) -> None:
    told: list[Ends] = []
    goes_on = threading.Event()

    def tell(ends: Ends) -> None:
        told.append(ends)
        goes_on.wait(20)

    with hg.open(tmp_path) as station, hg.open(tmp_path) as other:
        station.publish("alerts", 1)
        with watching(station.engine, tell, "alerts"):
            wait_for(lambda: told)
            life = station.engine.life("alerts")
            other.delete_channel("alerts")
            other.publish("alerts", 2)
            goes_on.set()
            wait_for(lambda: len(told) > 1, 5)
            assert told[1:] == [{"alerts": {0: 1}}]
            assert station.engine.life("alerts") not in (None, life)


class Taker:
    """Stands for a link that sends a channel: what it was given, and what it was told to read by itself."""

    def __init__(self) -> None:
        self.took: list[Fresh] = []
        self.read: list[int] = []

    def read_ahead(self, partition: int, end: int) -> None:
        self.read.append(end)

    def take(self, partition: int, fresh: Fresh) -> None:
        self.took.append(fresh)


@contextmanager
def sending(
    station: hg.Station, tell: Callable[[Ends], None], taker: Taker, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Newsroom]:
    """A newsroom that never looks by itself, once it knows where the channel ends."""
    monkeypatch.setattr(newsroom, "LOOK_S", 600.0)
    known = threading.Event()

    def told(ends: Ends) -> None:
        tell(ends)
        known.set()

    room = Newsroom(station.engine, told)
    try:
        room.watch("alerts", taker)
        assert known.wait(20)
        taker.read.clear()
        yield room
    finally:
        room.close()


def test_a_line_that_is_published_here_is_passed_on_by_who_publishes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told, taker = list[Ends](), Taker()
    with hg.open(tmp_path) as station:
        station.publish("alerts", 0)
        with sending(station, told.append, taker, monkeypatch):
            for number in (1, 2, 3):
                station.publish("alerts", number)
                assert told[-1] == {"alerts": {0: number + 1}}, "told when publish returns, and listening on"
        raw = [message.raw + b"\n" for message in station.read("alerts")]
        assert [(fresh.offset, fresh.line) for fresh in taker.took] == list(enumerate(raw))[1:]
        assert taker.read == []


def test_after_a_line_was_passed_on_others_are_heard_as_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told, taker = list[Ends](), Taker()
    with hg.open(tmp_path) as station, hg.open(tmp_path) as other:
        station.publish("alerts", 0)
        with sending(station, told.append, taker, monkeypatch):
            for number in (1, 3, 5):
                station.publish("alerts", number)
                other.publish("alerts", number + 1)
                wait_for(lambda number=number: {"alerts": {0: number + 2}} in told)
                wait_for(lambda: len(station.engine._open.known["alerts", 0].log.news.waiting) == 1)
            station.publish_many("alerts", [7, 8])
            wait_for(lambda: {"alerts": {0: 9}} in told)
            assert [fresh.offset for fresh in taker.took] == [1, 3, 5]
            assert taker.read == [3, 5, 7, 9], "what others published, and batches"


def test_what_others_publish_while_a_line_is_passed_on_is_not_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told, taker = list[Ends](), Taker()
    with hg.open(tmp_path) as station, hg.open(tmp_path) as other:
        station.publish("alerts", 0)

        def tell(ends: Ends) -> None:
            told.append(ends)
            if ends == {"alerts": {0: 2}}:
                other.publish("alerts", 2)

        with sending(station, tell, taker, monkeypatch):
            station.publish("alerts", 1)
            wait_for(lambda: {"alerts": {0: 3}} in told)


def test_a_line_that_is_not_synced_is_given_to_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told, taker, disk = list[Ends](), Taker(), FaultyDisk()
    synced: list[int] = []
    with hg.open(tmp_path, disk=disk) as station:
        station.publish("alerts", 0)
        with sending(station, told.append, taker, monkeypatch):
            disk.before["fdatasync"] = lambda *_: synced.append(len(taker.took))
            station.publish("alerts", 1)
            assert (synced, len(taker.took)) == ([0], 1), "not before its sync"
            disk.fail("fdatasync", path=".jsonl")
            with pytest.raises(hg.OutcomeUnknown):
                station.publish("alerts", 2)
            station.engine.tell("alerts", 0)
            assert [fresh.offset for fresh in taker.took] == [1]
            assert {"alerts": {0: 3}} not in told


def test_a_line_that_was_told_of_already_is_not_passed_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told, taker = list[Ends](), Taker()
    with hg.open(tmp_path) as station:
        station.publish("alerts", 0)
        with sending(station, told.append, taker, monkeypatch):
            station.publish("alerts", 1)
            herald = station.engine._open.known["alerts", 0].log.news.herald
            assert herald is not None
            herald.fresh = taker.took.pop()  # left there by who rang when nobody listened
            station.publish_many("alerts", [2, 3])
            wait_for(lambda: {"alerts": {0: 4}} in told)
            assert taker.took == []
            assert told[-2:] == [{"alerts": {0: 2}}, {"alerts": {0: 4}}], "never back"


def test_of_a_channel_that_nobody_sends_any_more_no_line_is_passed_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taker = Taker()
    with hg.open(tmp_path) as station:
        station.publish("alerts", 0)
        with sending(station, lambda _: None, taker, monkeypatch) as room:
            room.unwatch("alerts", taker)
            station.publish("alerts", 1)
            assert taker.took == []
            assert station.engine._open.known["alerts", 0].log.news.herald is None


class Busy:
    """Stands for an engine: one channel rings all the time, another one never."""

    def __init__(self) -> None:
        self.room: Newsroom | None = None
        self.settled = threading.Semaphore(0)

    def partition_count(self, channel: str) -> int:
        return 1

    def life(self, channel: str) -> str:
        return "life"

    def unlisten(self, *_: object) -> None:
        pass

    def listen(self, channel: str, number: int, bell: Any, *, settle: bool) -> int:
        if channel == "busy":
            bell.release()
        elif settle:
            self.settled.release()
        return 0


def test_a_channel_that_rings_all_the_time_keeps_nobody_from_looking_at_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(newsroom, "LOOK_S", 0.05)
    engine = Busy()
    with watching(engine, lambda _: None, "busy", "quiet"):
        for _ in range(3):
            assert engine.settled.acquire(timeout=10), "its writer never syncs by itself, and nobody does"


def test_links_go_on_when_their_directory_cannot_be_read_for_a_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "LOOK_S", 0.05)
    monkeypatch.setattr(service, "CHANNELS_S", 0.05)
    net, disk = Net(tmp_path), FaultyDisk()
    net.station("hub", peers=[{"name": "host1", "subscribe": [">"]}])
    net.station("host1", links=[{"hub": "hub", "subscribe": [">"], "start": "first"}])
    with net.open("hub", disk=disk) as hub, net.open("host1"):
        (net.path("hub") / "links" / "peer").mkdir(parents=True, exist_ok=True)
        (net.path("hub") / "links" / "peer" / "notes.txt").write_text("no peer")
        hub.publish("alerts", 1)
        wait_for(lambda: payloads(net.path("host1"), "alerts") == [1])
        disk.fail("listdir", errno.EMFILE, times=3, path="links/peer")
        wait_for(lambda: len(disk.fired) == 3)
        hub.publish("other", 2)
        wait_for(lambda: payloads(net.path("host1"), "other") == [2])
        assert [link.state for link in hub.links()] == ["up"]


def test_who_was_absent_for_long_is_looked_for_again_when_the_disk_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("LOOK_S", "FORGET_S"):
        monkeypatch.setattr(service, name, 0.05)
    net, disk = Net(tmp_path), FaultyDisk()
    net.station("hub", peers=[{"name": "host1", "subscribe": [">"]}], hub={"forget_after_s": 1})
    disk.fail("stat", errno.EIO, times=3, path="last-here")
    (gone := net.path("hub") / "links" / "peer" / "host2").mkdir(parents=True)
    (gone / "last-here").touch()
    os.utime(gone / "last-here", (1, 1))
    with net.open("hub", disk=disk):
        wait_for(lambda: not gone.exists())
        assert len(disk.fired) == 3
