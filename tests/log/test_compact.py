"""Latest per key: the newest message of each key is always there, offsets stay, and nobody dies of a crash."""

from __future__ import annotations

import contextlib
import random
import shutil
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import heliograph as hg
from heliograph import disk as disks
from heliograph.admin.verify import verify
from heliograph.log import compact, compactstate, keys, retention
from heliograph.station import Station, open_station
from tests.faults import Died, FaultyDisk, PowerDisk, QuickDisk, SteppedClock
from tests.opening import Opener
from tests.proof.tools import checked_log

CHANNEL = "prices"
KEYS = ("a", "b", "c", "long-" + "x" * 40)
DAY_US = 86_400_000_000
SETTINGS: dict[str, Any] = {"segment_bytes": 4096, "retention_compact": True}


class Published(NamedTuple):
    key: str | None
    data: Any


class Model:
    """Everything that was published, and what a reader must, may and must not see of it."""

    def __init__(self) -> None:
        self.log: list[Published] = []

    def publish(self, station: Station, key: str | None, data: Any) -> None:
        assert station.publish(CHANNEL, data, key=key).offset == len(self.log)
        self.log.append(Published(key, data))

    def newest(self) -> dict[str, int]:
        return {one.key: offset for offset, one in enumerate(self.log) if one.key is not None}

    def check(self, station: Station) -> set[int]:
        """What is there: nothing altered, nothing missing that is newest or has no key, nothing risen again."""
        gaps: list[hg.Gap] = []
        found = {message.offset: message for message in station.read(CHANNEL, on_gap=gaps.append)}
        assert not gaps
        assert {offset: (one.key, one.data) for offset, one in found.items()} == {
            offset: tuple(self.log[offset]) for offset in found
        }
        assert {offset for offset, one in enumerate(self.log) if one.key is None} <= set(found)
        for key, offset in self.newest().items():
            if self.log[offset].data is not None:
                assert offset in found, f"the newest of {key} is gone"
            elif offset not in found:
                assert not [one for one in found.values() if one.key == key], f"{key} is risen from the dead"
        return set(found)

    def check_compacted(self, station: Station) -> None:
        """Behind the last rotation nothing is left to do."""
        found = self.check(station)
        sealed = station.engine.head_fields(CHANNEL, 0).base
        newest: dict[str, int] = {}
        for offset, one in enumerate(self.log[:sealed]):
            if one.key is not None:
                newest[one.key] = offset
        for offset in found:
            key = self.log[offset].key
            assert offset >= sealed or key is None or newest[key] == offset


class QuickFaulty(FaultyDisk):
    """Counts and dies, but does not wait for the platter."""

    def fdatasync(self, fd: int) -> None:
        self._call("fdatasync", lambda _: None, fd)

    def sync_directory(self, path: str | Path) -> None:
        self._call("sync_directory", lambda _: None, path)


def die(station: Station, disk: FaultyDisk) -> None:
    station._upkeep.close()
    station.engine.abandon()
    disk.bury()


def rotate(station: Station) -> None:
    station.engine.write(CHANNEL, 0, lambda partition: partition.rotate())


def partition(root: Path) -> Path:
    return root / "channels" / CHANNEL / "0"


def fill(station: Station, count: int = 120, model: Model | None = None) -> Model:
    """Several segments: keyed ones, a few without a key, a few tombstones."""
    model, luck = model or Model(), random.Random(1)
    for number in range(count):
        key = luck.choice([*KEYS, *KEYS, None])
        dead = key is not None and luck.random() < 0.1
        model.publish(station, key, None if dead else {"n": number, "pad": "x" * luck.choice([0, 50, 200])})
    return model


# -- what is kept --------------------------------------------------------------------------------------------------


def test_the_newest_of_each_key_stays_and_offsets_do(opened: Opener, root: Path) -> None:
    with opened(**SETTINGS) as station:
        model = fill(station)
        rotate(station)
        before = station.channel(CHANNEL)
        station.trim()
        model.check_compacted(station)
        after = station.channel(CHANNEL)
        assert after.next == before.next == 120
        assert after.bytes < before.bytes / 2
        stats = station.stats()
        assert stats.compacted_messages > 60
        assert stats.compacted_bytes == before.bytes - after.bytes - (after.first - before.first)
        assert verify(station).ok
        model.publish(station, "a", {"n": 120})
    checked_log(root, CHANNEL, holes=True)
    with opened(**SETTINGS) as station:
        model.check_compacted(station)


def test_the_active_segment_is_never_touched(opened: Opener, root: Path) -> None:
    with opened(retention_compact=True) as station:
        model = fill(station)
        active = partition(root) / f"{0:020d}.jsonl"
        before = active.read_bytes(), active.stat().st_ino
        station.trim()
        assert (active.read_bytes(), active.stat().st_ino) == before
        assert model.check(station) == set(range(120))


