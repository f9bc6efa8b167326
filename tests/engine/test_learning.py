"""A long log is read without its arrivals lock: nobody has to wait for it, and nothing is forgotten meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from heliograph.engine.learning import AT_ONCE, Learner
from heliograph.errors import Busy
from heliograph.log.locks import FileLock
from heliograph.station import Station
from tests.arrivals import HOST2, doubled, line, lines
from tests.faults import QuickDisk
from tests.opening import Opener
from tests.proof.tools import eventually

CHANNEL = "alerts"


class Gate:
    """Stops whoever reads a long log after its first chunk."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self.open = threading.Event()


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    found, progress = Gate(), Learner._progress

    def waiting(self: Learner, count: int) -> None:
        found.reached.set()
        assert found.open.wait(20)
        progress(self, count)

    monkeypatch.setattr("heliograph.limits.SEEN_LOCKED_LINES", 50)
    monkeypatch.setattr(Learner, "_progress", waiting)
    yield found
    found.open.set()


def unread(opened: Opener, root: Path, **settings: object) -> Station:
    """A station with a log that is longer than what is read under the lock, and no checkpoint of it."""
    with opened(segment_bytes=4096, **settings) as station:
        for first in range(0, 200, 10):
            station.engine.relayed.arrive(CHANNEL, lines(first, first + 10))
    (root / "seen" / f"{CHANNEL}.json").unlink()
    return opened(segment_bytes=4096, **settings)


class Asking(threading.Thread):
    """Asks what a channel has seen."""

    def __init__(self, station: Station) -> None:
        super().__init__()
        self.station = station
        self.answer: object = None
        self.start()

    def run(self) -> None:
        self.answer = self.station.engine.relayed.seen(CHANNEL).to_json()


def test_the_lock_is_free_and_everybody_goes_on_meanwhile(opened: Opener, root: Path, gate: Gate) -> None:
    station = unread(opened, root)
    asking = Asking(station)
    assert gate.reached.wait(20)
    lock = FileLock(root / "seen" / f"{CHANNEL}.lock", QuickDisk())
    eventually(lock.free)
    lock.release()
    station.publish(CHANNEL, "published meanwhile")
    assert station.engine.relayed.arrive("other", [line(0, channel="other")]).appended == 1
    gate.open.set()
    asking.join(20)
    own = f"{station.name}.{station.channel(CHANNEL).incarnation}"
    assert asking.answer == {HOST2: {"0": [[0, 200]]}, own: {"0": [[200, 201]]}}


def test_who_has_no_patience_is_told_how_far_it_is(opened: Opener, root: Path, gate: Gate) -> None:
    station = unread(opened, root)
    station.engine.relayed.patience_s = 0.05
    for ask in (station.engine.relayed.ends, station.engine.relayed.seen):
        with pytest.raises(Busy, match=r"0 % of 200 lines"):
            ask(CHANNEL)
    with pytest.raises(Busy, match="is being read"):
        station.engine.relayed.arrive(CHANNEL, lines(0, 10))
    assert [thread.name for thread in threading.enumerate()].count("heliograph-seen") == 1, "one reads for all"
    gate.open.set()
    station.engine.relayed.patience_s = 20
    assert station.engine.relayed.arrive(CHANNEL, lines(0, 201)).appended == 1
    assert not doubled(root)


def test_what_others_delete_meanwhile_is_not_forgotten(opened: Opener, root: Path, gate: Gate) -> None:
    station = unread(opened, root, retention_bytes=6000)
    asking = Asking(station)
    assert gate.reached.wait(20)
    with pytest.MonkeyPatch.context() as patched, opened(segment_bytes=4096, retention_bytes=6000) as trimmer:
        patched.setattr("heliograph.limits.SEEN_LOCKED_LINES", 1_000_000)
        assert trimmer.trim()
    gate.open.set()
    asking.join(20)
    assert asking.answer == {HOST2: {"0": [[0, 200]]}}
    assert station.engine.relayed.arrive(CHANNEL, lines(0, 200)).duplicates == 200


