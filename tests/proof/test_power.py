"""The power fails: what was acknowledged with durability `always` is there, whatever was not synced is not.

The disk beneath keeps what a disk without power would: bytes that were synced, names whose directory was synced.
At worst everything else is gone; at random some of it stays, in blocks, zeroed or as garbage.
"""

from __future__ import annotations

import contextlib
import os
import random
from pathlib import Path
from typing import Any

import pytest

import heliograph as hg
from heliograph import disk as disks
from heliograph.station import Station, open_station
from tests.faults import Died, PowerDisk
from tests.proof.tools import checked_log, eventually

CHANNEL = "events"


class Story:
    """Lives of a station on one disk, each ended by a power cut."""

    def __init__(
        self, root: Path, monkeypatch: pytest.MonkeyPatch, durability: str, luck: random.Random | None
    ) -> None:
        self.root = root
        self.durability = durability
        self.luck = luck
        self._patch = monkeypatch
        self.acknowledged: dict[str, str] = {}
        self.offsets: dict[str, int] = {}
        self.lives: list[str] = []
        self._number = 0
        root.mkdir()
        self.boot()

    def boot(self) -> None:
        boot = os.urandom(16)
        self._patch.setattr(disks, "boot_id", lambda: boot)
        self.disk = PowerDisk(self.root)
        self.disk.everything_is_durable()
        self.station = open_station(
            self.root, name="host1", durability=self.durability, segment_bytes=4096, sync_interval_ms=60_000,
            disk=self.disk, position_flush_ms=0,
        )  # fmt: skip

    def publish(self, count: int, dice: random.Random) -> None:
        for _ in range(count):
            self._number += 1
            data = {"n": self._number, "pad": "x" * dice.choice([0, 100, 900, 3000])}
            if dice.random() < 0.7:
                receipts = [self.station.publish(CHANNEL, data)]
            else:
                receipts = self.station.publish_many(CHANNEL, [{**data, "b": self._number, "of": 3}] * 3)
            for receipt in receipts:
                self.acknowledged[receipt.id] = CHANNEL
                self.offsets[receipt.id] = receipt.offset

    def cut(self) -> None:
        """Not even a close: the process is gone with the power."""
        self.lives += [info.incarnation for info in self.station.channels() if info.name == CHANNEL]
        self.die()

    def die(self) -> None:
        for subscription in list(self.station._subscriptions):
            subscription.close()  # its threads would otherwise go on with files that are not theirs any more
        self.station._upkeep.close()
        self.station.engine._committers.close()
        if self.station.engine._syncer is not None:
            self.station.engine._syncer._stop.set()
        self.station.engine.abandon()
        self.disk.bury()
        self.disk.cut(self.luck)

    def check(self) -> None:
        stored = {message["id"]: offset for offset, message in checked_log(self.root, CHANNEL, holes=True).items()}
        lost = set(self.acknowledged) - set(stored)
        assert not lost, f"{len(lost)} acknowledged messages are lost"
        assert {id: stored[id] for id in self.offsets} == self.offsets, "messages moved"


