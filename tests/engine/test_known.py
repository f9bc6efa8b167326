"""The lock of what arrives stays open between two arrivals, of a bounded number of channels."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import heliograph as hg
from heliograph.engine import known
from heliograph.engine.foreign import piece_of
from tests.arrivals import line
from tests.federation.stations import wait_for


def lines(first: int, following: int, channel: str) -> list[bytes]:
    return [line(seq, channel=channel) for seq in range(first, following)]


def locks_open(root: Path) -> list[str]:
    """The arrivals locks that this process has open."""
    found = []
    for fd in os.listdir("/proc/self/fd"):
        try:
            path = Path(os.readlink(f"/proc/self/fd/{fd}"))
        except OSError:
            continue
        if path.parent == root / "seen" and path.suffix == ".lock":
            found.append(path.stem)
    return sorted(found)


@pytest.fixture
def station(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[hg.Station]:
    monkeypatch.setattr(known, "LOCKS_OPEN_MAX", 2)
    with hg.open(tmp_path / "data", name="hub") as found:
        yield found


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="descriptors are listed by Linux")
def test_of_many_channels_some_locks_stay_open_and_all_close_in_the_end(station: hg.Station, tmp_path: Path) -> None:
    for turn in range(2):
        for number in range(5):
            name = f"c{number}"
            arrival = station.engine.relayed.arrive(name, lines(turn * 3, turn * 3 + 3, name))
            assert (arrival.appended, arrival.refused) == (3, [])
            assert locks_open(tmp_path / "data") == ["c0", "c1"][: number + 1 + 2 * turn]
    station.engine.relayed.cover("c0")  # of which nothing has to be written down when it is closed
    station.close()
    assert locks_open(tmp_path / "data") == []


def test_a_lock_that_stays_open_is_free(station: hg.Station, tmp_path: Path) -> None:
    station.engine.relayed.arrive("c0", lines(0, 3, "c0"))
    with hg.open(tmp_path / "data", name="hub") as other:
        assert other.engine.relayed.arrive("c0", lines(2, 5, "c0")).appended == 2
    assert station.engine.relayed.arrive("c0", lines(0, 6, "c0")).appended == 1


def test_whoever_rests_with_a_channel_goes_on_when_somebody_comes_for_it(station: hg.Station) -> None:
    relayed = station.engine.relayed
    relayed.arrive("c0", lines(0, 1, "c0"))
    rested: list[float] = []
    resting = threading.Event()

    def rest() -> None:
        with relayed._channels.known("c0"):
            resting.set()
            began = time.monotonic()
            relayed._channels.rest("c0", 60.0)
            rested.append(time.monotonic() - began)

    thread = threading.Thread(target=rest)
    thread.start()
    assert resting.wait(10)
    wait_for(lambda: relayed._channels._states["c0"].resting is not None)
    assert relayed.arrive("c0", lines(1, 2, "c0")).appended == 1
    thread.join(10)
    assert rested
    assert rested[0] < 30.0


def test_whoever_stores_a_message_rests_if_it_woke_somebody(
    station: hg.Station, monkeypatch: pytest.MonkeyPatch
) -> None:
    relayed, rested, heard = station.engine.relayed, list[str](), threading.Event()
    relayed.arrive("c0", lines(0, 1, "c0"))
    monkeypatch.setattr(relayed._channels, "rest", lambda channel, _: rested.append(channel))
    one = [piece_of(lines(1, 2, "c0"))]
    assert relayed.append("c0", one, durable=True).durable
    assert rested == [], "nobody waited"
    with station.subscribe("c0", lambda _: heard.set(), start="new"):
        wait_for(lambda: station.engine._open.known["c0", 0].log.news.waiting)
        relayed.append("c0", [piece_of(lines(2, 3, "c0"))], durable=True)
        assert heard.wait(10)
    assert rested == ["c0"]
