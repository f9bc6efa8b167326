"""Opening and closing a directory: whose it is, what it was written by, and what a mere look leaves behind."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import heliograph as hg
from heliograph import disk as disks
from heliograph.log.partition import Partition
from heliograph.station import Station
from heliograph.station import station as stations
from tests.proof.tools import checked_log, eventually, tree

Opener = Callable[..., Station]


def edit(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def read_everything(station: Station) -> dict[str, list[Any]]:
    """Every way of looking there is."""
    found = {info.name: [message.data for message in station.read(info.name)] for info in station.channels()}
    for name in found:
        station.channel(name)
        for message in station.read(name):
            assert station.get(message.id) is not None
            assert station.get(message.id, name) is not None
        list(station.read(name, start="-1h"))
    station.subscriptions()
    station.stats()
    return found


# -- whose it is, and what wrote it ----


def test_a_directory_of_another_station_is_refused_and_both_names_are_said(opened: Opener, root: Path) -> None:
    opened().close()
    before = tree(root)
    with pytest.raises(hg.WrongStation, match="'host1', not 'host2'"):
        hg.open(root, name="host2")
    with pytest.raises(hg.WrongStation, match="'host1', not 'host2'"):
        hg.open(root, name="host2", read_only=True)
    assert {name: value[3] for name, value in tree(root).items() if name.endswith(".json")} == {
        name: value[3] for name, value in before.items() if name.endswith(".json")
    }
    with hg.open(root) as station:
        assert station.name == "host1"


@pytest.mark.parametrize("read_only", [False, True])
def test_a_station_of_a_newer_format_is_refused_with_its_version(opened: Opener, root: Path, read_only: bool) -> None:
    opened().close()
    edit(root / "station.json", format=7)
    with pytest.raises(hg.UnsupportedFormat, match=r"format 7.*Upgrade"):
        hg.open(root, read_only=read_only)


@pytest.mark.parametrize("read_only", [False, True])
def test_a_channel_of_a_newer_format_is_refused_with_its_version(opened: Opener, root: Path, read_only: bool) -> None:
    with opened() as station:
        station.publish("a", 1)
        station.publish("b", 1)
    edit(root / "channels" / "a" / "channel.json", format=7)
    with opened(read_only=read_only) as station:
        with pytest.raises(hg.UnsupportedFormat, match=r"format 7.*Upgrade"):
            list(station.read("a"))
        if not read_only:
            with pytest.raises(hg.UnsupportedFormat, match=r"format 7.*Upgrade"):
                station.publish("a", 2)
            with pytest.raises(hg.UnsupportedFormat, match=r"format 7.*Upgrade"):
                station.delete_channel("a")
            station.publish("b", 2)
        assert station.channel("b").messages >= 1


def test_fields_that_a_later_minor_version_added_are_no_reason_to_refuse(opened: Opener, root: Path) -> None:
    with opened() as station:
        station.publish("a", 1)
    edit(root / "station.json", colour="blue")
    edit(root / "channels" / "a" / "channel.json", colour="blue")
    with opened() as station:
        assert [message.data for message in station.read("a")] == [1]


def test_a_station_that_was_given_no_name_is_named_for_its_host_and_keeps_that(root: Path) -> None:
    with hg.open(root) as station:
        name = station.name
        assert name == json.loads((root / "station.json").read_text())["name"]
        station.publish("a", 1)
    with hg.open(root) as station:
        assert station.name == name
        assert next(station.read("a")).source == name


def test_the_host_may_have_a_name_that_no_station_can_have(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Uname:
        nodename = "-bad host-"
        machine = "x86_64"

    monkeypatch.setattr("heliograph.log.directory.os.uname", Uname)
    with hg.open(root) as station:
        assert station.name == "station"


@pytest.mark.parametrize("name", ["", "..", "a/b", "nul\0", "x" * 300])
def test_an_invalid_station_name_makes_no_directory(root: Path, name: str) -> None:
    with pytest.raises(hg.InvalidName):
        hg.open(root, name=name)
    assert not root.exists()


def test_a_damaged_station_file_is_said_to_be_damaged(opened: Opener, root: Path) -> None:
    opened().close()
    (root / "station.json").write_text("{")
    with pytest.raises(hg.Damaged, match=r"station\.json"):
        hg.open(root)


@pytest.mark.parametrize("settings", [{}, {"name": "host1"}, {"read_only": True}], ids=str)
def test_channels_without_a_station_file_are_not_given_to_a_new_station(
    opened: Opener, root: Path, settings: dict[str, Any]
) -> None:
    with opened(name="host1") as station:
        station.publish("alerts", 1)
        life = station.channel("alerts").incarnation
    (root / "station.json").unlink()
    with pytest.raises(hg.Damaged, match=r"station\.json is missing") as caught:
        hg.open(root, **settings)
    assert not (root / "station.json").exists()
    said = str(caught.value)
    assert "backup" in said and "\n" not in said
    (root / "station.json").write_text(said[said.index("{") : said.index("}") + 1].replace("NAME", "host1"))
    with opened(name=None) as station:
        assert station.name == "host1"
        assert [message.data for message in station.read("alerts")] == [1]
        assert station.channel("alerts").incarnation != life  # nobody knows whether it is a copy


def test_an_empty_directory_becomes_a_station_whatever_lies_beside(root: Path) -> None:
    (root / "channels" / "lost+found").mkdir(parents=True)
    (root / "channels" / "a file").touch()
    (root / "subscriptions").mkdir()
    hg.open(root, name="host1").close()
    assert json.loads((root / "station.json").read_text())["name"] == "host1"


# -- network file systems ----


def test_a_network_file_system_is_refused_unless_a_single_process_is_promised(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disks, "file_system", lambda path: "nfs4")
    with pytest.raises(hg.ConfigError, match=r"nfs4.*single_process"):
        hg.open(root)
    with hg.open(root, single_process=True, name="host1") as station:
        station.publish("a", 1)
    with hg.open(root, read_only=True) as station:  # whoever only looks disturbs nobody
        assert [message.data for message in station.read("a")] == [1]


# -- a look without a trace ----


def prepared(opened: Opener, **settings: Any) -> Station:
    """A station with a bit of everything: segments, compressed ones, redactions, a subscription."""
    station = opened(segment_bytes=4096, **settings)
    for n in range(30):
        station.publish("a", {"n": n, "pad": "x" * 300})
    station.publish_many("b", [1, 2, 3])
    station.alter_channel("a", compress=True)
    station.trim("a")
    station.redact(next(station.read("a", start=4)).id)
    with station.subscribe("a", lambda message: None, name="s", start="new"):
        pass
    return station


def test_a_look_at_a_directory_that_nobody_has_open_leaves_no_trace(opened: Opener, root: Path) -> None:
    with prepared(opened) as station:
        expected = read_everything(station)
    before = tree(root)
    with opened(read_only=True) as station:
        assert read_everything(station) == expected
    assert tree(root) == before


@pytest.mark.parametrize("durability", ["always", "interval"])
def test_a_look_beside_a_live_writer_leaves_no_trace_and_sees_what_is_new(
    opened: Opener, root: Path, durability: str
) -> None:
    writer = prepared(opened, durability=durability)
    writer.sync()
    expected = read_everything(writer)
    before = tree(root)
    with opened(read_only=True) as station:
        assert read_everything(station) == expected
        assert tree(root) == before
        writer.publish("b", 4)
        writer.publish("new", 5)
        assert [message.data for message in station.read("b")] == [1, 2, 3, 4]
        assert [message.data for message in station.read("new")] == [5]


@pytest.mark.parametrize("harm", ["head", "index", "head and index", "torn tail", "torn tail and no head"])
def test_a_look_at_what_a_crash_left_sees_every_message_and_mends_nothing(
    opened: Opener, root: Path, harm: str
) -> None:
    with prepared(opened) as station:
        expected = read_everything(station)
    for channel in ("a", "b"):
        directory = root / "channels" / channel / "0"
        if "head" in harm:
            (directory / "head").unlink()
        if "index" in harm:
            for path in directory.glob("*.index"):
                path.unlink()
        if "torn" in harm:
            with max(directory.glob("*.jsonl")).open("ab") as file:
                file.write(b'{"specversion":"1.0","id":"torn')
    before = tree(root)
    with opened(read_only=True) as station:
        assert read_everything(station) == expected
    assert tree(root) == before


def test_whoever_only_looks_does_not_keep_the_first_writer_from_recovering(opened: Opener, root: Path) -> None:
    with opened() as station:
        station.publish_many("a", [1, 2, 3])
    (root / "channels" / "a" / "0" / "head").unlink()
    with opened(read_only=True) as looking:
        assert len(list(looking.read("a"))) == 3
        with opened() as writer:
            assert writer.publish("a", 4).offset == 3
        assert (root / "channels" / "a" / "0" / "head").exists()


def test_whoever_only_looks_is_refused_everything_that_would_change_something(opened: Opener, root: Path) -> None:
    with prepared(opened) as station:
        message = next(station.read("b"))
    before = tree(root)
    with opened(read_only=True) as station:
        for attempt in (
            lambda: station.publish("b", 1),
            lambda: station.publish("new", 1),
            lambda: station.publish_many("b", [1]),
            lambda: station.subscribe("b", print, name="s"),
            lambda: station.redact(message.id),
            lambda: station.create_channel("c"),
            lambda: station.alter_channel("b", compress=True),
            lambda: station.delete_channel("b"),
            station.trim,
            lambda: station.seek("a", "s", 0),
            lambda: station.forget("a", "s"),
        ):
            with pytest.raises(hg.ReadOnly):
                attempt()
    assert tree(root) == before


def test_a_look_at_nothing_makes_nothing(tmp_path: Path) -> None:
    for path in (tmp_path / "missing", tmp_path):
        with pytest.raises(hg.NotFound, match="helio init"):
            hg.open(path, read_only=True)
    assert list(tmp_path.iterdir()) == []


# -- a channel that is deleted under those who have it open ----


@pytest.mark.parametrize("durability", ["always", "interval"])
def test_a_channel_deleted_under_many_threads_is_made_again_and_takes_each_message_once(
    opened: Opener, root: Path, durability: str
) -> None:
    station, deleter = opened(durability=durability), opened()
    going = True
    errors: list[BaseException] = []
    acknowledged: list[tuple[int, int, int]] = []

    def publish(who: int) -> None:
        n = 0
        try:
            while going:
                acknowledged.append((who, n, station.publish("a", [who, n]).offset))
                n += 1
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=publish, args=(who,)) for who in range(6)]
    for thread in threads:
        thread.start()
    for _ in range(20):
        time.sleep(0.005)
        with contextlib.suppress(hg.NotFound):
            deleter.delete_channel("a")
    eventually(lambda: errors or any(info.messages > 100 for info in deleter.channels()))
    going = False
    for thread in threads:
        thread.join()
    assert not errors, [repr(error) for error in errors]
    station.close()
    log = {offset: tuple(envelope["data"]) for offset, envelope in checked_log(root, "a").items()}
    assert sorted(log) == list(range(len(log)))
    places = {data: offset for offset, data in log.items()}
    assert len(places) == len(log), "stored twice"
    begun = dict(sorted(places, reverse=True))
    for who, n, offset in acknowledged:  # the first of each may have been written into the old life
        if n > begun.get(who, n):
            assert places.get((who, n)) == offset, f"{who, n} was acknowledged at {offset}"


# -- twice, and for the last time ----


def test_the_same_directory_opened_twice_in_one_process_is_one_station(opened: Opener) -> None:
    one, two = opened(), opened()
    assert one.publish("a", 1).offset == 0
    assert two.publish("a", 2).offset == 1
    one.close()
    assert two.publish("a", 3).offset == 2
    assert [message.data for message in two.read("a")] == [1, 2, 3]


def test_a_directory_that_was_copied_begins_a_new_life(opened: Opener, root: Path, tmp_path: Path) -> None:
    with opened() as station:
        station.publish("a", 1)
        before = station.channel("a").incarnation
    shutil.copytree(root, tmp_path / "copy")
    with opened(tmp_path / "copy") as copy:
        assert copy.channel("a").incarnation != before
        assert copy.publish("a", 2).offset == 1
        assert next(copy.read("a")).origin == f"host1.{before}"
    with opened() as station:
        assert station.channel("a").incarnation == before


def test_several_threads_may_close_it_at_once(opened: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    station = opened(durability="os")
    station.publish("alerts", "x")
    log = station.engine.open_partitions()[0]
    finish, finished = Partition.finish, [0]

    def slowly(self: Partition) -> None:
        finished[0] += 1
        time.sleep(0.3)
        finish(self)

    monkeypatch.setattr(Partition, "finish", slowly)

    def close() -> None:
        station.close()
        assert log.closed, "who closes it waits for the end of that"

    with ThreadPoolExecutor(3) as pool:
        for done in [pool.submit(close) for _ in range(3)]:
            done.result(20)
    assert finished == [1]


def test_what_ends_with_it_still_finds_it_open_though_several_threads_close_it(opened: Opener) -> None:
    """The links, for example: they store what arrived, and where they stand."""
    station = opened()
    found: list[bool] = []

    def end() -> None:
        time.sleep(0.3)
        found.append(station.closed)

    station.on_close.append(end)
    with ThreadPoolExecutor(3) as pool:
        for done in [pool.submit(station.close) for _ in range(3)]:
            done.result(20)
    assert found == [False]


CLOSED_BY_A_SIGNAL = """
import sys
import heliograph as hg
from heliograph.log.partition import Partition
station = hg.open(sys.argv[1], durability="os")
station.publish("alerts", "x")
finish, signals = Partition.finish, [station.close]
def interrupted(log):
    while signals:
        signals.pop()()
    finish(log)