def test_a_channel_that_does_not_ask_for_it_keeps_everything(opened: Opener) -> None:
    with opened(segment_bytes=4096) as station:
        model = fill(station)
        station.trim()
        assert model.check(station) == set(range(120))
        station.alter_channel(CHANNEL, retention_compact=True)
        station.trim()
        model.check_compacted(station)


def test_dead_letters_are_not_versions_of_each_other(opened: Opener) -> None:
    with opened(**SETTINGS, max_retries=0) as station:
        for number in range(60):
            station.publish(CHANNEL, {"n": number, "pad": "x" * 100}, key="a")

        def fail(message: hg.Message) -> None:
            raise ValueError("no")

        with station.subscribe(CHANNEL, fail, name="w", start="first") as subscription:
            while subscription.position < 60:
                pass
        station.trim()
        assert len(list(station.read(f"{CHANNEL}.dead-letter"))) == 60


def test_bytes_and_false_values_are_no_tombstones(opened: Opener) -> None:
    with opened(**SETTINGS, tombstone_grace_s=0) as station:
        values = [b"", 0, False, "", [], {}]
        for number, value in enumerate(values):
            station.publish(CHANNEL, value, key=f"k{number}")
        station.publish(CHANNEL, None)  # no key: deletes nothing
        station.publish(CHANNEL, None, key="gone")
        rotate(station)
        station.trim()
        assert [message.data for message in station.read(CHANNEL)] == [*values, None]
        assert not any(message.tombstone for message in station.read(CHANNEL))


def test_lines_of_other_people_are_kept_whatever_they_are(opened: Opener) -> None:
    """Intact, but no envelope, or with a key that is no text."""
    import google_crc32c

    data = b""
    bodies = [
        b'{"partitionkey":7,"data":null',
        b'{"partitionkey":"a","data":1',
        b"[no envelope",
        b'{"partitionkey":"a"',
    ]
    for body in bodies:
        data += b'%b,"crc":"%08x"}\n' % (body, google_crc32c.value(body))
    assert [(one.offset, one.key, one.tombstone) for one in keys.keyed(data, 10)] == [
        (11, b"a", False),
        (13, b"a", True),
    ]


# -- tombstones ----------------------------------------------------------------------------------------------------


def test_a_tombstone_deletes_at_once_and_goes_after_its_grace(opened: Opener) -> None:
    clock = SteppedClock()
    with opened(**SETTINGS, clock=clock) as station:
        model = Model()
        model.publish(station, "a", {"n": 0})
        model.publish(station, "b", {"n": 1})
        model.publish(station, "a", None)
        rotate(station)
        station.trim()
        assert model.check(station) == {1, 2}
        (tombstone,) = [message for message in station.read(CHANNEL) if message.key == "a"]
        assert tombstone.tombstone
        assert tombstone.data is None
        clock.step_us = DAY_US - 60_000_000
        station.trim()
        assert model.check(station) == {1, 2}
        clock.step_us = DAY_US + 60_000_000
        station.trim()
        assert model.check(station) == {1}
        model.publish(station, "a", {"n": 3})  # born again
        rotate(station)
        station.trim()
        assert model.check(station) == {1, 3}


def test_tombstones_do_not_wait_for_ever_where_nothing_is_published_any_more() -> None:
    terms = compact.Terms(grace_us=1_000, memory_bytes=1, dirty_ratio=0.5)
    sealed = [retention.Sealed(0, 10, 100, 0)]
    waiting = compactstate.State(cleaned=10, tombstone_us=5_000)
    assert not compact.due(waiting, sealed, terms, now_us=6_200)
    assert compact.due(waiting, sealed, terms, now_us=6_300)
    assert compact.due(waiting, sealed, terms, now_us=6_200, forced=True)
    assert not compact.due(waiting, sealed, terms, now_us=5_900, forced=True)


def test_a_tombstone_stays_while_a_damaged_segment_may_hold_what_it_deletes(opened: Opener, root: Path) -> None:
    clock = SteppedClock()
    with opened(**SETTINGS, clock=clock, tombstone_grace_s=60) as station:
        model = Model()
        model.publish(station, "a", {"n": 0})
        for number in range(1, 30):
            model.publish(station, f"k{number}", {"n": number, "pad": "x" * 100})
        rotate(station)
        model.publish(station, "a", None)
        rotate(station)
        path = min(partition(root).glob("*.jsonl"))
        data = path.read_bytes()
        path.write_bytes(data.replace(b'"n":1,', b'"n":7,', 1))
        clock.step_us = 3_600_000_000
        station.trim()
        offsets = [message.offset for message in station.read(CHANNEL)]
        assert {0, 30} <= set(offsets)
        path.write_bytes(data)
        station.trim()  # nothing is new: a mended segment is noticed with the next compaction
        model.publish(station, "b", {"n": 31})
        rotate(station)
        station.trim()
        assert model.check(station) == {*range(1, 30), 31}


