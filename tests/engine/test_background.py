"""The engine's own threads: asleep when there is nothing to do, and awake when there is."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

import heliograph as hg
from heliograph.engine import background
from heliograph.engine.background import Syncer
from heliograph.log.locks import AppendLock, Served
from heliograph.log.partition import Partition
from tests.opening import Opener
from tests.proof.tools import eventually

CHANNEL = "events"


@pytest.fixture
def station(opened: Opener) -> hg.Station:
    return opened(durability="interval", sync_interval_ms=10)


def syncer(station: hg.Station) -> Syncer:
    found = station.engine._syncer
    assert found is not None
    return found


def partition(station: hg.Station) -> Partition:
    found = station.engine._open.use(CHANNEL, 0, lambda entry: entry.log)
    assert isinstance(found, Partition)
    return found


def unsynced(station: hg.Station) -> int:
    log = partition(station)
    return log.bounds(synced=False).next - log.bounds(synced=True).next


def test_what_is_written_while_nobody_syncs_any_more_is_synced_all_the_same(station: hg.Station) -> None:
    for number in range(5):
        eventually(lambda: syncer(station).asleep)
        station.publish(CHANNEL, number)
        eventually(lambda: unsynced(station) == 0)


def test_so_is_a_batch_and_what_is_published_by_many_at_once(station: hg.Station) -> None:
    station.publish(CHANNEL, 0)
    for _ in range(3):
        eventually(lambda: syncer(station).asleep)
        threads = [
            threading.Thread(target=station.publish_many, args=(CHANNEL, [1, 2])),
            threading.Thread(target=station.publish, args=(CHANNEL, 3)),
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        eventually(lambda: unsynced(station) == 0)


def woken_by_handing_in(station: hg.Station, answers: list[int], monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether a sleeping syncer is woken by a message that another process appends, asked as often as it takes."""
    station.publish(CHANNEL, 0)
    log, left, woken = partition(station), iter(answers), threading.Event()
    eventually(lambda: syncer(station).asleep)

    class Tray:
        def hand_in(self, *_: Any) -> int:
            return next(left)

        wait = hand_in

    def served(*_: Any) -> None:
        raise Served

    log._hands_in = True
    with monkeypatch.context() as patched:
        patched.setattr(log, "_tray", Tray())
        patched.setattr(AppendLock, "acquire", served)
        patched.setattr(syncer(station), "wake", woken.set)
        with log.mutex:
            assert log._hand_in(b"{}", 1) == answers[-1]
    log._hands_in, log._owed = False, 0
    return woken.is_set()


@pytest.mark.parametrize("answers", [[0], [-1, 1]], ids=["at once", "when it is rung for"])
def test_what_another_process_appends_for_this_one_is_synced_too(
    station: hg.Station, answers: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert woken_by_handing_in(station, answers, monkeypatch)


def test_nobody_sleeps_while_a_lock_is_kept_for_the_next_append(station: hg.Station) -> None:
    station.publish(CHANNEL, 0)
    log = partition(station)
    eventually(lambda: syncer(station).asleep)
    assert not log.astir
    with log.mutex, log.locked():
        assert log.astir  # whoever has the lock appends without another word


def test_an_idle_station_syncs_nothing_and_looks_for_nothing(
    station: hg.Station, monkeypatch: pytest.MonkeyPatch
) -> None:
    station.publish(CHANNEL, 0)
    eventually(lambda: syncer(station).asleep)
    looks: list[int] = []
    monkeypatch.setattr(syncer(station), "_partitions", lambda: looks.append(1) or [])
    time.sleep(0.1 + 5 * background.SYNC_LOOKS_MAX * 0.01)
    assert looks == []


def test_closing_does_not_wait_for_whoever_sleeps(opened: Opener) -> None:
    station = opened(durability="interval", sync_interval_ms=10)
    station.publish(CHANNEL, 0)
    eventually(lambda: syncer(station).asleep)
    station.close()
    assert not syncer(station)._thread.is_alive()


def test_closing_while_it_falls_asleep_ends_it() -> None:
    about_to_sleep, closing = threading.Event(), threading.Event()

    class Wake(threading.Event):
        def clear(self) -> None:
            if not self.is_set():  # the first time: whoever closes comes right before
                about_to_sleep.set()
                closing.wait(10)
            super().clear()

        def set(self) -> None:
            super().set()
            closing.set()

    found = Syncer(0.001, list)
    found._wake = Wake()
    assert about_to_sleep.wait(10)
    closer = threading.Thread(target=found.close, daemon=True)
    closer.start()
    closer.join(5)
    hung = closer.is_alive()
    found.wake()  # else it would stay
    assert not hung
