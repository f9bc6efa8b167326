"""Subscriptions to patterns: what is there, what comes, what goes, and what a restart knows."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import heliograph as hg
from heliograph.engine.arrivals import ChannelNews
from heliograph.limits import WILDCARD_CHANNELS_MAX
from heliograph.station import wildcards
from tests.opening import Opener
from tests.proof.tools import Child, eventually
from tests.test_patterns import BAD

QUICK = hg.Retry(max_retries=1, base_s=0.001, max_s=0.002)


class Heard:
    """Remembers channel and data, and how many calls there were at once."""

    def __init__(self, pause_s: float = 0.0) -> None:
        self.all: list[tuple[str, Any]] = []
        self.most = self._inside = 0
        self._pause_s = pause_s
        self._lock = threading.Lock()

    def __call__(self, message: hg.Message) -> None:
        with self._lock:
            self._inside += 1
            self.most = max(self.most, self._inside)
        time.sleep(self._pause_s)
        with self._lock:
            self._inside -= 1
            self.all.append((message.channel, message.data))

    def of(self, channel: str) -> list[Any]:
        return [data for name, data in list(self.all) if name == channel]


def test_it_hears_what_is_there_and_what_is_made_later(opened: Opener) -> None:
    station, heard = opened(), Heard()
    station.publish("sensors.a", "old")
    station.publish("other", "never")
    with station.subscribe("sensors.>", heard, start="first"):
        eventually(lambda: heard.of("sensors.a") == ["old"])
        station.publish("sensors.b.c", 1)
        station.publish("sensors.a", 2)
        eventually(lambda: len(heard.all) == 3)
    assert heard.of("sensors.b.c") == [1]
    assert heard.of("sensors.a") == ["old", 2]
    assert not heard.of("other")


def test_a_start_at_new_holds_for_what_is_there_and_not_for_what_is_made_later(opened: Opener) -> None:
    station, heard = opened(), Heard()
    station.publish("sensors.a", "old")
    with station.subscribe("sensors.*", heard, name="worker"):
        station.publish("sensors.a", "new")
        station.publish_many("sensors.b", range(500))
        eventually(lambda: len(heard.all) == 501)
    assert heard.of("sensors.a") == ["new"]
    assert heard.of("sensors.b") == list(range(500))


def test_positions_are_those_of_ordinary_subscriptions(opened: Opener) -> None:
    station, heard = opened(), Heard()
    station.publish_many("sensors.a", range(3))
    subscription = station.subscribe("sensors.*", heard, name="worker", start="first")
    station.publish("sensors.b", 1)
    eventually(lambda: len(heard.all) == 4)
    assert {info.channel: info.live for info in station.subscriptions()} == {"sensors.a": True, "sensors.b": True}
    subscription.close()
    found = {info.channel: (info.name, info.offset, info.live) for info in station.subscriptions()}
    assert found == {"sensors.a": ("worker", 3, False), "sensors.b": ("worker", 1, False)}
    station.seek("sensors.a", "worker", 1)
    with station.subscribe("sensors.*", heard, name="worker"):
        eventually(lambda: len(heard.all) == 6)
    assert heard.of("sensors.a") == [0, 1, 2, 1, 2]


def test_what_was_made_while_it_was_down_is_heard_from_its_first_message(opened: Opener) -> None:
    station, heard = opened(), Heard()
    station.publish("sensors.a", "before")
    station.subscribe("sensors.*", heard, name="worker").close()
    station.publish("sensors.a", "meanwhile")
    station.publish_many("sensors.b", ["first", "second"])
    station.close()
    station = opened()
    with station.subscribe("sensors.*", heard, name="worker", start="new"):
        eventually(lambda: len(heard.all) == 3)
    assert heard.of("sensors.a") == ["meanwhile"]
    assert heard.of("sensors.b") == ["first", "second"]


def test_another_pattern_under_the_same_name_begins_where_it_is_told(opened: Opener) -> None:
    station, heard = opened(), Heard()
    station.publish("sensors.a", 1)
    station.publish("motors.a", 1)
    station.subscribe("sensors.*", heard, name="worker").close()
    with station.subscribe("motors.*", heard, name="worker", start="new"):
        station.publish("motors.a", 2)
        eventually(lambda: heard.all)
    assert heard.all == [("motors.a", 2)]


def test_dead_letters_are_heard_only_by_name(opened: Opener) -> None:
    station, heard, letters = opened(), Heard(), Heard()

    def handler(message: hg.Message) -> None:
        heard(message)
        raise ValueError("boom")

    with (
        station.subscribe(">", handler, retry=QUICK, start="first") as everything,
        station.subscribe("sensors.*.dead-letter", letters, start="first"),
    ):
        station.publish("sensors.a", 1)
        eventually(lambda: letters.of("sensors.a.dead-letter"))
        station.publish("sensors.b", 2)
        eventually(lambda: letters.of("sensors.b.dead-letter"))
        assert isinstance(everything, hg.WildcardSubscription)
        assert sorted(everything.channels) == ["sensors.a", "sensors.b"]
    assert {channel for channel, _ in heard.all} == {"sensors.a", "sensors.b"}
    assert not [info.name for info in station.channels() if info.name.count("dead-letter") > 1]


def test_a_deleted_channel_is_dropped_and_the_rest_goes_on(opened: Opener) -> None:
    station, heard = opened(), Heard()
    station.publish("sensors.a", 1)
    station.publish("sensors.b", 1)
    with station.subscribe("sensors.*", heard, name="worker", start="first") as subscription:
        eventually(lambda: len(heard.all) == 2)
        station.delete_channel("sensors.a")
        assert isinstance(subscription, hg.WildcardSubscription)
        eventually(lambda: list(subscription.channels) == ["sensors.b"])
        assert subscription.state == "running"
        assert subscription.stats().delivered == 2
        station.publish("sensors.b", 2)
        eventually(lambda: heard.of("sensors.b") == [1, 2])
        station.publish("sensors.a", "again")
        eventually(lambda: heard.of("sensors.a") == [1, "again"])
    assert sorted(info.channel for info in station.subscriptions()) == ["sensors.a", "sensors.b"]


def test_a_channel_deleted_and_made_again_at_once_is_another_one(opened: Opener) -> None:
    station, heard = opened(), Heard()
    for life in range(5):
        station.publish("sensors.a", life)
        if not life:
            subscription = station.subscribe("sensors.*", heard, name="worker", start="first")
        eventually(lambda life=life: life in heard.of("sensors.a"))
        if life < 4:
            station.delete_channel("sensors.a")
    subscription.close()
    assert heard.of("sensors.a") == [0, 1, 2, 3, 4]


def test_nothing_is_missed_of_a_channel_made_again_before_anybody_looked(
    opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wildcards, "WAIT_SLICE_S", 3600.0)
    station, heard = opened(), Heard()
    station.publish("sensors.a", "old")
    with station.subscribe("sensors.*", heard, name="worker", start="first"):
        eventually(lambda: heard.of("sensors.a") == ["old"])
        with monkeypatch.context() as silence:
            silence.setattr(ChannelNews, "tell", lambda self: None)
            station.delete_channel("sensors.a")
            station.publish_many("sensors.a", range(3))
        station.engine.channel_news.tell()
        eventually(lambda: {0, 1, 2} <= set(heard.of("sensors.a")))


def test_a_dropped_channel_leaves_no_position(opened: Opener) -> None:
    station, heard = opened(position_flush_ms=60_000), Heard()
    station.publish("sensors.a", 1)
    with station.subscribe("sensors.*", heard, name="worker", start="first") as subscription:
        eventually(lambda: heard.all)
        station.delete_channel("sensors.a")
        assert isinstance(subscription, hg.WildcardSubscription)
        eventually(lambda: not subscription.channels)
        assert station.subscriptions() == []


def test_a_plain_subscriber_still_keeps_its_channel_from_being_deleted(opened: Opener) -> None:
    station = opened()
    station.publish("sensors.a", 1)
    with (
        station.subscribe("sensors.*", print, name="all"),
        station.subscribe("sensors.a", print, name="one"),
        pytest.raises(hg.SubscriptionBusy, match="live subscribers: one"),
    ):
        station.delete_channel("sensors.a")


def test_one_handler_is_called_once_at_a_time_unless_asked(opened: Opener) -> None:
    station = opened()
    for channel in "abcd":
        station.publish_many(f"sensors.{channel}", range(20))
    alone, pairs = Heard(0.001), Heard(0.002)
    with station.subscribe("sensors.*", alone, start="first"):
        eventually(lambda: len(alone.all) == 80)
    with station.subscribe("sensors.*", pairs, start="first", concurrency=2):
        eventually(lambda: len(pairs.all) == 80)
    assert alone.most == 1
    assert pairs.most == 2
    assert all(alone.of(f"sensors.{channel}") == list(range(20)) for channel in "abcd")


def test_two_live_subscribers_of_one_name_are_refused(opened: Opener) -> None:
    station = opened()
    with (
        station.subscribe("sensors.>", print, name="worker"),
        pytest.raises(hg.SubscriptionBusy, match="wildcard subscription 'worker' is live"),
    ):
        station.subscribe("motors.>", print, name="worker")
    station.subscribe("motors.>", print, name="worker").close()


def test_a_subscription_that_is_refused_on_one_channel_leaves_nothing_live(opened: Opener) -> None:
    station = opened()
    station.publish("sensors.a", 1)
    station.publish("sensors.b", 1)
    with station.subscribe("sensors.b", print, name="worker"):
        with pytest.raises(hg.SubscriptionBusy):
            station.subscribe("sensors.*", print, name="worker")
        assert [info.channel for info in station.subscriptions() if info.live] == ["sensors.b"]
    station.subscribe("sensors.*", print, name="worker").close()


def test_a_later_channel_that_is_taken_is_tried_until_it_is_free(opened: Opener) -> None:
    station, heard = opened(), Heard()
    with station.subscribe("sensors.*", heard, name="worker") as subscription:
        engine = station.engine
        lease = engine.subscription_lease("sensors.a", "worker")
        station.publish("sensors.a", 1)
        eventually(lambda: subscription.state == "retrying")
        assert "live already" in subscription.stats().last_error
        lease.release()
        eventually(lambda: heard.of("sensors.a") == [1])
        eventually(lambda: subscription.state == "running")


def test_pausing_holds_channels_that_are_made_meanwhile(opened: Opener) -> None:
    station, heard = opened(), Heard()
    station.publish("sensors.a", 1)
    subscription = station.subscribe("sensors.*", heard, start="first", paused=True)
    station.publish("sensors.b", 1)
    assert isinstance(subscription, hg.WildcardSubscription)
    eventually(lambda: len(subscription.channels) == 2)
    assert subscription.state == "paused"
    assert not heard.all
    subscription.resume()
    eventually(lambda: len(heard.all) == 2)


def test_it_may_be_closed_by_its_own_handler(opened: Opener) -> None:
    station = opened()
    for channel in "abc":
        station.publish_many(f"sensors.{channel}", range(3))
    answers: list[bool] = []
    ready = threading.Event()

    def handler(message: hg.Message) -> None:
        ready.wait(30)
        answers.append(subscription.close())

    subscription = station.subscribe("sensors.*", handler, name="worker", start="first")
    ready.set()
    eventually(lambda: subscription.closed)
    assert answers == [False]
    assert subscription.state == "closed"
    station.subscribe("sensors.*", print, name="worker").close()


def test_forgetting_removes_the_pattern_and_every_position(opened: Opener) -> None:
    station, heard = opened(), Heard()
    station.publish("sensors.a", 1)
    station.subscribe("sensors.*", heard, name="worker").close(forget=True)
    assert not station.subscriptions()
    station.subscribe("sensors.*", heard, name="worker").close()
    station.publish("sensors.b", 1)
    station.forget("sensors.*", "worker")
    assert not station.subscriptions()
    with station.subscribe("sensors.*", heard, name="worker", start="new"):
        station.publish("sensors.a", 2)
        eventually(lambda: heard.all)
    assert heard.all == [("sensors.a", 2)], "what was there when it began anew was delivered"
    with pytest.raises(hg.NotFound, match=r"its pattern is 'sensors\.\*'"):
        station.forget("motors.*", "worker")
    with pytest.raises(hg.NotFound, match="no wildcard subscription"):
        station.forget("motors.*", "nobody")


def test_it_may_be_forgotten_after_it_was_closed(opened: Opener) -> None:
    station = opened()
    station.publish("sensors.a", 1)
    subscription = station.subscribe("sensors.*", print, name="worker")
    assert subscription.close()
    assert subscription.close(forget=True)
    assert not station.subscriptions()
    assert station.engine.wildcards.names() == []


@pytest.mark.parametrize("by", ["this process", "another process"])
def test_a_new_channel_is_told_and_not_only_found(
    opened: Opener, root: Path, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    monkeypatch.setattr(wildcards, "WAIT_SLICE_S", 3600.0)  # so that looking once in a while finds nothing
    station, heard = opened(durability="os"), Heard()
    with station.subscribe("sensors.>", heard) as subscription:
        if by == "this process":
            station.publish("sensors.0", 0)
        else:
            Child(PUBLISH, root, "sensors", 1, 1).finish()
        eventually(lambda: heard.of("sensors.0") == [0])
        assert isinstance(subscription, hg.WildcardSubscription)
        opened(durability="os").delete_channel("sensors.0")
        eventually(lambda: not subscription.channels)


def test_a_new_channel_is_found_though_nobody_tells(opened: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ChannelNews, "tell", lambda self: None)
    station, heard = opened(), Heard()
    with station.subscribe("sensors.>", heard) as subscription:
        station.publish("sensors.a", 0)
        eventually(lambda: heard.of("sensors.a") == [0])
        assert isinstance(subscription, hg.WildcardSubscription)
        station.delete_channel("sensors.a")
        eventually(lambda: not subscription.channels)


def test_closing_the_station_closes_it(opened: Opener) -> None:
    station, heard = opened(), Heard()
    station.publish("sensors.a", 1)
    subscription = station.subscribe("sensors.*", heard, name="worker", start="first")
    eventually(lambda: heard.all)
    station.close()
    assert subscription.closed
    assert not [t for t in threading.enumerate() if "sensors" in t.name]


def test_coroutines_of_all_channels_run_in_one_loop(opened: Opener) -> None:
    station = opened()
    loops: set[Any] = set()
    heard: list[Any] = []

    async def handler(message: hg.Message) -> None:
        loops.add(asyncio.get_running_loop())
        heard.append(message.data)

    station.publish("sensors.a", 1)
    station.publish("sensors.b", 2)
    with station.subscribe("sensors.*", handler, start="first"):
        eventually(lambda: sorted(heard) == [1, 2])
    assert len(loops) == 1


def test_the_asynchronous_station_hears_patterns_too(root: Path) -> None:
    async def main() -> tuple[list[Any], list[Any]]:
        heard: list[Any] = []
        enough = asyncio.Event()

        async def handler(message: hg.Message) -> None:
            heard.append((message.channel, message.data))
            if len(heard) == 2:
                enough.set()

        async with hg.open_async(root, name="host1") as station:
            await station.publish("sensors.a", 1)
            async with await station.subscribe("sensors.>", handler, start="first"):
                await station.publish("sensors.b", 2)
                await enough.wait()
            wanted = hg.Filter(key="k")
            await station.publish("sensors.c", 3, key="k")
            read = [message.data async for message in station.read("sensors.>")]
            chosen = [message.data async for message in station.read("sensors.>", where=wanted)]
            return [sorted(heard), read], chosen

    assert asyncio.run(main()) == ([[("sensors.a", 1), ("sensors.b", 2)], [1, 2, 3]], [3])


def test_too_many_channels_are_said_and_the_rest_goes_on(opened: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    assert WILDCARD_CHANNELS_MAX >= 1000
    monkeypatch.setattr(wildcards, "WILDCARD_CHANNELS_MAX", 2)
    station, heard = opened(), Heard()
    station.publish("sensors.a", 1)
    with station.subscribe("sensors.*", heard) as subscription:
        station.publish("sensors.b", 1)
        eventually(lambda: heard.of("sensors.b"))
        station.publish("sensors.c", 1)
        eventually(lambda: "'sensors.c' is not heard" in subscription.stats().last_error)
        assert subscription.state == "retrying"
        station.delete_channel("sensors.b")
        eventually(lambda: heard.of("sensors.c"))
    station.publish("sensors.d", 1)
    with pytest.raises(hg.Busy, match="matches more than 2 channels"):
        station.subscribe("sensors.*", heard)


@pytest.mark.parametrize("start", [0, 17, "3", "nonsense", True], ids=repr)
def test_a_start_that_means_nothing_for_several_channels_is_refused(opened: Opener, start: Any) -> None:
    station = opened()
    with pytest.raises(hg.ConfigError):
        station.subscribe("sensors.*", print, start=start)
    with pytest.raises(hg.ConfigError):
        list(station.read("sensors.*", start=start))


@pytest.mark.parametrize(
    "options",
    [
        {"concurrency": 0},
        {"timeout_s": -1},
        {"overflow": "drop_oldest", "name": "x"},
        {"overflow": "no"},
        {"handler": 7},
    ],
    ids=str,
)
def test_arguments_that_cannot_work_are_refused_though_no_channel_matches(opened: Opener, options: Any) -> None:
    station = opened()
    with pytest.raises(hg.ConfigError):
        station.subscribe("sensors.*", options.pop("handler", print), **options)


def test_a_plain_subscriber_with_the_name_of_a_wildcard_keeps_its_channel(opened: Opener) -> None:
    station = opened()
    station.subscribe("sensors.*", print, name="worker").close()
    with station.subscribe("sensors.a", print, name="worker"), pytest.raises(hg.SubscriptionBusy):
        station.delete_channel("sensors.a")


def test_bad_patterns_are_refused_at_every_door_and_leave_nothing(opened: Opener, root: Path) -> None:
    station = opened()
    before = sorted(path.relative_to(root) for path in root.rglob("*"))
    for bad in [text for text in BAD if text]:
        for act in (
            lambda text: station.subscribe(text, print),
            lambda text: station.subscribe(text, print, name="worker"),
            lambda text: list(station.read(text)),
            lambda text: station.read(text, follow=True),
            lambda text: station.forget(text, "worker"),
        ):
            with pytest.raises(hg.InvalidName):
                act(bad)
    for act in (
        lambda text: station.publish(text, 1),
        station.create_channel,
        station.delete_channel,
        station.channel,
        station.subscriptions,
        lambda text: station.seek(text, "worker", "first"),
    ):
        with pytest.raises(hg.InvalidName):
            act("sensors.*")
    with pytest.raises(hg.InvalidName):
        station.subscribe("sensors.*", print, name="../worker")
    assert sorted(path.relative_to(root) for path in root.rglob("*")) == before


# -- reading ------------------------------------------------------------------------------------------------


def test_reading_a_pattern_merges_by_time(opened: Opener) -> None:
    station = opened()
    for n in range(300):
        station.publish(f"sensors.{n % 7}", n)
    station.publish("other", "never")
    assert [message.data for message in station.read("sensors.*")] == list(range(300))
    assert [message.data for message in station.read("nothing.*")] == []


def test_following_a_pattern_finds_channels_made_later(opened: Opener) -> None:
    station = opened()
    station.publish("sensors.a", 0)
    found = []
    for message in station.read("sensors.>", follow=True):
        found.append((message.channel, message.data))
        if len(found) == 1:
            station.publish("sensors.b", 1)
            station.publish("sensors.b", 2)
        elif len(found) == 3:
            station.delete_channel("sensors.a")
            station.publish("sensors.c", 3)
        elif len(found) == 4:
            break
    assert found == [("sensors.a", 0), ("sensors.b", 1), ("sensors.b", 2), ("sensors.c", 3)]


@pytest.mark.parametrize("read_only", [False, True])
def test_following_a_pattern_a_channel_that_is_made_again_is_read_from_its_first(
    opened: Opener, read_only: bool
) -> None:
    station = opened()
    station.publish_many("sensors.a", [1, 2])
    reading = (opened(read_only=True) if read_only else station).read("sensors.>", follow=True)
    assert [next(reading).data for _ in range(2)] == [1, 2]
    station.delete_channel("sensors.a")
    station.publish_many("sensors.a", [3, 4, 5])
    assert [next(reading).data for _ in range(3)] == [3, 4, 5]


@pytest.mark.parametrize("partitions", [1, 3])
def test_whoever_follows_a_channel_is_told_that_it_was_made_again(opened: Opener, partitions: int) -> None:
    station = opened()
    station.create_channel("sensors", partitions=partitions)
    station.publish("sensors", 1)
    reading = station.read("sensors", follow=True)
    assert next(reading).data == 1
    station.delete_channel("sensors")
    station.create_channel("sensors", partitions=partitions)
    station.publish_many("sensors", [2, 3])
    with pytest.raises(hg.NotFound, match="deleted and made again"):
        next(reading)


def test_a_subscriber_without_a_name_fails_when_its_channel_is_made_again(opened: Opener) -> None:
    """However much is in the new one: what lies before its old place would be passed over without a word."""
    station, heard = opened(), Heard()
    station.publish_many("sensors", [1, 2])
    with station.subscribe("sensors", heard, start="first") as subscription:
        eventually(lambda: len(heard.all) == 2)
        station.delete_channel("sensors")
        station.publish_many("sensors", [3, 4, 5])
        eventually(lambda: subscription.state == "failed")
    assert heard.all == [("sensors", 1), ("sensors", 2)]


def test_a_read_only_station_hears_and_reads_patterns(opened: Opener) -> None:
    station, heard = opened(), Heard()
    station.publish("sensors.a", 1)
    reader = opened(read_only=True)
    assert [message.data for message in reader.read("sensors.*")] == [1]
    with reader.subscribe("sensors.*", heard, start="first"):
        station.publish("sensors.b", 2)
        eventually(lambda: sorted(heard.all) == [("sensors.a", 1), ("sensors.b", 2)])
    with pytest.raises(hg.ReadOnly):
        reader.subscribe("sensors.*", heard, name="worker")


# -- processes ----------------------------------------------------------------------------------------------

PUBLISH = """
    import sys, heliograph as hg
    root, prefix, channels, count = sys.argv[1:5]
    with hg.open(root, name="host1", durability="os") as station:
        for n in range(int(count)):
            for channel in range(int(channels)):
                station.publish(f"{prefix}.{channel}", n)
