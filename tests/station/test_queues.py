"""Work queues: each message leased to one worker, acknowledged by itself."""

from __future__ import annotations

import errno
import json
import os
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import heliograph as hg
from heliograph.delivery.queues import Ledger
from heliograph.station import Station
from tests.faults import FaultyDisk, SteppedClock
from tests.opening import Opener
from tests.proof.tools import Child, eventually, tree

SHORT_S = 0.2
LONG_S = 3600.0


@pytest.fixture
def station(opened: Opener) -> Station:
    return opened()


def filled(station: Station, count: int = 10, **settings: Any) -> hg.Queue:
    station.publish_many("jobs", range(count))
    return station.queue("jobs", "q", start="first", **settings)


def data(jobs: list[hg.Job]) -> list[Any]:
    return [job.message.data for job in jobs]


def drained(queue: hg.Queue, wait_s: float = 0) -> list[Any]:
    """Everything there is, acknowledged."""
    found: list[Any] = []
    while jobs := queue.receive(100, wait_s):
        found += data(jobs)
        queue.ack(jobs)
    return found


def position(station: Station, name: str = "q") -> int:
    return next(info.offset for info in station.subscriptions("jobs") if info.name == name)


# -- leases -------------------------------------------------------------------------------------------------


def test_each_message_is_leased_to_one_worker(station: Station) -> None:
    one = filled(station)
    other = station.queue("jobs", "q")
    first, second = one.receive(4), other.receive(100)
    assert data(first) == [0, 1, 2, 3]
    assert data(second) == [4, 5, 6, 7, 8, 9]
    assert one.receive(100) == other.receive(100) == []
    assert one.worker != other.worker


def test_a_new_queue_begins_where_it_is_told(station: Station) -> None:
    station.publish_many("jobs", range(3))
    later = station.queue("jobs", "later")
    station.publish("jobs", 3)
    assert data(later.receive(10)) == [3]
    assert data(station.queue("jobs", "all", start="first").receive(10)) == [0, 1, 2, 3]
    assert data(station.queue("jobs", "later", start="first").receive(10)) == [], "it has begun already"


def test_messages_are_acknowledged_in_any_order_and_none_is_held_back(station: Station) -> None:
    queue = filled(station)
    jobs = queue.receive(5)
    queue.ack([jobs[4], jobs[1], jobs[2]])
    jobs[3].ack()
    assert drained(queue) == [5, 6, 7, 8, 9]
    eventually(lambda: position(station) == 0)


def test_the_position_is_the_floor_and_survives(opened: Opener) -> None:
    station = opened()
    queue = filled(station)
    jobs = queue.receive(10)
    queue.ack(jobs[1:7])
    eventually(lambda: position(station) == 0)
    jobs[0].ack()
    eventually(lambda: position(station) == 7)
    station.close()
    again = opened()
    assert position(again) == 7
    assert sorted(data(again.queue("jobs", "q").receive(100))) == [7, 8, 9]


def test_retention_keeps_what_a_queue_has_not_done(opened: Opener) -> None:
    station = opened(segment_bytes=4096, retention_once_read=True)
    queue = station.queue("jobs", "q", start="first")
    for number in range(60):
        station.publish("jobs", {"n": number, "pad": "x" * 300})
    jobs = queue.receive(60)
    queue.ack(jobs[1:])
    queue._desk.parts.floors.save()
    station.trim("jobs")
    assert station.channel("jobs").first == 0
    jobs[0].ack()
    queue._desk.parts.floors.save()
    station.trim("jobs")
    assert station.channel("jobs").first > 0


def test_a_lease_that_ran_out_is_handed_to_somebody_else_and_the_loser_changes_nothing(station: Station) -> None:
    slow = filled(station, 1, visibility_s=SHORT_S)
    quick = station.queue("jobs", "q")
    (lost,) = slow.receive()
    assert lost.deliveries == 1
    (won,) = quick.receive(wait_s=30)
    assert (won.message.data, won.deliveries) == (0, 2)
    won.extend(LONG_S)
    for attempt in (lost.ack, lost.nack, lambda: lost.extend(1)):
        with pytest.raises(hg.LeaseLost, match="0/0 of queue 'q' of 'jobs'"):
            attempt()
    assert quick.receive() == slow.receive() == []
    won.ack()
    with pytest.raises(hg.LeaseLost):
        won.ack()


def test_acknowledging_many_does_what_it_can_and_names_the_lost(station: Station) -> None:
    queue = filled(station, 3)
    jobs = queue.receive(3)
    jobs[1].ack()
    with pytest.raises(hg.LeaseLost, match=r"^0/1 of queue"):
        queue.ack(jobs)
    assert station.queue_info("jobs", "q").in_flight == 0


