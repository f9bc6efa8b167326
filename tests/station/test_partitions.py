"""Everything a station does, over several partitions."""

from __future__ import annotations

import io
import json
import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import heliograph as hg
from heliograph.admin import backup, dead, restore, transfer, verify
from heliograph.station import Station
from tests.opening import Opener
from tests.proof.tools import eventually
from tests.spread import fill, put

CHANNEL = "readings"
NOON = datetime(2026, 11, 15, 12, tzinfo=UTC)


@pytest.fixture
def station(opened: Opener) -> Station:
    station = opened()
    station.create_channel(CHANNEL, partitions=3)
    return station


def places(messages: Any) -> list[tuple[int, int]]:
    return [(message.partition, message.offset) for message in messages]


# -- reading -------------------------------------------------------------------------------------------------------


def test_reading_merges_the_partitions_by_time(station: Station) -> None:
    for second, partition in [(5, 0), (1, 1), (3, 2), (2, 1), (6, 0), (4, 2)]:
        put(station, CHANNEL, partition, second, time=NOON + timedelta(seconds=second))
    assert [message.data for message in station.read(CHANNEL)] == [1, 2, 3, 4, 5, 6]
    put(station, CHANNEL, 2, "tie", time=NOON + timedelta(seconds=5))
    assert [message.data for message in station.read(CHANNEL)] == [1, 2, 3, 4, 5, "tie", 6]


def test_a_partition_keeps_its_order_whatever_the_times_say(station: Station) -> None:
    for second in (9, 1, 5):
        put(station, CHANNEL, 0, second, time=NOON + timedelta(seconds=second))
    put(station, CHANNEL, 1, 7, time=NOON + timedelta(seconds=7))
    read = list(station.read(CHANNEL))
    assert [message.data for message in read if message.partition == 0] == [9, 1, 5]
    assert [message.data for message in read] == [7, 9, 1, 5]


def test_reading_many_batches_of_many_partitions_loses_nothing(opened: Opener) -> None:
    station = opened(durability="os")
    station.create_channel(CHANNEL, partitions=5)
    for number in range(3000):
        put(station, CHANNEL, number % 5, {"number": number, "text": "x" * 500})
    read = [message.data["number"] for message in station.read(CHANNEL)]
    assert sorted(read) == list(range(3000))
    assert read == list(range(3000)), "published one after the other, so merged in that order"


def test_one_partition_alone(station: Station) -> None:
    fill(station, CHANNEL, 3, 9)
    assert [message.data for message in station.read(CHANNEL, partition=1)] == [1, 4, 7]
    assert [message.data for message in station.read(CHANNEL, partition=1, start=1, end=2)] == [4]


def test_an_offset_needs_a_partition(station: Station) -> None:
    for start, end in [(1, None), ("1", None), ("first", 2)]:
        with pytest.raises(hg.ConfigError, match="needs a partition"):
            station.read(CHANNEL, start=start, end=end)
    with pytest.raises(hg.ConfigError, match="needs a partition"):
        station.subscribe(CHANNEL, print, start=1)
    assert station.subscriptions() == []


def test_an_unknown_partition(station: Station) -> None:
    for wrong in (3, -1):
        with pytest.raises(hg.NotFound, match="0 to 2"):
            station.read(CHANNEL, partition=wrong)


def test_words_and_times_mean_all_partitions(station: Station) -> None:
    for second in range(12):
        put(station, CHANNEL, second % 3, second, time=NOON + timedelta(seconds=second))
    assert list(station.read(CHANNEL, start="new")) == []
    start, end = NOON + timedelta(seconds=4), NOON + timedelta(seconds=9)
    assert [message.data for message in station.read(CHANNEL, start=start, end=end)] == [4, 5, 6, 7, 8]