@pytest.fixture
def story(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    def make(durability: str = "always", luck: random.Random | None = None) -> Story:
        return Story(tmp_path / f"data-{random.random()}", monkeypatch, durability, luck)

    return make


def test_at_worst_everything_acknowledged_is_still_there(story: Any) -> None:
    one = story()
    dice = random.Random(1)
    for _ in range(6):
        one.publish(12, dice)
        one.cut()
        one.boot()
        one.check()
    read = [message.id for message in one.station.read(CHANNEL)]
    assert set(one.acknowledged) <= set(read)
    one.station.close()


@pytest.mark.parametrize("seed", range(8))
def test_whatever_random_part_of_the_rest_survives_the_log_is_sound(story: Any, seed: int) -> None:
    lucky(story, seed)


@pytest.mark.prove
@pytest.mark.parametrize("seed", range(8, 300))
def test_whatever_random_part_of_the_rest_survives_the_log_is_sound_many_times(story: Any, seed: int) -> None:
    lucky(story, seed)


def lucky(story: Any, seed: int) -> None:
    """The power fails at a random call of the disk, in the middle of whatever was going on."""
    dice = random.Random(seed)
    one = story("always", dice)
    one.publish(3, dice)
    for _ in range(4):
        one.disk.kill_at(dice.randint(1, 60))
        with contextlib.suppress(Died):
            one.publish(30, dice)
        one.die()
        one.boot()
        one.check()
        data = [message.data for message in one.station.read(CHANNEL)]
        batches = [item["b"] for item in data if "b" in item]
        assert all(batches.count(batch) == 3 for batch in batches), "half a batch"
        one.publish(2, dice)
        one.check()
    one.station.close()


def test_a_batch_that_was_acknowledged_is_there_whole(story: Any) -> None:
    one = story()
    receipts = one.station.publish_many(CHANNEL, [{"n": n, "pad": "x" * 1000} for n in range(50)])
    one.cut()
    one.boot()
    assert [message.id for message in one.station.read(CHANNEL)] == [receipt.id for receipt in receipts]
    one.station.close()


@pytest.mark.parametrize("durability", ["interval", "os"])
def test_what_was_seen_unsynced_and_taken_back_begins_a_new_life(story: Any, durability: str) -> None:
    one = story(durability)
    for number in range(5):
        one.station.publish(CHANNEL, {"n": number})
    one.station.sync()
    one.station.publish(CHANNEL, {"n": 5})
    assert len(list(one.station.read(CHANNEL))) == 6  # somebody saw it
    one.cut()
    one.boot()
    assert [message.data["n"] for message in one.station.read(CHANNEL)] == list(range(5))
    assert one.station.channel(CHANNEL).incarnation != one.lives[0]
    one.station.close()


def test_sync_makes_everything_durable_whatever_the_durability(story: Any) -> None:
    for durability in ("interval", "os"):
        one = story(durability)
        dice = random.Random(2)
        one.publish(20, dice)
        one.station.sync()
        one.cut()
        one.boot()
        one.check()
        one.station.close()


def test_close_makes_everything_durable_whatever_the_durability(story: Any) -> None:
    for durability in ("interval", "os"):
        one = story(durability)
        one.publish(20, random.Random(3))
        one.station.close()
        one.disk.cut()
        one.boot()
        one.check()
        one.station.close()


def test_a_durable_subscription_is_still_there_and_where_it_was_or_before(story: Any) -> None:
    """One that began at "new" must not begin there once more: what came between would be lost to it."""
    one = story()
    one.station.publish(CHANNEL, {"n": 0})
    one.station.subscribe(CHANNEL, print, name="worker", start="new", paused=True)
    for number in range(1, 4):
        one.station.publish(CHANNEL, {"n": number})
    one.cut()
    one.boot()
    got: list[int] = []
    one.station.publish(CHANNEL, {"n": 4})
    one.station.subscribe(CHANNEL, lambda message: got.append(message.data["n"]), name="worker", start="new")
    eventually(lambda: len(got) == 4)
    assert got == [1, 2, 3, 4]
    one.station.close()


def test_a_saved_position_is_never_ahead_of_the_log(story: Any) -> None:
    for durability in ("always", "interval", "os"):
        one = story(durability)
        got: list[int] = []
        subscription = one.station.subscribe(
            CHANNEL, lambda message, got=got: got.append(message.offset), name="worker", start="first"
        )
        one.publish(10, random.Random(4))
        eventually(
            lambda subscription=subscription, one=one: subscription.position == one.station.channel(CHANNEL).next
        )
        eventually(lambda subscription=subscription: subscription.stats().saved_position == subscription.position)
        one.cut()
        one.boot()
        info = one.station.subscriptions()[0]
        assert info.offset <= one.station.channel(CHANNEL).next
        one.station.close()


def test_a_channel_that_was_acknowledged_is_there_with_its_settings(story: Any) -> None:
    one = story()
    one.station.create_channel("fresh", retention_bytes=123_456)
    one.station.create_channel("altered")
    one.station.alter_channel("altered", compress=True)
    one.station.publish(CHANNEL, {"n": 0})
    one.cut()
    one.boot()
    assert one.station.channel("fresh").settings.retention_bytes == 123_456
    assert one.station.channel("altered").settings.compress is True
    one.station.close()


def test_a_deleted_channel_stays_deleted(story: Any) -> None:
    one = story()
    one.station.publish("doomed", 1)
    one.station.publish(CHANNEL, {"n": 0})
    one.station.delete_channel("doomed")
    one.cut()
    one.boot()
    assert [info.name for info in one.station.channels()] == [CHANNEL]
    one.station.close()


def test_a_redacted_message_stays_redacted(story: Any) -> None:
    one = story()
    receipts = [one.station.publish(CHANNEL, {"n": n, "secret": f"secret-{n}"}) for n in range(5)]
    one.station.redact(receipts[2].id)
    one.cut()
    one.boot()
    assert [message.data["n"] for message in one.station.read(CHANNEL)] == [0, 1, 3, 4]
    left = b"".join(path.read_bytes() for path in one.root.rglob("*") if path.is_file())
    assert b"secret-2" not in left
    assert b"secret-3" in left
    one.station.close()


def test_compressing_is_safe_whenever_the_power_fails(story: Any) -> None:
    for number in range(1, 60):
        one = story()
        one.publish(6, random.Random(5))
        one.station.alter_channel(CHANNEL, compress=True)
        one.disk.kill_at(number)
        with contextlib.suppress(Died):
            one.station.trim()
        finished = not one.disk.fired
        one.die()
        one.boot()
        one.check()
        assert len(list(one.station.read(CHANNEL))) == len(one.acknowledged)
        one.station.close()
        if finished:
            break
    assert finished


def test_retention_is_safe_whenever_the_power_fails(story: Any) -> None:
    for number in range(1, 60):
        one = story()
        for n in range(30):
            one.station.publish(CHANNEL, {"n": n, "pad": "x" * 500})
        one.station.alter_channel(CHANNEL, retention_bytes=8000)
        one.disk.kill_at(number)
        with contextlib.suppress(Died):
            one.station.trim()
        finished = not one.disk.fired
        one.die()
        one.boot()
        left = [message.data["n"] for message in one.station.read(CHANNEL)]
        assert left == list(range(left[0], 30)), "a hole, or an end that moved"
        assert one.station.publish(CHANNEL, {"n": 30}).offset == 30
        one.station.close()
        if finished:
            break
    assert finished


def test_the_simulated_disk_does_lose_what_was_not_synced(tmp_path: Path) -> None:
    """The check of the check: without syncs the power cut takes everything."""

    class Forgetful(PowerDisk):
        def fdatasync(self, fd: int) -> None:
            pass

    disk = Forgetful(tmp_path)
    disk.everything_is_durable()
    station: Station = open_station(tmp_path, name="host1", disk=disk)
    station.publish(CHANNEL, 1)
    station._upkeep.close()
    station.engine.abandon()
    disk.bury()
    disk.cut()
    assert not [path for path in tmp_path.rglob("*.jsonl") if path.stat().st_size]


def test_a_message_survives_even_though_hg_open_made_the_directory_just_now(story: Any) -> None:
    one = story()
    receipt: hg.Receipt = one.station.publish("brand-new", 1)
    one.cut()
    one.boot()
    assert next(iter(one.station.read("brand-new"))).id == receipt.id
    one.station.close()