# -- memory, and when it is worth it ----------------------------------------------------------------------------------


@pytest.mark.parametrize("memory", [1, 3 * keys.KEY_BYTES, 10 * keys.KEY_BYTES])
def test_many_passes_with_little_memory_do_what_one_does_with_much(
    opened: Opener, root: Path, tmp_path: Path, memory: int
) -> None:
    def run(path: Path, memory_bytes: int) -> tuple[dict[str, bytes], int]:
        with opened(path, segment_bytes=4096) as station:
            luck, model = random.Random(3), Model()
            for number in range(150):
                model.publish(station, f"key-{luck.randrange(25)}", None if luck.random() < 0.1 else {"n": number})
            rotate(station)
            log = station.engine.log(CHANNEL, 0).place
            sealed = retention.survey(log.directory, station.engine.head_fields(CHANNEL, 0).base, QuickDisk())
            terms = compact.Terms(DAY_US, memory_bytes)
            state = compactstate.State()
            now_us = station.engine.clock.time_ns() // 1000
            done = compact.compact(log, sealed, state, terms, now_us, QuickDisk())
            model.check_compacted(station)
            assert verify(station).ok
            kept = [(message.offset, message.data) for message in station.read(CHANNEL)]
            return kept, done.messages

    assert run(tmp_path / "little", memory) == run(tmp_path / "much", 1 << 20)


def test_it_is_done_by_itself_only_when_enough_is_new() -> None:
    terms = compact.Terms(grace_us=0, memory_bytes=1, dirty_ratio=0.5)
    sealed = [retention.Sealed(0, 10, 100, 0), retention.Sealed(10, 20, 60, 0), retention.Sealed(20, 30, 60, 0)]
    assert compact.due(compactstate.State(), sealed, terms, 0)
    assert not compact.due(compactstate.State(cleaned=20), sealed, terms, 0)
    assert compact.due(compactstate.State(cleaned=10), sealed, terms, 0)
    assert compact.due(compactstate.State(cleaned=20), sealed, terms, 0, forced=True)
    assert not compact.due(compactstate.State(cleaned=30), sealed, terms, 0, forced=True)


def test_what_is_known_of_another_life_or_of_a_longer_log_is_not_believed(tmp_path: Path) -> None:
    (tmp_path / compactstate.STATE).write_bytes(b'{"incarnation":"one","cleaned":50,"tombstone_us":3,"skipped":[0]}')
    disk = QuickDisk()
    assert compactstate.load_state(tmp_path, "one", 50, disk).cleaned == 50
    assert compactstate.load_state(tmp_path, "one", 49, disk) == compactstate.State(incarnation="one")
    assert compactstate.load_state(tmp_path, "two", 50, disk) == compactstate.State(incarnation="two")
    (tmp_path / compactstate.STATE).write_bytes(b"{")
    assert compactstate.load_state(tmp_path, "one", 50, disk) == compactstate.State(incarnation="one")


def test_a_second_run_finds_nothing_to_do(opened: Opener, root: Path) -> None:
    with opened(**SETTINGS) as station:
        fill(station)
        rotate(station)
        station.trim()
        inodes = {path.name: path.stat().st_ino for path in partition(root).glob("*.jsonl")}
        station.trim()
        (partition(root) / compactstate.STATE).unlink()  # forgotten: looked at again, with the same result
        station.trim()
        assert {path.name: path.stat().st_ino for path in partition(root).glob("*.jsonl")} == inodes


def test_closing_a_station_does_not_wait_for_a_compaction(opened: Opener) -> None:
    disk = QuickFaulty()
    station = opened(**SETTINGS, disk=disk)
    model = fill(station)
    rotate(station)
    disk.before["rename"] = lambda path, *_: station._upkeep._stop.set()
    station.trim()
    assert station.stats().compacted_messages == 0
    disk.before.clear()
    station.close()
    with opened(**SETTINGS) as station:
        model.check(station)
        station.trim()
        model.check_compacted(station)