def test_an_extended_lease_is_kept(station: Station) -> None:
    queue = filled(station, 1, visibility_s=SHORT_S)
    (job,) = queue.receive()
    for _ in range(6):
        time.sleep(SHORT_S / 3)
        job.extend()
    assert station.queue("jobs", "q").receive() == []
    job.extend(timedelta(hours=1))
    (lease,) = station.queue_info("jobs", "q").leases
    assert lease.left_s > 3000
    job.ack()


def test_giving_back_is_delivered_again_after_the_delay(station: Station) -> None:
    queue = filled(station, 2)
    first, second = queue.receive(2)
    first.nack(delay=LONG_S)
    second.nack()
    (again,) = queue.receive(10)
    assert (again.message.data, again.deliveries) == (1, 2)
    info = station.queue_info("jobs", "q")
    assert (info.depth, info.delayed, info.in_flight) == (1, 1, 1)
    again.nack(delay=timedelta(milliseconds=50))
    assert data(queue.receive(10, wait_s=30)) == [1]


def test_what_was_not_begun_does_not_count_as_a_delivery(station: Station) -> None:
    queue = filled(station, 1)
    queue.give_back(queue.receive())
    assert queue.receive()[0].deliveries == 1


def test_no_more_are_in_flight_than_allowed_and_a_waiting_worker_hears_of_room(station: Station) -> None:
    one = filled(station, 10, max_in_flight=3)
    other = station.queue("jobs", "q")
    jobs = one.receive(2)
    assert data(other.receive(10)) == [2]
    assert one.receive(10) == other.receive(10) == []
    threading.Timer(0.05, jobs[0].ack).start()
    assert data(other.receive(10, wait_s=30)) == [3]


def test_a_waiting_worker_wakes_when_something_is_published(station: Station) -> None:
    queue = station.queue("jobs", "q")
    threading.Timer(0.05, lambda: station.publish("jobs", "late")).start()
    assert data(queue.receive(wait_s=60)) == ["late"]
    assert queue.receive(wait_s=0.01) == []


# -- workers that die ---------------------------------------------------------------------------------------

HOLDER = """
import sys, heliograph as hg
station = hg.open(sys.argv[1])
queue = station.queue("jobs", "q", start="first")
print(len(queue.receive(3)), flush=True)
sys.stdin.readline()
"""


def test_what_a_killed_process_held_is_handed_out_at_once(station: Station) -> None:
    queue = filled(station, 3, visibility_s=LONG_S)
    with Child(HOLDER, station.path) as child:
        assert child.line() == "3"
        assert queue.receive(3) == []
        (dead,) = [one for one in station.queue_info("jobs", "q").workers if one.leases]
        assert dead.live
        child.kill()
        jobs = queue.receive(3, wait_s=30)
    assert data(jobs) == [0, 1, 2]
    assert [job.deliveries for job in jobs] == [2, 2, 2]
    assert [one.name for one in station.queue_info("jobs", "q").workers] == [queue.worker], "it left nothing behind"


def test_a_worker_that_closes_gives_everything_back(station: Station) -> None:
    queue = filled(station, 3, visibility_s=LONG_S)
    other = station.queue("jobs", "q")
    jobs = queue.receive(3)
    queue.close()
    queue.close()
    assert data(other.receive(10)) == [0, 1, 2]
    with pytest.raises(hg.StationClosed, match="queue q of jobs was closed"):
        jobs[0].ack()


def test_a_forked_child_is_told_to_open_the_station_again(station: Station) -> None:
    queue = filled(station, 1)
    (job,) = queue.receive()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            job.ack()
        except hg.Forked:
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    job.ack()


# -- handlers -----------------------------------------------------------------------------------------------


class Handled:
    """What handlers got, and how many times at once."""

    def __init__(self, work: Callable[[Any], None] = lambda _: None) -> None:
        self.got: list[Any] = []
        self.at_once = 0
        self.most = 0
        self._work = work
        self._lock = threading.Lock()

    def __call__(self, message: hg.Message) -> None:
        with self._lock:
            self.got.append(message.data)
            self.at_once += 1
            self.most = max(self.most, self.at_once)
        try:
            self._work(message.data)
        finally:
            with self._lock:
                self.at_once -= 1


def test_workers_share_the_messages_and_each_is_handled_once(station: Station) -> None:
    handled = Handled(lambda _: time.sleep(0.0005))
    station.publish_many("jobs", range(300))
    for _ in range(3):
        station.subscribe("jobs", handled, name="q", queue=True, start="first", concurrency=2)
    eventually(lambda: station.queue_info("jobs", "q").depth + station.queue_info("jobs", "q").in_flight == 0)
    assert sorted(handled.got) == list(range(300))
    assert handled.most > 1
    station.publish("jobs", "more")
    eventually(lambda: handled.got[-1] == "more")


def test_a_long_task_is_not_run_twice_while_its_lease_is_extended(station: Station) -> None:
    handled = Handled(lambda _: time.sleep(6 * SHORT_S))
    station.publish("jobs", "long")
    for _ in range(2):
        station.subscribe("jobs", handled, name="q", queue=True, start="first", visibility_s=SHORT_S)
    eventually(lambda: position(station) == 1)
    assert handled.got == ["long"]


