"""Groups: workers in threads share partitions, join, leave, and never meet."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest

import heliograph as hg
from heliograph.admin import dead
from heliograph.station import Station
from tests.opening import Opener
from tests.proof.tools import eventually
from tests.spread import fill, put

CHANNEL = "readings"


@pytest.fixture
def station(opened: Opener) -> Station:
    station = opened()
    station.create_channel(CHANNEL, partitions=4)
    return station


def work(station: Station, handle: Any = lambda message: None, **options: Any) -> hg.Subscription:
    return station.subscribe(CHANNEL, handle, name="sums", group=True, **{"start": "first", **options})


def shares(*workers: hg.Subscription) -> list[list[int]]:
    return [worker.partitions for worker in workers]


def test_one_worker_has_everything(station: Station) -> None:
    with work(station) as alone:
        assert alone.partitions == [0, 1, 2, 3], "before subscribe returns"
        assert alone.worker


def test_a_second_worker_gets_half_and_leaves_it_behind(station: Station) -> None:
    with work(station) as first:
        with work(station) as second:
            eventually(lambda: shares(first, second) == [[0, 1], [2, 3]])
        eventually(lambda: first.partitions == [0, 1, 2, 3])


def test_joining_moves_only_what_it_must(station: Station) -> None:
    with work(station) as first, work(station) as second:
        eventually(lambda: shares(first, second) == [[0, 1], [2, 3]])
        with work(station) as third:
            eventually(lambda: sorted(map(len, shares(first, second, third))) == [1, 1, 2])
            stayed = [set(first.partitions) <= {0, 1}, set(second.partitions) <= {2, 3}]
            assert stayed == [True, True]


def test_more_workers_than_partitions_wait_for_their_turn(station: Station) -> None:
    workers = [work(station) for _ in range(6)]
    eventually(lambda: sorted(map(len, shares(*workers))) == [0, 0, 1, 1, 1, 1])
    idle = [worker for worker in workers if not worker.partitions]
    assert idle[0].stats().lag == 0
    for worker in workers:
        if worker not in idle:
            worker.close()
    eventually(lambda: sorted(map(len, shares(*idle))) == [2, 2])


def test_every_message_reaches_one_worker(station: Station) -> None:
    got: dict[int, list[int]] = {0: [], 1: []}
    with (
        work(station, lambda message: got[0].append(message.data)) as first,
        work(station, lambda message: got[1].append(message.data)) as second,
    ):
        eventually(lambda: list(map(len, shares(first, second))) == [2, 2])
        fill(station, CHANNEL, 4, 100)
        eventually(lambda: len(got[0]) + len(got[1]) == 100)
    assert sorted(got[0] + got[1]) == list(range(100))
    assert got[0]
    assert got[1]


def test_a_worker_finishes_its_message_before_another_gets_the_partition(station: Station) -> None:
    for partition in range(4):
        put(station, CHANNEL, partition, None, key=f"key {partition}")  # keyless ones have no order in several lanes
    release = threading.Event()
    entered: list[int] = []
    seen: list[tuple[str, int, int]] = []

    def slow(message: hg.Message) -> None:
        entered.append(message.partition)
        assert release.wait(30)
        seen.append(("slow", message.partition, message.offset))

    def quick(message: hg.Message) -> None:
        seen.append(("quick", message.partition, message.offset))

    with work(station, slow, concurrency=4) as first:
        eventually(lambda: sorted(entered) == [0, 1, 2, 3])
        for partition in range(4):
            put(station, CHANNEL, partition, None, key=f"key {partition}")
        with work(station, quick) as second:
            time.sleep(0.5)
            assert not second.partitions, "each of the first worker's partitions has a message at hand"
            assert not seen
            release.set()
            eventually(lambda: len(seen) == 8)
            eventually(lambda: list(map(len, shares(first, second))) == [2, 2])
    for partition in range(4):
        assert [offset for _, number, offset in seen if number == partition] == [0, 1], "in order, each once"


def test_a_group_resumes_where_it_stopped(station: Station) -> None:
    got: list[int] = []
    fill(station, CHANNEL, 4, 20)
    with work(station, lambda message: got.append(message.data)):
        eventually(lambda: len(got) == 20)
    fill(station, CHANNEL, 4, 20)
    with work(station, lambda message: got.append(message.data)):
        eventually(lambda: len(got) == 40)
    assert sorted(got) == sorted([*range(20), *range(20)])


def test_a_group_takes_partitions_that_are_added(station: Station) -> None:
    got: list[Any] = []
    with work(station, lambda message: got.append(message.data), start="new") as first, work(station) as second:
        station.alter_channel(CHANNEL, partitions=6)
        eventually(lambda: sorted(first.partitions + second.partitions) == [0, 1, 2, 3, 4, 5])
        eventually(lambda: list(map(len, shares(first, second))) == [3, 3])
        assert all(info.saved for info in station.subscriptions()), "retention counts them as readers from now on"
        for partition in first.partitions:
            put(station, CHANNEL, partition, partition)
        eventually(lambda: len(got) == 3)


def test_concurrency_holds_for_a_worker(station: Station) -> None:
    fill(station, CHANNEL, 4, 40)
    at_work = threading.Lock()
    got: list[int] = []

    def handle(message: hg.Message) -> None:
        assert at_work.acquire(blocking=False)
        time.sleep(0.001)
        got.append(message.data)
        at_work.release()

    with work(station, handle) as worker:
        eventually(lambda: len(got) == 40)
        assert worker.stats().failed == 0


def test_stats_keep_what_was_delivered_in_partitions_that_left(station: Station) -> None:
    fill(station, CHANNEL, 4, 20)
    with work(station) as first:
        eventually(lambda: first.stats().delivered == 20)
        with work(station) as second:
            eventually(lambda: list(map(len, shares(first, second))) == [2, 2])
            assert first.stats().delivered == 20


# -- kinds ---------------------------------------------------------------------------------------------------------


def test_a_group_needs_a_name(station: Station) -> None:
    with pytest.raises(hg.ConfigError, match="needs a name"):
        station.subscribe(CHANNEL, print, group=True)


def test_a_group_and_a_plain_subscription_do_not_share_a_name(station: Station) -> None:
    station.subscribe(CHANNEL, print, name="plain").close()
    with pytest.raises(hg.AlreadyExists, match="is a plain subscription, not a group"):
        station.subscribe(CHANNEL, print, name="plain", group=True)
    work(station).close()
    with pytest.raises(hg.AlreadyExists, match="is a group"):
        station.subscribe(CHANNEL, print, name="sums")
    assert {(info.name, info.kind) for info in station.subscriptions()} == {("plain", "plain"), ("sums", "group")}
    station.forget(CHANNEL, "sums")
    station.subscribe(CHANNEL, print, name="sums").close()


def test_live_ones_are_in_each_others_way(station: Station) -> None:
    with station.subscribe(CHANNEL, print, name="plain"), pytest.raises(hg.SubscriptionBusy):
        station.subscribe(CHANNEL, print, name="plain", group=True)
    with work(station), pytest.raises(hg.SubscriptionBusy, match="workers host1"):
        station.subscribe(CHANNEL, print, name="sums")


def test_a_queue_of_the_same_name(station: Station, root: Path) -> None:
    directory = root / "subscriptions" / CHANNEL / "jobs"
    directory.mkdir(parents=True)
    (directory / "kind.json").write_text('{"kind":"queue"}')
    for group in (True, False):
        with pytest.raises(hg.AlreadyExists, match="is a queue"):
            station.subscribe(CHANNEL, print, name="jobs", group=group)


def test_a_live_group_is_not_moved_forgotten_or_deleted(station: Station) -> None:
    with work(station):
        for attempt in (
            lambda: station.seek(CHANNEL, "sums", "first"),
            lambda: station.forget(CHANNEL, "sums"),
            lambda: station.delete_channel(CHANNEL),
        ):
            with pytest.raises(hg.SubscriptionBusy):
                attempt()
    assert station.seek(CHANNEL, "sums", "first").after == 0
    station.forget(CHANNEL, "sums")
    assert station.groups() == []


def test_closing_with_forget_forgets_once_the_last_has_left(station: Station) -> None:
    first, second = work(station), work(station)
    first.close(forget=True)
    assert station.groups()
    second.close(forget=True)
    assert not station.groups()


# -- what is seen of it --------------------------------------------------------------------------------------------


def test_members_assignment_and_lag_are_visible(station: Station, opened: Opener) -> None:
    fill(station, CHANNEL, 4, 8)
    with work(station, paused=True) as first, work(station, paused=True) as second:
        eventually(lambda: list(map(len, shares(first, second))) == [2, 2])
        looker = opened(read_only=True)
        eventually(lambda: [len(one.partitions) for one in looker.groups()[0].members] == [2, 2])
        (info,) = looker.groups(CHANNEL)
        assert (info.channel, info.name, info.lag) == (CHANNEL, "sums", 8)
        assert {member.worker for member in info.members} == {first.worker, second.worker}
        held = {part.partition: part.worker for part in info.partitions}
        assert held == {number: worker.worker for worker in (first, second) for number in worker.partitions}
        assert all(info.live for info in looker.subscriptions())
    (info,) = station.groups()
    assert info.members == []
    assert {part.worker for part in info.partitions} == {None}
    assert not any(info.live for info in station.subscriptions())


def test_dead_letters_say_group_worker_and_attempts(station: Station) -> None:
    fill(station, CHANNEL, 4, 1)

    def fail(message: hg.Message) -> None:
        raise ValueError("boom")

    with work(station, fail, retry=hg.Retry(max_retries=1, base_s=0.001)) as worker:
        eventually(lambda: worker.stats().dead_letters == 1)
        name = worker.worker
    (letter,) = dead.letters(station, CHANNEL)
    assert (letter.subscription, letter.group, letter.worker, letter.attempts) == ("sums", "sums", name, 2)


# -- fencing -------------------------------------------------------------------------------------------------------


def test_a_handler_left_behind_saves_nothing_once_another_worker_has_the_partition(opened: Opener) -> None:
    station = opened(position_flush_ms=1)
    station.create_channel(CHANNEL, partitions=4)
    put(station, CHANNEL, 0, "x")
    entered, release = threading.Event(), threading.Event()

    def stuck(message: hg.Message) -> None:
        entered.set()
        assert release.wait(30)

    first = work(station, stuck)
    assert entered.wait(30)
    got: list[Any] = []
    with work(station, got.append, paused=True) as second:
        assert first.close(timeout_s=0.05) is False
        eventually(lambda: second.partitions == [0, 1, 2, 3])
        release.set()
        eventually(lambda: not first._parts.alive)
        time.sleep(0.2)  # whoever saves every millisecond would have
        assert [info.offset for info in station.subscriptions()] == [0, 0, 0, 0]
        second.resume()
        eventually(lambda: len(got) == 1)


def test_a_worker_whose_lease_is_gone_saves_nothing(station: Station, root: Path) -> None:
    """Somebody removed the lease's file: the next worker locks another one."""
    put(station, CHANNEL, 0, "x")
    entered, release = threading.Event(), threading.Event()

    def handle(message: hg.Message) -> None:
        entered.set()
        assert release.wait(30)

    with work(station, handle):
        assert entered.wait(30)
        (root / "subscriptions" / CHANNEL / "sums" / "leases" / "0.lock").unlink()
        release.set()
    assert station.subscriptions()[0].offset == 0


def test_what_is_no_workers_file_keeps_nobody_from_joining(station: Station, root: Path) -> None:
    work(station).close()
    for stray in ("stray", "stray.lock", "stray.json"):
        (root / "subscriptions" / CHANNEL / "sums" / "members" / stray).mkdir()
    with work(station) as alone:
        assert alone.partitions == [0, 1, 2, 3]
        assert [member.worker for member in station.groups(CHANNEL)[0].members] == [alone.worker]
