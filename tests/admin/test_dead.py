"""Dead letters can be listed, replayed and purged; a replay may be interrupted anywhere."""

from __future__ import annotations

import io
import json
import os
import random
import signal
import subprocess
import sys
import time
from base64 import b64decode
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import heliograph as hg
from heliograph.admin import dead, where
from heliograph.admin.verify import verify
from heliograph.engine.partitions import OpenPartition, OpenPartitions
from tests.admin.helpers import open_station, partition
from tests.faults import Died, FaultyDisk, QuickDisk

LETTERS = 30


def bury(station: hg.Station, count: int = LETTERS, *, first: int = 0, error: str = "ValueError", **extra: Any) -> None:
    """Dead letters as a subscription writes them, without waiting for its retries."""
    subscribed(station, "worker-1")
    for number in range(first, first + count):
        receipt = station.publish(
            "alerts", {"n": number, "ratio": 1.50}, type="alert.v1", key=f"k{number % 3}",
            headers={"team": "blue"} | extra, correlation_id=f"c{number}", subject="s",
        )  # fmt: skip
        message = next(iter(station.read("alerts", start=receipt.offset)))
        letter = {
            "original": message.envelope, "reason": "handler", "error": f"{error}: boom",
            "error_type": f"builtins.{error}", "traceback": "Traceback …", "attempts": 6, "subscription": "worker-1",
            "channel": "alerts", "partition": 0, "offset": receipt.offset, "incarnation": "abcdef",
            "failed_at": f"2026-11-15T20:30:{number % 60:02d}Z",
        }  # fmt: skip
        station.publisher.publish_own("alerts.dead-letter", "heliograph.dead-letter.v1", letter, message.key)


def subscribed(station: hg.Station, name: str) -> None:
    """There is such a subscription, though nobody is there now."""
    station.subscribe("alerts", lambda message: None, name=name).close()


def replayed(station: hg.Station) -> Counter[int]:
    return Counter(m.data["n"] for m in station.read("alerts") if "replayof" in m.headers)


def left(station: hg.Station) -> list[int]:
    return [letter.original["data"]["n"] for letter in dead.letters(station, "alerts") if letter.original]


def test_letters_of_a_real_subscription_are_read_and_replayed(tmp_path: Path) -> None:
    with open_station(tmp_path) as station:

        def fail(message: hg.Message) -> None:
            raise ValueError("boom")

        with station.subscribe("alerts", fail, name="worker-1", start="first", retry=hg.Retry(max_retries=0)):
            sent = station.publish("alerts", {"n": 1}, type="alert.v1", key="k")
            deadline_s = time.monotonic() + 20
            while not station.engine.positions.names("alerts") or not list(dead.letters(station)):
                assert time.monotonic() < deadline_s
                time.sleep(0.02)
        (letter,) = dead.letters(station)
        assert (letter.channel, letter.subscription, letter.reason, letter.error_type) == (
            "alerts", "worker-1", "handler", "builtins.ValueError",
        )  # fmt: skip
        assert (letter.original_id, letter.type, letter.key, letter.attempts) == (sent.id, "alert.v1", "k", 1)
        assert dead.replay(station, "alerts").replayed == 1
        assert not list(dead.letters(station))


def test_a_copy_has_everything_of_its_original_and_says_where_it_comes_from(tmp_path: Path) -> None:
    with open_station(tmp_path) as station:
        bury(station, 1)
        (letter,) = dead.letters(station, "alerts.dead-letter")
        original = next(iter(station.read("alerts")))
        report = dead.replay(station, "alerts")
        assert (report.matched, report.replayed, report.removed, report.skipped) == (1, 1, 1, [])
        copy = list(station.read("alerts"))[-1]
        assert copy.id != original.id
        for name in ("data", "type", "source", "key", "correlationid", "subject", "channel"):
            assert getattr(copy, name) == getattr(original, name), name
        assert copy.headers == {
            "team": "blue", "replayof": original.id, "replaycount": 1, "replayletter": letter.id,
        }  # fmt: skip
        assert b'"ratio":1.5' in copy.raw
        assert copy.time > original.time
        assert verify(station).ok