def test_a_slow_handler_holds_back_nothing_but_its_own_message(station: Station) -> None:
    stuck = threading.Event()
    handled = Handled(lambda n: None if n != 50 else stuck.wait(60))
    slow = station.subscribe("jobs", handled, name="q", queue=True, start="first")
    slow._keeper._measure = lambda: None  # type: ignore[attr-defined]
    slow._keeper._ahead = 40  # type: ignore[attr-defined] # it was quick up to now, and took many ahead
    station.publish_many("jobs", range(50))
    eventually(lambda: len(handled.got) == 50)
    station.publish_many("jobs", range(50, 150))
    eventually(lambda: 50 in handled.got)
    assert station.queue_info("jobs", "q").in_flight > 1
    station.subscribe("jobs", handled, name="q", queue=True)
    eventually(lambda: len(handled.got) == 150)
    eventually(lambda: station.queue_info("jobs", "q").in_flight == 1)
    stuck.set()
    assert slow.close()
    assert sorted(handled.got) == list(range(150))


def test_a_failing_handler_is_called_again_and_then_the_message_is_a_dead_letter(station: Station) -> None:
    def work(data: Any) -> None:
        if data == "bad":
            raise ValueError("no good")

    handled = Handled(work)
    station.publish_many("jobs", ["good", "bad", "fine"])
    worker = station.subscribe(
        "jobs", handled, name="q", queue=True, start="first", retry=hg.Retry(max_retries=2, base_s=0.01)
    )
    eventually(lambda: position(station) == 3)
    assert handled.got.count("bad") == 3
    (letter,) = station.read("jobs.dead-letter")
    said = {name: letter.data[name] for name in ("reason", "error", "attempts", "queue", "subscription", "offset")}
    assert said == {
        "reason": "handler", "error": "ValueError: no good", "attempts": 3, "queue": "q", "subscription": "q",
        "offset": 1,
    }  # fmt: skip
    assert letter.data["worker"] == worker.worker  # type: ignore[attr-defined]
    assert "in work" in letter.data["traceback"]
    numbers = worker.stats()
    assert (numbers.delivered, numbers.failed, numbers.retries, numbers.dead_letters) == (2, 3, 2, 1)
    assert station.queue_info("jobs", "q").max_deliveries == 3


def test_retry_later_says_when(station: Station) -> None:
    def work(_: Any) -> None:
        if len(handled.got) == 1:
            raise hg.RetryLater(LONG_S)

    handled = Handled(work)
    station.publish("jobs", 0)
    station.subscribe("jobs", handled, name="q", queue=True, start="first")
    eventually(lambda: station.queue_info("jobs", "q").delayed == 1)
    (lease,) = station.queue_info("jobs", "q").leases
    assert (lease.state, lease.left_s > 3000) == ("delayed", True)


def test_a_handler_that_takes_too_long_has_failed(station: Station) -> None:
    stuck = threading.Event()
    handled = Handled(lambda _: None if len(handled.got) > 1 else stuck.wait(60))
    station.publish("jobs", 0)
    worker = station.subscribe("jobs", handled, name="q", queue=True, start="first", timeout_s=0.05)
    eventually(lambda: position(station) == 1)
    assert worker.stats().timeouts == 1
    stuck.set()


def test_pausing_gives_back_what_was_not_started(station: Station) -> None:
    gate = threading.Event()
    handled = Handled(lambda n: gate.wait(60))
    worker = station.subscribe("jobs", handled, name="q", queue=True, start="first")
    station.publish_many("jobs", range(20))
    eventually(lambda: handled.got)
    worker.pause()
    assert worker.state == "paused"
    eventually(lambda: station.queue_info("jobs", "q").in_flight == 1)
    gate.set()
    eventually(lambda: station.queue_info("jobs", "q").in_flight == 0)
    assert len(handled.got) == 1
    assert not [lease for lease in station.queue_info("jobs", "q").leases if lease.deliveries]
    worker.resume()
    eventually(lambda: len(handled.got) == 20)
    assert sorted(handled.got) == list(range(20))


def test_closing_waits_for_the_handler_or_leaves_it_behind(station: Station) -> None:
    gate, begun = threading.Event(), threading.Event()

    def work(_: hg.Message) -> None:
        begun.set()
        gate.wait(60)

    station.publish("jobs", 0)
    worker = station.subscribe("jobs", work, name="q", queue=True, start="first", visibility_s=LONG_S)
    assert begun.wait(30)
    assert worker.close(timeout_s=0.05) is False
    assert worker.closed
    (job,) = station.queue("jobs", "q").receive()
    assert job.deliveries == 2
    gate.set()
    assert worker.close()