def test_following_sees_every_partition_and_those_that_are_added(station: Station) -> None:
    fill(station, CHANNEL, 3, 6)
    got: list[tuple[int, int]] = []

    def follow() -> None:
        for message in station.read(CHANNEL, follow=True):
            got.append((message.partition, message.offset))
            if len(got) == 10:
                return

    thread = threading.Thread(target=follow)
    thread.start()
    eventually(lambda: len(got) == 6)
    put(station, CHANNEL, 2, "news")
    eventually(lambda: (2, 2) in got)
    station.alter_channel(CHANNEL, partitions=4)
    for partition in (3, 0, 3):
        put(station, CHANNEL, partition, "more")
    thread.join(30)
    assert sorted(got) == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (2, 0), (2, 1), (2, 2), (3, 0), (3, 1)]


def test_following_is_woken_by_any_partition(station: Station) -> None:
    """Without waking, only the look once a second would notice: ten times that would take ten seconds."""
    waits: list[float] = []
    messages = station.read(CHANNEL, follow=True)
    for number in range(10):
        timer = threading.Timer(0.05, put, (station, CHANNEL, number % 3, number))
        started = time.monotonic()
        timer.start()
        next(messages)
        waits.append(time.monotonic() - started)
        timer.join()
    messages.close()  # type: ignore[attr-defined]
    assert sorted(waits)[5] < 0.9, "half of them came with the look once a second"


def test_read_only_reads_all_partitions(station: Station, opened: Opener) -> None:
    fill(station, CHANNEL, 3, 9)
    reader = opened(read_only=True)
    assert [message.data for message in reader.read(CHANNEL)] == list(range(9))


# -- subscribing ---------------------------------------------------------------------------------------------------


def test_a_subscription_gets_every_partition_one_message_at_a_time(station: Station) -> None:
    fill(station, CHANNEL, 3, 60)
    got: list[tuple[int, int]] = []
    at_work = threading.Lock()

    def handle(message: hg.Message) -> None:
        assert at_work.acquire(blocking=False), "called by two at once"
        time.sleep(0.001)
        got.append((message.partition, message.offset))
        at_work.release()

    with station.subscribe(CHANNEL, handle, name="worker", start="first") as subscription:
        eventually(lambda: subscription.position == 60)
        assert subscription.partitions == [0, 1, 2]
        assert subscription.positions == {0: 20, 1: 20, 2: 20}
        assert subscription.stats().failed == 0
    for partition in range(3):
        assert [offset for number, offset in got if number == partition] == list(range(20))


def test_a_slow_handler_is_shared_fairly(station: Station) -> None:
    """Each partition has hundreds of messages waiting; nobody waits until another has no more."""
    for _ in range(100):
        for partition in range(3):
            put(station, CHANNEL, partition, None)
    got: list[int] = []

    def handle(message: hg.Message) -> None:
        got.append(message.partition)
        time.sleep(0.005)

    with station.subscribe(CHANNEL, handle, start="first", paused=True) as subscription:
        subscription.resume()  # all of them, not the first while the others are being begun
        eventually(lambda: len(got) >= 150)
    assert set(got[:150]) == {0, 1, 2}


def test_an_async_handler_runs_in_one_loop_one_message_at_a_time(station: Station) -> None:
    import asyncio

    fill(station, CHANNEL, 3, 60)
    got: list[int] = []
    loops: set[Any] = set()
    at_work: list[int] = []

    async def handle(message: hg.Message) -> None:
        loops.add(asyncio.get_running_loop())
        assert not at_work, "called by two at once"
        at_work.append(1)
        await asyncio.sleep(0.001)
        got.append(message.data)
        at_work.clear()

    with station.subscribe(CHANNEL, handle, name="worker", start="first") as subscription:
        eventually(lambda: len(got) == 60)
        assert subscription.stats().failed == 0
    assert sorted(got) == list(range(60))
    assert len(loops) == 1
    assert not loops.pop().is_running()


