"""Atomic steps: over several channels, and with positions, everything happens or nothing does."""

from __future__ import annotations

import errno
import threading
from pathlib import Path
from typing import Any

import pytest

import heliograph as hg
from heliograph.admin.verify import verify
from heliograph.engine.positions import Position
from heliograph.engine.steps import Steps
from tests.faults import Died, FaultyDisk
from tests.opening import Opener
from tests.proof.tools import eventually


def data_of(station: hg.Station, channel: str) -> list[Any]:
    if channel not in {info.name for info in station.channels()}:
        return []
    return [message.data for message in station.read(channel)]


def records(root: Path) -> list[str]:
    return sorted(path.name for path in (root / "atomic").iterdir()) if (root / "atomic").exists() else []


def test_a_step_over_several_channels(opened: Opener, root: Path) -> None:
    with opened() as station:
        with station.atomic() as step:
            ids = [step.publish("a", 1), step.publish("b", 2, key="k"), step.publish("a", 3)]
            assert data_of(station, "a") == []
        assert [(one.id, one.channel, one.offset) for one in step.receipts] == [
            (ids[0], "a", 0),
            (ids[1], "b", 0),
            (ids[2], "a", 1),
        ]
        assert (data_of(station, "a"), data_of(station, "b")) == ([1, 3], [2])
        assert {stats.channel: stats.published for stats in station.stats().channels} == {"a": 2, "b": 1}
    assert records(root) == []


def test_an_exception_in_the_block_leaves_nothing(opened: Opener, root: Path) -> None:
    with opened() as station:
        with pytest.raises(ZeroDivisionError), station.atomic() as step:
            step.publish("a", 1)
            raise ZeroDivisionError
        with pytest.raises(hg.InvalidMessage), station.atomic() as step:
            step.publish("a", 1)
            step.publish("a", object())
        assert data_of(station, "a") == []
        with pytest.raises(hg.HeliographError, match="has ended"):
            step.publish("a", 1)
        with station.atomic():
            pass
    assert records(root) == []


def test_what_cannot_be_recorded_does_not_happen(opened: Opener, root: Path) -> None:
    disk = FaultyDisk()
    with opened(disk=disk) as station:
        disk.fail("fdatasync", errno.ENOSPC, path="atomic")
        with pytest.raises(hg.DiskFull), station.atomic() as step:
            step.publish("a", 1)
        disk.heal()
        assert (data_of(station, "a"), records(root)) == ([], [])


def test_what_is_recorded_happens_though_the_disk_fills_up_meanwhile(opened: Opener, root: Path) -> None:
    disk = FaultyDisk()
    with opened(disk=disk) as station:
        station.publish("b", 0)
        disk.fail("pwrite", errno.ENOSPC, path="/b/", times=1000)
        with pytest.raises(hg.OutcomeUnknown, match="do not repeat it"), station.atomic() as step:
            step.publish("a", 1)
            step.publish("b", 2)
        disk.heal()
        station.trim()  # the upkeep
        assert (data_of(station, "a"), data_of(station, "b")) == ([1], [0, 2])
    assert records(root) == []


def abandon(station: hg.Station) -> None:
    """As if its process had died."""
    for thread_owner in (station._upkeep, station.engine._committers, station.engine._keeper):
        thread_owner.close()
    if station.engine._syncer is not None:
        station.engine._syncer._stop.set()
    station.engine.abandon()


@pytest.mark.parametrize("durability", ["always", "interval"])
def test_dying_at_any_call_it_happens_whole_or_not_at_all(opened: Opener, root: Path, durability: str) -> None:
    number, survived = 0, False
    while not survived:
        number += 1
        disk = FaultyDisk()
        station = opened(disk=disk, durability=durability)
        for channel in ("a", "b", "in"):
            station.publish(channel, "first")
        message = next(station.read("in"))
        station.subscribe("in", lambda _: None, name="bridge", start="first", paused=True).close()
        disk.kill_at(number)
        try:
            with station.atomic() as step:
                step.publish("a", 1)
                step.publish("b", 2)
                step.publish("a", 3)
                step.commit(message, "bridge")
            survived = not disk.dead
        except (Died, hg.OutcomeUnknown):
            pass
        abandon(station)
        disk.bury()
        with opened() as after:
            position = after.engine.load_position("in", "bridge", 0)
            found = (data_of(after, "a"), data_of(after, "b"), position.offset if position else 0)
            assert found in ((["first"], ["first"], 0), (["first", 1, 3], ["first", 2], 1)), f"death at {number}"
            assert not survived or found[2] == 1
            assert records(root) == []
            for channel in ("a", "b", "in"):
                after.delete_channel(channel)
    assert number > 8