def test_a_handler_may_close_its_own_subscription(station: Station) -> None:
    workers: list[hg.Subscription] = []
    answers: list[bool] = []
    station.publish("jobs", 0)
    workers.append(
        station.subscribe(
            "jobs", lambda _: answers.append(workers[0].close()), name="q", queue=True, start="first", paused=True
        )
    )
    workers[0].resume()
    eventually(lambda: workers[0].closed)
    assert answers == [False]
    assert position(station) == 1


def test_forgetting_removes_the_queue_once_nobody_works_for_it(station: Station) -> None:
    station.publish("jobs", 0)
    one = station.subscribe("jobs", print, name="q", queue=True)
    two = station.subscribe("jobs", print, name="q", queue=True)
    with pytest.raises(hg.SubscriptionBusy):
        station.forget("jobs", "q")
    with pytest.raises(hg.SubscriptionBusy, match="live subscribers: q"):
        station.delete_channel("jobs")
    one.close()
    two.close(forget=True)
    assert station.subscriptions() == []
    assert station.queues() == []
    station.subscribe("jobs", print, name="q").close()


def test_a_plain_function_that_returns_a_coroutine_stops_the_worker(station: Station) -> None:
    async def work(_: hg.Message) -> None: ...

    station.publish("jobs", 0)
    worker = station.subscribe("jobs", lambda message: work(message) or None, name="q", queue=True, start="first")
    eventually(lambda: worker.state == "failed")
    assert "async def" in worker.stats().last_error
    eventually(lambda: station.queue_info("jobs", "q").depth == 1)  # given back as soon as it has stopped


def test_async_handlers_run_side_by_side(station: Station) -> None:
    import asyncio

    got: list[Any] = []
    together = 0

    async def work(message: hg.Message) -> None:
        nonlocal together
        got.append(message.data)
        for _ in range(200):
            if len(got) >= 3:
                together = max(together, 1)
                break
            await asyncio.sleep(0.01)

    station.publish_many("jobs", range(3))
    worker = station.subscribe("jobs", work, name="q", queue=True, start="first", concurrency=3)
    eventually(lambda: position(station) == 3)
    assert sorted(got) == [0, 1, 2]
    assert together
    assert worker.close()


# -- dead letters -------------------------------------------------------------------------------------------


def letters(station: Station) -> list[dict[str, Any]]:
    try:
        return [message.data for message in station.read("jobs.dead-letter")]
    except hg.NotFound:
        return []


def test_giving_back_for_the_last_time_makes_a_dead_letter(station: Station) -> None:
    queue = filled(station, 1, max_deliveries=2)
    queue.receive()[0].nack()
    assert letters(station) == []
    queue.receive()[0].nack(error=ValueError("still no good"))
    (letter,) = letters(station)
    assert (letter["reason"], letter["attempts"], letter["worker"]) == ("handler", 2, queue.worker)
    assert letter["error"] == "ValueError: still no good"
    assert queue.receive() == []
    assert position(station) in (0, 1)


def test_a_rejected_message_is_a_dead_letter_at_once(station: Station) -> None:
    queue = filled(station, 1, max_deliveries=9)
    queue.receive()[0].nack(error=hg.Reject("no such task"))
    assert queue.receive() == []
    (letter,) = letters(station)
    assert (letter["error"], letter["attempts"]) == ("Reject: no such task", 1)


def test_leases_that_ran_out_too_often_make_a_dead_letter(station: Station) -> None:
    queue = filled(station, 2, max_deliveries=2, visibility_s=0.05)
    for _ in range(2):
        eventually(lambda: queue.receive(2))
        time.sleep(0.06)
    eventually(lambda: not queue.receive(2) and len(letters(station)) == 2)
    assert {(one["reason"], one["attempts"]) for one in letters(station)} == {("expired", 2)}
    assert "handed out 2 times" in letters(station)[0]["error"]


def test_a_crash_between_the_dead_letter_and_the_acknowledgement_does_not_double_it(opened: Opener) -> None:
    station = opened()
    queue = filled(station, 1, max_deliveries=1)
    (job,) = queue.receive()

    class Crash(BaseException): ...

    def crash(*_: Any, **__: Any) -> Any:
        raise Crash

    queue._desk.ledger.settle = crash  # type: ignore[method-assign]
    with pytest.raises(Crash):
        job.nack()
    assert len(letters(station)) == 1
    del queue._desk.ledger.settle  # type: ignore[method-assign]
    station.close()
    again = opened()
    queue = again.queue("jobs", "q")
    assert queue.receive() == []
    assert len(letters(again)) == 1
    assert again.queue_info("jobs", "q").leases == []