def test_what_others_compact_meanwhile_is_not_forgotten(opened: Opener, root: Path, gate: Gate) -> None:
    with opened(segment_bytes=4096) as station:
        station.create_channel(CHANNEL, retention_compact=True)
        for first in range(0, 200, 10):
            found = [line(seq, extra=b',"partitionkey":"k"') for seq in range(first, first + 10)]
            station.engine.relayed.arrive(CHANNEL, found)
    (root / "seen" / f"{CHANNEL}.json").unlink()
    station = opened(segment_bytes=4096)
    asking = Asking(station)
    assert gate.reached.wait(20)
    with pytest.MonkeyPatch.context() as patched, opened(segment_bytes=4096) as other:
        patched.setattr("heliograph.limits.SEEN_LOCKED_LINES", 1_000_000)
        other.trim()
    gate.open.set()
    asking.join(20)
    assert asking.answer == {HOST2: {"0": [[0, 200]]}}


def test_what_another_process_received_and_trimmed_is_known_to_this_one(opened: Opener) -> None:
    """It had read the beginning before; what it did not read is gone by now."""
    with opened(segment_bytes=4096) as one, opened(segment_bytes=4096) as other:
        one.create_channel(CHANNEL, retention_bytes=6000)
        one.engine.relayed.arrive(CHANNEL, lines(0, 10))
        for first in range(10, 200, 10):
            other.engine.relayed.arrive(CHANNEL, lines(first, first + 10))
        assert other.trim()
        assert one.engine.relayed.arrive(CHANNEL, lines(0, 200)).duplicates == 200
        assert one.engine.relayed.seen(CHANNEL).to_json() == {HOST2: {"0": [[0, 200]]}}


def test_few_logs_are_read_at_a_time_and_all_in_the_end(opened: Opener, root: Path, gate: Gate) -> None:
    names = [f"alerts.{number}" for number in range(6)]
    with opened() as station:
        for name in names:
            station.publish_many(name, list(range(60)))
    station = opened()
    station.engine.relayed.patience_s = 0.01
    reading: list[int] = []
    for name in names:
        with pytest.raises(Busy):
            station.engine.relayed.seen(name)
        reading.append(AT_ONCE - station.engine.relayed._channels._room._value)
    assert max(reading) == AT_ONCE
    gate.open.set()
    station.engine.relayed.patience_s = 20
    for name in names:
        assert station.engine.relayed.seen(name).count == 60


def test_closing_ends_the_reading(opened: Opener, root: Path, gate: Gate) -> None:
    station = unread(opened, root)
    station.engine.relayed.patience_s = 0.0
    with pytest.raises(Busy):
        station.engine.relayed.seen(CHANNEL)
    gate.open.set()
    station.close()
    eventually(lambda: "heliograph-seen" not in {thread.name for thread in threading.enumerate()})


def test_what_goes_wrong_is_told_whoever_asks(opened: Opener, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("heliograph.limits.SEEN_LOCKED_LINES", 50)
    station = unread(opened, root)

    def failing(*_: object) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(Learner, "_progress", failing)
        with pytest.raises(OSError, match="Input/output"):
            station.engine.relayed.seen(CHANNEL)
    assert station.engine.relayed.seen(CHANNEL).to_json() == {HOST2: {"0": [[0, 200]]}}


def test_the_last_message_of_ones_own_is_not_looked_for_again_and_again(
    opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    station = opened()
    station.publish(CHANNEL, "own")
    station.engine.relayed.arrive(CHANNEL, lines(0, 100))
    before = station.engine.relayed.ends(CHANNEL)
    assert len(before) == 2

    def reading(*_: object) -> None:
        raise AssertionError("the log is read")

    monkeypatch.setattr("heliograph.engine.lastown.LogCursor", reading)
    assert station.engine.relayed.ends(CHANNEL) == before


def test_a_hub_that_never_published_looks_for_nothing(opened: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    station = opened()
    station.engine.relayed.arrive(CHANNEL, lines(0, 100))
    monkeypatch.setattr("heliograph.engine.lastown.LogCursor", None)
    assert set(station.engine.relayed.ends(CHANNEL)) == {(HOST2, 0)}