@pytest.mark.parametrize("concurrency", [2, 4])
def test_concurrency_is_what_all_partitions_share(station: Station, concurrency: int) -> None:
    fill(station, CHANNEL, 3, 60)
    lock, at_work, most, got = threading.Lock(), [0], [0], []

    def handle(message: hg.Message) -> None:
        with lock:
            at_work[0] += 1
            most[0] = max(most[0], at_work[0])
        time.sleep(0.002)
        with lock:
            at_work[0] -= 1
            got.append(message.data)

    with station.subscribe(CHANNEL, handle, start="first", concurrency=concurrency):
        eventually(lambda: len(got) == 60)
    assert most[0] == concurrency


def test_a_retry_in_one_partition_does_not_hold_up_the_others(station: Station) -> None:
    fill(station, CHANNEL, 3, 30)
    got: list[int] = []

    def handle(message: hg.Message) -> None:
        if message.partition == 1:
            raise hg.RetryLater(3600)
        got.append(message.data)

    with station.subscribe(CHANNEL, handle, name="worker", start="first") as subscription:
        eventually(lambda: len(got) == 20 and subscription.state == "retrying")
        assert subscription.positions == {0: 10, 1: 0, 2: 10}


def test_a_batch_handler_gets_batches_of_one_partition(station: Station) -> None:
    fill(station, CHANNEL, 3, 30)
    got: list[list[tuple[int, int]]] = []
    with station.subscribe(CHANNEL, lambda batch: got.append(places(batch)), start="first", batch=True):
        eventually(lambda: sum(map(len, got)) == 30)
    assert all(len({partition for partition, _ in batch}) == 1 for batch in got)


def test_a_subscription_resumes_in_every_partition(station: Station) -> None:
    fill(station, CHANNEL, 3, 9)
    got: list[int] = []
    with station.subscribe(CHANNEL, lambda message: got.append(message.data), name="worker", start="first"):
        eventually(lambda: len(got) == 9)
    for number in range(9, 15):
        put(station, CHANNEL, number % 3, number)
    with station.subscribe(CHANNEL, lambda message: got.append(message.data), name="worker"):
        eventually(lambda: len(got) == 15)
    assert sorted(got) == list(range(15))


def test_a_subscription_picks_up_partitions_that_are_added(station: Station) -> None:
    got: list[tuple[int, int]] = []
    with station.subscribe(
        CHANNEL, lambda message: got.append((message.partition, message.offset)), name="worker"
    ) as subscription:
        station.alter_channel(CHANNEL, partitions=5)
        put(station, CHANNEL, 4, "new")
        eventually(lambda: got == [(4, 0)])
        assert subscription.partitions == [0, 1, 2, 3, 4]


def test_partitions_added_while_nobody_subscribed_are_read_from_their_beginning(station: Station) -> None:
    """Though the subscription began at "new": everything in them was published after it."""
    station.subscribe(CHANNEL, print, name="worker").close()
    station.alter_channel(CHANNEL, partitions=4)
    put(station, CHANNEL, 3, "missed")
    got: list[Any] = []
    with station.subscribe(CHANNEL, lambda message: got.append(message.data), name="worker"):
        eventually(lambda: got == ["missed"])


def test_where_a_new_subscription_begins_is_saved_for_all_partitions_at_once(station: Station) -> None:
    fill(station, CHANNEL, 3, 9)
    station.subscribe(CHANNEL, print, name="worker", paused=True).close()
    assert [(info.partition, info.offset, info.lag) for info in station.subscriptions()] == [
        (0, 3, 0), (1, 3, 0), (2, 3, 0),
    ]  # fmt: skip


def test_a_crash_while_a_subscription_begins_does_not_turn_new_into_first(station: Station, root: Path) -> None:
    """Partition 0's position is written last; without it, the others' absence does not mean that they were added."""
    fill(station, CHANNEL, 3, 9)
    station.subscribe(CHANNEL, print, name="worker", paused=True).close()
    directory = root / "subscriptions" / CHANNEL / "worker"
    (directory / "0.json").unlink()
    (directory / "1.json").unlink()
    with station.subscribe(CHANNEL, print, name="worker", paused=True) as subscription:
        assert subscription.positions == {0: 3, 1: 3, 2: 3}


