"""Channels that another process deletes while somebody looks at all of them, as those of replies often are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import heliograph as hg
from heliograph.admin import verify as verifying
from heliograph.admin.trace import trace
from heliograph.admin.verify import verify


@pytest.fixture
def station(tmp_path: Path) -> Iterator[hg.Station]:
    with hg.open(tmp_path / "data", name="host1") as station:
        yield station


@pytest.fixture
def vanish(station: hg.Station, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Has the channel `gone` deleted by others right before, or right after, something is called."""

    def vanish(owner: object, name: str, *, after: bool = False, again: bool = False) -> None:
        original = getattr(owner, name)

        def wrapper(*arguments: Any, **named: Any) -> Any:
            found = original(*arguments, **named) if after else None
            if "gone" in map(str, arguments) or any(getattr(one, "_name", "") == "gone" for one in arguments):
                monkeypatch.setattr(owner, name, original)
                with hg.open(station.path, federate=False) as other:
                    other.delete_channel("gone")
                    if again:
                        other.publish("gone", "anew")
            return found if after else original(*arguments, **named)

        monkeypatch.setattr(owner, name, wrapper)

    return vanish


def test_looking_a_message_up_in_all_channels(station: hg.Station, vanish: Callable[..., None]) -> None:
    station.publish("gone", 1)
    receipt = station.publish("later", 2)
    vanish(station.engine, "settle")
    found = station.get(receipt.id)
    assert found is not None and found.data == 2
    station.publish("gone", 1)
    vanish(station.engine, "find_id")
    assert [copy.channel for copy in trace(station, receipt.id)] == ["later"]
    with pytest.raises(hg.NotFound):
        station.get(receipt.id, "gone")


@pytest.mark.parametrize("again", [False, True])
def test_verifying_all_channels(station: hg.Station, vanish: Callable[..., None], again: bool) -> None:
    station.create_channel("gone", partitions=3)
    station.publish("gone", 1)
    station.publish("later", 2)
    vanish(verifying._Channel, "_check_description", after=True, again=again)
    report = verify(station)
    assert report.ok
    assert [one.name for one in report.channels] == (["gone"] if again else []) + ["later"]


def test_counting_all_channels(station: hg.Station, vanish: Callable[..., None]) -> None:
    station.publish("later", 2)
    for count in (station.channels, lambda: station.stats().channels):
        station.publish("gone", 1)
        vanish(station.engine, "head_fields", after=True)
        assert len(count()) == 1


def test_counting_the_lag_of_all_queues(station: hg.Station, vanish: Callable[..., None]) -> None:
    for channel in ("gone", "later"):
        station.publish(channel, 1)
        station.queue(channel, "work", start="first").close()
    vanish(station._queues, "_age_s")
    assert "later" in [one.channel for one in station.subscriptions()]
