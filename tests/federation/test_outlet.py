"""What is new is in memory before the link asks for it; whatever happens meanwhile is told to who reads next."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import heliograph as hg
from heliograph.federation.events import Resumed
from heliograph.federation.outlet import AHEAD_BYTES, AHEAD_LINES_MAX, Outlet, Portion
from heliograph.federation.sending import Read
from heliograph.log.cursor import LogCursor, LogCut
from heliograph.log.news import Fresh
from heliograph.seen import SeenSet


@pytest.fixture
def station(tmp_path: Path) -> Iterator[hg.Station]:
    with hg.open(tmp_path / "host1", name="host1") as station:
        station.publish("alerts", 0)
        yield station


def begun(station: hg.Station) -> Outlet:
    """An outlet that has sent what there is."""
    outlet = Outlet(station, station.path / "links" / "hub", "hub", "alerts")
    outlet.prepare("first")
    outlet.begin(Resumed(stream=1, channel="alerts", origin="", seen=SeenSet(), ends={}), lambda _: True)
    end = station.channel("alerts").next
    portion = outlet.read(wanted(0, end), 1 << 20)
    assert portion is not None
    assert portion.next == end
    return outlet


def wanted(offset: int, end: int, size: int = 1 << 20) -> Read:
    return Read(1, "alerts", 0, offset, size, end)


def test_what_is_new_is_there_without_the_disk(station: hg.Station, monkeypatch: pytest.MonkeyPatch) -> None:
    outlet = begun(station)
    station.publish("alerts", 1)
    assert outlet.ready(wanted(1, 2)) is None
    outlet.read_ahead(0, 2)
    with monkeypatch.context() as patched:
        patched.setattr(LogCursor, "read", None)
        assert outlet.ready(wanted(0, 2)) is None, "of another place"
        assert outlet.ready(wanted(1, 2, 10)) is None, "there is no room for it"
        portion = outlet.ready(wanted(1, 2))
    assert portion is not None
    assert portion.body == list(station.read("alerts"))[1].raw + b"\n"
    assert (portion.first, portion.next) == (1, 2)
    assert outlet.ready(wanted(2, 2)) is None


def test_it_is_read_as_ever_by_who_did_not_take_it(station: hg.Station) -> None:
    outlet = begun(station)
    station.publish("alerts", 1)
    outlet.read_ahead(0, 2)
    station.publish("alerts", 2)
    assert [outlet.read(wanted(at, 3), 1 << 20).next for at in (1, 2)] == [2, 3]  # type: ignore[union-attr]
    assert outlet.read(wanted(1, 3), 1 << 20).first == 1  # type: ignore[union-attr]


def test_much_is_not_read_ahead(station: hg.Station) -> None:
    outlet = begun(station)
    station.publish_many("alerts", range(AHEAD_LINES_MAX + 1))
    outlet.read_ahead(0, AHEAD_LINES_MAX + 2)
    assert outlet.ready(wanted(1, AHEAD_LINES_MAX + 2)) is None
    outlet = begun(station)
    station.publish("alerts", "x" * AHEAD_BYTES)
    end = station.channel("alerts").next
    outlet.read_ahead(0, end)
    assert outlet.ready(wanted(end - 1, end)) is None
    assert outlet.read(wanted(end - 1, end), 1 << 20) is not None


def test_what_is_not_synced_is_not_read_ahead(tmp_path: Path) -> None:
    with hg.open(tmp_path, name="host1", durability="interval") as station:
        station.publish("alerts", 0)
        outlet = begun(station)
        station.publish("alerts", 1)
        outlet.read_ahead(0, 2)
        assert outlet.ready(wanted(1, 2)) is None


def test_a_failure_is_told_to_who_reads_next(station: hg.Station, monkeypatch: pytest.MonkeyPatch) -> None:
    def cut(_: LogCursor) -> None:
        raise LogCut(0, 1)

    outlet = begun(station)
    station.publish("alerts", 1)
    with monkeypatch.context() as patched:
        patched.setattr(LogCursor, "read", cut)
        outlet.read_ahead(0, 2)
    assert outlet.ready(wanted(1, 2)) is None
    with pytest.raises(LogCut):
        outlet.read(wanted(1, 2), 1 << 20)


def test_damage_is_left_to_who_reads_next(station: hg.Station, monkeypatch: pytest.MonkeyPatch) -> None:
    outlet = begun(station)
    station.publish("alerts", 1)
    damaged = Portion(1, 0, b"", 2, SeenSet())
    with monkeypatch.context() as patched:
        patched.setattr(outlet, "_fill", lambda *_: damaged)
        outlet.read_ahead(0, 2)
        assert outlet.ready(wanted(1, 2)) is None
        assert outlet.read(wanted(1, 2), 1 << 20) is damaged


def fresh(station: hg.Station) -> Fresh:
    """The last line, as whoever published it leaves it."""
    last = list(station.read("alerts"))[-1]
    return Fresh(last.offset, last.raw + b"\n", station.engine.limit("alerts", 0).base)


def test_a_line_is_taken_from_who_published_it(station: hg.Station, monkeypatch: pytest.MonkeyPatch) -> None:
    outlet = begun(station)
    for number in (1, 2):
        station.publish("alerts", number)
        with monkeypatch.context() as patched:
            last = fresh(station)
            patched.setattr(LogCursor, "read", None)
            outlet.take(0, last)
            portion = outlet.ready(wanted(number, number + 1))
        assert portion is not None
        assert (portion.first, portion.next, portion.body) == (number, number + 1, last.line)
    station.publish("alerts", 3)
    with monkeypatch.context() as patched:
        patched.setattr(LogCursor, "_locate", None)  # whoever reads on has not to look for its place
        portion = outlet.read(wanted(3, 4), 1 << 20)
    assert portion is not None
    assert portion.body == fresh(station).line


def test_a_line_that_begins_a_segment_is_taken_and_read_on_from(station: hg.Station) -> None:
    outlet = begun(station)
    station.engine.writer("alerts", 0).rotate()
    station.publish("alerts", 1)
    outlet.take(0, fresh(station))
    assert outlet.ready(wanted(1, 2)) is not None
    station.publish("alerts", 2)
    portion = outlet.read(wanted(2, 3), 1 << 20)
    assert portion is not None
    assert portion.body == fresh(station).line


def test_a_line_that_is_not_the_next_one_is_not_taken(station: hg.Station) -> None:
    outlet = begun(station)
    station.publish("alerts", 1)
    station.publish("alerts", 2)
    outlet.take(0, fresh(station))
    assert outlet.ready(wanted(1, 3)) is None
    outlet.read_ahead(0, 3)
    station.publish("alerts", 3)
    outlet.take(0, fresh(station))
    portion = outlet.ready(wanted(1, 4))
    assert portion is not None
    assert portion.next == 3
    outlet.close()
    outlet.take(0, fresh(station))
