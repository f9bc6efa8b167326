"""Two hubs that each lack something have the same messages after a sync: real stations, mutual TLS, nothing doubled."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import heliograph as hg
from heliograph.admin.sync import SyncReport, sync
from heliograph.engine.origins import station_of
from heliograph.federation import autosync
from heliograph.federation.conversation import Conversation
from heliograph.federation.desk import Desk
from heliograph.federation.events import Called
from heliograph.federation.link import Link
from heliograph.federation.shelf import Shelf
from heliograph.federation.syncing import Left, Side
from heliograph.log.lines import intact
from heliograph.seen import SeenSet
from tests.arrivals import lines as made
from tests.federation.chaos import Proxy
from tests.federation.stations import ROOT, Net, audited, lines, payloads, up, wait_for

CHANNELS = ("alerts", "sensors.kitchen")
HOST2, HOST3 = "host2.aaaaaa", "host3.bbbbbb"


@pytest.fixture
def net(tmp_path: Path) -> Net:
    return Net(tmp_path)


def hubs(net: Net, rule: dict[str, Any] | None = None, **south: Any) -> None:
    """North is a hub; south is one as well, and may do everything at north unless a rule says otherwise."""
    allowed = {"publish": [">"], "subscribe": [">"], "relay": [">"]}
    net.station("north", peers=[{"name": "south", **(allowed if rule is None else rule)}])
    net.station("south", **south)


def give(net: Net, name: str, *found: list[bytes], channel: str = "alerts") -> None:
    """Lines of other stations, as a link brought them."""
    with net.open(name, federate=False) as station:
        for some in found:
            assert not station.engine.relayed.arrive(channel, some).refused


def say(net: Net, name: str, *texts: Any, channel: str = "alerts") -> None:
    with net.open(name, federate=False) as station:
        station.publish_many(channel, texts)


@contextlib.contextmanager
def north(net: Net) -> Iterator[hg.Station]:
    with net.open("north") as station:
        yield station


def run(net: Net, *channels: str, sides: Sequence[Side] = ("here", "there"), **options: Any) -> SyncReport:
    """South syncs with north, as ``helio sync`` does."""
    with net.open("south", federate=False) as station:
        return sync(station, net.address("north"), channels, sides=tuple(sides), **options)


def seen(net: Net, name: str, channel: str = "alerts") -> SeenSet:
    with net.open(name, federate=False) as station:
        return station.engine.relayed.seen(channel)


def check_equal(net: Net, *channels: str) -> None:
    """Both have seen the same and hold the same bytes, each line once and intact."""
    for channel in channels or ("alerts",):
        north, south = (lines(net.path(name), channel) for name in ("north", "south"))
        assert len(set(north)) == len(north), "nothing is there twice"
        assert len(set(south)) == len(south), "nothing is there twice"
        assert sorted(north) == sorted(south), "byte for byte"
        assert all(map(intact, north)), "checksums hold"
        assert seen(net, "north", channel) == seen(net, "south", channel)


def left(report: SyncReport) -> list[tuple[str, str, str, int]]:
    found: list[Left] = [left for one in report.channels for left in one.left]
    return [(one.side, str(station_of(one.origin)), one.why, one.messages) for one in found]


# -- what it is for -----------------------------------------------------------------------------------------


def test_two_hubs_that_each_lack_parts_of_several_channels_and_origins_become_equal(net: Net) -> None:
    hubs(net)
    for channel in CHANNELS:
        host2, host3 = made(0, 100, HOST2, channel=channel), made(0, 50, HOST3, 1, channel=channel)
        say(net, "north", "n1", "n2", channel=channel)
        give(net, "north", host2[:40], host2[60:90], channel=channel)  # a hole in the middle, and the end
        say(net, "north", "n3", channel=channel)
        give(net, "south", host2[30:70], host3, host2[90:], channel=channel)
        say(net, "south", "s1", channel=channel)
    with north(net):
        report = run(net, "alerts", "sensors.>")
        assert report.equal and (report.fetched, report.sent) == (2 * (30 + 20 + 3), 2 * (20 + 10 + 50 + 1))
        assert report.hub == "north" and [one.channel for one in report.channels] == list(CHANNELS)
        again = run(net, "alerts", "sensors.>")
        assert again.equal and (again.fetched, again.sent) == (0, 0), "nothing is left to be done"
        assert [one.lacking for one in again.channels] == [[], []]
    check_equal(net, *CHANNELS)


def test_a_dry_run_counts_and_changes_nothing(net: Net) -> None:
    hubs(net)
    host2 = made(0, 100)
    say(net, "north", "n1")
    give(net, "north", host2[:40])
    say(net, "north", "n2")  # its sequence is 41: those between belong to no message, and nobody lacks them
    give(net, "south", host2[30:45])
    before = {name: lines(net.path(name), "alerts") for name in ("north", "south")}
    with north(net):
        report = run(net, "alerts", dry_run=True)
        assert not report.equal and not left(report)
        found = {station_of(one.origin): (one.here, one.there) for one in report.channels[0].lacking}
        assert found == {"host2": (30, 5), "north": (2, 0)}
        assert {name: lines(net.path(name), "alerts") for name in before} == before
        assert run(net, "alerts").equal
        assert run(net, "alerts", dry_run=True).equal
    check_equal(net)


def test_one_direction_at_a_time(net: Net) -> None:
    hubs(net)
    say(net, "north", "n")
    say(net, "south", "s")
    with north(net):
        pulled = run(net, "alerts", sides=["here"])
        assert pulled.equal and (pulled.fetched, pulled.sent) == (1, 0)
        assert payloads(net.path("north"), "alerts") == ["n"]
        pushed = run(net, "alerts", sides=["there"])
        assert pushed.equal and (pushed.fetched, pushed.sent) == (0, 1)
    check_equal(net)


def test_channels_of_several_partitions_that_only_one_side_has(net: Net) -> None:
    hubs(net, storage={"partitions": 3})
    with net.open("south", federate=False) as south:
        for number in range(100):
            south.publish("sensors.cellar", number, key=f"k{number % 7}")
            south.publish("sensors.cellar", number)
    with net.open("north", federate=False) as station:
        station.create_channel("sensors.attic", partitions=2)
        for number in range(100):
            station.publish("sensors.attic", number, key=f"k{number % 5}")
    with north(net):
        report = run(net, ">")
        assert report.equal and (report.fetched, report.sent) == (100, 200)
    check_equal(net, "sensors.attic", "sensors.cellar")
    with net.open("south", read_only=True) as south:
        for key in range(5):
            found = [message.data for message in south.read("sensors.attic") if message.key == f"k{key}"]
            assert found == sorted(found), "in the order of their origin"


def test_a_set_that_needs_several_frames_and_lines_that_need_many(net: Net) -> None:
    hubs(net)
    host2 = made(0, 13_000)
    give(net, "north", host2[::2])
    give(net, "south", host2[1::2])
    with north(net):
        report = run(net, "alerts")
        assert report.equal and (report.fetched, report.sent) == (6_500, 6_500)
    check_equal(net)


def test_with_nothing_to_do_no_log_is_looked_at(net: Net, monkeypatch: pytest.MonkeyPatch) -> None:
    hubs(net)
    say(net, "north", "n")
    give(net, "north", made(0, 10))
    say(net, "north", "m")
    with north(net):
        assert run(net, "alerts").equal
        for name in ("fetch", "store"):
            monkeypatch.delattr(f"heliograph.federation.exchange.Exchange.{name}")
        monkeypatch.delattr("heliograph.federation.shelf.Shelf.pick")
        assert run(net, "alerts").equal


def test_messages_that_are_published_meanwhile_do_no_harm(net: Net) -> None:
    hubs(net)
    publisher = "import sys, heliograph as hg\nwith hg.open(sys.argv[1], federate=False) as station:\n"
    publisher += "    print('ready', flush=True)\n    while True: station.publish('alerts', 'x')"
    say(net, "south", "s")
    with north(net) as station, python(publisher, str(net.path("south"))):
        for _ in range(5):
            station.publish_many("alerts", ["y"] * 20)
            assert run(net, "alerts").equal
    with north(net):
        assert run(net, "alerts").equal
    check_equal(net)


@contextlib.contextmanager
def python(program: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A process that has said that it is ready, killed in the end."""
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
    child = subprocess.Popen(
        [sys.executable, "-c", program, *arguments], env=environment, stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    try:
        assert child.stdout.readline() == "ready\n"
        yield child
    finally:
        child.kill()
        child.wait()
        child.stdout.close()


# -- beside links -------------------------------------------------------------------------------------------


def test_it_runs_beside_a_live_link_of_the_same_station_to_the_same_hub(net: Net) -> None:
    """And brings what that link does not: another direction, and what was there before its start."""
    hubs(net, links=[{"hub": "north", "subscribe": ["commands"], "publish": ["alerts"], "start": "new"}])
    say(net, "north", "old", channel="commands")
    give(net, "north", made(0, 10))
    with north(net) as hub:
        served = net.run("south")
        wait_for(lambda: up(hub, "south"))
        hub.publish("commands", "new")
        wait_for(lambda: payloads(net.path("south"), "commands") == ["new"])
        report = run(net, "alerts", "commands")
        assert report.equal and (report.fetched, report.sent) == (11, 0)
        assert up(hub, "south") and [one.reconnects for one in hub.links()] == [0]
        with net.open("south", federate=False) as south:
            south.publish("alerts", "over the link")
        wait_for(lambda: "over the link" in payloads(net.path("north"), "alerts"))
        assert served.end() == 0 and served.complaints() == ""
    check_equal(net, "alerts", "commands")
    assert payloads(net.path("south"), "commands") == ["new", "old"]


def test_without_channels_it_does_what_the_link_says_each_its_way(net: Net) -> None:
    links = [{"hub": "north", "subscribe": ["commands"], "publish": ["alerts"], "sync": ["chat.>"]}]
    hubs(net, links=links)
    for channel in ("alerts", "commands", "chat.a"):
        say(net, "north", "n", channel=channel)
        say(net, "south", "s", channel=channel)
    with north(net):
        report = run(net)
        assert report.equal and (report.fetched, report.sent) == (2, 2)
    assert payloads(net.path("south"), "commands") == ["s", "n"] and payloads(net.path("north"), "commands") == ["n"]
    assert payloads(net.path("north"), "alerts") == ["n", "s"] and payloads(net.path("south"), "alerts") == ["s"]
    check_equal(net, "chat.a")


def test_a_link_syncs_by_itself_whenever_it_comes_up(net: Net) -> None:
    hubs(net, links=[{"hub": "north", "publish": ["alerts"], "sync": ["alerts", "chat.*"]}])
    host2 = made(0, 100)
    give(net, "north", host2[:60])
    say(net, "north", "n", channel="chat.a")
    give(net, "south", host2[40:])
    say(net, "south", "s", channel="chat.b")

    with net.open("south") as south:
        for fetched, sent in ((41, 1), (0, 0)):  # the stream sends what is in alerts, the sync does the rest, once
            with north(net):
                wait_for(lambda n=fetched: up(south, "north") and (one := south.links()[0].synced) and one.fetched == n)
                done = south.links()[0].synced
                assert done is not None and (done.channels, done.left, done.error) == (3, {}, "")
                assert done.sent == sent
            wait_for(lambda: not up(south, "north"))
    check_equal(net, "alerts", "chat.a", "chat.b")
    assert {(one["channel"], one["fetched"], one["sent"]) for one in audited(net.path("south"), "synced")} == {
        ("alerts", 40, 0), ("chat.a", 1, 0), ("chat.b", 0, 1),
    }  # fmt: skip


def test_a_link_says_what_its_sync_could_not_do_and_stays_up(net: Net) -> None:
    hubs(net, {"publish": ["alerts"], "subscribe": ["alerts"]}, links=[{"hub": "north", "sync": ["alerts"]}])
    give(net, "south", made(0, 3))
    say(net, "north", "n", channel="logs")
    with north(net), net.open("south") as south:
        wait_for(lambda: south.links()[0].synced)
        done = south.links()[0].synced
        assert done is not None and (done.channels, done.fetched, done.sent, done.error) == (1, 0, 0, "")
        assert list(done.left) == ["alerts"]
        assert "3 of host2.aaaaaa are lacking there: not allowed (south is not allowed to relay" in done.left["alerts"]
        assert up(south, "north") and not south.links()[0].parked
        hubs(net, links=[{"hub": "north", "sync": ["alerts", "logs"]}])  # both sides load their rules anew
        wait_for(lambda: payloads(net.path("south"), "logs") == ["n"])
        assert south.links()[0].reconnects == 0
    check_equal(net)


def test_a_link_syncs_again_when_the_hub_allows_what_it_refused(net: Net) -> None:
    nothing: dict[str, Any] = {"publish": [], "subscribe": []}
    hubs(net, nothing, links=[{"hub": "north", "sync": ["alerts"]}])
    say(net, "north", "n")
    with north(net), net.open("south") as south:
        wait_for(lambda: south.links()[0].synced)
        assert payloads(net.path("south"), "alerts") == []
        hubs(net, links=[{"hub": "north", "sync": ["alerts"]}])
        wait_for(lambda: payloads(net.path("south"), "alerts") == ["n"])
        assert south.links()[0].reconnects == 0


def test_a_link_syncs_what_it_is_told_to_while_it_does(net: Net, monkeypatch: pytest.MonkeyPatch) -> None:
    wait, loaded = threading.Event(), threading.Event()
    real, reload = autosync.channels_known, Link.reload

    async def slow(*arguments: Any) -> list[str]:
        await asyncio.get_running_loop().run_in_executor(None, wait.wait)
        return await real(*arguments)

    def load(link: Link, rules: Any) -> None:
        reload(link, rules)
        loaded.set()

    monkeypatch.setattr(autosync, "channels_known", slow)
    monkeypatch.setattr(Link, "reload", load)
    hubs(net, links=[{"hub": "north", "sync": ["alerts"]}])
    say(net, "north", "n", channel="logs")
    with north(net), net.open("south") as south:
        wait_for(lambda: up(south, "north"))
        hubs(net, links=[{"hub": "north", "sync": ["logs"]}])
        assert loaded.wait(30)
        wait.set()
        wait_for(lambda: payloads(net.path("south"), "logs") == ["n"])


def test_a_sync_that_failed_is_begun_again(net: Net, monkeypatch: pytest.MonkeyPatch) -> None:
    real = autosync.channels_known
    failures = iter([OSError("the disk is tired")])

    async def tired(*arguments: Any) -> list[str]:
        for failure in failures:
            raise failure
        return await real(*arguments)

    monkeypatch.setattr(autosync, "AGAIN_S", 0.1)
    monkeypatch.setattr(autosync, "channels_known", tired)
    hubs(net, links=[{"hub": "north", "sync": ["alerts"]}])
    say(net, "north", "n")
    with north(net), net.open("south") as south:
        wait_for(lambda: payloads(net.path("south"), "alerts") == ["n"])
        wait_for(lambda: (done := south.links()[0].synced) and not done.error)


# -- backups, other ways, what is gone ----------------------------------------------------------------------


def test_a_hub_that_was_restored_from_an_old_backup_gets_back_what_it_and_others_had(net: Net) -> None:
    hubs(net)
    host2 = made(0, 60)
    say(net, "south", "a", "b")
    give(net, "south", host2[:20])
    with north(net):
        assert run(net, "alerts").equal
        shutil.copytree(net.path("south"), net.directory / "backup")
        say(net, "south", "c", "d")
        give(net, "south", host2[20:40])
        assert run(net, "alerts").sent == 22
        shutil.rmtree(net.path("south"))
        shutil.move(net.directory / "backup", net.path("south"))
        say(net, "south", "e")
        give(net, "south", host2[40:])
        report = run(net, "alerts")
        assert report.equal and (report.fetched, report.sent) == (22, 21)
    check_equal(net)
    texts = [data for data in payloads(net.path("north"), "alerts") if isinstance(data, str)]
    assert sorted(texts) == ["a", "b", "c", "d", "e"]


def test_a_hub_that_was_wiped_gets_everything_back(net: Net) -> None:
    hubs(net)
    for number in range(5):
        say(net, "south", number)
        give(net, "south", made(number, number + 1))
    with north(net):
        assert run(net, "alerts").equal
        shutil.rmtree(net.path("south"))
        say(net, "south", "new")
        report = run(net, "alerts")
        assert report.equal and (report.fetched, report.sent) == (10, 1)
        assert run(net, "alerts", dry_run=True).equal
    check_equal(net)


@pytest.mark.parametrize("victim", ["north", "south"])
@pytest.mark.parametrize("since", [[], ["e, under a sequence that others know as c"]])
def test_a_hub_that_was_rolled_back_without_noticing(net: Net, victim: str, since: list[str]) -> None:
    """As a snapshot of its file system does: same inode, same machine, older bytes."""
    hubs(net)
    backup, other = net.directory / "backup", "south" if victim == "north" else "north"
    say(net, victim, "a", "b")
    shutil.copytree(net.path(victim), backup)
    say(net, victim, "c", "d")
    with north(net):
        assert run(net, "alerts").equal
    for file in [file for file in backup.rglob("*") if file.is_file() and file.name != "birth"]:
        (net.path(victim) / file.relative_to(backup)).write_bytes(file.read_bytes())
    say(net, victim, *since)
    with north(net):
        assert run(net, "alerts").equal
        assert run(net, "alerts").equal
    lost = {"c"} if since else set()  # there is another message under its sequence
    assert {text[0] for text in payloads(net.path(other), "alerts")} == {*"abcd", *("e" if since else "")}
    assert {text[0] for text in payloads(net.path(victim), "alerts")} == {*"abcd", *("e" if since else "")} - lost
    assert "elsewhere" in audited(net.path(victim), "incarnation")[-1]["why"]
    assert seen(net, "north") == seen(net, "south")


def test_diamond_of_three_hubs(net: Net) -> None:
    """West never speaks with north, and has all the same what north has, and knows what north never had."""
    everything = {"publish": [">"], "subscribe": [">"], "relay": [">"]}
    net.station("north", peers=[{"name": "host1", "publish": ["alerts"]}, {"name": "south", **everything}])
    net.station("south", peers=[{"name": "host1", "publish": ["alerts"]}, {"name": "west", **everything}])
    net.station("west")
    net.station("host1", links=[{"hub": hub, "publish": ["alerts"]} for hub in ("north", "south")])
    with north(net) as hub, net.open("south") as south:
        with net.open("host1") as host1:
            for number in range(10):
                host1.publish("alerts", number)
                wait_for(lambda number=number: number in payloads(net.path("north"), "alerts"))
                hub.publish("alerts", f"n{number}")
            wait_for(lambda: len(lines(net.path("south"), "alerts")) == 10)
        assert (report := sync(south, net.address("north"), ["alerts"])).equal and (report.fetched, report.sent) == (
            10,
            0,
        )
        with net.open("west", federate=False) as west:
            assert (report := sync(west, net.address("south"), ["alerts"])).equal and report.fetched == 20
            assert sync(west, net.address("south"), ["alerts"], dry_run=True).equal
    assert len(lines(net.path("north"), "alerts")) == 20
    check_equal(net)
    assert seen(net, "west") == seen(net, "north")
    assert sorted(lines(net.path("west"), "alerts")) == sorted(lines(net.path("north"), "alerts"))


@pytest.mark.parametrize("victim", ["north", "south"])
def test_what_was_trimmed_is_gone_and_said_so_and_may_still_come_another_way(net: Net, victim: str) -> None:
    other: Side = "here" if victim == "north" else "there"
    hubs(net)
    host2 = made(0, 200)
    say(net, victim, *range(10))
    give(net, victim, host2[:150])
    with net.open(victim, federate=False) as station:
        station.alter_channel("alerts", segment_bytes=4096, retention_bytes=4096)
        station.publish("alerts", "x" * 5000)
        station.trim()
        station.redact(next(iter(station.read("alerts"))).id)
    held = len(lines(net.path(victim), "alerts"))
    assert held < 150
    with north(net):
        report = run(net, "alerts")
        assert not report.equal and report.fetched + report.sent == held
        gone = [(side, name, why) for side, name, why, _ in left(report)]
        assert gone == [(other, "host2", "gone"), (other, victim, "gone")]
        assert sum(one[3] for one in left(report)) == 10 + 150 + 1 - held
        assert left(run(net, "alerts")) == left(report), "told again"
        give(net, "south" if victim == "north" else "north", host2)
        report = run(net, "alerts")
        assert [(side, name, why) for side, name, why, _ in left(report)] == [(other, victim, "gone")]
    found = lines(net.path("north"), "alerts")
    assert len(found) == len(set(found))


@pytest.mark.parametrize("victim", ["north", "south"])
def test_what_is_redacted_on_one_side_was_there_and_neither_comes_back_nor_is_lacking(net: Net, victim: str) -> None:
    hubs(net)
    say(net, "north", "n1", "n2")
    say(net, "south", "s1")
    with north(net):
        assert run(net, "alerts").equal
        with net.open(victim, federate=False) as station:
            for message in [*station.read("alerts")]:
                station.redact(message.id)
        report = run(net, "alerts")
        assert report.equal and not report.channels[0].lacking and (report.fetched, report.sent) == (0, 0)
    assert lines(net.path(victim), "alerts") == []


@pytest.mark.parametrize("how", ["trimmed", "the first", "the last", "all"])
@pytest.mark.parametrize("victim", ["north", "south"])
def test_what_a_station_published_and_removed_is_not_lacking_there_though_nobody_noted_it(
    net: Net, victim: str, how: str
) -> None:
    """While nothing has arrived in a channel, what is seen of it is not written down."""
    other = "south" if victim == "north" else "north"
    hubs(net)
    say(net, victim, *range(10))
    give(net, other, lines(net.path(victim), "alerts"))
    with net.open(victim, federate=False) as station:
        if how == "trimmed":
            station.alter_channel("alerts", segment_bytes=4096, retention_bytes=4096)
            station.publish("alerts", "x" * 5000)
            station.trim()
        else:
            found = [*station.read("alerts")]
            for message in {"the first": found[:1], "the last": found[-1:], "all": found}[how]:
                station.redact(message.id)
    with north(net):
        report = run(net, "alerts")
        assert report.equal and report.fetched + report.sent == (how == "trimmed")
        report = run(net, "alerts", dry_run=True)
        assert report.equal and not report.channels[0].lacking
    assert len(lines(net.path(other), "alerts")) == 10 + (how == "trimmed")


def test_what_a_peer_says_of_others_lines_as_its_own_does_not_count(net: Net, monkeypatch: pytest.MonkeyPatch) -> None:
    hubs(net)
    give(net, "south", made(0, 10))
    own = Shelf.own

    def boast(shelf: Shelf) -> SeenSet:
        found = own(shelf)
        if shelf._station.name == "north":
            found.add(HOST2, 0, 0, 100)
        return found

    monkeypatch.setattr(Shelf, "own", boast)
    with north(net):
        assert run(net, "alerts").sent == 10
    check_equal(net)


def test_what_was_redacted_before_the_other_side_had_it_is_lacking_and_the_reason_says_why(net: Net) -> None:
    hubs(net)
    say(net, "north", "n1", "n2", "n3")
    with net.open("north", federate=False) as station:
        station.redact([*station.read("alerts")][1].id)
    with north(net):
        report = run(net, "alerts")
    assert not report.equal and report.fetched == 2
    assert [one.reason for one in report.channels[0].left] == [
        "north has removed what it had: retention, compaction or redaction"
    ]


# -- rules --------------------------------------------------------------------------------------------------


def test_the_rules_of_the_hub_hold(net: Net) -> None:
    hubs(net, {"publish": ["alerts", "logs"], "subscribe": ["alerts", "commands"], "relay": ["host2"]})
    for channel in ("alerts", "logs", "commands", "secrets"):
        say(net, "north", "n", channel=channel)
        say(net, "south", "s", channel=channel)
        give(net, "south", made(0, 5, HOST2, channel=channel), made(0, 7, HOST3, channel=channel), channel=channel)
    with north(net):
        alerts, logs, commands, secrets = (run(net, name) for name in ("alerts", "logs", "commands", "secrets"))
        assert left(alerts) == [("there", "host3", "not allowed", 7)] and (alerts.fetched, alerts.sent) == (1, 6)
        assert left(logs) == [("here", "north", "not allowed", 1), ("there", "host3", "not allowed", 7)]
        assert (logs.fetched, logs.sent) == (0, 6)
        assert {one[:3] for one in left(commands)} == {
            ("there", name, "not allowed") for name in ("host2", "host3", "south")
        }  # fmt: skip
        assert (commands.fetched, commands.sent) == (1, 0)
        assert left(secrets) == [(side, "None", "not allowed", 0) for side in ("here", "there")]
        reason = secrets.channels[0].left[0].reason
        assert reason == "south is not allowed to publish or subscribe 'secrets' (rules of north)"
        assert run(net, "logs", sides=["there"]).channels[0].left[0].reason == (
            "south is not allowed to relay messages of 'host3' (rules of north)"
        )
    assert payloads(net.path("north"), "secrets") == payloads(net.path("north"), "commands") == ["n"]
    assert payloads(net.path("south"), "secrets")[0] == "s" and "n" not in payloads(net.path("south"), "secrets")


def test_the_rules_of_this_side_hold_for_a_hub_that_is_a_peer_of_it(net: Net) -> None:
    rule = {"name": "north", "publish": ["alerts"], "subscribe": ["logs"], "relay": ["host2"]}
    hubs(net, peers=[rule])
    for channel in ("alerts", "logs"):
        give(net, "north", made(0, 5, HOST2, channel=channel), made(0, 7, HOST3, channel=channel), channel=channel)
        say(net, "south", "s", channel=channel)
    with north(net):
        alerts, logs = run(net, "alerts"), run(net, "logs")
        assert left(alerts) == [("here", "host3", "not allowed", 7), ("there", "south", "not allowed", 1)]
        assert (alerts.fetched, alerts.sent) == (5, 0)
        assert left(logs) == [("here", "host2", "not allowed", 5), ("here", "host3", "not allowed", 7)]
        assert (logs.fetched, logs.sent) == (0, 1)
        assert alerts.channels[0].left[0].reason.endswith("(rules of south)")
        hubs(net, peers=[rule], links=[{"hub": "north", "subscribe": ["alerts"], "publish": ["alerts"]}])
        assert run(net, "alerts").equal, "a link to it asks for that"
    check_equal(net)


def test_one_message_that_is_refused_does_not_keep_the_others(net: Net) -> None:
    hubs(net, messages={"max_bytes": 2000})
    say(net, "north", "a", "b" * 3000, "c")
    with north(net):
        report = run(net, "alerts")
        assert left(report) == [("here", "north", "refused", 1)] and report.fetched == 2
        assert "messages.max_bytes is 2000" in report.channels[0].left[0].reason
    assert payloads(net.path("south"), "alerts") == ["a", "c"]


def test_a_channel_that_is_not_to_be_made_is_refused(net: Net) -> None:
    hubs(net, storage={"auto_create": False})
    say(net, "north", "a")
    with north(net):
        assert left(run(net, "alerts")) == [("here", "north", "refused", 1)]


def test_a_quota_slows_a_sync_down_and_loses_nothing(net: Net, monkeypatch: pytest.MonkeyPatch) -> None:
    everything = {"publish": [">"], "subscribe": [">"], "relay": [">"]}
    hubs(net, {**everything, "messages_per_s": 2_000})
    give(net, "south", made(0, 3_000))
    pauses: list[float] = []
    pause = Conversation.pause

    async def spy(self: Conversation, seconds: float) -> None:
        pauses.append(seconds)
        await pause(self, seconds)

    monkeypatch.setattr(Conversation, "pause", spy)
    with north(net):
        assert run(net, "alerts").equal
    assert sum(pauses) > 0
    check_equal(net)


@pytest.mark.usefixtures("short_pauses")
def test_a_hub_that_loses_every_connection_is_not_asked_for_ever(net: Net, monkeypatch: pytest.MonkeyPatch) -> None:
    hubs(net)
    say(net, "south", "mine")
    asked: list[str] = []

    def cut(desk: Desk, event: Called) -> None:
        asked.append(event.name)
        if len(asked) <= 100:
            desk._line.drop("cut by the test")

    monkeypatch.setattr(Desk, "asked", cut)
    with north(net), pytest.raises(hg.Unreachable, match="lost 20 times before the hub answered"):
        run(net, "alerts")
    assert len(asked) == 20


def test_lines_near_the_largest_size_pass(net: Net) -> None:
    hubs(net)
    for name in ("north", "south"):
        with net.open(name, federate=False) as station:
            size = station.config.messages.max_bytes
            station.publish_many("alerts", [name, "x" * (size - 3000), "y" * (size - 3000)])
    with north(net):
        assert run(net, "alerts").equal
    check_equal(net)


# -- death and cuts -----------------------------------------------------------------------------------------


PROGRAM = """
import os, sys, heliograph as hg
from heliograph.admin.sync import sync

def die(done, total):
    if done >= int(sys.argv[3]): os.kill(os.getpid(), 9)

with hg.open(config=sys.argv[1], federate=False) as station:
    print("ready", flush=True)
    sync(station, sys.argv[2], ["alerts"], progress=die)
"""


def held(net: Net, name: str) -> int:
    """How many lines are on disk."""
    return sum(file.read_bytes().count(b"\n") for file in (net.path(name) / "channels").rglob("*.jsonl"))


def test_a_sync_whose_sides_are_killed_in_the_middle_gets_there_when_it_is_run_again(net: Net) -> None:
    hubs(net)
    give(net, "north", made(0, 6_000))
    give(net, "south", made(0, 6_000, HOST3))
    served = net.run("north")
    for most in (1, 2_000, 3_000, 2_000):  # first while it fetches, then while it sends
        with python(PROGRAM, str(net.directory / "south.yaml"), net.address("north"), str(most)) as child:
            assert child.wait(60) == -signal.SIGKILL
    cut = held(net, "north"), held(net, "south")
    assert 6_000 < cut[0] < 12_000 and cut[1] == 12_000, "killed in the middle"
    with python(PROGRAM, str(net.directory / "south.yaml"), net.address("north"), "1000000") as child:
        wait_for(lambda: held(net, "north") > cut[0] or child.poll() is not None)
        served.kill()
    with north(net):
        assert run(net, "alerts").equal
    check_equal(net)
    assert held(net, "north") == held(net, "south") == 12_000


def test_connections_that_are_cut_in_the_middle(net: Net) -> None:
    hubs(net)
    give(net, "north", made(0, 3_000))
    give(net, "south", made(0, 3_000, HOST3))
    proxy = Proxy(net.port("north"), cut_after=(300_000, 900_000))
    try:
        with north(net), net.open("south", federate=False) as south:
            report = sync(south, f"localhost:{proxy.port}", ["alerts"])
        assert report.equal and (report.fetched, report.sent) == (3_000, 3_000)
        assert proxy.cuts > 0
    finally:
        proxy.close()
    check_equal(net)