"""

SUBSCRIBE = """
    import sys, heliograph as hg
    station = hg.open(sys.argv[1], name="host1", durability="os")
    def say(line):  # in one piece: two threads speak
        sys.stdout.write(line + "\\n")
        sys.stdout.flush()
    station.subscribe("sensors.>", lambda message: say(f"{message.channel} {message.data}"), name="worker")
    say("ready")
    sys.stdin.readline()
    station.close()
"""


def test_channels_made_by_other_processes_are_heard_whole_and_in_order(opened: Opener, root: Path) -> None:
    station, heard = opened(durability="os"), Heard()
    with station.subscribe("sensors.>", heard, name="worker"):
        children = [Child(PUBLISH, root, f"sensors.{n}", 5, 40) for n in range(3)]
        for child in children:
            child.finish()
        eventually(lambda: len(heard.all) >= 600)
    assert heard.most == 1
    for process in range(3):
        for channel in range(5):
            assert heard.of(f"sensors.{process}.{channel}") == list(range(40))


def test_a_killed_subscriber_misses_nothing_of_channels_made_meanwhile(opened: Opener, root: Path) -> None:
    station = opened(durability="os")
    station.publish("sensors.old", "before")
    child = Child(SUBSCRIBE, root)
    assert child.line() == "ready"
    station.publish("sensors.old", 1)
    assert child.line() == "sensors.old 1"
    station.publish("sensors.b", 1)
    assert child.line() == "sensors.b 1"
    child.kill()
    station.publish("sensors.old", 2)
    station.publish_many("sensors.new", range(3))
    again = Child(SUBSCRIBE, root)
    lines: list[str] = []
    while not {"sensors.old 2", *[f"sensors.new {n}" for n in range(3)]} <= set(lines):
        lines.append(again.line())
    again.tell()
    again.finish()
    assert "sensors.old before" not in lines
    assert [line for line in lines if "new" in line] == [f"sensors.new {n}" for n in range(3)]


# -- upkeep, backups ----------------------------------------------------------------------------------------


def test_retention_counts_a_wildcard_that_has_not_noticed_the_channel(opened: Opener) -> None:
    settings = {"segment_bytes": 4096, "retention_once_read": True}
    station, heard = opened(**settings), Heard()
    station.subscribe("sensors.*", heard, name="worker").close()
    for _ in range(10):
        station.publish_many("sensors.a", ["x" * 200] * 10)
    with station.subscribe("sensors.a", heard, name="other", start="first") as other:
        eventually(lambda: other.stats().saved_position == 100)
        assert station.trim("sensors.a") == [], "what the wildcard is to hear was deleted"
        assert station.channel("sensors.a").first == 0
        station.forget("sensors.*", "worker")
        assert station.trim("sensors.a"), "nothing could have been deleted anyway"


def test_a_backup_keeps_patterns(opened: Opener, root: Path, tmp_path: Path) -> None:
    from heliograph.admin.backup import backup, restore

    station, heard = opened(), Heard()
    station.publish("sensors.a", 1)
    with station.subscribe("sensors.*", heard, name="worker", start="first"):
        eventually(lambda: heard.all)
    heard.all.clear()
    station.publish("sensors.b", 2)
    backup(station, tmp_path / "backup")
    restore(tmp_path / "backup", tmp_path / "other")
    other = opened(tmp_path / "other")
    with other.subscribe("sensors.*", heard, name="worker"):
        eventually(lambda: heard.all)
    assert heard.all == [("sensors.b", 2)]