def test_a_message_that_fails_again_shows_how_often_it_was_replayed(tmp_path: Path) -> None:
    with open_station(tmp_path) as station:
        bury(station, 1)
        subscribed(station, "w")
        root = next(iter(station.read("alerts"))).id
        for count in (1, 2, 3):
            dead.replay(station, "alerts")
            copy = list(station.read("alerts"))[-1]
            assert (copy.headers["replayof"], copy.headers["replaycount"]) == (root, count)
            letter = {
                "original": copy.envelope, "reason": "handler", "subscription": "w", "incarnation": "a",
                "partition": 0, "offset": copy.offset,
            }  # fmt: skip
            station.publisher.publish_own("alerts.dead-letter", "heliograph.dead-letter.v1", letter, None)
            assert [found.replays for found in dead.letters(station)] == [count]
        assert dead.summary(station)[0].replayed == 1


def test_letters_are_chosen_by_conditions_and_offsets(tmp_path: Path) -> None:
    with open_station(tmp_path) as station:
        bury(station, 6)
        bury(station, 3, first=6, error="TimeoutError")
        assert [letter.offset for letter in dead.letters(station, "alerts", where.parse("key=k1"))] == [1, 4, 7]
        dry = dead.replay(station, "alerts", where=where.parse("error_type=builtins.TimeoutError"), dry_run=True)
        assert (dry.matched, dry.replayed, dry.removed) == (3, 3, 0)
        assert not replayed(station)
        assert len(left(station)) == 9
        dead.replay(station, "alerts", where=where.parse(["error_type=builtins.TimeoutError", "data.n>=8"]))
        assert replayed(station) == {8: 1}
        dead.replay(station, "alerts", offsets=[0, 2])
        assert replayed(station) == {8: 1, 0: 1, 2: 1}
        assert left(station) == [1, 3, 4, 5, 6, 7]


def test_a_summary_groups_by_reason_error_and_subscription(tmp_path: Path) -> None:
    with open_station(tmp_path) as station:
        bury(station, 4)
        bury(station, 2, first=4, error="TimeoutError")
        groups = dead.summary(station)
        assert [(one.channel, one.reason, one.error_type, one.subscription, one.count) for one in groups] == [
            ("alerts", "handler", "builtins.ValueError", "worker-1", 4),
            ("alerts", "handler", "builtins.TimeoutError", "worker-1", 2),
        ]
        assert groups[0].first.second == 0
        assert groups[0].last.second == 3
        assert dead.summary(station, "alerts", where.parse("attempts>6")) == []


def test_a_summary_keeps_groups_and_queues_apart_and_knows_their_workers(tmp_path: Path) -> None:
    with open_station(tmp_path, disk=QuickDisk()) as station:
        bury(station, 2)
        for worker, attempts, kind in (("w1", 3, "group"), ("w2", 7, "group"), ("w1", 1, "queue")):
            letter = {
                "original": next(iter(station.read("alerts"))).envelope, "reason": "handler", "subscription": "crew",
                "incarnation": "a", "partition": 0, "offset": 0, kind: "crew", "worker": worker, "attempts": attempts,
            }  # fmt: skip
            station.publisher.publish_own("alerts.dead-letter", "heliograph.dead-letter.v1", letter, None)
        found = {(one.subscription, one.kind, one.count, one.attempts, *one.workers) for one in dead.summary(station)}
        assert found == {
            ("worker-1", "plain", 2, 6), ("crew", "group", 2, 7, "w1", "w2"), ("crew", "queue", 1, 1, "w1"),
        }  # fmt: skip
        kinds = [(letter.group, letter.queue) for letter in dead.letters(station, None, where.parse("worker=w1"))]
        assert kinds == [("crew", None), (None, "crew")]