def test_closing_from_inside_the_handler_ends_all_parts(station: Station) -> None:
    fill(station, CHANNEL, 3, 30)
    got: list[int] = []

    def handle(message: hg.Message) -> None:
        got.append(message.data)
        if len(got) == 5:
            assert subscription.close() is False

    subscription = station.subscribe(CHANNEL, handle, name="worker", start="first", paused=True)
    subscription.resume()
    eventually(lambda: subscription.closed)
    assert len(got) == 5
    with station.subscribe(CHANNEL, got.append, name="worker"):  # the name is free
        eventually(lambda: len(got) == 30)


def test_a_handler_that_does_not_return_saves_nothing_later(opened: Opener) -> None:
    station = opened(position_flush_ms=1)
    station.create_channel(CHANNEL, partitions=3)
    fill(station, CHANNEL, 3, 3)
    entered, release = threading.Event(), threading.Event()

    def handle(message: hg.Message) -> None:
        entered.set()
        assert release.wait(30)

    subscription = station.subscribe(CHANNEL, handle, name="worker", start="first")
    assert entered.wait(30)
    assert subscription.close(timeout_s=0.05) is False
    assert subscription.closed
    release.set()
    eventually(lambda: not subscription._parts.alive)
    time.sleep(0.2)  # whoever saves every millisecond would have
    assert [info.offset for info in station.subscriptions()] == [0, 0, 0]


def test_stats_are_sums_and_each_partition_has_its_own(station: Station) -> None:
    fill(station, CHANNEL, 3, 9)
    got: list[int] = []
    with station.subscribe(CHANNEL, lambda m: got.append(m.data), name="worker", start="first") as subscription:
        eventually(lambda: subscription.stats().position == 9)
        stats = subscription.stats()
        assert (stats.partition, stats.delivered, stats.position, stats.lag) == (None, 9, 9, 0)
        assert [(one.partition, one.delivered) for one in subscription.partition_stats()] == [(0, 3), (1, 3), (2, 3)]
        assert [one.partition for one in station.stats().subscriptions] == [0, 1, 2]
        (channel,) = station.stats().channels
        assert (channel.messages, [part.messages for part in channel.partitions]) == (9, [3, 3, 3])


def test_pausing_holds_every_partition_also_those_that_come_later(station: Station) -> None:
    got: list[Any] = []
    with station.subscribe(CHANNEL, got.append, name="worker", paused=True) as subscription:
        station.alter_channel(CHANNEL, partitions=4)
        eventually(lambda: subscription.partitions == [0, 1, 2, 3])
        for partition in range(4):
            put(station, CHANNEL, partition, None)
        assert subscription.state == "paused"
        assert not got
        subscription.resume()
        eventually(lambda: len(got) == 4)


def test_dead_letters_say_which_partition(station: Station) -> None:
    fill(station, CHANNEL, 3, 3)

    def fail(message: hg.Message) -> None:
        raise ValueError("boom")

    with station.subscribe(CHANNEL, fail, name="worker", start="first", retry=hg.Retry(max_retries=0)) as subscription:
        eventually(lambda: subscription.stats().dead_letters == 3)
    letters = list(dead.letters(station, CHANNEL))
    assert sorted((letter.partition, letter.original_offset) for letter in letters) == [(0, 0), (1, 0), (2, 0)]
    assert station.stats().channels[0].dead_letters == 3
    assert station.channel(CHANNEL + ".dead-letter").partitions == 1
    assert dead.replay(station, CHANNEL).replayed == 3
    assert not list(dead.letters(station, CHANNEL))
    assert station.channel(CHANNEL).messages == 6


# -- one message, one subscription ---------------------------------------------------------------------------------


def test_a_message_is_found_and_redacted_in_its_partition(station: Station) -> None:
    fill(station, CHANNEL, 3, 9)
    receipt = put(station, CHANNEL, 2, "secret")
    found = station.get(receipt.id)
    assert found is not None
    assert (found.partition, found.offset, found.data) == (2, 3, "secret")
    assert station.redact(receipt.id) == receipt
    assert station.get(receipt.id) is None
    assert sorted(message.data for message in station.read(CHANNEL)) == list(range(9))