def test_a_bridge_is_exactly_once_though_it_ends_after_each_step(opened: Opener) -> None:
    """Its position is never saved by itself: only the step does."""
    with opened() as station:
        station.publish_many("in", list(range(5)))
    for life in range(5):
        station = opened(position_flush_ms=600_000)
        done: list[int] = []

        def handle(message: hg.Message, station: hg.Station = station, done: list[int] = done) -> None:
            if done:
                raise hg.RetryLater(3600)  # one per life
            with station.atomic() as step:
                step.publish("out", message.data * 10)
                step.commit(message, "bridge")
            done.append(message.data)

        subscription = station.subscribe("in", handle, name="bridge", start="first")
        eventually(lambda done=done: done)
        assert done == [life]
        subscription.close()
        station.close()
    with opened() as station:
        assert data_of(station, "out") == [0, 10, 20, 30, 40]


def test_a_position_that_is_flushed_while_the_handler_still_runs_does_not_go_back(opened: Opener) -> None:
    with opened() as station:
        station.publish("in", 1)
        message = next(station.read("in"))
        station.subscribe("in", lambda _: None, name="bridge", start="first", paused=True).close()
        before = station.engine.load_position("in", "bridge", 0)
        with station.atomic() as step:
            step.publish("out", 1)
            step.commit(message, "bridge")
        assert before is not None
        station.engine.save_position("in", "bridge", 0, before)  # as the flusher does
        after = station.engine.load_position("in", "bridge", 0)
        assert after is not None
        assert after.offset == 1
        station.seek("in", "bridge", 0)
        sought = station.engine.load_position("in", "bridge", 0)
        assert sought is not None
        assert sought.offset == 0


def test_committing_for_a_subscription_that_is_not_there_is_an_error(opened: Opener) -> None:
    with opened() as station:
        station.publish("in", 1)
        message = next(station.read("in"))
        with pytest.raises(hg.NotFound, match="no subscription 'bridge'"), station.atomic() as step:
            step.commit(message, "bridge")
        with pytest.raises(hg.InvalidName), station.atomic() as step:
            step.commit(message, "../etc")


def test_a_queue_has_no_position_that_a_step_could_commit(opened: Opener) -> None:
    with opened() as station, station.queue("in", "pile") as queue:
        station.publish("in", 1)
        (job,) = queue.receive(wait_s=30)
        with pytest.raises(hg.ConfigError, match="is a queue"), station.atomic() as step:
            step.publish("out", 1)
            step.commit(job.message, "pile")
        assert data_of(station, "out") == []
        assert [one.offset for one in station.subscriptions("in")] == [0]


def test_of_two_attempts_at_one_message_that_overlap_one_happens(opened: Opener) -> None:
    """A plain handler that takes too long is left behind, not ended: it goes on beside the next attempt."""
    with opened() as station:
        station.publish("in", 1)
        steps: list[hg.Step] = []
        second, left_behind = threading.Event(), threading.Event()

        def handle(message: hg.Message) -> None:
            with station.atomic() as step:
                step.commit(message, "bridge")
                steps.append(step)
                if len(steps) == 1:
                    second.wait(30)
                else:
                    second.set()
                    left_behind.wait(30)
                step.publish("out", message.data)
            left_behind.set()

        once_more = hg.Retry(max_retries=1, base_s=0.0)
        with station.subscribe("in", handle, name="bridge", start="first", timeout_s=0.2, retry=once_more):
            eventually(lambda: len(steps) == 2 and any(one.already_done for one in steps))
        assert sorted(one.already_done for one in steps) == [False, True]
        assert data_of(station, "out") == [1]


def two_at_one_message(opened: Opener, **first: Any) -> tuple[hg.Station, hg.Station, hg.Message]:
    """Two stations on one directory, as in two processes, and a message that both may be at."""
    one, other = opened(**first), opened()
    one.publish("in", 1)
    one.create_channel("out")
    one.subscribe("in", lambda _: None, name="bridge", start="first", paused=True).close()
    return one, other, next(one.read("in"))