def test_a_dead_letter_that_cannot_be_written_is_tried_again(station: Station) -> None:
    broken = [True]
    real = station.publisher.publish_own

    def publish(*arguments: Any) -> Any:
        if broken:
            raise hg.DiskFull("no space")
        return real(*arguments)

    station.publisher.publish_own = publish  # type: ignore[method-assign]

    def work(message: hg.Message) -> None:
        if message.data == 0:
            raise ValueError("bad")

    station.publish_many("jobs", range(3))
    worker = station.subscribe("jobs", work, name="q", queue=True, start="first", max_deliveries=1)
    eventually(lambda: worker.state == "retrying")
    broken.clear()
    eventually(lambda: position(station) == 3)
    assert [one["offset"] for one in letters(station)] == [0]


def test_a_line_that_does_not_fit_its_type_is_a_dead_letter(opened: Opener) -> None:
    station = opened()
    station.publish("jobs", {"n": 1}, type="job.v1")
    station.publish("jobs", {"n": "text"}, type="job.v1")
    station.close()
    again = opened()

    import msgspec

    again.register("job.v1", msgspec.defstruct("JobV1", [("n", int)]))
    queue = again.queue("jobs", "q", start="first")
    (job,) = queue.receive(10)
    assert job.message.data.n == 1
    (letter,) = letters(again)
    assert (letter["reason"], letter["offset"], letter["queue"]) == ("mismatch", 1, "q")


def test_a_dead_letter_has_no_dead_letter(station: Station) -> None:
    queue = filled(station, 1, max_deliveries=1)
    queue.receive()[0].nack()

    def work(_: hg.Message) -> None:
        raise ValueError("again")

    worker = station.subscribe(
        "jobs.dead-letter", work, name="mender", queue=True, start="first", retry=hg.Retry(max_retries=1, base_s=0.01)
    )
    eventually(lambda: worker.state == "failed")
    assert "no dead letters" in worker.stats().last_error
    # It says that it failed first, and gives the letter back then.
    eventually(lambda: station.queue_info("jobs.dead-letter", "mender").depth == 1)


# -- the log underneath -------------------------------------------------------------------------------------


def test_redacted_messages_are_done_and_deleted_ones_are_told(opened: Opener) -> None:
    station = opened(segment_bytes=4096)
    receipts = [station.publish("jobs", {"n": n, "pad": "x" * 300}) for n in range(60)]
    gaps: list[hg.Gap] = []
    queue = station.queue("jobs", "q", start="first", on_gap=gaps.append)
    held = queue.receive(2)
    station.redact(receipts[-1].id, channel="jobs")
    station.alter_channel("jobs", retention_bytes=4096, holdback_bytes=1)
    station.trim("jobs")
    first = station.channel("jobs").first
    assert first > 2
    left = drained(queue)
    assert [one["n"] for one in left] == list(range(first, 59))
    assert [(gap.first, gap.next) for gap in gaps] == [(2, first)]
    for job in held:
        job.nack()
    assert queue.receive(10) == []
    assert sorted(gap.first for gap in gaps[1:]) == [0, 1]
    assert station.queue_info("jobs", "q").leases == []


def test_a_log_that_is_not_the_one_it_was_is_noticed_audited_and_told(opened: Opener) -> None:
    station = opened()
    queue = filled(station, 6)
    queue.ack(queue.receive(6))
    station.close()
    cut_log(station, 4)
    again = opened()
    assert again.engine.incarnation("jobs") != "old"
    again.publish_many("jobs", ["new 4", "new 5", "new 6"])
    gaps: list[hg.Gap] = []
    queue = again.queue("jobs", "q", on_gap=gaps.append)
    found = drained(queue)
    assert found[-3:] == ["new 4", "new 5", "new 6"]
    assert [(gap.next, "not the one" in gap.reason) for gap in gaps] == [(6, True)]
    audit = [json.loads(line) for line in again.engine.audit.path.read_text().splitlines()]
    assert [one for one in audit if one["event"] == "position-moved" and one["before"] == 6]


def cut_log(station: Station, left: int) -> None:
    """What a copy from an older day has, in a new life of the channel, with an index that knows no times."""
    partition = station.path / "channels" / "jobs" / "0"
    segment = next(partition.glob("*.jsonl"))
    segment.write_bytes(b"".join(segment.read_bytes().splitlines(keepends=True)[:left]))
    for name in ("head", "00000000000000000000.index"):
        (partition / name).unlink(missing_ok=True)
    described = partition.parent / "channel.json"
    file = json.loads(described.read_text())
    described.write_text(json.dumps({**file, "incarnation": "zzzzzz"}))


def test_a_new_life_of_the_same_log_repeats_nothing(opened: Opener) -> None:
    station = opened()
    queue = filled(station, 6)
    jobs = queue.receive(6)
    queue.ack([*jobs[:2], *jobs[3:]])
    station.close()
    cut_log(station, 6)
    again = opened()
    assert drained(again.queue("jobs", "q")) == [2]


@pytest.mark.parametrize("durability", ["interval", "os"])
def test_what_is_handed_out_is_synced_first(opened: Opener, durability: str) -> None:
    station = opened(durability=durability, sync_interval_ms=600_000)
    queue = filled(station, 3)
    assert station.engine.limit("jobs", 0, synced=True).next < 3
    assert data(queue.receive(3)) == [0, 1, 2]
    assert station.engine.limit("jobs", 0, synced=True).next == 3