def test_a_letter_is_found_by_its_id_its_originals_id_and_its_offset(tmp_path: Path) -> None:
    with open_station(tmp_path) as station:
        bury(station, 3)
        third = list(dead.letters(station))[2]
        assert third.original_id is not None
        for reference, channel in ((third.id, None), (third.original_id, None), (2, "alerts")):
            assert dead.find(station, reference, channel).id == third.id
        for reference, channel in (("nothing", None), (99, "alerts")):
            with pytest.raises(hg.NotFound):
                dead.find(station, reference, channel)
        with pytest.raises(hg.ConfigError):
            dead.find(station, 2)


def test_what_cannot_be_decoded_is_skipped_with_a_reason_and_stays(tmp_path: Path) -> None:
    with open_station(tmp_path) as station:
        bury(station, 1)
        letter = {
            "original": None, "original_base64": "Z2FyYmFnZQ==", "reason": "undecodable", "subscription": "w",
            "incarnation": "a", "partition": 0, "offset": 5,
        }  # fmt: skip
        station.publisher.publish_own("alerts.dead-letter", "heliograph.dead-letter.v1", letter, None)
        station.publisher.publish_own("alerts.dead-letter", "else.v1", "not a letter", None)
        report = dead.replay(station, "alerts")
        assert (report.matched, report.replayed) == (3, 1)
        assert [skipped.offset for skipped in report.skipped] == [1, 2]
        kept = list(dead.letters(station))
        assert [one.reason for one in kept] == ["undecodable", "unknown"]
        assert b64decode(kept[0].original_base64 or "") == b"garbage"


def test_a_replay_of_many_letters_makes_few_segments_and_gives_their_room_back(tmp_path: Path) -> None:
    with open_station(tmp_path, durability="os", segment_bytes=4_000_000) as station:
        bury(station, 1000)
        seen: list[tuple[int, int]] = []
        report = dead.replay(station, "alerts", progress=lambda done, total: seen.append((done, total)))
        assert report.replayed == 1000
        assert replayed(station) == dict.fromkeys(range(1000), 1)
        assert len(list(partition(tmp_path, "alerts.dead-letter").glob("*.jsonl"))) == 1
        info = station.channel("alerts.dead-letter")
        assert (info.messages, info.next) == (0, 1000)
        assert seen[-1] == (1000, 1000)
        assert verify(station).ok
        bury(station, 2, first=1000)
        assert left(station) == [1000, 1001]


def test_letters_that_arrive_during_a_replay_wait_for_the_next_one(tmp_path: Path) -> None:
    with open_station(tmp_path) as station:
        bury(station, 3)
        for number in range(3):
            station.publish("other", number)
        done: list[int] = []

        def arrive(at: int, _: int) -> None:
            if not done:
                bury(station, 1, first=50)
            done.append(at)

        dead.replay(station, "alerts", progress=arrive)
        assert replayed(station) == {0: 1, 1: 1, 2: 1}
        assert left(station) == [50]


def test_purge_removes_what_is_chosen_and_says_so_in_the_audit(tmp_path: Path) -> None:
    with open_station(tmp_path) as station:
        bury(station, 10)
        assert dead.purge(station, "alerts", where=where.parse("key=k0"), dry_run=True).matched == 4
        assert len(left(station)) == 10
        report = dead.purge(station, "alerts", where=where.parse("key=k0"))
        assert (report.matched, report.removed) == (4, 4)
        assert left(station) == [1, 2, 4, 5, 7, 8]
        assert dead.purge(station, "alerts").removed == 6
        assert left(station) == []
        assert not replayed(station)
    events = [json.loads(line)["event"] for line in (tmp_path / "audit" / "audit.jsonl").read_bytes().splitlines()]
    assert events.count("dead-letters-purged") == 2