def bridged(station: hg.Station, message: hg.Message) -> bool:
    """Take the step; whether it was done before."""
    with station.atomic() as step:
        step.publish("out", message.data)
        step.commit(message, "bridge")
    return step.already_done


def test_of_two_processes_at_one_message_one_takes_the_step(
    opened: Opener, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other, message = two_at_one_message(opened)
    real, recording, go_on = Steps._write, threading.Event(), threading.Event()

    def slow(steps: Steps, record: Any) -> Any:
        if steps is one.engine.steps:
            recording.set()
            assert go_on.wait(30)
        return real(steps, record)

    monkeypatch.setattr(Steps, "_write", slow)
    done: dict[str, bool] = {}
    threads = [
        threading.Thread(target=lambda name=name, station=station: done.update({name: bridged(station, message)}))
        for name, station in (("one", one), ("other", other))
    ]
    threads[0].start()
    assert recording.wait(30)  # it has asked whether that is done, and nothing is on disk yet
    threads[1].start()
    threads[1].join(0.3)  # it waits for the other, or overtakes it
    go_on.set()
    for thread in threads:
        thread.join()
    assert done == {"one": False, "other": True}
    assert (data_of(other, "out"), records(root)) == ([1], [])


def test_who_is_second_after_a_death_finds_the_step_or_takes_it(opened: Opener, root: Path) -> None:
    number, survived = 0, False
    while not survived:
        number += 1
        disk = FaultyDisk()
        one, other, message = two_at_one_message(opened, disk=disk)
        disk.kill_at(number)
        try:
            bridged(one, message)
            survived = not disk.dead
        except (Died, hg.OutcomeUnknown):
            pass
        abandon(one)
        disk.bury()
        bridged(other, message)
        position = other.engine.load_position("in", "bridge", 0)
        assert position is not None
        assert (data_of(other, "out"), position.offset, records(root)) == ([1], 1, []), f"death at {number}"
        for channel in ("in", "out"):
            other.delete_channel(channel)
        other.close()
    assert number > 8


def test_a_part_whose_channel_was_deleted_meanwhile_is_dropped_and_audited(opened: Opener, root: Path) -> None:
    disk = FaultyDisk()
    with opened(disk=disk, auto_create=False) as station:
        station.create_channel("a")
        station.create_channel("b")
        disk.fail("pwrite", errno.ENOSPC, path="/channels/", times=1000)
        with pytest.raises(hg.OutcomeUnknown), station.atomic() as step:
            step.publish("a", 1)
            step.publish("b", 2)
        disk.heal()
        station.delete_channel("b")
        station.trim()
        assert data_of(station, "a") == [1]
    assert records(root) == []
    assert "atomic-part-dropped" in (root / "audit" / "audit.jsonl").read_text()


def test_a_handler_that_is_called_again_after_its_step_had_happened_does_nothing_twice(opened: Opener) -> None:
    disk = FaultyDisk()
    with opened(disk=disk) as station:
        for channel in ("in", "out", "audit"):
            station.publish(channel, 0)
        calls: list[int] = []

        def handle(message: hg.Message) -> None:
            calls.append(message.data)
            if len(calls) == 1:
                disk.fail("write", errno.ENOSPC, path="/audit/", times=1000)
            else:
                disk.heal()
            with station.atomic() as step:
                step.publish("out", message.data)
                step.publish("audit", message.data)
                step.commit(message, "bridge")
            assert step.already_done

        station.publish("in", 1)
        with station.subscribe("in", handle, name="bridge", start=1) as subscription:
            eventually(lambda: subscription.position == 2)
        assert calls == [1, 1]
        station.trim()
        assert (data_of(station, "out"), data_of(station, "audit")) == ([0, 1], [0, 1])


def test_seeking_back_does_it_again(opened: Opener) -> None:
    with opened() as station:
        station.publish("in", 1)

        def handle(message: hg.Message) -> None:
            with station.atomic() as step:
                step.publish("out", message.data)
                step.commit(message, "bridge")

        for _ in range(2):
            with station.subscribe("in", handle, name="bridge", start="first") as subscription:
                eventually(lambda subscription=subscription: subscription.position == 1)
            station.seek("in", "bridge", "first")
        assert data_of(station, "out") == [1, 1]


def test_a_look_for_what_the_dead_left_does_not_disturb_a_step_that_begins(
    opened: Opener, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever takes a partition over looks there, and may find a record in the moment before it is locked."""
    with opened() as station:
        disk, looked = type(station.engine.disk), []
        original = disk.open

        def looking(self: Any, path: Any, *arguments: Any) -> Any:
            found = original(self, path, *arguments)
            if not looked and str(path).endswith(".tmp"):
                looked.append(path)
                station.engine.steps.recover()
            return found

        station.publish("a", 0)
        station.publish("b", 0)
        monkeypatch.setattr(disk, "open", looking)
        with station.atomic() as step:
            step.publish("a", 1)
            step.publish("b", 1)
        assert looked
        assert (data_of(station, "a"), data_of(station, "b")) == ([0, 1], [0, 1])
    assert records(root) == []


def test_a_position_that_is_saved_slowly_does_not_undo_that_of_a_step(
    opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a process that is killed right then has its successor take the step once more."""
    with opened() as station:
        station.publish_many("in", [1, 2])
        first, second = station.read("in")
        station.subscribe("in", lambda _: None, name="bridge", start="first", paused=True).close()
        engine = station.engine
        real, saving, go_on = engine.positions.save, threading.Event(), threading.Event()

        def slowly(channel: str, subscription: str, partition: int, position: Any) -> None:
            if position.offset == 1:
                saving.set()
                go_on.wait(10)
            real(channel, subscription, partition, position)

        monkeypatch.setattr(engine.positions, "save", slowly)
        before = Position(engine.incarnation("in"), 1, first.id, 0)
        slow = threading.Thread(target=engine.save_position, args=("in", "bridge", 0, before))
        slow.start()
        assert saving.wait(10)

        def step() -> None:
            with station.atomic() as one:
                one.publish("out", second.data)
                one.commit(second, "bridge")

        quick = threading.Thread(target=step)
        quick.start()
        quick.join(0.3)  # it waits for the other, or overtakes it
        go_on.set()
        slow.join()
        quick.join()
        found = engine.positions.load("in", "bridge", 0)
        assert found is not None and found.offset == 2


def test_a_step_that_cannot_be_finished_yet_stops_nobody_whom_it_does_not_concern(opened: Opener, root: Path) -> None:
    disk = FaultyDisk()
    settings = {"segment_bytes": 4096, "retention_bytes": 4096}
    with opened(disk=disk) as station:
        for channel in ("a", "b"):
            station.create_channel(channel, **settings)
            station.publish_many(channel, ["x" * 1000] * 3)
            station.publish_many(channel, ["x" * 1000] * 3)
        message = next(station.read("b"))
        for name in ("bridge", "other"):
            station.subscribe("b", lambda _: None, name=name, start="first", paused=True).close()
        disk.fail("fdatasync", errno.EIO, path="/a/")
        with pytest.raises(hg.OutcomeUnknown), station.atomic() as step:
            step.publish("a", 1)
            step.publish("c", 2)
            step.commit(message, "bridge")
        assert len(records(root)) == 1
        with station.producer("importer") as producer:
            producer.publish("b", 1)
        station.seek("b", "other", "new")
        station.subscribe("b", lambda _: None, name="other").close()
        with pytest.raises(hg.Fenced):  # it would be done twice
            station.subscribe("b", lambda _: None, name="bridge")
        station.seek("b", "other", "new")
        station.forget("b", "bridge")
        station.alter_channel("b", retention_once_read=True)
        with pytest.raises(hg.Fenced):
            station.trim()
        assert station.channel("b").first > 0, "retention goes on elsewhere"
        assert station.channel("a").first == 0, "what it may look for is not deleted"
        assert data_of(station, "c") == []
        verify(station, repair=True)
        station.trim()
        assert data_of(station, "c") == [2]
    assert records(root) == []


def test_a_damaged_record_is_set_aside_and_told(opened: Opener, root: Path, caplog: pytest.LogCaptureFixture) -> None:
    with opened() as station:
        station.publish("a", 1)
    (root / "atomic").mkdir(exist_ok=True)
    (root / "atomic" / "01a1.json").write_bytes(b'{"id":"01a1","parts":[{"chan')
    with opened() as station:
        assert data_of(station, "a") == [1]
        station.subscribe("a", lambda _: None, name="worker").close()
    assert records(root) == []
    assert (root / "quarantine" / "atomic" / "01a1.json").read_bytes().endswith(b'"chan')
    assert "stays so" in caplog.text
    assert "atomic-step-damaged" in (root / "audit" / "audit.jsonl").read_text()