def test_all_partitions_are_worked_off_also_those_that_come_later(station: Station) -> None:
    import msgspec

    from heliograph.log.head import Fields, Head
    from heliograph.log.segments import path_of

    queue = filled(station, 3)
    for number in (1, 2):
        directory = station.path / "channels" / "jobs" / str(number)
        directory.mkdir()
        path_of(directory, 0).touch()
        Head.create(directory / "head", station.engine.disk, station.engine.directory.boot, Fields())
    station.engine.alter("jobs", lambda file: msgspec.structs.replace(file, partitions=3))
    for number in (1, 2):
        for n in range(3):
            args = (None, None, None, None, None, None, lambda _: None)
            ticket, _ = station.publisher.prepare("jobs", 10 * number + n, *args)
            station.engine.append("jobs", number, ticket, 1.0)
    jobs = queue.receive(100)
    assert sorted(data(jobs)) == [0, 1, 2, 10, 11, 12, 20, 21, 22]
    assert {job.message.partition for job in jobs} == {0, 1, 2}
    queue.ack([job for job in jobs if job.message.offset])
    assert station.queue_info("jobs", "q").in_flight == 3
    queue._desk.parts.floors.save()
    saved = [station.engine.load_position("jobs", "q", number) for number in range(3)]
    assert [one.offset for one in saved if one] == [0, 0, 0]


def test_a_damaged_state_is_a_clear_error_and_can_be_taken_away(opened: Opener) -> None:
    station = opened()
    queue = filled(station, 5)
    jobs = queue.receive(5)
    queue.ack([*jobs[:2], jobs[4]])
    station.close()
    path = station.path / "subscriptions" / "jobs" / "q" / "queue.sqlite3"
    path.write_bytes(b"no database at all" * 100)
    again = opened()
    with pytest.raises(hg.Damaged, match="Move it away"):
        again.queue("jobs", "q")
    path.unlink()
    assert data(again.queue("jobs", "q").receive(10)) == [2, 3, 4], "from the saved floor on"


# -- names, settings, bad input -----------------------------------------------------------------------------


def test_a_name_is_of_one_kind(station: Station) -> None:
    station.subscribe("jobs", print, name="plain").close()
    station.queue("jobs", "q").close()
    with pytest.raises(hg.AlreadyExists, match="'plain' of 'jobs' is a plain subscription, not a queue"):
        station.queue("jobs", "plain")
    with pytest.raises(hg.AlreadyExists, match="'q' of 'jobs' is a queue, not a plain subscription"):
        station.subscribe("jobs", print, name="q")
    directory = station.path / "subscriptions" / "jobs" / "g"
    directory.mkdir()
    (directory / "kind.json").write_text('{"kind":"group"}')
    with pytest.raises(hg.AlreadyExists, match="is a group, not a queue"):
        station.subscribe("jobs", print, name="g", queue=True)


def test_settings_belong_to_the_queue(opened: Opener) -> None:
    station = opened()
    one = station.queue("jobs", "q", visibility_s=timedelta(minutes=2), max_in_flight=7)
    assert one.settings == hg.QueueSettings(visibility_s=120.0, max_in_flight=7, max_deliveries=6)
    station.close()
    again = opened()
    other = again.queue("jobs", "q", max_deliveries=2)
    assert other.settings == hg.QueueSettings(visibility_s=120.0, max_in_flight=7, max_deliveries=2)
    stored = json.loads((again.path / "subscriptions/jobs/q/kind.json").read_text())
    assert stored == {"kind": "queue", "visibility_s": 120.0, "max_in_flight": 7, "max_deliveries": 2}


@pytest.mark.parametrize(
    "wanted",
    [
        {"visibility_s": 0},
        {"visibility_s": -1},
        {"visibility_s": 1e9},
        {"visibility_s": float("nan")},
        {"visibility_s": "soon"},
        {"max_in_flight": 0},
        {"max_in_flight": True},
        {"max_deliveries": 0},
        {"max_deliveries": 1.5},
    ],
    ids=str,
)
def test_absurd_settings_are_refused_and_leave_nothing(station: Station, wanted: dict[str, Any]) -> None:
    with pytest.raises(hg.ConfigError, match=next(iter(wanted))):
        station.queue("jobs", "q", **wanted)
    assert station.subscriptions() == []
    assert station.channels() == []


def test_absurd_calls_are_refused(station: Station) -> None:
    queue = filled(station, 1)
    for count in (0, -1, 100_000, True):
        with pytest.raises(hg.ConfigError, match="max_messages"):
            queue.receive(count)
    with pytest.raises(hg.ConfigError, match="wait_s"):
        queue.receive(wait_s=-1)
    (job,) = queue.receive()
    for delay in (-1, float("inf"), float("nan"), 1e12, timedelta(seconds=-1)):
        with pytest.raises(hg.ConfigError, match="delay"):
            job.nack(delay=delay)
    for seconds in (0, -5, 1e9):
        with pytest.raises(hg.ConfigError, match="extension"):
            job.extend(seconds)
    job.ack()


