"""Two looks at a station, and what happened between them: by whatever process."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest

import heliograph as hg
from heliograph.admin import overview
from heliograph.admin.overview import Look, Standing, Watching, compare, look, rows
from heliograph.station.stats import PartitionStats
from tests.proof.tools import tree


def part(number: int = 0, *, first: int = 0, following: int = 0, size: int = 0) -> PartitionStats:
    return PartitionStats(
        partition=number, first=first, next=following, messages=following - first, bytes=size, segments=1,
        unsynced_bytes=0, fenced=False,
    )  # fmt: skip


def standing(offset: int, lag: int, partition: int = 0, *, name: str = "pager", kind: str = "plain") -> Standing:
    return Standing(
        kind=kind, channel="alerts", name=name, partition=partition, offset=offset, lag=lag, lag_s=lag / 10, live=True
    )


def at(seconds: float, channels: dict[str, list[PartitionStats]], *standings: Standing) -> Look:
    return Look(
        station="host1", path="data", time=datetime(2026, 11, 15, tzinfo=UTC), at_s=seconds, channels=channels,
        dead_letters={"alerts": 5, "b": 3},
        standings=list(standings),
    )  # fmt: skip


# -- comparing ------------------------------------------------------------------------------------------------


def test_a_first_look_has_numbers_and_no_rates() -> None:
    view = compare(None, at(5.0, {"alerts": [part(following=10, size=100)]}, standing(3, 7)))
    (channel,) = view.channels
    assert (channel.messages, channel.bytes, channel.lag, channel.lag_s) == (10, 100, 7, 0.7)
    assert (view.seconds, view.rate, channel.rate, channel.byte_rate, channel.readers[0].rate) == (None,) * 5


def test_rates_are_differences_of_offsets() -> None:
    before = at(5.0, {"alerts": [part(following=10, size=100)]}, standing(3, 7))
    now = at(7.0, {"alerts": [part(first=8, following=30, size=300)]}, standing(27, 3))
    view = compare(before, now)
    (channel,) = view.channels
    assert (channel.rate, channel.byte_rate, channel.readers[0].rate) == (10.0, 100.0, 12.0)
    assert (channel.messages, view.rate, view.seconds) == (22, 10.0, 2.0)


def test_partitions_add_up() -> None:
    before = at(0.0, {"alerts": [part(0, following=10), part(1, following=5)]}, standing(1, 9), standing(0, 5, 1))
    now = at(1.0, {"alerts": [part(0, following=12), part(1, following=5), part(2, following=4)]},
             standing(2, 10), standing(5, 0, 1))  # fmt: skip
    (channel,) = compare(before, now).channels
    assert [one.rate for one in channel.partitions] == [2.0, 0.0, None]
    assert channel.rate == 2.0
    assert [(one.name, one.lag, one.lag_s, one.rate, one.offset) for one in channel.readers] == [
        ("pager", 10, 1.0, 6.0, None)
    ]


def test_the_slowest_reader_is_the_channels_lag() -> None:
    now = at(1.0, {"alerts": [part(following=12)]}, standing(2, 10), standing(11, 1, name="archive"))
    (channel,) = compare(None, now).channels
    assert (channel.lag, channel.live, len(channel.readers)) == (10, 2, 2)


def test_a_channel_that_was_made_anew_has_no_rate_instead_of_a_negative_one() -> None:
    before = at(0.0, {"alerts": [part(following=10, size=900)]}, standing(9, 1))
    (channel,) = compare(before, at(1.0, {"alerts": [part(following=2, size=9)]}, standing(0, 2))).channels
    assert (channel.rate, channel.byte_rate, channel.readers[0].rate) == (None, None, None)


def test_a_new_channel_and_a_clock_that_stands_still() -> None:
    before = at(1.0, {})
    assert compare(before, at(2.0, {"alerts": [part(following=3)]})).channels[0].rate is None
    assert compare(before, at(1.0, {"alerts": [part(following=3)]})).seconds is None


def test_dead_letters_are_counted_with_their_channel() -> None:
    before = at(0.0, {"alerts": [part()], "alerts.dead-letter": [part(following=2)]})
    now = at(2.0, {"alerts": [part()], "alerts.dead-letter": [part(first=1, following=6)]})
    view = compare(before, now)
    assert (view.channels[0].dead_letters, view.channels[0].dead_rate, view.dead_letters) == (5, 2.0, 5)


# -- choosing -------------------------------------------------------------------------------------------------


@pytest.fixture
def view() -> overview.View:
    channels = {"b": [part(following=5, size=1)], "a": [part(following=9, size=9)], "c.x": [part(following=7)]}
    dead = {"b.dead-letter": [part(following=3)], "gone.dead-letter": [part(following=1)]}
    return compare(at(0.0, {name: [part()] for name in channels}), at(1.0, {**channels, **dead}))


def names(found: list[overview.ChannelView]) -> list[str]:
    return [one.name for one in found]


def test_rows_are_sorted_and_filtered(view: overview.View) -> None:
    assert names(rows(view)) == ["a", "b", "c.x", "gone.dead-letter"]
    assert names(rows(view, reverse=True)) == ["gone.dead-letter", "c.x", "b", "a"]
    assert names(rows(view, sort="rate"))[:3] == ["a", "c.x", "b"]
    assert names(rows(view, sort="rate", reverse=True))[-3:] == ["b", "c.x", "a"]
    assert names(rows(view, sort="dead"))[0] == "b"
    assert names(rows(view, contains="C.")) == ["c.x"]


def test_dead_letter_channels_are_rows_when_asked_for_or_left_alone(view: overview.View) -> None:
    assert "b.dead-letter" in names(rows(view, dead=True))
    assert "gone.dead-letter" in names(rows(view)), "its channel was deleted"


@pytest.mark.parametrize("order", overview.ORDERS)
def test_every_order_sorts_everything(view: overview.View, order: str) -> None:
    assert len(rows(view, sort=order, dead=True)) == 5


# -- looking --------------------------------------------------------------------------------------------------


def test_it_sees_what_others_do_and_leaves_no_trace(tmp_path: Path) -> None:
    with hg.open(tmp_path, name="host1") as station, hg.open(tmp_path, read_only=True) as looking:
        station.publish_many("alerts", range(7))
        station.subscribe("alerts", print, name="pager", start=4, paused=True).close()
        watching = Watching(looking)
        before = tree(tmp_path)
        first = watching.view()
        assert tree(tmp_path) == before
        station.publish_many("alerts", range(5))
        second = watching.view()
    assert [(one.name, one.messages, one.lag) for one in first.channels] == [("alerts", 7, 3)]
    assert [(one.name, one.messages, one.lag) for one in second.channels] == [("alerts", 12, 8)]
    assert second.seconds is not None
    assert second.rate == pytest.approx(5 / second.seconds)


def test_a_damaged_position_is_told_and_the_rest_is_shown(tmp_path: Path) -> None:
    with hg.open(tmp_path, name="host1") as station:
        station.publish("alerts", 1)
        station.subscribe("alerts", print, name="pager", start="first", paused=True).close()
        (tmp_path / "subscriptions" / "alerts" / "pager" / "0.json").write_bytes(b"{")
        view = compare(None, look(station))
    assert [one.messages for one in view.channels] == [1]
    assert "pager" in view.troubles[0]


def test_another_kind_of_reader_needs_one_function(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def queues(_: hg.Station) -> Iterator[Standing]:
        yield standing(1, 2, kind="queue", name="workers")

    monkeypatch.setattr(overview, "SOURCES", (*overview.SOURCES, queues))
    with hg.open(tmp_path, name="host1") as station:
        station.publish("alerts", 1)
        (channel,) = compare(None, look(station)).channels
    assert [(one.kind, one.name, one.lag) for one in channel.readers] == [("queue", "workers", 2)]


def test_a_queue_is_behind_by_what_is_not_done_and_not_by_all_since_the_oldest(tmp_path: Path) -> None:
    """One message that is stuck holds the floor, and the ten thousand done behind it wait for nothing."""
    with hg.open(tmp_path, name="host1") as station, hg.open(tmp_path, read_only=True) as looking:
        station.create_channel("images", partitions=2)
        station.publish_many("images", range(40))
        with (
            station.queue("images", "resize", start="first") as queue,
            station.queue("images", "resize", start="first") as other,
        ):
            stuck, *rest = queue.receive(30)
            for delivery in rest:
                delivery.ack()
            other.receive(1)
            info = looking.queue_info("images", "resize")
            (reader,) = compare(None, look(looking)).channels[0].readers
            assert (info.depth, info.in_flight) == (10 - 1, 2)
            assert (reader.lag, reader.workers, reader.live) == (11, 2, True)
            parts = looking.subscriptions("images")
            assert [part.partition for part in parts] == [0, 1]
            assert sum(part.lag for part in parts) == 11
            assert all(part.lag < 20 for part in parts), "each has its own"
            assert reader.lag_s is not None and reader.lag_s > 0
            for delivery in [stuck, *queue.receive(30)]:
                delivery.ack()
            (reader,) = compare(None, look(looking)).channels[0].readers
            assert reader.lag == 1
    with hg.open(tmp_path) as station, station.queue("images", "resize") as queue:
        queue.receive(1, wait_s=60)[0].ack()
        view = compare(None, look(station))
    assert (view.lag, view.channels[0].lag, view.channels[0].readers[0].lag_s) == (0, 0, 0.0)


def test_a_group_is_one_reader_with_its_workers(tmp_path: Path) -> None:
    with hg.open(tmp_path, name="host1") as station, hg.open(tmp_path) as other:
        station.create_channel("alerts", partitions=4)
        for n in range(40):
            station.publish("alerts", n)
        workers = [
            one.subscribe("alerts", lambda message: None, name="crew", group=True, start="first", paused=True)
            for one in (station, other)
        ]
        (channel,) = compare(None, look(station)).channels
        for worker in workers:
            worker.close()
    assert len(channel.partitions) == 4
    assert [(one.kind, one.name, one.workers, one.lag, one.live) for one in channel.readers] == [
        ("group", "crew", 2, 40, True)
    ]


def test_settings_of_a_channel_and_of_none(tmp_path: Path) -> None:
    with hg.open(tmp_path, name="host1") as station:
        station.create_channel("logs", retention_age_s="7d")
        watching = Watching(station)
        found = watching.settings("logs")
        assert found is not None
        assert found.retention_age_s == 604800
        assert watching.settings("gone") is None
        watching.finish()


def test_a_view_is_json(view: overview.View) -> None:
    assert msgspec.json.decode(msgspec.json.encode(view), type=overview.View) == view