if sys.argv[2] == "others-end":
    station.on_close += [lambda: None, station.close]
else:
    Partition.finish = interrupted
station.close()
print(station.closed)
"""


@pytest.mark.parametrize("when", ["others-end", "the-engine-is-closed"])
def test_a_signal_that_closes_it_while_it_is_being_closed_waits_for_nobody(root: Path, when: str) -> None:
    """Its handler runs in the very thread that it would wait for."""
    closing = [sys.executable, "-c", CLOSED_BY_A_SIGNAL, str(root), when]
    assert subprocess.run(closing, capture_output=True, text=True, check=True, timeout=30).stdout == "True\n"


def test_closing_again_is_no_error_and_a_context_may_be_closed_inside(opened: Opener) -> None:
    with opened() as station:
        assert not station.closed
        station.close()
        station.close()
    assert station.closed


@pytest.mark.parametrize("durability", ["always", "interval"])
def test_a_closed_station_says_so_whatever_it_is_asked(opened: Opener, durability: str) -> None:
    station = opened(durability=durability)
    receipt = station.publish("a", 1)
    reading = station.read("a", follow=True)
    next(reading)
    subscription = station.subscribe("a", lambda message: None, name="s")
    station.close()
    assert subscription.state == "closed"
    attempts: dict[str, Callable[[], Any]] = {
        "publish": lambda: station.publish("a", 1),
        "publish to a new channel": lambda: station.publish("new", 1),
        "publish_many": lambda: station.publish_many("a", [1]),
        "subscribe": lambda: station.subscribe("a", print),
        "read": lambda: list(station.read("a")),
        "open_range": lambda: station.open_range("a", "first", None, False, None),
        "follow": lambda: next(reading),
        "subscribe to a pattern": lambda: station.subscribe("a.*", print),
        "read a pattern": lambda: list(station.read("a.*")),
        "request": lambda: station.request("a", 1),
        "reply": lambda: station.reply("a", print),
        "forget a pattern": lambda: station.forget("a.*", "s"),
        "get": lambda: station.get(receipt.id),
        "get in a channel": lambda: station.get(receipt.id, "a"),
        "redact": lambda: station.redact(receipt.id),
        "channels": station.channels,
        "channel": lambda: station.channel("a"),
        "create_channel": lambda: station.create_channel("b"),
        "alter_channel": lambda: station.alter_channel("a", compress=True),
        "delete_channel": lambda: station.delete_channel("a"),
        "types": station.types,
        "trim": station.trim,
        "subscriptions": station.subscriptions,
        "subscriptions of a channel": lambda: station.subscriptions("a"),
        "seek": lambda: station.seek("a", "s", 0),
        "forget": lambda: station.forget("a", "s"),
        "queue": lambda: station.queue("a", "q"),
        "queues": station.queues,
        "queue_info": lambda: station.queue_info("a", "q"),
        "release": lambda: station.release("a", "q"),
        "requeue": lambda: station.requeue("a", "q", [(0, 0)]),
        "groups": station.groups,
        "links": station.links,
        "producer": lambda: station.producer("p"),
        "producers": station.producers,
        "forget_producer": lambda: station.forget_producer("a", "p"),
        "atomic": lambda: station.atomic().__enter__(),
        "stats": station.stats,
        "sync": station.sync,
        "publish later": lambda: station.publish("a", 1, delay=60),
        "publish_many later": lambda: station.publish_many("a", [1], delay=60),
        "scheduled": station.scheduled,
        "scheduled_count": station.scheduled_count,
        "cancel": lambda: station.cancel(receipt.id),
        "schedule": lambda: station.schedule("nightly", "a", 1, cron="0 3 * * *"),
        "schedules": station.schedules,
        "unschedule": lambda: station.unschedule("nightly"),
    }
    methods = {name for name, member in vars(Station).items() if callable(member) and not name.startswith("_")}
    assert methods - {"register", "close"} <= set(attempts), "a new method wants its line here"
    for name, attempt in attempts.items():
        try:
            attempt()
        except hg.StationClosed:
            continue
        except Exception as error:
            pytest.fail(f"{name}: {error!r}")
        pytest.fail(f"{name} of a closed station did something")


def test_who_only_looks_sees_a_channel_that_was_made_again_as_it_is_now(opened: Opener) -> None:
    station = opened()
    station.publish_many("alerts", range(5))
    looking = opened(read_only=True)
    assert looking.channel("alerts").messages == 5
    station.delete_channel("alerts")
    station.publish("alerts", "new")
    assert looking.channel("alerts").messages == 1
    assert [channel.messages for channel in looking.stats().channels] == [1]


def test_a_process_may_go_to_another_directory_after_opening(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    done = threading.Event()
    with hg.open("data", name="host1", segment_bytes=4096) as station:
        station.publish("alerts", 0)
        monkeypatch.chdir(tmp_path / "elsewhere")  # as a daemon does
        station.subscribe("alerts", lambda message: message.data == 100 and done.set(), name="pager", start="first")
        for number in range(1, 101):
            station.publish("alerts", number)
        station.publish("orders", 1)
        station.publish("orders", 2, delay=3600)
        assert done.wait(10)
        assert [message.data for message in station.read("alerts")] == list(range(101))
    assert not list((tmp_path / "elsewhere").iterdir())
    with hg.open(tmp_path / "data") as station:
        assert [info.offset for info in station.subscriptions()] == [101]
        assert (station.channel("orders").messages, station.scheduled_count()) == (1, 1)


def test_a_directory_that_was_moved_away_is_not_begun_anew_in_its_old_place(tmp_path: Path) -> None:
    station = hg.open(tmp_path / "data", name="host1")
    station.publish("alerts", 1)
    (tmp_path / "data").rename(tmp_path / "moved")
    with pytest.raises(hg.StorageError, match="moved or deleted"):
        station.publish("orders", 1)
    station.close()
    assert not (tmp_path / "data").exists()


def test_a_subscription_that_begins_while_the_station_is_closed_ends_with_it(
    opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    station = opened()
    station.publish_many("alerts", range(1000))
    got: list[int] = []
    begun: list[hg.Subscription] = []

    def handle(message: hg.Message) -> None:
        got.append(message.offset)
        time.sleep(0.01)

    def closed_meanwhile(**options: Any) -> hg.Subscription:
        begun.append(start_subscription(**options))
        eventually(lambda: got)
        station.close()
        return begun[0]

    start_subscription = stations.start_subscription
    monkeypatch.setattr(stations, "start_subscription", closed_meanwhile)
    with pytest.raises(hg.StationClosed):
        station.subscribe("alerts", handle, start="first")
    assert begun[0].closed
    assert len(got) < 1000