def test_what_a_queue_cannot_do_is_refused(opened: Opener, station: Station) -> None:
    with pytest.raises(hg.ConfigError, match="needs a name"):
        station.subscribe("jobs", print, queue=True)
    with pytest.raises(hg.ConfigError, match="one by one"):
        station.subscribe("jobs", print, name="q", queue=True, batch=True)
    with pytest.raises(hg.ConfigError, match="add queue=True"):
        station.subscribe("jobs", print, name="q", visibility_s=3)
    with pytest.raises(hg.InvalidName):
        station.queue("jobs", "../q")
    station.publish("jobs", 0)
    with pytest.raises(hg.NotFound, match="no queue 'nothing'"):
        station.queue_info("jobs", "nothing")
    with pytest.raises(hg.NotFound, match="no queue 'nothing'"):
        station.release("jobs", "nothing")
    with pytest.raises(hg.NotFound):
        station.queue_info("nowhere", "q")
    reader = opened(read_only=True)
    with pytest.raises(hg.ReadOnly):
        reader.queue("jobs", "q")


# -- looking and administering ------------------------------------------------------------------------------


def test_looking_leaves_no_trace(opened: Opener) -> None:
    station = opened()
    queue = filled(station, 5)
    queue.ack(queue.receive(2))
    (live,) = opened(read_only=True).queues()
    assert (live.depth, live.in_flight, [one.live for one in live.workers]) == (3, 0, [True])
    station.close()
    before = tree(station.path)
    reader = opened(read_only=True)
    (info,) = reader.queues("jobs")
    assert (info.depth, info.in_flight, info.workers) == (3, 0, [])
    assert [one.depth for one in reader.stats().queues] == [3]
    assert reader.queue_info("jobs", "q").leases == []
    reader.close()
    assert tree(station.path) == before


def test_a_stuck_lease_can_be_released(station: Station) -> None:
    queue = filled(station, 4, visibility_s=LONG_S)
    other = station.queue("jobs", "q")
    jobs, rest = queue.receive(2), other.receive(2)
    assert station.release("jobs", "q", offset=1) == 1
    assert station.release("jobs", "q", offset=1) == 0
    with pytest.raises(hg.LeaseLost):
        jobs[1].ack()
    assert station.release("jobs", "q", worker=other.worker) == 2
    assert station.release("jobs", "q") == 1
    assert sorted(data(queue.receive(10))) == [0, 1, 2, 3]
    with pytest.raises(hg.LeaseLost):
        rest[0].ack()


def test_seeking_begins_anew(station: Station) -> None:
    queue = filled(station, 5)
    assert drained(queue) == [0, 1, 2, 3, 4]
    with pytest.raises(hg.SubscriptionBusy):
        station.seek("jobs", "q", 2)
    queue.close()
    assert station.seek("jobs", "q", 2).after == 2
    assert drained(station.queue("jobs", "q")) == [2, 3, 4]


def test_a_restored_backup_knows_what_was_acknowledged_above_the_floor(opened: Opener, tmp_path: Path) -> None:
    from heliograph.admin.backup import backup
    from heliograph.admin.restore import restore

    station = opened()
    queue = filled(station, 5, max_in_flight=7)
    jobs = queue.receive(5)
    queue.ack([*jobs[:2], jobs[4]])
    queue._desk.parts.floors.save()
    backup(station, tmp_path / "copy")
    station.close()
    restore(tmp_path / "copy", tmp_path / "other")
    other = opened(tmp_path / "other")
    queue = other.queue("jobs", "q")
    assert queue.settings.max_in_flight == 7
    assert data(queue.receive(10)) == [2, 3]


def test_what_is_done_can_be_handed_out_again_to_this_queue_alone(opened: Opener) -> None:
    station = opened()
    queue = filled(station, 5)
    other = station.queue("jobs", "other", start="first")
    assert drained(other) == drained(queue) == [0, 1, 2, 3, 4]
    queue._desk.parts.floors.save()
    assert station.requeue("jobs", "q", [(0, 3), (0, 1), (0, 3)]) == 2
    assert position(station) == 1, "retention keeps it from now on"
    assert station.requeue("jobs", "q", [(0, 1)]) == 0, "it is on its way already"
    again = queue.receive(10)
    assert [(job.message.data, job.deliveries) for job in again] == [(1, 1), (3, 1)]
    assert other.receive(10) == []
    with pytest.raises(hg.NotFound, match="no message at offset 99 of partition 0"):
        station.requeue("jobs", "q", [(0, 99)])
    queue.ack(again)
    station.close()
    assert opened().requeue("jobs", "q", [(0, 0)]) == 1, "also while nobody works for it"