def test_seeking_moves_all_partitions_or_one(station: Station) -> None:
    for second in range(12):
        put(station, CHANNEL, second % 3, second, time=NOON + timedelta(seconds=second))
    station.subscribe(CHANNEL, print, name="worker", paused=True).close()
    preview = station.seek(CHANNEL, "worker", NOON + timedelta(seconds=5), dry_run=True)
    assert (preview.partition, preview.before, preview.after, preview.lag, preview.applied) == (None, 12, 5, 7, False)
    assert [(part.partition, part.before, part.after) for part in preview.parts] == [(0, 4, 2), (1, 4, 2), (2, 4, 1)]
    assert [info.lag for info in station.subscriptions()] == [0, 0, 0], "a preview moves nothing"
    assert station.seek(CHANNEL, "worker", "first").after == 0
    assert [info.lag for info in station.subscriptions()] == [4, 4, 4]
    one = station.seek(CHANNEL, "worker", 3, partition=1)
    assert (one.partition, one.before, one.after) == (1, 0, 3)
    assert [info.offset for info in station.subscriptions()] == [0, 3, 0]
    with pytest.raises(hg.ConfigError, match="needs a partition"):
        station.seek(CHANNEL, "worker", 3)
    with pytest.raises(hg.NotFound, match="0 to 2"):
        station.seek(CHANNEL, "worker", "first", partition=3)
    with pytest.raises(hg.ConfigError, match="negative"):
        station.seek(CHANNEL, "worker", -1, partition=0)


def test_forgetting_forgets_every_partition(station: Station, root: Path) -> None:
    station.subscribe(CHANNEL, print, name="worker").close()
    station.forget(CHANNEL, "worker")
    assert station.subscriptions() == []
    assert not (root / "subscriptions" / CHANNEL).exists()


def test_info_sums_and_tells_each(station: Station) -> None:
    put(station, CHANNEL, 1, "x")
    info = station.channel(CHANNEL)
    assert (info.partitions, info.messages, info.first, info.next) == (3, 1, 0, 1)
    assert [(part.partition, part.messages) for part in info.parts] == [(0, 0), (1, 1), (2, 0)]


# -- upkeep and administration -------------------------------------------------------------------------------------


def test_retention_and_compression_see_to_every_partition(opened: Opener, root: Path) -> None:
    station = opened(durability="os")
    station.create_channel(CHANNEL, partitions=3, segment_bytes=4096, compress=True)
    for number in range(120):
        put(station, CHANNEL, number % 3, "x" * 400)
    station.trim(CHANNEL)
    for partition in range(3):
        assert list((root / "channels" / CHANNEL / str(partition)).glob("*.zst"))
    station.alter_channel(CHANNEL, retention_bytes=1000)
    assert {trimmed.partition for trimmed in station.trim(CHANNEL)} == {0, 1, 2}
    assert all(part.first > 0 for part in station.channel(CHANNEL).parts)


def test_a_subscription_holds_back_in_the_partition_where_it_lags(opened: Opener) -> None:
    station = opened(durability="os")
    station.create_channel(CHANNEL, partitions=2, segment_bytes=4096, retention_once_read=True)
    station.subscribe(CHANNEL, print, name="worker", paused=True).close()
    for number in range(80):
        put(station, CHANNEL, number % 2, "x" * 400)
    station.seek(CHANNEL, "worker", "new", partition=1)
    assert {trimmed.partition for trimmed in station.trim(CHANNEL)} == {1}