def test_an_export_holds_the_letters_as_stored(tmp_path: Path) -> None:
    with open_station(tmp_path) as station:
        bury(station, 3)
        out = io.BytesIO()
        assert dead.export(station, None, out, where=where.parse("data.n!=1")) == 2
        stored = [message.raw for message in station.read("alerts.dead-letter")]
        assert out.getvalue().splitlines() == [stored[0], stored[2]]


def test_unknown_channels_are_errors_and_channels_without_letters_are_not(tmp_path: Path) -> None:
    with open_station(tmp_path) as station:
        station.publish("quiet", 1)
        assert dead.replay(station, "quiet").matched == 0
        assert dead.purge(station, "quiet").matched == 0
        assert dead.summary(station) == []
        for action in (dead.replay, dead.purge):
            with pytest.raises(hg.NotFound):
                action(station, "nothing")


def test_two_replays_at_once_are_refused(tmp_path: Path) -> None:
    with open_station(tmp_path) as station, open_station(tmp_path) as other:
        bury(station, 2)

        def meanwhile(done: int, total: int) -> None:
            with pytest.raises(hg.Busy):
                dead.replay(other, "alerts")

        assert dead.replay(station, "alerts", progress=meanwhile).replayed == 2


# -- interruptions --------------------------------------------------------------------------------------------------


def test_a_replay_interrupted_between_publish_and_removal_neither_loses_nor_doubles(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead, "GROUP", 7)
    with open_station(tmp_path) as station:
        bury(station, 20)
        redact, calls = station.engine.redact, []

        def fail_the_second(*arguments: Any) -> None:
            calls.append(arguments)
            if len(calls) == 2:
                raise KeyboardInterrupt
            redact(*arguments)

        monkeypatch.setattr(station.engine, "redact", fail_the_second)
        with pytest.raises(KeyboardInterrupt):
            dead.replay(station, "alerts")
        assert sum(replayed(station).values()) == 14
        assert len(left(station)) == 13
        dry = dead.replay(station, "alerts", dry_run=True)
        assert (dry.resumed, dry.replayed) == (7, 6)
        report = dead.replay(station, "alerts")
        assert (report.resumed, report.replayed, report.removed) == (7, 6, 13)
        assert replayed(station) == dict.fromkeys(range(20), 1)
        assert left(station) == []


def test_a_replay_whose_publishing_failed_publishes_everything_the_next_time(tmp_path: Path) -> None:
    disk = FaultyDisk()
    with open_station(tmp_path, disk=disk) as station:
        bury(station, 5)
        disk.fail("pwrite", path="channels/alerts/0/")
        with pytest.raises(hg.StorageError):
            dead.replay(station, "alerts")
        assert left(station) == list(range(5))
        report = dead.replay(station, "alerts")
        assert (report.resumed, report.replayed) == (0, 5)
        assert replayed(station) == dict.fromkeys(range(5), 1)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # its threads die, too
@pytest.mark.parametrize("durability", ["always", "os"])
def test_a_replay_that_dies_at_any_call_of_the_disk_neither_loses_nor_doubles(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, durability: str
) -> None:
    monkeypatch.setattr(dead, "GROUP", 3)
    for number in range(1, 200):
        path, disk = tmp_path / str(number), FaultyDisk()
        station = open_station(path, disk=disk, durability=durability)
        bury(station, 6)
        disk.kill_at(number)
        try:
            dead.replay(station, "alerts")
            survived = True
        except Died:
            survived = False
        station.engine.abandon()  # as the kernel does with a dead process's files
        station._upkeep.close()
        with open_station(path, disk=QuickDisk()) as again:
            report = dead.replay(again, "alerts")
            assert replayed(again) == dict.fromkeys(range(6), 1), number
            assert left(again) == []
            assert not report.skipped
            assert verify(again).ok
        if survived:
            assert number > 20
            return
    pytest.fail("a replay takes more than 200 calls")


REPLAY = """
import sys, heliograph as hg
from heliograph.admin import dead
dead.GROUP = 5
with hg.open(sys.argv[1], name="host1", segment_bytes=8192) as station:
    print("ready", flush=True)
    dead.replay(station, "alerts")
"""