# -- messages that expire -----------------------------------------------------------------------------------


def test_expired_messages_are_done_and_counted_not_delivered(opened: Opener) -> None:
    clock = SteppedClock()
    station = opened(clock=clock)
    for number in range(6):
        station.publish("jobs", number, ttl=60 if number % 2 else None)
    clock.step_us = 120_000_000
    with station.queue("jobs", "pulled", start="first") as queue:
        jobs = queue.receive(10)
        assert [job.message.data for job in jobs] == [0, 2, 4]
        queue.ack(jobs)
    info = station.queue_info("jobs", "pulled")
    assert (info.depth, info.in_flight) == (0, 0)
    seen: list[int] = []
    with station.subscribe(
        "jobs", lambda message: seen.append(message.data), name="handled", queue=True, start="first"
    ) as worker:
        eventually(lambda: worker.position == 6)
        assert (sorted(seen), worker.stats().expired) == ([0, 2, 4], 3)


def test_a_dead_letter_that_cannot_be_written_holds_up_nothing_else(opened: Opener) -> None:
    """Neither what comes after it, nor the leases of what is being handled beside it."""
    disk, going, seen = FaultyDisk(), threading.Event(), []
    station = opened(disk=disk)
    disk.fail("pwrite", errno.ENOSPC, path="dead-letter", times=1 << 30)

    def handle(message: hg.Message) -> None:
        seen.append(message.data)
        if message.data == "bad":
            raise hg.Reject("it cannot be done")
        if message.data == "long":
            going.wait(60)

    def until(offset: int) -> float:
        leases = {lease.offset: lease.left_s for lease in station.queue_info("jobs", "q").leases}
        return time.monotonic() + leases[offset]

    with station.subscribe("jobs", handle, name="q", queue=True, concurrency=2, visibility_s=3) as worker:
        station.publish("jobs", "long")
        eventually(lambda: seen == ["long"])
        station.publish("jobs", "bad")
        eventually(lambda: worker.state == "retrying")
        before = until(0)
        station.publish("jobs", "good")
        eventually(lambda: "good" in seen and station.queue_info("jobs", "q").in_flight == 2)
        eventually(lambda: until(0) > before + 0.5)
        assert "No space left" in worker.stats().last_error
        disk.heal()
        going.set()
        eventually(lambda: station.queue_info("jobs", "q").in_flight == 0 and worker.state == "running")
        assert [letter.data["reason"] for letter in station.read("jobs.dead-letter")] == ["handler"]
    assert seen == ["long", "bad", "good"]


def test_a_worker_that_cannot_look_for_a_moment_goes_on(station: Station, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    with station.subscribe("jobs", lambda message: seen.append(message.data), name="q", queue=True) as worker:
        real, failing = Ledger.reached, threading.Event()

        def reached(ledger: Ledger) -> Any:
            if not failing.is_set():
                failing.set()
                raise hg.StorageError("disk I/O error")
            return real(ledger)

        monkeypatch.setattr(Ledger, "reached", reached)
        station.publish("jobs", 1)
        eventually(failing.is_set)
        station.publish("jobs", 2)
        eventually(lambda: seen == [1, 2])
        assert not worker.closed


def test_a_handler_may_close_its_station(opened: Opener) -> None:
    """What was done before is not delivered again; its own message is, for it was not done."""
    for options in ({"queue": True}, {"group": True}, {}):
        station, seen = opened(position_flush_ms=60_000), []

        def handle(message: hg.Message, station: Station = station, seen: list[int] = seen) -> None:
            if message.data == 3:
                station.close()
            seen.append(message.data)

        name = next(iter(options), "plain")
        station.publish_many("jobs." + name, range(5))
        subscription = station.subscribe("jobs." + name, handle, name="q", start="first", paused=True, **options)
        subscription.resume()
        eventually(lambda subscription=subscription, seen=seen: subscription.closed and 3 in seen)
        with opened() as again:
            later: list[int] = []
            with again.subscribe(
                "jobs." + name, lambda message, later=later: later.append(message.data), name="q", **options
            ):
                eventually(lambda later=later: 4 in later)
            assert (seen, sorted(later)[-2:]) == ([0, 1, 2, 3], [3, 4])
            assert options.get("queue") or later == [3, 4]


def test_who_waits_for_room_hears_of_it_though_a_worker_died_meanwhile(
    station: Station, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = filled(station, 0)._desk
    told: list[bool] = []
    freed = iter([True, False])  # it was acknowledged the first time; then a dead worker's leases are taken
    monkeypatch.setattr(Ledger, "_settle", lambda *_: ([], next(freed)))
    monkeypatch.setattr(desk, "look_after_others", lambda: True)
    monkeypatch.setattr(desk, "tell", lambda: told.append(True))
    assert not desk.exchange(1).found
    assert told