def test_a_partition_that_a_subscription_has_not_seen_yet_is_unread(opened: Opener) -> None:
    station = opened(durability="os")
    station.create_channel(CHANNEL, segment_bytes=4096, retention_once_read=True)
    station.subscribe(CHANNEL, print, name="worker", paused=True).close()
    station.alter_channel(CHANNEL, partitions=2)
    got: list[Any] = []
    with station.subscribe(CHANNEL, got.append, name="another"):
        for _ in range(40):
            put(station, CHANNEL, 1, "x" * 400)
        eventually(lambda: len(got) == 40)
    assert station.trim(CHANNEL) == []
    got.clear()
    with station.subscribe(CHANNEL, got.append, name="worker"):
        eventually(lambda: len(got) == 40)


def test_verify_looks_at_every_partition(station: Station, root: Path) -> None:
    fill(station, CHANNEL, 3, 9)
    report = verify.verify(station)
    assert report.ok
    assert [part.partition for part in report.channels[0].partitions] == [0, 1, 2]
    station.close()
    segment = next((root / "channels" / CHANNEL / "2").glob("*.jsonl"))
    segment.write_bytes(segment.read_bytes().replace(b'"data":5', b'"data":6'))
    with hg.open(root) as again:
        damaged = verify.verify(again)
        assert not damaged.ok
        assert [part.partition for part in damaged.channels[0].partitions if not part.ok] == [2]


def test_a_backup_has_every_partition_also_the_empty_ones(station: Station, tmp_path: Path) -> None:
    for number in range(6):
        put(station, CHANNEL, number % 2, number)  # partition 2 stays empty
    station.subscribe(CHANNEL, print, name="worker", paused=True).close()
    report = backup.backup(station, tmp_path / "copy")
    assert report.messages == 6
    restore.restore(tmp_path / "copy", tmp_path / "again")
    with hg.open(tmp_path / "again") as again:
        assert verify.verify(again).ok
        assert [message.data for message in again.read(CHANNEL)] == list(range(6))
        assert [part.next for part in again.channel(CHANNEL).parts] == [3, 3, 0]
        assert [info.offset for info in again.subscriptions()] == [3, 3, 0]
        put(again, CHANNEL, 2, "goes on")


def test_a_channel_that_grows_during_a_backup_is_copied_whole(
    station: Station, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = backup._Backup._copy_partition

    def copy_and_grow(self: Any, name: str, number: int) -> None:
        copy(self, name, number)
        if station.channel(CHANNEL).partitions == 3:
            station.alter_channel(CHANNEL, partitions=5)
            put(station, CHANNEL, 4, "late")

    monkeypatch.setattr(backup._Backup, "_copy_partition", copy_and_grow)
    backup.backup(station, tmp_path / "copy")
    restore.restore(tmp_path / "copy", tmp_path / "again")
    with hg.open(tmp_path / "again") as again:
        assert verify.verify(again).ok
        assert [message.data for message in again.read(CHANNEL)] == ["late"]


def test_an_export_has_every_partition(station: Station) -> None:
    fill(station, CHANNEL, 3, 9)
    out = io.BytesIO()
    report = transfer.export_messages(station, CHANNEL, out)
    assert (report.messages, report.first, report.next) == (9, 0, 9)
    lines = [json.loads(line) for line in out.getvalue().splitlines()]
    assert [line["data"] for line in lines] == [0, 3, 6, 1, 4, 7, 2, 5, 8]
    one = io.BytesIO()
    transfer.export_messages(station, CHANNEL, one, partition=1, start=1)
    assert [json.loads(line)["data"] for line in one.getvalue().splitlines()] == [4, 7]
    with pytest.raises(hg.ConfigError, match="needs a partition"):
        transfer.export_messages(station, CHANNEL, out, start=1)


def test_deleting_a_channel_removes_all_of_it(station: Station, root: Path) -> None:
    fill(station, CHANNEL, 3, 9)
    station.subscribe(CHANNEL, print, name="worker").close()
    station.delete_channel(CHANNEL)
    assert not (root / "channels" / CHANNEL).exists()
    station.create_channel(CHANNEL, partitions=2)
    assert list(station.read(CHANNEL)) == []
    assert station.subscriptions() == []