def test_a_replay_that_is_killed_again_and_again_neither_loses_nor_doubles(tmp_path: Path) -> None:
    luck = random.Random(7)
    with open_station(tmp_path) as station:
        bury(station, 200)
        kills = 0
        for _ in range(30):
            child = subprocess.Popen([sys.executable, "-c", REPLAY, str(tmp_path)], stdout=subprocess.PIPE, text=True)
            with child:
                assert child.stdout is not None
                assert child.stdout.readline() == "ready\n"
                time.sleep(luck.random() * 0.03)
                child.send_signal(signal.SIGKILL)
            kills += child.returncode == -signal.SIGKILL
            if not left(station):
                break
        dead.replay(station, "alerts")
        assert kills
        assert replayed(station) == dict.fromkeys(range(200), 1)
        assert left(station) == []
        assert verify(station, repair=True).ok
    assert os.listdir(tmp_path / "dead") == ["alerts.lock"]


DYING = """
import os, signal
from heliograph.disk import Disk

def sync_or_die(fd):
    if "/channels/alerts/" in (name := os.readlink(f"/proc/self/fd/{fd}")) and name.endswith(".jsonl"):
        os.kill(os.getpid(), signal.SIGKILL)
    os.fdatasync(fd)

Disk.fdatasync = staticmethod(sync_or_die)
"""


def test_copies_whose_replay_was_killed_before_their_sync_are_not_published_again(tmp_path: Path) -> None:
    with open_station(tmp_path) as station:
        bury(station)
        child = subprocess.run(
            [sys.executable, "-c", DYING + REPLAY, str(tmp_path)], check=False, stdout=subprocess.PIPE
        )
        assert child.returncode == -signal.SIGKILL
        dead.replay(station, "alerts")
        assert replayed(station) == dict.fromkeys(range(LETTERS), 1)


@pytest.mark.parametrize("compress", [False, True])
def test_the_statistics_count_the_letters_that_are_left(tmp_path: Path, compress: bool) -> None:
    def waiting() -> int:
        (stats,) = [one for one in station.stats().channels if one.channel == "alerts"]
        return stats.dead_letters

    with open_station(tmp_path, disk=QuickDisk(), compress=compress) as station:
        station.publish("alerts", 0)
        assert waiting() == 0
        bury(station)
        assert waiting() == LETTERS
        dead.purge(station, "alerts", offsets=[LETTERS - 1])
        assert waiting() == LETTERS - 1
        station.trim()
        dead.purge(station, "alerts", offsets=[1, 5])
        assert waiting() == LETTERS - 3
        bury(station, 2, first=LETTERS)
        assert waiting() == LETTERS - 1
        assert dead.replay(station, "alerts", offsets=[0, 2, 7]).replayed == 3
        assert waiting() == LETTERS - 4 == len(left(station))
        dead.purge(station, "alerts")
        assert waiting() == 0
        station.delete_channel("alerts.dead-letter")
        assert waiting() == 0


def test_a_partition_that_is_closed_for_room_meanwhile_is_opened_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other channels may need the descriptors between any two steps of a replay."""
    with open_station(tmp_path, disk=QuickDisk()) as station:
        bury(station)
        real = OpenPartitions.get
        evictions: list[str] = []

        def get_and_close(self: OpenPartitions, channel: str, number: int) -> OpenPartition:
            entry = real(self, channel, number)
            if len(evictions) % 2 == 0 and entry.close_if_idle():
                del self.known[channel, number]
            evictions.append(channel)
            return entry

        monkeypatch.setattr(OpenPartitions, "get", get_and_close)
        assert dead.replay(station, "alerts").replayed == LETTERS
        bury(station, 3)
        assert dead.purge(station, "alerts").removed == 3
        monkeypatch.undo()
        assert len(evictions) > 10
        assert replayed(station) == Counter(range(LETTERS))
        assert left(station) == []
