"""Positions and leases as files."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

import heliograph as hg
from heliograph.disk import Disk
from heliograph.engine.port import Position
from heliograph.engine.positions import Positions
from tests.faults import Died, FaultyDisk
from tests.opening import Opener
from tests.proof.tools import eventually

CHANNEL = "events"


@pytest.fixture
def positions(root: Path) -> Positions:
    (root / "subscriptions").mkdir(parents=True)
    return Positions(root, Disk())


def test_a_position_comes_back_as_it_was_saved(positions: Positions) -> None:
    assert positions.load(CHANNEL, "w", 0) is None
    for offset in (0, 1, 2**62):
        position = Position("k3f9q2", offset, "0192-x", 123)
        positions.save(CHANNEL, "w", 0, position)
        assert positions.load(CHANNEL, "w", 0) == position
    assert positions.names(CHANNEL) == ["w"]
    assert positions.all() == [(CHANNEL, "w")]


def test_a_position_is_the_old_or_the_new_one_whenever_its_process_dies(root: Path) -> None:
    (root / "subscriptions").mkdir(parents=True)
    old, new = Position("a", 1), Position("a", 2)
    for number in range(1, 20):
        Positions(root, Disk()).save(CHANNEL, "w", 0, old)
        disk = FaultyDisk()
        disk.kill_at(number)
        try:
            Positions(root, disk).save(CHANNEL, "w", 0, new)
        except Died:
            disk.bury()
        found = Positions(root, Disk()).load(CHANNEL, "w", 0)
        assert found in (old, new)
        if not disk.fired:
            assert found == new
            break
    assert number > 3


def test_a_damaged_position_says_how_to_set_it(positions: Positions, root: Path) -> None:
    positions.save(CHANNEL, "w", 0, Position("a", 1))
    for content in (b"", b"{", b"[]", b'{"offset":"x"}', b"\xff"):
        (root / "subscriptions" / CHANNEL / "w" / "0.json").write_bytes(content)
        with pytest.raises(hg.Damaged, match="helio subscriptions seek"):
            positions.load(CHANNEL, "w", 0)


def test_a_lease_is_one_s_alone_and_free_when_released(positions: Positions) -> None:
    lease = positions.lease(CHANNEL, "w")
    assert positions.live(CHANNEL, "w")
    with pytest.raises(hg.SubscriptionBusy, match=str(os.getpid())):
        positions.lease(CHANNEL, "w")
    positions.lease(CHANNEL, "other").release()
    lease.release()
    lease.release()
    assert not positions.live(CHANNEL, "w")
    positions.lease(CHANNEL, "w").release()
    assert not positions.live(CHANNEL, "nobody")


def test_looking_whether_somebody_is_live_does_not_make_a_subscriber_busy(positions: Positions) -> None:
    """`helio subscriptions` in a loop must not keep anybody from subscribing."""
    positions.lease(CHANNEL, "w").release()
    stop = threading.Event()

    def look() -> None:
        while not stop.is_set():
            positions.live(CHANNEL, "w")

    threads = [threading.Thread(target=look) for _ in range(4)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(300):
            positions.lease(CHANNEL, "w").release()
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def test_two_who_look_at_once_do_not_take_each_other_for_a_subscriber(positions: Positions) -> None:
    positions.lease(CHANNEL, "w").release()
    seen: list[bool] = []
    threads = [
        threading.Thread(target=lambda: seen.extend(positions.live(CHANNEL, "w") for _ in range(500))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(seen) == 2000
    assert not any(seen)


def test_a_name_forgotten_while_another_takes_its_lease_ends_well_for_both(positions: Positions) -> None:
    for _ in range(200):
        errors: list[BaseException] = []

        def forget(errors: list[BaseException] = errors) -> None:
            try:
                lease = positions.lease(CHANNEL, "w")
                positions.forget(CHANNEL, "w")
                lease.release()
            except hg.SubscriptionBusy:
                pass
            except BaseException as error:
                errors.append(error)

        def take(errors: list[BaseException] = errors) -> None:
            try:
                lease = positions.lease(CHANNEL, "w")
                positions.save(CHANNEL, "w", 0, Position("a", 1))
                assert positions.live(CHANNEL, "w")
                lease.release()
            except hg.SubscriptionBusy:
                pass
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=forget), threading.Thread(target=take)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not errors, errors


@pytest.mark.parametrize("durability", ["interval", "os"])
def test_a_position_is_saved_only_after_what_it_covers_is_synced(opened: Opener, durability: str) -> None:
    disk = FaultyDisk()
    with opened(durability=durability, sync_interval_ms=60_000, disk=disk, position_flush_ms=1) as station:
        got: list[int] = []
        subscription = station.subscribe(CHANNEL, lambda message: got.append(message.offset), name="w", start="first")
        disk.recording = True
        station.publish_many(CHANNEL, [1, 2, 3])
        eventually(lambda: subscription.stats().saved_position == 3)
        calls = list(disk.journal)
        saved = max(at for at, (kind, path) in enumerate(calls) if kind == "rename" and "/w/" in path)
        synced = [at for at, (kind, path) in enumerate(calls) if kind == "fdatasync" and path.endswith(".jsonl")]
        assert synced
        assert min(synced) < saved


def test_a_position_is_not_saved_if_what_it_covers_cannot_be_synced(opened: Opener) -> None:
    disk = FaultyDisk()
    station = opened(durability="os", disk=disk, position_flush_ms=1)
    got: list[int] = []
    subscription = station.subscribe(CHANNEL, lambda message: got.append(message.offset), name="w", start="first")
    disk.fail("fdatasync", path=".jsonl", times=1000)
    station.publish_many(CHANNEL, [1, 2, 3])
    eventually(lambda: got == [0, 1, 2] and subscription.stats().position_errors > 0)
    assert station.subscriptions()[0].offset == 0
    disk.heal()
    with pytest.raises(hg.StorageError):
        station.close()
    station.engine.close()


def test_seek_moves_a_subscription_within_what_there_is(opened: Opener) -> None:
    with opened() as station:
        station.publish_many(CHANNEL, list(range(10)))
        station.subscribe(CHANNEL, print, name="w", start="new", paused=True).close()
        for to, after in ((3, 3), ("first", 0), ("new", 10), (99, 10), ("-9d", 0), ("5", 5)):
            looked = station.seek(CHANNEL, "w", to, dry_run=True)
            assert not looked.applied
            result = station.seek(CHANNEL, "w", to)
            assert (result.after, result.applied, result.lag) == (after, True, 10 - after)
            assert looked.after == after
            assert station.subscriptions()[0].offset == after
        got: list[int] = []
        with station.subscribe(CHANNEL, lambda message: got.append(message.data), name="w") as subscription:
            eventually(lambda: subscription.position == 10)
        assert got == [5, 6, 7, 8, 9]
        with pytest.raises(hg.NotFound):
            station.seek(CHANNEL, "nobody", 0)
        assert [info.name for info in station.subscriptions()] == ["w"], "seeking made a subscription"
        with pytest.raises(hg.NotFound):
            station.forget(CHANNEL, "nobody")
        station.forget(CHANNEL, "w")
        assert station.subscriptions() == []


def test_the_list_of_subscriptions_says_how_far_each_is_behind(opened: Opener) -> None:
    with opened() as station:
        station.publish_many(CHANNEL, list(range(10)))
        station.subscribe(CHANNEL, print, name="done", start="new", paused=True).close()
        station.subscribe(CHANNEL, print, name="idle", start=4, paused=True).close()
        done, idle = station.subscriptions(CHANNEL)
        assert (done.lag, done.lag_s, done.live) == (0, 0.0, False)
        assert (idle.lag, idle.offset) == (6, 4)
        assert idle.lag_s is not None
        assert idle.lag_s >= 0
        assert station.subscriptions("elsewhere") == []


def test_a_subscription_has_begun_when_it_has_a_position(positions: Positions) -> None:
    assert not positions.begun("alerts", "worker-1")
    lease = positions.lease("alerts", "worker-1")
    assert not positions.begun("alerts", "worker-1"), "it may still choose to begin behind what is there now"
    positions.claim_kind("alerts", "worker-1", "group")
    assert not positions.begun("alerts", "worker-1")
    positions.save("alerts", "worker-1", 3, Position("abc", 1, "", 0))
    assert positions.begun("alerts", "worker-1")
    for name in ("", ".", "..", "../alerts/worker-1", "worker-2"):
        assert not positions.begun("alerts", name), name
    lease.release()