# -- crashes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("compressed", [False, True], ids=["plain", "compressed"])
def test_a_crash_at_any_call_leaves_the_old_or_the_new(
    opened: Opener, root: Path, tmp_path: Path, compressed: bool
) -> None:
    clock = SteppedClock()
    with opened(segment_bytes=4096, clock=clock, compress=compressed) as station:
        model = fill(station, 70)
        rotate(station)
        station.trim()
        station.alter_channel(CHANNEL, retention_compact=True, compress=compressed)
    clock.step_us = 2 * DAY_US
    shutil.move(root, tmp_path / "saved")
    died_between = 0
    for number in range(1, 400):
        shutil.copytree(tmp_path / "saved", root)
        disk = QuickFaulty()
        station = opened(disk=disk, clock=clock)
        disk.kill_at(number)
        with contextlib.suppress(Died):
            station.trim()
        finished = not disk.fired
        die(station, disk)
        between = bool(list(partition(root).glob("*.index.next")))
        died_between += between
        with opened(read_only=True) as looking:  # as it is, before anybody recovers
            model.check(looking)
            assert verify(looking).ok, disk.fired
        with opened(clock=clock) as again:
            model.check(again)
            assert verify(again).ok, disk.fired
            assert not list(partition(root).glob("*.index.next"))
            again.trim()
            model.check_compacted(again)
            assert not list(partition(root).glob("*.tmp-*"))
            assert verify(again).ok, disk.fired
        shutil.rmtree(root)
        if finished:
            break
    assert finished
    assert died_between > 3


@pytest.mark.parametrize("seed", [None, 1, 2, 3])
def test_a_power_cut_at_any_call_leaves_the_newest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int | None
) -> None:
    luck = None if seed is None else random.Random(seed)
    saved = tmp_path / "saved"
    with open_station(saved, name="host1", disk=QuickDisk(), **SETTINGS) as station:
        model = fill(station, 50)
        rotate(station)
    for number in range(1 if seed is None else seed, 400, 1 if seed is None else 5):
        root = tmp_path / f"data-{number}"
        shutil.copytree(saved, root)
        monkeypatch.setattr(disks, "boot_id", lambda number=number: bytes([number % 256, number // 256]) * 8)
        disk = PowerDisk(root)
        station = open_station(root, name="host1", disk=disk, **SETTINGS)
        disk.everything_is_durable()
        disk.kill_at(number)
        with contextlib.suppress(Died):
            station.trim()
        finished = not disk.fired
        die(station, disk)
        disk.cut(luck)
        monkeypatch.setattr(disks, "boot_id", lambda number=number: bytes([255, number // 256]) * 8)
        with open_station(root, name="host1", disk=QuickDisk(), **SETTINGS) as again:
            model.check(again)
            again.trim()
            model.check_compacted(again)
        shutil.rmtree(root)
        if finished:
            break
    assert finished


class Story:
    """Lives of a station, ended by closing it or by a killed disk."""

    def __init__(self, compressed: bool) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="heliograph-"))
        self.clock = SteppedClock()
        self.compressed = compressed
        self.model = Model()
        self.open()

    def open(self) -> None:
        self.disk = QuickFaulty()
        self.station = open_station(
            self.root / "data", name="host1", disk=self.disk, clock=self.clock, segment_bytes=4096,
            retention_compact=True, compress=self.compressed, tombstone_grace_s=3600, compact_memory_bytes=1024,
        )  # fmt: skip

    def reopen(self) -> None:
        self.station.close()
        self.open()

    def crash(self, at: int) -> None:
        self.disk.kill_at(at)
        with contextlib.suppress(Died):
            self.station.trim()
        die(self.station, self.disk)
        self.open()

    def step(self, what: tuple[Any, ...]) -> None:
        match what:
            case ("publish", key, size):
                self.model.publish(self.station, key, None if size is None else {"pad": "x" * size})
            case ("rotate",):
                with contextlib.suppress(hg.NotFound):
                    rotate(self.station)
            case ("compact",):
                self.station.trim()
                if self.model.log:
                    self.model.check_compacted(self.station)
            case ("crash", at):
                self.crash(at)
            case ("reopen",):
                self.reopen()
            case ("wait", seconds):
                self.clock.step_us += seconds * 1_000_000
        if self.model.log:
            self.model.check(self.station)

    def end(self) -> None:
        self.station.close()
        shutil.rmtree(self.root)


STEPS = st.one_of(
    st.tuples(st.just("publish"), st.sampled_from([*KEYS, None]), st.sampled_from([0, 10, 900, None])).filter(
        lambda step: step[1] is not None or step[2] is not None
    ),
    st.tuples(st.just("publish"), st.sampled_from(KEYS), st.sampled_from([0, 1500, None])),
    st.sampled_from([("rotate",), ("compact",), ("reopen",), ("wait", 4000)]),
    st.tuples(st.just("crash"), st.integers(1, 40)),
)


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(compressed=st.booleans(), steps=st.lists(STEPS, min_size=5, max_size=40))
def test_whatever_happens_the_newest_of_each_key_is_there(compressed: bool, steps: list[tuple[Any, ...]]) -> None:
    story = Story(compressed)
    try:
        for step in steps:
            story.step(step)
        if story.model.log:
            rotate(story.station)
            story.station.trim()
            story.model.check_compacted(story.station)
            assert verify(story.station).ok
    finally:
        story.end()
